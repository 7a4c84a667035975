"""Rows → tables: one method by subset, several methods and tasks, draft trees, times by part, answers of servers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

from specbench.core.table import RULE, Column, Table, number_columns, text_columns
from specbench.report.captions import (
    bridges,
    caption_lines,
    drafter_kind,
    dtype_and_device,
    few_prompts_line,
    marked,
    sampling_of,
    score_heading,
    score_notes,
    verdict_word,
    warning_lines,
    why_unranked,
)
from specbench.report.concurrency import load_tables
from specbench.results.metric_format import NULL, metric_of, number, score_pair, speed, with_interval, without_digest
from specbench.results.metrics import COST, LEVEL_CHANCES, expected_speedup, numbered_metrics
from specbench.results.row import ALL, Row

SPEEDUP_HEADING = "speed-up\n95 % interval"


def speedup_cell(row: Row) -> str:
    """Returns the speed-up with its interval, and with a mark if a line below the table gives a warning."""
    return marked(with_interval(row.metric("speedup")), row)


def score_cell(row: Row) -> str:
    unit = metric_of(row.quality)
    return number(row.metric(row.quality), unit.digits, unit.factor)


def acceptance_cells(row: Row) -> list[str]:
    return [number(row.metric("acceptance_rate"), 3), number(row.metric("mean_acceptance_length"), 2)]


def acceptance_heading(rows: Sequence[Row]) -> str:
    """Returns the heading of α, which is defined for chains only."""
    return "α\n(chains)" if any(row.value("tree_nodes") is not None for row in rows) else "α"


def speed_cells(row: Row) -> list[str]:
    """Returns tok/s, the speed-up with its interval, and the main score."""
    return [speed(row.metric("tokens_per_second")), speedup_cell(row), score_cell(row)]


def run_table(rows: Sequence[Row]) -> Table:
    """Returns a table of one task and one method: a line per subset, then "all". Raises ValueError for no rows, and for
    rows of several tasks or methods."""
    if len({(row.task, row.method) for row in rows}) != 1:
        raise ValueError("a table shows the rows of one task and one method")
    lines = sorted(rows, key=lambda row: row.subset == ALL)
    cells = [
        [
            row.subset, str(row.n), *acceptance_cells(row), speed(row.metric("tokens_per_second_ar")),
            speed(row.metric("tokens_per_second")), speedup_cell(row), number(row.metric("speedup_expected"), 2),
            score_pair(row.metrics, row.quality),
        ]
        for row in lines
    ]  # fmt: skip
    if len(lines) > 1 and lines[-1].subset == ALL:
        cells.insert(-1, list(RULE))
    speeds = ("tok/s\nar", f"tok/s\n{lines[0].method_name}", SPEEDUP_HEADING, "expected\nspeed-up")
    figures = number_columns("n", acceptance_heading(lines), "τ", *speeds, f"{score_heading(lines)}\nar → method")
    caption = [*caption_lines(lines), *warning_lines(lines, [row.subset for row in lines]), *score_notes(lines)]
    return Table(
        f"{without_digest(lines[0].task)} · {without_digest(lines[0].method)}",
        (*text_columns("subset"), *figures),
        cells,
        caption,
    )


DRAFTER_WIDTH = 13  # characters; longer names are wrapped


def comparison_table(rows: Sequence[Row]) -> Table:
    """Returns a table of one task and subset: a line per method. `rows`: the baseline first."""
    cells = [
        [
            row.method_name, verdict_word(row), "by language" if "routes" in row.options
            else (row.drafter or drafter_kind(row)).rpartition("/")[2].rpartition(":")[2],
            str(row.num_draft_tokens), *acceptance_cells(row), number(row.metric("cost_ratio"), 3), *speed_cells(row),
        ]
        for row in rows
    ]  # fmt: skip
    figures = number_columns(
        "γ", acceptance_heading(rows), "τ", "c", "tok/s", SPEEDUP_HEADING, score_heading(rows).replace(" ", "\n")
    )
    columns = (
        *text_columns("method", folds=False),
        *text_columns("verdict"),
        Column("drafter", width=DRAFTER_WIDTH),
        *figures,
    )
    row = rows[0]
    command = "specbench audit --servers" if row.served is not None else "specbench audit"
    verdicts = f"not audited: `{command}` tests sampled outputs"
    if any(each.verdict != "not audited" for each in rows):
        verdicts = f"greedy equal: the greedy outputs equal AR's token by token; `{command}` tests sampled outputs too"
    engines = ", ".join(each.method_name for each in rows if each.engine != row.engine)
    caption = [
        f"target {row.target}, n = {row.n}; {sampling_of(row)}; {dtype_and_device(row)}",
        verdicts,
        *few_prompts_line(rows),
        *([f"compiled target, eager drafter: {engines}; do not compare rows of different engines"] if engines else []),
        *warning_lines(rows, [each.method_name for each in rows]),
        *(["compare methods with different bridges by τ and tok/s, not by α"] if _bridges_differ(rows) else []),
        "c: draft cost in target passes",
        *(f"{each.method_name} is not ranked: {reason}" for each in rows if (reason := why_unranked(each))),
    ]
    return Table(f"{without_digest(row.task)} · {row.subset} · {len(rows)} methods", columns, cells, caption)


def _bridges_differ(rows: Sequence[Row]) -> bool:
    return len({bridges(row) for row in rows if row.num_draft_tokens}) > 1


def overview_table(groups: Sequence[Sequence[Row]]) -> Table:
    """Returns a table of several tasks. `groups`: for each task its `all` rows, the baseline first."""
    cells: list[Sequence[str]] = []
    for rows in groups:
        for place, row in enumerate(rows):
            task = [row.task_name, str(row.n)] if place == 0 else ["", ""]
            label = score_heading(rows) if row.quality else ""
            cells.append([*task, row.method_name, *acceptance_cells(row), *speed_cells(row), label])
        cells.append(RULE)
    every = [row for group in groups for row in group]
    figures = number_columns(acceptance_heading(every), "τ", "tok/s", SPEEDUP_HEADING, "score")
    caption = [
        *(["do not compare α of methods with different bridges"] if any(map(_bridges_differ, groups)) else []),
        "do not compare scores of different tasks",
        *warning_lines(every, [f"{row.task_name} {row.method_name}" for row in every]),
    ]
    columns = (*text_columns("task"), *number_columns("n"), *text_columns("method"), *figures, *text_columns("of"))
    return Table(f"{len(groups)} tasks · all subsets", columns, cells, caption, num_keys=3)


TREE_NOTES = (
    "by depth, column d: the share of all steps that accepted at least d draft tokens; then the share of the steps "
    "with at least d − 1 accepted tokens that accepted at least d",
    "by rank, column b: of the verified nodes with b children or more, the share whose b-th child (the b-th candidate "
    "for the next token) was accepted",
)
RULE_CHANCES = (
    "of the rule: P(≥ d | ≥ d − 1) computed at sampled steps with drafts; at most: the same chance under the best "
    "lossless rule that verifies node by node, for children drawn in the same way"
)
MIN_DRAFT_COST = 0.005  # in target passes; cheaper drafts are look-ups, and are not shown as draft passes


def tree_table(rows: Sequence[Row]) -> Table:
    """Returns a table of the acceptance by depth and by rank, for the methods that draft. In a chain every node has one
    child, so the acceptance of the first rank is the pooled acceptance rate."""
    drafting = [row for row in rows if row.num_draft_tokens and any(row.accepted_tokens_per_step or ())]
    lines: dict[str, list[list[str]]] = {}
    has_chances = False
    for row in drafting:
        counts = row.accepted_tokens_per_step or ()
        reached = [sum(counts[depth:]) for depth in range(len(counts))]
        deeper = [(above, there) for above, there in pairwise(reached) if above]
        own = [
            ["P(≥ d accepted)", *(number(there / reached[0], 2) for _, there in deeper)],
            ["P(≥ d | ≥ d − 1)", *(number(there / above, 2) for above, there in deeper)],
        ]
        # Not for greedy rows, which draw nothing, nor for rules that do not know their chance.
        rule, optimum = ([number(c, 2) for c in numbered_metrics(row.metrics, name)] for name in LEVEL_CHANCES)
        if rule and row.sampling.temperature:
            has_chances = True
            own += [["– of the rule", *rule], ["– at most", *optimum]]
        is_chain = row.value("tree_nodes") is None
        ranks = [row.metric("acceptance_rate_pooled")] if is_chain else numbered_metrics(row.metrics, "rank_chance")
        own += [["P(child b accepted)", *(number(chance, 2) for chance in ranks)]] if ranks else []
        lines[row.method_name] = own
    width = max((len(line) for own in lines.values() for line in own), default=1)
    cells: list[Sequence[str]] = []
    for name, own in lines.items():
        cells += [[name], *([*line, *[""] * (width - len(line))] for line in own), RULE]
    columns = (*text_columns("share", folds=False), *number_columns(*map(str, range(1, width))))
    trees = (_tree_line(row) for row in drafting if row.value("tree_nodes") is not None)
    title = f"{without_digest(rows[0].task)} · {rows[0].subset} · acceptance by depth and by rank"
    return Table(title, columns, cells, [*TREE_NOTES, *([RULE_CHANCES] if has_chances else []), *trees])


def _tree_line(row: Row) -> str:
    def shown(name: str, digits: int) -> str:
        return number(row.metric(name), digits)

    costs = {int(name.removeprefix(f"{COST}@")): name for name in row.metrics if name.startswith(f"{COST}@")}
    listed = ", ".join(f"{shown(costs[most], 2)} for {most // 2 + 1} to {most}" for most in sorted(costs))
    by_length = f": {listed} tokens" if len(costs) > 1 else ""
    drafts = f"{shown('draft_passes_per_step', 1)} draft passes of {shown('cost_ratio', 3)} each (c), "
    has_passes = (row.value("cost_ratio") or 0.0) >= MIN_DRAFT_COST
    return (
        f"{row.method_name}: a step drafts {shown('tree_nodes', 1)} tokens on {shown('tree_depth', 1)} levels, "
        f"of which a share of {shown('draft_efficiency', 3)} is accepted. Costs of a step in passes of "
        f"ar: {drafts if has_passes else ''}one pass over the tree of {shown('verification_cost', 2)} (v"
        f"{by_length}), and overhead. For {shown('mean_acceptance_length', 2)} tokens per step (τ) they explain a "
        f"speed-up of {shown('speedup_of_costs', 2)}; measured: {shown('speedup', 2)}"
    )


PARTS = {
    "draft": "draft_seconds", "verify": "verify_seconds", "rule and sampling": "rule_seconds",
    "tokenizer": "tokenizer_seconds", "other": "other_seconds",
}  # fmt: skip
MILLISECONDS = 1000.0


def breakdown_table(rows: Sequence[Row]) -> Table:
    """Returns a table of one task and subset with a line per method: milliseconds per emitted token after the first, in
    all and by part."""
    plain, cells = token_pass(rows), []
    for row in rows:
        spent = per_token(row)
        draft, whole = spent["draft"], spent["all"]
        costs = [number(row.metric("acceptance_rate"), 3), number(row.metric("cost_ratio"), 3)]
        cells.append(
            [
                row.method_name, *(number(spent[part], 2) for part in ("all", *PARTS)),
                NULL if draft is None or not whole else f"{draft / whole:.0%}", *costs,
                number(verification_cost(row, plain), 2),
            ]
        )  # fmt: skip
    parts = ("all", "draft", "verify", "rule and\nsampling", "tokenizer", "other", "draft\nshare")
    figures = number_columns(*parts, acceptance_heading(rows), "draft\ncost c", "verify\ncost v")
    warnings = [expensive_verification(rows), explanation_line(rows), *(skewed_cost(row, plain) for row in rows)]
    caption = [
        "tokenizer: retokenization and stop strings; other: Python and caches",
        "draft cost c: the median draft pass in median target passes",
        "verification cost v: the mean verifying pass ÷ the mean pass of ar",
        *filter(None, warnings),
    ]
    title = f"{without_digest(rows[0].task)} · {rows[0].subset} · ms per token"
    return Table(title, (*text_columns("method"), *figures), cells, caption)


def per_token(row: Row) -> dict[str, float | None]:
    """Returns milliseconds per emitted token by part; None for a part that the records lack. "all" is 1000 ÷ tok/s, and
    the parts are scaled to sum to it."""
    speed = row.value("tokens_per_second")
    spent = [row.value(name) for name in ("draft_seconds", "verify_seconds", "overhead_seconds")]
    whole = None if not speed else MILLISECONDS / speed
    if whole is None or None in spent or not (total := sum(filter(None, spent))):
        return {"all": whole, **dict.fromkeys(PARTS)}
    parts, scale = {part: row.value(name) for part, name in PARTS.items()}, whole / total
    return {"all": whole, **{part: None if seconds is None else scale * seconds for part, seconds in parts.items()}}


SAME = 0.02  # acceptance rates that differ by less, and speed-ups that differ by a smaller share, count as equal


def explanation_line(rows: Sequence[Row]) -> str | None:
    """Returns a line on the method with the highest acceptance rate that is slower than a method with a lower one, and
    on the part that takes it most additional time. If there is none, a line on the largest part of the slowest method
    that is slower than the baseline. None if there is none either.

    Acceptance rates do not compare across bridges, nor with prescribed ones. If the intervals of two speed-ups overlap,
    neither method is slower.
    """
    needed, plain = ("acceptance_rate", "speedup", "draft_seconds"), token_pass(rows)
    known = [row for row in rows if all(row.value(name) is not None for name in needed) and why_unranked(row) is None]
    beaten = [pair for pair in permutations(known, 2) if _accepts_more_and_is_slower(*pair)]
    if beaten:
        slow, fast = max(beaten, key=lambda pair: (_number(pair[0], "acceptance_rate"), _number(pair[1], "speedup")))
        spent, spent_fast = per_token(slow), per_token(fast)
        more = {part: (spent[part] or 0.0) - (spent_fast[part] or 0.0) for part in PARTS}
        part = max(more, key=lambda name: more[name])
        reason = f"{slow.method_name} takes {more[part]:.1f} ms more per token for {part}"
        return f"{_summary(slow)}, {_summary(fast)}: {reason}{_causes(part, slow, plain, fast)}"
    slower = [row for row in known if (row.metric("speedup").high or _number(row, "speedup")) < 1]
    if not slower:
        return None
    slow = min(slower, key=lambda row: _number(row, "speedup"))
    spent = per_token(slow)
    part = max(PARTS, key=lambda name: spent[name] or 0.0)
    share = (spent[part] or 0.0) / (spent["all"] or 1.0)
    return f"{_summary(slow)}: {part} takes {share:.0%} of its time{_causes(part, slow, plain)}"


def _accepts_more_and_is_slower(row: Row, other: Row) -> bool:
    """Returns whether `row` accepts more than `other` and is slower. Rows with different bridges or engines do not
    compare."""
    if bridges(row) != bridges(other) or row.engine != other.engine:
        return False
    if _number(row, "acceptance_rate") <= _number(other, "acceptance_rate") + SAME:
        return False
    high, low = row.metric("speedup").high, other.metric("speedup").low
    if high is not None and low is not None:
        return high < low
    return _number(row, "speedup") < (1 - SAME) * _number(other, "speedup")


def _causes(part: str, row: Row, plain: float | None, other: Row | None = None) -> str:
    """Returns in brackets the numbers that explain a part: the draft cost for drafting; τ and the verification cost for
    verifying. Each has the number of another method if it differs."""

    def numbers(of: Row) -> dict[str, str]:
        values = {
            "draft": {"c": of.value("cost_ratio")},
            "verify": {"τ": of.value("mean_acceptance_length"), "v": verification_cost(of, plain)},
        }.get(part, {})
        return {sign: f"{value:.2f}" for sign, value in values.items() if value is not None}

    others = {} if other is None else numbers(other)
    texts = [
        f"{sign} = {value}" + (f", not {others[sign]}" if others.get(sign, value) != value else "")
        for sign, value in numbers(row).items()
    ]
    return f" ({'; '.join(texts)})" if texts else ""


def _summary(row: Row) -> str:
    return f"{row.method_name} has α {_number(row, 'acceptance_rate'):.2f} and {_number(row, 'speedup'):.2f}×"


SKEWED = 1.5  # a mean draft cost ÷ c from here on is reported
NEGLIGIBLE = 0.05  # an effect on a step below this, in passes of the baseline, is not reported
EXPENSIVE = 1.25  # a verification cost from here on, in passes of the baseline, is reported


def token_pass(rows: Sequence[Row]) -> float | None:
    """Returns the mean seconds of a pass of the baseline; None if the rows do not include the baseline, or if it made
    none after its prefills, as all answers have one token."""
    plain = next((row for row in rows if row.is_baseline and any(row.accepted_tokens_per_step or ())), None)
    return None if plain is None else _number(plain, "verify_seconds") / sum(plain.accepted_tokens_per_step or ())


def verification_cost(row: Row, plain: float | None) -> float | None:
    """Returns the verification cost v: the mean verifying pass ÷ `plain`, the mean seconds of a pass of the baseline.
    None if the steps of the method are unknown."""
    whole, num_passes = row.value("verify_seconds"), sum(row.accepted_tokens_per_step or ())
    return whole / num_passes / plain if whole and num_passes and plain else None


def expensive_verification(rows: Sequence[Row]) -> str | None:
    """Returns a line with the expected speed-ups at the measured verification costs, for methods whose cost is well
    above the one pass that the formula assumes; None without such a method."""
    plain, expected = token_pass(rows), []
    for row in rows:
        cost = verification_cost(row, plain)
        if cost and cost >= EXPENSIVE and row.value("speedup_expected") is not None:
            rate, cost_ratio = _number(row, "acceptance_rate"), _number(row, "cost_ratio")
            speedup = expected_speedup(rate, row.num_draft_tokens, cost_ratio, cost)
            expected.append(f"{row.method_name} {speedup:.2f}")
    assumed = "the expected speed-up assumes that a verifying pass costs as much as a pass of ar"
    return f"{assumed}; with v instead it is {', '.join(expected)}" if expected else None


def skewed_cost(row: Row, plain: float | None) -> str | None:
    """Returns a line if the mean draft cost is well above the median draft cost c; otherwise None. The mean is a lower
    bound, since it counts every step as if it had drafted all its tokens. It is unknown for drafts as text."""
    cost, whole = row.value("cost_ratio"), row.value("draft_seconds")
    num_passes = row.num_draft_tokens * sum(row.accepted_tokens_per_step or ())
    if not (cost and whole and num_passes and plain) or row.value("speedup_expected") is None:
        return None
    mean = whole / num_passes / plain
    if mean < SKEWED * cost or row.num_draft_tokens * (mean - cost) < NEGLIGIBLE:
        return None
    return (
        f"{row.method_name}: c = {cost:.3f} compares medians, but the mean draft pass took {mean:.3f} target passes: "
        "a few were much slower than the rest (a busy machine?); the expected speed-up uses c"
    )


def _number(row: Row, name: str) -> float:
    return row.value(name) or 0.0


def served_table(rows: Sequence[Row]) -> Table:
    """Returns a table of one task and subset: times of an answer and the source of acceptance, one line per server."""
    conditions = [row.served for row in rows if row.served is not None]
    cells = [
        [
            row.method_name, *(number(row.metric(name), 1, 1000) for name in ("ttft_seconds", "e2e_seconds")),
            number(row.metric("tpot_seconds"), 2, 1000), number(row.metric("accepted_per_drafted"), 3),
            serving.acceptance_source,
        ]
        for row, serving in zip(rows, conditions, strict=True)
    ]  # fmt: skip
    figures = number_columns("TTFT\nms", "E2E\nms", "TPOT\nms", "accepted\n÷ drafted")
    first, changed = conditions[0], rows[0].metric("ar_changed")
    turns = f"in turns ({first.turns} parts, which intervals of speeds resample)"
    by_turns = f"; one server at a time, {turns}" if first.turns else ""
    caption = [
        "medians over answers, by the client's clock; TPOT: time after the first read ÷ tokens after it",
        "accepted ÷ drafted: by the engine's counts, which include tokens after the end; it is not α",
        f"{rows[0].engine}; one request at a time{by_turns}; memory: {first.memory or 'not stated'}; "
        f"prompt caches: {first.caches}",
    ]
    if changed.value is not None:
        caption.append(f"control: asked again, 'ar' changed {with_interval(changed, 1, 100)} % of its answers")
    columns = (*text_columns("server", folds=False), *figures, *text_columns("acceptance from"))
    return Table(f"{without_digest(rows[0].task)} · {rows[0].subset} · answers of servers", columns, cells, caption)


@dataclass(frozen=True)
class RunRows:
    """The rows of a run or of a leaderboard file, as the tables that a run prints."""

    rows: Sequence[Row]

    def tables(self) -> Iterator[Table]:
        """Yields a table for each method, then the comparison, the draft trees and the time breakdown of each task, an
        overview of several tasks, and the tables of loads."""
        yield from map(run_table, self.by_method())
        groups = self.by_task()
        for group in groups:
            if len(group) > 2:
                yield comparison_table(group)
            if any(row.value("tree_nodes") is not None for row in group):
                yield tree_table(group)
            yield breakdown_table(group) if group[0].served is None else served_table(group)
        if len(groups) > 1:
            yield overview_table(groups)
        yield from load_tables(self.rows)

    def by_method(self) -> list[list[Row]]:
        """Returns the rows of each task and method without rows of a load; AR's only if it is the only method."""
        rows = [row for row in self.rows if not row.level]
        pairs = dict.fromkeys((row.task, row.method) for row in rows)
        shown = [pair for pair in pairs if not pair[1].startswith("ar@")] or list(pairs)
        return [[row for row in rows if (row.task, row.method) == pair] for pair in shown]

    def by_task(self) -> list[list[Row]]:
        """Returns the rows of each task over all its subsets, or of its only subset: a row per method."""
        groups = []
        for task in dict.fromkeys(row.task for row in self.rows):
            rows = [row for row in self.rows if row.task == task and not row.level]
            subset = rows[-1].subset  # `all` comes last
            groups.append([row for row in rows if row.subset == subset])
        return groups
