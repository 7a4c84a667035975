"""Draws from a verifier on every table, tests what it emits against the exact law, and names the likely mistake.

**The test.** A verifier is exact if and only if, given that it emitted a prefix and goes on, the next token has the
target's law: whatever decides how many tokens it emits, the text completed by autoregressive decoding then has the
target's law, and the converse holds by induction over the prefix. Given the prefix, the count of a token is therefore
binomial. Each cell (prefix, token) is tested two-sided with exact binomial tails, and p-values are multiplied by the
number of cells of all tables (Bonferroni). So an exact verifier fails with a probability of at most `FALSE_ALARM`,
without an approximation.

**The diagnosis.** For every known mistake the law of all that it emits is exact, too. The most likely one is named if
it explains the draws of every table in the same kind of test. Otherwise the nearest is told as such.

**Power.** Expected draws of each known mistake are tested, too. If one would pass, so few draws prove nothing.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel
from scipy import special

from specbench.analysis.conformance.adapters import Adapter
from specbench.analysis.conformance.rules import EXACT, MISTAKES, Law, Rule, expected_tokens, law, next_tokens
from specbench.analysis.conformance.tables import TABLES, Kind, Table, Tokens
from specbench.core.table import Table as ShownTable
from specbench.core.table import number_columns, text_columns

FALSE_ALARM = 1e-4  # family-wise: over all cells of all tables
Counts = Counter[Tokens]


class Cell(BaseModel):
    """One token after a prefix: its expected probability, as a fraction too, and what was found."""

    token: int
    exact: str
    expected: float
    found: float
    count: int


class TableResult(BaseModel):
    """The test of one table. `p_value`: after the correction for all cells of all tables. `prefix`: the emitted tokens
    after which the least probable count was found; `cells`: the law of the token after it."""

    name: str
    kind: Kind
    passed: bool
    p_value: float
    prefix: list[int]
    cells: list[Cell]
    tokens_per_step: float
    exact_tokens_per_step: float


class Report(BaseModel):
    """The result of a conformance test.

    `failed`: the first table that fails. `mistake`: the known mistake that explains all draws; `nearest`: the nearest
    one where none does. `unseen`: known mistakes that so few draws would not have shown.
    """

    verifier: str
    adapter: str
    verdict: Literal["pass", "fail", "undecided"]
    draws: int
    seed: int
    p_value: float
    failed: TableResult | None = None
    mistake: str | None = None
    nearest: str | None = None
    unseen: list[str] = []
    tables: list[TableResult]


def tables_of(kinds: Iterable[Kind]) -> list[Table]:
    wanted = set(kinds)
    return [table for table in TABLES if table.kind in wanted]


def run_conformance(
    verifier: Adapter, kinds: Sequence[Kind], draws: int, seed: int, adapter: str, say: Callable[[str], None]
) -> Report:
    """Tests a verifier on all tables of these kinds, with `draws` drafts of each."""
    tables = tables_of(kinds)
    rng = np.random.default_rng([seed, 1])
    counts: list[Counts] = []
    with one_thread(), torch.random.fork_rng():
        torch.manual_seed(seed)  # kernels draw from torch's own generator
        for table in tables:
            say(f"{table.kind}: {table.name}")
            counts.append(draw(verifier, table, draws, rng))
    say("comparing with known mistakes")
    cells = sum(map(num_cells, tables))
    results = [examine(table, found, draws, cells) for table, found in zip(tables, counts, strict=True)]
    failed = next((result for result in results if not result.passed), None)
    mistake, nearest = diagnose(tables, counts, cells) if failed else (None, None)
    unseen = [] if failed else [rule.name for rule in MISTAKES if is_unseen(rule, tables, draws, cells)]
    return Report(
        verifier=verifier.name, adapter=adapter, verdict="fail" if failed else "undecided" if unseen else "pass",
        draws=draws, seed=seed, p_value=min(result.p_value for result in results), failed=failed, mistake=mistake,
        nearest=nearest, unseen=unseen, tables=results,
    )  # fmt: skip


@contextmanager
def one_thread() -> Iterator[None]:
    """Lets torch compute with one thread. On rows of a few numbers several would only wait for each other, which on a
    busy machine takes milliseconds per operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def draw(verifier: Adapter, table: Table, draws: int, rng: np.random.Generator) -> Counts:
    """Returns how often the verifier emitted what, up to the end of the text, for drafts drawn from the table."""
    masses, drafts = zip(*table.drafts(), strict=True)
    probs = np.array(masses, dtype=np.float64)
    chosen = rng.choice(len(drafts), size=draws, p=probs / probs.sum())
    return Counter(map(table.cut, verifier.emit([drafts[number] for number in chosen])))


