"""The runner: AR and every method on each example in turn, in one process, recorded block by block."""

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specbench.data.examples import Example
from specbench.decoding.ledger import StopRules, text_before_stop
from specbench.decoding.loop import Generation
from specbench.errors import ConfigError
from specbench.external.decoder import ExternalDecoder
from specbench.running.compose import Decoder, stream_seed
from specbench.running.models import Models
from specbench.running.plan import Cell, Scorer, prompt_ids, scorer
from specbench.running.run_folder import Key, RunFolder
from specbench.specs import MethodSpec, RunSpec, TaskSpec, digest

WARM_UP_TEXT = "This is a text about nothing in particular, read once before anything is measured. "
NUM_WARM_UP_TOKENS = 16
PROCESS = uuid.uuid4().hex[:12]


@dataclass(frozen=True)
class Block:
    """The atom of a run: one example, one repeat, AR and all methods in the order in which they are measured."""

    cell: Cell
    example: Example
    repeat: int
    order: tuple[Decoder, ...]

    @property
    def key(self) -> Key:
        return self.cell.task.name, self.cell.subset, self.example.index, self.repeat

    @property
    def prompt_digest(self) -> str:
        return hashlib.sha256(self.example.prompt.encode()).hexdigest()[:12]


def blocks(cells: Sequence[Cell], repeats: int) -> Iterator[Block]:
    """All blocks, the order of the methods reversed on every other example, and from one repeat to the next."""
    for cell in cells:
        for repeat in range(repeats):
            for number, example in enumerate(cell.data.examples):
                order = cell.decoders if (number + repeat) % 2 == 0 else cell.decoders[::-1]
                yield Block(cell, example, repeat, order)


def run(
    spec: RunSpec,
    plan: Sequence[Block],
    folder: RunFolder,
    done: Mapping[Key, dict[str, Any]],
    report: Callable[[Block, dict[str, Any], bool], None],
) -> list[dict[str, Any]]:
    """Measure every block of the plan that is not recorded yet; returns its records, old and new.

    `report(block, record, measured)` is called after each block. A record is on disk before the next block begins.
    """
    check_same_examples(plan, done, folder)
    if any(block.key not in done for block in plan):
        warm_up({id(block.cell): block.cell for block in plan}.values(), spec.chat)
    records = []
    for block in plan:
        old = done.get(block.key)
        record = old or measure(block, spec)
        if old is None:
            folder.records.append(record)
        records.append(record)
        report(block, record, old is None)
    return records


def check_same_examples(plan: Sequence[Block], done: Mapping[Key, dict[str, Any]], folder: RunFolder) -> None:
    """Records of a data file that has changed since are not this run's."""
    for block in plan:
        old = done.get(block.key)
        if old is not None and (old["prompt"], old["reference"]) != (block.prompt_digest, block.example.reference):
            cell = block.cell
            raise ConfigError(
                f"{folder.path}: {cell.task.name}/{cell.subset} example {block.example.id} was measured with another "
                f"prompt or answer than {cell.data.location} holds now; choose another --output"
            )


