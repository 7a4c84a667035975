"""Word problems with worked answers in the eleven languages of MGSM, other tasks' layouts of them, and bare sums.

A pair of numbers belongs to the training problems or to the held-out ones, in every language and for every operation: a
held-out problem has only steps whose pair of numbers was never trained on, nor shown in a worked step of training.
Pairs with a multiple of ten always belong to training, because worked steps contain them (14 × 3 = 30 + 12 = 42).
"""

from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from tools.world.rows import is_held_out, listed_weights, one_subset, tables

TELUGU_U = "\u0c41"  # the vowel sign that a plural loses before a case ending


@cache
def is_held_out_pair(first: int, second: int) -> bool:
    """Returns whether the pair (in either order) is kept out of training."""
    if first % 10 == 0 or second % 10 == 0:
        return False
    low, high = sorted((first, second))
    return is_held_out(str(low), str(high))


def _product(random: Random, largest: int) -> tuple[int, int]:
    while True:
        count, size = random.randint(2, 9), random.randint(11, 49)
        if size % 10 and count * size <= largest:
            return size, count


def numbers_of(steps: tuple[str, ...], random: Random) -> tuple[int, int, int]:
    """Returns the numbers a, b, c of a problem (c is 0 in a problem of one step)."""
    if steps == ("subtract",):
        first = random.randint(20, 99)
        return first, random.randint(3, first - 3), 0
    if steps in (("multiply",), ("divide",)):
        size, count = _product(random, 200)
        return (size * count if steps == ("divide",) else size), count, 0
    if steps == ("multiply", "add"):
        size, count = _product(random, 150)
        return size, count, random.randint(3, 49)
    first = random.randint(11, 79)
    second = random.randint(3, min(59, 99 - first))
    return first, second, random.randint(3, first + second - 3) if len(steps) == 2 else 0


