"""The numbers of answers, from which rows are computed."""

import subprocess
import sys
from pathlib import Path

import pytest

from specbench.results import answers
from specbench.results.row import Row
from specbench.results.rows import MeasuredRun
from specbench.results.runs import RecordedRun

DEMO = Path(__file__).parents[2] / "leaderboards/demo/csqa"


def rows() -> list[Row]:
    run = RecordedRun(DEMO)
    return MeasuredRun(run.identity, run.tasks, run.method_specs, run.measurements[-1], run.answers).rows()


def test_a_run_with_more_answers_than_memory_holds_has_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows()
    assert len(expected) == 8
    monkeypatch.setattr(answers, "MOST_KEPT", 3)
    assert rows() == expected


def test_rows_of_a_recorded_run_need_no_torch() -> None:
    code = "import sys; from tests.results.test_answers import rows; rows(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
