"""docs/measured/decisions.md: its commands, its figures, and what they print from the committed records."""

import re
from pathlib import Path

import pytest

from tools.decisions import FIGURES, PAGE, PARTS, page


def test_the_committed_page_has_every_command_with_its_output() -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"```bash\n(.*?)\n```\n\n```text\n(.*?)```", text, re.S)
    assert [command for command, _ in shown] == [command for part in PARTS for command in part.commands]
    assert all(output.strip() for _, output in shown)
    for name in FIGURES:
        assert f"]({name})" in text and PAGE.with_name(name).read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_the_commands_print_what_the_page_has(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert page(tmp_path) == PAGE.read_text(encoding="utf-8")
