"""Tables as Markdown."""

from collections.abc import Sequence

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
