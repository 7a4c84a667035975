"""Edited runs before the regression check: what follows from the tokens may not change while the tokens stay."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from specbench.gate.check import check
from tests.support.read_yaml import read_yaml
from tests.support.runs import run_into

EDITS = read_yaml(Path(__file__).parent / "gate_edits.yaml")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gate") / "run"
    run_into(path, "sd,fsd", subsets=("en",), limit=2)
    return path


@pytest.fixture
def edited(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "edited"))


def edit(folder: Path, method: str, field: str, value: Any) -> None:
    """Change a field of a method's first generation."""
    path = folder / "records.jsonl"
    first, *others = path.read_text(encoding="utf-8").splitlines()
    record = json.loads(first)
    assert record["methods"][method].get(field) != value, "the attack changes something"
    record["methods"][method][field] = value
    path.write_text("\n".join([json.dumps(record), *others]) + "\n", encoding="utf-8")


@pytest.mark.parametrize("attack", EDITS, ids=lambda attack: f"{attack['method']} {attack['field']} {attack['value']}")
def test_an_edit_beside_equal_tokens_is_told(run: Path, edited: Path, attack: dict[str, Any]) -> None:
    edit(edited, attack["method"], attack["field"], attack["value"])
    report = check(str(run), str(edited), 0.03)
    assert (report.result, report.exit_code) == ("regressed", 1)
    told = [finding for each in report.compared if each.method == attack["method"] for finding in each.regressions]
    assert attack["word"] in {finding.what for finding in told}
    assert "1 changed" in str(told[0]) and "before" in str(told[0])


@pytest.mark.parametrize("copied", [False, True], ids=["itself", "a copy"])
def test_a_run_is_identical_to_itself(run: Path, edited: Path, copied: bool) -> None:
    report = check(str(run), str(edited if copied else run), 0.03)
    assert (report.result, report.exit_code) == ("identical", 0)
