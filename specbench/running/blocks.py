"""The blocks of a run, each measured and recorded as a whole."""

import hashlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specbench.decoding.decoder import Decoder
from specbench.decoding.generation_state import StopRules, text_before_stop
from specbench.decoding.loop import Generation
from specbench.models.causal_lm import CausalLM
from specbench.running.plan import Cell
from specbench.running.prompts import Texts, conversation, encode, shortened
from specbench.running.records import Key
from specbench.tasks.examples import Example
from specbench.tasks.scoring.contract import Reference, Scorer, unscored


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


def as_json(
    generation: Generation, decoder: Decoder, stop: StopRules, scorer: Scorer | None, reference: Reference | None
) -> dict[str, Any]:
    """One method's part of a record."""
    text = text_before_stop(decoder.model.decode_text(generation.token_ids), stop.stop_strings)
    return {
        **recorded(generation),
        "text": text,
        **(judged(scorer, text, reference) if scorer is not None else {"score": None}),
    }


def recorded(generation: Generation) -> dict[str, Any]:
    """A generation as the metrics read it."""
    return {
        "token_ids": generation.token_ids,
        "finish": generation.finish,
        "steps": [[s.num_drafted, s.num_judged, s.num_accepted, s.num_emitted] for s in generation.steps],
        "positions": generation.positions,
        **({"attempted": generation.attempted} if generation.attempted is not None else {}),
        "passes": {"target": generation.target_passes, "draft": generation.draft_passes},
        "ttft_seconds": generation.ttft_seconds,
        "draft_prefill_seconds": generation.draft_prefill_seconds,
        "decode_seconds": generation.decode_seconds,
        "rule_seconds": generation.rule_seconds,
        "tokenizer_seconds": generation.tokenizer_seconds,
        **({"external": asdict(generation.external)} if generation.external else {}),
    }


def judged(scorer: Scorer, text: str, reference: Reference | None) -> dict[str, Any]:
    """The keys of a record that judge an answer: `score` is the value of the main metric."""
    score = unscored(scorer.names) if reference is None else scorer(text, reference)
    return {
        "score": score.values[scorer.names[0]],
        "scores": dict(score.values),
        **({"statistics": dict(score.statistics)} if score.statistics else {}),
        **({"problem": score.problem} if score.problem else {}),
        **({"outcome": dict(score.outcome)} if score.outcome else {}),
    }


TEXT = "This is a text about nothing in particular, read once before anything is measured. "
NUM_NEW_TOKENS = 16
_WARM: dict[int, int] = {}  # tokens that a decoder was warmed up on, by its id, as long as it lives


def warm_up_cell(cell: Cell, chat: str) -> None:
    """Every method of a cell, on as many tokens as the cell's longest conversation."""
    for decoder in cell.decoders:
        warm_up([decoder], longest_conversation(cell, decoder.model, chat), cell.context_limit)


def longest_conversation(cell: Cell, model: CausalLM, chat: str) -> int:
    """The tokens of a cell's longest conversation, were every answer as long as it may be."""
    num_new = cell.task.generation.max_new_tokens
    most = max(len(encode(model, texts, chat)) + (len(texts) // 2 + 1) * num_new for texts in unanswered(cell))
    return min(most, cell.context_limit or most)


def unanswered(cell: Cell) -> Iterator[Texts]:
    """The conversations of a cell, with empty answers."""
    for example in cell.data.examples:
        last = len(example.turns) - 1
        yield conversation(example, last, [""] * last)


def warm_up(decoders: Iterable[Decoder], num_tokens: int, context_limit: int | None) -> None:
    """Every decoder, and the parts that it is made of, on `num_tokens` tokens in all, or as many as the context holds:
    no measured pass is then the first of its kind, and no cache grows while it is measured. What was warmed up on as
    many tokens before is left alone."""
    if context_limit is not None:
        num_tokens = min(num_tokens, context_limit)
    for decoder in (part for each in decoders for part in each.parts):
        if _WARM.get(id(decoder), 0) >= num_tokens:
            continue
        ids = text_ids(decoder.model, num_tokens)
        decoder.generate(ids, StopRules(NUM_NEW_TOKENS, context_limit=context_limit), seed=0)
        if id(decoder) not in _WARM:
            weakref.finalize(decoder, _WARM.pop, id(decoder), None)
        _WARM[id(decoder)] = num_tokens


def text_ids(model: CausalLM, num_tokens: int) -> list[int]:
    """What a model reads to be warmed up on `num_tokens` tokens, those that it then writes among them."""
    length = max(1, num_tokens - NUM_NEW_TOKENS)
    ids = model.encode_prompt(TEXT, chat=False)
    return (ids * (length // len(ids) + 1))[:length]
