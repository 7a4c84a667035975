"""Records of a run → leaderboard rows: one per subset and method, and one over all subsets of a task."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from specbench.audit.records import verdict_of_records
from specbench.external.decoder import ExternalDecoder
from specbench.results.bootstrap import INTERVALS, Metric
from specbench.results.metrics import accepted_lengths_of, metrics_of, routes_taken
from specbench.results.quality import JUDGED, asked_of, main_metric, signatures
from specbench.results.row import ALL, Row, Sampling, Shots
from specbench.results.warnings import warnings_of
from specbench.running.compose import Decoder, unique
from specbench.running.models import Models
from specbench.running.plan import Cell
from specbench.running.prompts import record_prompts, uses_chat
from specbench.running.records import Record, with_the_same_history
from specbench.running.runner import drafter_identity
from specbench.running.trained_on import num_trained_on
from specbench.specs import MethodSpec, RunSpec, named
from specbench.specs.run import own_drafter


def rows(
    spec: RunSpec,
    cells: Sequence[Cell],
    models: Models,
    records: Sequence[Record],
    environment: Mapping[str, Any],
    command: str,
    judge: str | None = None,
) -> list[Row]:
    """Every row of a run, methods in the order given, subsets in the task's order, `all` last. `judge`: the signature
    of the judge whose ratings the records have.

    Subsets that are sampled in different ways have no `all`: it would be of no one way.
    """
    made = []
    for task_name in unique([cell.task.name for cell in cells]):
        task_cells = [cell for cell in cells if cell.task.name == task_name]
        groups = [[cell] for cell in task_cells]
        if len(task_cells) > 1 and len({sampling(cell) for cell in task_cells}) == 1:
            groups.append(task_cells)
        for method in spec.methods:
            for group in groups:
                subsets = {cell.subset for cell in group}
                chosen = [r for r in records if r["task"] == task_name and r["subset"] in subsets]
                made.append(_row(spec, method, group, models, chosen, environment, command, judge))
    return made


def sampling(cell: Cell) -> Sampling:
    """How the tokens of a cell are drawn."""
    generation = cell.task.generation
    return Sampling(temperature=generation.temperature, top_k=generation.top_k, top_p=generation.top_p)


def prompts(
    group: Sequence[Cell], models: Models, records: Sequence[Record], chat: str
) -> Callable[[Mapping[str, Any]], list[int]]:
    """The target's prompt ids of a record of these cells, AR's answers in the earlier turns included."""
    examples = {(cell.subset, example.index): example for cell in group for example in cell.data.examples}
    ids = record_prompts(examples, {cell.subset: cell.budgets for cell in group}, records, models.target, chat)
    return lambda record: ids(dict(record))


def other_tokens(method: MethodSpec, models: Models) -> dict[str, Metric]:
    """Where the drafter decodes alone in tokens of its own, its tokens/s are no multiple of the target's."""
    alone = models.drafters.get(method.name) if method.decodes_with == "drafter" else None
    if alone is None or alone.vocabulary == models.target.vocabulary:
        return {}
    return {name: Metric() for name in ("speedup", "speedup_e2e", "speedup_expected")}


def options(decoder: Decoder, target: str) -> dict[str, Any]:
    """What a method is made of: its parts, or the external code with what identifies it. `target`: as it was given."""
    method = decoder.method
    if isinstance(decoder, ExternalDecoder) and method.decoder is not None:
        return {"decoder": {**method.decoder.model_dump(), "revision": decoder.revision}}
    return method_options(method, target)


def method_options(method: MethodSpec, target: str) -> dict[str, Any]:
    """The parts of a method without external code."""
    if method.routes is not None:
        whole = method.model_dump()
        routes = {
            name: {"drafter": drafter_options(part, target), "num_draft_tokens": part.num_draft_tokens}
            for name, part in zip(method.routes, method.parts, strict=True)
        }
        return {"language": method.language, "routes": routes} | {key: whole[key] for key in ("verification", "bridge")}
    allocation = {"decodes_with": method.decodes_with, "drafter_share": method.drafter_share}
    return {
        **(allocation if method.decodes_with == "random" else {}),
        "drafter": drafter_options(method, target),
        "verification": method.verification.model_dump(),
        "bridge": method.bridge.model_dump(),
    }


