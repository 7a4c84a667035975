"""Sweeps of forward passes of several query lengths behind one context: a round takes the mean of each.

A mean, because on a machine with other work a long pass is interrupted more often than a short one, so that medians and
minima of passes tell how busy it was: of the embedded pair on two cores, c is 0.047, 0.044 and 0.049 by medians, minima
and means of rounds, and with six processes beside the measurement it was 0.022, 0.025 and 0.054. Rounds that are hit
harder than others are what medians over rounds are for.
"""

from collections.abc import Sequence
from statistics import fmean

from specbench.models.causal_lm import CausalLM

TURNS = 3  # of each model in a round; every query length has a pass in each
TURN_SECONDS = 0.004  # of each query length, in a turn
SINGLE_SECONDS = 0.012  # of the single token, where others are divided by it


class Sweeps:
    """Passes of one model behind `context` tokens of `ids`, of which the model keeps just these. `seconds`: of each
    pass, by query length, 1 among them."""

    def __init__(self, model: CausalLM, ids: list[int], context: int, lengths: Sequence[int]) -> None:
        self._model, self._ids, self._context = model, ids, context
        self.seconds: dict[int, list[float]] = {length: [] for length in lengths}
        if model.compiled is None:
            model.score(ids[:context], 1)
        else:
            model.compiled.fill(ids[:context])

    def take_turn(self, number: int, *, backwards: bool) -> None:
        """Sweep until every length has its passes of the first `number` turns. The first pass, behind a prefill or
        passes of another model, is not measured."""
        self._pass(1)
        while lacking := self._lacking(number):
            self._sweep(lacking[::-1] if backwards else lacking)
            backwards = not backwards

    def _lacking(self, num_turns: int) -> list[int]:
        """The query lengths that have too few passes for so many turns. By their fastest pass: if an interrupted one
        ended a turn early, it would weigh more in the mean than it does in time."""
        return [
            length
            for length, seconds in self.seconds.items()
            if len(seconds) < num_turns or len(seconds) * min(seconds) < num_turns * self._enough(length)
        ]

    def _enough(self, length: int) -> float:
        return SINGLE_SECONDS if length == 1 < len(self.seconds) else TURN_SECONDS

    def _sweep(self, lengths: Sequence[int]) -> None:
        """A pass of each length, and one of the single token in the middle, whether it lacks any or not."""
        others = [length for length in lengths if length != 1]
        half = len(others) // 2
        for length in (*others[:half], 1, *others[half:]):
            self.seconds[length].append(self._pass(length))

    def means(self) -> dict[int, float]:
        return {length: fmean(seconds) for length, seconds in self.seconds.items()}

    def _pass(self, length: int) -> float:
        """Seconds of a pass that reads just its own tokens: what was cached before stays."""
        log = self._model.passes
        log.clear()
        self._model.score(self._ids[: self._context + length], length)
        log.clock.now()
        [(fed, seconds)] = log.read()
        assert fed == length
        return seconds
