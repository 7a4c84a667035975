"""Seconds and memory that commands take on the records of a large run.

A made run repeats the records of a real one, with other examples. Each command runs in a process of its own.

    python -m tools.scale RUN                                 # 5,280 examples
    python -m tools.scale RUN --examples 10000 --output DIR   # keeps the made run
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

READ = "from specbench.results.runs import RecordedRun; RecordedRun(path).records"
ROWS = (
    "from specbench.results.runs import finished_run; run = finished_run(path); "
    "[run.recompute_row(row) for row in run.rows]"
)
COMMANDS = {
    "read": ["-c", f"import sys; from pathlib import Path; path = Path(sys.argv[1]); {READ}"],
    "rows": ["-c", f"import sys; from pathlib import Path; path = Path(sys.argv[1]); {ROWS}"],
    "show": ["-m", "specbench", "leaderboard", "show"],
}


def make_run(source: Path, made: Path, num_examples: int) -> int:
    """Writes a run folder with `num_examples` records for each subset of the source. Returns the bytes of its
    records."""
    made.mkdir(parents=True, exist_ok=True)
    for name in ("run.json", "specs.json", "measurements.json", "leaderboard.json"):
        text = json.loads((source / name).read_text(encoding="utf-8"))
        if name == "measurements.json":
            text["measurements"] = text["measurements"][-1:]
            for part in text["measurements"][0]["subsets"]:
                part["num_examples"] = num_examples
            text["measurements"][0]["ties"] = []
        (made / name).write_text(json.dumps(text, ensure_ascii=False, indent=1), encoding="utf-8")
    lines: dict[tuple[str, str], list[dict[str, object]]] = {}
    for line in (source / "records.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        lines.setdefault((record["task"], record["subset"]), []).append(record)
    with (made / "records.jsonl").open("w", encoding="utf-8") as file:
        for records in lines.values():
            for number in range(num_examples):
                record = {**records[number % len(records)], "example": number, "id": f"made-{number}"}
                file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
    return (made / "records.jsonl").stat().st_size


def measure(arguments: Sequence[str]) -> tuple[float, int, int]:
    """Returns seconds, peak resident bytes and exit status of a Python process."""
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    return time.monotonic() - start, usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a finished run, whose records are repeated")
    parser.add_argument("--examples", type=int, default=5280, help="examples of each subset")
    parser.add_argument("--output", type=Path, help="where the made run is kept; otherwise it is removed")
    options = parser.parse_args()
    made = options.output or Path(tempfile.mkdtemp())
    try:
        print(f"{make_run(options.run, made, options.examples) / 1e6:.0f} MB of records")
        for name, arguments in COMMANDS.items():
            seconds, peak, status = measure([*arguments, str(made)])
            print(f"{name:8} {seconds:7.1f} s {peak / 1e6:7.0f} MB  exit {status}", flush=True)
    finally:
        if options.output is None:
            shutil.rmtree(made)


if __name__ == "__main__":
    main()
