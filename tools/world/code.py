"""Short Python functions like those of HumanEval: a signature, an instruction with examples, a body that runs.

A function has one or two steps (keep the numbers above 5, multiply each by 3) and returns a result of them (the sum).
Its behaviour, in any wording, belongs to training or to the held-out functions; without a parameter, such as the sum of
the even numbers, always to training. Its checks fail for every function that differs in one parameter or lacks a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any

from tools.world.rows import is_held_out_text, tables


@dataclass(frozen=True)
class Operation:
    """A step or a result with the values of its parameters; `code` is an expression over the domain's variable."""

    name: str
    says: tuple[str, ...]
    code: str | None
    type: str | None
    values: tuple[tuple[str, Any], ...]

    def fill(self, template: str) -> str:
        return template.format(**dict(self.values))


@dataclass(frozen=True)
class Function:
    """A function: its argument, such as `numbers: list`, its steps in order, and its result."""

    argument: str
    steps: tuple[Operation, ...]
    result: Operation

    @property
    def variable(self) -> str:
        return self.argument.split(":")[0]

    @property
    def operations(self) -> tuple[Operation, ...]:
        return *self.steps, self.result

    @property
    def name(self) -> str:
        """Returns a descriptive name, such as `above_5_times_3_sum`."""
        return "_".join(operation.fill(operation.name) for operation in self.operations)

    @property
    def key(self) -> str:
        """Returns the function's behaviour, which is the same in every wording."""
        return f"{self.variable}:{self.name}"

    @property
    def numbers(self) -> list[tuple[str, int]]:
        return [(name, value) for one in self.operations for name, value in one.values if isinstance(value, int)]

    @property
    def signature(self) -> str:
        return f"def {self.name}({self.argument}) -> {self.result.type}:\n"

    @property
    def body(self) -> str:
        """Returns the indented body: a line for each step, and the return."""
        lines = [step.fill(step.code or "") for step in self.steps]
        returned = self.result.fill(self.result.code) if self.result.code else lines.pop()
        return "\n".join([*(f"    {self.variable} = {line}" for line in lines), f"    return {returned}"])

    def instruction(self, random: Random) -> str:
        *parts, last = [operation.fill(random.choice(operation.says)) for operation in self.operations]
        text = f"{', '.join(parts)} and {last}."
        return text[0].upper() + text[1:]

    @cached_property
    def run(self) -> Any:
        space: dict[str, Any] = {}
        exec(f"def run({self.argument}):\n{self.body}", space)
        return space["run"]


def variants(function: Function, letters: Sequence[str]) -> list[Function]:
    """Returns the functions that differ in one parameter (a number by one, a letter by the next), or lack a step."""
    found = []
    for index, operation in enumerate(function.operations):
        for place, (name, value) in enumerate(operation.values):
            others = [value - 1, value + 1] if isinstance(value, int) else [letters[letters.index(value) - 1]]
            for other in others:
                values = (*operation.values[:place], (name, other), *operation.values[place + 1 :])
                operations = list(function.operations)
                operations[index] = replace(operation, values=values)
                found.append(replace(function, steps=tuple(operations[:-1]), result=operations[-1]))
    shorter = [function.steps[:index] + function.steps[index + 1 :] for index in range(len(function.steps))]
    return found + [replace(function, steps=steps) for steps in shorter if steps or function.result.code]


def differs(function: Function, other: Function, inputs: Sequence[Any]) -> bool:
    """Returns whether the two return different values for one of the arguments; an error counts as different."""
    try:
        return any(function.run(value) != other.run(value) for value in inputs)
    except (ZeroDivisionError, ValueError):
        return True


ONE_STEP_SHARE = 0.35
NUM_CHECKS = 5
NUM_TRIES = 6


def is_held_out_function(function: Function) -> bool:
    if not any(operation.values for operation in (*function.steps, function.result)):
        return False
    return is_held_out_text(function.key)


def humaneval_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns one random function with the columns of HumanEval. Its checks distinguish it from all its `variants`."""
    while True:
        function = random_function(random)
        if is_held_out_function(function) == held_out and (row := function_row(function, random)):
            return {"subset": subset, **row}


def random_function(random: Random) -> Function:
    """Returns a function of one or two steps of different groups."""
    domain = random.choice(list(tables("code")["domains"]))
    entry = tables("code")["domains"][domain]
    letters = random.sample(tables("code")["letters"], 3)
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
    """Returns different arguments for the checks, including an edge case; empty if none are found that distinguish the
    function from all others and from a constant."""
    others = variants(function, tables("code")["letters"])
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
    words = tables("code")["words"]
    if function.variable == "numbers":
        near = [value + by for _, value in function.numbers for by in (-1, 0, 1, value)]
        return [random.choice([random.randint(0, 15), *near]) for _ in range(random.randint(3, 6))]
    if function.variable == "words":
        return random.sample(words, random.randint(3, 6))
    return " ".join(random.sample(words, 2)) if function.variable == "text" else random.randint(13, 50)


def function_row(function: Function, random: Random) -> dict[str, Any]:
    """Returns the columns of HumanEval for a function; empty if no arguments distinguish it from its variants."""
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
