"""Held-out rows of the world, the runs on them, and what `specbench fairness` says of the runs."""

import json
from collections.abc import Sequence

from specbench.analysis.fairness.fairness import FairnessReport
from tools.embedded.rows import held_out_rows, sample_of, write_rows

from .workplace import Workplace

SEED = 13  # the bundled samples and the figures of the build have other draws


def write_held_out(place: Workplace, task: str, num_rows: int, subsets: Sequence[str] = ()) -> str:
    """A file for each subset of a task, of rows that no training has seen; returns their folder."""
    folder = place.path("data", f"{task}-{num_rows}")
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for row in held_out_rows(task, num_rows, SEED) if not subsets or row["subset"] in subsets]
    for subset in dict.fromkeys(row["subset"] for row in rows):
        chosen = [sample_of(row) for row in rows if row["subset"] == subset]
        write_rows(folder / f"{task}_{subset}.jsonl", chosen)
    return f"data/{folder.name}"


def measure(place: Workplace, name: str, task: str, methods: Sequence[str], data: str, *more: str) -> str:
    """One run with all methods; returns its folder."""
    folder = f"runs/{name}"
    place.specbench(
        f"{folder}/leaderboard.json", "run", "--task", task, "--method", ",".join(methods), "--data", data,
        "--output", folder, *more,
    )  # fmt: skip
    return folder


def fairness(place: Workplace, name: str, *words: str) -> FairnessReport:
    """The report on runs, without the languages that drafters write unasked."""
    text = place.report(f"reports/{name}.json", "fairness", *words, "--samples", "0", "--json")
    return FairnessReport.model_validate(json.loads(text))


def comparison(place: Workplace, run: str, before: str, after: str, *more: str) -> FairnessReport:
    """Two methods of a run, paired."""
    name = "-".join([run.rpartition("/")[2], before, after, *(word.lstrip("-").replace(",", "-") for word in more)])
    return fairness(place, name, "--before", f"{run}:{before}", "--after", f"{run}:{after}", *more)
