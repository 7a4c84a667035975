"""Values → places in a picture, with round numbers at its axis."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from specbench.results.bootstrap import Bounds

STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Tick:
    place: float
    text: str


@dataclass(frozen=True)
class Scale:
    """Linear from `low`, at `start`, to `high`, at `end`; places are in units of the picture."""

    low: float
    high: float
    start: float
    end: float
    step: float

    def __call__(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return round(self.start + (inside - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[Tick]:
        digits = max(0, -math.floor(math.log10(self.step) + 1e-9))
        digits += self.step * 10**digits % 1 > 1e-9
        count = round((self.high - self.low) / self.step)
        values = [self.low + number * self.step for number in range(count + 1)]
        return [Tick(self(value), f"{value:.{digits}f}".replace("-", "−")) for value in values]


def scale(
    values: Iterable[float], start: float, end: float, *, most_ticks: int = 6, bounds: Bounds | None = None
) -> Scale:
    """Round ends around all values, and of equal values around what is beside them; `bounds`: of what can be."""
    found = list(values)
    low, high = min(found), max(found)
    if high - low < 1e-9:
        low, high = low - (abs(low) or 10) / 10, high + (abs(high) or 10) / 10
    if bounds is not None:
        low, high = min(max(low, bounds[0]), min(found)), max(min(high, bounds[1]), max(found))
    rough = (high - low) / most_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in STEPS if power * factor >= rough * 0.999)
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, start, end, step)
