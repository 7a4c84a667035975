"""Verification in rational numbers: the exact rule, and the mistakes that the kit knows.

A rule is a walk over random choices. `law` follows all of them and returns the exact probability of what is emitted;
`expected_tokens` is the mean number of emitted tokens.
"""

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from specbench.analysis.conformance.tables import Draft, Row, Table, Tokens, normalized, without

Law = dict[Tokens, Fraction]
ONE, ZERO = Fraction(1), Fraction(0)


class Undecided(Exception):
    """Raised at a choice whose outcome is not given, with the possible ones: (outcome, probability)."""

    def __init__(self, possible: list[tuple[int, Fraction]]) -> None:
        super().__init__()
        self.possible = possible


class Choices:
    """Random choices with given outcomes."""

    def __init__(self, given: Sequence[int]) -> None:
        self._given = iter(given)

    def coin(self, probability: Fraction) -> bool:
        return bool(self._next([(1, min(probability, ONE)), (0, ONE - min(probability, ONE))]))

    def token(self, weights: Row) -> int:
        return self._next(list(enumerate(normalized(weights))))

    def _next(self, possible: list[tuple[int, Fraction]]) -> int:
        possible = [(outcome, mass) for outcome, mass in possible if mass]
        if len(possible) == 1:
            return possible[0][0]
        outcome = next(self._given, None)
        if outcome is None:
            raise Undecided(possible)
        return outcome


def residual(p: Row, q: Row) -> Row:
    """Returns norm(max(p − q, 0)); p if it is empty, where an exact rule never draws from it."""
    rest = normalized([max(target - draft, ZERO) for target, draft in zip(p, q, strict=True)])
    return rest if any(rest) else p


class Rule:
    """Recursive rejection, which for a chain is speculative sampling (arXiv:2211.17192): the children of an accepted
    token are verified in turn. A mistake overrides the step in which it is made."""

    name = "no mistake"

    def is_made_in(self, table: Table) -> bool:
        """Whether a verifier of tables of this kind can have the mistake."""
        return True

    def emitted(self, draft: Draft, choices: Choices) -> Tokens:
        table, tokens = draft.table, draft.tokens
        found: list[int] = []
        node = -1
        while children := table.children(node):
            p, q = draft.p[node + 1], draft.q[node + 1]
            for child in children:
                token = tokens[child]
                drawn_from = self.drawn_from(table, q, token)
                if choices.coin(self.acceptance(p, drawn_from, token)):
                    found.append(token)
                    node = child
                    break
                p = self.after_rejection(draft, child, p, drawn_from)
                q = self.remaining(table, q, token)
            else:
                return (*found, choices.token(self.drawn_after_rejection(draft, node, p)))
        return (*found, choices.token(self.bonus(draft, node)))

    def drawn_from(self, table: Table, q: Row, token: int) -> Row:
        """Returns the law of a draft token, which is certain if tokens are not drawn."""
        return one_hot(q, token) if table.kind == "tree:fixed" else q

    def acceptance(self, p: Row, q: Row, token: int) -> Fraction:
        return ratio(p[token], q[token])

    def after_rejection(self, draft: Draft, child: int, p: Row, q: Row) -> Row:
        return residual(p, q)

    def remaining(self, table: Table, q: Row, token: int) -> Row:
        """Returns the law of the next sibling after one was rejected."""
        return without(q, token) if table.kind == "tree:without_replacement" else q

    def drawn_after_rejection(self, draft: Draft, node: int, rest: Row) -> Row:
        return rest

    def bonus(self, draft: Draft, leaf: int) -> Row:
        """Returns the law of the token after a draft that is accepted to its end."""
        return draft.p[leaf + 1]


def one_hot(row: Row, token: int) -> Row:
    return tuple(ONE if place == token else ZERO for place in range(len(row)))


def ratio(above: Fraction, below: Fraction) -> Fraction:
    """Returns min(1, above / below). What neither law allows is rejected, as NaN is by a comparison."""
    return min(ONE, above / below) if below else ONE if above else ZERO


class AcceptsAll(Rule):
    name = "every draft token is accepted"

    def acceptance(self, p: Row, q: Row, token: int) -> Fraction:
        return ONE


class Reversed(Rule):
    name = "the ratio is upside down: accepted with q/p instead of p/q"

    def is_made_in(self, table: Table) -> bool:
        return table.kind != "tree:fixed"  # where it accepts all

    def acceptance(self, p: Row, q: Row, token: int) -> Fraction:
        return ratio(q[token], p[token])


