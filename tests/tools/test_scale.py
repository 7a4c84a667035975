"""tools/scale.py makes a run folder that commands accept."""

import json
import shutil
from pathlib import Path

from specbench.records.records import RecordFile
from specbench.results.rows import MeasuredRun
from specbench.results.runs import RecordedRun
from tools.scale import COMMANDS, make_run, measure

DEMO = Path(__file__).parents[2] / "leaderboards/demo/wmt"


def test_a_made_run_has_rows(tmp_path: Path) -> None:
    source = Path(shutil.copytree(DEMO, tmp_path / "source"))
    content = json.loads((source / "measurements.json").read_text("utf-8"))
    for part in content["measurements"][-1]["subsets"]:
        part["coverage"] = {"available": 1000, "chosen": "first"}
    (source / "measurements.json").write_text(json.dumps(content), encoding="utf-8")
    num_bytes = make_run(source, tmp_path, 6, ["wmt"], ["slem"])
    assert num_bytes == (tmp_path / "records.jsonl").stat().st_size
    run = RecordedRun(tmp_path)
    assert {part.coverage and part.coverage.available for part in run.measurements[-1].subsets} == {6}
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
