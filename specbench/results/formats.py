"""Tables as Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.table import Table
from rich.text import Text

SPECIAL = "\\|*_`<[#~"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], is_number: Sequence[bool] = ()) -> str:
    """A table of cells that are Markdown already; numbers are aligned to the right."""
    rules = ["--:" if number else "---" for number in is_number] or ["---"] * len(headers)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headers, rules, *rows))


def escaped(text: str) -> str:
    """Names of users may hold what Markdown takes for its own, and line breaks."""
    for character in SPECIAL:
        text = text.replace(character, f"\\{character}")
    return " ".join(text.splitlines())


@dataclass(frozen=True)
class Column:
    """`folds`: whether its texts may take several lines."""

    heading: str
    is_number: bool = False
    folds: bool = False


@dataclass(frozen=True)
class RankedTable:
    """What is printed, in whichever format. `best`: row and column of the value that is separable from all others."""

    title: str
    columns: tuple[Column, ...]
    cells: tuple[tuple[str, ...], ...]
    caption: tuple[str, ...]
    best: tuple[int, int] | None


def without_numbers(table: RankedTable) -> RankedTable:
    """Without the column of the rows' numbers, by which only commands name them."""
    best = None if table.best is None else (table.best[0], table.best[1] - 1)
    columns, cells = (table.columns[0], *table.columns[2:]), tuple((each[0], *each[2:]) for each in table.cells)
    return replace(table, columns=columns, cells=cells, best=best)


LATEX_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "–": "--", "—": "---", "−": "$-$", "±": r"$\pm$", "≤": r"$\leq$",
    "≥": r"$\geq$", "×": r"$\times$", "÷": r"$\div$", "→": r"$\to$", "·": r"$\cdot$", "Σ": r"$\Sigma$",
    "α": r"$\alpha$", "γ": r"$\gamma$", "τ": r"$\tau$", "ψ": r"$\psi$",
}  # fmt: skip


def latex(ranked: RankedTable) -> str:
    """A table environment: the conditions are its caption, and the best value is bold where it is separable."""
    ranked = without_numbers(ranked)
    columns = "".join("r" if column.is_number else "l" for column in ranked.columns)
    rows = [[escaped_latex(cell) for cell in cells] for cells in ranked.cells]
    bold = ""
    if ranked.best is not None:
        row, column = ranked.best
        rows[row][column] = rf"\textbf{{{rows[row][column]}}}"
        bold = " Bold: separable from all others."
    sentences = [f"{ranked.title}.", *(f"{line[:1].upper()}{line[1:]}." for line in ranked.caption)]
    caption = escaped_latex(" ".join(sentences)) + bold
    headings = [escaped_latex(column.heading.replace("\n", " ")) for column in ranked.columns]
    lines = [
        "% needs \\usepackage{booktabs}", "\\begin{table}", "\\centering", f"\\caption{{{caption}}}",
        f"\\begin{{tabular}}{{{columns}}}", "\\toprule", _row(headings), "\\midrule", *map(_row, rows),
        "\\bottomrule", "\\end{tabular}", "\\end{table}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def escaped_latex(text: str) -> str:
    """What LaTeX takes for its own, and the signs of our tables that its fonts lack, as LaTeX writes them."""
    return "".join(LATEX_SPECIAL.get(character, character) for character in " ".join(text.splitlines()))


def _row(cells: list[str]) -> str:
    # A cell that begins with [ would be read as the length of the line break before it.
    return " & ".join(f"{{{cell}}}" if cell.startswith("[") else cell for cell in cells) + r" \\"


Format = Callable[[RankedTable], Table | str]


def text(ranked: RankedTable) -> Table:
    found = Table(
        title=Text(ranked.title), caption=Text("\n".join(ranked.caption)), caption_justify="left",
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    for column in ranked.columns:
        heading = column.heading if "\n" in column.heading else column.heading.replace(" ", "\n")
        justify, header = ("right", heading) if column.is_number else ("left", column.heading)
        found.add_column(header, justify=justify, overflow="fold", no_wrap=not column.folds)  # type: ignore[arg-type]
    for cells in ranked.cells:
        found.add_row(*map(Text, cells))
    return found


def markdown(ranked: RankedTable) -> str:
    """A heading, the table with the best value in bold where it is separable, and the conditions as a list."""
    ranked = without_numbers(ranked)
    headers = [column.heading.replace("\n", " ") for column in ranked.columns]
    rows = [[escaped(cell) for cell in cells] for cells in ranked.cells]
    if ranked.best is not None:
        row, column = ranked.best
        rows[row][column] = f"**{rows[row][column]}**"
    made = table(list(map(escaped, headers)), rows, [column.is_number for column in ranked.columns])
    notes = "\n".join(f"- {escaped(line)}" for line in ranked.caption)
    return f"### {escaped(ranked.title)}\n\n{made}\n\n{notes}\n"


FORMATS: dict[str, Format] = {"text": text, "markdown": markdown, "latex": latex}
