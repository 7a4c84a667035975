"""The synthetic world of the embedded models: one `World` for each kind of task, in the table `WORLDS`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from tools.world import chat, choices, code, documents, math, sentences
from tools.world.rows import equal_weights, example_of, listed_weights, one_subset, tables

Weights = Callable[[], Mapping[str, float]]
Draw = Callable[[str, bool, Random], dict[str, Any]]


@dataclass(frozen=True)
class World:
    """The rows of one kind of task.

    weights() -> the share of each subset in the training data.
    draw(subset, held_out, random) -> one row: the columns of the task's data, and keys such as `_completion` that no
        sample shows.
    example(row) -> its texts, given and learnt in turn; for a task the prompts and the completions.
    has_task: whether `specbench run` has a task of these rows; others are for training only.
    """

    weights: Weights
    draw: Draw
    example: Callable[[dict[str, Any]], tuple[str, ...]]
    has_task: bool = True


def _of_task(name: str, weights: Weights, draw: Draw) -> World:
    """Returns the world of a task, whose own template makes the prompts."""
    return World(weights, draw, partial(example_of, name))


def _sums(task: str) -> World:
    return _of_task(task, partial(math.sums_weights, task), partial(math.sums_draw, task))


# The place of a task in this table seeds its held-out rows: append new tasks.
WORLDS = {
    "mgsm": _of_task("mgsm", partial(listed_weights, "math"), math.mgsm_draw),
    "drill": World(partial(one_subset, "drill"), math.drill_draw, math.drill_example, has_task=False),
    "gsm8k": _sums("gsm8k"),
    "mcot": _sums("mcot"),
    "msvamp": _sums("msvamp"),
    "csqa": _of_task("csqa", one_subset, choices.csqa_draw),
    "mmlu": _of_task("mmlu", lambda: choices.MMLU_WEIGHTS, choices.mmlu_draw),
    "humaneval": _of_task("humaneval", one_subset, code.humaneval_draw),
    "wmt": _of_task("wmt", lambda: sentences.WMT_WEIGHTS, sentences.wmt_draw),
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
