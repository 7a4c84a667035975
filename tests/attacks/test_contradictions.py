"""Records that give their rows and still contradict themselves: made-up scores, texts and times, and commands that
would do something else."""

import json
import re
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.core.values import WHOLE, bytes_digest
from specbench.publish.board.check import _marks
from specbench.publish.bundle.contradictions import check_records, is_one_command
from specbench.publish.bundle.crate import COMMANDS, MANIFEST, METADATA, README
from specbench.publish.bundle.verify import verified, verify
from specbench.publish.rules import look_alike
from specbench.records.folder import ENVIRONMENT, read_environments
from specbench.results.leaderboard import ROWS
from specbench.results.row import with_digest
from specbench.results.runs import RecordedRun
from specbench.tasks.scoring.texts import TranslationScorer
from tests.attacks.bounds import within_bounds
from tests.attacks.test_rules import each_record, edited, measured, rows_anew
from tests.support.bundles import archive, bundled, files_in, independent_runs, member, rewritten
from tests.support.runs import run_into

Edit = Callable[[Path], object]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (run,) = independent_runs(tmp_path_factory.mktemp("honest"), 1, limit=3)
    return run


def each_answer(edit: Callable[[dict[str, Any]], object], method: str = "sd") -> Edit:
    return lambda folder: each_record(folder, lambda _, record: edit(record["methods"][method]))


def all_right(generation: dict[str, Any]) -> None:
    generation |= {"score": 1.0 - generation["score"], "scores": {"accuracy": 1.0 - generation["score"]}}


def slower_baseline(generation: dict[str, Any]) -> None:
    """Passes and answers of AR by the same factor, with the clock as it was."""
    generation["decode_seconds"] *= 1e5
    generation["passes"]["target"] = [[length, 1e5 * seconds] for length, seconds in generation["passes"]["target"]]


def slow_once(folder: Path) -> None:
    """The last answer of AR, by less than the whole run took."""
    each_record(folder, lambda number, record: record.update(measured_at=record["measured_at"] + 100 * min(number, 1)))
    each_record(
        folder,
        lambda number, record: (
            number == 2
            and [
                record["methods"]["ar"].update(decode_seconds=50.0),
                record["methods"]["sd"].update(decode_seconds=50.0),
            ]
        ),
    )


def repeated(folder: Path) -> None:
    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    (folder / "records.jsonl").write_text("".join([*lines, lines[0]]))


def twice_told(folder: Path) -> None:
    """A key whose first value other readers of JSON may take."""
    text = (folder / "records.jsonl").read_text()
    (folder / "records.jsonl").write_text(text.replace('"decode_seconds":', '"decode_seconds":0.001,"decode_seconds":'))


def later(folder: Path) -> None:
    each_record(folder, lambda _, record: record.update(measured_at=record["measured_at"] + 1e9))


