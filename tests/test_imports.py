"""A command imports what it needs: one that only reads starts without torch and transformers, which take seconds to
import, and a plain run loads none of the other commands' code. Without the packages of the extras, the core measures,
and what needs one names its extra in one line."""

import os
import shutil
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest
import transformers.models.llama.modeling_llama  # noqa: F401
import yaml

from specbench.core.environment import DISTRIBUTION, EXTRAS
from specbench.results.leaderboard import load, write
from tests.support.processes import SHORT_WARM_UPS
from tools.way import TRACE, layers, told

CHECKOUT = Path(__file__).resolve().parents[1]
BOARD = CHECKOUT / "leaderboards" / "demo.json"
COMMANDS = [
    ["list"], ["--help"], ["schema"], ["list", "tasks"], ["show", "mgsm"], ["board", "list"],
    ["train", "scdf", "--help"],
    ["leaderboard", "show", "board.json"],
    ["leaderboard", "validate", "board.json"],
    ["leaderboard", "merge", "board.json", "--leaderboard", "merged.json"],
    ["leaderboard", "add", "before", "--leaderboard", "added.json"],
    ["compare", "board.json:0", "board.json:12"],
    ["advise", "before"],
    ["site", "board.json", "--output", "site"],
    ["plot", "languages", "board.json", "--output", "languages.svg"],
    ["table", "board.json"],
    ["card", "embedded:drafter", "board.json"],
    ["check", "--baseline", "before", "--candidate", "after"],
    ["report", "before", "--html", "report.html", "--answers", "2"],
]  # fmt: skip
TOO_FEW = 2  # prompts of this run for the verdict of `check`
NOT_FOR_A_LIST = ("torch", "numpy", "specbench.decoding.drafters", "specbench.models", "specbench.results")
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
    if words == ["list"]:
        print("the list imported:", [name for name in {NOT_FOR_A_LIST} if name in sys.modules], file=sys.stderr)
import specbench.publish.ray_workers
print("a host imported:", [name for name in ("torch", "transformers") if name in sys.modules], file=sys.stderr)
"""


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """One process that runs the commands that only read, in a folder with what they read."""
    folder, rows = tmp_path_factory.mktemp("read"), load(BOARD)
    write(folder / "board.json", rows[:14])  # without its records
    for name in ("before", "after"):
        shutil.copytree(BOARD.with_suffix("") / "csqa", folder / name)
        write(folder / name / "leaderboard.json", [row for row in rows if row.run == "demo/csqa"])
    records = folder / "after" / "records.jsonl"  # another run than the one before it
    records.write_text(records.read_text(encoding="utf-8").replace('"process":"', '"process":"0'), encoding="utf-8")
    return subprocess.run([sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, check=True)


def test_commands_that_read_start_without_torch(read: subprocess.CompletedProcess[str]) -> None:
    told = [line for line in read.stderr.splitlines() if " ended with " in line]
    assert told == [f"{words} ended with {TOO_FEW if words[0] == 'check' else 0} []" for words in COMMANDS]


def test_a_host_that_passes_the_messages_of_workers_on_starts_without_torch(
    read: subprocess.CompletedProcess[str],
) -> None:
    assert "a host imported: []" in read.stderr.splitlines()


def test_the_list_of_names_reads_the_files_of_methods_without_their_code(
    read: subprocess.CompletedProcess[str],
) -> None:
    assert "the list imported: []" in read.stderr.splitlines() and "token-recycling" in read.stdout


UNUSED = (  # by a run of `sd` without a judge
    "specbench.analysis", "specbench.publish", "specbench.integrations", "specbench.training",
    "specbench.tasks.judge.judgements", "specbench.core.completions", "specbench.models.corpus_models",
    "specbench.decoding.drafters.ngram", "specbench.decoding.tree_rules",
    "specbench.decoding.bridges.string", "specbench.tasks.scoring.texts", "specbench.cli.train", "specbench.cli.help",
    "scipy.stats", "sacrebleu", "lm_eval", "matplotlib",
)  # fmt: skip
RUN = ["run", "--task", "mgsm", "--method", "sd", "--subset", "en", "--limit", "1", "--set",
       "generation.max_new_tokens=4"]  # fmt: skip
PLAIN_RUN = f"""
import sys
{SHORT_WARM_UPS}
from specbench.cli import main
{TRACE}
tell_at_first_pass(lambda: None)
trace({layers(CHECKOUT)})
sys.argv = ["specbench", *{RUN}, "--output", "run"]
try:
    main()
except SystemExit as end:
    assert end.code == 0
