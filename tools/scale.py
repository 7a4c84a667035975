"""CPU seconds and memory that commands take on the records of a large run.

A made run repeats the records of a real one, with other examples, decode seconds and texts. Each command runs in a
process of its own.

    python -m tools.scale RUN --task mgsm --method sd                  # 11 subsets with 480 examples each
    python -m tools.scale RUN --task mgsm --examples 909 --output DIR  # keeps the made run
    python -m tools.scale RUN --only "read, rows" bundle "bundle verify"
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from specbench.records.records import RECORDS

OPEN = "import sys; from pathlib import Path; from specbench.results.runs import RecordedRun; "
OPEN += "path = Path(sys.argv[1]); run = RecordedRun(path); "
ROWS = "from specbench.results.leaderboard import write; from specbench.results.rows import MeasuredRun; "
ROWS += "made = MeasuredRun(run.identity, run.tasks, run.method_specs, run.measurements[-1], run.answers); "
ROWS += "write(path / 'leaderboard.json', made.rows())"
COMMANDS = {
    "read": ["-c", f"{OPEN}len(run.records)", "{run}"],
    "read, rows": ["-c", OPEN + ROWS, "{run}"],
    "validate": ["-m", "specbench", "leaderboard", "validate", "--records", "{run}/leaderboard.json"],
    "compare": ["-m", "specbench", "compare", "{run}:ar", "{run}:{method}"],
    "check": ["-m", "specbench", "check", "--baseline", "{run}", "--candidate", "{run}"],
    "site": ["-m", "specbench", "site", "{run}/leaderboard.json", "--output", "{run}/site"],
    "bundle": ["-m", "specbench", "bundle", "make", "{run}", "--output", "{run}/made.tar.gz"],
    "bundle verify": ["-m", "specbench", "bundle", "verify", "{run}/made.tar.gz"],
}
METHODS_OF_RUN = ("methods", "drafters", "routes")  # keys of run.json that list methods
METHODS_OF_COMMAND = ("trained_on", "pauses", "common_ids")  # likewise of a measurement


def make_run(
    source: Path, made: Path, num_examples: int, tasks: Collection[str] = (), methods: Collection[str] = ()
) -> int:
    """Writes a run folder with `num_examples` records for each subset of the source, of these tasks and methods (all
    if none is given; AR is always among them). Returns the bytes of its records."""
    made.mkdir(parents=True, exist_ok=True)
    content = {name: _read(source / f"{name}.json") for name in ("run", "specs", "measurements")}
    # 1. The files say what the run measured: its tasks, methods and numbers of examples.
    specs, measurement = content["specs"], content["measurements"]["measurements"][-1]
    specs["tasks"] = [task for task in specs["tasks"] if not tasks or task["name"] in tasks]
    specs["methods"] = [each for each in specs["methods"] if not methods or each["name"] in {*methods, "ar"}]
    names = [method["name"] for method in specs["methods"]]
    for part, keys in ((content["run"], METHODS_OF_RUN), (measurement, METHODS_OF_COMMAND)):
        for key in keys:
            if key in part:
                part[key] = {name: each for name, each in part[key].items() if name.split("/")[0] in names}
    kept_tasks = {task["name"] for task in specs["tasks"]}
    for key in ("tasks", "data"):
        content["run"][key] = {name: each for name, each in content["run"][key].items() if name in kept_tasks}
    subsets = [part for part in measurement["subsets"] if part["task"] in kept_tasks]
    coverage = {"available": num_examples, "chosen": "all"}
    measurement["subsets"] = [
        {**part, "num_examples": num_examples, **({"coverage": coverage} if part.get("coverage") else {})}
        for part in subsets
    ]
    # 2. The records. An answer that differs from AR's is a near-tie.
    random.seed(0)
    sources: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with (source / RECORDS).open(encoding="utf-8") as file:
        for record in map(json.loads, file):
            record["methods"] = {name: record["methods"][name] for name in names}
            record["order"] = [name for name in record["order"] if name in names]
            sources.setdefault((record["task"], record["subset"]), []).append(record)
    different: Counter[tuple[str, str, str]] = Counter()
    clock = 1.7e9
    with (made / RECORDS).open("w", encoding="utf-8") as file:
        for number in range(num_examples):
            for part in subsets:
                place = part["task"], part["subset"]
                record = dict(sources[place][number % len(sources[place])])
                record["methods"] = {name: _changed(each, number) for name, each in record["methods"].items()}
                for each in record["methods"].values():
                    clock += each["decode_seconds"] + (each["ttft_seconds"] or 0)
                record |= {"example": number, "id": f"made-{number}", "measured_at": clock}
                file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
                token_ids = {name: each["token_ids"] for name, each in record["methods"].items()}
                different.update((*place, name) for name in names if token_ids[name] != token_ids["ar"])
    ties = {(each["task"], each["subset"], each["method"]): each for each in measurement["ties"]}
    measurement["ties"] = [
        {**each, "num_different": different[place], "num_near_ties": different[place], "divergence": None}
        for place, each in ties.items() if different[place]
    ]  # fmt: skip
    content["measurements"]["measurements"] = [measurement]
    for name, each in content.items():
        (made / f"{name}.json").write_text(json.dumps(each, ensure_ascii=False, indent=1), encoding="utf-8")
    return (made / RECORDS).stat().st_size


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _changed(generation: dict[str, Any], number: int) -> dict[str, Any]:
    """Returns a generation with other seconds and another text: nothing computed from its text can be reused. Texts
    differ in the spaces at their end, which no scorer reads."""
    spaces = f"{number:b}".translate({ord("0"): " ", ord("1"): "\t"})
    seconds, text = generation["decode_seconds"] * random.uniform(1, 1.2), f"{generation['text']}{spaces}"
    return {**generation, "decode_seconds": seconds, "text": text}


def measure(arguments: Sequence[str]) -> tuple[float, float, int, int]:
    """Returns CPU and wall-clock seconds, peak resident bytes, and exit status of a Python process."""
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, time.monotonic() - start, usage.ru_maxrss * 1024, process.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a finished run, whose records are repeated")
    parser.add_argument("--task", default="", help="tasks, separated by commas; by default all of the run")
    parser.add_argument("--method", default="", help="methods, likewise")
    parser.add_argument("--examples", type=int, default=480, help="examples of each subset")
    parser.add_argument("--output", type=Path, help="where the made run is kept; otherwise it is removed")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS), help="these commands alone")
    options = parser.parse_args()
    made = options.output or Path(tempfile.mkdtemp())
    tasks, methods = ([name for name in text.split(",") if name] for text in (options.task, options.method))
    try:
        print(f"{make_run(options.run, made, options.examples, tasks, methods) / 1e6:.0f} MB of records")
        method = _read(made / "specs.json")["methods"][-1]["name"]
        for name in options.only:
            cpu, wall, peak, status = measure([each.format(run=made, method=method) for each in COMMANDS[name]])
            print(f"{name:13} {cpu:7.1f} s CPU {wall:7.1f} s {peak / 1e6:7.0f} MB  exit {status}", flush=True)
    finally:
        if options.output is None:
            shutil.rmtree(made)


if __name__ == "__main__":
    main()
