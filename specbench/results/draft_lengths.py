"""The draft length of a method's steps, and that of an oracle: the best that any length could have done with the
recorded drafts."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench.results.answers import Answer
from specbench.statistics.bootstrap import Array, Estimate, Resampler

MIN_PASSES = 10  # of a width, for a cost of its own

Costs = Callable[[NDArray[Any]], Array]  # the cost of target passes by their width, in passes over one token


def costs_of_widths(own: Sequence[Answer], baseline: Sequence[Answer]) -> Costs:
    """Returns v: the mean target pass over n tokens in mean passes over one token. Widths with few passes are
    interpolated, and wider ones than known cost as the widest."""
    most = max((answer.passes_by_width.shape[1] for answer in (*own, *baseline)), default=0)
    sums = np.zeros((2, max(2, most)))
    for answer in (*own, *baseline):
        sums[:, : answer.passes_by_width.shape[1]] += answer.passes_by_width
    seconds, number = sums
    known = np.flatnonzero(number >= MIN_PASSES)
    known = known if len(known) and known[0] == 1 else np.flatnonzero(number > 0)
    if not len(known) or known[0] != 1 or not seconds[1]:
        return lambda widths: np.ones(len(widths))
    costs = seconds[known] / number[known] / (seconds[1] / number[1])
    return lambda widths: np.interp(widths, known, costs)


def oracle_lengths(steps: NDArray[Any], draft_cost: float, costs: Costs) -> tuple[NDArray[Any], float]:
    """Returns for each kind of step the number of draft tokens, at most the accepted ones, that an oracle would have
    drafted, and its tokens per cost: the largest Σ emitted ÷ Σ (k · c + v(k + 1)).

    steps [n, 4]: drafted, accepted and emitted tokens of a kind of step, and how often it occurred. By Dinkelbach's
    method: given a rate, each step takes the k with the largest emitted − rate · cost; the rate of these is at least as
    large; it is the largest when it stays.
    """
    _, accepted, emitted, number = steps.T
    if not len(steps):
        return np.zeros(0, dtype=np.int64), 0.0
    lengths = np.arange(int(accepted.max()) + 1)
    tokens = np.minimum(lengths + 1, emitted[:, None])
    spent = lengths * draft_cost + costs(lengths + 1)
    is_possible = lengths <= accepted[:, None]
    rate, best = 0.0, np.zeros(len(steps), dtype=np.int64)
    while True:
        best = np.where(is_possible, tokens - rate * spent, -np.inf).argmax(axis=1)
        found = float((number * tokens[np.arange(len(steps)), best]).sum() / (number * spent[best]).sum())
        if found <= rate * (1 + 1e-12):
            return best, rate
        rate = found


def length_metrics(
    prompts: Resampler, own: Sequence[Answer], baseline: Sequence[Answer], draft_cost: float | None
) -> dict[str, Estimate]:
    """Returns the mean draft length of chains, and the measured tokens per cost as a share of the oracle's.
    `draft_cost`: c; None if it is unknown, as is then the share."""
    drafted, num_steps = [a.num_drafted for a in own], [a.num_steps for a in own]
    found = {"draft_length": prompts.ratio(drafted, num_steps), "oracle_share": Estimate()}
    if draft_cost is None or not any(drafted):
        return found
    costs = costs_of_widths(own, baseline)
    kinds, places = np.unique(np.concatenate([a.step_kinds[:, :3] for a in own]), axis=0, return_inverse=True)
    number = np.concatenate([a.step_kinds[:, 3] for a in own])
    counts = np.bincount(places.ravel(), weights=number, minlength=len(kinds))
    best, _ = oracle_lengths(np.column_stack([kinds, counts]), draft_cost, costs)
    taken = {tuple(kind): int(length) for kind, length in zip(kinds.tolist(), best, strict=True)}
    columns = np.zeros((4, len(own)))
    for place, answer in enumerate(own):
        steps = answer.step_kinds
        lengths = np.array([taken[tuple(kind)] for kind in steps[:, :3].tolist()], dtype=np.int64)
        per_step = np.stack([
            steps[:, 2], costs(steps[:, 0] + 1),
            np.minimum(lengths + 1, steps[:, 2]), lengths * draft_cost + costs(lengths + 1),
        ]) if len(steps) else np.zeros((4, 0))  # fmt: skip
        columns[:, place] = per_step @ steps[:, 3]
        columns[1, place] += draft_cost * len(answer.draft_passes)  # also those after which nothing was drawn
    found["oracle_share"] = prompts.ratio(*columns.tolist())
    return found
