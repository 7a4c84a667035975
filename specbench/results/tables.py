"""Rows → tables: one method by subset, several methods, draft trees, and several tasks."""

from collections.abc import Sequence
from itertools import pairwise

from specbench.core.table import RULE, Column, Table, numbers, words
from specbench.results.captions import (
    FEW,
    bridges,
    caption_lines,
    drafter_kind,
    dtype_and_device,
    has_few_prompts,
    sampling_of,
    score_heading,
    score_notes,
    verdict_word,
    why_unranked,
)
from specbench.results.row import ALL, Row
from specbench.results.trees import COST, LEVEL_CHANCES, numbered_metrics
from specbench.results.units import number, score_pair, short, speed, unit_of, with_interval

MARK = "†"
MIN_DRAFT_COST = 0.005  # in target passes; cheaper drafts are look-ups, and are not shown as draft passes


def speedup_cell(row: Row) -> str:
    """Returns the speed-up with its interval, and with a mark if a line below the table gives a warning."""
    return marked(with_interval(row.metric("speedup")), row)


def marked(text: str, row: Row) -> str:
    """Returns the text of a speed-up, with the mark if the row has a warning."""
    return f"{text} {MARK}" if marked_warnings(row) else text


def marked_warnings(row: Row) -> dict[str, str]:
    """Returns the text of each marked warning by its code. Few prompts have a line of their own in every caption."""
    return {warning.code: warning.text for warning in row.warnings if warning.code != "few_prompts"}


