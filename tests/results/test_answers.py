"""The numbers of answers, from which rows are computed."""

import subprocess
import sys
from pathlib import Path

import pytest

from specbench.results import answers
from specbench.results.answers import Answer, answers_of, different_answers
from specbench.results.row import Row
from specbench.results.rows import MeasuredRun
from specbench.results.runs import RecordedRun
from tests.support.records import compared, generation

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
    code = (
        "import sys; from pathlib import Path; from specbench.results.rows import MeasuredRun; "
        "from specbench.results.runs import RecordedRun; run = RecordedRun(Path(sys.argv[1])); "
        "MeasuredRun(run.identity, run.tasks, run.method_specs, run.measurements[-1], run.answers).rows(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, DEMO], check=True)


def test_an_answer_after_a_different_turn_is_not_compared() -> None:
    """Its prompt differs. The turns of another example are its own."""
    same, other = (generation(token_ids=[1, 2], text="a"), generation(token_ids=[1, 3], text="b"))
    turns = [(0, 0, other), (0, 1, other), (1, 0, same), (1, 1, other)]
    records = [compared(example, same, own, turn=turn) for example, turn, own in turns]
    keys = different_answers(answers_of(records, "m"), answers_of(records, "ar"))
    assert [key[2::2] for key in keys] == [(0, 0), (1, 1)]


def test_undefined_values_are_in_no_sum() -> None:
    made = generation([[2, 2, 1, 2]], overlap=[0.5, float("nan")], divergence=[0.25, 0.5])
    found = Answer.of(made)
    assert (found.overlap, found.divergence) == ((0.5, 1), (0.75, 2))
