"""Where the names of points stand, so that they cover neither each other nor a point."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specbench.results.shares import Bounds

Box = tuple[float, float, float, float]  # left, top, right, bottom
HEIGHT, PER_CHARACTER, GAP = 13.0, 6.1, 7.0


@dataclass(frozen=True)
class Label:
    """`x`, `y`: of the text's baseline at its anchor."""

    x: float
    y: float
    anchor: str


def placed(points: Sequence[tuple[float, float, str]], frame: Box) -> list[Label | None]:
    """For each point (x, y, name) the first free place around it; None where there is none, or no name."""
    taken: list[Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y, _ in points]
    found: list[Label | None] = []
    for x, y, name in points:
        width = PER_CHARACTER * len(name)
        places = [
            ("start", x + GAP, y + 4), ("end", x - GAP, y + 4), ("middle", x, y - GAP - 2), ("middle", x, y + GAP + 9),
            ("start", x + GAP, y - 8), ("start", x + GAP, y + 16), ("end", x - GAP, y - 8), ("end", x - GAP, y + 16),
        ]  # fmt: skip
        for anchor, left, base in places:
            start = left - {"start": 0, "middle": width / 2, "end": width}[anchor]
            box = (start, base - HEIGHT + 3, start + width, base + 3)
            if name and _inside(box, frame) and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                found.append(Label(round(left, 1), round(base, 1), anchor))
                break
        else:
            found.append(None)
    return found


def _overlap(first: Box, second: Box) -> bool:
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]


def _inside(box: Box, frame: Box) -> bool:
    return frame[0] <= box[0] and frame[1] <= box[1] and box[2] <= frame[2] and box[3] <= frame[3]


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
