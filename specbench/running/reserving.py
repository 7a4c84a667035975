"""What compiled models need before a cell is measured: room for its longest conversation, and every pass compiled."""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from specbench.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.running.blocks import Block
from specbench.running.models import Models, bridged, parts
from specbench.running.plan import Cell
from specbench.running.prompts import encode
from specbench.specs import MethodSpec

FILE = "compilations.jsonl"  # in the folder of a run: a line for each model of each cell that was compiled for
SPARE = 1.5  # room for answers that a drafter of another vocabulary writes in more tokens than it writes the prompts


@dataclass(frozen=True)
class Compilation:
    """What was compiled of a model for a cell, and how long that took: no part of any figure of speed."""

    task: str
    subset: str
    model: str
    capacity: int
    num_passes: int
    seconds: float


def num_compilations() -> int:
    """The graphs that torch has compiled in this process."""
    if "torch._dynamo" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def check_nothing_compiled(since: int, block: Block) -> None:
    """Raise ConfigError where something was compiled while it was measured: such a block is not recorded."""
    if number := num_compilations() - since:
        where = f"{block.cell.task.name}/{block.cell.subset} example {block.example.id}"
        raise ConfigError(
            f"{where}: {number} passes were compiled while it was measured, so its seconds are none of decoding and "
            "the block is not recorded: take --engine eager, or a smaller generation.max_new_tokens"
        )


def reserve(cell: Cell, chat: str) -> Iterator[Compilation]:
    """Make every compiled model ready for the longest conversation of a cell."""
    for model, lengths, is_bridged in reserved(cell.models, [decoder.method for decoder in cell.decoders]):
        sequence = model.compiled
        if sequence is None:
            continue
        before = num_compilations()
        seconds = sequence.reserve(longest(cell, model, is_bridged, chat), lengths)
        if number := num_compilations() - before:
            yield Compilation(cell.task.name, cell.subset, model.name, sequence.capacity, number, seconds)


def reserved(models: Models, methods: Sequence[MethodSpec]) -> list[tuple[CausalLM, list[int], bool]]:
    """Every model with the lengths of its passes, and whether its tokens are others than the target's."""
    lengths: dict[int, set[int]] = {id(models.target): {1}}
    found = {id(models.target): (models.target, False)}
    for part in parts(methods):
        drafter = models.drafters.get(part.name)
        verified = {part.num_draft_tokens + 1} if part.decodes_with == "target" else set()
        lengths[id(models.target)] |= verified
        if drafter is not None:  # where all its tokens stood it has not read the last of them
            own = {1, 2} | (verified if bridged(part) else set()) if verified else {1}
            lengths.setdefault(id(drafter), set()).update(own)
            found[id(drafter)] = (drafter, bridged(part))
    return [(model, sorted(lengths[key]), is_bridged) for key, (model, is_bridged) in found.items()]


def longest(cell: Cell, model: CausalLM, is_bridged: bool, chat: str) -> int:
    """The tokens of the longest conversation of a cell, as a model reads it."""
    target, num_new = cell.models.target, cell.task.generation.max_new_tokens
    turns = [turn for example in cell.data.examples for turn in example.turns]
    if is_bridged:
        own, others = (sum(len(encode(each, (turn,), chat)) for turn in turns) for each in (model, target))
        num_new = math.ceil(num_new * max(SPARE, SPARE * own / max(others, 1)))
    num_tokens = max(
        sum(len(encode(model, (turn,), chat)) + num_new for turn in example.turns) for example in cell.data.examples
    )
    limits = [limit for limit in (model.context_limit, None if is_bridged else cell.context_limit) if limit]
    return min([num_tokens, *limits])


def note(folder: Path, compilation: Compilation) -> str:
    """Write what was compiled to the folder of a run; returns a line that says it."""
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(compilation)) + "\n")
    return (
        f"{compilation.task}/{compilation.subset}: compiled {compilation.num_passes} passes of {compilation.model} for "
        f"{compilation.capacity} tokens in {compilation.seconds:.0f} s"
    )
