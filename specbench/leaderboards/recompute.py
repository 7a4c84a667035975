"""Whether a row is what its records give: every metric with its interval, and all else that the run's folder tells.

Not told there, and so not checked: the command, the date, the place of the data, the digest of local data, whether
`--chat auto` found a chat template, the fairness numbers (which need the models), whether outputs that differ are
near-ties (which needs the target), an audit's evidence, and whether the drafter was trained on the measured prompts
(which its own folder tells).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.leaderboards.runs import RecordedRun
from specbench.leaderboards.told import data_revision, from_records, from_run, from_task
from specbench.leaderboards.verdicts import possible_verdicts
from specbench.results.bootstrap import INTERVALS, Metric
from specbench.results.metrics import accepted_lengths_of, metrics_of
from specbench.results.row import Row
from specbench.results.warnings import warnings_of
from specbench.running.records import Record
from specbench.specs import MethodSpec, TaskSpec

ROUNDING = 1e-12  # relative: sums of another machine's processor
METRICS_OF_FORMAT_4 = frozenset({"ar_drift", "rule_seconds", "tokenizer_seconds", "other_seconds"})


@dataclass(frozen=True)
class Mismatch:
    """A field of a row with its value and the one that the run gives."""

    field: str
    said: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.field} = {self.said!r:.80}, but its run gives {self.found!r:.80}"


def mismatches(row: Row, run: RecordedRun, beside: Sequence[Row] = ()) -> list[Mismatch]:
    """What of a row its run does not give, metrics first. `beside`: the rows of its file.

    Raises ConfigError where the row cannot be recomputed.
    """
    side = run.side(row, beside)
    records, method, asked = side.records, side.method, side.asked or {}
    assert method is not None
    metrics = metrics_of(records, method, row.seed, asked)
    if method.decodes_with == "drafter" and _is_null(row, "speedup"):
        # a drafter with tokens of its own has no speed-up, and records do not tell whose tokens they are
        metrics |= {name: Metric() for name in ("speedup", "speedup_e2e", "speedup_expected")}
    older = is_older(row, records)
    return [
        *_of_metrics(row.metrics, _of_its_format(row, metrics) if older else metrics),
        *_differing(row, {} if older else _since_format_4(row, records, method, metrics)),
        *_differing(row, from_records(row, records, method, asked, metrics)),
        *_differing(row, from_task(row, run.task_of(row), [record["subset"] for record in records])),
        *([] if older else _of_shots(row, run.task_of(row), records)),
        *_differing(row, from_run(row, run)),
        *_differing(row, data_revision(row, run, [record["subset"] for record in records])),
        *_of_verdict(row, possible_verdicts(row, records, method, older)),
    ]


def is_older(row: Row, records: Sequence[Record]) -> bool:
    """Whether a row is of a format before 4, which has no shots. Records tell it too: those of today say when they were
    measured, so that a row of theirs cannot pass for an older one."""
    return row.shots is None and all(record.get("measured_at") is None for record in records)


def _of_its_format(row: Row, metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics without those that a row of an older format lacks."""
    left_out = METRICS_OF_FORMAT_4 - set(row.metrics)
    return {name: metric for name, metric in metrics.items() if name not in left_out}


def _since_format_4(
    row: Row, records: Sequence[Record], method: MethodSpec, metrics: dict[str, Metric]
) -> dict[str, Any]:
    warnings = warnings_of(row.model_copy(update={"metrics": metrics}), records)
    of_drafter = tuple(warning for warning in row.warnings if warning.code == "trained_on_test")  # by its own record
    return {"accepted_lengths": accepted_lengths_of(records, method), "warnings": (*warnings, *of_drafter)}


def _is_null(row: Row, name: str) -> bool:
    return row.metrics.get(name, Metric()).value is None


def _of_metrics(said: Mapping[str, Metric], found: Mapping[str, Metric]) -> list[Mismatch]:
    wrong = []
    for name in dict.fromkeys([*said, *found]):
        if name not in said or name not in found:
            wrong.append(
                Mismatch(f"metrics.{name}", *("there" if name in side else "absent" for side in (said, found)))
            )
            continue
        for part in Metric.model_fields:
            mine, other = getattr(said[name], part), getattr(found[name], part)
            if not _same(mine, other):
                wrong.append(Mismatch(f"metrics.{name}.{part}", mine, other))
    return wrong


def _same(mine: float | None, other: float | None) -> bool:
    if mine is None or other is None:
        return mine is other
    return math.isclose(mine, other, rel_tol=ROUNDING, abs_tol=1e-15)


def _of_shots(row: Row, task: TaskSpec, records: Sequence[Record]) -> list[Mismatch]:
    """How many worked examples the task asks for, and how many measured examples were beside them; those of lm-eval
    are known to lm-eval alone."""
    if row.shots is None:
        return [Mismatch("shots", None, "worked examples before each prompt, or that there are none")]
    specs = [task.subset(name) for name in dict.fromkeys(record["subset"] for record in records)]
    if any(spec.scorer is not None and hasattr(spec.scorer.factory, "examples") for spec in specs):
        return []
    num = max(spec.fewshot.num_shots if spec.fewshot else 0 for spec in specs)
    found = {"num": num, "num_checked": row.n if num else None}
    return [Mismatch(f"shots.{name}", getattr(row.shots, name), value) for name, value in found.items()
            if getattr(row.shots, name) != value]  # fmt: skip


def _differing(row: Row, found: Mapping[str, Any]) -> list[Mismatch]:
    said = {name: getattr(row, name) for name in found}
    if said.get("intervals", INTERVALS) is None:
        said["intervals"] = INTERVALS  # rows of earlier versions do not say it; their metrics tell
    return [Mismatch(name, said[name], found[name]) for name in found if said[name] != found[name]]


def _of_verdict(row: Row, possible: tuple[str, ...] | None) -> list[Mismatch]:
    if possible is None or row.verdict in possible:
        return []
    return [Mismatch("verdict", row.verdict, " or ".join(possible))]
