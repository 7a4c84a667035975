"""A command that has measured → what its rows need beside the records: written into the run's folder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specbench.results.greedy import ties_of_records
from specbench.results.measurement import MeasuredSubset, Measurement, Ties
from specbench.running.models import Models, training_prompts
from specbench.running.plan import Cell
from specbench.running.prompts import record_prompts, uses_chat
from specbench.running.records import Record, with_the_same_history
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec


def measurement_of(
    spec: RunSpec, cells: Sequence[Cell], models: Models, records: Sequence[Record], command: str,
    settings: Mapping[str, Any] | None = None,
) -> Measurement:  # fmt: skip
    """Returns what a command measured. `settings`: those of its request.

    The target is asked where a greedy answer of a lossless method is not AR's.
    """
    return Measurement(
        command=command,
        request=dict(settings or {}),
        repeats=spec.repeats,
        chat=uses_chat(models.target, spec.chat),
        subsets=tuple(
            MeasuredSubset(
                task=cell.task.name, subset=cell.subset, num_examples=len(cell.data.examples), source=cell.data.source,
                location=str(cell.data.location), revision=cell.data.revision, worked=cell.data.worked,
            )
            for cell in cells
        ),
        other_vocabulary=tuple(method.name for method in spec.methods if has_other_vocabulary(method, models)),
        trained_on=_trained_on(spec, records),
        ties=tuple(_ties(spec, cells, models, records)),
    )  # fmt: skip


def has_other_vocabulary(method: MethodSpec, models: Models) -> bool:
    """Whether the drafter decodes alone in tokens of its own, whose tokens/s are no multiple of the target's."""
    alone = models.drafters.get(method.name) if method.decodes_with == "drafter" else None
    return alone is not None and alone.vocabulary != models.target.vocabulary


def prompts(
    cell: Cell, models: Models, records: Sequence[Record], chat: str
) -> Callable[[Mapping[str, Any]], list[int]]:
    """The target's prompt ids of a record of a cell, AR's answers in the earlier turns included."""
    examples = {(cell.subset, example.index): example for example in cell.data.examples}
    ids = record_prompts(examples, {cell.subset: cell.budgets}, records, models.target, chat)
    return lambda record: ids(dict(record))


def _trained_on(spec: RunSpec, records: Sequence[Record]) -> dict[str, tuple[str, ...]]:
    measured = {record["prompt"] for record in records if not record.get("turn")}
    found = {method.name: measured & training_prompts(spec, method) for method in spec.methods}
    return {name: tuple(sorted(digests)) for name, digests in found.items() if digests}


def _ties(spec: RunSpec, cells: Sequence[Cell], models: Models, records: Sequence[Record]) -> Iterator[Ties]:
    for cell in cells:
        if cell.task.generation.temperature != 0:
            continue
        chosen = [r for r in records if (r["task"], r["subset"]) == (cell.task.name, cell.subset)]
        ids = prompts(cell, models, chosen, spec.chat)
        for method in spec.methods:
            alike = with_the_same_history(chosen, method.name)
            found = ties_of_records(alike, method, models.target, ids)
            if found is not None:
                num_different, num_near_ties, tolerance = found
                yield Ties(task=cell.task.name, subset=cell.subset, method=method.name, num_different=num_different,
                           num_near_ties=num_near_ties, tolerance=tolerance)  # fmt: skip
