"""The blocks of a run, each measured and recorded as a whole."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench.data.examples import Example
from specbench.running.compose import Decoder
from specbench.running.plan import Cell
from specbench.running.prompts import Texts, conversation, shortened
from specbench.running.records import Key
from specbench.scoring.contract import Reference


@dataclass(frozen=True)
class Block:
    """The atom of a run: one turn of one example, one repeat, AR and all methods in the order in which they are
    measured."""

    cell: Cell
    example: Example
    repeat: int
    order: tuple[Decoder, ...]
    turn: int = 0

    @property
    def key(self) -> Key:
        return self.cell.task.name, self.cell.subset, self.example.index, self.repeat, self.turn

    @property
    def earlier_keys(self) -> list[Key]:
        """Of the blocks whose answers stand before this turn."""
        *place, turn = self.key
        return [(*place, earlier) for earlier in range(turn)]  # type: ignore[misc]

    @property
    def prompt_digest(self) -> str:
        """Of the user's texts up to this turn."""
        return prompt_digest(self.example, self.turn)

    def texts(self, answers: Sequence[str], chat: str) -> Texts:
        """The user's texts up to this turn and a method's own `answers` between them, cut where they are too long."""
        whole = conversation(self.example, self.turn, answers)
        return shortened(whole, self.cell.budgets, chat) if self.turn else whole

    @property
    def reference(self) -> Reference | None:
        return self.example.references[self.turn]


def what_blocks_are(plan: Sequence[Block]) -> str:
    """The word for a run's blocks: `turns` where an example has several."""
    return "turns" if any(block.turn for block in plan) else "examples"


def prompt_digest(example: Example, turn: int) -> str:
    """12 hex digits over the user's texts up to a turn."""
    return hashlib.sha256("\0".join(example.turns[: turn + 1]).encode()).hexdigest()[:12]


def blocks(cells: Sequence[Cell], repeats: int) -> Iterator[Block]:
    """All blocks, the turns of an example one after the other; the order of the methods reversed on every other
    example, and from one repeat to the next."""
    for cell in cells:
        for repeat in range(repeats):
            for number, example in enumerate(cell.data.examples):
                order = cell.decoders if (number + repeat) % 2 == 0 else cell.decoders[::-1]
                for turn in range(len(example.turns)):
                    yield Block(cell, example, repeat, order, turn)
