"""Every command takes those subsets of a user's files that are there, and names the others."""

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specbench.analysis.vocab.vocab import task_prompts
from specbench.core.errors import ConfigError
from specbench.running import plan as subsets
from specbench.running.plan import subsets_with_rows
from specbench.running.request import absent_subsets_line
from specbench.specs.catalogue import load_method, load_task
from specbench.specs.components import build
from specbench.specs.run import RunSpec

MISSING = "mgsm: 9 subsets have no file in {folder} (es, fr, ru, zh, ja and 4 more): they are not measured"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Questions of two of the languages."""
    for language in ("en", "de"):
        (tmp_path / f"mgsm_{language}.tsv").write_text("".join(f"What is 1 + {n}?\t{n + 1}\n" for n in range(3)))
    return tmp_path


def test_only_files_that_lack_a_subset_narrow_what_is_taken(folder: Path) -> None:
    task, said = load_task("mgsm"), io.StringIO()
    console = Console(file=said)
    assert (
        subsets_with_rows(task, None, console)
        is subsets_with_rows(task, "hub", console)
        is subsets_with_rows(task, "sample", console)
    )
    assert subsets_with_rows(load_task("gsm8k"), str(folder), console) is None  # a task without subsets
    assert subsets_with_rows(task, str(folder / "nowhere"), console) is None and said.getvalue() == ""
    assert subsets_with_rows(task, str(folder), console) == ("en", "de")
    assert said.getvalue() == MISSING.format(folder=folder) + "\n"
    for language in task.subset_names:
        (folder / f"mgsm_{language}.tsv").touch()
    assert subsets_with_rows(task, str(folder), console) is None


def test_subsets_that_share_a_file_are_those_with_rows_in_it(tmp_path: Path) -> None:
    rows = [{"question_id": n, "category": name, "turns": ["a", "b"]} for n, name in enumerate(("writing", "stem"))]
    path = tmp_path / "question.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    said = io.StringIO()
    assert subsets_with_rows(load_task("mt_bench"), str(tmp_path), Console(file=said, width=200)) == ("writing", "stem")
    absent = "roleplay, reasoning, math, coding, extraction and 1 more"
    assert said.getvalue() == f"mt_bench: 6 subsets have no rows in {tmp_path} ({absent}): they are not measured\n"


def test_rows_that_name_their_subset_are_of_no_other(tmp_path: Path) -> None:
    for name in ("en", "de"):  # `story*`, which all subsets read, finds both
        row = {"subset": name, "id": name, "adjective": "clever", "noun": "robot"}
        (tmp_path / f"story_{name}.jsonl").write_text(json.dumps(row))
    said = io.StringIO()
    assert subsets_with_rows(load_task("story"), str(tmp_path), Console(file=said, width=200)) == ("en", "de")
    assert said.getvalue().startswith(f"story: 13 subsets have no rows in {tmp_path} (fr, es, amh")


def test_only_files_that_subsets_share_are_read_before_they_are_loaded(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = subsets.load_examples
    monkeypatch.setattr(subsets, "load_examples", lambda *args, **kw: (read.append(args[1]), real(*args, **kw))[1])
    assert subsets_with_rows(load_task("mgsm"), str(folder), Console(quiet=True)) == ("en", "de") and read == []
    mixed = tmp_path_factory.mktemp("mixed")
    for name, category in (("question", "writing"), ("stem", "stem")):
        (mixed / f"{name}.jsonl").write_text(json.dumps({"question_id": 1, "category": category, "turns": ["a"]}))
    task = load_task("mt_bench")
    assert subsets_with_rows(task, str(mixed), Console(quiet=True)) == ("writing", "stem")
    assert read == [name for name in task.subset_names if name != "stem"]


def test_a_subset_that_is_named_twice_is_asked_for_once() -> None:
    given = {"tasks": (load_task("mgsm"),), "methods": (load_method("ar"),), "target": "embedded:target"}
    assert build(RunSpec, {**given, "subsets": ("sw", "en", "sw")}).subsets == ("sw", "en")


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (("audit", "--method", "sd"), "analysis.audit.audit"),
        (("sweep", "--method", "fsd"), "analysis.tuning.shared_runs"),
        (("sweep", "--method", "sd", "--recipe", "language-order"), "analysis.tuning.shared_runs"),
        (
            ("sweep", "--method", "sd", "--recipe", "joint-temperature", "--values", "0.5,1"),
            "analysis.tuning.shared_runs",
        ),
        (("tune", "--method", "fsd"), "analysis.tuning.shared_runs"),
    ],
)
def test_commands_measure_what_is_there(
    specbench: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], module: str
) -> None:
    taken: list[str] = []

    def reached(spec: Any) -> None:
        taken.extend(name for _, name in spec.task_subsets())
        raise ConfigError("reached")

    monkeypatch.setattr(f"specbench.{module}.load_models", reached)
    code, _, err = specbench(*words, "--task", "mgsm", "--data", folder)
    assert code == 2 and err == f"{MISSING.format(folder=folder)}\nerror: reached\n"
    assert taken == ["en", "de"]
    code, _, err = specbench(*words, "--task", "mgsm", "--data", folder, "--subset", "de,fr")
    assert code == 2 and "no file for subset 'fr'" in err


def test_vocabularies_are_compared_on_what_is_there(folder: Path) -> None:
    said = io.StringIO()
    found = task_prompts("mgsm", None, data=str(folder), use_sample=False, console=Console(file=said), limit=None)
    assert len(found) == 6 and said.getvalue() == MISSING.format(folder=folder) + "\n"


def test_a_line_about_one_subset_is_in_the_singular() -> None:
    line = partial(absent_subsets_line, "mgsm", lacking="rows in data")
    assert line(["en"]) == "mgsm: 1 subset has no rows in data (en)"
    assert line(["en", "de"]) == "mgsm: 2 subsets have no rows in data (en, de)"
