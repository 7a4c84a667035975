"""Python source in what a chat model writes: fenced blocks, and code among sentences."""

import ast
import re
import warnings

FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})([^`]*)")
PYTHON = re.compile(r"(?:python|py)?[\d.]*", re.IGNORECASE)  # a block without a language may be Python too
CODE = re.compile(r"(?:async def|def|class) \w|@\w|import [\w., ]+$|from [\w.]+ import \S")


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of each fenced block of a Markdown text, as CommonMark has them: a fence is closed by one of
    its kind that is as long and says nothing else, or by the end; its indentation is not the content's."""
    blocks: list[tuple[str, str]] = []
    opening: tuple[str, str] | None = None  # indentation and fence
    for line in text.replace("\r\n", "\n").splitlines(keepends=True):
        fence = FENCE.fullmatch(line.rstrip("\n"))
        if opening is None:
            if fence:
                opening = fence[1], fence[2]
                blocks.append((fence[3].strip().partition(" ")[0], ""))
        elif fence and fence[2].startswith(opening[1]) and not fence[3].strip():
            opening = None
        else:
            language, content = blocks[-1]
            blocks[-1] = language, content + line.removeprefix(opening[0])
    return blocks


def chosen_block(text: str, definition: re.Pattern[str]) -> str | None:
    """The first fenced block with a definition, else the longest one of Python; None where there is none."""
    blocks = [(language, content) for language, content in fenced_blocks(text) if content.strip()]
    python = [content for language, content in blocks if PYTHON.fullmatch(language)]
    defining = (content for _, content in blocks if definition.search(content))
    return next(defining, max(python, key=len, default=None))


def without_sentences(text: str) -> str:
    """The lines from the first one of code to the last with which they compile, where the whole does not."""
    lines = text.replace("\r\n", "\n").splitlines(keepends=True)
    start = next((number for number, line in enumerate(lines) if CODE.match(line)), None)
    if start is None or compiles(text):
        return text
    ends = [number for number, line in enumerate(lines) if number > start and line[0].strip()]  # nothing is cut open
    parts = ("".join(lines[start:end]) for end in (None, *reversed(ends)))
    return next(filter(compiles, parts), text)


def compiles(source: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two: too many brackets in each other
        return False
    return True