class Lenient(Rule):
    name = "accepts too much: with 2p/q instead of p/q (leniency)"

    def acceptance(self, p: Row, q: Row, token: int) -> Fraction:
        return ratio(2 * p[token], q[token])


class NoResidual(Rule):
    name = "after a rejection the token is drawn from p instead of the residual max(p − q, 0)"

    def drawn_after_rejection(self, draft: Draft, node: int, rest: Row) -> Row:
        return draft.p[node + 1]


class AbsoluteResidual(Rule):
    name = "the residual is |p − q| instead of max(p − q, 0)"

    def after_rejection(self, draft: Draft, child: int, p: Row, q: Row) -> Row:
        rest = normalized([abs(target - drafted) for target, drafted in zip(p, q, strict=True)])
        return rest if any(rest) else p


class ReversedResidual(Rule):
    name = "the residual is max(q − p, 0) instead of max(p − q, 0)"

    def after_rejection(self, draft: Draft, child: int, p: Row, q: Row) -> Row:
        return residual(q, p)


class OnlyTokenExcluded(Rule):
    name = "the residual is p without the draft token, which is right for one-hot q only"

    def is_made_in(self, table: Table) -> bool:
        return table.kind != "tree:fixed"  # where it is right

    def after_rejection(self, draft: Draft, child: int, p: Row, q: Row) -> Row:
        rest = without(p, draft.tokens[child])
        return rest if any(rest) else p


class ShiftedResidual(Rule):
    name = "the residual takes p of the position after the rejected token"

    def after_rejection(self, draft: Draft, child: int, p: Row, q: Row) -> Row:
        return residual(draft.p[child + 1], q)


class GreedyResidual(Rule):
    name = "after a rejection the token is the argmax of the residual, not a draw"

    def drawn_after_rejection(self, draft: Draft, node: int, rest: Row) -> Row:
        return one_hot(rest, rest.index(max(rest)))


class GreedyTarget(Rule):
    name = "the output is greedy: the argmax of p, not a draw"

    def acceptance(self, p: Row, q: Row, token: int) -> Fraction:
        return ONE if token == p.index(max(p)) else ZERO

    def after_rejection(self, draft: Draft, child: int, p: Row, q: Row) -> Row:
        return p

    def drawn_after_rejection(self, draft: Draft, node: int, rest: Row) -> Row:
        return one_hot(rest, rest.index(max(rest)))

    def bonus(self, draft: Draft, leaf: int) -> Row:
        row = draft.p[leaf + 1]
        return one_hot(row, row.index(max(row)))


class BonusOfLastPosition(Rule):
    name = "the bonus token is drawn from p of the last draft position instead of the next one"

    def bonus(self, draft: Draft, leaf: int) -> Row:
        return draft.p[draft.table.parents[leaf] + 1]


class OtherTemperature(Rule):
    name = "q is of another temperature than the one that the draft was drawn at (here half of it)"

    def is_made_in(self, table: Table) -> bool:
        return table.kind != "tree:fixed"

    def drawn_from(self, table: Table, q: Row, token: int) -> Row:
        return normalized([mass**2 for mass in q])


class DrawnInsteadOfFixed(Rule):
    name = "q of drawn tokens is used for tokens that were not drawn (top-k): their q is one-hot"

    def is_made_in(self, table: Table) -> bool:
        return table.kind == "tree:fixed"

    def drawn_from(self, table: Table, q: Row, token: int) -> Row:
        return q


class StaleTarget(Rule):
    name = "p is not replaced by the residual before the next sibling is verified"

    def is_made_in(self, table: Table) -> bool:
        return table.kind != "chain"

    def after_rejection(self, draft: Draft, child: int, p: Row, q: Row) -> Row:
        return p

    def drawn_after_rejection(self, draft: Draft, node: int, rest: Row) -> Row:
        last = draft.table.children(node)[-1]
        return residual(rest, self.drawn_from(draft.table, draft.q[node + 1], draft.tokens[last]))


class UnnormalizedResidual(Rule):
    name = "the residual is not normalised before the next sibling is verified"

    def is_made_in(self, table: Table) -> bool:
        return table.kind != "chain"

    def after_rejection(self, draft: Draft, child: int, p: Row, q: Row) -> Row:
        rest = tuple(max(target - drafted, ZERO) for target, drafted in zip(p, q, strict=True))
        return rest if any(rest) else p


