"""A command imports what it needs: one that only reads starts without torch and transformers, which take seconds to
import, and a plain run loads none of the other commands' code."""

import shutil
import subprocess
import sys
from pathlib import Path

from specbench.results.leaderboard import load, write
from tests.processes import SHORT_WARM_UPS

CHECKOUT = Path(__file__).resolve().parents[1]
BOARD = CHECKOUT / "leaderboards" / "demo.json"
COMMANDS = [
    ["--help"], ["list"], ["schema"], ["list", "tasks"], ["show", "mgsm"], ["board", "list"],
    ["leaderboard", "show", "board.json"], ["leaderboard", "show", str(BOARD)],
    ["leaderboard", "validate", "board.json"],
    ["leaderboard", "merge", "board.json", "--leaderboard", "merged.json"],
    ["leaderboard", "add", "before", "--leaderboard", "added.json"],
    ["compare", "board.json:0", "board.json:12"],
    ["site", "board.json", "--output", "site"],
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
    heavy = [name for name in ("torch", "transformers", "datasets", "pandas", "sacrebleu") if name in sys.modules]
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


NOT_FOR_A_LIST = ("torch", "numpy", "specbench.decoding.drafters", "specbench.models", "specbench.results")
LIST = f"""
import sys
from specbench.cli import main
sys.argv = ["specbench", "list"]
try:
    main()
except SystemExit as end:
    assert end.code == 0
print("imported:", [name for name in {NOT_FOR_A_LIST} if name in sys.modules], file=sys.stderr)
"""


def test_the_list_of_names_reads_the_files_of_methods_without_their_code() -> None:
    done = subprocess.run([sys.executable, "-c", LIST], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["imported: []"] and "token-recycling" in done.stdout


UNUSED = (  # by a run of `sd` without a judge
    "specbench.analysis", "specbench.publish", "specbench.integrations", "specbench.training",
    "specbench.embedded.world", "specbench.tasks.judge.judgements", "specbench.core.completions",
    "specbench.models.corpus_models", "specbench.decoding.drafters.ngram", "specbench.decoding.tree_rules",
    "specbench.decoding.bridges.string", "specbench.tasks.scoring.texts", "specbench.cli.train", "specbench.cli.help",
    "scipy.stats", "sacrebleu", "lm_eval", "matplotlib",
)  # fmt: skip
RUN = ["run", "--task", "mgsm", "--method", "sd", "--limit", "1", "--subset", "en", "--output", "run",
       "--set", "generation.max_new_tokens=4"]  # fmt: skip
PLAIN_RUN = f"""
import sys
{SHORT_WARM_UPS}
from specbench.cli import main
sys.argv = ["specbench", *{RUN}]
try:
    main()
except SystemExit as end:
    assert end.code == 0
assert "specbench.running.runner" in sys.modules and "specbench.results.rows" in sys.modules
print("imported:", [name for name in {UNUSED} if name in sys.modules], file=sys.stderr)
"""


def test_a_plain_run_imports_only_what_it_measures_with(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PLAIN_RUN], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "imported: []" in done.stderr.splitlines()
    assert (tmp_path / "run" / "records.jsonl").is_file()