def reachable(table: Table) -> list[Tokens]:
    """Returns the prefixes after which a verifier may emit a token, if p allows them."""
    found: list[Tokens] = [()]
    for prefix in found:  # grows
        if len(prefix) < table.length:
            row = table.target(prefix)
            found += [(*prefix, token) for token, mass in enumerate(row) if mass and token != table.end]
    return found


def num_cells(table: Table) -> int:
    """Returns the number of cells that may deviate by chance."""
    return sum(0 < mass < 1 for prefix in reachable(table) for mass in table.target(prefix))


def deviation(count: int, total: int, probability: Fraction) -> float:
    """Returns the two-sided p-value of a count, by exact binomial tails."""
    if probability in (0, 1):
        return float(count == total * probability)
    p = float(probability)  # scipy.stats would check its arguments anew for each of thousands of cells
    low, high = special.bdtr(count, total, p), special.bdtrc(count - 1, total, p)
    return min(1.0, 2 * float(min(low, high)))


def by_prefix(counts: Mapping[Tokens, int]) -> dict[Tokens, Counter[int]]:
    """Returns how often each token was emitted after each prefix."""
    found: dict[Tokens, Counter[int]] = {}
    for tokens, count in counts.items():
        for place, token in enumerate(tokens):
            found.setdefault(tokens[:place], Counter())[token] += count
    return found


def examine(table: Table, counts: Counts, draws: int, cells: int) -> TableResult:
    """Tests the draws of one table. `cells`: of all tables."""
    following = by_prefix(counts)
    least = 2.0
    where: Tokens = ()
    for prefix in reachable(table):
        found = following.get(prefix, Counter())
        p = min(deviation(found[token], found.total(), mass) for token, mass in enumerate(table.target(prefix)))
        if p < least:
            least, where = p, prefix
    p_value = min(1.0, least * cells)
    found = following.get(where, Counter())
    total = max(1, found.total())
    return TableResult(
        name=table.name, kind=table.kind, passed=p_value > FALSE_ALARM, p_value=p_value, prefix=list(where),
        cells=[
            Cell(token=token, exact=str(mass), expected=float(mass), found=found[token] / total, count=found[token])
            for token, mass in enumerate(table.target(where))
        ],
        tokens_per_step=sum(len(tokens) * count for tokens, count in counts.items()) / draws,
        exact_tokens_per_step=float(expected_tokens(EXACT, table)),
    )  # fmt: skip


def diagnose(tables: Sequence[Table], counts: Sequence[Counts], cells: int) -> tuple[str | None, str | None]:
    """Returns the known mistake that explains the draws, or None and the nearest one."""
    pairs = list(zip(tables, counts, strict=True))

    def likelihood(rule: Rule) -> float:
        return sum(log_likelihood(law_of(rule, table), found) for table, found in pairs)

    candidates = [rule for rule in MISTAKES if any(rule.is_made_in(table) for table in tables)]
    best = max(candidates, key=likelihood)
    if all(explains(law_of(best, table), found, cells) for table, found in pairs):
        return best.name, None
    # Laws of what is emitted are compared, as likelihoods are zero where one token is impossible.
    nearest = min(candidates, key=lambda rule: sum(distance(law_of(rule, table), found) for table, found in pairs))
    return None, nearest.name


