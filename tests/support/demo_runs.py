"""Runs of the demonstration board in folders of their own."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specbench.results.leaderboard import load, write
from tests.support.site_rows import HOSTILE

DEMO = Path(__file__).resolve().parents[2] / "leaderboards" / "demo.json"


def demo_run(folder: Path, task: str, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """Copies the run of a task into a folder, finished. `change`: of each line of its records."""
    shutil.copytree(DEMO.parent / "demo" / task, folder)
    rows = [each.model_copy(update={"run": None}) for each in load(DEMO) if each.task_name == task]
    write(folder / "leaderboard.json", rows)
    if change is not None:
        file = folder / "records.jsonl"
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for record in records:
            change(record)
        file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return folder


def attacked_run(folder: Path) -> Path:
    """A run whose answers and references would all be programs if a page did not escape them."""

    def attack(record: dict[str, Any]) -> None:
        for name, method in record["methods"].items():
            method |= {"text": f"{HOSTILE} {name}", "outcome": {"reason": HOSTILE}}
        record["reference"] = HOSTILE

    return demo_run(folder, "csqa", attack)
