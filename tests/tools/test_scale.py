"""tools/scale.py makes a run folder that commands accept."""

from pathlib import Path

from specbench.records.records import RecordFile
from specbench.results.rows import MeasuredRun
from specbench.results.runs import RecordedRun
from tools.scale import COMMANDS, make_run, measure

DEMO = Path(__file__).parents[2] / "leaderboards/demo/wmt"


def test_a_made_run_has_rows(tmp_path: Path) -> None:
    num_bytes = make_run(DEMO, tmp_path, 6, ["wmt"], ["slem"])
    assert num_bytes == (tmp_path / "records.jsonl").stat().st_size
    run = RecordedRun(tmp_path)
    made = MeasuredRun(run.identity, run.tasks, run.method_specs, run.measurements[-1], run.answers)
    (task,), (baseline, method) = run.tasks, run.method_specs
    subsets = made.subsets_of(task)
    assert (baseline.name, method.name) == ("ar", "slem") and len(run.records) == 6 * (len(subsets) - 1)
    for subset in (subsets[0], "all"):
        row = made.row(task, subset, method)
        assert row.n == 6 * max(1, len(row.subsets)) and row.metric("speedup").low is not None
    texts = [record.methods["slem"].text for record in RecordFile(tmp_path / "records.jsonl").read()]
    assert len(set(texts)) == len(texts)


def test_a_process_is_measured() -> None:
    cpu, wall, peak, status = measure(["-c", "raise SystemExit(3)"])
    assert status == 3 and cpu > 0 and wall > 0 and peak > 1e6 and "compare" in COMMANDS
