"""Seconds of a step that was not run, from the passes of a run that was: what makes a speed of a walked generation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

import numpy as np

from specbench.running.record_check import DRAFTED
from specbench.running.records import Generation, Record

FEW_PASSES = 5  # a length seen less often (a draft that the end cut short) says little about its seconds


@dataclass(frozen=True)
class StepCosts:
    """Seconds by number of drafted tokens, each between the autoregressive step (0) and the recorded draft length.

    Medians of single passes and of the overhead per step, times one factor that makes the recorded generations cost
    what they took.
    """

    draft_pass: float
    verify: Mapping[int, float]  # by query length: drafted tokens + 1
    overhead: Mapping[int, float]  # by drafted tokens
    factor: float = 1.0

    @classmethod
    def of(cls, records: Sequence[Record], method: str) -> Self:
        """From the records of one method beside AR, both measured."""
        own = [record["methods"][method] for record in records]
        baseline = [record["methods"]["ar"] for record in records]
        lengths: dict[int, list[float]] = {}
        for length, seconds in _passes([*own, *baseline], "target"):
            lengths.setdefault(length, []).append(seconds)
        most = max(lengths)
        known = {n: s for n, s in lengths.items() if n in (1, most) or len(s) >= FEW_PASSES}
        draft = [seconds for _, seconds in _passes(own, "draft")]
        plain = cls(
            draft_pass=median(draft) if draft else 0.0,
            verify={length: median(known[length]) for length in sorted(known)},
            overhead={0: _overhead(baseline), max(1, most - 1): _overhead(own)},
        )
        steps = [step[DRAFTED] for generation in own for step in generation["steps"]]
        modelled = sum(map(plain.step_seconds, steps))
        measured = sum(generation["decode_seconds"] for generation in own if generation["steps"])
        return cls(plain.draft_pass, plain.verify, plain.overhead, measured / modelled if modelled else 1.0)

    def step_seconds(self, num_drafted: int) -> float:
        """Seconds of a step with so many drafted tokens."""
        verify, overhead = _between(self.verify, num_drafted + 1), _between(self.overhead, num_drafted)
        return self.factor * (num_drafted * self.draft_pass + verify + overhead)


def _passes(generations: Sequence[Generation], model: str) -> list[Any]:
    return [each for generation in generations for each in generation["passes"][model]]


def _overhead(generations: Sequence[Generation]) -> float:
    """Median seconds per step outside of all passes."""
    shares = [
        (g["decode_seconds"] - sum(s for _, s in [*g["passes"]["target"], *g["passes"]["draft"]])) / len(g["steps"])
        for g in generations if g["steps"]
    ]  # fmt: skip
    return median(shares) if shares else 0.0


def _between(points: Mapping[int, float], at: int) -> float:
    return float(np.interp(at, list(points), list(points.values())))
