"""The synthetic world: one module per kind of task, each a `World` in the table below."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from types import ModuleType
from typing import Any

from specbench.embedded.world import dolly, story, webtext
from specbench.embedded.world.chat import tasks as chat
from specbench.embedded.world.choices import csqa, mmlu
from specbench.embedded.world.code import humaneval
from specbench.embedded.world.documents import cnn_dm, mlsum, scrolls
from specbench.embedded.world.math import drill, mgsm
from specbench.embedded.world.math import tasks as sums
from specbench.embedded.world.translation import iwslt14, low_resource, wmt

SEED_STRIDE, MAX_DRAWS = 100, 10_000


@dataclass(frozen=True)
class World:
    """What the build asks of a kind of task.

    `weights()` is the share of each subset in the training data; `draw(subset, held_out, random)` gives one row: the
    columns of the task's data, and keys such as `_completion` that no sample shows; `example(row)` its texts, given and
    learnt in turn: for a task the prompts and the completions. `num_samples` and `num_evaluated`: held-out rows of each
    subset that are bundled, and that the build's log tells about.
    """

    weights: Callable[[], dict[str, float]]
    draw: Callable[[str, bool, Random], dict[str, Any]]
    example: Callable[[dict[str, Any]], tuple[str, ...]]
    num_samples: int = 12
    num_evaluated: int = 16


def _world(module: ModuleType, num_samples: int = 12, num_evaluated: int = 16) -> World:
    return World(module.weights, module.draw, module.example, num_samples, num_evaluated)


def _sums(task: str) -> World:
    return World(partial(sums.weights, task), partial(sums.draw, task), partial(sums.example, task))


WORLDS = {
    "mgsm": _world(mgsm, num_samples=24, num_evaluated=64),
    "drill": _world(drill, num_samples=0, num_evaluated=0),
    "gsm8k": _sums("gsm8k"),
    "mcot": _sums("mcot"),
    "msvamp": _sums("msvamp"),
    "csqa": _world(csqa),
    "mmlu": _world(mmlu),
    "humaneval": _world(humaneval, num_samples=24, num_evaluated=64),
    "wmt": _world(wmt, num_samples=16),
    "iwslt14": _world(iwslt14),
    "low_resource_mt": _world(low_resource),
    "dolly": _world(dolly),
    "webtext": _world(webtext),
    "cnn_dm": _world(cnn_dm),
    "mlsum": _world(mlsum),
    "scrolls": _world(scrolls),
    "story": _world(story),
    "spec_bench": World(chat.spec_bench_weights, chat.spec_bench_draw, chat.spec_bench_example),
    "mt_bench": World(chat.mt_bench_weights, chat.mt_bench_draw, chat.mt_bench_example),
    "multilingual_spec_bench": World(chat.multilingual_weights, chat.multilingual_draw, chat.multilingual_example),
}


def training_rows(
    worlds: Mapping[str, float], num_rows: int, random: Random, mix_power: float = 1.0
) -> list[dict[str, Any]]:
    """`num_rows` rows drawn by the shares of the worlds and, inside a world, by weight ** mix_power of the subsets."""
    choices, shares = [], []
    for name, share in worlds.items():
        weights = {subset: weight**mix_power for subset, weight in WORLDS[name].weights().items()}
        choices += [(name, subset) for subset in weights]
        shares += [share * weight / sum(weights.values()) for weight in weights.values()]
    drawn = random.choices(choices, weights=shares, k=num_rows)
    return [{"task": name, **WORLDS[name].draw(subset, False, random)} for name, subset in drawn]


def held_out_rows(task: str, num_per_subset: int, seed: int) -> list[dict[str, Any]]:
    """`num_per_subset` different held-out rows for each subset of a task, with ids such as `en-0`.

    Every task has draws of its own, by its place in the table (new tasks come last): those of a family would have the
    same rows otherwise. A ValueError where the world has fewer different rows."""
    random = Random(seed + SEED_STRIDE * list(WORLDS).index(task))
    rows: list[dict[str, Any]] = []
    for subset in WORLDS[task].weights():
        different = _different(task, subset, num_per_subset, random)
        rows += [{**row, "task": task, "id": f"{subset}-{number}"} for number, row in enumerate(different)]
    return rows


def _different(task: str, subset: str, num_rows: int, random: Random) -> list[dict[str, Any]]:
    """Held-out rows of a subset with `num_rows` different keys."""
    rows: dict[str, dict[str, Any]] = {}
    for _ in range(MAX_DRAWS):
        if len(rows) == num_rows:
            return list(rows.values())
        row = WORLDS[task].draw(subset, True, random)
        rows.setdefault(row["_key"], row)
    raise ValueError(f"task {task}, subset {subset}: {num_rows} different held-out rows were asked for, {MAX_DRAWS} "
                     f"draws gave {len(rows)}; ask for fewer")  # fmt: skip
