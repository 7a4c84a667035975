"""Rows → tables: one method by subset, several methods and tasks, draft trees, times by part, servers, loads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from specbench.core.console import counted
from specbench.core.table import RULE, Table, number_columns, text_columns
from specbench.report.breakdown import breakdown_table
from specbench.report.captions import (
    bridges,
    caption_lines,
    dtype_and_device,
    few_prompts_line,
    marked,
    sampling_of,
    score_notes,
    untested_lines,
    warning_lines,
    why_unranked,
)
from specbench.report.columns import (
    COST,
    DRAFTER,
    EXPECTED_SPEEDUP,
    LENGTH,
    METHOD,
    NUM_DRAFT_TOKENS,
    SCORE_NAME,
    SERVER,
    SPEED,
    SPEED_OF_AR,
    SPEEDUP,
    SUBSET,
    TASK,
    UNBROKEN_METHOD,
    VERDICT,
    N,
    RowColumn,
    acceptance_column,
    cells_of,
    marked_ratio,
    metric_column,
    score_column,
    score_pair_column,
    speed_column,
)
from specbench.results.concurrency import (
    BASELINE,
    LoadMap,
    break_even,
    is_faster,
    load_groups,
    load_maps,
    load_of,
    rows_by_server,
)
from specbench.results.metric_format import NULL, number, with_interval, without_digest
from specbench.results.metrics import COST as COST_OF_LENGTH
from specbench.results.metrics import LEVEL_CHANCES, numbered_metrics
from specbench.results.row import ALL, Row


def run_table(rows: Sequence[Row], why_unscored: str = "") -> Table:
    """Returns a table of one task and one method: a line per subset, then "all". Raises ValueError for no rows, and for
    rows of several tasks or methods."""
    if len({(row.task, row.method) for row in rows}) != 1:
        raise ValueError("a table shows the rows of one task and one method")
    rows = sorted(rows, key=lambda row: row.subset == ALL)
    own_speed = replace(SPEED, heading=f"tok/s\n{rows[0].method_name}")
    columns = [
        SUBSET, N, acceptance_column(rows), LENGTH, SPEED_OF_AR, own_speed, SPEEDUP, EXPECTED_SPEEDUP,
        score_pair_column(rows),
    ]  # fmt: skip
    cells: list[Sequence[str]] = [*cells_of(rows, columns)]
    if len(rows) > 1 and rows[-1].subset == ALL:
        cells.insert(-1, RULE)
    caption = [
        *caption_lines(rows),
        *warning_lines(rows, [row.subset for row in rows]),
        *score_notes(rows, why_unscored),
    ]
    return Table(f"{without_digest(rows[0].task)} · {without_digest(rows[0].method)}", columns, cells, caption)


def comparison_table(rows: Sequence[Row]) -> Table:
    """Returns a table of one task and subset: a line per method. `rows`: the baseline first."""
    columns = [
        UNBROKEN_METHOD, VERDICT, DRAFTER, NUM_DRAFT_TOKENS, acceptance_column(rows), LENGTH, COST, SPEED, SPEEDUP,
        score_column(rows),
    ]  # fmt: skip
    row = rows[0]
    command = "specbench audit --servers" if row.served is not None else "specbench audit"
    verdicts = f"not audited: `{command}` tests sampled outputs"
    if any(each.verdict != "not audited" for each in rows):
        verdicts = f"greedy equal: the greedy outputs equal AR's token by token; `{command}` tests sampled outputs too"
    caption = [
        f"target {row.target}, n = {row.n}; {sampling_of(row)}; {dtype_and_device(row)}",
        *([f"measured: {row.told_examples}"] if row.coverage is not None and row.coverage.chosen != "all" else []),
        verdicts,
        *few_prompts_line(rows),
        *engine_lines(rows),
        *warning_lines(rows, [each.method_name for each in rows]),
        *(["compare methods with different bridges by τ and tok/s, not by α"] if _bridges_differ(rows) else []),
        "c: draft cost in target passes",
        *(f"{each.method_name} is not ranked: {reason}" for each in rows if (reason := why_unranked(each))),
    ]
    title = f"{without_digest(row.task)} · {row.subset} · {len(rows)} methods"
    return Table(title, columns, cells_of(rows, columns), caption)


def engine_lines(rows: Sequence[Row]) -> list[str]:
    """Returns a line for each engine that is not the baseline's, with the methods whose rows have it."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.engine != rows[0].engine:
            names.setdefault(row.engine, []).append(row.method_name)
    return [
        f"{engine + ', eager drafter' if engine.endswith(' target') else engine}: {', '.join(each)}; do not compare "
        "rows of different engines" for engine, each in names.items()
    ]  # fmt: skip


