"""The blocks of a run. Each is measured and recorded as a whole."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, product, zip_longest
from typing import Any

from specbench.decoding.decoder import Decoder, drafting_decoders
from specbench.decoding.loop import Generation, StopRules, text_before_stop
from specbench.running.plan import Cell
from specbench.running.prompts import Texts, conversation, prompt_digest, shorten
from specbench.running.records import Key
from specbench.tasks.examples import Example
from specbench.tasks.scoring.contract import Reference, Scorer, unscored


@dataclass(frozen=True)
class Block:
    """The unit of measurement: one turn of one example in one repeat. AR and all methods decode it in `order`."""

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
        """Keys of the blocks of the earlier turns."""
        *place, turn = self.key
        return [(*place, earlier) for earlier in range(turn)]  # type: ignore[misc]

    @property
    def prompt_digest(self) -> str:
        """Digest of the user's texts up to this turn."""
        return prompt_digest(self.example, self.turn)

    def texts(self, answers: Sequence[str], chat: str) -> Texts:
        """Returns the user's texts up to this turn with a method's own `answers` between them, shortened to fit the
        budgets."""
        whole = conversation(self.example, self.turn, answers)
        return shorten(whole, self.cell.budgets, chat) if self.turn else whole

    @property
    def reference(self) -> Reference | None:
        return self.example.references[self.turn]


def block_noun(plan: Sequence[Block]) -> str:
    """Returns the word for a run's blocks: "turns" if an example has several turns, else "examples"."""
    return "turns" if any(block.turn for block in plan) else "examples"


def blocks(cells: Sequence[Cell], repeats: int) -> Iterator[Block]:
    """Yields all blocks; the turns of an example follow each other. If `may_alternate_subsets`, the first example of
    each subset of a task comes first, then the second of each. The order of the methods is reversed from one example of
    a subset to the next and from one repeat to the next."""
    groups = [list(group) for _, group in groupby(cells, lambda cell: cell.task.name)]
    for group in groups if may_alternate_subsets(cells) else [[cell] for cell in cells]:
        for repeat, number in product(range(repeats), range(max(len(cell.data.examples) for cell in group))):
            for cell in group:
                for example in cell.data.examples[number : number + 1]:
                    order = cell.decoders if (number + repeat) % 2 == 0 else cell.decoders[::-1]
                    for turn in range(len(example.turns)):
                        yield Block(cell, example, repeat, order, turn)


def may_alternate_subsets(cells: Sequence[Cell]) -> bool:
    """Returns whether examples of different subsets of a task may alternate. A drafter that learns from prompt to
    prompt would learn from the other subsets, so it needs one subset after the other."""
    decoders = (decoder for cell in cells for decoder in drafting_decoders(cell.decoders))
    return not any(decoder.drafter.learns_over_prompts for decoder in decoders)


def method_record(
    generation: Generation, decoder: Decoder, stop: StopRules, scorer: Scorer | None, reference: Reference | None
) -> dict[str, Any]:
    """Returns one method's part of a record."""
    text = text_before_stop(decoder.model.decode_text(generation.token_ids), stop.stop_strings)
    return {
        **generation_fields(generation),
        "text": text,
        **(score_fields(scorer, text, reference) if scorer is not None else {"score": None}),
    }


def generation_fields(generation: Generation) -> dict[str, Any]:
    """Returns the fields of a record that describe a generation; the metrics read them."""
    return {
        "token_ids": generation.token_ids,
        "finish": generation.finish,
        "steps": [[s.num_drafted, s.num_judged, s.num_accepted, s.num_emitted] for s in generation.steps],
        **tree_fields(generation),
        "positions": generation.positions,
        **({"draw_overlap": generation.draw_overlap} if generation.draw_overlap is not None else {}),
        "passes": {"target": generation.target_passes, "draft": generation.draft_passes},
        "ttft_seconds": generation.ttft_seconds,
        "draft_prefill_seconds": generation.draft_prefill_seconds,
        "decode_seconds": generation.decode_seconds,
        "rule_seconds": generation.rule_seconds,
        "tokenizer_seconds": generation.tokenizer_seconds,
        **({"external": asdict(generation.external)} if generation.external else {}),
    }


def tree_fields(generation: Generation) -> dict[str, Any]:
    """Returns the fields of a record that only draft trees have; empty if all steps had chains."""
    steps = generation.steps
    if all(step.num_nodes is None for step in steps):
        return {}
    levels = [list(filter(None, level)) for level in zip_longest(*(step.siblings for step in steps))]
    return {
        "tree_nodes": [step.num_nodes or 0 for step in steps],
        "tree_ranks": counts_by_rank([each for level in levels for each in level]),
        "tree_levels": [counts_by_rank(level) for level in levels],
        **({"tree_samples": generation.tree_samples} if generation.tree_samples else {}),
    }  # fmt: skip


def counts_by_rank(siblings: Sequence[tuple[int, int | None]]) -> list[list[int]]:
    """Returns [judged, accepted] for each rank, given the entries of `Step.siblings`."""
    num_judged, num_accepted = Counter(num for num, _ in siblings), Counter(rank for _, rank in siblings)
    ranks = range(max(num_judged, default=0))
    return [[sum(num_judged[num] for num in num_judged if num > rank), num_accepted[rank]] for rank in ranks]


def score_fields(scorer: Scorer, text: str, reference: Reference | None) -> dict[str, Any]:
    """Returns the fields of a record that score an answer. `score` is the value of the main metric."""
    score = unscored(scorer.names) if reference is None else scorer(text, reference)
    return {
        "score": score.values[scorer.names[0]],
        "scores": dict(score.values),
        **({"statistics": dict(score.statistics)} if score.statistics else {}),
        **({"problem": score.problem} if score.problem else {}),
        **({"outcome": dict(score.outcome)} if score.outcome else {}),
    }
