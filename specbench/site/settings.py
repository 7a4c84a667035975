"""What tells groups of rows apart that would have one name: temperature, seed, models, machine."""

from collections.abc import Sequence

from specbench.leaderboards.comparable import conditions
from specbench.results.cells import NULL
from specbench.results.row import Row

MOST = 40  # characters of a value


def settings_apart(rows: Sequence[Row], names: Sequence[str]) -> list[list[str]]:
    """Of a row of each group the conditions by which it is another than those of its name, as few as tell them all
    apart."""
    same: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        same.setdefault(name, []).append(number)
    found: list[list[str]] = [[] for _ in rows]
    for numbers in same.values():
        own = [conditions(rows[number]) for number in numbers]
        chosen: list[str] = []
        for name in dict.fromkeys(name for each in own for name in each):
            if _num_apart(own, [*chosen, name]) > _num_apart(own, chosen):
                chosen.append(name)
        for number, each in zip(numbers, own, strict=True):
            found[number] = [_words(name, each.get(name)) for name in chosen]
    return found


def _num_apart(own: Sequence[dict[str, object]], names: Sequence[str]) -> int:
    return len({repr([each.get(name) for name in names]) for each in own})  # values may be mappings


def _words(name: str, value: object) -> str:
    """A condition as a reader says it: "temperature 0.5", "n = 8"."""
    text = NULL if value is None else f"{value:g}" if isinstance(value, float) else f"{value}"[:MOST]
    return f"n = {text}" if name == "n" else f"{name.rpartition('.')[2].replace('_', ' ')} {text}"
