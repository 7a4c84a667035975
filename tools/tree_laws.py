"""The exact law of the tokens that a rule emits: all draws of a drafter and all choices of a rule are enumerated."""

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import torch

from specbench.decoding.proposal import Proposal, TreeProposal
from specbench.decoding.sampling import DenseProbs, Distributions, Sampling
from specbench.decoding.tree_rules import Choices, Walked, WalkingRule, normalized
from specbench.decoding.verification import VerificationRule

VOCAB = 3
Tokens = tuple[int, ...]
Law = dict[Tokens, float]
Outcome = tuple[float, list[int], int]  # probability, accepted path, next token
Table = Callable[[Tokens], torch.Tensor]  # the distribution after a prefix: [vocab]


def table(seed: int, spread: float = 1.5) -> Table:
    """Returns distributions with denominators of at most 1,000, that is, rational ones, in float64."""

    @functools.cache
    def after(prefix: Tokens) -> torch.Tensor:
        generator = torch.Generator().manual_seed(
            seed + sum((token + 1) * 7**place for place, token in enumerate(prefix))
        )
        weights = torch.softmax(spread * torch.randn(VOCAB, generator=generator, dtype=torch.float64), dim=0)
        return normalized((weights * 1000).round().clamp_min(1))

    return after


class Rows(DenseProbs):
    def __init__(self, rows: list[torch.Tensor]) -> None:
        self._rows = torch.stack(rows) if rows else torch.zeros((0, VOCAB), dtype=torch.float64)

    @property
    def probs(self) -> torch.Tensor:
        return self._rows


class Unknown(Exception):
    """Raised at a choice whose outcome is not given, with all possible ones: (outcome, probability)."""

    def __init__(self, possible: list[tuple[int, float]]) -> None:
        super().__init__()
        self.possible = [(value, probability) for value, probability in possible if probability > 0]


class GivenChoices(Choices):
    """Choices with given outcomes. `mass`: their probability."""

    def __init__(self, outcomes: list[tuple[int, float]]) -> None:
        self._outcomes = iter(outcomes)
        self.mass = math.prod(probability for _, probability in outcomes)

    def coin(self, probability: float) -> bool:
        return bool(self._next([(1, probability), (0, 1.0 - probability)]))

    def token(self, weights: torch.Tensor) -> int:
        return self._next(list(enumerate((weights / weights.sum()).tolist())))

    def _next(self, possible: list[tuple[int, float]]) -> int:
        taken = next(self._outcomes, None)
        if taken is None:
            raise Unknown(possible)
        return taken[0]


def outcomes(walk: Callable[[Choices], Walked]) -> Iterator[Outcome]:
    """Yields (probability, path, next token) for every sequence of choices of a walk, by starting it anew for each."""
    pending: list[list[tuple[int, float]]] = [[]]
    while pending:
        taken = pending.pop()
        choices = GivenChoices(taken)
        try:
            path, token = walk(choices)
        except Unknown as choice:
            pending += [[*taken, outcome] for outcome in choice.possible]
        else:
            yield choices.mass, path, token


def sibling_draws(q: torch.Tensor, width: int, draws: str) -> Iterator[tuple[float, Tokens]]:
    """Yields (probability, tokens) of the children of one node."""
    if draws in ("fixed", "top_and_one"):
        order = q.argsort(descending=True).tolist()
        if draws == "fixed":
            yield 1.0, tuple(order[:width])
            return
        top = tuple(order[: width - 1])
        rest = normalized(q.index_fill(0, torch.tensor(top, dtype=torch.long), 0.0))
        yield from ((float(rest[token]), (*top, token)) for token in range(len(q)) if rest[token] > 0)
        return
    yield from all_draws(q, width, draws)


