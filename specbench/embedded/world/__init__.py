"""The synthetic world of the embedded models: one `World` for each kind of task, in the table `WORLDS`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from specbench.embedded.world import chat, choices, code, documents, math, sentences
from specbench.embedded.world.rows import equal_weights, example_of, listed_weights, one_subset, tables

SEED_STRIDE, MAX_DRAWS = 100, 10_000
Weights = Callable[[], Mapping[str, float]]
Draw = Callable[[str, bool, Random], dict[str, Any]]


@dataclass(frozen=True)
class World:
    """The rows of one kind of task.

    weights() -> the share of each subset in the training data.
    draw(subset, held_out, random) -> one row: the columns of the task's data, and keys such as `_completion` that no
        sample shows.
    example(row) -> its texts, given and learnt in turn; for a task the prompts and the completions.
    num_samples, num_evaluated: the held-out rows of each subset that are bundled, and that the build evaluates.
    """

    weights: Weights
    draw: Draw
    example: Callable[[dict[str, Any]], tuple[str, ...]]
    num_samples: int = 12
    num_evaluated: int = 16


def _of_task(name: str, weights: Weights, draw: Draw, num_samples: int = 12, num_evaluated: int = 16) -> World:
    """Returns the world of a task, whose own template makes the prompts."""
    return World(weights, draw, partial(example_of, name), num_samples, num_evaluated)


def _sums(task: str) -> World:
    return _of_task(task, partial(math.sums_weights, task), partial(math.sums_draw, task))


# The place of a task in this table seeds its held-out rows: append new tasks.
WORLDS = {
    "mgsm": _of_task("mgsm", partial(listed_weights, "math"), math.mgsm_draw, num_samples=24, num_evaluated=64),
    "drill": World(partial(one_subset, "drill"), math.drill_draw, math.drill_example, num_samples=0, num_evaluated=0),
    "gsm8k": _sums("gsm8k"),
    "mcot": _sums("mcot"),
    "msvamp": _sums("msvamp"),
    "csqa": _of_task("csqa", one_subset, choices.csqa_draw),
    "mmlu": _of_task("mmlu", lambda: choices.MMLU_WEIGHTS, choices.mmlu_draw),
    "humaneval": _of_task("humaneval", one_subset, code.humaneval_draw, num_samples=24, num_evaluated=64),
    "wmt": _of_task("wmt", lambda: sentences.WMT_WEIGHTS, sentences.wmt_draw, num_samples=16),
    "iwslt14": _of_task("iwslt14", partial(one_subset, "de-en"), sentences.iwslt14_draw),
    "low_resource_mt": _of_task("low_resource_mt", partial(one_subset, "x-demo"), sentences.low_resource_draw),
    "dolly": _of_task("dolly", partial(listed_weights, "dolly"), chat.dolly_draw),
    "webtext": World(lambda: sentences.WEBTEXT_WEIGHTS, sentences.webtext_draw, sentences.webtext_example),
    "cnn_dm": _of_task("cnn_dm", one_subset, documents.cnn_dm_draw),
    "mlsum": _of_task("mlsum", lambda: equal_weights(tables("mlsum")), documents.mlsum_draw),
    "scrolls": _of_task("scrolls", lambda: equal_weights(documents.SCROLLS_KINDS), documents.scrolls_draw),
    "story": _of_task("story", partial(listed_weights, "story"), documents.story_draw),
    "spec_bench": _of_task("spec_bench", lambda: chat.SPEC_BENCH_WEIGHTS, chat.spec_bench_draw),
    "mt_bench": _of_task("mt_bench", lambda: equal_weights(chat.TALK_KINDS), chat.mt_bench_draw),
    "multilingual_spec_bench": _of_task(
        "multilingual_spec_bench", lambda: chat.MULTILINGUAL_WEIGHTS, chat.multilingual_draw
    ),
}


def training_rows(
    worlds: Mapping[str, float], num_rows: int, random: Random, mix_power: float = 1.0
) -> list[dict[str, Any]]:
    """Returns `num_rows` rows drawn by the shares of the worlds and, inside a world, by weight ** mix_power of the
    subsets."""
    choices, shares = [], []
    for name, share in worlds.items():
        weights = {subset: weight**mix_power for subset, weight in WORLDS[name].weights().items()}
        choices += [(name, subset) for subset in weights]
        shares += [share * weight / sum(weights.values()) for weight in weights.values()]
    drawn = random.choices(choices, weights=shares, k=num_rows)
    return [{"task": name, **WORLDS[name].draw(subset, False, random)} for name, subset in drawn]


def held_out_rows(task: str, num_per_subset: int, seed: int) -> list[dict[str, Any]]:
    """Returns `num_per_subset` different held-out rows for each subset of a task, with ids such as `en-0`.

    Every task has its own draws, seeded by its place in the table; otherwise the tasks of a family would have the same
    rows. Raises ValueError if the world has fewer different rows.
    """
    random = Random(seed + SEED_STRIDE * list(WORLDS).index(task))
    rows: list[dict[str, Any]] = []
    for subset in WORLDS[task].weights():
        different: dict[str, dict[str, Any]] = {}
        for _ in range(MAX_DRAWS):
            if len(different) == num_per_subset:
                break
            row = WORLDS[task].draw(subset, True, random)
            different.setdefault(row["_key"], row)
        else:
            raise ValueError(f"task {task}, subset {subset}: {num_per_subset} different held-out rows were asked for, "
                             f"{MAX_DRAWS} draws gave {len(different)}; ask for fewer")  # fmt: skip
        rows += [{**row, "task": task, "id": f"{subset}-{number}"} for number, row in enumerate(different.values())]
    return rows
