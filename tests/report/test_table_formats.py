"""Ranked tables as Markdown and LaTeX: columns, escapes, and bold where the best is separable."""

import re

import pytest
from rich.console import Console

from specbench.core.table import Table, escaped_latex, escaped_markdown, number_columns, text_columns
from specbench.report.ranking import ranking_tables
from specbench.results.leaderboard import write
from specbench.results.paired import RowWithRecords
from specbench.results.row import RowWarning
from specbench.statistics.bootstrap import Estimate
from tests.support.rows import row


def ranked_table(*intervals, **changes):
    rows = [
        row(
            method=f"m{number}@1:0",
            metrics={"speedup": Estimate(value=(low + high) / 2, low=low, high=high)},
            **changes,
        )
        for number, (low, high) in enumerate(intervals)
    ]
    (found,) = ranking_tables({str(number): RowWithRecords(each) for number, each in enumerate(rows)})
    return found


def parsed(text: str) -> list[list[str]]:
    """The cells of a tabular, headings first."""
    body = re.search(r"\\toprule\n(.*?)\\bottomrule", text, re.S)[1].replace("\\midrule\n", "")
    lines = body.strip().split("\n")
    assert all(line.endswith(r" \\") for line in lines)
    return [re.split(r"(?<!\\)&", line.removesuffix(r"\\")) for line in lines]


def test_latex_has_as_many_columns_as_it_says():
    text = Table.latex(ranked_table((2.0, 2.2), (1.0, 1.2)))
    columns = re.search(r"\\begin{tabular}{([lr]+)}", text)[1]
    cells = parsed(text)
    assert len(cells) == 3 and {len(line) for line in cells} == {len(columns)} and "row" not in cells[0]
    assert columns == "llrrrrrrrl"
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}"), "braces are balanced"
    for name in ("table", "tabular"):
        assert text.count(f"\\begin{{{name}}}") == text.count(f"\\end{{{name}}}") == 1
    assert text.index("\\caption") < text.index("\\toprule") and "float32 on Some CPU, 1 thread" in text


def test_the_name_of_a_task_is_no_beginning_of_a_sentence():
    assert "\\caption{mgsm@1 " in Table.latex(ranked_table((2.0, 2.2), (1.0, 1.2)))


@pytest.mark.parametrize("make", [Table.latex, Table.markdown])
def test_the_best_is_bold_only_where_it_is_separable(make):
    bold = {Table.latex: r"\textbf{2.10 [2.00, 2.20]}", Table.markdown: r"**2.10 \[2.00, 2.20]**"}[make]
    assert bold in make(ranked_table((2.0, 2.2), (1.0, 1.2)))
    for others in ([(1.9, 2.1)], []):  # one that overlaps; none at all
        text = make(ranked_table((2.0, 2.2), *others))
        assert "textbf" not in text and "**" not in text


def test_the_caption_names_verdicts_that_an_external_decoder_states_of_itself():
    decoder = {"decoder": {"entry": "mine.py:make", "revision": "local-1"}}
    stated = ranked_table((1.0, 1.2), verdict="lossy by design", options=decoder)
    assert "verdict of m0: lossy by design, as its external decoder states: not measured" in stated.caption
    for changes in ({"verdict": "lossy by design", "options": {}}, {"verdict": "greedy equal", "options": decoder}):
        assert not any(line.startswith("verdict of") for line in ranked_table((1.0, 1.2), **changes).caption)


WARNED = [RowWarning(code="wide_interval", text="its interval is wide")]