assert "specbench.running.measure" in sys.modules and "specbench.results.rows" in sys.modules
print("imported:", [name for name in {UNUSED} if name in sys.modules], file=sys.stderr)
"""


MEASURED = [*RUN, "--output", "measured"]
NEEDS = {
    "plots": [*RUN, "--output", "plotted", "--plot", "picture.png"],
    "judge": [*RUN, "--output", "judged", "--judge", "some-model"],
    "lm-eval": ["run", "--task", "lm_eval:gsm8k", "--method", "sd"],
    "train": ["train", "finetune", "--task", "mgsm", "--output", "trained"],
    "language": ["languages"],
    "ja": ["run", "--task", "wmt", "--subset", "en-ja", "--method", "sd", "--limit", "1", "--output", "japanese"],
    "ray": ["suite", "suite.yaml", "--ray", "local"],
}
SUITE = {"name": "one", "tasks": [{"task": "mgsm", "subsets": ["en"]}], "methods": ["sd"], "limit": 1,
         "pairs": {"embedded": None}}  # fmt: skip
WITHOUT_EXTRAS = f"""
import sys
sys.modules.update(dict.fromkeys({[*EXTRAS]}))
{SHORT_WARM_UPS}
from specbench.cli import main
for words in {[MEASURED, *NEEDS.values()]}:
    sys.argv = ["specbench", *words]
    try:
        main()
    except SystemExit as end:
        print("ended with", end.code, file=sys.stderr)
"""
ANEW = ("specbench", *EXTRAS, *UNUSED)


def run_anew(program: str, output: Path) -> None:
    """Runs a program in this process as one would that has imported nothing of ANEW; its errors go to a file."""
    if packed := sys.modules.get("specbench.models.packed"):
        packed.OPERATORS._destroy()  # torch would refuse the same names again
    for name in [*sys.modules]:
        if any(f"{name}.".startswith(f"{each}.") for each in ANEW):
            del sys.modules[name]
            package, _, own_name = name.rpartition(".")
            if package in sys.modules:  # which has it as an attribute, too
                vars(sys.modules[package]).pop(own_name, None)
    os.chdir(output.parent)
    os.environ["OPENAI_API_KEY"] = "some-secret"
    sys.stdout, sys.stderr = open(os.devnull, "w"), output.open("w", buffering=1)  # noqa: SIM115
    exec(program, {})


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where two processes ran commands, one without the packages of the extras and one with them. Both are
    forked from this one, which has imported what takes long: torch and transformers' Llama."""
    folder = tmp_path_factory.mktemp("started")
    (folder / "suite.yaml").write_text(yaml.safe_dump(SUITE), encoding="utf-8")
    for name, program in (("without", WITHOUT_EXTRAS), ("with", PLAIN_RUN)):
        process = get_context("fork").Process(target=run_anew, args=(program, folder / name))
        process.start()
        process.join(100)
        assert process.exitcode == 0, (folder / name).read_text(encoding="utf-8")
    return folder


def test_a_plain_run_imports_only_what_it_measures_with(started: Path) -> None:
    assert "imported: []" in (started / "with").read_text(encoding="utf-8").splitlines()
    assert (started / "run" / "records.jsonl").is_file()


def test_few_files_and_frames_are_between_the_command_and_the_first_pass(started: Path) -> None:
    """Files of which a function is called, and functions that call each other, down to the network. The first pass is
    in the check of the loaded model, which is a part of the plan: main, command (which makes the run options), run,
    execute, make_plan, load_models, ..."""
    way = told((started / "with").read_text(encoding="utf-8"))
    frames = way["frames"]
    assert 20 < len(way["files"]) <= 41 and way["upwards"] == []
    assert frames[0] == "main" and frames[-1] == "_read" and len(frames) <= 10


def test_without_extras_the_core_measures_and_each_missing_one_is_named(started: Path) -> None:
    told = (started / "without").read_text(encoding="utf-8")
    measured, *others = told.split("ended with ")[:-1]
    codes = [part[0] for part in told.split("ended with ")[1:]]
    assert codes == ["0", *["2"] * len(NEEDS)], told
    assert "the language of the answers is not checked: needs lingua" in measured
    assert (started / "measured" / "leaderboard.json").is_file()
    for extra, said in zip(NEEDS, others, strict=True):
        assert f"pip install '{DISTRIBUTION}[{extra}]'" in said.splitlines()[-1], said
        assert "Traceback" not in said
    with_records = {path.parent.name for path in started.glob("*/records.jsonl") if path.stat().st_size}
    assert with_records == {"measured", "run"}, "something was measured before the line"
