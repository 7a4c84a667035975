"""The answers of a recorded run, one prompt at a time: why an answer got its score.

Records hold a digest of each prompt and not its text, which may be private and as large as all else. The prompts are
rendered again from the task, its data and the target's tokenizer, and are shown only if they have the digest.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from specbench.core.errors import ConfigError, nearest
from specbench.models.causal_lm import split_precision
from specbench.records.records import Key, Record
from specbench.report.shown import ShownPrompt, ShownRecord
from specbench.results.conditions import BASELINE
from specbench.results.row import ALL, Row
from specbench.results.runs import RecordedRun
from specbench.running.recorded_prompts import Group, ModelLoader, prompts_of
from specbench.tasks.scoring import Scorer, make_scorer


@dataclass(frozen=True)
class Selection:
    """The records to show. `subsets`, `examples` (ids), `methods`: all if empty. `only_wrong`: those in which an answer
    has no score, or one below 1. `limit`: at most so many; None: all."""

    subsets: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    only_wrong: bool = False
    limit: int | None = None


@dataclass(frozen=True)
class ShownRun:
    """The chosen records of a run. `num_matching`: how many match, with those beyond the limit. `problems`: why prompts
    or reasons are not shown."""

    records: tuple[ShownRecord, ...]
    num_matching: int
    problems: tuple[str, ...]


def shown_run(
    run: RecordedRun, selection: Selection, data: str | None = None, trust_remote_code: bool = False
) -> ShownRun:
    """Returns the chosen records of a finished run with their prompts. `data`: see `prompts_of`. Raises ConfigError for
    a name that no record has."""
    rows = {(row.task_name, row.subset): row for row in run.rows_of(BASELINE) if row.subset != ALL and not row.level}
    records = [record for row in rows.values() for record in run.records_of_row(row)]
    known: dict[str, tuple[Sequence[str], Callable[[Record], Collection[str]]]] = {
        "--subset": (selection.subsets, lambda record: [record.subset]),
        "--example": (selection.examples, lambda record: [str(record.id)]),
        "--method": (selection.methods, lambda record: record.methods),
    }
    for option, (wanted, names_of) in known.items():
        names = dict.fromkeys(name for record in records for name in names_of(record))
        for name in wanted:
            if name not in names:
                raise ConfigError(f"{option} {name}: no record of '{run.path}' has it: {nearest(name, names)}")
        records = [record for record in records if not wanted or set(wanted) & set(names_of(record))]
    methods = selection.methods or tuple(run.methods)
    if selection.only_wrong:
        records = [
            record for record in records
            if any((g.score is None or g.score < 1) for name, g in record.methods.items() if name in methods)
        ]  # fmt: skip
    chosen = list(islice(records, selection.limit))
    prompts, problems = _prompts(run, rows, chosen, data, trust_remote_code)
    scorers: dict[Group, Scorer | None] = {}
    try:
        for record in chosen:
            group = record.task, record.subset
            if group not in scorers:
                scorers[group] = make_scorer(run.task_of(rows[group]).subset(group[1]))
    except ConfigError as error:  # the scorer's package is not here, or has changed
        problems.append(f"what was read in the answers is not shown: {error}")
    shown = tuple(
        ShownRecord.of(record, methods, prompts.get(record.key), scorers.get((record.task, record.subset)))
        for record in chosen
    )
    return ShownRun(shown, len(records), tuple(problems))


def _prompts(
    run: RecordedRun, rows: Mapping[Group, Row], records: Sequence[Record], data: str | None, trust_remote_code: bool
) -> tuple[dict[Key, ShownPrompt], list[str]]:
    """Returns the prompts of records as AR read them, and a line for each subset whose prompts cannot be rendered."""
    prompts: dict[Key, ShownPrompt] = {}
    problems = []
    for group in dict.fromkeys((record.task, record.subset) for record in records):
        row, in_group = rows[group], [record for record in records if (record.task, record.subset) == group]
        loader = ModelLoader("cpu", *split_precision(row.dtype), trust_remote_code=trust_remote_code, weights=False)
        try:
            target = loader.load(row.target, row.target_revision)
            budgets = {name for record in in_group for name in record.budgets or {}} - {target.name}
            keys = {group: [record.key for record in in_group]}
            others = [loader.load(name) for name in budgets]
            for key, prompt in prompts_of(run, rows, keys, target, others, data).items():
                prompts[key] = ShownPrompt.of(target.tokenizer, list(prompt.prompt_ids))
        except ConfigError as error:  # the data or the tokenizer are not here, or have changed
            problems.append(f"prompts of {'/'.join(group)} are not shown: {error}")
    return prompts, problems
