"""What only reads leaderboards and records starts without torch and transformers, which take seconds to import."""

import shutil
import subprocess
import sys
from pathlib import Path

from specbench.results.leaderboard import load, write

CHECKOUT = Path(__file__).resolve().parents[1]
BOARD = CHECKOUT / "leaderboards" / "demo.json"
COMMANDS = [
    ["--help"], ["schema"], ["list", "tasks"], ["show", "mgsm"], ["board", "list"],
    ["leaderboard", "show", "board.json"],
    ["leaderboard", "validate", "board.json"],
    ["leaderboard", "merge", "board.json", "--to", "merged.json"],
    ["leaderboard", "add", "before", "--to", "added.json"],
    ["compare", "board.json:0", "board.json:12"],
    ["site", "board.json", "--out", "site"],
    ["check", "--baseline", "before", "--candidate", "after"],
]  # fmt: skip
TOO_FEW = 2  # prompts of this run for the verdict of `check`
PROGRAM = f"""
import sys
from specbench.cli import main
for words in {COMMANDS}:
    sys.argv = ["specbench", *words]
    try:
        main()
    except SystemExit as end:
        code = end.code
    heavy = [name for name in ("torch", "transformers") if name in sys.modules]
    print(words, "ended with", code, heavy, file=sys.stderr)
"""


def test_commands_that_read_start_without_torch(tmp_path: Path) -> None:
    write(tmp_path / "board.json", load(BOARD)[:14])  # without its records
    for name in ("before", "after"):
        shutil.copytree(BOARD.with_suffix("") / "csqa", tmp_path / name)
        write(tmp_path / name / "leaderboard.json", [row for row in load(BOARD) if row.run == "demo/csqa"])
    records = tmp_path / "after" / "records.jsonl"  # another run than the one before it
    records.write_text(records.read_text(encoding="utf-8").replace('"process":"', '"process":"0'), encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True)
    told = [line for line in done.stderr.splitlines() if " ended with " in line]
    assert told == [f"{words} ended with {TOO_FEW if words[0] == 'check' else 0} []" for words in COMMANDS]