def _bridges_differ(rows: Sequence[Row]) -> bool:
    return len({bridges(row) for row in rows if row.num_draft_tokens}) > 1


def overview_table(groups: Sequence[Sequence[Row]]) -> Table:
    """Returns a table of several tasks. `groups`: for each task its `all` rows, the baseline first."""
    every = [row for group in groups for row in group]
    columns = [
        TASK, N, METHOD, acceptance_column(every), LENGTH, SPEED, SPEEDUP, score_column(every, "score"), SCORE_NAME
    ]  # fmt: skip
    cells: list[Sequence[str]] = []
    for rows in groups:
        first, *others = cells_of(rows, columns)
        cells += [first, *(["", "", *line[2:]] for line in others), RULE]
    caption = [
        *(["do not compare α of methods with different bridges"] if any(map(_bridges_differ, groups)) else []),
        "do not compare scores of different tasks",
        *warning_lines(every, [f"{row.task_name} {row.method_name}" for row in every]),
    ]
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
    cells: list[Sequence[str]] = []
    has_chances = False
    for row in drafting:
        counts = row.accepted_tokens_per_step or ()
        reached = [sum(counts[depth:]) for depth in range(len(counts))]
        deeper = [(above, there) for above, there in pairwise(reached) if above]
        cells += [
            [row.method_name],
            ["P(≥ d accepted)", *(number(there / reached[0], 2) for _, there in deeper)],
            ["P(≥ d | ≥ d − 1)", *(number(there / above, 2) for above, there in deeper)],
        ]
        # Not for greedy rows, which draw nothing, nor for rules that do not know their chance.
        rule, optimum = ([number(c, 2) for c in numbered_metrics(row.metrics, name)] for name in LEVEL_CHANCES)
        if rule and row.sampling.temperature:
            has_chances = True
            cells += [["– of the rule", *rule], ["– at most", *optimum]]
        is_chain = row.value("tree_nodes") is None
        ranks = [row.metric("acceptance_rate_pooled")] if is_chain else numbered_metrics(row.metrics, "rank_chance")
        cells += [["P(child b accepted)", *(number(chance, 2) for chance in ranks)]] if ranks else []
        cells.append(RULE)
    width = max(map(len, cells), default=1)
    cells = [[*line, *[""] * (width - len(line))] if len(line) > 1 else line for line in cells]
    columns = (*text_columns("share", folds=False), *number_columns(*map(str, range(1, width))))
    trees = (_tree_line(row) for row in drafting if row.value("tree_nodes") is not None)
    title = f"{without_digest(rows[0].task)} · {rows[0].subset} · acceptance by depth and by rank"
    return Table(title, columns, cells, [*TREE_NOTES, *([RULE_CHANCES] if has_chances else []), *trees])


def _tree_line(row: Row) -> str:
    def shown(name: str, digits: int) -> str:
        return number(row.metric(name), digits)

    costs = sorted((int(name.partition("@")[2]), name) for name in row.metrics if name.startswith(f"{COST_OF_LENGTH}@"))
    listed = ", ".join(f"{shown(name, 2)} for {most // 2 + 1} to {most}" for most, name in costs)
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


ANSWERS_OF_SERVERS = (
    SERVER, metric_column("ttft_seconds", "TTFT\nms", 1, 1000), metric_column("ttft_p99_seconds", "p99", 1, 1000),
    metric_column("e2e_seconds", "E2E\nms", 1, 1000), metric_column("e2e_p99_seconds", "p99", 1, 1000),
    metric_column("tpot_seconds", "TPOT\nms", 2, 1000), metric_column("tpot_p99_seconds", "p99", 2, 1000),
    metric_column("accepted_per_drafted", "accepted\n÷ drafted"),
    RowColumn("acceptance from", cell=lambda row: "" if row.served is None else row.served.acceptance_source),
)  # fmt: skip