def _step(operation: str, first: int, second: int) -> tuple[str, int, list[tuple[int, int]]]:
    """Returns the equation of a step as text, its result, and the pairs of numbers in its worked form."""
    tens, units = first // 10 * 10, first % 10
    if operation == "add" and not (units and second % 10):
        return f"{first} + {second} = {first + second}", first + second, []
    if operation == "add":
        parts = tens + second // 10 * 10, units + second % 10
        return f"{first} + {second} = {parts[0]} + {parts[1]} = {sum(parts)}", sum(parts), [parts]
    if operation == "subtract":
        result, parts = first - second, (first - second // 10 * 10, second % 10)
        if second < 10 or not parts[1]:
            return f"{first} - {second} = {result}", result, []
        return f"{first} - {second} = {parts[0]} - {parts[1]} = {result}", result, [parts]
    if operation == "divide":
        result = first // second
        whole = result // 10 * 10 * second
        way = f"({whole} + {first - whole}) ÷ {second} = {result // 10 * 10} + {result % 10}"
        return f"{first} ÷ {second} = {way} = {result}", result, [(whole, first - whole)]
    parts = tens * second, units * second
    return f"{first} × {second} = {parts[0]} + {parts[1]} = {sum(parts)}", sum(parts), [parts]


@dataclass(frozen=True)
class Solution:
    """The worked equations, the final number, the pairs of the problem, and those only in worked steps."""

    equations: list[str]
    number: int
    asked: list[tuple[int, int]]
    shown: list[tuple[int, int]]


def solve(steps: tuple[str, ...], a: int, b: int, c: int) -> Solution:
    """Solves a problem: one step on a and b, or a second one on its result and c."""
    equation, number, shown = _step(steps[0], a, b)
    if len(steps) == 1:
        return Solution([equation], number, [(a, b)], shown)
    second_equation, result, second_shown = _step(steps[1], number, c)
    return Solution([equation, second_equation], result, [(a, b), (number, c)], shown + second_shown)


def belongs(solution: Solution, held_out: bool) -> bool:
    """Returns whether a problem has only held-out pairs; or, for training, neither has nor shows any."""
    if held_out:
        return all(is_held_out_pair(*pair) for pair in solution.asked)
    return not any(is_held_out_pair(*pair) for pair in solution.asked + solution.shown)


def _counted(forms: str | list[str], number: int) -> str:
    """Returns the form of a noun after a number (Slavic rule: one, few, many)."""
    if isinstance(forms, str):
        return forms
    if number % 10 == 1 and number % 100 != 11:
        return forms[0]
    return forms[1] if number % 10 in (2, 3, 4) and number % 100 not in (12, 13, 14) else forms[2]


def render(
    language: str, kind: str, wording: int, name: str, objects: str | list[str], numbers: tuple[int, int, int]
) -> dict[str, Any]:
    """Returns one row with the answer, worked and as a number, and the pairs of numbers (asked, shown)."""
    entry = tables("math")["languages"][language]
    a, b, c = numbers
    solution = solve(tuple(tables("math")["kinds"][kind]["steps"]), a, b, c)
    plural = objects if isinstance(objects, str) else objects[-1]
    values = {
        "name": name, "a": a, "b": b, "c": c, "step": solution.equations[0], "step2": solution.equations[-1],
        "objects": plural, "objects_a": _counted(objects, a), "objects_stem": plural.removesuffix(TELUGU_U),
    }  # fmt: skip
    question = entry["kinds"][kind]["questions"][wording].format(**values)
    separator = "" if language in ("zh", "ja") else " "
    answer = entry["kinds"][kind]["answer"].format(**values) + separator + entry["conclusion"].format(n=solution.number)
    return {"subset": language, "question": question, "answer_number": solution.number, "answer": answer,
            "_completion": answer, "_key": question, "_kind": kind, "_asked": solution.asked,
            "_shown": solution.shown}  # fmt: skip


def mgsm_draw(language: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns one random row whose pairs of numbers are all held out, or all trained on."""
    entry = tables("math")["languages"][language]
    kind = random.choice(list(tables("math")["kinds"]))
    steps = tuple(tables("math")["kinds"][kind]["steps"])
    while True:
        numbers = numbers_of(steps, random)
        if belongs(solve(steps, *numbers), held_out):
            break
    wording = random.randrange(len(entry["kinds"][kind]["questions"]))
    return render(language, kind, wording, random.choice(entry["names"]), random.choice(entry["objects"]), numbers)


DRILL_OPERATIONS = ("add", "subtract", "multiply", "divide", "divide")  # division is the hardest to learn
NUM_SUMS = 6


def drill_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns a row of sums whose pairs all belong to training; drills are never held out."""
    assert not held_out, "drills are for training only"
    solutions: list[Solution] = []
    while len(solutions) < NUM_SUMS:
        steps = (random.choice(DRILL_OPERATIONS),)
        solution = solve(steps, *numbers_of(steps, random))
        if belongs(solution, held_out=False):
            solutions.append(solution)
    return {
        "subset": subset,
        "sums": [solution.equations[0] for solution in solutions],
        "_asked": [pair for solution in solutions for pair in solution.asked],
        "_shown": [pair for solution in solutions for pair in solution.shown],
    }


def drill_example(row: dict[str, Any]) -> tuple[str, ...]:
    """Returns given and learnt texts in turn: the left side of each sum, then its right side."""
    sides = [equation.split(" = ", 1) for equation in row["sums"]]
    return tuple(text for left, right in sides for text in (f" {left} =", f" {right}."))


def sums_weights(task: str) -> dict[str, float]:
    """Returns the share of each language in the training data of a task; MSVAMP has no Telugu, GSM8K is English."""
    if task == "gsm8k":
        return one_subset()
    return {name: share for name, share in listed_weights("math").items() if task != "msvamp" or name != "te"}


def sums_draw(task: str, subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    problem = mgsm_draw("en" if task == "gsm8k" else subset, held_out, random)
    question, worked, number = problem["question"], problem["answer"], problem["answer_number"]
    columns = {
        "gsm8k": {"question": question, "answer": f"{worked}\n#### {number}"},
        "mcot": {"question": question, "answer": worked, "lang-id": subset},
        "msvamp": {"m_query": question, "response": str(number)},
    }
    return {"subset": subset, **columns[task], "_completion": worked, "_key": question}
