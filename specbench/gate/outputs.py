"""The token ids of both sides, prompt by prompt, and what follows from them."""

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


FOLLOWS = {"text": ("text",), "finish": ("finish",), "scores": ("score", "scores", "statistics")}


def changed_with_equal_tokens(
    baseline: Mapping[Key, Record], candidate: Mapping[Key, Record], outputs: Outputs, method: str
) -> dict[str, list[Key]]:
    """Returns by text, finish and scores the records in which it changed although the token ids are equal. All three
    follow from the token ids: a change is one of the decoding of text, the stop rules or the scorer, or an edit."""
    sides = {key: [side[key]["methods"][method] for side in (baseline, candidate)] for key in outputs.equal}
    found = {
        what: [key for key, (first, second) in sides.items() if any(first.get(n) != second.get(n) for n in names)]
        for what, names in FOLLOWS.items()
    }
    return {what: keys for what, keys in found.items() if keys}
