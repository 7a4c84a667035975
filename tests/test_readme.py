"""Every command of the README runs, and what it says about tasks and methods is so."""

import re
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

import specbench.integrations.external as externals
from specbench.cli import app
from specbench.specs.catalogue import load_file, load_method, load_tasks, method_names, task_names
from specbench.specs.method import MethodSpec

CHECKOUT = Path(__file__).resolve().parents[1]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", README, re.S) for line in block.splitlines()]
INSTALLING = [command for command in COMMANDS if "pip install" in command]


def chained(commands: list[str]) -> list[list[str]]:
    """The commands, each with those behind it that use the folder or file which one of them makes."""
    chains: list[list[str]] = []
    for command in commands:
        made = re.findall(r"--(?:output|to) (\S+)", "\n".join(chains[-1])) if chains else []
        if not any(word.partition(":")[0] in made for word in shlex.split(command)):
            chains.append([])
        chains[-1].append(command)
    return chains


SHORT = ["--set", "generation.max_new_tokens=24"]
SMALLER = {"run": ["--set", "generation.max_new_tokens=16"], "sweep": SHORT, "audit": [*SHORT, "--draws", "24"],
           "limit": ["--repeats", "1", "--context", "64"],
           "suite": ["--limit", "1"], "train": ["--set", "max_new_tokens=16"],
           "tune": ["--set", "generation.max_new_tokens=40", "--limit", "6", "--lengths", "5", "--step", "0.3",
                    "--output", "my.yaml"]}  # fmt: skip
SHORTER = {"my-suite.yaml": "set: [generation.max_new_tokens=12]\n"}
RUNNABLE = chained([command for command in COMMANDS if command not in INSTALLING])
# These measure many tokens, train or compile: each takes more seconds than all others together.
COSTLY = re.compile(
    r"specbench (audit|board run|limit|suite|sweep|train|tune)\b(?!.* --dry-run)|--task all|--engine|--method sd,"
)


def test_the_two_first_commands_are_run_by_the_continuous_checks() -> None:
    """They install, so they run on a fresh machine there and not here."""
    checks = (CHECKOUT / ".ci" / "run").read_text(encoding="utf-8")
    assert len(INSTALLING) == 2
    assert "python3 -m venv" in INSTALLING[0] and INSTALLING[0].endswith("specbench run --task mgsm --method fsd")
    assert "specbench run --task mgsm --method fsd" in checks
    assert INSTALLING[1] == "pip install -e '.[test]' && pytest"
    assert "pip install" in checks and "-e '.[test]'" in checks and re.search(r"^pytest$", checks, re.M)


@pytest.mark.parametrize("command", [each for chain in RUNNABLE for each in chain])
def test_every_command_is_parsed(command: str) -> None:
    """Those that are costly to run too: their options are known and fit, and so are the built-in names in them."""
    program, *words = shlex.split(command)
    assert program == "specbench"
    group = typer.main.get_command(app)
    while hasattr(group, "commands"):
        name, *words = words
        group = group.commands[name]
    parameters = group.make_context(name, words).params
    tasks = parameters.get("task") or ""
    for task in tasks.split(","):
        assert task in ("", "all") or task.endswith(".yaml") or task.startswith("world:") or load_tasks(task)
    for method in (parameters.get("method") or "").split(","):
        assert not method or method.endswith(".yaml") or load_method(method)


@pytest.mark.parametrize(
    "commands",
    [pytest.param(each, marks=[pytest.mark.slow] * any(map(COSTLY.search, each))) for each in RUNNABLE],
    ids="; ".join,
)
def test_commands(commands: list[str], specbench: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    for name, text in re.findall(r"```(?:yaml|python)\n# (\S+)\n(.*?)```", README, re.S):
        (tmp_path / name).write_text(text + SHORTER.get(name, ""), encoding="utf-8")
    (tmp_path / "numbers.jsonl").write_text(re.findall(r"```json\n(.*?)```", README, re.S)[0], encoding="utf-8")
    (tmp_path / "leaderboards").symlink_to(CHECKOUT / "leaderboards")
    for command in commands:  # as written, on fewer examples and with shorter answers
        program, *arguments = shlex.split(re.sub(r"--limit \d+", "--limit 1", command))
        assert program == "specbench"
        code, out, err = specbench(*arguments, *SMALLER.get(arguments[0], []))
        assert code == 0, err
        assert out
        if arguments[0] == "tune":
            check_tuned(out, err)


def check_tuned(out: str, err: str) -> None:
    """A fuzzy method tuned from end to end: the files are methods, none of which has less than its own floor."""
    assert "the slice is too small" in err and "T_SD = " in err
    specs = [load_file(name) for name in out.split("files: ")[1].splitlines()[0].split(", ")]
    assert len(specs) in (1, 3)
    found = [spec.verification.options["threshold"] for spec in specs if isinstance(spec, MethodSpec)]
    assert len(found) == len(specs) and found == sorted(found) and found[0] > 0 and found[-1] < 0.7
    assert max(map(len, out.split("files: ")[0].splitlines())) <= 100


def test_every_method_and_task_is_in_its_table() -> None:
    rows = [line.split("|") for line in README.splitlines() if line.startswith("| `")]
    cells = {name: row for row in rows for name in re.findall(r"`([^`]+)`", row[1])}
    for name in method_names():
        spec = load_method(name)
        claimed = "claimed" if spec.decoder else "yes"
        assert cells[name][4].strip() == (claimed if spec.lossless else "no"), name
    assert set(task_names()) <= set(cells)


def test_every_package_is_in_the_map() -> None:
    listed = set(re.findall(r"(\w+)/", README.split("## Map")[1]))
    assert {file.parent.name for file in (CHECKOUT / "specbench").glob("*/__init__.py")} <= listed


def test_the_files_that_are_linked_or_named_exist() -> None:
    named = re.findall(r"\]\(([^)#:]+)\)|`(specbench/[\w/]+\.py|tests/\w+\.py)`", README)
    missing = {link or name for link, name in named if not (CHECKOUT / (link or name)).exists()}
    assert named and not missing


def test_the_external_decoder_that_the_readme_points_to(
    specbench: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """What the docstring of the package shows is a decoder, named as the README says."""
    decoder = re.findall(r"`decoder: (\{type: external.*?\})`", README)[0]
    code = str(externals.__doc__).split("The least of it:")[1]
    (tmp_path / "my_decoder.py").write_text(textwrap.dedent(code), encoding="utf-8")
    method = f"name: mine\nversion: 1\ntitle: Mine\nnum_draft_tokens: 1\ndecoder: {decoder}\n"
    (tmp_path / "mine.yaml").write_text(method, encoding="utf-8")
    run = ["run", "--task", "mgsm", "--method", "mine.yaml", "--subset", "en", "--limit", "1", *SMALLER["run"]]
    exit_code, out, err = specbench(*run)
    assert exit_code == 0, err
    assert "greedy equal" in out
