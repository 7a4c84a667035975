"""Forged rows before `specbench leaderboard validate --records`: every field once, each with a digest that fits, alone
in its file."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.audit.report import AuditedIdentity, AuditReport, MethodVerdict, SampleTest, verdict_in_report
from specbench.models.batch_width import Noise
from specbench.models.near_ties import Greedy
from specbench.results.leaderboard import load, set_verdicts
from specbench.results.leaderboard_files import FROM_REPORT, Validity, add_runs, expected_verdict, merge_files, validate
from specbench.results.row import DIGEST, UNVERIFIABLE_FIELDS, Row, with_digest
from tests.support.read_yaml import read_yaml
from tests.support.runs import run_into

FORGED = read_yaml(Path(__file__).parent / "forged_rows.yaml")
FILES = {
    "a key twice": ('"rows":', '"format": 1, "rows":', "duplicate key 'format'"),
    "a key of a row twice": ('"seed": 0', '"seed": 1, "seed": 0', "duplicate key 'seed'"),
    "another format": ('"format": 1,\n  "rows"', '"format": 4,\n  "rows"', "reads format 1 only"),
    "a row of another format": ('"format": 1,\n      "task"', '"format": 3,\n      "task"', "rows.0.format = 3"),
    "no format": ('"format": 1,\n  "rows"', '"rows"', "not a leaderboard"),
    "a true format": ('"format": 1,\n  "rows"', '"format": true,\n  "rows"', "format = True"),
    "NaN": ('"seed": 0', '"seed": NaN', "NaN"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "run"
    run_into(path, "sd", subsets=("en", "sw"), limit=2)
    return path


@pytest.fixture(scope="module")
def made_once(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("board") / "board.json"
    add_runs([run], path)
    return path


@pytest.fixture
def board(made_once: Path, tmp_path: Path) -> Path:
    """A copy, as far from the run as the board that it is of."""
    return Path(shutil.copy(made_once, tmp_path / "board.json"))


def place_of(rows: list[dict[str, Any]]) -> int:
    return next(n for n, each in enumerate(rows) if each["method"].startswith("sd@") and each["subset"] == "en")


def forge(board: Path, attack: dict[str, Any]) -> None:
    content = json.loads(board.read_text(encoding="utf-8"))
    number = place_of(content["rows"])
    row = {name: value for name, value in content["rows"][number].items() if name != DIGEST}
    *parents, name = attack["path"].split(".")
    part = row
    for parent in parents:
        part = part[parent]
    part[name] = attack.get("value")
    row |= attack.get("also", {})
    content["rows"] = [with_digest(row)]
    board.write_text(json.dumps(content, indent=2), encoding="utf-8")
    if "nested" in attack:  # json.dumps cannot write it
        depth = attack["nested"]
        text = board.read_text(encoding="utf-8")
        board.write_text(text.replace('"deep": null', f'"deep": {"[" * depth}{"]" * depth}'), encoding="utf-8")


def said(found: Validity) -> str:
    return "\n".join(found.problems) or str(found)


@pytest.mark.parametrize("attack", FORGED, ids=lambda attack: f"{attack['path']} {str(attack.get('value'))[:20]}")
def test_a_forged_row_is_told(board: Path, attack: dict[str, Any]) -> None:
    forge(board, attack)
    found = validate(board, with_records=True, verdict_in=verdict_in_report)
    assert attack["word"] in said(found) and all("\n" not in problem for problem in found.problems)
    assert bool(found.problems) != bool(found.stated), "refused, or named as stated"


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_form_is_refused(board: Path, name: str) -> None:
    before, after, word = FILES[name]
    text = board.read_text(encoding="utf-8")
    assert before in text
    board.write_text(text.replace(before, after, 1), encoding="utf-8")
    (problem,) = validate(board, with_records=False).problems
    assert word in problem and "\n" not in problem


def test_rows_of_earlier_versions_are_read(board: Path) -> None:
    """They lack the fields that were added since."""
    rows = json.loads(board.read_text(encoding="utf-8"))["rows"]
    old = [
        with_digest({name: row[name] for name in row if name not in (DIGEST, "context", "common_ids")}) for row in rows
    ]
    board.write_text(json.dumps({"format": 1, "rows": old}), encoding="utf-8")
    assert [row.context for row in load(board)] == [None] * len(rows)


def test_every_field_of_a_row_is_forged(board: Path) -> None:
    assert validate(board, with_records=True, verdict_in=verdict_in_report).problems == ()
    assert {attack["path"].partition(".")[0] for attack in FORGED} == set(Row.model_fields)
    assert set(Row.model_fields) > UNVERIFIABLE_FIELDS


def report_of(row: Row, p_value: float) -> AuditReport:
    """The report of an audit that found a row's method lossless, by its greedy outputs and draws with this p-value."""
    greedy = Greedy(num_prompts=8, num_equal=8, num_near_ties=0, num_judged=9, median_position=None, example=None)
    draws = SampleTest(
        num_draws=600, num_tokens=3000, p_value=p_value, p_by_token=[], mean_log_p=-1.0, expected_log_p=-1.0,
        standard_error=0.1, num_drafted=1, num_accepted=1, num_recovered=0, num_bonus=0, example=None,
    )  # fmt: skip
    noise = Noise(
        num_prompts=4, num_positions=9, num_changed=0, max_gap_change=0, tolerance=0, mean_square_change=0
    )  # fmt: skip
    verdict = MethodVerdict(
        method="sd", verdict="lossless", declared_lossless=True, greedy=greedy, distribution=draws
    )  # fmt: skip
    own = AuditedIdentity(
        method=row.method, drafter=row.drafter, drafter_revision=row.drafter_revision, engine=row.engine
    )  # fmt: skip
    return AuditReport(
        task="mgsm", subsets=["en"], target=row.target, target_revision=row.target_revision, drafters={},
        identities={"sd": own}, dtype=row.dtype, engine=row.engine, device="cpu", temperature=1.0, top_k=None,
        top_p=None, num_draws=600, seed=0, noise=noise, prompts=["en 0"], control=None, verdicts=[verdict],
    )  # fmt: skip


