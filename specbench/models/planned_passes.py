"""The time that a measurement of passes still takes: a rehearsal counts its passes, and those made so far time them."""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from specbench.models.eager import common_prefix
from specbench.models.meters import Clock, PassLog
from specbench.models.scoring import Output, ScoringModel

NUM_LOGITS = 2  # of a rehearsal, whose logits are all 0


class Rehearsal(ScoringModel):
    """Stands in for a model that caches one sequence: it logs the length of each pass, and makes none."""

    def __init__(self) -> None:
        self.passes = PassLog(Clock(torch.device("cpu")))
        self._cached: list[int] = []
        self._tree: list[int] = []

    def reset(self) -> None:
        self._cached = []

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        return self._read(ids, 0, num_logits)

    def score_tree(self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int) -> Output:
        self._tree = tree_ids
        return self._read(ids, len(tree_ids), num_logits)

    def keep_path(self, path: Sequence[int]) -> None:
        self._cached = [*self._cached, *(self._tree[node] for node in path)]

    def _read(self, ids: list[int], num_nodes: int, num_logits: int) -> Output:
        """Reads what is not cached, and the tokens whose logits are asked for anew."""
        first = min(common_prefix(self._cached, ids), len(ids) + num_nodes - num_logits)
        self.passes.add(len(ids) + num_nodes - first, 0.0, 0.0)
        self._cached = list(ids)
        return Output(torch.zeros(num_logits, NUM_LOGITS))


class TimeLeft:
    """The seconds that the rest of some passes takes. `planned`: the length of each pass from now on. `log`: the passes
    as they are made."""

    def __init__(self, planned: Sequence[int], log: PassLog) -> None:
        self._planned, self._log = Counter(planned), log
        self._first, self._started = log.num_passes, time.monotonic()

    def seconds(self) -> float | None:
        """Returns the seconds left, by the means of the passes of each length so far, times what else the work took
        beside passes. None until passes of two lengths were made."""
        self._log.clock.now()
        made: dict[int, list[float]] = defaultdict(list)
        for length, seconds in self._log.read()[self._first :]:
            made[length].append(seconds)
        if len(made) < 2:
            return None
        lengths = sorted(made)
        means = [float(np.mean(made[length])) for length in lengths]
        missing = self._planned - Counter({length: len(seconds) for length, seconds in made.items()})
        left = 0.0
        for length, number in missing.items():
            longer = max(1.0, length / lengths[-1])  # than all passes so far, whose time grows at most so
            left += number * longer * float(np.interp(length, lengths, means))
        in_passes = sum(map(sum, made.values()))
        return left * max(1.0, (time.monotonic() - self._started) / in_passes if in_passes else 1.0)
