"""Fenced blocks of Markdown: the one place that tells code in an answer or a reply from the text around it."""

import re
from typing import NamedTuple

FENCE = re.compile(r"([ \t]*)(`{3,}(?=[^`]*$)|~{3,})(.*)")


class Piece(NamedTuple):
    """The lines of a block without its fences, or the lines between two blocks. `language`: "" for a block that names
    none; None: no block. `is_closed`: False for a block that the text ends before its closing fence."""

    language: str | None
    content: str
    is_closed: bool = True


def split_blocks(text: str) -> list[Piece]:
    """Returns the fenced blocks of a text and what is between them, by the rules of CommonMark: a block ends with a
    fence of the same kind that is at least as long and has no text, or with the text. A fence may be indented by any
    amount, as in lists; its indentation is removed from the content. Lines end with a line feed."""
    pieces: list[Piece] = []
    lines: list[str] = []
    language: str | None = None
    indentation = opening = ""
    for line in re.findall(r".*\n|.+", text.replace("\r\n", "\n")):
        fence = FENCE.fullmatch(line.rstrip("\n"))
        if fence and (language is None or (fence[2].startswith(opening) and not fence[3].strip())):
            pieces.append(Piece(language, "".join(lines)))
            indentation = fence[1]
            opening = fence[2]
            lines = []
            language = fence[3].strip().partition(" ")[0] if language is None else None
        else:
            lines.append(line if language is None else line.removeprefix(indentation))
    return [*pieces, Piece(language, "".join(lines), is_closed=language is None)]
