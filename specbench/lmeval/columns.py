"""Measured answers → columns of lm-eval's own results: per task, and per group over its tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.lmeval.engine import Answer
from specbench.results.acceptance import acceptance
from specbench.results.bootstrap import Metric, Prompts
from specbench.results.counts import with_own_passes
from specbench.results.measured import has_other_vocabulary
from specbench.results.rows import NOT_MULTIPLES
from specbench.results.speed import speeds
from specbench.running.models import Models
from specbench.specs import MethodSpec

COLUMNS = ("acceptance_rate", "mean_acceptance_length", "tokens_per_second")
WITH_BASELINE = ("tokens_per_second_ar", "speedup")


def metrics(answers: Sequence[Answer], method: MethodSpec, models: Models) -> dict[str, Metric]:
    """α, τ and tokens/s with their intervals, by the definitions of a leaderboard; with AR's speed and the speed-up
    where AR was measured beside every answer."""
    prompts = Prompts.of([{"task": a.query.task, "subset": "", "example": a.query.doc} for a in answers], seed=0)
    own = [with_own_passes(answer.own, method.decodes_with) for answer in answers]
    baseline = [answer.baseline for answer in answers if answer.baseline is not None]
    has_baseline = len(baseline) == len(answers)
    found = {
        **acceptance(prompts, own, method.verification.model_dump()),
        **speeds(prompts, own, baseline if has_baseline else own, is_baseline=False),
        **({name: Metric() for name in NOT_MULTIPLES} if has_other_vocabulary(method, models) else {}),
    }
    return {name: found[name] for name in (*COLUMNS, *(WITH_BASELINE if has_baseline else ()))}


def add_columns(
    results: dict[str, Any], answers: Sequence[Answer], method: MethodSpec, models: Models
) -> None:  # fmt: skip
    """Write the metrics into `results` of lm-eval beside its scores, under "NAME,METHOD": its table shows them, the
    method standing where it names a filter, and its JSON holds them. A metric without a value is left out."""
    for name, row in results["results"].items():
        tasks = leaves(name, results.get("group_subtasks", {}))
        measured = [answer for answer in answers if answer.query.task in tasks]
        if not measured:
            continue
        found = {key: metric.value for key, metric in metrics(measured, method, models).items()}
        columns = {f"{key},{method.name}": value for key, value in found.items() if value is not None}
        row.update(columns)
        if name in results.get("groups", {}):
            results["groups"][name].update(columns)
        results.setdefault("higher_is_better", {}).setdefault(name, {}).update(dict.fromkeys(found, True))


def leaves(name: str, groups: Mapping[str, Sequence[str]]) -> set[str]:
    """The tasks below a group; a task is its own."""
    members = groups.get(name)
    return {name} if not members else set().union(*(leaves(member, groups) for member in members))


def summary(answers: Sequence[Answer], method: MethodSpec, models: Models) -> dict[str, Any]:
    """Per task, every column with its 95 % interval over `n` documents, for the JSON of the results."""
    by_task: dict[str, list[Answer]] = {}
    for answer in answers:
        by_task.setdefault(answer.query.task, []).append(answer)
    return {
        task: {
            "n": len({answer.query.doc for answer in group}),
            **{name: metric.model_dump() for name, metric in metrics(group, method, models).items()},
        }
        for task, group in by_task.items()
    }
