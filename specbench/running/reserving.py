"""What compiled models need before a cell is measured: room for its longest conversation, and every pass compiled."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from specbench.errors import ConfigError
from specbench.running.blocks import Block
from specbench.running.models import Models
from specbench.running.needs import Need, needs
from specbench.running.plan import Cell
from specbench.running.records import Record
from specbench.running.warm_up import longest_conversation, text_ids, unanswered
from specbench.specs import MethodSpec

FILE = "compilations.jsonl"  # in the folder of a run: a line for each model of each cell that was compiled for

Told = Callable[[str], None]


def quiet(line: str) -> None:
    """Tell nobody."""


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


def reserve(cell: Cell, chat: str, told: Told = quiet) -> Iterator[Compilation]:
    """Make every compiled model ready for the longest conversation of a cell; `told` hears what is being compiled."""
    yield from _reserved(cell, lambda need: longest(cell, need, chat), told, exactly=True)


def make_room(block: Block, earlier: Sequence[Record], chat: str, told: Told = quiet) -> Iterator[Compilation]:
    """Make every compiled model ready for a block, before it is measured: an earlier answer may be more tokens when it
    is read again as text than when it was written. `earlier`: the records of the turns before. Mostly all is there."""
    if block.cell.models.target.compiled is None:
        return
    names = [decoder.method.name for decoder in block.order]
    read = {block.texts([record["methods"][name]["text"] for record in earlier], chat) for name in names}
    num_new = block.cell.task.generation.max_new_tokens
    yield from _reserved(block.cell, lambda need: max(need.room_for(texts, num_new, chat) for texts in read), told)


def _reserved(cell: Cell, room: Callable[[Need], int], told: Told, exactly: bool = False) -> Iterator[Compilation]:
    for need in needs(cell.models, [decoder.method for decoder in cell.decoders]):
        sequence = need.model.compiled
        if sequence is None:
            continue
        before = num_compilations()
        seconds = sequence.reserve(room(need), sorted(need.lengths), need.packs, exactly=exactly, told=told)
        if number := num_compilations() - before:
            yield Compilation(cell.task.name, cell.subset, need.model.name, sequence.capacity, number, seconds)


def reserve_for(
    models: Models, methods: Sequence[MethodSpec], num_tokens: int, told: Told, prompts: Sequence[list[int]] = ([],)
) -> None:
    """The passes that a run compiles for methods, for `num_tokens` tokens of the target behind any of the `prompts`."""
    for need in needs(models, methods):
        if need.model.compiled is not None:
            room = max(need.room(ids, num_tokens) for ids in prompts)
            need.model.compiled.reserve(room, sorted(need.lengths), need.packs, told=told)


def longest(cell: Cell, need: Need, chat: str) -> int:
    """The tokens of the longest conversation of a cell, or of the text that warms up for it, as a model reads it."""
    num_new = cell.task.generation.max_new_tokens
    most = max(need.room_for(texts, (len(texts) // 2 + 1) * num_new, chat) for texts in unanswered(cell))
    if need.has_own_tokens:
        num_tokens = longest_conversation(cell, need.target, chat)
        ids = text_ids(need.target, num_tokens)
        most = max(most, need.room(ids, num_tokens - len(ids)))
    return most


def note(folder: Path, compilation: Compilation) -> str:
    """Write what was compiled to the folder of a run; returns a line that says it."""
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(compilation)) + "\n")
    return (
        f"{compilation.task}/{compilation.subset}: compiled {compilation.num_passes} passes of {compilation.model} for "
        f"{compilation.capacity} tokens in {compilation.seconds:.0f} s"
    )