def warm_up(cells: Iterable[Cell], chat: str) -> None:
    """Every method once on a text that is not measured, as long as the longest sequence of the cell, so that no
    measured pass is the first of its kind and no cache grows while it is measured."""
    for cell in cells:
        for decoder in (part for each in cell.decoders for part in each.parts):
            filler = decoder.model.encode_prompt(WARM_UP_TEXT, chat=False)
            longest = max(len(prompt_ids(decoder.model, example, chat)) for example in cell.data.examples)
            num_tokens = longest + cell.task.generation.max_new_tokens
            if cell.context_limit is not None:
                num_tokens = min(num_tokens, cell.context_limit - NUM_WARM_UP_TOKENS)
            repeated = (filler * (num_tokens // len(filler) + 1))[: max(1, num_tokens)]
            stop = StopRules(NUM_WARM_UP_TOKENS, context_limit=cell.context_limit)
            decoder.generate(repeated, stop, seed=0)


def measure(block: Block, spec: RunSpec) -> dict[str, Any]:
    """The record of one block."""
    cell, example = block.cell, block.example
    score = scorer(cell)
    results: dict[str, Any] = {}
    num_prompt_tokens = 0
    for decoder in block.order:
        name = decoder.method.name
        seed = stream_seed(spec.seed, cell.task.name, cell.subset, example.index, block.repeat, name)
        chosen = decoder.chosen(seed)
        ids = prompt_ids(chosen.model, example, spec.chat)
        stop = chosen.stop_rules(cell.task.generation, cell.context_limit)
        generation = chosen.generate(ids, stop, seed)
        results[name] = as_json(generation, chosen, stop, score, example.reference)
        if chosen is not decoder:
            results[name]["decoded_by"] = chosen.method.decodes_with
        if decoder is cell.decoders[0]:
            num_prompt_tokens = len(ids)
    return {
        "task": cell.task.name,
        "subset": cell.subset,
        "example": example.index,
        "id": example.id,
        "repeat": block.repeat,
        "process": PROCESS,
        "order": [decoder.method.name for decoder in block.order],
        "prompt": block.prompt_digest,
        "prompt_tokens": num_prompt_tokens,
        "reference": example.reference,
        "methods": {decoder.method.name: results[decoder.method.name] for decoder in cell.decoders},
    }


def as_json(
    generation: Generation, decoder: Decoder, stop: StopRules, score: Scorer | None, reference: str | None
) -> dict[str, Any]:
    """One method's part of a record."""
    text = text_before_stop(decoder.model.decode_text(generation.token_ids), stop.stop_strings)
    return {
        "token_ids": generation.token_ids,
        "text": text,
        "finish": generation.finish,
        "steps": [[s.num_drafted, s.num_judged, s.num_accepted, s.num_emitted] for s in generation.steps],
        "positions": generation.positions,
        "passes": {"target": generation.target_passes, "draft": generation.draft_passes},
        "ttft_seconds": generation.ttft_seconds,
        "draft_prefill_seconds": generation.draft_prefill_seconds,
        "decode_seconds": generation.decode_seconds,
        **({"external": asdict(generation.external)} if generation.external else {}),
        "score": score(text, reference) if score is not None and reference is not None else None,
    }


def identity(spec: RunSpec, cells: Sequence[Cell], models: Models, environment: Mapping[str, Any]) -> dict[str, Any]:
    """What all records of a folder must share: everything but which examples and how many repeats are asked for."""
    drafters = {
        decoder.method.name: drafter_identity(decoder, models) for cell in cells[:1] for decoder in cell.decoders
    }
    codes = {
        decoder.method.name: decoder.revision
        for cell in cells[:1] for decoder in cell.decoders if isinstance(decoder, ExternalDecoder)
    }  # fmt: skip
    return {
        "seed": spec.seed,
        "tasks": {task.name: named(task) for task in spec.tasks},
        "methods": {method.name: named(method) for method in spec.methods},
        "target": {"name": models.target.name, "revision": models.target.revision},
        "drafters": {method: found for method, found in drafters.items() if found["name"] is not None},
        **({"code": codes} if codes else {}),
        "data": {cell.task.name: cell.data.source for cell in cells},
        "chat": spec.chat,
        "environment": dict(environment),
    }


def drafter_identity(decoder: Decoder, models: Models) -> dict[str, str | None]:
    """Name and revision of what a method drafts with: a model, or a drafter that is a thing of its own."""
    holder = models.drafters.get(decoder.method.name, decoder.drafter)
    return {"name": getattr(holder, "name", None), "revision": getattr(holder, "revision", None)}


def named(spec: TaskSpec | MethodSpec) -> str:
    """name@version:digest"""
    return f"{spec.name}@{spec.version}:{digest(spec)}"
