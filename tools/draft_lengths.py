"""Compares draft lengths that vary with the best fixed one on a mix of two tasks whose best lengths differ: code, which
a small model of the same family drafts well, and translation, which it does not.

1. On a few prompts of each task, a draft that never ends by itself is recorded. From its records follow the costs of
   the machine, and for each policy the threshold with the most tokens per cost over both tasks.
2. On other prompts, each task is one run of all fixed lengths and all policies, prompt by prompt.
3. The table has the speeds, for each policy the ratio to the fixed length that is the fastest over both tasks (chosen
   with the same prompts, which favours it) with a paired 95 % interval, and how near its lengths are to the oracle's.

Finished runs are kept in the work folder, and the same command goes on.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console

from specbench.analysis.draft_lengths import (
    RECORDING,
    candidate_lengths,
    length_name,
    replayed_rates,
    with_length,
)
from specbench.core.files import write_atomically
from specbench.core.table import Table, number_columns, text_columns
from specbench.records.records import Record
from specbench.results.answers import BASELINE, Answer, answers_of, length_columns, speed_columns
from specbench.results.draft_lengths import costs_of_widths, length_metrics
from specbench.results.metric_format import number, with_interval
from specbench.results.metrics import times
from specbench.results.runs import RecordedRun
from specbench.specs.catalogue import load_file, load_method
from specbench.specs.method import MethodSpec
from specbench.statistics.bootstrap import Estimate, Resampler
from tools.commands import link, run_specbench
from tools.real.cells import HUMANEVAL, WMT, Data
from tools.real.models import QWEN, QWEN_DRAFTER

TASKS = (HUMANEVAL, WMT)
LENGTHS = (1, 2, 3, 4, 6, 8)
MOST = 12  # of a draft that varies
COSTED = (1, 3, 6)  # fixed lengths beside the recording, for v(n)
SEED = 0


@dataclass(frozen=True)
class Place:
    """The work folder and what its commands share. `models`: the folder of the pair; None: the embedded one, on bundled
    rows."""

    folder: Path
    models: Path | None
    data: Path | None
    threads: int
    warm_up: int

    def prepare(self) -> None:
        (self.folder / "methods").mkdir(parents=True, exist_ok=True)
        for model in (QWEN, QWEN_DRAFTER) if self.models is not None else ():
            link(self.folder / model.path, self.models / model.folder)  # type: ignore[operator]
        if self.data is not None:
            link(self.folder / "data", self.data)

    def write(self, method: MethodSpec, name: str) -> MethodSpec:
        """Writes a method file, and returns the method of it."""
        path = self.folder / "methods" / f"{name}.yaml"
        content = method.model_dump(mode="json", exclude={"sweep"}, exclude_defaults=True, exclude_none=True)
        text = yaml.safe_dump({**content, "name": name, "version": 1}, sort_keys=False, allow_unicode=True)
        write_atomically(path, text)
        spec = load_file(path)
        assert isinstance(spec, MethodSpec)
        return spec

    def measure(self, name: str, data: Data, methods: Sequence[MethodSpec], limit: int) -> RecordedRun:
        """Runs, or continues, all methods on the first `limit` prompts of a task."""
        files = ",".join(f"methods/{method.name}.yaml" for method in methods)
        words = ["run", "--task", data.task, "--method", files, "--limit", str(limit), *data.settings]
        words += ["--set", f"generation.max_new_tokens={data.tokens}"]
        if data.subsets:
            words += ["--subset", ",".join(data.subsets)]
        if self.models is not None:
            words += ["--target", QWEN.path, "--drafter", QWEN_DRAFTER.path, "--dtype", "bfloat16"]
        words += ["--data", "sample" if self.data is None else f"data/{data.folder}"]
        words += ["--allow-code-execution"] if data.task == "humaneval" else []
        words += ["--threads", str(self.threads), "--warm-up", str(self.warm_up)]
        folder = f"runs/{name}-{data.task}"
        (self.folder / "logs").mkdir(exist_ok=True)
        with (self.folder / "logs" / f"{name}-{data.task}.txt").open("a", encoding="utf-8") as log:
            done = run_specbench([*words, "--output", folder], self.folder, self.threads, log)
        if done.returncode:
            raise SystemExit(f"{folder}: the run failed: logs/{name}-{data.task}.txt in {self.folder} tells why")
        return RecordedRun(self.folder / folder)


def calibrate(place: Place, tasks: Sequence[Data], num_prompts: int) -> list[dict[str, Any]]:
    """Returns one draft length of each policy, with the most tokens per cost on the first prompts of both tasks."""
    base = load_method("sd")
    recorded = place.write(with_length(base, RECORDING, MOST), "recorded")
    fixed = [place.write(with_length(base, None, length), f"fixed-{length}") for length in COSTED]
    runs = [place.measure("calibration", data, [recorded, *fixed], num_prompts) for data in tasks]
    records = [record for run in runs for record in run.records.values()]
    own = [answer for method in (recorded, *fixed) for answer in answers_of(records, method.name)]
    baseline = answers_of(records, BASELINE)
    drafting = answers_of(records, recorded.name)
    draft_cost = times(Resampler.of(drafting, SEED), drafting, baseline)["cost_ratio"].value or 0.0
    costs = costs_of_widths(own, baseline)
    verify_costs = [float(cost) for cost in costs(np.arange(1, MOST + 2))]
    tried = candidate_lengths(draft_cost, verify_costs)
    most_tokens = {
        (task.name, subset): task.subset(subset).generation.max_new_tokens
        for run in runs for task in run.tasks for subset in task.subset_names
    }  # fmt: skip
    rates = replayed_rates(records, recorded, tried, most_tokens, draft_cost, costs)
    print(f"c = {draft_cost:.3f}; v = {', '.join(f'{cost:.2f}' for cost in verify_costs)}")
    print("replayed tokens per pass of ar: " + ", ".join(f"{name} {rate:.3f}" for name, rate in rates.items()))
    best: dict[str, dict[str, Any]] = {}
    for length in sorted(tried, key=lambda each: rates[length_name(each)], reverse=True):
        best.setdefault(length["policy"], length)
    return list(best.values())


def compare(
    records: Sequence[Record], fixed: Sequence[str], varying: Mapping[str, str], tasks: Sequence[str]
) -> tuple[Table, dict[str, Any]]:
    """Returns the table and its numbers. `fixed`, `varying`: names of methods; those that vary with their length in
    words."""
    baseline = answers_of(records, BASELINE)
    answers = {name: answers_of(records, name) for name in (*fixed, *varying)}

    def speed(name: str, task: str | None = None) -> Estimate:
        chosen = [a for a in answers[name] if task is None or a.task == task]
        return Resampler.of(chosen, SEED).ratio(*speed_columns([chosen]))

    def fastest(task: str | None = None) -> str:
        return max(fixed, key=lambda name: speed(name, task).value or 0.0)

    best = fastest()
    rows, numbers = [], {}
    for name in (*fixed, *varying):
        own = answers[name]
        prompts = Resampler.of(own, SEED)
        ratio = prompts.ratio(*speed_columns([own, answers[best]]))
        lengths = length_metrics(prompts, own, baseline, cost_of(own, baseline))
        speedup = prompts.ratio(*speed_columns([own, baseline]))
        acceptance_length = prompts.ratio(*length_columns([own]))
        found = {
            "ratio_to_best_fixed": ratio, "speedup": speedup, "mean_acceptance_length": acceptance_length, **lengths,
            **{f"tokens_per_second {task}": speed(name, task) for task in tasks},
        }  # fmt: skip
        numbers[name] = {key: value.model_dump() for key, value in found.items()}
        rows.append([
            varying.get(name, name), *(number(speed(name, task), 1) for task in tasks), number(speed(name), 1),
            number(lengths["draft_length"], 2), number(acceptance_length, 2), number(lengths["oracle_share"], 2),
            with_interval(speedup, 2), "–" if name == best else with_interval(ratio, 3),
        ])  # fmt: skip
    per_task = ", ".join(f"{fastest(task)} on {task}" for task in tasks)
    caption = [
        f"the fastest fixed length over both tasks is {best}; {per_task}",
        "ratio: tokens/s over both tasks ÷ those of the fastest fixed length, paired by prompt; of oracle: tokens per "
        "cost ÷ the oracle's with the same drafts",
    ]
    columns = text_columns("length") + number_columns(
        *(f"tok/s\n{task}" for task in tasks), "tok/s\nboth", "drafted\nper step", "τ", "of\noracle",
        "speed-up\n[95 %]", "ratio\n[95 %]",
    )  # fmt: skip
    return Table("draft lengths", columns, rows, caption), {"best_fixed": best, "methods": numbers}


def cost_of(own: Sequence[Answer], baseline: Sequence[Answer]) -> float | None:
    return times(Resampler.of(own, SEED), own, baseline)["cost_ratio"].value


def main() -> None:
    """Measures what is missing, prints the table and writes `draft_lengths.json` into the work folder."""
    parser = argparse.ArgumentParser(prog="python -m tools.draft_lengths", description=__doc__)
    parser.add_argument("models", type=Path, nargs="?", help="folder of the pair (see tools.real); none: the embedded")
    parser.add_argument("--data", type=Path, help="folder with humaneval and wmt22, else bundled samples")
    parser.add_argument("--work", type=Path, default=Path("runs") / "draft-lengths")
    parser.add_argument("--limit", type=int, default=20, help="prompts of each task, besides those of --calibration")
    parser.add_argument("--calibration", type=int, default=4, help="prompts of each task to choose thresholds with")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warm-up", type=int, default=60, help="seconds of each run")
    given = parser.parse_args()
    place = Place(given.work.resolve(), given.models, given.data, given.threads, given.warm_up)
    place.prepare()
    chosen = calibrate(place, TASKS, given.calibration)
    base = load_method("sd")
    fixed = [place.write(with_length(base, None, length), f"fixed-{length}") for length in LENGTHS]
    varying = [place.write(with_length(base, length, MOST), f"varying-{length['policy']}") for length in chosen]
    names = {method.name: length_name(length) for method, length in zip(varying, chosen, strict=True)}
    limit = given.calibration + given.limit
    runs = [place.measure("measured", data, [*fixed, *varying], limit) for data in TASKS]
    # The prompts that thresholds were chosen with are left out.
    records = [r for run in runs for r in run.records.values() if r.example >= given.calibration]
    table, numbers = compare(records, [method.name for method in fixed], names, [data.task for data in TASKS])
    Console(width=140).print(table)
    write_atomically(place.folder / "draft_lengths.json", json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