def all_draws(q: torch.Tensor, width: int, draws: str) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yields (probability, tokens) of all draws of `width` siblings, with or without replacement."""
    if not width:
        yield 1.0, ()
        return
    for token, mass in enumerate(q.tolist()):
        if mass > 0:
            left = normalized(q.index_fill(0, torch.tensor(token), 0.0)) if draws == "without_replacement" else q
            yield from ((mass * rest, (token, *others)) for rest, others in all_draws(left, width - 1, draws))


def trees(q: Table, widths: Sequence[int], draws: str, end: int | None = None) -> Iterator[tuple[float, TreeProposal]]:
    """Yields (probability, tree) of all draws of a tree whose nodes at depth d have widths[d] children. `end`: a token
    without children."""

    def grow(
        frontier: list[tuple[int, Tokens]], tokens: list[int], parents: list[int], rows: list[torch.Tensor],
        expanded: list[int], depth: int,
    ) -> Iterator[tuple[float, TreeProposal]]:  # fmt: skip
        if depth == len(widths) or not frontier:
            yield 1.0, TreeProposal(tokens, parents, draws, Rows(rows), expanded)  # type: ignore[arg-type]
            return
        per_node = [list(sibling_draws(q(prefix), widths[depth], draws)) for _, prefix in frontier]
        for combination in itertools.product(*per_node):
            mass = 1.0
            new_tokens = list(tokens)
            new_parents = list(parents)
            below: list[tuple[int, Tokens]] = []
            for (node, prefix), (probability, children) in zip(frontier, combination, strict=True):
                mass *= probability
                for token in children:
                    if token != end:
                        below.append((len(new_tokens), (*prefix, token)))
                    new_tokens.append(token)
                    new_parents.append(node)
            added = [q(prefix) for _, prefix in frontier]
            nodes = [node for node, _ in frontier]
            for probability, tree in grow(
                below, new_tokens, new_parents, [*rows, *added], [*expanded, *nodes], depth + 1
            ):
                yield mass * probability, tree

    yield from grow([(-1, ())], [], [], [], [], 0)


def chains(q: Table, length: int) -> Iterator[tuple[float, Proposal]]:
    for mass, tree in trees(q, [1] * length, "independent"):
        yield mass, Proposal(tree.token_ids, tree.probs)


def target_rows(p: Table, proposal: Proposal) -> torch.Tensor:
    prefixes: list[Tokens] = []
    for token, parent in zip(proposal.token_ids, proposal.parents, strict=True):
        prefixes.append((*(prefixes[parent] if parent >= 0 else ()), token))
    return torch.stack([p(()), *(p(prefix) for prefix in prefixes)])


class NotDrawn(Exception):
    """Raised where a rule draws from rows of which no outcome is given."""

    def __init__(self, places: Sequence[int]) -> None:
        super().__init__(*places)
        self.places = places


class FixedDraws(Distributions):
    """The target's distributions with given outcomes of the draws, by row."""

    def __init__(self, probs: torch.Tensor) -> None:
        super().__init__(probs.log(), Sampling(1.0), probs)
        self.known: dict[int, int] = {}

    def draw(self, place: int, generator: torch.Generator) -> int:
        if place not in self.known:
            raise NotDrawn([place])
        return self.known[place]

    def draw_all(self, generator: torch.Generator) -> torch.Tensor:
        if missing := [place for place in range(len(self.probs)) if place not in self.known]:
            raise NotDrawn(missing)
        return torch.tensor([self.known[place] for place in range(len(self.probs))])


class Enumerated:
    """A rule whose only random choices are draws from the target's rows, given every outcome of the draws it makes."""

    def __init__(self, rule: VerificationRule) -> None:
        self._rule = rule

    def outcomes(self, proposal: Proposal, target_probs: torch.Tensor) -> Iterator[Outcome]:
        """Yields (probability, path, next token) for every outcome."""
        target, generator, rows = FixedDraws(target_probs), torch.Generator(), target_probs.tolist()
        pending: list[dict[int, int]] = [{}]
        while pending:
            target.known = pending.pop()
            try:
                found = self._rule(proposal, target, generator)
            except NotDrawn as missing:
                possible = [[token for token, mass in enumerate(rows[place]) if mass > 0] for place in missing.places]
                pending += [
                    {**target.known, **dict(zip(missing.places, tokens, strict=True))}
                    for tokens in itertools.product(*possible)
                ]
            else:
                mass = math.prod(rows[place][token] for place, token in target.known.items())
                yield mass, list(found.path), found.next_token


AnyRule = WalkingRule | Enumerated


def law(rule: AnyRule, p: Table, drafts: Iterator[tuple[float, Proposal]], length: int) -> tuple[Law, float]:
    """Returns the law of `length` emitted tokens, completed by autoregressive decoding, and the expected number of
    accepted tokens."""
    emitted: Law = defaultdict(float)
    expected = 0.0
    for draft_mass, proposal in drafts:
        rows = target_rows(p, proposal)
        for mass, path, token in rule_outcomes(rule, proposal, rows):
            expected += draft_mass * mass * len(path)
            emitted[(*(proposal.token_ids[node] for node in path), token)[:length]] += draft_mass * mass
    found: Law = defaultdict(float)
    for prefix, mass in emitted.items():
        for tokens, probability in autoregressive(p, prefix, length):
            found[tokens] += mass * probability
    return found, expected


def rule_outcomes(rule: AnyRule, proposal: Proposal, rows: torch.Tensor) -> Iterator[Outcome]:
    """Yields (probability, path, next token) for every sequence of choices of a rule."""
    if isinstance(rule, Enumerated):
        return rule.outcomes(proposal, rows)
    return outcomes(lambda choices: rule.walk(proposal, rows, choices))


def autoregressive(p: Table, prefix: Tokens, length: int) -> Iterator[tuple[Tokens, float]]:
    if len(prefix) == length:
        yield prefix, 1.0
        return
    for token, probability in enumerate(p(prefix).tolist()):
        for tokens, rest in autoregressive(p, (*prefix, token), length):
            yield tokens, probability * rest


def distance(rule: AnyRule, p: Table, drafts: Iterator[tuple[float, Proposal]], length: int) -> float:
    """Returns the total variation distance between the rule's law of `length` tokens and the target's."""
    return from_target(law(rule, p, drafts, length)[0], p, length)


def from_target(found: Law, p: Table, length: int) -> float:
    """Returns the total variation distance between a law of `length` tokens and the target's."""
    own = dict(autoregressive(p, (), length))
    assert abs(sum(found.values()) - 1.0) < 1e-12
    return sum(abs(found.get(tokens, 0.0) - own.get(tokens, 0.0)) for tokens in {*found, *own}) / 2
