"""Few-shot examples before the prompt: their source, their form, and that none of them is asked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.results.leaderboard import load
from specbench.results.leaderboard import write as write_rows
from specbench.results.row import RowShots
from specbench.specs.catalogue import digest, load_task, with_overrides
from specbench.specs.components import build
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import FewshotInfo, load_examples
from tools.world.rows import sample_prompts

SHOTS = {"num_shots": 2, "example": "Q: {{ row.question }}\nA: {{ row.answer }} {{ vars.end }}"}
TASK = {
    "name": "sums", "version": 1, "title": "Sums", "prompt": "Q: {{ row.question }}\nA:",
    "reference": "{{ row.answer }}", "generation": {"max_new_tokens": 16}, "vars": {"end": "."}, "fewshot": SHOTS,
}  # fmt: skip
ROWS = [{"question": f"{n}+0?", "answer": n} for n in range(3)]
PREFIX = "Q: 0+0?\nA: 0 .\n\nQ: 1+0?\nA: 1 .\n\n"


def task(**changes: Any) -> TaskSpec:
    return build(TaskSpec, {**TASK, **changes, "fewshot": {**SHOTS, **changes.get("fewshot", {})}})


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def first(spec: TaskSpec, data: str | Path, subset: str = "default") -> str:
    return load_examples(spec, subset, data=str(data), use_sample=False, limit=1).examples[0].prompt


def message(spec: TaskSpec, data: str | Path, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_examples(spec, "default", data=str(data), use_sample=False, limit=None, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "sums_default.jsonl", {"question": "7+1?", "answer": 8}, {"question": "7+2?", "answer": 9})
    write(tmp_path / "dev.jsonl", *ROWS)
    return tmp_path


def test_rows_of_the_task_file(folder: Path) -> None:
    assert first(task(fewshot={"rows": ROWS}), folder) == PREFIX + "Q: 7+1?\nA:"
    one = task(fewshot={"rows": ROWS, "num_shots": 1, "separator": "\n#\n"})
    assert first(one, folder / "sums_default.jsonl") == "Q: 0+0?\nA: 0 .\n#\nQ: 7+1?\nA:"


def test_local_files_beside_the_rows(folder: Path) -> None:
    spec = task(fewshot={"local": {"files": ["dev"]}})
    assert first(spec, folder) == PREFIX + "Q: 7+1?\nA:"
    text = message(spec, folder / "sums_default.jsonl")
    assert "its few-shot examples are not in the one file that --data names: give the folder that holds both" in text


def test_the_bundled_sample_and_its_subsets(folder: Path) -> None:
    rows = [{"subset": name, "question": f"{name}{n}", "answer": n} for name in ("en", "de") for n in (1, 2)]
    dev = write(folder / "sample-dev.jsonl", *rows)
    sample = write(folder / "sample.jsonl", *({**row, "question": row["question"] + "?"} for row in rows))
    spec = task(sample=str(sample), fewshot={"sample": str(dev)}, subsets={"en": {}, "de": {"vars": {"end": "!"}}})
    assert first(spec, "sample", "de") == "Q: de1\nA: 1 !\n\nQ: de2\nA: 2 !\n\nQ: de1?\nA:"
    row = json.loads(sample.read_text().splitlines()[0])
    assert sample_prompts(spec.subset("en"), row) == (first(spec, "sample", "en"),)


def test_a_sample_beside_the_task_file_is_found(folder: Path) -> None:
    import yaml

    path = folder / "sums.yaml"
    data = {
        **TASK,
        "sample": "s.jsonl",
        "fewshot": {**SHOTS, "sample": "dev.jsonl"},
        "subsets": {"a": {}, "b": {"sample": "b.jsonl"}},
    }
    path.write_text(yaml.safe_dump(data))
    spec = load_task(str(path))
    assert spec.fewshot is not None and spec.fewshot.sample == str(folder / "dev.jsonl")
    assert [spec.subset(name).sample for name in "ab"] == [str(folder / "s.jsonl"), str(folder / "b.jsonl")]


@pytest.mark.parametrize("question", ["1+0?", " 1+0?\n"])
def test_an_example_that_is_asked_for_is_an_error(folder: Path, question: str) -> None:
    write(folder / "sums_default.jsonl", {"question": "7+1?", "answer": 8}, {"question": question, "answer": 1})
    text = message(task(fewshot={"rows": ROWS}), folder)
    assert "sums_default.jsonl, row 2: the row is one of the few-shot examples before its prompt" in text


def test_all_rows_that_are_asked_for_are_told_at_once(folder: Path) -> None:
    """And only those that are measured."""
    rows = [{"question": f"{n}+0?", "answer": n} for n in (7, 1, 8, 0)]
    path = write(folder / "sums_default.jsonl", *rows, {"question": "\uff11+0?", "answer": 1})
    text = message(task(fewshot={"rows": ROWS}), folder)
    assert text.startswith(f"{path}, row 2 (and 2 more of 5): the row is one of the few-shot examples")
    only_one = {"data": str(folder), "use_sample": False, "limit": 1}
    assert len(load_examples(task(fewshot={"rows": ROWS}), "default", **only_one).examples) == 1


@pytest.mark.parametrize("files", ["[sums_default]", "[dev]"])
def test_worked_examples_from_the_test_rows_by_an_override_are_an_error(folder: Path, files: str) -> None:
    """As `--set` sets it. Of the other file the control: no row of it is asked for."""
    spec = task(fewshot={"local": {"files": ["dev"]}})
    [changed], _ = with_overrides([spec], [], [f"fewshot.local.files={files}"])
    if files == "[dev]":
        assert first(changed, folder).startswith(PREFIX)
    else:
        assert "row 1 (and 1 more of 2): the row is one of the few-shot examples" in message(changed, folder)


def test_data_say_what_stands_before_their_prompts(folder: Path) -> None:
    def fewshot(spec: TaskSpec) -> FewshotInfo:
        return load_examples(spec, "default", data=str(folder), use_sample=False, limit=None).fewshot

    own, local = fewshot(task(fewshot={"rows": ROWS})), fewshot(task(fewshot={"local": {"files": ["dev"]}}))
    assert (own.num, own.source, own.location, own.checked) == (2, "task", "sums", True)
    assert (local.num, local.source) == (2, "local") and str(local.location).endswith("dev.jsonl")
    assert own.digest == local.digest and len(str(own.digest)) == 12, "of the text, wherever it comes from"
    assert fewshot(task(fewshot={"rows": ROWS, "num_shots": 1})).digest != own.digest
    assert fewshot(task(fewshot={"rows": ROWS, "num_shots": 0})) == FewshotInfo()


def test_rows_tell_it_too_and_validate_asks_the_task(folder: Path, specbench: Callable[..., Any]) -> None:
    import yaml

    from specbench.results.leaderboard_files import validate

    (folder / "sums.yaml").write_text(yaml.safe_dump({**TASK, "fewshot": {**SHOTS, "local": {"files": ["dev"]}}}))
    run = ("run", "--task", "sums.yaml", "--method", "sd", "--data", str(folder), "--output", "run")
    assert specbench(*run, "--set", "generation.max_new_tokens=2")[0] == 0
    found = load(folder / "run" / "leaderboard.json")
    assert {(row.shots.num, row.shots.source, row.shots.num_checked) for row in found if row.shots} == {(2, "local", 2)}
    assert not validate(folder / "run" / "leaderboard.json", with_records=True).problems
    wrong = [row.model_copy(update={"shots": RowShots(num=0)}) for row in found]
    write_rows(folder / "run" / "leaderboard.json", wrong)
    problems = validate(folder / "run" / "leaderboard.json", with_records=True).problems
    assert any("shots.num = 0, but its run gives 2" in str(problem) for problem in problems)


OPTIONS = {
    "prompt": "{{ row.question }} {{ row.options | join(', ') }}\nA:",
    "fewshot": {"example": "{{ row.question }} {{ row.answer }}", "rows": [
        {"question": "Which is red?", "options": ["a rose", "a leaf"], "answer": "a rose", "id": "x1"},
    ], "num_shots": 1},
}  # fmt: skip


@pytest.mark.parametrize("question", ["Which is red?", "WHICH is  red?"])
def test_an_example_with_its_options_in_another_order_is_asked_for_all_the_same(folder: Path, question: str) -> None:
    write(folder / "sums_default.jsonl", {"question": question, "options": ["a leaf", "a rose"], "answer": "a rose"})
    assert "row 1: the row is one of the few-shot examples before its prompt" in message(task(**OPTIONS), folder)


def test_an_example_with_other_options_is_another_question(folder: Path) -> None:
    """ "Which of the following is true?" is asked many times."""
    write(folder / "sums_default.jsonl", {"question": "Which is red?", "options": ["a brick", "a leaf"], "answer": "x"})
    assert first(task(**OPTIONS), folder).endswith("Which is red? a brick, a leaf\nA:")


@pytest.mark.parametrize(("name", "subset"), [("mmlu", "anatomy"), ("csqa", "default")])
def test_in_the_tasks_with_options(folder: Path, name: str, subset: str) -> None:
    asked = "Where would you most likely see a star?"
    choices = {"label": [*"ABCDE"], "text": ["sky", "sea", "garden", "road", "office"]}
    shot = {"question": asked, "choices": choices, "answerKey": "A"}
    if name == "mmlu":
        shot = {"question": asked, "choices": choices["text"][:4], "answer": 0}
        write(folder / "anatomy_dev.jsonl", *({**shot, "choices": [*"abc", str(n)]} for n in range(4)), shot)
    other = json.loads(json.dumps(shot).replace("garden", "cellar"))
    reordered = json.loads(json.dumps(shot).replace('"sky", "sea"', '"sea", "sky"'))
    for row, refused in ((other, False), (shot, True), (reordered, True)):
        write(folder / f"{subset}_test.jsonl" if name == "mmlu" else folder / "csqa.jsonl", row)
        arguments = {"data": str(folder), "use_sample": False, "limit": None}
        if not refused:
            assert len(load_examples(load_task(name), subset, **arguments).examples) == 1
            continue
        with pytest.raises(ConfigError, match="row 1: the row is one of the few-shot examples before its prompt"):
            load_examples(load_task(name), subset, **arguments)


def test_the_column_that_tells_questions_apart(folder: Path) -> None:
    """By default all that the prompt needs; where rows share that, another column."""
    rows = [
        {"question": "Which is red?", "options": ["a rose", "a leaf"], "answer": "a rose", "id": name}
        for name in ("x2", "X1")
    ]
    write(folder / "sums_default.jsonl", rows[0])
    named = task(**{**OPTIONS, "fewshot": {**OPTIONS["fewshot"], "question_column": "id"}})
    assert "row 1: the row is one of" in message(task(**OPTIONS), folder)
    assert first(named, folder).endswith("Which is red? a rose, a leaf\nA:")
    write(folder / "sums_default.jsonl", *rows)
    assert "row 2: the row is one of" in message(named, folder)
    unknown = task(**{**OPTIONS, "fewshot": {**OPTIONS["fewshot"], "question_column": "idd"}})
    assert "fewshot.rows, row 1: no column 'idd', which fewshot.question_column names: did you mean 'id'?" in message(
        unknown, folder
    )


def test_the_third_row_of_the_split_is_no_example_of_two(folder: Path) -> None:
    write(folder / "sums_default.jsonl", ROWS[2])
    assert first(task(fewshot={"rows": ROWS}), folder).endswith("Q: 2+0?\nA:")


@pytest.mark.parametrize(
    ("changes", "data", "expected"),
    [
        ({"split": "dev"}, "sample", "its few-shot examples have no bundled sample (fewshot.sample)"),
        ({"split": "dev"}, "FOLDER", "its few-shot examples have no local files (fewshot.local.files)"),
        ({"local": {"files": ["dev"]}, "num_shots": 5}, "FOLDER", "dev.jsonl: holds 3 few-shot examples"),
        ({"local": {"files": ["no"]}}, "FOLDER", "no file for subset 'default' of task 'sums': tried no with"),
        ({"rows": [{"question": "x"}, {}]}, "FOLDER", "fewshot.rows, row 1: no column 'answer', which the fewshot.exa"),
    ],
)
def test_what_is_missing(folder: Path, changes: dict[str, Any], data: str, expected: str) -> None:
    sample = write(folder / "sample.jsonl", {"question": "7+1?", "answer": 8})
    text = message(task(sample=str(sample), fewshot=changes), folder if data == "FOLDER" else data)
    assert expected in text


def test_none_are_loaded_when_none_are_asked_for(folder: Path) -> None:
    [spec], _ = with_overrides([task(fewshot={"split": "dev"})], [], ["fewshot.num_shots=0"])
    assert first(spec, folder) == "Q: 7+1?\nA:"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "fewshot: has no rows: add `rows`"),
        ({"rows": ROWS, "num_shots": 4}, "fewshot.num_shots = 4: fewshot.rows has 3: lower it"),
        ({"rows": [{"day": object}]}, "fewshot.rows, row 1: day: a type that JSON cannot hold"),
        ({"rows": ROWS, "example": "{{ vars.no }}"}, "fewshot.example: vars.no is not set"),
        ({"rows": ROWS, "shots": 3}, "fewshot.shots: unknown key 'shots'"),
        ({"split": "dev", "data_files": "{lang}"}, "fewshot.data_files = '{lang}': the only fields are"),
    ],
)
def test_mistakes(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        task(fewshot=changes)
    assert expected in str(caught.value)


def test_the_digest_sees_the_examples_but_not_the_place_of_the_sample() -> None:
    base = digest(task(fewshot={"rows": ROWS}))
    assert digest(task(fewshot={"rows": ROWS, "sample": "/elsewhere"})) == base
    assert digest(task(fewshot={"rows": ROWS[:2]})) != base
    without = {key: value for key, value in TASK.items() if key != "fewshot"}
    assert digest(build(TaskSpec, without)) != base
