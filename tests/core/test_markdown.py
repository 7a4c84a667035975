"""Fenced blocks and the text between them, by the rules of CommonMark."""

import pytest

from specbench.core.markdown import split_blocks


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", [(None, "")]),
        ("a\r\nb", [(None, "a\nb")]),
        ("a\n```python x=1\nb\n```\nc", [(None, "a\n"), ("python", "b\n"), (None, "c")]),
        ("````\n```\n~~~~\n`````  \nc", [(None, ""), ("", "```\n~~~~\n"), (None, "c")]),
        ("```\n```python\n```", [(None, ""), ("", "```python\n"), (None, "")]),
        ("~~~ `a`\nb\n~~~", [(None, ""), ("`a`", "b\n"), (None, "")]),
        ("```a``` is\n``\nno block", [(None, "```a``` is\n``\nno block")]),
        ("1. a\n    ```\n    b\n      c\n  ```\n", [(None, "1. a\n"), ("", "b\n  c\n"), (None, "")]),
        ("```\nb\x0c\u2028c", [(None, ""), ("", "b\x0c\u2028c", "is open")]),
    ],
)
def test_blocks_and_what_is_between_them(text: str, pieces: list[tuple[str | None, ...]]) -> None:
    assert [(*piece[:2], *(() if piece.is_closed else ("is open",))) for piece in split_blocks(text)] == pieces