def warning_lines(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Returns a line for each kind of warning: the text of the first row that has it, and the names of the others."""
    found: dict[str, list[tuple[str, str]]] = {}
    for row, name in zip(rows, names, strict=True):
        for code, text in marked_warnings(row).items():
            found.setdefault(code, []).append((name, text))
    lines = []
    for (first, text), *others in found.values():
        same = dict.fromkeys(name for name, _ in others if name != first)
        numbers_differ = ", with other numbers" * any(other != text for _, other in others)
        lines.append(f"{MARK} {first}: {text}" + (f"; also for {', '.join(same)}{numbers_differ}" if same else ""))
    return lines


def score_cell(row: Row) -> str:
    """Returns the main score in its unit."""
    unit = unit_of(row.quality)
    return number(row.metric(row.quality), unit.digits, unit.factor)


def acceptance_cells(row: Row) -> list[str]:
    """Returns α and τ."""
    return [number(row.metric("acceptance_rate"), 3), number(row.metric("mean_acceptance_length"), 2)]


def acceptance_heading(rows: Sequence[Row]) -> str:
    """Returns the heading of α, which is defined for chains only."""
    return "α\n(chains)" if any(row.value("tree_nodes") is not None for row in rows) else "α"


def speed_cells(row: Row) -> list[str]:
    """Returns tok/s, the speed-up with its interval, and the main score."""
    return [speed(row.metric("tokens_per_second")), speedup_cell(row), score_cell(row)]


def run_table(rows: Sequence[Row]) -> Table:
    """Returns a table of one task and one method: a line per subset, then "all".

    Raises ValueError for no rows, and for rows of several tasks or methods.
    """
    if len({(row.task, row.method) for row in rows}) != 1:
        raise ValueError("a table shows the rows of one task and one method")
    lines = sorted(rows, key=lambda row: row.subset == ALL)
    speeds = numbers("tok/s\nar", f"tok/s\n{lines[0].method_name}")
    figures = numbers("speed-up\n95 % interval", "expected\nspeed-up", f"{score_heading(lines)}\nar → method")
    cells = [_run_cells(row) for row in lines]
    if len(lines) > 1 and lines[-1].subset == ALL:
        cells.insert(-1, list(RULE))
    return Table(
        f"{short(lines[0].task)} · {short(lines[0].method)}",
        (*words("subset"), *numbers("n", acceptance_heading(lines), "τ"), *speeds, *figures),
        cells,
        [*caption_lines(lines), *warning_lines(lines, [row.subset for row in lines]), *score_notes(lines)],
    )


def tree_table(rows: Sequence[Row]) -> Table:
    """Returns a table of the acceptance by depth and by rank, for the methods that draft. In a chain every node has one
    child, so the acceptance of the first rank is the pooled acceptance rate."""
    drafting = [row for row in rows if row.num_draft_tokens and any(row.accepted_tokens_per_step or ())]
    lines = {row.method_name: _depth_cells(row) for row in drafting}
    width = max((len(line) for found in lines.values() for line in found), default=1)
    cells: list[Sequence[str]] = []
    for name, found in lines.items():
        cells += [[name], *([*line, *[""] * (width - len(line))] for line in found), RULE]
    columns = (*words("share", folds=False), *numbers(*map(str, range(1, width))))
    return Table(
        f"{short(rows[0].task)} · {rows[0].subset} · acceptance by depth and by rank",
        columns,
        cells,
        [
            "by depth, column d: the share of all steps that accepted at least d draft tokens; then the share of the "
            "steps with at least d − 1 accepted tokens that accepted at least d",
            "by rank, column b: of the judged nodes with b children or more, the share whose b-th child (the b-th "
            "candidate for the next token) was accepted",
            *([RULE_CHANCES] if any(_level_cells(row) for row in drafting) else []),
            *(_tree_line(row) for row in drafting if row.value("tree_nodes") is not None),
        ],
    )


def _depth_cells(row: Row) -> list[list[str]]:
    """Returns the lines of a method: P(≥ d accepted), P(≥ d | ≥ d − 1), the chances by its rule, and those by rank."""
    counts = row.accepted_tokens_per_step or ()
    reached = [sum(counts[depth:]) for depth in range(len(counts))]
    deeper = [(above, there) for above, there in pairwise(reached) if above]
    is_chain = row.value("tree_nodes") is None
    chances = [row.metric("acceptance_rate_pooled")] if is_chain else numbered_metrics(row.metrics, "rank_chance")
    return [
        ["P(≥ d accepted)", *(_share(there, reached[0]) for _, there in deeper)],
        ["P(≥ d | ≥ d − 1)", *(_share(there, above) for above, there in deeper)],
        *_level_cells(row),
        *([["P(child b accepted)", *(number(chance, 2) for chance in chances)]] if chances else []),
    ]


RULE_CHANCES = (
    "of the rule: P(≥ d | ≥ d − 1) computed at sampled steps with drafts; at most: the same chance under the best "
    "lossless rule that judges node by node, for children drawn in the same way"
)


def _level_cells(row: Row) -> list[list[str]]:
    """Returns the lines of the rule's chance by level and of its optimum; no lines for greedy rows, which draw nothing,
    and if the rule does not know its chance."""
    rule, optimum = ([number(chance, 2) for chance in numbered_metrics(row.metrics, name)] for name in LEVEL_CHANCES)
    return [["– of the rule", *rule], ["– at most", *optimum]] if rule and row.sampling.temperature else []


def _share(part: int, whole: int) -> str:
    """Returns a share as a table shows it."""
    return number(part / whole if whole else None, 2)


def _tree_line(row: Row) -> str:
    """Returns the size, the acceptance and the costs of the trees of a method."""

    def shown(name: str, digits: int) -> str:
        return number(row.metric(name), digits)

    drafts = f"{shown('draft_passes_per_step', 1)} draft passes of {shown('cost_ratio', 3)} each (c), "
    costs = {int(name.removeprefix(f"{COST}@")): name for name in row.metrics if name.startswith(f"{COST}@")}
    listed = ", ".join(f"{shown(costs[most], 2)} for {most // 2 + 1} to {most}" for most in sorted(costs))
    by_length = f": {listed} tokens" if len(costs) > 1 else ""
    has_passes = (row.value("cost_ratio") or 0.0) >= MIN_DRAFT_COST
    return (
        f"{row.method_name}: a step drafts {shown('tree_nodes', 1)} tokens on {shown('tree_depth', 1)} levels, "
        f"of which a share of {shown('draft_efficiency', 3)} is accepted. Costs of a step in passes of "
        f"ar: {drafts if has_passes else ''}one pass over the tree of {shown('verification_cost', 2)} (v"
        f"{by_length}), and overhead. For {shown('mean_acceptance_length', 2)} tokens per step (τ) they explain a "
        f"speed-up of {shown('speedup_of_costs', 2)}; measured: {shown('speedup', 2)}"
    )


def _run_cells(row: Row) -> list[str]:
    return [
        row.subset,
        str(row.n),
        *acceptance_cells(row),
        speed(row.metric("tokens_per_second_ar")),
        speed(row.metric("tokens_per_second")),
        speedup_cell(row),
        number(row.metric("speedup_expected"), 2),
        score_pair(row.metrics, row.quality),
    ]


DRAFTER_WIDTH = 13  # characters; longer names are wrapped


def comparison_table(rows: Sequence[Row]) -> Table:
    """Returns a table of one task and subset: a line per method. `rows`: the baseline first."""
    cells = [_comparison_cells(row) for row in rows]
    columns = (
        *words("method", folds=False),
        *words("verdict"),
        Column("drafter", width=DRAFTER_WIDTH),
        *numbers("γ", acceptance_heading(rows), "τ", "c", "tok/s"),
        *numbers("speed-up\n95 % interval", score_heading(rows).replace(" ", "\n")),
    )
    title = f"{short(rows[0].task)} · {rows[0].subset} · {len(rows)} methods"
    return Table(title, columns, cells, _comparison_caption(rows))


def _comparison_cells(row: Row) -> list[str]:
    return [
        row.method_name,
        verdict_word(row),
        "by language" if "routes" in row.options else _short_drafter(row),
        str(row.num_draft_tokens),
        *acceptance_cells(row),
        number(row.metric("cost_ratio"), 3),
        *speed_cells(row),
    ]


def _short_drafter(row: Row) -> str:
    return (row.drafter or drafter_kind(row)).rpartition("/")[2].rpartition(":")[2]


def _comparison_caption(rows: Sequence[Row]) -> list[str]:
    row = rows[0]
    audited = any(each.verdict != "not audited" for each in rows)
    command = "specbench audit --servers" if row.served is not None else "specbench audit"
    return [
        f"target {row.target}, n = {row.n}; {sampling_of(row)}; {dtype_and_device(row)}",
        f"greedy equal: the greedy outputs equal AR's token by token; `{command}` tests sampled outputs too"
        if audited
        else f"not audited: `{command}` tests sampled outputs",
        *([FEW] if any(map(has_few_prompts, rows)) else []),
        *_engine_lines(rows),
        *warning_lines(rows, [each.method_name for each in rows]),
        *(["compare methods with different bridges by τ and tok/s, not by α"] if _bridges_differ(rows) else []),
        "c: draft cost in target passes",
        *(f"{each.method_name} is not ranked: {reason}" for each in rows if (reason := why_unranked(each))),
    ]


def _bridges_differ(rows: Sequence[Row]) -> bool:
    """Returns whether the methods that draft have different vocabulary bridges."""
    return len({bridges(row) for row in rows if row.num_draft_tokens}) > 1


def _engine_lines(rows: Sequence[Row]) -> list[str]:
    """Returns a line with the methods whose engine differs from the first row's."""
    others = [row.method_name for row in rows if row.engine != rows[0].engine]
    if not others:
        return []
    return [f"compiled target, eager drafter: {', '.join(others)}; do not compare rows of different engines"]


def overview_table(groups: Sequence[Sequence[Row]]) -> Table:
    """Returns a table of several tasks. `groups`: for each task its rows over all subsets, the baseline first."""
    cells: list[Sequence[str]] = []
    for rows in groups:
        for place, row in enumerate(rows):
            task = [row.task_name, str(row.n)] if place == 0 else ["", ""]
            label = score_heading(rows) if row.quality else ""
            cells.append([*task, row.method_name, *acceptance_cells(row), *speed_cells(row), label])
        cells.append(RULE)
    every = [row for group in groups for row in group]
    lines = warning_lines(every, [f"{row.task_name} {row.method_name}" for row in every])
    figures = numbers(acceptance_heading(every), "τ", "tok/s", "speed-up\n95 % interval")
    return Table(
        f"{len(groups)} tasks · all subsets",
        (*words("task"), *numbers("n"), *words("method"), *figures, *numbers("score"), *words("of")),
        cells,
        [
            *(["do not compare α of methods with different bridges"] if any(map(_bridges_differ, groups)) else []),
            "do not compare scores of different tasks",
            *lines,
        ],
        num_keys=3,
    )