def law_of(rule: Rule, table: Table) -> Law:
    """Returns the law of a mistake; that of the exact rule where it cannot be made."""
    return law(rule if rule.is_made_in(table) else EXACT, table)


def log_likelihood(emitted: Law, counts: Counts) -> float:
    total = 0.0
    for tokens, count in counts.items():
        mass = emitted.get(tokens)
        if not mass:
            return -math.inf
        total += count * math.log(mass)
    return total


def explains(emitted: Law, counts: Counts, cells: int) -> bool:
    """Whether counts may be draws from a law, tested as the target's law is."""
    total = counts.total()
    tested = max(len(emitted), cells)
    return all(
        deviation(counts[tokens], total, emitted.get(tokens, Fraction(0))) * tested > FALSE_ALARM
        for tokens in {*emitted, *counts}
    )


def distance(emitted: Law, counts: Counts) -> float:
    """Returns the total variation distance between a law and the shares of counts."""
    total = counts.total()
    return sum(abs(float(emitted.get(tokens, 0)) - counts[tokens] / total) for tokens in {*emitted, *counts}) / 2


def is_unseen(rule: Rule, tables: Sequence[Table], draws: int, cells: int) -> bool:
    """Whether a mistake that can be made in these tables would pass the test, if all counts were as expected."""
    made = [table for table in tables if rule.is_made_in(table)]
    return bool(made) and not any(is_seen(rule, table, draws, cells) for table in made)


def is_seen(rule: Rule, table: Table, draws: int, cells: int) -> bool:
    following = next_tokens(law(rule, table))
    for prefix in reachable(table):
        masses = following.get(prefix, {})
        total = round(draws * sum(masses.values()))
        share = sum(masses.values()) or Fraction(1)
        for token, expected in enumerate(table.target(prefix)):
            count = round(total * masses.get(token, Fraction(0)) / share)
            if deviation(count, total, expected) * cells <= FALSE_ALARM:
                return True
    return False


def report_parts(report: Report) -> list[ShownTable | str]:
    """Returns the tables and lines of a report."""
    rows = [
        [result.kind, result.name, "pass" if result.passed else "FAIL", f"{result.p_value:.2g}",
         f"{result.tokens_per_step:.3f}", f"{result.exact_tokens_per_step:.3f}"]
        for result in report.tables
    ]  # fmt: skip
    columns = (
        *text_columns("drafts", "table", "result"), *number_columns("p-value", "tokens/step", "of the exact rule")
    )  # fmt: skip
    caption = (
        f"{report.draws} drafts per table; an exact verifier fails with a probability of at most {FALSE_ALARM:g}",
        "tokens/step: emitted per call, beside those of speculative sampling (trees: recursive rejection)",
    )
    parts: list[ShownTable | str] = [ShownTable(f"{report.verifier} ({report.adapter})", columns, rows, caption)]
    if (failed := report.failed) is not None:
        after = f"after the emitted tokens {failed.prefix}" if failed.prefix else "of the first token"
        parts.append(ShownTable(
            f"first failure: {failed.kind}, {failed.name}: the law {after}",
            number_columns("token", "exact", "expected", "found", "count"),
            [[str(cell.token), cell.exact, f"{cell.expected:.4f}", f"{cell.found:.4f}", str(cell.count)]
             for cell in failed.cells],
        ))  # fmt: skip
        parts.append(
            f"likely mistake: {report.mistake}" if report.mistake else
            f"likely mistake: none of the known ones explains all draws; the nearest: {report.nearest}"
        )  # fmt: skip
    if report.unseen:
        parts.append(f"undecided: {report.draws} drafts per table would not show: {'; '.join(report.unseen)}")
    meaning = {
        "pass": "keeps the target's distribution on all tables",
        "fail": "does not keep the target's distribution",
        "undecided": "no difference found, but give more --draws",
    }
    parts.append(f"{report.verdict}: {report.verifier} {meaning[report.verdict]} (p = {report.p_value:.2g})")
    return parts