def drafter_options(part: MethodSpec, target: str) -> dict[str, Any]:
    """The drafter with its options. One that the method names, and that the one given with --drafter stands in for, is
    no checkpoint of the row: `replaces` tells which."""
    found = part.drafter.model_dump()
    if part.checkpoint is None or own_drafter(part, target) is not None:
        return found
    return {**found, "checkpoint": None, "replaces": part.checkpoint}


def revision(group: Sequence[Cell]) -> str | None:
    """The revision of the data; of several subsets' a digest of them all, where they are not the same."""
    return revision_of({cell.subset: cell.data.revision for cell in group})


def revision_of(revisions: Mapping[str, str | None]) -> str | None:
    """By subset → the one that they share, else a digest of them all."""
    if len(set(revisions.values())) == 1:
        return next(iter(revisions.values()))
    text = "\n".join(f"{subset} {found}" for subset, found in revisions.items())
    return f"all-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def shots_of(group: Sequence[Cell]) -> Shots:
    """The worked examples of cells: the most before a prompt of any, and of several subsets a digest of them all."""
    found = {cell.subset: cell.data.worked for cell in group}
    used = [worked for worked in found.values() if worked.num]
    if not used:
        return Shots(num=0)
    return Shots(
        num=max(worked.num for worked in used),
        source=used[0].source,
        location=", ".join(unique([f"{worked.location}" for worked in used])),
        digest=revision_of({subset: worked.digest for subset, worked in found.items()}),
        num_checked=sum(len(cell.data.examples) for cell in group) if all(w.checked for w in used) else None,
    )


def _row(
    spec: RunSpec,
    method: MethodSpec,
    group: Sequence[Cell],
    models: Models,
    records: Sequence[Record],
    environment: Mapping[str, Any],
    command: str,
    judge: str | None,
) -> Row:
    cell = group[0]
    task = next(task for task in spec.tasks if task.name == cell.task.name)
    decoder = next(decoder for decoder in cell.decoders if decoder.method.name == method.name)
    drafter = drafter_identity(decoder, models)
    asked = asked_of(group)
    metrics = metrics_of(records, method, spec.seed, asked) | other_tokens(method, models)
    taken = routes_taken(records, method)
    parts = [method.route(name) for name in taken] or [method]
    row = Row(
        task=named(task),
        subset=cell.subset if len(group) == 1 else ALL,
        language=cell.task.language if len(group) == 1 else None,
        method=named(method),
        num_draft_tokens=max(part.num_draft_tokens for part in parts),
        options=options(decoder, spec.target) | ({"taken": taken} if taken else {}),
        target=models.target.name,
        target_revision=models.target.revision,
        drafter=drafter["name"],
        drafter_revision=drafter["revision"],
        sampling=sampling(cell),
        dtype=environment["dtype"],
        device=environment["device"],
        attention=environment["attention"],
        engine=models.engine(method),
        versions=environment["versions"],
        commit=environment["commit"],
        command=command,
        data_source=cell.data.source,
        data_location=", ".join(unique([each.data.location for each in group])),
        data_revision=revision(group),
        chat=uses_chat(models.target, spec.chat),
        seed=spec.seed,
        n=len({(record["subset"], record["example"]) for record in records}),
        repeats=spec.repeats,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        lossless=method.lossless,
        verdict=verdict_of_records(
            with_the_same_history(records, method.name), method, models.target,
            prompts(group, models, records, spec.chat), greedy=sampling(cell).temperature == 0,
        ),
        quality=main_metric(asked, metrics),
        signatures=signatures(asked, records) | ({JUDGED: judge} if judge and JUDGED in metrics else {}),
        intervals=INTERVALS,
        shots=shots_of(group),
        accepted_lengths=accepted_lengths_of(records, method),
        metrics=metrics,
    )  # fmt: skip
    return row.model_copy(update={"warnings": warnings_of(row, records, num_trained_on(spec, method, records))})
