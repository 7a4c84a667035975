"""The numbers of answers, from which rows are computed."""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from specbench.records import store
from specbench.records.generation import encode
from specbench.records.records import RecordFile
from specbench.records.store import RecordStore
from specbench.results import answers
from specbench.results.answers import Answer, RunAnswers, answers_of, different_answers
from specbench.results.row import Row
from specbench.results.rows import MeasuredRun
from specbench.results.runs import RecordedRun
from tests.support.records import autoregressive, compared, generation

DEMO = Path(__file__).parents[2] / "leaderboards/demo/csqa"


def rows() -> list[Row]:
    run = RecordedRun(DEMO)
    return MeasuredRun(run.identity, run.tasks, run.method_specs, run.measurements[-1], run.answers).rows()


def test_a_run_with_more_answers_than_memory_holds_has_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows()
    assert len(expected) == 8
    monkeypatch.setattr(answers, "MOST_KEPT", 3)
    assert rows() == expected


def bytes_of(num_records: int, path: Path) -> int:
    """What memory holds of a run of as many records once it is read: answers of 128 tokens, of AR and a chain."""
    with path.open("wb") as file:
        for number in range(num_records):
            seconds = [number + place / 1000 for place in range(127)]
            ar = autoregressive(128, target=[(1, each) for each in seconds], text=f"answer {number}", score=1.0)
            steps = [[4, 4 - place % 4, 3 - place % 4, 4 - place % 4] for place in range(48)]
            drafts, passes = [(1, each) for each in seconds[:100]], [(5, each) for each in seconds[:48]]
            own = generation(steps, target=passes, draft=drafts, text=f"other {number}", score=0.0)
            file.write(encode(compared(number, ar, own, prompt=f"digest-{number}", process="p")) + b"\n")
    tracemalloc.start()
    try:
        kept = RunAnswers({"ar": "target", "m": "target"}, {})
        records = RecordStore(RecordFile(path), kept.add)
        assert len(records) == num_records
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_memory_grows_by_little_with_each_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows over all subsets need every answer, but not every pass of it."""
    monkeypatch.setattr(store, "KEPT", 0)
    monkeypatch.setattr(answers, "MOST_BYTES", 2**12, raising=False)
    few, many = (bytes_of(number, tmp_path / f"{number}.jsonl") for number in (200, 600))
    assert (many - few) / 400 < 5000


def test_long_columns_are_those_that_were_filed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_BYTES", 1)
    own = generation([[2, 2, 1, 2], [2, 1, 0, 1]], target=[(3, 0.5), (3, 0.25)], draft=[(1, 0.125)] * 4)
    kept = RunAnswers({"ar": "target", "m": "target"}, {})
    records = [compared(number, autoregressive(number + 2, target=[(1, 0.5)]), own) for number in range(3)]
    for each in records:
        kept.add(each)
    for method in ("m", "ar"):
        filed = kept.of([each.key for each in records], method)
        for found, expected in zip(filed, answers_of(records, method), strict=True):
            for name, *_ in answers.LONG_COLUMNS:
                assert np.array_equal(getattr(found, name), getattr(expected, name)), name


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
