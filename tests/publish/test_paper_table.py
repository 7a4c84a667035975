"""The table of several tasks for a paper: groups of columns, bold where separable, LaTeX that is whole."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from specbench.core.table import RULE, Column, Table, text_columns
from specbench.publish.paper.rows import Selection, read_rows
from specbench.publish.paper.table import paper_table
from specbench.results.row import Row
from specbench.statistics.bootstrap import Estimate
from tests.support.paper_rows import METHODS, TASKS, paper_board, paper_rows

METRICS = ["speedup", "mean_acceptance_length"]
HOSTILE = r'\input{x} 50% & $x_1^2$ #1 ~ | "q" [a] {'


def made(folder: Path, rows: list[Row] | None = None, **selected: Any) -> Table:
    return paper_table(read_rows([paper_board(folder, rows)], Selection(**selected)), METRICS)


def columns_of(line: str) -> int:
    """The columns that a line of a tabular fills."""
    cells = re.split(r"(?<!\\)&", line.removesuffix(r"\\"))
    spans = [re.match(r"\s*\\multicolumn{(\d+)}", cell) for cell in cells]
    return sum(int(span[1]) if span else 1 for span in spans)


def cells_of(line: str) -> list[str]:
    """The cells of a line of a tabular: split at each & outside of braces that is not a character."""
    cells, depth, place = [""], 0, 0
    while place < len(line := line.removesuffix(r"\\")):
        token = line[place : place + 2] if line[place] == "\\" else line[place]
        depth += (token == "{") - (token == "}")
        assert depth >= 0, line
        if token == "&" and depth == 0:
            cells.append("")
        else:
            cells[-1] += token
        place += len(token)
    assert depth == 0, line
    return [cell.strip() for cell in cells]


COMMANDS = {  # all that a table may use
    "begin", "end", "caption", "label", "centering", "sisetup", "toprule", "midrule", "bottomrule", "cmidrule",
    "multicolumn", "textbf", "bfseries", "scriptsize", "footnotesize", "small", "raggedright",
    "par", "smallskip", "medskip", "setlength", "tabcolsep", "linewidth", "dagger", "tau",
    "alpha", "to", "gamma", "Delta", "times", "div", "geq", "leq", "neq", "psi", "sigma", "Sigma", "cdot", "infty",
    "pm", "approx", "textbackslash", "textasciitilde", "textasciicircum", "ldots", "textgreater", "textless", "textbar",
}  # fmt: skip
S_CELL = re.compile(r"(?:\\bfseries )?(-|\+)?(\d+)(?:\.(\d+))?(?: (\{\\scriptsize.*\}))?")
S_COLUMN = re.compile(r"S\[table-format=(-?)(\d+)\.(\d+)(?:, table-space-text-post=\{(.*)\})?\]")


def column_types(head: str) -> list[str]:
    """The types of a tabular's columns, each S with its options."""
    found, place = [], 0
    while place < len(head):
        end = place + 1
        if head[place] == "S":
            depth = 0
            while depth or head[end] != "]":
                depth += (head[end] == "{") - (head[end] == "}")
                end += 1
            end += 1
        found.append(head[place:end])
        place = end
    return found


def check_cells(head: str, lines: list[str]) -> None:
    """The cells of each S column are numbers that have room in it, or texts in braces, as siunitx demands."""
    types = column_types(head)
    for line in lines:
        cells = cells_of(line)
        if any(cell.startswith(r"\multicolumn") for cell in cells):
            continue
        assert len(cells) == len(types), line
        for kind, cell in zip(types, cells, strict=True):
            assert cell.replace(r"\$", "").count("$") % 2 == 0, cell
            if not kind.startswith("S") or not cell or (cell.startswith("{") and cell.endswith("}")):
                continue
            number, column = S_CELL.fullmatch(cell), S_COLUMN.fullmatch(kind)
            assert number and column, (kind, cell)
            assert len(number[2]) <= int(column[2]) and len(number[3] or "") <= int(column[3]), (kind, cell)
            assert number[1] is None or column[1] == "-", (kind, cell)
            assert len(number[4] or "") <= len(column[4] or ""), "room for what stands behind"


def check_latex(text: str) -> None:
    """Environments and braces are balanced, and each line of the tabular has as many columns as its head says."""
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end){([a-z*]+)}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    for tabular in re.findall(r"\\begin{tabular}.*?\\end{tabular}", text, re.S):
        check_tabular(tabular)
    unknown = set(re.findall(r"\\([A-Za-z]+)", text.partition("\n")[2])) - COMMANDS  # the first line is a comment
    assert not unknown, unknown
    assert text.index(r"\caption") < text.index(r"\label") < text.index(r"\toprule")


