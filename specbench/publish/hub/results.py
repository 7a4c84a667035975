"""Rows → the hub's evaluation results: the mean acceptance length τ, which does not depend on the machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.core.errors import ConfigError
from specbench.publish.bundle.scrub import Scrubber
from specbench.publish.hub.forms import EvalResult, ResultDataset, ResultSource
from specbench.publish.hub.models import ModelRows, told_model, why_not_on_hub
from specbench.report.captions import draft_length, drafter_kind, lossless_word, sampling_of, verdict_of, why_unranked
from specbench.results.level import level_of
from specbench.results.metric_format import with_interval
from specbench.results.row import ALL, Row
from specbench.specs.catalogue import load_task, task_names
from specbench.tasks.hub import fill_fields

LENGTH = "mean_acceptance_length"
DEFAULT = "default"  # the only subset of a task without subsets
# Warnings about times, which say nothing about τ.
OF_TIMES = frozenset(
    {
        "wide_interval", "ar_drift", "not_steady", "implausible", "cheap_passes", "uneven_drafts", "memory_not_stated",
        "slow_client", "read_late", "idle_unchecked", "impossible_times", "uneven_sessions", "busy",
    }
)  # fmt: skip


def task_id(task: str, subset: str) -> str:
    """Returns the id of a task in a benchmark that is made of one of our tasks."""
    return task if subset == DEFAULT else f"{task}_{subset}"


@dataclass(frozen=True)
class Destination:
    """Where results go: a benchmark on the hub, whose numbers are τ. `task_id`: for a single row; None: of its task.
    `source`: the address of what stands behind the numbers, such as a bundle."""

    dataset: str
    source: str
    source_name: str | None = None
    task_id: str | None = None


def hub_results(found: ModelRows, to: Destination) -> list[EvalResult]:
    """Returns a result of each row in which the model drafts, or else of the methods on it that have no other drafter.
    Raises ConfigError if the model is not one of the hub, if a row has no τ of its own, if the data set holds scores of
    a task, and if two rows are of one task."""
    rows = found.as_drafter or tuple(row for row in found.as_target if row.drafter is None)
    if not rows:
        others = dict.fromkeys(str(row.drafter) for row in found.as_target)
        raise ConfigError(
            f"'{found.name}': only drafters of other repositories were measured on it: name one of {', '.join(others)}"
        )
    for row in rows:
        is_drafter = row.drafter == found.name
        if reason := why_not_on_hub(found.name, row.drafter_revision if is_drafter else row.target_revision):
            raise ConfigError(
                f"'{found.name}' (row {row.place}): {reason}: evaluation results belong to a repository of the hub, so "
                "measure with its OWNER/NAME (`specbench card` describes any model)"
            )
        if reason := why_unranked(row):
            raise ConfigError(f"row {row.place}: {reason}: leave it out with --filter method=…")
    rows = tuple(row for row in rows if row.has(LENGTH))
    if not rows:
        raise ConfigError(f"'{found.name}': none of its rows has a mean acceptance length")
    if to.task_id is not None and len(rows) > 1:
        raise ConfigError(
            f"--task-id {to.task_id}: is for one row, but there are {len(rows)}: choose one with --filter and --subset"
        )
    if to.task_id is None and (whole := [row for row in rows if row.subset == ALL]):
        raise ConfigError(
            f"row {whole[0].place}: is over all subsets, for which eval.yaml has no task: choose single ones with "
            "--subset, or name a task of the benchmark with --task-id"
        )
    scored = {place.lower() for row in rows for place in _data_sets_of(row)}
    if to.dataset.lower() in scored:  # the hub does not distinguish capitals
        raise ConfigError(
            f"--dataset {to.dataset}: its leaderboards hold scores, among which τ would be a score: name a "
            "benchmark of τ (`specbench hub benchmark` makes its eval.yaml)"
        )
    _check_one_per_task(rows)
    return [_result(row, found, to) for row in rows]


def _check_one_per_task(rows: Sequence[Row]) -> None:
    seen: dict[str, Row] = {}
    for row in rows:
        name = task_id(row.task_name, row.subset)
        other = seen.setdefault(name, row)
        if other is not row:
            differ = [
                f"{field} {ours} and {theirs}"
                for field in ("method", "num_draft_tokens", "target", "sampling", "dtype", "device", "level", "created")
                if (ours := getattr(other, field)) != (theirs := getattr(row, field))
            ]
            raise ConfigError(
                f"task id '{name}': two rows are of it ({'; '.join(differ)}), but a model has one number of a task on "
                "the hub: choose with --filter KEY=VALUE"
            )


def _data_sets_of(row: Row) -> list[str]:
    """Returns the data sets on the hub that a row's prompts came from, or that its task names."""
    found = [row.data_location.partition(":")[0]] if row.data_source == "hub" else []
    if row.task_name in task_names():
        task = load_task(row.task_name)
        for name in [row.subset] if row.subset in task.subset_names else task.subset_names:
            if (dataset := task.subset(name).dataset) is not None:
                found += [place.path for place in fill_fields(dataset, task.name, name).locations()]
    return found


def _result(row: Row, found: ModelRows, to: Destination) -> EvalResult:
    return EvalResult(
        dataset=ResultDataset(id=to.dataset, task_id=to.task_id or task_id(row.task_name, row.subset)),
        value=round(row.metrics[LENGTH].value or 0.0, 4),
        date=row.created,
        source=ResultSource(url=to.source, name=to.source_name),
        notes=notes_of(row, found),
    )


def notes_of(row: Row, found: ModelRows) -> str:
    """Returns in words what the form has no keys for: what the number is, its interval, and all it depends on;
    without secrets and home folders."""
    drafter = told_model(row.drafter, row.drafter_revision) if row.drafter else f"none ({drafter_kind(row)})"
    claim = {"yes": "lossless", "no": "lossy: the output is not the target's own"}
    repeats = f", {row.repeats} repeats" if row.repeats > 1 else ""
    served = [] if row.served is None else [f"acceptance from {row.served.acceptance_source}"]
    warnings = [each.text for each in row.warnings if each.code not in OF_TIMES]
    parts = [
        f"mean acceptance length τ {with_interval(row.metric(LENGTH))} (95 % interval): emitted tokens per target pass "
        "after the prefill, the target's own token included",
        f"n = {row.n} prompts{repeats}" + ("" if row.coverage is None else f" ({row.told_examples})"),
        f"task {row.task}, subset {row.subset}",
        f"data: {row.data_source} ({row.data_location}, {row.data_revision or 'no revision'})",
        f"method {row.method}, {draft_length(row)}, {claim.get(lossless_word(row), lossless_word(row))}",
        f"target {told_model(row.target, row.target_revision)}",
        f"drafter {drafter}",
        f"{sampling_of(row)}, seed {row.seed}, {row.dtype}, {row.engine}",
        *served,
        f"verdict: {verdict_of(row)}",
        *(f"warning: {text}" for text in warnings),
        f"row: {level_of(row, found.levels or {})}",
        f"specbench {row.versions.get('specbench') or 'of an unknown version'}",
    ]
    return Scrubber.of_user().text("; ".join(parts))
