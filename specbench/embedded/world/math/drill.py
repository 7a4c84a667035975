"""Bare sums for training only: the arithmetic of the word problems without the words, many to a text."""

from random import Random
from typing import Any

from specbench.embedded.world.math import mgsm

OPERATIONS = ("add", "subtract", "multiply", "divide", "divide")  # division is the hardest to learn
NUM_SUMS = 6


def weights() -> dict[str, float]:
    """One subset; its weight is the share of drills beside the word problems."""
    return {"drill": 1.0}


def draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """A row of sums whose pairs all belong to training; drills are never held out."""
    assert not held_out, "drills are for training only"
    solutions: list[mgsm.Solution] = []
    while len(solutions) < NUM_SUMS:
        steps = (random.choice(OPERATIONS),)
        solution = mgsm.solve(steps, *mgsm.numbers_of(steps, random))
        if mgsm.belongs(solution, held_out=False):
            solutions.append(solution)
    return {
        "subset": subset,
        "sums": [solution.equations[0] for solution in solutions],
        "_asked": [pair for solution in solutions for pair in solution.asked],
        "_shown": [pair for solution in solutions for pair in solution.shown],
    }


def example(row: dict[str, Any]) -> tuple[str, ...]:
    """Given and learnt texts in turn: the left side of each sum, then its right side."""
    return tuple(text for equation in row["sums"] for text in _sides(equation))


def _sides(equation: str) -> tuple[str, str]:
    left, right = equation.split(" = ", 1)
    return f" {left} =", f" {right}."
