"""Answers of a server and of this process to the same prompts: how many are equal, and where they first differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from specbench.core.console import counted
from specbench.results.verdict import first_difference
from specbench.running.records import EMITTED, Generation, Record


@dataclass(frozen=True)
class Agreement:
    """`num_equal` of `num_answers` pairs have the same tokens; `num_same_steps` of the `num_with_steps` pairs whose
    steps both sides know have as many tokens in each. `differences`: the first one of each subset."""

    num_answers: int
    num_equal: int
    num_with_steps: int
    num_same_steps: int
    differences: tuple[str, ...]


def agreement_of(records: Sequence[Record], first: Sequence[Generation], second: Sequence[Generation]) -> Agreement:
    """Returns the agreement of pairs of answers. Steps are compared by their emitted tokens: engines count drafted
    tokens after the drafter's end token, and an accepted end token, in several ways."""
    answers, steps = [], []
    differences: dict[str, str] = {}
    for record, own, other in zip(records, first, second, strict=True):
        tokens_differ, steps_differ = _answers_differ(own["token_ids"], other["token_ids"]), None
        answers.append(tokens_differ)
        if own["steps"] and other["steps"]:
            steps_differ = _steps_differ(own["steps"], other["steps"])
            steps.append(steps_differ)
        if found := steps_differ or tokens_differ:
            differences.setdefault(record["subset"], f"{record['subset']} example {record['example']}, {found}")
    return Agreement(
        len(answers), answers.count(None), len(steps), steps.count(None), tuple(differences.values())
    )  # fmt: skip


def _answers_differ(own: Sequence[int], other: Sequence[int]) -> str | None:
    place = first_difference(own, other)
    if place is None:
        return None
    tokens = ("its end" if place == len(ids) else f"token {ids[place]}" for ids in (own, other))
    return f"position {place}: {' ≠ '.join(tokens)}"


def _steps_differ(own: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> str | None:
    for number, pair in enumerate(zip_longest(own, other)):
        sizes = ["no step" if step is None else counted(step[EMITTED], "token") for step in pair]
        if sizes[0] != sizes[1]:
            return f"step {number}: {' ≠ '.join(sizes)}"
    return None


def agreement_lines(found: Agreement) -> list[str]:
    """Returns the lines of a caption."""
    steps = (
        f"{found.num_same_steps} of {found.num_with_steps} have as many tokens in each step"
        if found.num_with_steps
        else "steps are not compared, since one side does not know them"
    )
    lines = [f"{found.num_equal} of {counted(found.num_answers, 'answer')} have the same tokens; {steps}"]
    return lines + [f"first difference (first ≠ second): {where}" for where in found.differences]
