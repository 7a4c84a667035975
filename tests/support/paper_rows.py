"""The rows of a leaderboard of six methods on five tasks, with made-up numbers, as figures and tables for papers need
them."""

import random
from pathlib import Path

from specbench.results.leaderboard import write
from specbench.results.row import Row, RowWarning
from specbench.statistics.bootstrap import Estimate
from tests.support.rows import row

TASKS = ("gsm8k", "humaneval", "instruction_following", "mgsm", "summaries")
METHODS = ("sd", "eagle3", "medusa", "token-recycling", "lookahead", "pld")


def paper_rows(tasks: tuple[str, ...] = TASKS, methods: tuple[str, ...] = METHODS) -> list[Row]:
    """Returns a row of each method and of AR on each task. `sd` on the first task has a warning."""
    chance = random.Random(0)

    def around(value: float, spread: float) -> Estimate:
        return Estimate(value=value, low=value / (1 + spread), high=value * (1 + 1.4 * spread))

    made = []
    for task in tasks:
        same = {"task": f"{task}@1:0123456789ab", "subset": "all", "subsets": {"en": 20, "ja": 20}, "n": 40,
                "language": None, "options": {}, "quality": "accuracy"}  # fmt: skip
        plain = {"speedup": Estimate(value=1.0), "mean_acceptance_length": Estimate(value=1.0),
                 "accuracy": around(0.6, 0.1), "tokens_per_second": around(40.0, 0.02)}  # fmt: skip
        made.append(row(**same, method="ar@1:0", num_draft_tokens=0, drafter=None, metrics=plain))
        for method in methods:
            speedup = chance.uniform(0.9, 3.2)
            metrics = {
                "speedup": around(speedup, 0.08), "mean_acceptance_length": around(speedup * 1.4, 0.05),
                "accuracy": around(chance.uniform(0.5, 0.65), 0.1), "tokens_per_second": around(40 * speedup, 0.05),
                "num_prompts_timed": Estimate(value=40),
            }  # fmt: skip
            warned = (RowWarning(code="ar_drift", text="AR became slower"),)
            warnings = warned if (task, method) == (tasks[0], "sd") else ()
            made.append(row(**same, method=f"{method}@1:0", metrics=metrics, warnings=warnings))
    return made


def paper_board(folder: Path, rows: list[Row] | None = None) -> Path:
    write(folder / "board.json", paper_rows() if rows is None else rows)
    return folder / "board.json"
