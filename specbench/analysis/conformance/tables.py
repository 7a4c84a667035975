"""Tables: small target and draft distributions in rational numbers, chosen to expose mistakes of verifiers.

A table has the target's distribution p and the drafter's q after every prefix, and the shape of the draft. A `Draft` is
one outcome of drafting from it. All numbers are fractions, so that the law of an exact verifier is known exactly.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Literal, get_args

Tokens = tuple[int, ...]
Row = tuple[Fraction, ...]
Rows = Callable[[Tokens], Row]
Kind = Literal["chain", "paths", "tree", "tree:without_replacement", "tree:fixed"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def normalized(weights: Sequence[Fraction]) -> Row:
    """Returns weights divided by their sum; all zeros as they are."""
    total = sum(weights)
    return tuple(weight / total for weight in weights) if total else tuple(weights)


def without(row: Row, token: int) -> Row:
    """Returns a distribution given that another token than this one is drawn."""
    return normalized([Fraction(0) if place == token else mass for place, mass in enumerate(row)])


@dataclass(frozen=True)
class Table:
    """Distributions and the shape of a draft.

    `parents`: of each draft token (−1: the root), parents first; several paths are chains that begin at the root.
    `end`: the token that ends a text. What a verifier emits after it is not compared.
    """

    name: str
    kind: Kind
    target: Rows
    drafter: Rows
    parents: tuple[int, ...]
    end: int | None = None

    @cached_property
    def vocab(self) -> int:
        return len(self.target(()))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        found: list[int] = []
        for parent in self.parents:
            found.append(1 if parent < 0 else found[parent] + 1)
        return tuple(found)

    @cached_property
    def length(self) -> int:
        """The largest number of draft tokens that can be accepted."""
        return max(self.depths)

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def drafts(self) -> Iterator[tuple[Fraction, "Draft"]]:
        """Yields every draft with its probability."""

        def grow(mass: Fraction, tokens: Tokens) -> Iterator[tuple[Fraction, Draft]]:
            node = len(tokens)
            if node == len(self.parents):
                yield mass, Draft(self, tokens)
                return
            parent = self.parents[node]
            siblings = [tokens[other] for other in range(node) if self.parents[other] == parent]
            row = self.drafter(self.prefix(parent, tokens))
            if self.kind == "tree:fixed":  # the most probable tokens, in this order
                order = sorted(range(len(row)), key=lambda token: -row[token])
                yield from grow(mass, (*tokens, order[len(siblings)]))
                return
            for token in siblings if self.kind == "tree:without_replacement" else ():
                row = without(row, token)
            for token, probability in enumerate(row):
                if probability:
                    yield from grow(mass * probability, (*tokens, token))

        yield from grow(Fraction(1), ())

    def prefix(self, node: int, tokens: Sequence[int]) -> Tokens:
        """Returns the tokens from the root to a node, this one included."""
        found: list[int] = []
        while node >= 0:
            found.append(tokens[node])
            node = self.parents[node]
        return tuple(reversed(found))

    def cut(self, tokens: Sequence[int]) -> Tokens:
        """Returns emitted tokens up to the end of the text."""
        found = tuple(tokens)
        return found[: found.index(self.end) + 1] if self.end in found else found


@dataclass(frozen=True)
class Draft:
    """One draft from a table. `p`, `q`: the distributions after the root and after each draft token."""

    table: Table
    tokens: Tokens

    @cached_property
    def p(self) -> tuple[Row, ...]:
        return self._rows(self.table.target)

    @cached_property
    def q(self) -> tuple[Row, ...]:
        return self._rows(self.table.drafter)

    def _rows(self, rows: Rows) -> tuple[Row, ...]:
        nodes = range(-1, len(self.tokens))
        return tuple(rows(self.table.prefix(node, self.tokens)) for node in nodes)


def listed(*rows: str) -> Rows:
    """Returns distributions by the number of tokens before them; the last holds for all further ones. A row is written
    in weights, as "1 2 0 5"."""
    parsed = [normalized([Fraction(weight) for weight in row.split()]) for row in rows]
    return lambda prefix: parsed[min(len(prefix), len(parsed) - 1)]


def varied(*rows: str) -> Rows:
    """As `listed`, but the distribution also depends on the last token: it is rotated by it."""
    by_length = listed(*rows)

    @lru_cache(None)
    def after(prefix: Tokens) -> Row:
        row = by_length(prefix)
        turn = prefix[-1] % len(row) if prefix else 0
        return row[-turn:] + row[:-turn] if turn else row

    return after


def powered(rows: Rows, power: int) -> Rows:
    """Returns the distributions at temperature 1/power."""
    return lambda prefix: normalized([mass**power for mass in rows(prefix)])


CHAIN = {length: tuple(range(-1, length - 1)) for length in (1, 2, 3)}
PATHS = (-1, 0, -1, 2)
TREE = (-1, -1, 0, 0)  # two children of the root; the first has two
STRONG, WEAK = ("5 3 2", "2 5 3", "3 2 5"), ("1 3 6", "6 1 3", "3 6 1")
TINY = "999000 999 1"  # the last token has a probability of 1e-6

TABLES: tuple[Table, ...] = (
    Table("one draft token", "chain", listed("6 3 1", "2 3 5"), listed("1 3 6"), CHAIN[1]),
    Table("two draft tokens", "chain", varied(*STRONG), varied(*WEAK), CHAIN[2]),
    Table("three draft tokens", "chain", varied("6 4", "3 7", "8 2", "1 9"), varied("3 7", "6 4", "4 6"), CHAIN[3]),
    Table("p = q", "chain", varied(*STRONG), varied(*STRONG), CHAIN[2]),
    Table("no token in common", "chain", listed("1 2 0 0"), listed("0 0 3 1"), CHAIN[2]),
    Table("greedy drafts, one-hot q", "chain", listed("5 3 2", "4 4 2", "1 1 1"), listed("1 0 0", "0 1 0"), CHAIN[2]),
    Table("p is one-hot", "chain", listed("1 0 0", "0 1 0", "0 0 1"), listed("6 3 1", "4 5 1"), CHAIN[2]),
    Table("ties", "chain", listed("2 2 1 1"), listed("1 1 2 2"), CHAIN[2]),
    Table("p cut by top-k, q whole", "chain", listed("7 5 0 0", "0 5 0 7"), listed("2 2 3 3", "3 1 3 3"), CHAIN[2]),
    Table("q cut by top-p, p whole", "chain", listed("4 3 2 1", "1 2 3 4"), listed("5 4 0 0", "4 5 0 0"), CHAIN[2]),
    Table("tiny probabilities", "chain", listed("1 1 1", TINY), listed(TINY, "1 1 1"), CHAIN[2]),
    Table(
        "q at half the temperature", "chain", varied("4 3 2", "2 4 3"), powered(varied("4 3 2", "2 4 3"), 2), CHAIN[2]
    ),
    Table("p at half the temperature", "chain", powered(varied(*STRONG), 2), varied(*STRONG), CHAIN[2]),
    Table(
        "the end inside a draft", "chain", listed("3 3 4", "5 4 1", "1 0 0"), listed("2 2 6", "1 5 4"), CHAIN[2], end=2
    ),
    Table("two drafts of one token", "paths", listed("6 3 1", "2 3 5"), listed("1 3 6"), (-1, -1)),
    Table("two drafts of two tokens", "paths", varied("7 3", "4 6", "9 1"), varied("4 6", "7 3"), PATHS),
    Table("two drafts, q is one-hot", "paths", varied(*STRONG), listed("1 0 0", "0 1 0"), PATHS),
    Table("two drafts, p cut by top-k", "paths", listed("7 5 0", "0 5 7"), listed("2 2 4", "3 1 3"), (-1, -1)),
    Table("the residual of half the mass", "paths", listed("1 6 3"), listed("6 4 0"), (-1, -1)),
    Table("a residual of three tokens", "paths", listed("1 2 3 4"), listed("7 1 1 1"), (-1, -1)),
    Table("two siblings", "tree", listed("6 3 1", "2 3 5"), listed("2 3 5"), (-1, -1)),
    Table("a tree of four", "tree", varied("7 3", "4 6", "9 1"), varied("4 6", "7 3"), TREE),
    Table("three siblings, p has zeros", "tree", listed("0 3 7", "2 3 5"), listed("5 3 2"), (-1, -1, -1)),
    Table("the residual of half the mass", "tree", listed("1 6 3"), listed("6 4 0"), (-1, -1)),
    Table("a residual of three tokens", "tree", listed("1 2 3 4"), listed("7 1 1 1"), (-1, -1)),
    Table("two siblings", "tree:without_replacement", listed("6 3 1", "2 3 5"), listed("1 3 6"), (-1, -1)),
    Table("a tree of four", "tree:without_replacement", varied(*STRONG), varied(*WEAK), TREE),
    Table("all tokens are siblings", "tree:without_replacement", listed("1 1 8"), listed("5 4 1"), (-1, -1, -1)),
    Table("the residual of half the mass", "tree:without_replacement", listed("1 6 3"), listed("6 4 0"), (-1, -1)),
    Table("a residual of three tokens", "tree:without_replacement", listed("1 2 3 4"), listed("7 1 1 1"), (-1, -1)),
    Table("a residual of two tokens", "tree:without_replacement", listed("1 1 7 9"), listed("15 1 1 1"), (-1, -1)),
    Table("siblings in falling order", "tree:fixed", listed("2 3 5"), listed("6 3 1"), (-1, -1)),
    Table("a tree of four", "tree:fixed", varied(*STRONG), varied(*WEAK), TREE),
    Table("a residual of two tokens", "tree:fixed", listed("1 2 3 4"), listed("7 4 2 1"), (-1, -1)),
    Table("p has zeros", "tree:fixed", listed("5 0 5", "0 2 8"), listed("2 7 1", "6 3 1"), TREE),
)  # fmt: skip
