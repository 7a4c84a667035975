"""What compiled models need before a cell is measured: room for its longest conversation, and every pass compiled."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from specbench.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.chunks import PACKED
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


def reserve(cell: Cell, chat: str, told: Callable[[str], None] = lambda line: None) -> Iterator[Compilation]:
    """Make every compiled model ready for the longest conversation of a cell; `told` hears what is being compiled."""
    for need in needs(cell.models, [decoder.method for decoder in cell.decoders]):
        sequence = need.model.compiled
        if sequence is None:
            continue
        before = num_compilations()
        seconds = sequence.reserve(longest(cell, need, chat), sorted(need.lengths), need.packs, told=told)
        if number := num_compilations() - before:
            yield Compilation(cell.task.name, cell.subset, need.model.name, sequence.capacity, number, seconds)


def reserve_for(models: Models, methods: Sequence[MethodSpec], num_tokens: int, told: Callable[[str], None]) -> None:
    """The passes that a run compiles for methods, for conversations of `num_tokens` tokens of the target."""
    for need in needs(models, methods):
        if need.model.compiled is not None:
            num_own = math.ceil(num_tokens * (SPARE if need.has_own_tokens else 1))
            need.model.compiled.reserve(num_own, sorted(need.lengths), need.packs, told=told)


@dataclass
class Need:
    """What methods ask of a model: the lengths of its passes, whether its tokens are others than the target's, and
    whether it reads several continuations at once."""

    model: CausalLM
    lengths: set[int] = field(default_factory=lambda: {1})
    has_own_tokens: bool = False
    packs: bool = False


def needs(models: Models, methods: Sequence[MethodSpec]) -> list[Need]:
    """What methods ask of every model."""
    found = {id(model): Need(model) for model in (models.target, *models.drafters.values())}
    for part in parts(methods):
        drafter = models.drafters.get(part.name)
        if part.decodes_with != "target":
            continue
        verified = part.num_draft_tokens + 1
        found[id(models.target)].lengths.add(verified)
        if drafter is None:
            continue
        need = found[id(drafter)]
        need.lengths.add(2)  # where all its tokens stood it has not read the last of them
        if bridged(part):
            need.has_own_tokens = True
            need.lengths.add(verified)
        if part.bridge.type == "string":  # walks along the bytes of a token, and along many beginnings of one
            need.packs = True
            need.lengths |= set(PACKED)
    return list(found.values())


def longest(cell: Cell, need: Need, chat: str) -> int:
    """The tokens of the longest conversation of a cell, as a model reads it."""
    model, target, num_new = need.model, cell.models.target, cell.task.generation.max_new_tokens
    turns = [turn for example in cell.data.examples for turn in example.turns]
    if need.has_own_tokens:
        own, others = (sum(len(encode(each, (turn,), chat)) for turn in turns) for each in (model, target))
        num_new = math.ceil(num_new * max(SPARE, SPARE * own / max(others, 1)))
    num_tokens = max(
        sum(len(encode(model, (turn,), chat)) + num_new for turn in example.turns) for example in cell.data.examples
    )
    limits = [limit for limit in (model.context_limit, None if need.has_own_tokens else cell.context_limit) if limit]
    return min([num_tokens, *limits])


def note(folder: Path, compilation: Compilation) -> str:
    """Write what was compiled to the folder of a run; returns a line that says it."""
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(compilation)) + "\n")
    return (
        f"{compilation.task}/{compilation.subset}: compiled {compilation.num_passes} passes of {compilation.model} for "
        f"{compilation.capacity} tokens in {compilation.seconds:.0f} s"
    )
