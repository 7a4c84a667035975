"""Control characters that a file brings: printed as their escapes, in tables, errors, Markdown, LaTeX and JSON."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from specbench.core.console import CONTROLS, stdout, visible
from specbench.core.environment import builtin_dir
from specbench.results.row import with_digest

Specbench = Callable[..., tuple[int, str, str]]
ATTACKS = yaml.safe_load(Path(__file__).with_name("console_texts.yaml").read_text(encoding="utf-8"))
DEMO = builtin_dir("leaderboards") / "demo.json"


def write_board(path: Path, field: str, text: str) -> None:
    """Two rows of the demo's board, one of them with this text in a field."""
    board = json.loads(DEMO.read_text(encoding="utf-8"))
    rows = [row for row in board["rows"] if row["subset"] == "en" and row["task"].startswith("mgsm@")][:2]
    content = {**board, "rows": [rows[0], with_digest({**rows[1], field: text})]}
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack["name"] for attack in ATTACKS])
def test_no_control_character_is_printed(attack: dict, specbench: Specbench, tmp_path: Path) -> None:
    if "field" in attack:
        write_board(tmp_path / "b.json", attack["field"], attack["text"])
    else:
        (tmp_path / attack["file"]).write_text(attack["content"], encoding="utf-8")
    _, out, err = specbench(*(attack.get("file") if word == "FILE" else word for word in attack["words"]))
    assert not CONTROLS.search(out + err)
    assert attack["says"] in out + err


def test_json_keeps_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["a\u202e", "\x9b2J", "\\\u202e", "\x7f", "ü 日本 \u200d"]
    stdout.out(json.dumps(names, ensure_ascii=False))
    printed = capsys.readouterr().out
    assert json.loads(printed) == names and not CONTROLS.search(printed)
    assert visible("tabs\tand\nlines") == "tabs\tand\nlines"
