"""Verifiers as other projects write them, in numpy: exact ones, and ones with a mistake each.

They share no code with the kit, whose diagnosis they test.
"""

from typing import Any

import numpy as np


def pick(row: Any, rng: Any) -> int:
    bounds = row.cumsum()
    return int(min(bounds.searchsorted(rng.random() * bounds[-1], side="right"), row.nonzero()[0][-1]))


def positive_part(p: Any, q: Any) -> Any:
    rest = np.maximum(p - q, 0)
    return rest if rest.sum() > 0 else p


def speculative(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    for i, x in enumerate(drafts):
        if rng.random() * q[i, x] >= p[i, x]:
            return [*drafts[:i], pick(positive_part(p[i], q[i]), rng)]
    return [*drafts, pick(p[-1], rng)]


def naive(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    """Draws from the target at every position, and accepts while the draft agrees."""
    emitted = []
    for i, row in enumerate(p):
        emitted.append(pick(row, rng))
        if i == len(drafts) or emitted[-1] != drafts[i]:
            break
    return emitted


def accepts_all(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    return [*drafts, pick(p[-1], rng)]


def upside_down(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    for i, x in enumerate(drafts):
        if rng.random() * p[i, x] >= q[i, x]:
            return [*drafts[:i], pick(positive_part(p[i], q[i]), rng)]
    return [*drafts, pick(p[-1], rng)]


def lenient(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    return _with_residual(p, q, drafts, rng, lambda i, x: positive_part(p[i], q[i]), leniency=2)


def _with_residual(p: Any, q: Any, drafts: Any, rng: Any, rest: Any, leniency: float = 1) -> list[int]:
    for i, x in enumerate(drafts):
        if rng.random() * q[i, x] >= leniency * p[i, x]:
            return [*drafts[:i], pick(rest(i, x), rng)]
    return [*drafts, pick(p[-1], rng)]


def from_target(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    return _with_residual(p, q, drafts, rng, lambda i, x: p[i])


def absolute(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    return _with_residual(p, q, drafts, rng, lambda i, x: np.abs(p[i] - q[i]))


def negative(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    return _with_residual(p, q, drafts, rng, lambda i, x: positive_part(q[i], p[i]))


def masked(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    return _with_residual(p, q, drafts, rng, lambda i, x: np.where(np.arange(p.shape[1]) == x, 0, p[i]))


def shifted(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    return _with_residual(p, q, drafts, rng, lambda i, x: positive_part(p[i + 1], q[i]))


def argmax_of_residual(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    return _with_residual(
        p, q, drafts, rng, lambda i, x: np.eye(p.shape[1])[positive_part(p[i], q[i]).round(12).argmax()]
    )


def greedy(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    best = p.argmax(axis=1).tolist()
    matches = [x == y for x, y in zip(drafts, best, strict=False)]
    return best[: (matches.index(False) if False in matches else len(drafts)) + 1]


def bonus_of_last(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    emitted = speculative(p, q, drafts, rng)
    return [*drafts, pick(p[-2], rng)] if len(emitted) == len(p) else emitted


def sharpened(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    return speculative(p, q**2 / (q**2).sum(axis=1, keepdims=True), drafts, rng)


def one_uniform(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    u = rng.random()
    for i, x in enumerate(drafts):
        if u * q[i, x] >= p[i, x]:
            return [*drafts[:i], pick(positive_part(p[i], q[i]), rng)]
    return [*drafts, pick(p[-1], rng)]


def summed(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    places = np.arange(len(drafts))
    k = int((rng.random(len(drafts)) * q[places, drafts] < p[places, drafts]).sum())
    return [*drafts[:k], pick(p[-1] if k == len(drafts) else positive_part(p[k], q[k]), rng)]


def tree(
    p: Any, q: Any, drafts: Any, rng: Any, parents: Any, replaces: bool = True, updates: bool = True,
    normalizes: bool = True, point: bool = False,
) -> list[int]:  # fmt: skip
    """Recursive rejection. replaces: whether q keeps a rejected sibling; updates: whether p becomes the residual;
    normalizes: whether it sums to 1; point: whether q is one-hot."""
    emitted, node = [], -1
    while True:
        target, draft, rest = p[node + 1], q[node + 1], p[node + 1]
        for child in (parents == node).nonzero()[0]:
            x = drafts[child]
            law = np.eye(len(target))[x] if point else draft
            if rng.random() * law[x] < target[x]:
                emitted.append(int(x))
                node = int(child)
                break
            rest = positive_part(target, law)
            rest = rest / rest.sum() if normalizes else rest
            target = rest if updates else target
            if not replaces:
                draft = np.where(np.arange(len(draft)) == x, 0, draft)
                draft = draft / max(draft.sum(), 1e-300)
        else:
            return [*emitted, pick(rest, rng)]


def tree_distinct(p: Any, q: Any, drafts: Any, rng: Any, parents: Any) -> list[int]:
    return tree(p, q, drafts, rng, parents, replaces=False)


def tree_point(p: Any, q: Any, drafts: Any, rng: Any, parents: Any) -> list[int]:
    return tree(p, q, drafts, rng, parents, point=True)


def tree_stale(p: Any, q: Any, drafts: Any, rng: Any, parents: Any) -> list[int]:
    return tree(p, q, drafts, rng, parents, updates=False)


def paths(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    """All paths are siblings at the root; the one that is accepted goes on alone."""
    target = p[0, 0]
    for path, tokens in enumerate(drafts):
        x = tokens[0]
        if rng.random() * q[path, 0, x] < target[x]:
            return [int(x), *speculative(p[path, 1:], q[path, 1:], tokens[1:], rng)]
        target = positive_part(target, q[path, 0])
        target = target / target.sum()
    return [pick(target, rng)]


def best_path(p: Any, q: Any, drafts: Any, rng: Any) -> list[int]:
    scores = [np.prod([rows[i, x] for i, x in enumerate(path)]) for rows, path in zip(p, drafts, strict=True)]
    best = int(np.argmax(np.round(scores, 12)))
    return speculative(p[best], q[best], drafts[best], rng)


def tree_unnormalized(p: Any, q: Any, drafts: Any, rng: Any, parents: Any) -> list[int]:
    return tree(p, q, drafts, rng, parents, normalizes=False)
