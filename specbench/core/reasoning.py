"""Answers of models that reason: the one place where what a model writes between its tags is parted from its answer,
which is all that scorers, the judge, language checks and later turns of a conversation see."""

import re
from typing import NamedTuple

BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)*")


class Tags(NamedTuple):
    """The texts between which a model reasons."""

    open: str
    close: str


TAGS = Tags("<think>", "</think>")


class Parts(NamedTuple):
    """The places of a text at which its reasoning ends, its closing tag included, and at which its answer starts. Both
    are 0 without reasoning, and the text's length if the reasoning is not closed."""

    end: int
    start: int
    is_closed: bool = True


def part_answer(text: str, tags: Tags, is_open: bool = False) -> Parts:
    """Returns where the reasoning of an emitted text ends and its answer starts. `is_open`: the prompt ended with the
    opening tag.

    The answer follows the last closing tag, without blank lines before it, also if no opening tag is to be seen: a
    model may reason without one. A text that ends inside its reasoning has an empty answer.
    """
    close, opened = text.rfind(tags.close), text.rfind(tags.open)
    if close < 0 and opened < 0 and not is_open:
        return Parts(0, 0)
    if close < max(opened, 0):
        return Parts(len(text), len(text), is_closed=False)
    end = close + len(tags.close)
    blank = BLANK_LINES.match(text, end)
    return Parts(end, blank.end() if blank else end)


def answer_in(text: str, tags: Tags = TAGS, is_open: bool = False) -> str:
    """Returns the answer of an emitted text (`part_answer`)."""
    return text[part_answer(text, tags, is_open).start :]
