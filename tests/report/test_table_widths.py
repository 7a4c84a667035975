"""Tables on terminals of any width: every number and every name is shown whole."""

import random

import pytest
from rich.console import Console

from specbench.analysis.audit.report import COLUMNS
from specbench.core.table import RULE, Column, Table, number_columns, text_columns
from specbench.report.breakdown import breakdown_table
from specbench.report.ranking import ranking_tables
from specbench.report.tables import comparison_table, overview_table, run_table, tree_table
from specbench.results.paired import RowWithRecords
from specbench.statistics.bootstrap import Estimate
from tests.support.rows import row

METRICS = {
    name: Estimate(value=value, low=0.9 * value, high=1.1 * value)
    for name, value in {
        "acceptance_rate": 0.5, "acceptance_rate_pooled": 2 / 3, "mean_acceptance_length": 13.25, "speedup": 11.5,
        "tokens_per_second": 12345.6, "tokens_per_second_ar": 1234.5, "accuracy": 0.625, "accuracy_ar": 1.0,
        "cost_ratio": 0.125, "speedup_expected": 12.5, "draft_seconds": 100.0, "verify_seconds": 1000.0,
    }.items()
}  # fmt: skip
ROWS = [
    row(
        method=f"{name}@1:0", metrics=METRICS, quality="accuracy", num_draft_tokens=16, n=1319, verdict="near-tie only",
        subset="all", accepted_tokens_per_step=tuple(range(20, 3, -1)), drafter=None,
        options={"drafter": {"type": name}},
    )
    for name in ("ar", "token-recycling", "pretrain-finetune", "eagle3")
]  # fmt: skip
AUDIT = ["token-recycling", "lossy by design", "120/128", "3", "17", "0.0123", "-0.123 ± 0.045", "1234/567/890"]


def tables_of_results() -> list[Table]:
    ranked = ranking_tables({str(number): RowWithRecords(each) for number, each in enumerate(ROWS)})
    subsets = [ROWS[1].model_copy(update={"subset": name}) for name in ("abstract_algebra", "en", "all")]
    return [
        run_table(subsets), tree_table(ROWS), comparison_table(ROWS), overview_table([ROWS, ROWS]),
        breakdown_table(ROWS), *ranked, Table("audit", COLUMNS, [AUDIT]),
    ]  # fmt: skip


def random_table(seed: int) -> Table:
    """A table of 2 to 14 columns; a number has up to 24 characters with spaces, a word up to 14."""
    draw = random.Random(seed)

    def text(longest: int) -> str:
        return "".join(draw.choice("0123456789.[]% ") for _ in range(draw.randrange(longest + 1))).strip()

    num_keys, num_columns = draw.randint(1, 2), draw.randint(3, 14)
    columns = [draw.choice([*text_columns("a heading"), *text_columns("b", folds=False)]) for _ in range(num_keys)]
    columns += [
        draw.choice([*text_columns("text"), *number_columns("tok/s\nar", "speed-up")])
        for _ in range(num_columns - num_keys)
    ]
    rows = [[text(24) if column.is_number else text(14) for column in columns] for _ in range(5)]
    return Table("title", columns, [*rows[:2], RULE, ["a heading of rows"], *rows[2:]], ["caption"], num_keys=num_keys)


def shown(table: Table, width: int) -> str:
    console = Console(width=width, force_terminal=False, no_color=True)
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width
    return "\n".join(lines)


def pieces(column: Column, cell: str) -> list[str]:
    """The parts of a cell that must stand in one line: a number as a whole, the words of a text."""
    lines = column.on_screen(cell).splitlines()
    return lines if column.is_number else [word for line in lines for word in line.split()]


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("table", [*tables_of_results(), *map(random_table, range(8))])
def test_every_cell_is_shown_whole(table: Table, width: int) -> None:
    text = shown(table, width)
    found = [line.split() for line in text.splitlines()]
    for cells in filter(None, table.rows):
        for column, cell in zip(table.columns, cells, strict=False):
            for piece in pieces(column, cell):
                assert any(contains(line, piece.split()) for line in found), (cell, text)


def contains(line: list[str], part: list[str]) -> bool:
    return any(line[place : place + len(part)] == part for place in range(len(line)))


def test_a_wide_table_is_shown_in_parts_that_repeat_its_key_columns() -> None:
    columns = (*text_columns("method", "share"), *number_columns(*(f"{number}" * 15 for number in range(1, 7))))
    rows = [["eagle3", "depth", *(f"0.{number}" for number in range(1, 7))], ["ar", "rank", *["–"] * 6]]
    text = shown(
        Table("the title", columns, rows, ["the caption is long enough for a line of its own"], num_keys=2), 70
    )
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert [line for line in lines if "eagle3" in line] == [
        ["eagle3", "depth", "0.1", "0.2", "0.3"], ["eagle3", "depth", "0.4", "0.5", "0.6"]
    ]  # fmt: skip
    assert text.count("the title") == 1 and " ".join(lines[-1]) == "the caption is long enough for a line of its own"
    wide = shown(Table("title", columns, rows, num_keys=2), 140)
    assert wide.count("eagle3") == 1
