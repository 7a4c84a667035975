"""Functions made of steps and a result: their texts, their running, and the functions that are nearly the same."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any


@dataclass(frozen=True)
class Operation:
    """A step or a result with the values of its parameters; `code` is an expression over the domain's variable."""

    name: str
    says: tuple[str, ...]
    code: str | None
    type: str | None
    values: tuple[tuple[str, Any], ...]

    def fill(self, template: str) -> str:
        """The template with the parameters in their places."""
        return template.format(**dict(self.values))


@dataclass(frozen=True)
class Function:
    """What a function does: its argument, such as `numbers: list`, its steps in order, and its result."""

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
        """A name that says what it does, such as `above_5_times_3_sum`."""
        return "_".join(operation.fill(operation.name) for operation in self.operations)

    @property
    def key(self) -> str:
        """What it does, the same in every wording."""
        return f"{self.variable}:{self.name}"

    @property
    def numbers(self) -> list[tuple[str, int]]:
        """Its parameters that are numbers."""
        return [(name, value) for one in self.operations for name, value in one.values if isinstance(value, int)]

    @property
    def signature(self) -> str:
        return f"def {self.name}({self.argument}) -> {self.result.type}:\n"

    @property
    def body(self) -> str:
        """The indented body: a line for each step, and the return, which a result without code has from the last."""
        lines = [step.fill(step.code or "") for step in self.steps]
        returned = self.result.fill(self.result.code) if self.result.code else lines.pop()
        return "\n".join([*(f"    {self.variable} = {line}" for line in lines), f"    return {returned}"])

    def instruction(self, random: Random) -> str:
        """One sentence in one of its wordings."""
        *parts, last = [operation.fill(random.choice(operation.says)) for operation in self.operations]
        text = f"{', '.join(parts)} and {last}."
        return text[0].upper() + text[1:]

    @cached_property
    def run(self) -> Any:
        """The function itself."""
        space: dict[str, Any] = {}
        exec(f"def run({self.argument}):\n{self.body}", space)
        return space["run"]


def variants(function: Function, letters: Sequence[str]) -> list[Function]:
    """The functions that differ in one parameter (a number by one, a letter by the next), or lack a step."""
    found = []
    for index, operation in enumerate(function.operations):
        for place, (name, value) in enumerate(operation.values):
            others = [value - 1, value + 1] if isinstance(value, int) else [letters[letters.index(value) - 1]]
            for other in others:
                values = (*operation.values[:place], (name, other), *operation.values[place + 1 :])
                found.append(_with(function, index, replace(operation, values=values)))
    shorter = [function.steps[:index] + function.steps[index + 1 :] for index in range(len(function.steps))]
    return found + [replace(function, steps=steps) for steps in shorter if steps or function.result.code]


def _with(function: Function, index: int, operation: Operation) -> Function:
    if index == len(function.steps):
        return replace(function, result=operation)
    return replace(function, steps=(*function.steps[:index], operation, *function.steps[index + 1 :]))


def differs(function: Function, other: Function, inputs: Sequence[Any]) -> bool:
    """Whether the two return different values for one of the arguments; an error is different."""
    try:
        return any(function.run(value) != other.run(value) for value in inputs)
    except (ZeroDivisionError, ValueError):
        return True