def check_tabular(text: str) -> None:
    head = re.search(r"\\begin{tabular}{(.*)}\n", text)[1]  # type: ignore[index]
    while "{" in head:
        head = re.sub(r"{[^{}]*}", "", head)
    without = re.sub(r"S\[[^\]]*\]", "S", head)
    assert re.fullmatch("[lrS]+", without), head
    body = re.search(r"\\toprule\n(.*)\\bottomrule", text, re.S)[1]  # type: ignore[index]
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(lines) >= 2 and {columns_of(line) for line in lines} == {len(without)}
    assert all(re.fullmatch(r"\\midrule|(\\cmidrule\(lr\){\d+-\d+})+", each)
               for each in body.splitlines() if not each.endswith(r"\\"))  # fmt: skip
    check_cells(re.search(r"\\begin{tabular}{(.*)}\n", text)[1], lines)  # type: ignore[index]


@pytest.mark.parametrize("siunitx", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_latex_has_a_group_of_columns_for_each_task(siunitx: bool, wide: bool, tmp_path: Path) -> None:
    text = made(tmp_path).latex("main results", siunitx=siunitx, wide=wide)
    check_latex(text)
    assert re.findall(r"\\multicolumn\{2\}\{c\}\{([^}]*)\}", text.replace(r"\_", "_")) == list(TASKS)
    # Groups that do not fit beside each other stand below each other: 6.75 inches hold two, with siunitx three.
    sizes = [len(re.findall("multicolumn", each)) for each in re.findall(r"\\begin{tabular}.*?\\end", text, re.S)]
    assert sizes == ([3, 2] if siunitx else [2, 2, 1]) if wide else sizes == [1] * 5
    assert "".join(rf"\cmidrule(lr){{{place}-{place + 1}}}" for place in range(2, 2 + 2 * sizes[0], 2)) in text
    assert text.count(r"\par\medskip") == len(sizes) - 1
    assert r"\label{tab:main-results}" in text
    assert (r"\begin{table*}" in text) == wide and ("siunitx" in text) == siunitx
    caption = re.search(r"\\caption{(.*)}\n", text)[1]  # type: ignore[index]
    assert len(caption) < 160 and r"$\tau$" in caption
    note = text[text.index(r"\begin{minipage}") :]
    assert r"$\dagger$ sd (gsm8k): AR became slower" in note and "rompts: gsm8k 40" in note


def test_numbers_of_siunitx_have_room_for_their_interval(tmp_path: Path) -> None:
    text = made(tmp_path, tasks=("gsm8k",), methods=("sd", "pld")).latex(siunitx=True)
    speedup = next(row.metric("speedup") for row in paper_rows() if row.method_name == "sd")
    cell = rf"{speedup.value:.2f} {{\scriptsize\,[{speedup.low:.2f}, {speedup.high:.2f}]$^{{\dagger}}$}}"
    assert cell in text and rf"table-space-text-post={{{cell.partition(' ')[2]}}}" in text
    assert "S[table-format=1.2" in text and "{speed-up}" in text


def test_the_best_is_bold_only_where_it_is_separable(tmp_path: Path) -> None:
    """Two clear orders, and one whose intervals overlap."""

    def rows(task: str, values: tuple[float, float], spread: float) -> list[Row]:
        found = []
        for row, value in zip(paper_rows((task,), ("sd", "pld"))[1:], values, strict=True):
            around = Estimate(value=value, low=value - spread, high=value + spread)
            metrics = {**row.metrics, "speedup": around, "mean_acceptance_length": Estimate(value=2.0)}
            found.append(row.model_copy(update={"metrics": metrics}))
        return found

    table = made(tmp_path, [*rows("a", (2.0, 1.0), 0.1), *rows("b", (1.0, 2.0), 0.1), *rows("c", (2.0, 1.9), 0.3)])
    assert table.bold == {(0, 1), (1, 3)}
    text, decimal = table.latex(), table.latex(siunitx=True)
    assert r"\textbf{2.00 [1.90, 2.10] $\dagger$}" in text and r"\textbf{2.00 [1.90, 2.10]}" in text
    assert text.count(r"\textbf") == 2 and decimal.count(r"\bfseries 2.00 {") == 2
    assert "Bold: separable" in text


def test_texts_of_users_are_no_commands(tmp_path: Path) -> None:
    rows = [row.model_copy(update={"device": HOSTILE}) for row in paper_rows(("gsm8k",), ("sd",))]
    for siunitx in (False, True):
        text = made(tmp_path, rows, names={"sd": HOSTILE, "gsm8k": HOSTILE}).latex(HOSTILE, siunitx=siunitx)
        check_latex(text)
        assert r"\input" not in text and r"\label{tab:input-x-50-x-1-2-1-q-a}" in text


def test_a_method_that_a_task_lacks_has_empty_cells(tmp_path: Path) -> None:
    rows = [row for row in paper_rows() if (row.task_name, row.method_name) != ("mgsm", "pld")]
    table = made(tmp_path, rows)
    (line,) = [line for line in table.rows if line[0] == "pld"]
    place = 1 + 2 * TASKS.index("mgsm")
    assert line[place : place + 2] == ["", ""] and all(line[:place])
    check_latex(table.latex(siunitx=True))


def test_cells_that_are_no_numbers_and_rules(tmp_path: Path) -> None:
    columns = [*text_columns("name"), Column("x", is_number=True), Column("y", is_number=True)]
    rows = [["heading"], ["a", "1.5", "62.5 → 60.0"], RULE, ["b", "–", "–"], ["c", "-12.25 [-13.00, -11.00]", "x"]]
    text = Table("title", columns, rows).latex(siunitx=True)
    check_latex(text)
    assert "S[table-format=-2.2" in text and r"a & 1.5 & 62.5 $\to$ 60.0 \\" in text and "{--}" in text
    assert "minipage" not in text, "there is no note"


def test_control_the_checks_of_latex_find_defects(tmp_path: Path) -> None:
    text = made(tmp_path).latex(siunitx=True)
    check_latex(text)
    row = next(line for line in text.splitlines() if line.startswith("sd &"))
    for old, new in (
        (r"\end{tabular}", r"\end{table}"),
        (row, row.replace(" &", "", 1)),
        (row, row.replace("&", "& x", 1)),
        (row, row.replace("&", "& 123", 1)),
        (row, row.replace("{", "", 1)),
        (row, row.replace("$", "", 1)),
        ("{speed-up}", "speed-up"),
        (r"\midrule", r"\midrul"),
        (row, row.replace("&", r"& \alp", 1)),
    ):
        assert old in text
        with pytest.raises(AssertionError):
            check_latex(text.replace(old, new, 1))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not installed")
@pytest.mark.parametrize("siunitx", [False, True])
def test_latex_compiles(siunitx: bool, tmp_path: Path) -> None:
    packages = ["booktabs", *(["siunitx"] if siunitx else [])]
    for package in packages:
        found = subprocess.run(["kpsewhich", f"{package}.sty"], capture_output=True, check=False)
        if found.returncode:
            pytest.skip(f"{package} is not installed")
    text = made(tmp_path, names={"sd": HOSTILE}).latex(siunitx=siunitx, wide=True)
    (tmp_path / "paper.tex").write_text(
        "\\documentclass[twocolumn]{article}\n"
        + "".join(f"\\usepackage{{{package}}}\n" for package in packages)
        + f"\\begin{{document}}\n{text}\\end{{document}}\n"
    )
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_table_prints_every_format(specbench: Any, tmp_path: Path) -> None:
    board = paper_board(tmp_path)
    code, out, err = specbench("table", board, "--method", "sd,pld", "--task", "gsm8k", "--metric", "speedup,quality")
    assert code == 0 and "accuracy" in out and "speed-up" in out, err
    code, out, _ = specbench("table", board, "--format", "markdown")
    assert (
        code == 0 and "| gsm8k speed-up |" in out and len([line for line in out.splitlines() if line[:1] == "|"]) == 9
    )
    code, out, _ = specbench("table", board, "--format", "latex", "--label", "Main", "--siunitx", "--wide")
    assert code == 0 and r"\label{tab:main}" in out and r"\begin{table*}" in out
    check_latex(out)
    assert all(name in out for name in METHODS)
    code, out, _ = specbench("leaderboard", "show", board, "--format", "latex", "--siunitx")
    assert code == 0 and "S[table-format" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--format", "html"), "--format html: "),
        (("--siunitx",), "--siunitx: only LaTeX has it"),
        (("--metric", "speedups"), "--metric speedups: "),
        (("--metric", ""), "--metric: is empty"),
        (("--method", "sdd"), "--method sdd: "),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], says: str, specbench: Any, tmp_path: Path) -> None:
    code, out, err = specbench("table", paper_board(tmp_path), *words)
    assert (code, out) == (2, "") and says in err and len(err.splitlines()) == 1
