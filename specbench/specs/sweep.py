"""`specbench run --sweep CONDITION=VALUE,VALUE`: the points of a sweep. Each is a change of the run's options, mostly a
pair of --set, under a name that users know."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.specs import yaml_files
from specbench.specs.run_options import RunOptions, flag_of

Value = str | int | float | bool
SWEEP = "sweep"  # the key of a row's request that has the point
SEED, CONTEXT = "seed", "context"
TEMPLATE = "template."  # before the name of a variable of the chat template
MOST_CONDITIONS = 2  # besides seeds: more would be neither a table nor a figure
SWITCH = ("on", "off")


@dataclass(frozen=True)
class Condition:
    """A condition of a run. `field`: the run option that it changes; `key`: the key of its KEY=VALUE pair, if the
    option holds pairs. `read`: returns a value as it is shown, or None for what is none. `words`: what the option is
    given for a value, if that is another word. `form`: how values are written."""

    field: Literal["overrides", "chat_template_args", "chat", "seed"]
    key: str = ""
    read: Callable[[Value], Value | None] = lambda value: value
    words: Mapping[Value, str] | None = None
    form: str = ""

    def change(self, options: RunOptions, value: Value) -> RunOptions:
        word = value if self.words is None else self.words[value]
        pairs = (*getattr(options, self.field), f"{self.key}={value_text(word)}") if self.key else ()
        changed: dict[str, Any] = {self.field: pairs if self.key else word}
        return replace(options, **changed)

    def given(self, options: RunOptions) -> str | None:
        """Returns the option by which a command sets the condition too; None if it does not."""
        value = getattr(options, self.field)
        if not self.key:
            return None if value == getattr(RunOptions, self.field) else f"{flag_of(self.field)} {value}"
        pairs = (pair for pair in value if pair.partition("=")[0].strip() == self.key)
        return next((f"{flag_of(self.field)} {pair}" for pair in pairs), None)


def _tokens(value: Value) -> Value | None:
    """Reads 2048 and 2k, which is 2048."""
    found = re.fullmatch(r"(\d{1,7})(k?)", str(value))
    return int(found[1]) * (1024 if found[2] else 1) if found else None


def _number(value: Value) -> Value | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _seed(value: Value) -> Value | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _switch(value: Value) -> Value | None:
    return value if value in SWITCH else None


CONDITIONS = {
    CONTEXT: Condition("overrides", "max_prompt_tokens", _tokens, form="numbers of tokens, such as 2k,4k,8k"),
    "temperature": Condition("overrides", "generation.temperature", _number, form="numbers, such as 0,0.6,1"),
    "chat": Condition("chat", "", _switch, dict(zip(SWITCH, ("always", "never"), strict=True)), "on,off"),
    "thinking": Condition(
        "chat_template_args", "enable_thinking", _switch, dict(zip(SWITCH, ("true", "false"), strict=True)), "on,off"
    ),
    SEED: Condition("seed", "", _seed, form="whole numbers, such as 0,1,2"),
}


def condition_of(name: str) -> Condition:
    """Returns a condition by its name: one of CONDITIONS, template.VARIABLE of the chat template, or a key of --set."""
    if name in CONDITIONS:
        return CONDITIONS[name]
    if name.startswith(TEMPLATE):
        return Condition("chat_template_args", name.removeprefix(TEMPLATE))
    return Condition("overrides", name)


@dataclass(frozen=True)
class Point:
    """A point of a sweep: the value of each condition."""

    values: Mapping[str, Value]

    @property
    def name(self) -> str:
        """The name of its folder, such as context=2048,temperature=0."""
        text = ",".join(f"{name}={value_text(value)}" for name, value in self.values.items())
        return re.sub(r"[^\w.=,+-]+", "_", text)

    def options(self, options: RunOptions) -> RunOptions:
        for name, value in self.values.items():
            options = condition_of(name).change(options, value)
        return options


def value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def read_points(sweeps: Sequence[str], options: RunOptions) -> list[Point]:
    """Returns the points of a sweep: all combinations of the values. `sweeps`: CONDITION=VALUE,VALUE each. `options`:
    those of the command. Raises ConfigError for what is not a sweep, and for a condition that the command sets too."""
    by_name: dict[str, list[Value]] = {}
    for text in sweeps:
        name, equals, listed = (part.strip() for part in text.partition("="))
        if not (name and equals and listed):
            names = ", ".join(CONDITIONS)
            raise ConfigError(
                f"--sweep {text}: write it as CONDITION=VALUE,VALUE, such as context=2k,4k; conditions: {names}, "
                "template.VARIABLE, or a key of --set"
            )
        if name in by_name:
            raise ConfigError(f"--sweep {text}: {name} is swept twice: give all its values at once")
        by_name[name] = _values(name, listed, f"--sweep {text}")
        if given := condition_of(name).given(options):
            raise ConfigError(f"--sweep {text}: {given} sets the same condition: remove one of them")
    others = [name for name in by_name if name != SEED]
    if len(others) > MOST_CONDITIONS:
        raise ConfigError(
            f"--sweep {', '.join(others)}: {counted(len(others), 'condition')}, but at most {MOST_CONDITIONS} besides "
            "seeds: measure the others in sweeps of their own"
        )
    return [Point(dict(zip(by_name, values, strict=True))) for values in product(*by_name.values())]


def _values(name: str, listed: str, where: str) -> list[Value]:
    condition = condition_of(name)
    values: list[Value] = []
    for given in yaml_files.parse(f"[{listed}]", where):
        value = None if isinstance(given, list | dict) or given is None else condition.read(given)
        if value is None:
            raise ConfigError(f"{where}: {given} is not a value of it: write {condition.form or 'words or numbers'}")
        if value in values:
            raise ConfigError(f"{where}: {given} is given twice: remove one")
        values.append(value)
    if len(values) < 2:
        raise ConfigError(f"{where}: has one value: give several, or set it with another option than --sweep")
    return values
