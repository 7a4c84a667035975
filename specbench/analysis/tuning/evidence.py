"""What a recording run keeps: the divergence of every drafted position, also of those behind the first rejection.

In a step that drafted from a context, the target scored every drafted position, so a fuzzy rule computed all their
divergences, each given the draft tokens before it. Ordinary records keep the judged ones only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.proposal import Proposal, Verdict
from specbench.decoding.sampling import Distributions
from specbench.decoding.verification import Rule
from specbench.running.records import ACCEPTED, EMITTED, Generation, Record, RecordFile

KEY = "drafted"  # of a generation in the records, beside `steps` and `positions`


class KeepingRule:
    """A rule that decides as the one it holds, and keeps the evidence of all drafted positions.

    While decoding it keeps references only, so that the run is as fast as any other; numbers are read afterwards.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._steps: list[tuple[list[int], Verdict, torch.Tensor | None]] = []

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verdict:
        verdict, greedy = self._rule(proposal, target, generator), target.sampling.greedy
        self._steps.append((proposal.token_ids, verdict, target.best if greedy else None))
        return verdict

    def take(self, num_steps: int) -> dict[str, Any]:
        """The evidence of the last `num_steps` steps: draft tokens, their divergences and, where the target is greedy,
        its own token at every drafted position and at the one behind them. Nothing is kept any longer."""
        steps, self._steps = self._steps[len(self._steps) - num_steps :], []
        own = [tokens.tolist() for _, _, tokens in steps if tokens is not None]
        return {
            "token_ids": [token_ids for token_ids, _, _ in steps],
            "divergence": [_values(verdict) for _, verdict, _ in steps],
            "own": own if len(own) == num_steps else None,
        }


def _values(verdict: Verdict) -> list[float]:
    column = verdict.divergence
    return [] if column is None else column.tolist() if isinstance(column, torch.Tensor) else list(column)


def keeping(decoder: DraftingDecoder) -> DraftingDecoder:
    """The decoder with a rule that keeps its evidence."""
    return replace(decoder, rule=KeepingRule(decoder.rule))


class EvidenceFile(RecordFile):
    """The records of a recording run: each is written with what the method's rule kept."""

    def __init__(self, path: Path, rules: Mapping[tuple[str, str], KeepingRule], method: str) -> None:
        super().__init__(path)
        self._rules = rules  # by (task, subset)
        self._method = method

    def append(self, record: Record) -> None:
        """Adds the evidence to the record itself, then writes it."""
        generation = record["methods"][self._method]
        generation[KEY] = self._rules[record["task"], record["subset"]].take(len(generation["steps"]))
        super().append(record)


@dataclass(frozen=True)
class Window:
    """One recorded step: what was drafted from which place of the answer, and what was made of it.

    `start`: new tokens before it. `own`: the greedy target's token at every drafted position and behind the last one,
    None where the target samples. The step emitted `num_accepted` draft tokens and then `next_token`.
    """

    start: int
    token_ids: tuple[int, ...]
    divergence: tuple[float, ...]
    own: tuple[int, ...] | None
    num_accepted: int
    next_token: int | None  # None where the cut dropped it


def windows(generation: Generation) -> list[Window]:
    """The steps of a recorded generation. Raises KeyError when it was recorded without evidence."""
    evidence = generation[KEY]
    made = []
    start = 1  # the token of the prefill
    for number, step in enumerate(generation["steps"]):
        end = start + step[EMITTED]
        own = evidence["own"]
        window = Window(
            start, tuple(evidence["token_ids"][number]), tuple(evidence["divergence"][number]),
            tuple(own[number]) if own is not None else None, step[ACCEPTED],
            generation["token_ids"][end - 1] if step[EMITTED] > step[ACCEPTED] else None,
        )  # fmt: skip
        made.append(window)
        start = end
    return made
