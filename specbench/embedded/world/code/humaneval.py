"""Short Python functions in the manner of HumanEval: a signature, an instruction with examples, a body that runs.

A function takes one or two steps (keep the numbers above 5, multiply each by 3) and returns a result of them (the sum).
What it does, in any wording, belongs to training or to the held-out functions; without a parameter, such as the sum of
the even numbers, always to training. Its checks fail for every function that differs in one parameter or lacks a step.
"""

import hashlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from specbench.embedded.world.code.functions import Function, Operation, differs, variants
from specbench.embedded.world.texts import example_of

HELD_OUT_PERCENT = 15
ONE_STEP_SHARE = 0.35
NUM_CHECKS = 5
NUM_TRIES = 6


@cache
def definition() -> dict[str, Any]:
    """The steps and results of `code.yaml`."""
    data: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("code.yaml").read_text(encoding="utf-8"))
    return data


def weights() -> dict[str, float]:
    """One subset."""
    return {"default": 1.0}


def is_held_out(function: Function) -> bool:
    """Whether the function is kept out of training."""
    if not any(operation.values for operation in (*function.steps, function.result)):
        return False
    return int.from_bytes(hashlib.sha256(function.key.encode()).digest()[:4]) % 100 < HELD_OUT_PERCENT


def draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """One random function with the columns of HumanEval. Its checks tell it from all its `variants`."""
    while True:
        function = random_function(random)
        if is_held_out(function) == held_out and (row := row_of(function, random)):
            return {"subset": subset, **row}


def random_function(random: Random) -> Function:
    """A function of one or two steps that never are of one group."""
    domain = random.choice(list(definition()["domains"]))
    entry = definition()["domains"][domain]
    letters = random.sample(definition()["letters"], 3)
    kinds = [random.choice(list(entry["steps"]))]
    if random.random() >= ONE_STEP_SHARE:
        group = entry["steps"][kinds[0]]["group"]
        kinds.append(random.choice([name for name, step in entry["steps"].items() if step["group"] != group]))
    steps = tuple(_operation(entry["steps"][kind], letters, random) for kind in kinds)
    result = _operation(entry["results"][random.choice(list(entry["results"]))], letters, random)
    return Function(entry["argument"], steps, result)


def _operation(entry: dict[str, Any], letters: list[str], random: Random) -> Operation:
    values: dict[str, Any] = {name: random.randint(*entry[name]) for name in ("n", "m") if name in entry}
    values |= {name: letter for name, letter in zip("abk", letters, strict=True) if f"{{{name}}}" in entry["name"]}
    says = entry["says"] if isinstance(entry["says"], list) else [entry["says"]]
    return Operation(entry["name"], tuple(says), entry.get("code"), entry.get("type"), tuple(values.items()))


def _telling_inputs(function: Function, random: Random) -> list[Any]:
    """Different arguments for the checks, an edge among them; empty when none are found that tell the function from all
    others and from a constant."""
    others = variants(function, definition()["letters"])
    for _ in range(NUM_TRIES):
        inputs = [_argument(function, random) for _ in range(NUM_CHECKS)]
        if function.variable != "number":
            inputs[-1] = type(inputs[-1])()
        results = [function.run(value) for value in inputs[:-1]]
        is_plain = inputs[0] in inputs[1:] or results.count(results[0]) == len(results)
        if not is_plain and all(differs(function, other, inputs) for other in others):
            return inputs
    return []


def _argument(function: Function, random: Random) -> Any:
    words = definition()["words"]
    if function.variable == "numbers":
        near = [value + by for _, value in function.numbers for by in (-1, 0, 1, value)]
        return [random.choice([random.randint(0, 15), *near]) for _ in range(random.randint(3, 6))]
    if function.variable == "words":
        return random.sample(words, random.randint(3, 6))
    return " ".join(random.sample(words, 2)) if function.variable == "text" else random.randint(13, 50)


def row_of(function: Function, random: Random) -> dict[str, Any]:
    """The columns of HumanEval for a function; empty where no arguments are found that tell it from its variants."""
    if not (inputs := _telling_inputs(function, random)):
        return {}
    candidates = [_argument(function, random) for _ in range(4)]
    shown = sorted(candidates, key=lambda value: not function.run(value))[: random.choice((1, 1, 2))]
    examples = "".join(f"    >>> {function.name}({value!r})\n    {function.run(value)!r}\n" for value in shown)
    prompt = f'{function.signature}    """{function.instruction(random)}\n\n{examples}    """\n'
    checks = "".join(f"    assert candidate({value!r}) == {function.run(value)!r}\n" for value in inputs)
    return {"task_id": f"demo/{function.name}", "prompt": prompt, "canonical_solution": function.body + "\n",
            "test": f"\n\ndef check(candidate):\n{checks}", "entry_point": function.name,
            "_completion": function.body, "_key": function.key}  # fmt: skip


def example(row: dict[str, Any]) -> tuple[str, ...]:
    """The prompt exactly as `tasks/humaneval.yaml` renders it, and the body."""
    return example_of("humaneval", row)
