"""Where the names of points stand, so that they cover neither each other nor a point."""

from collections.abc import Sequence
from dataclasses import dataclass

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
