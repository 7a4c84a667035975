"""Rows of the embedded world for training: never those that are held out to be measured."""

from collections.abc import Sequence
from difflib import get_close_matches
from random import Random

from specbench.demo.world import WORLDS
from specbench.errors import ConfigError, nearest
from specbench.running.compose import stream_seed
from specbench.training.data_spec import DataSpec
from specbench.training.task_data import TaskPrompts

WORLD = "world:"
NUM_ROWS = 256  # of each subset, where no limit is given
MAX_DRAWS = 20  # for each row that is wanted: some subsets have few different ones


def world_subsets(names: Sequence[str]) -> list[str]:
    """The subsets of kinds of tasks. Raises ConfigError for an unknown one."""
    for name in names:
        if name not in WORLDS:
            choices = [task for task in WORLDS if is_measured(task)]
            alike = [f"{WORLD}{task}" for task in get_close_matches(name, choices, n=1, cutoff=0.5)]
            found = nearest("".join(alike), [f"{WORLD}{task}" for task in choices])
            raise ConfigError(f"data.tasks: '{WORLD}{name}' does not exist: {found}")
    return [subset for name in names for subset in WORLDS[name].weights()]


def is_measured(name: str) -> bool:
    """Whether a kind of tasks has a task of `specbench run`; drills are for training only."""
    return WORLDS[name].num_samples > 0


def world_prompts(spec: DataSpec, names: Sequence[str], seed: int) -> list[TaskPrompts]:
    """`limit` different rows of each subset that is asked for (fewer where there are none left)."""
    return [
        TaskPrompts(subset, f"{WORLD}{name}", drawn(name, subset, spec.limit or NUM_ROWS, seed))
        for name in names
        for subset in world_subsets([name])
        if spec.subsets is None or subset in spec.subsets
    ]


def drawn(name: str, subset: str, num_rows: int, seed: int) -> list[tuple[str, str | None]]:
    """Different training rows as prompt and answer; of a conversation the first turn."""
    world, random = WORLDS[name], Random(stream_seed(seed, "world", name, subset))
    found: dict[tuple[str, str | None], None] = {}
    for _ in range(MAX_DRAWS * num_rows):
        prompt, answer, *_ = world.example(world.draw(subset, False, random))
        found[prompt, answer] = None
        if len(found) == num_rows:
            break
    return list(found)