class WithReplacement(Rule):
    name = "q keeps a rejected sibling, though siblings are drawn without replacement"

    def is_made_in(self, table: Table) -> bool:
        return table.kind == "tree:without_replacement"

    def remaining(self, table: Table, q: Row, token: int) -> Row:
        return q


class WithoutReplacement(Rule):
    name = "q loses a rejected sibling, though siblings are drawn independently"

    def is_made_in(self, table: Table) -> bool:
        return table.kind in ("paths", "tree")

    def remaining(self, table: Table, q: Row, token: int) -> Row:
        return without(q, token)


class OneCoin(Rule):
    name = "one uniform number serves all positions"

    def is_made_in(self, table: Table) -> bool:
        return table.kind == "chain"

    def emitted(self, draft: Draft, choices: Choices) -> Tokens:
        tokens = draft.tokens
        ratios = [ratio(draft.p[place][token], draft.q[place][token]) for place, token in enumerate(tokens)]
        bounds = sorted({ZERO, ONE, *ratios})  # u lies between two of them
        part = choices.token(tuple(high - low for low, high in pairwise(bounds)))
        for place, acceptance in enumerate(ratios):
            if acceptance <= bounds[part]:
                return (*tokens[:place], choices.token(residual(draft.p[place], draft.q[place])))
        return (*tokens, choices.token(draft.p[-1]))


class CountsAll(Rule):
    name = "accepted tokens after a rejection are counted: the sum of all verdicts, not the leading ones"

    def is_made_in(self, table: Table) -> bool:
        return table.kind == "chain" and len(table.parents) > 1

    def emitted(self, draft: Draft, choices: Choices) -> Tokens:
        tokens = draft.tokens
        accepted = sum(
            choices.coin(ratio(draft.p[place][token], draft.q[place][token])) for place, token in enumerate(tokens)
        )
        if accepted == len(tokens):
            return (*tokens, choices.token(draft.p[-1]))
        return (*tokens[:accepted], choices.token(residual(draft.p[accepted], draft.q[accepted])))


class BestPath(Rule):
    name = "the draft with the largest target probability is verified as if it were the only one"

    def is_made_in(self, table: Table) -> bool:
        return table.kind == "paths"

    def emitted(self, draft: Draft, choices: Choices) -> Tokens:
        table, tokens = draft.table, draft.tokens
        length = table.length
        scores: list[Fraction] = []
        for first in table.children(-1):
            score = ONE
            for node in range(first, first + length):
                score *= draft.p[table.parents[node] + 1][tokens[node]]
            scores.append(score)
        first = table.children(-1)[scores.index(max(scores))]
        single = Table("", "chain", table.target, table.drafter, tuple(range(-1, length - 1)))
        return EXACT.emitted(Draft(single, tokens[first : first + length]), choices)


EXACT = Rule()
MISTAKES: tuple[Rule, ...] = (
    AcceptsAll(), Reversed(), Lenient(), NoResidual(), AbsoluteResidual(), ReversedResidual(), OnlyTokenExcluded(),
    ShiftedResidual(), GreedyResidual(), GreedyTarget(), BonusOfLastPosition(), OtherTemperature(), OneCoin(),
    CountsAll(), StaleTarget(), UnnormalizedResidual(), WithReplacement(), WithoutReplacement(), DrawnInsteadOfFixed(),
    BestPath(),
)  # fmt: skip


@lru_cache(None)
def law(rule: Rule, table: Table) -> Law:
    """Returns the exact probability of all that a rule emits, up to the end of the text."""
    found: Law = defaultdict(Fraction)
    for mass, draft in table.drafts():
        pending: list[tuple[Fraction, Tokens]] = [(mass, ())]
        while pending:
            mass_so_far, given = pending.pop()
            try:
                emitted = rule.emitted(draft, Choices(given))
            except Undecided as choice:
                pending += [(mass_so_far * share, (*given, outcome)) for outcome, share in choice.possible]
            else:
                found[table.cut(emitted)] += mass_so_far
    return dict(found)


def next_tokens(emitted: Law) -> dict[Tokens, dict[int, Fraction]]:
    """Returns, by prefix, the probability that the prefix and then each token is emitted."""
    found: dict[Tokens, dict[int, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for tokens, mass in emitted.items():
        for place, token in enumerate(tokens):
            found[tokens[:place]][token] += mass
    return found


def expected_tokens(rule: Rule, table: Table) -> Fraction:
    return sum((mass * len(tokens) for tokens, mass in law(rule, table).items()), ZERO)
