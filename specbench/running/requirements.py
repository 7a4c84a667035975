"""What methods ask of every model of a run: the lengths of its passes, and room for what it reads."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from specbench.core.errors import ConfigError
from specbench.decoding.bridges.translation import Translation
from specbench.decoding.decoder import Decoder, DraftingDecoder
from specbench.decoding.drafters import Drafter
from specbench.models.causal_lm import CausalLM
from specbench.models.compiling import VERBS
from specbench.models.recording import num_recordings
from specbench.models.static_sequence import PACKED
from specbench.running.blocks import Block, longest_conversation, text_ids, unanswered
from specbench.running.models import Models, bridged, parts
from specbench.running.plan import Cell
from specbench.running.prompts import Texts, encode
from specbench.running.records import Record
from specbench.specs.method import MethodSpec

SPARE = 1.5  # room for answers that a drafter of another vocabulary writes in more tokens than it writes the prompts


@dataclass
class CompileRequirements:
    """What methods ask of a model: the lengths of its passes, whether it drafts with tokens that are others than the
    target's, whether it reads several continuations at once, and whether it decodes alone. `limit`: the most tokens
    that it is ever given."""

    model: CausalLM
    target: CausalLM
    limit: int | None
    lengths: set[int] = field(default_factory=lambda: {1})
    has_own_tokens: bool = False
    packs: bool = False
    decodes: bool = False

    def room(self, ids: list[int], num_new: int) -> int:
        """The tokens that the model holds of a prompt and its answer, which are `ids` and `num_new` to the target."""
        num_read = len(ids)
        if self.has_own_tokens:
            num_read = len(Translation(self.target.text_vocabulary, self.model.text_vocabulary).start(ids))
            num_new = math.ceil(num_new * SPARE * max(1, num_read / max(len(ids), 1)))
        return min(num_read + num_new, self.limit or num_read + num_new)

    def room_for(self, texts: Texts, num_new: int, chat: str) -> int:
        """The same of a conversation; what decodes alone reads it in its own words."""
        most = self.room(encode(self.target, texts, chat), num_new)
        own = len(encode(self.model, texts, chat)) + num_new if self.decodes else 0
        return max(most, min(own, self.limit or own))


def needs(models: Models, methods: Sequence[MethodSpec]) -> list[CompileRequirements]:
    """What methods ask of every model."""
    target, limit = models.target, models.context_limit(methods)
    found = {id(model): CompileRequirements(model, target, limit) for model in (target, *models.drafters.values())}
    for part in parts(methods):
        drafter = models.drafters.get(part.name)
        if part.decodes_with != "target":
            if drafter is not None:
                found[id(drafter)].decodes = True
            continue
        verified = part.num_draft_tokens + 1
        found[id(target)].lengths.add(verified)
        if drafter is None:
            continue
        need = found[id(drafter)]
        need.lengths.add(2)  # where all its tokens stood it has not read the last of them
        if bridged(part):
            need.has_own_tokens, need.limit = True, drafter.context_limit
            need.lengths.add(verified)
        if part.bridge.type == "string":  # walks along the bytes of a token, and along many beginnings of one
            need.packs = True
            need.lengths |= set(PACKED)
    return list(found.values())


FILE = "compilations.jsonl"  # in the folder of a run: a line for each model of each cell that passes were made for

Told = Callable[[str], None]


def quiet(line: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Compilation:
    """The passes that were compiled or recorded of a model for a cell, and the seconds that it took: no part of any
    figure of speed."""

    task: str
    subset: str
    model: str
    capacity: int
    num_passes: int
    seconds: float
    engine: str = "compiled"


def num_compilations() -> int:
    """Returns the number of graphs that torch has compiled and of CUDA graphs that were recorded in this process."""
    if "torch._dynamo" not in sys.modules:
        return num_recordings()
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"]) + num_recordings()


def check_nothing_compiled(since: int, block: Block) -> None:
    """Raise ConfigError where a pass was compiled or recorded while a block was measured: the block is not kept."""
    if number := num_compilations() - since:
        where = f"{block.cell.task.name}/{block.cell.subset} example {block.example.id}"
        raise ConfigError(
            f"{where}: {number} passes were compiled or recorded while it was measured, so its seconds are none of "
            "decoding and the block is not kept: take --engine eager, or a smaller generation.max_new_tokens"
        )


def reserve(cell: Cell, chat: str, told: Told = quiet) -> Iterator[Compilation]:
    """Make the passes of every model for the longest conversation of a cell; `told` hears what is being made."""
    yield from _reserved(cell, lambda need: longest(cell, need, chat), told, exactly=True)


def make_room(block: Block, earlier: Sequence[Record], chat: str, told: Told = quiet) -> Iterator[Compilation]:
    """Make the passes of every model for a block, before it is measured: an earlier answer may be more tokens when it
    is read again as text than when it was written. `earlier`: the records of the turns before. Mostly all is there."""
    if block.cell.models.target.static is None:
        return
    names = [decoder.method.name for decoder in block.order]
    read = {block.texts([record["methods"][name]["text"] for record in earlier], chat) for name in names}
    num_new = block.cell.task.generation.max_new_tokens
    yield from _reserved(block.cell, lambda need: max(need.room_for(texts, num_new, chat) for texts in read), told)


def _reserved(
    cell: Cell, room: Callable[[CompileRequirements], int], told: Told, exactly: bool = False
) -> Iterator[Compilation]:
    for need in needs(cell.models, [decoder.method for decoder in cell.decoders]):
        sequence = need.model.static
        if sequence is None:
            continue
        number, seconds = sequence.reserve(room(need), sorted(need.lengths), need.packs, exactly=exactly, told=told)
        for drafter, num_tokens in drafters_with(need.model, cell.decoders):
            num_drafts, more = drafter.reserve(num_tokens)
            number, seconds = number + num_drafts, seconds + more
        if number:
            place = (cell.task.name, cell.subset, need.model.name, sequence.capacity)
            yield Compilation(*place, number, seconds, sequence.engine)


def drafters_with(model: CausalLM, decoders: Iterable[Decoder]) -> Iterator[tuple[Drafter, int]]:
    """Yields the drafters that draft with a model, and the tokens of a draft."""
    for decoder in (part for each in decoders for part in each.parts):
        if isinstance(decoder, DraftingDecoder) and decoder.drafter.model is model:
            yield decoder.drafter, decoder.method.num_draft_tokens


def reserve_for(
    models: Models, methods: Sequence[MethodSpec], num_tokens: int, told: Told, prompts: Sequence[list[int]] = ([],),
    decoders: Sequence[Decoder] = (),
) -> None:  # fmt: skip
    """Make the passes that a run makes for methods, for `num_tokens` tokens of the target behind any of the `prompts`,
    and the drafts of `decoders`."""
    for need in needs(models, methods):
        if need.model.static is not None:
            room = max(need.room(ids, num_tokens) for ids in prompts)
            need.model.static.reserve(room, sorted(need.lengths), need.packs, told=told)
            for drafter, num_draft_tokens in drafters_with(need.model, decoders):
                drafter.reserve(num_draft_tokens)


def longest(cell: Cell, need: CompileRequirements, chat: str) -> int:
    """The tokens of the longest conversation of a cell, or of the text that warms up for it, as a model reads it."""
    num_new = cell.task.generation.max_new_tokens
    most = max(need.room_for(texts, (len(texts) // 2 + 1) * num_new, chat) for texts in unanswered(cell))
    if need.has_own_tokens:
        num_tokens = longest_conversation(cell, need.target, chat)
        ids = text_ids(need.target, num_tokens)
        most = max(most, need.room(ids, num_tokens - len(ids)))
    return most


def note(folder: Path, compilation: Compilation) -> str:
    """Write what was made to the folder of a run; returns a line that says it."""
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(compilation)) + "\n")
    return (
        f"{compilation.task}/{compilation.subset}: {VERBS[compilation.engine]} {compilation.num_passes} passes of "
        f"{compilation.model} for "
        f"{compilation.capacity} tokens in {compilation.seconds:.0f} s"
    )