# Each edit leaves rows that the records give, and a word of the line that finds it.
CONTRADICTING: dict[str, tuple[Edit, str]] = {
    "scores that nobody got": (each_answer(all_right), "that the text does not get: "),
    "another text of the same tokens": (
        each_answer(lambda each: each.update(text=each["text"] + " ")), "3 texts unlike another of the same tokens"),
    "a text of too few tokens": (
        each_answer(lambda each: each.update(text=each["text"] + " " * 10_000)),
        "3 texts with more characters than tokens have"),
    "a method faster than its passes": (
        each_answer(lambda each: each.update(decode_seconds=each["decode_seconds"] / 50)), "decode_seconds of sd are"),
    "a baseline that the clock contradicts": (each_answer(slower_baseline, "ar"), "but by measured_at only"),
    "one baseline that the clock contradicts": (slow_once, "1 record faster than its answers"),
    "numbers that are none": (
        each_answer(lambda each: each["positions"].update(dict.fromkeys(each["positions"], None) | {"p": [
            float("nan")] * sum(step[1] for step in each["steps"])})), "3 answers with numbers that are not finite"),
    "other versions than its packages": (
        lambda folder: edited(folder, "run.json", lambda run: run["environment"]["versions"].update(torch="99.0")),
        "but run.json says 99.0"),
    "a machine that was not there": (
        lambda folder: edited(folder, "run.json", lambda run: run["environment"].update(device="NVIDIA H100")),
        "run.json: device = NVIDIA H100, but environment.json has only"),
    "an example twice": (repeated, "1 record of an example that another one has"),
    "keys twice": (twice_told, "with a key twice"),
    "a run of the future": (later, "3 records measured in the future"),
    "a command of others": (
        lambda folder: measured(folder, command="curl https://example.org/x"), "is not one command of specbench"),
    "two commands": (
        lambda folder: measured(folder, command="specbench run; curl https://example.org/x"), "is not one command"),
    "a command of others to resume by": (
        lambda folder: edited(folder, "run.json", lambda run: run.update(command="specbench run; sh x")),
        "run.json: command = 'specbench run; sh x': is not one command"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTING)
def test_records_that_contradict_themselves(
    specbench: Callable[..., Any], honest: Path, tmp_path: Path, name: str
) -> None:
    edit, word = CONTRADICTING[name]
    shutil.copytree(honest, tmp_path / "run")
    edit(tmp_path / "run")
    rows_anew(tmp_path / "run")
    bundle = bundled([tmp_path / "run"], tmp_path / "forged.tar.gz")
    with within_bounds(), verified([bundle]) as [found]:
        assert all(each.wrong is None for each in found.rows), "nothing but the check finds it"
        assert {str(verify([found]).level_of(found, each)) for each in found.rows} == {"stated"}
        assert any(word in line for line in found.problems), found.problems
    code, _, err = specbench("bundle", "verify", "forged.tar.gz")
    assert code == 2 and word in err and "Traceback" not in err
    assert all(line.startswith("error: forged.tar.gz: ") and len(line) < 600 for line in err.splitlines())


def test_a_control_an_honest_run_contradicts_nothing(honest: Path) -> None:
    found = check_records(RecordedRun(honest))
    assert found.problems == [] and found.has_texts and found.unscored == []
    assert check_records(RecordedRun(honest), now=1e9).problems, "it was measured after 2001"


def test_scores_without_their_references_are_stated(honest: Path, tmp_path: Path) -> None:
    shutil.copytree(honest, tmp_path / "run")
    each_record(tmp_path / "run", lambda _, record: record.update(reference=None))
    rows_anew(tmp_path / "run")
    with verified([bundled([tmp_path / "run"], tmp_path / "x.tar.gz")]) as [found]:
        assert not found.problems
        assert all("scores (references are left out)" in each.level.except_for for each in found.rows)


HERE = version("sacrebleu")


@pytest.fixture(scope="module")
def translated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose scores sacrebleu makes, with those of the second answer as another version could have made them."""
    folder = tmp_path_factory.mktemp("translated") / "run"
    run_into(folder, "sd", subsets=("de-en",), limit=2, task="wmt")

    def other_score(number: int, record: dict[str, Any]) -> None:
        for each in record["methods"].values() if number else ():
            each |= {"score": each["score"] + 1, "scores": {**each["scores"], "bleu": each["score"] + 1}}

    each_record(folder, other_score)
    rows_anew(folder)
    return folder


def scored_by(folder: Path, sacrebleu: str) -> None:
    """A run that notes this version."""
    for environment in read_environments(folder):
        environment["packages"]["sacrebleu"] = sacrebleu  # type: ignore[index]
        (folder / ENVIRONMENT).write_text(json.dumps({"environments": [environment]}))

    def sign(row: dict[str, Any]) -> dict[str, object]:
        signatures = {
            name: re.sub(r"version:[\w.]+", f"version:{sacrebleu}", text) for name, text in row["signatures"].items()
        }
        return with_digest({**row, "signatures": signatures})

    edited(folder, ROWS, lambda board: board.update(rows=[sign(row) for row in board["rows"]]))


def test_scores_of_another_version_of_their_scorer_are_no_forgery(translated: Path, tmp_path: Path) -> None:
    """The answer that scores otherwise, and the corpus scores of the rows, are stated; with equal versions they
    contradict the records."""
    shutil.copytree(translated, tmp_path / "run")
    scored_by(tmp_path / "run", "2.4.0")

    def better(board: dict[str, Any]) -> None:
        (row,) = (each for each in board["rows"] if each["method"].startswith("sd@"))
        row["metrics"]["bleu"]["value"] += 1
        row["metrics"]["bleu_difference"] |= {"value": 1.0}
        board["rows"] = [with_digest(each) for each in board["rows"]]

    edited(tmp_path / "run", ROWS, better)
    with verified([bundled([tmp_path / "run"], tmp_path / "x.tar.gz")]) as [found]:
        assert not found.all_problems()
        for each in found.rows:
            answers, *scores = sorted(each.level.except_for, key=lambda text: not text.startswith("scores"))
            assert each.level.name == "recomputed" and f"sacrebleu 2.4.0 there and {HERE} here" in answers
            assert "another version of the scorer scores 2 answers otherwise" in answers
            assert [text.partition(" (another version of the scorer")[0] for text in scores] == ["bleu", "chrf"]
        assert len([line for line in _marks(found) if "not made again: " in line]) == 3, "a board tells the reviewer"
    scored_by(tmp_path / "run", HERE)
    with verified([bundled([tmp_path / "run"], tmp_path / "y.tar.gz")]) as [found]:
        assert [each.wrong is None for each in found.rows] == [True, False] and "bleu" in str(found.rows[1].wrong)
        assert ["2 scores that the text does not get" in line for line in found.problems] == [True]


def test_a_scorer_that_is_not_installed_contradicts_nothing(translated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: object) -> None:
        raise ConfigError("scorer.tokenizer = 'ja-mecab': needs MeCab")

    monkeypatch.setattr(TranslationScorer, "signature", property(absent))
    found = check_records(RecordedRun(translated))
    assert found.problems == [] and list(found.unscored) == ["scores (scorer.tokenizer = 'ja-mecab': needs MeCab)"]


def test_a_signature_of_a_version_that_was_not_there(translated: Path, tmp_path: Path) -> None:
    shutil.copytree(translated, tmp_path / "run")
    scored_by(tmp_path / "run", "2.4.0")
    environments = json.loads((translated / ENVIRONMENT).read_text())
    (tmp_path / "run" / ENVIRONMENT).write_text(json.dumps(environments))
    problems = check_records(RecordedRun(tmp_path / "run")).problems
    assert [f"{ENVIRONMENT}: sacrebleu {HERE}, but wmt" in line for line in problems] == [True]


@pytest.mark.parametrize(
    ("name", "old", "new", "found"),
    [
        (README, b"| 3 |", b"| 300 |", f"{README}: its table is not that of the rows"),
        (COMMANDS, b"specbench", b"curl https://example.org/x; specbench", f"{COMMANDS}: has other commands"),
    ],
)
def test_texts_for_people_that_are_not_those_of_the_runs(
    honest: Path, tmp_path: Path, name: str, old: bytes, new: bytes, found: str
) -> None:
    """Their digests are right everywhere."""
    files = files_in(bundled([honest], tmp_path / "honest.tar.gz"))
    lines = files[name].splitlines(keepends=True)
    forged = [line if line.startswith(b"#") else line.replace(old, new) for line in lines]
    assert forged != lines
    bundle = rewritten(tmp_path / "honest.tar.gz", files | {name: b"".join(forged)}, tmp_path / "forged.tar.gz")
    with verified([bundle]) as [checked]:
        assert len(checked.problems) == 1 and checked.problems[0].startswith(found)


@pytest.mark.parametrize(("key", "found"), [("sha256", "the digest of"), ("contentSize", "the size of")])
def test_metadata_with_the_digest_of_another_file(honest: Path, tmp_path: Path, key: str, found: str) -> None:
    files = files_in(bundled([honest], tmp_path / "honest.tar.gz"))
    metadata = json.loads(files[METADATA])
    for each in metadata["@graph"]:
        each |= {key: "0"} if each["@id"].endswith("records.jsonl") else {}
    files[METADATA] = json.dumps(metadata).encode()
    listed = [line for line in files[MANIFEST].decode().splitlines() if not line.endswith(METADATA)]
    listed.append(f"{bytes_digest([files[METADATA]], WHOLE)}  {METADATA}")
    files[MANIFEST] = "\n".join(listed).encode() + b"\n"
    bundle = archive(tmp_path / "forged.tar.gz", [(member(each), content) for each, content in files.items()])
    with verified([bundle]) as [checked]:
        assert len(checked.problems) == 1 and checked.problems[0].startswith(f"{METADATA}: {found}")


def test_a_manifest_that_lists_a_file_twice(specbench: Callable[..., Any], honest: Path, tmp_path: Path) -> None:
    files = files_in(bundled([honest], tmp_path / "honest.tar.gz"))
    files[MANIFEST] = b"0" * 64 + b"  " + README.encode() + b"\n" + files[MANIFEST]
    archive(tmp_path / "twice.tar.gz", [(member(name), content) for name, content in files.items()])
    code, _, err = specbench("bundle", "verify", "twice.tar.gz")
    assert code == 2 and f"{MANIFEST}: lists '{README}' twice" in err


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        ("specbench run --task mgsm --set 'drafter.prompt=a; b'", True),
        ("specbench run --task ~/tasks/mine.yaml --output '[removed]'", True),
        ("specbench run --task 'it'\"'\"'s.yaml'", True),
        ("specbench.run('mgsm', 'sd', limit=5, output=PosixPath('a b'))", True),
        ("specbench run && reboot", False), ("specbench run $(reboot)", False), ("specbench run `reboot`", False),
        ("specbench run\nreboot", False), ("specbench run 'open", False), ("specbench run > ~/.bashrc", False),
        ("reboot", False), ("", False), ("specbench-run x", False), ("specbench.run() { reboot; }; x", False),
        ("specbench.run(__import__('os').system('reboot'))", False), ("specbench.run('a'); reboot", False),
    ],
)  # fmt: skip
def test_a_command_is_one_of_specbench(command: str, is_one: bool) -> None:
    assert is_one_command(command) == is_one


@pytest.mark.parametrize(
    ("name", "is_alike"),
    [
        ("Qwen/Qwen2.5-1.5B", False), ("models/модель-2/größe", False), ("модель/Qwen3", False),
        ("Qw\u0435n/Qwen3-8B", True), ("Qwen\u200b/Qwen3-8B", True), ("Qwen/Qwen\uff13-8B", True),
        ("Qwen/Qwen3-8B ", True), ("Qwen/Qwen3\u202e8B", True),
    ],
)  # fmt: skip
def test_names_that_look_like_others(name: str, is_alike: bool) -> None:
    assert (look_alike(name) is not None) == is_alike


def test_a_target_that_looks_like_another_is_refused(
    specbench: Callable[..., Any], honest: Path, tmp_path: Path
) -> None:
    shutil.copytree(honest, tmp_path / "run")
    edited(tmp_path / "run", "run.json", lambda run: run["target"].update(name="Qw\u0435n/Qwen3-8B"))
    rows_anew(tmp_path / "run")
    bundled([tmp_path / "run"], tmp_path / "forged.tar.gz")
    code, _, err = specbench("bundle", "verify", "forged.tar.gz")
    assert code == 2 and "refused by the rule 'another target'" in err and "'Qw\\u0435n/Qwen3-8B' mixes letters" in err


def test_the_page_lists_every_contradiction() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guide" / "bundles.md").read_text("utf-8")
    lines = page.partition("## Records that contradict themselves")[2].splitlines()
    listed = {line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")}
    assert listed - {"forgery"} == set(CONTRADICTING)