@pytest.mark.parametrize("own", ["lossy by design", "diverged"])
def test_no_report_makes_a_row_lossless_whose_run_says_otherwise(board: Path, tmp_path: Path, own: str) -> None:
    row = load(board)[place_of([each.model_dump() for each in load(board)])]
    report = report_of(row, 0.25)
    (tmp_path / "audit.json").write_text(report.model_dump_json(), encoding="utf-8")
    found = report.verdict_of(row)
    assert found is not None
    evidence = found[1].model_copy(update={"report": "audit.json"})
    forged = row.model_copy(update={"verdict": "lossless", "evidence": evidence})
    assert expected_verdict(forged, row.model_copy(update={"verdict": own})) == own, "this it must be"
    assert expected_verdict(forged, row) == "lossless", "a control"


def test_an_audits_verdict_is_compared_with_its_report(board: Path, tmp_path: Path) -> None:
    """Where the row names it; the report of another audit, or of another method, is not evidence."""
    row = load(board)[place_of([each.model_dump() for each in load(board)])]
    report = tmp_path / "audit.json"
    report.write_text(report_of(row, 0.25).model_dump_json(), encoding="utf-8")
    set_verdicts(board, partial(report_of(row, 0.25).verdict_of, place="audit.json"))
    found = validate(board, with_records=True, verdict_in=verdict_in_report)
    assert (
        not found.problems and [*found.stated] == [FROM_REPORT] and "lossless" in {each.verdict for each in load(board)}
    )
    (tmp_path / "else").mkdir()
    merge_files([board], tmp_path / "else" / "board.json")
    moved = validate(tmp_path / "else" / "board.json", with_records=True, verdict_in=verdict_in_report)
    assert [*moved.stated] == [FROM_REPORT]
    report.write_text(report_of(row, 0.75).model_dump_json(), encoding="utf-8")
    assert "evidence = " in validate(board, with_records=True, verdict_in=verdict_in_report).problems[0]
    other = row.model_copy(update={"method": "sd@1:000000000000"})
    report.write_text(report_of(other, 0.25).model_dump_json(), encoding="utf-8")
    assert "has no verdict on this row" in validate(board, with_records=True, verdict_in=verdict_in_report).problems[0]
    report.write_text("{}", encoding="utf-8")
    assert "not the report of an audit" in validate(board, with_records=True, verdict_in=verdict_in_report).problems[0]
