"""The token ids of both sides, prompt by prompt."""

from collections.abc import Mapping
from dataclasses import dataclass

from specbench.running.records import Key, Record


@dataclass(frozen=True)
class Outputs:
    """Keys of records with equal outputs, and of those whose outputs differ first. Later turns follow other answers,
    are not compared, and in neither."""

    equal: list[Key]
    different: list[Key]


def compare_outputs(baseline: Mapping[Key, Record], candidate: Mapping[Key, Record], method: str) -> Outputs:
    """Both sides: the same keys, the turns of an example in their order."""
    found = Outputs([], [])
    parted: set[Key] = set()
    for key in sorted(baseline):
        first, second = (side[key]["methods"][method]["token_ids"] for side in (baseline, candidate))
        place: Key = (*key[:4], 0)
        if place in parted:
            continue
        if first == second:
            found.equal.append(key)
        else:
            parted.add(place)
            found.different.append(key)
    return found