FIRST_ANSWER = [
    metric_column("ttfa_seconds", "TTFA\nms", 1, 1000), metric_column("ttfa_p99_seconds", "p99", 1, 1000)
]  # fmt: skip
FIRST_ANSWERS = "TTFA: to the first text behind the reasoning; answers that ended inside their reasoning have none"


def served_table(rows: Sequence[Row]) -> Table:
    """Returns a table of one task and subset: times of an answer and the source of acceptance, one line per server."""
    row = rows[0]
    served = rows[0].served
    changed = rows[0].metric("ar_changed")
    assert served is not None
    turns = f"in rotation ({served.turns} parts, which intervals of speeds resample)"
    by_turns = f"; one server at a time, {turns}" if served.turns else ""
    caption = [
        "medians and 99th percentiles over answers, by the client's clock; TPOT: time after the first read ÷ tokens "
        "after it",
        "accepted ÷ drafted: by the engine's counts, which include tokens after the end; it is not α",
        f"{row.engine}; one request at a time{by_turns}; memory: {served.memory or 'not stated'}; "
        f"prompt caches: {served.caches}",
    ]
    if changed.value is not None:
        caption.append(f"control: asked again, 'ar' changed {with_interval(changed, 1, 100)} % of its answers")
    columns = list(ANSWERS_OF_SERVERS)
    if any("ttfa_seconds" in each.metrics for each in rows):
        columns[3:3] = FIRST_ANSWER
        caption.append(FIRST_ANSWERS)
    title = f"{without_digest(row.task)} · {row.subset} · answers of servers"
    return Table(title, columns, cells_of(rows, columns), caption)


def _not_of_ar(column: RowColumn) -> RowColumn:
    """Returns a column with a dash for the baseline, for a metric that compares with it."""
    return replace(column, cell=lambda row: NULL if row.method_name == BASELINE else column.cell(row))


# The ratios in the table of each kind of load.
RATIOS = {
    "concurrency": [marked_ratio("speedup", "speed-up\n95 %")],
    "rate": [marked_ratio("tpot_ratio", "TPOT ratio\n95 %"), marked_ratio("e2e_ratio", "E2E ratio\n95 %")],
}
BY_RATE = (
    "TPOT and E2E ratio: medians of windows of ar ÷ those of the server, above 1 if it is faster; there is no speed-up "
    "in tok/s, since below saturation both servers write as fast as requests come"
)


def load_tables(rows: Sequence[Row]) -> list[Table]:
    """Returns a table of throughput, latencies and ratios for each task, subset, kind of load and context: a line per
    level and server. Then the maps of speed-ups by concurrency and context."""
    return [*map(_load_table, load_groups(rows)), *map(_map_table, load_maps(rows))]


def _load_table(rows: Sequence[Row]) -> Table:
    first, load = rows[0], load_of(rows[0])
    unit = "in flight" if load.kind == "concurrency" else "per s"
    columns = [
        RowColumn(f"requests\n{unit}", True, cell=lambda row: f"{load_of(row).level:g}"), SERVER,
        speed_column("tokens_per_second", "total\ntok/s"), *map(_not_of_ar, RATIOS[load.kind]),
        speed_column("tokens_per_second_user", "tok/s\nper user"), _not_of_ar(LENGTH),
        _not_of_ar(metric_column("pass_ratio", "pass ÷\nAR's", 2)),
        metric_column("ttft_seconds", "TTFT ms\nmedian", 0, 1000), metric_column("ttft_p99_seconds", "p99", 0, 1000),
        metric_column("tpot_seconds", "TPOT ms\nmedian", 2, 1000), metric_column("tpot_p99_seconds", "p99", 2, 1000),
    ]  # fmt: skip
    reasons = any("ttfa_seconds" in row.metrics for row in rows)
    if reasons:
        columns += [
            metric_column("ttfa_seconds", "TTFA ms\nmedian", 0, 1000),
            metric_column("ttfa_p99_seconds", "p99", 0, 1000),
        ]
    lines: list[Sequence[str]] = []
    for row, cells in zip(rows, cells_of(rows, columns), strict=True):
        lines += [RULE, cells] if row.method_name == BASELINE and lines else [cells]
    names = [f"{row.method_name} at {load_of(row).level:g}" for row in rows]
    caption = [
        f"{counted(load.windows, 'window')} of each server at each level, in rotation; intervals resample windows",
        "total tok/s: under full load, without ramp-up and drain; latencies: of all answers",
        *([FIRST_ANSWERS] if reasons else []),
        *([BY_RATE] if load.kind == "rate" else []),
        "per user, speed-up = τ ÷ (pass ÷ AR's): the gain of speculation ÷ the cost of its passes at this load",
        *filter(None, (break_even_line(server_rows) for server_rows in rows_by_server(rows)[1:])),
        *dict.fromkeys(f"{row.method_name}: not ranked: {why}" for row in rows if (why := why_unranked(row))),
        *untested_lines(rows, names),
        *warning_lines(rows, names),
    ]
    context = "" if load.context is None else f" · {load.context} tokens"
    title = f"{first.task_name} · {first.subset} · load by {load.kind}{context}"
    return Table(title, columns, lines, caption, num_keys=2)


