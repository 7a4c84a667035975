"""Compares a pass over a draft tree with one bare pass of transformers over as many tokens, in one process, on a CPU.

The bare pass reads the same tokens with the same mask and positions, which are made before the clock starts; the side
of specbench makes them, and moves the accepted path afterwards. Both follow the same cached text. The pairs are
interleaved in alternating order; a ratio is the median over pairs, with a bootstrap interval, of wall-clock time and
of CPU time. The third row has the medians in milliseconds.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from transformers import DynamicCache

from specbench.core.table import Table, number_columns, text_columns
from specbench.decoding.tree_shape import USUAL_CHANCES, best_shape
from specbench.models.causal_lm import CausalLM
from specbench.models.kv_cache import by_layer_type, cache_parameter, tree_inputs
from specbench.models.loading import load_model
from specbench.models.scoring import PassShape
from specbench.results.metric_format import with_interval
from specbench.statistics.bootstrap import Resampler

DEPTH = 5
ACCEPTED = 3  # nodes of the accepted path
WANTED = 1.15


class Step:
    """One decoding step behind a cached text: a tree of `num_tokens` − 1 nodes after the last token of `ids`."""

    def __init__(self, model: CausalLM, num_tokens: int, num_cached: int) -> None:
        self.model = model
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(0, model.vocab_size, (num_cached + num_tokens,), generator=generator).tolist()
        self.ids, self.tree_ids = drawn[: num_cached + 1], drawn[num_cached + 1 :]
        self.parents = best_shape(USUAL_CHANCES, num_tokens - 1, DEPTH).parents
        self.path = next(
            path for node in reversed(range(num_tokens - 1)) if len(path := self.path_to(node)) == ACCEPTED
        )
        num_columns = num_cached + num_tokens
        positions, masks = tree_inputs(
            model.model, {False}, num_cached + 1, self.parents, num_cached, num_tokens, num_columns
        )
        self.cache = DynamicCache()
        cached = {cache_parameter(model.model.forward): self.cache}
        self.given = {
            "position_ids": positions[None], "attention_mask": by_layer_type(masks), **cached
        }  # fmt: skip
        with torch.inference_mode():
            model.model(input_ids=torch.tensor([self.ids[:-1]]), **cached)
        model.score(self.ids[:-1], 1)

    def path_to(self, node: int) -> list[int]:
        return [] if node < 0 else [*self.path_to(self.parents[node]), node]

    def tree(self) -> torch.Tensor:
        return self.model.score_tree(self.ids, self.tree_ids, self.parents, len(self.tree_ids) + 1).logits

    def keep(self) -> None:
        self.model.keep_path(self.path)

    @torch.inference_mode()
    def bare(self) -> torch.Tensor:
        logits: torch.Tensor = self.model.model(
            input_ids=torch.tensor([[self.ids[-1], *self.tree_ids]]), **self.given
        ).logits[0]
        return logits

    def rewind(self) -> None:
        self.model.rollback(len(self.ids) - 1)
        self.cache.crop(len(self.ids) - 1 - self.cache.get_seq_length())


def timed(side: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    side()
    return time.perf_counter() - wall, time.process_time() - cpu


def measure(step: Step, num_pairs: int) -> np.ndarray:
    """Returns the wall-clock and CPU seconds of the tree pass, of the move of its path, and of the bare pass:
    [num_pairs, 3, 2]."""
    found = np.zeros((num_pairs, 3, 2))
    for number in range(-5, num_pairs):  # the first five warm up
        for bare in (False, True) if number % 2 else (True, False):
            seconds = [timed(step.bare)] if bare else [timed(step.tree), timed(step.keep)]
            step.rewind()
            if number >= 0:
                found[number, 2:] = seconds if bare else found[number, 2:]
                found[number, :2] = found[number, :2] if bare else seconds
    return found


def median_ratio(own: np.ndarray, other: np.ndarray) -> str:
    rounds = Resampler.of_units(len(own), seed=0)
    return with_interval(rounds.of_resamples(rounds.medians(own / other)), 3)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench_trees", description=__doc__)
    parser.add_argument("--target", default="embedded:target")
    parser.add_argument("--engine", default="eager", choices=("eager", "compiled"))
    parser.add_argument("--tokens", type=int, default=26, help="tokens per pass: the last of the text and the nodes")
    parser.add_argument("--cached", type=int, default=100, help="tokens of the cached text")
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = load_model(given.target, device="cpu", engine=given.engine)
    if model.static is not None:
        model.static.reserve(
            given.cached + given.tokens, (1,), shapes=[PassShape(given.tokens, "tree")], progress=print
        )
    step = Step(model, given.tokens, given.cached)
    difference = float((step.tree() - step.bare()).abs().max())
    step.rewind()
    found = measure(step, given.pairs)
    own, other = found[:, 0] + found[:, 1], found[:, 2]
    tree, keep, bare = 1000 * np.median(found[:, :, 0], axis=0)
    rows = [
        *([f"tree pass and move, {name}", f"≤ {WANTED}", median_ratio(own[:, column], other[:, column])]
          for column, name in enumerate(("wall-clock time", "CPU time"))),
        ["tree pass, move, bare pass: ms", "", f"{tree:.2f}, {keep:.2f}, {bare:.2f}"],
        ["largest difference of logits", "", f"{difference:.1g}"],
    ]  # fmt: skip
    title = f"{given.engine} ÷ bare pass over {given.tokens} tokens"
    Console(width=100).print(
        Table(title, [*text_columns("comparison", "wanted"), *number_columns("ratio [95 %]")], rows)
    )


if __name__ == "__main__":
    main()
