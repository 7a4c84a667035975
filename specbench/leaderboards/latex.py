"""Ranked tables as LaTeX, for a paper: packages booktabs, and UTF-8 as LaTeX has it by default."""

from specbench.leaderboards.ranked_table import RankedTable, without_numbers

SPECIAL = {
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
    rows = [[escaped(cell) for cell in cells] for cells in ranked.cells]
    bold = ""
    if ranked.best is not None:
        row, column = ranked.best
        rows[row][column] = rf"\textbf{{{rows[row][column]}}}"
        bold = " Bold: separable from all others."
    sentences = [f"{ranked.title}.", *(f"{line[:1].upper()}{line[1:]}." for line in ranked.caption)]
    caption = escaped(" ".join(sentences)) + bold
    headings = [escaped(column.heading.replace("\n", " ")) for column in ranked.columns]
    lines = [
        "% needs \\usepackage{booktabs}", "\\begin{table}", "\\centering", f"\\caption{{{caption}}}",
        f"\\begin{{tabular}}{{{columns}}}", "\\toprule", _row(headings), "\\midrule", *map(_row, rows),
        "\\bottomrule", "\\end{tabular}", "\\end{table}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """What LaTeX takes for its own, and the signs of our tables that its fonts lack, as LaTeX writes them."""
    return "".join(SPECIAL.get(character, character) for character in " ".join(text.splitlines()))


def _row(cells: list[str]) -> str:
    # A cell that begins with [ would be read as the length of the line break before it.
    return " & ".join(f"{{{cell}}}" if cell.startswith("[") else cell for cell in cells) + r" \\"