SLOWER, LIKE_AR = "↓", "≈"


def _map_table(found: LoadMap) -> Table:
    """Returns the speed-ups of a method: a line per number of requests in flight, a column per context."""
    marks = {True: "", None: LIKE_AR, False: SLOWER}

    def cell(row: Row | None) -> str:
        return NULL if row is None else marked(f"{marks[is_faster(row)]}{with_interval(row.metric('speedup'))}", row)

    lines = [
        [f"{level:g}", *(cell(found.cells.get((level, each))) for each in found.contexts)] for level in found.levels
    ]
    rows = list(found.cells.values())
    names = [f"{load_of(row).level:g} × {load_of(row).context}" for row in rows]
    caption = [
        "speed-up in total tok/s over ar with as many requests in flight and tokens of context; 95 % over windows",
        *map_lines(found),
        *([f"{NULL}: not measured"] if len(rows) < len(found.levels) * len(found.contexts) else []),
        *warning_lines(rows, names),
    ]
    columns = number_columns("requests\nin flight", *(f"{context} tokens\n[95 %]" for context in found.contexts))
    title = f"{found.task} · {found.subset} · {found.method} by concurrency and context"
    return Table(title, columns, lines, caption, num_keys=1)


def map_lines(found: LoadMap) -> list[str]:
    """Returns which cells of a map are below 1, and which cannot be told from it."""

    def named(outcome: bool | None) -> str:
        cells = sorted(place for place, row in found.cells.items() if is_faster(row) is outcome)
        return ", ".join(f"{level:g} × {context}" for level, context in cells)

    texts = {False: f"{SLOWER} slower than ar", None: f"{LIKE_AR} not separable from ar"}
    return [f"{text}: {cells}" for outcome, text in texts.items() if (cells := named(outcome))]


def break_even_line(rows: Sequence[Row]) -> str:
    """Returns where a server's throughput falls to AR's; empty for a single level and for a load by rate."""
    if len(rows) < 2 or load_of(rows[0]).kind == "rate":
        return ""
    level = break_even(rows)
    seen_outcomes = {is_faster(row) for row in rows}
    if level.value is not None:
        return f"{rows[0].method_name}: as fast as ar at {with_interval(level, 1)} (interpolated)"
    outcomes = {True: "faster than ar", False: "slower than ar", None: "not separable from ar"}
    seen = [text for outcome, text in outcomes.items() if outcome in seen_outcomes]
    if len(seen) == 1:
        return f"{rows[0].method_name}: {seen[0]} at {'any' if None in seen_outcomes else 'every'} measured level"
    return f"{rows[0].method_name}: {' at some levels, '.join(seen)} at others"


@dataclass(frozen=True)
class RunRows:
    """The rows of a run or of a leaderboard file, as the tables that a run prints. `why_unscored`: by task the reason
    why answers have no score, if it is known."""

    rows: Sequence[Row]
    why_unscored: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def tables(self) -> Iterator[Table]:
        """Yields a table for each method, then the comparison, the draft trees and the time breakdown of each task, an
        overview of several tasks, and the tables of loads."""
        for rows in self.by_method():
            yield run_table(rows, self.why_unscored.get(rows[0].task_name, ""))
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