@pytest.mark.parametrize("make", [Table.latex, Table.markdown])
def test_footnotes_name_rows_that_the_table_shows(make):
    rows = {
        "206": row(method="sd@1:0", warnings=WARNED),
        "7": row(method="fsd@1:0", options={"verification": {"threshold": 0.3}}, warnings=WARNED),
        "8": row(method="fsd@1:0", options={"verification": {"threshold": 0.7}}, warnings=WARNED),
    }
    (table,) = ranking_tables({name: RowWithRecords(each) for name, each in rows.items()})
    (note,) = (line for line in table.caption if line.startswith("†"))
    assert note == "† sd: its interval is wide; also for fsd threshold=0.3, fsd threshold=0.7"
    assert "206" not in make(table)
    cells = {line[1] for line in runs_of(make(table), make)}
    assert {"sd", "fsd threshold=0.3", "fsd threshold=0.7"} <= cells


@pytest.mark.parametrize("make", [Table.latex, Table.markdown])
def test_rows_of_one_name_have_their_numbers_in_every_format(make):
    """Two measurements of the same method."""
    rows = {"1:4": row(method="sd@1:0", warnings=WARNED), "2:0": row(method="sd@1:0", created="2026-02-02T00:00:00Z")}
    (table,) = ranking_tables({name: RowWithRecords(each) for name, each in rows.items()})
    assert any(line.startswith("† row 1:4: ") for line in table.caption)
    assert {"row", "1:4", "2:0"} <= {line[1] for line in runs_of(make(table), make)}


def runs_of(text: str, make) -> list[list[str]]:
    if make is Table.latex:
        return [[cell.strip() for cell in line] for line in parsed(text)]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_texts_of_users_are_no_commands():
    hostile = r"\input{/etc/passwd} 50% & $x_1^2$ #1 ~ | `<b>` [a] *b*"
    text = Table.latex(ranked_table((1.0, 1.2), verdict=hostile, device=hostile))
    assert r"\input" not in text and len({len(line) for line in parsed(text)}) == 1
    assert not re.search(r"(?<!\\)[%#_]", text.replace("% needs", "", 1).replace(r"95 \%", ""))
    assert (
        escaped_latex(r"a_b\{}") == r"a\_b\textbackslash{}\{\}"
        and escaped_latex("α ≤ 1 – 2") == r"$\alpha$ $\leq$ 1 -- 2"
    )
    made = Table.markdown(ranked_table((1.0, 1.2), verdict=hostile + "\nnew | line"))
    lines = [line for line in made.splitlines() if line.startswith("|")]
    assert len({len(re.split(r"(?<!\\)\|", line)) for line in lines}) == 1 and len(lines) == 3
    assert escaped_markdown("*a*_b_ <i>") == r"\*a\*\_b\_ \<i>"
    assert escaped_markdown("a\u202eb\u200bc\nd") == r"a\\u202eb\\u200bc d", "nobody is led by signs that nobody sees"


def test_sections_and_headings_are_rows_of_every_format():
    rows = [["group"], ["a", "1"], [], ["b", "2"]]
    table = Table("title", (*text_columns("name"), *number_columns("n")), rows)
    assert len(parsed(table.latex())) == 4
    assert [line for line in table.markdown().splitlines() if line.startswith("|")] == [
        "| name | n |", "| --- | --: |", "| group |  |", "| a | 1 |", "| b | 2 |"
    ]  # fmt: skip
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    assert [line.split() for line in capture.get().splitlines() if line.strip()][-3:] == [
        ["group"],
        ["a", "1"],
        ["b", "2"],
    ]


def test_show_prints_each_format(specbench, tmp_path):
    write(tmp_path / "board.json", [row(metrics={"speedup": Estimate(value=1.5, low=1.4, high=1.6)})])
    code, out, _ = specbench("leaderboard", "show", "board.json", "--format", "markdown")
    assert code == 0 and out.startswith("### mgsm@1 · ja\n\n| rank | method |")
    code, out, _ = specbench("leaderboard", "show", "board.json", "--format", "latex")
    assert code == 0 and "\\toprule" in out and max(map(len, out.splitlines())) > 100, "lines are not broken"
    code, _, err = specbench("leaderboard", "show", "board.json", "--format", "html")
    assert code == 2 and "--format html" in err and "markdown" in err
