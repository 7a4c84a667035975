"""What the tasks that come with specbench read on the hub, and what `--set dataset.…` changes of it."""

import re
from functools import cache

import pytest

from specbench.core.errors import ConfigError
from specbench.specs.catalogue import builtin_task_names, digest, load_task, with_overrides
from specbench.specs.components import build
from specbench.specs.task import DatasetSpec, TaskSpec
from specbench.tasks.fetch import hub_locations

SPLITS = re.compile(r"(?<![a-z])(train|dev|test|validation|val)\b")


@cache
def tasks() -> dict[str, TaskSpec]:
    return {name: load_task(name) for name in builtin_task_names()}


@cache
def on_the_hub() -> list[tuple[str, str]]:
    """Tasks with up to five of their subsets."""
    return [
        (name, subset)
        for name, task in tasks().items()
        for subset in task.subset_names[:5]
        if task.subset(subset).dataset
    ]


def place(name: str, subset: str, *pairs: str) -> DatasetSpec:
    [task], _ = with_overrides([tasks()[name]], [], pairs)
    return hub_locations(task, subset)[0]


def test_most_tasks_are_there() -> None:
    assert {"wmt", "webtext", "gsm8k", "cnn_dm", "mmlu", "iwslt14"} <= {name for name, _ in on_the_hub()}


def test_another_split_is_read() -> None:
    """Its name is in the names of the files too, unless one file holds the one split that there is."""
    for name, subset in on_the_hub():
        other = place(name, subset, "dataset.split=elsewhere")
        assert other.split == "elsewhere", (name, subset)
        named = f"{other.data_files or ''} {other.archive_member or ''}"
        assert not SPLITS.search(named), (name, subset, named)


def test_another_revision_is_read() -> None:
    for name, subset in on_the_hub():
        before, after = place(name, subset), place(name, subset, "dataset.revision=v9")
        assert after == before.model_copy(update={"revision": "v9"}), (name, subset)


def test_subsets_without_a_dataset_get_none() -> None:
    [task], _ = with_overrides([load_task("webtext")], [], ["dataset.first_rows=7"])
    assert task.dataset is None
    assert [task.subset(name).dataset.first_rows for name in task.subset_names] == [7, 7]  # type: ignore[union-attr]
    spec = build(TaskSpec, {
        "name": "t", "version": 1, "title": "T", "prompt": "{{ row.q }}", "generation": {"max_new_tokens": 4},
        "subsets": {"a": {"dataset": {"path": "x/y", "split": "test"}}, "b": {}},
    })  # fmt: skip
    [changed], _ = with_overrides([spec], [], ["dataset.split=dev"])
    assert changed.subset("a").dataset.split == "dev" and changed.subset("b").dataset is None  # type: ignore[union-attr]


def test_huge_sets_are_read_in_part() -> None:
    assert place("mcot", "en").first_rows == place("webtext", "en").first_rows == 1000
    assert place("wmt", "ja-en").last_rows == place("wmt", "en-ja").last_rows == 80


def test_the_rows_that_are_asked_for_are_part_of_the_digest() -> None:
    task = load_task("wmt")
    [other], _ = with_overrides([task], [], ["dataset.last_rows=81"])
    assert digest(other) != digest(task)


def test_first_and_last_rows_are_not_both_given() -> None:
    with pytest.raises(ConfigError, match=r"dataset\.last_rows: dataset\.first_rows is also given: delete one"):
        with_overrides([load_task("mcot")], [], ["dataset.last_rows=3"])


def test_a_wrong_key_is_answered_by_those_beside_it() -> None:
    with pytest.raises(ConfigError, match=r"no .* key 'fewshot\.shots': did you mean 'fewshot\.num_shots'\?") as caught:
        with_overrides([load_task("mmlu")], [], ["fewshot.shots=2"])
    assert "generation." not in str(caught.value) and "fewshot.question_column" in str(caught.value)
