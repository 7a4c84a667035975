"""Every command in the README and the pages of docs/ is parsed and planned; cheap ones run, the others if slow."""

import importlib.util
import re
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
import typer
import yaml

import specbench.integrations.external as externals
from specbench.cli import make_app
from specbench.gate.speed import REMEDY
from specbench.specs.catalogue import load_file, task_names
from specbench.specs.method import MethodSpec
from tests.support.processes import InProcess
from tools import notebook
from tools.reference import MAKERS, on_page_markdown, path, walk

CHECKOUT = Path(__file__).resolve().parents[1]
README = "README.md"
TEXTS = {
    str(file.relative_to(CHECKOUT)): file.read_text(encoding="utf-8")
    for file in [CHECKOUT / README, *sorted((CHECKOUT / "docs").rglob("*.md"))]
}
BLOCK = re.compile(r"```bash\n(.*?)```", re.S)
NAMED_FILE = re.compile(r"```(?:yaml|python)\n# (\S+)\n(.*?)```", re.S)
# The commands that made a measured page are those of the script that writes it; they take hours.
COMMANDS = {
    page: [line for block in BLOCK.findall(text) for line in block.splitlines()]
    for page, text in TEXTS.items() if not page.startswith("docs/measured")
}  # fmt: skip
# Those that need a network or hours are parsed all the same.
PARSED = {
    page: [
        line for block in re.findall(r"```(?:bash|sh|text)\n(.*?)```", text.replace("\\\n", " "), re.S)
        for line in block.splitlines() if line.startswith(("specbench ", "python -m "))
    ]
    for page, text in TEXTS.items()
}  # fmt: skip
OTHER_PROGRAMS = ("python3", "pip", "pytest", "ruff", "mypy", "mkdocs", "llama-server", "vllm")
NEED_MORE = (
    "lm-eval",
    "lm_eval:",
    "--servers",
    "serve-llama-cpp",
    "served:",
    "--against",
)  # a network, servers, another installation
MADE = re.compile(r"(?:--(?:output|to|leaderboard)|board init) (\S+)")
INSTEAD = {
    "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M": "embedded:target",
    "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q4_K_M": "embedded:drafter",
    "Qwen/Qwen2.5-7B-Instruct": "embedded:target",
    "Qwen/Qwen2.5-0.5B-Instruct": "embedded:drafter",
}
CHEAP = (
    "specbench list", "specbench show fsd", "specbench validate my-task.yaml my-method.yaml", "specbench schema",
    "specbench run --task my-task.yaml --method my-method.yaml --data .", "specbench board list",
    "specbench suite my-suite.yaml --dry-run",
    "specbench run --task mgsm --method my-decoder.yaml --subset en --limit 1 --set generation.max_new_tokens=16",
)  # fmt: skip
SHORT = ["--set", "generation.max_new_tokens=8"]
SMALLER = {"run": SHORT, "sweep": SHORT, "audit": [*SHORT, "--draws", "8"],
           "roofline": ["--repeats", "1", "--context", "32"], "suite": ["--limit", "1"],
           "train": ["--set", "max_new_tokens=8"], "languages": ["--max-new-tokens", "8"],
           "tune": ["--set", "generation.max_new_tokens=40", "--limit", "6", "--lengths", "5",
                    "--step", "0.3"]}  # fmt: skip
STAND_INS = {"my-drafter": "embedded:drafter", "my-ngrams": "embedded:ngram"}  # for what an earlier command makes
SHORTER = {"my-suite.yaml": "set: [generation.max_new_tokens=12]\n"}
FEWER = {"my-suite.yaml": ("limit: 8", "limit: 1")}
Specbench = Callable[..., tuple[int, str, str]]


class Planned(BaseException):
    """A model's weights would be loaded now: everything before that has succeeded."""


REFERENCE = {path(name) for name in MAKERS}  # the pages that are made from the code
LOADS_MODELS = ("run", "sweep", "tune", "audit", "roofline", "languages", "train", "suite", "board run")


def is_planned(command: str) -> bool:
    """Whether a command has something to plan: it would load models."""
    return is_ours(command) and command.removeprefix("specbench ").startswith(LOADS_MODELS)


def is_ours(command: str) -> bool:
    """Whether a command is one of specbench that runs here."""
    return command.startswith("specbench ") and not any(word in command for word in NEED_MORE)


def chained(commands: list[str]) -> list[list[str]]:
    """Returns the commands in groups: each with those that use a folder or file which one before it makes."""
    chains: list[list[str]] = []
    for command in commands:
        used = {part for word in shlex.split(command) for part in (*re.split("[:=]", word), word.partition("/")[0])}
        last = {name: chain for chain in chains for name in MADE.findall("\n".join(chain)) if name in used}
        chain = []
        for maker in [each for each in chains if any(each is one for one in last.values())]:
            chain += maker
            chains = [each for each in chains if each is not maker]
        chains.append(chain)
        chain.append(command)
    return chains


def with_output(chains: list[list[str]]) -> list[list[str]]:
    """Returns the chains, joined where a later command reads what two of them make (`check` and `compare`)."""
    joined: list[list[str]] = []
    for chain in chains:
        names = re.findall(r"--output (\S+)", " ".join(joined[-1])) if joined else []
        if joined and any(f"--baseline {name}" in " ".join(chain) for name in names):
            joined[-1] += chain
        else:
            joined.append(list(chain))
    return joined


def prepare(folder: Path) -> None:
    """Writes the files that the pages show into a folder, and links the boards there."""
    for text in TEXTS.values():
        for name, content in NAMED_FILE.findall(text):
            fewer = content.replace(*FEWER.get(name, ("", "")))
            (folder / name).write_text(fewer + SHORTER.get(name, ""), encoding="utf-8")
    (folder / "numbers.jsonl").write_text('{"number": 41}\n', encoding="utf-8")
    (folder / "leaderboards").symlink_to(CHECKOUT / "leaderboards")


def words_of(command: str, limit: str = "1") -> list[str]:
    """Returns the arguments of a command, with embedded models in the place of those on the hub and fewer examples."""
    program, *words = shlex.split(re.sub(r"--limit \d+", f"--limit {limit}", command))
    assert program == "specbench"
    return [INSTEAD.get(word, word) for word in words]


@pytest.fixture(scope="module")
def group() -> Any:
    """The whole command line."""
    return typer.main.get_command(make_app())


@pytest.mark.parametrize("page", [page for page in TEXTS if PARSED[page] or COMMANDS.get(page)])
def test_every_command_is_parsed(page: str, group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = dict(walk(group, "specbench"))
    called: list[str] = []

    def record(name: str) -> Callable[..., None]:
        return lambda **given: called.append(name)

    for name, command in commands.items():
        monkeypatch.setattr(command, "callback", record(name))
    for line in dict.fromkeys([*COMMANDS.get(page, []), *PARSED[page]]):
        for command_line in line.split(" && "):
            program, *words = shlex.split(command_line)
            if program == "specbench":
                group(words, standalone_mode=False)
                assert f"{command_line} ".startswith(f"{called.pop()} ")
            elif words[:1] == ["-m"] and program == "python":
                assert importlib.util.find_spec(words[1]), command_line
            else:
                assert program in OTHER_PROGRAMS or program == ".", command_line


@pytest.mark.parametrize("page", [page for page, lines in COMMANDS.items() if any(map(is_planned, lines))])
def test_every_command_is_planned(
    page: str, specbench: Specbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Specs, data and models are found; a command is stopped where weights would be loaded. Cheap ones run below."""

    def stop(*arguments: Any, **options: Any) -> None:
        raise Planned

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", stop)
    monkeypatch.setattr("specbench.publish.suite.MeasuringProcess", stop)  # which loads the models of a suite or board
    prepare(tmp_path)
    made: list[str] = []  # by earlier commands, which are only planned
    for command in filter(is_ours, COMMANDS[page]):
        if is_planned(command) and command not in CHEAP:
            words = words_of(command)
            for name in made:
                words = [word.replace(name, STAND_INS[name]) if word.endswith(name) else word for word in words]
            try:
                code, _, err = specbench(*words, *["--dry-run"] * command.startswith("specbench suite "))
            except Planned:
                code, err = 0, ""
            assert code == 0, f"{command}: {err}"
        made += [name for name in re.findall(r"--output (\S+)", command) if name in STAND_INS]


def run_chain(commands: list[str], specbench: Specbench, folder: Path) -> None:
    """Runs commands as written, on fewer examples and with shorter answers."""
    prepare(folder)
    is_checked = any(command.startswith("specbench check") for command in commands)  # which needs 16 prompts
    limit = "8" if is_checked else "1"
    for command in commands:
        words = words_of(command, limit)
        if words[0] == "tune" and "--output" not in words:
            words += ["--output", "my.yaml"]
        few = ["--limit", limit] if words[0] == "run" and "--limit" not in words else []
        few += ["--subset", "en,de"] if is_checked and words[0] == "run" else []
        smaller = SMALLER.get(words[0], []) if words[:2] not in (["train", "ngram"], ["train", "retrieval"]) else []
        code, out, err = specbench(*words, *few, *smaller)
        is_busy = words[0] == "check" and code == 2 and REMEDY in " ".join(out.split()) and "too few" not in out
        if words[:2] == ["board", "check"] and "refused by the rule 'impossible speed'" in " ".join(err.split()):
            return  # AR of a single prompt was disturbed: there is nothing to merge
        assert code == 0 or is_busy, f"{command}: {err or out}"
        assert out
        if words[0] == "tune" and words[words.index("--method") + 1].startswith("fsd"):
            check_tuned(out, err)
        elif words[0] == "tune":
            assert isinstance(load_file(words[words.index("--output") + 1]), MethodSpec)


CHAINS = {
    "; ".join(chain): chain
    for commands in COMMANDS.values() for chain in with_output(chained(list(filter(is_ours, commands))))
}  # fmt: skip


@pytest.mark.parametrize("command", CHEAP)
def test_cheap_commands_run(command: str, specbench: Specbench, tmp_path: Path) -> None:
    assert [command] in CHAINS.values(), "no page has it"
    run_chain([command], specbench, tmp_path)


FIRST = "specbench run --task mgsm --method fsd"  # which the continuous checks run


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CHAINS if name not in (*CHEAP, FIRST)])
def test_all_other_commands_run(
    name: str, specbench: Specbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subsets of suites and boards run in this process, where warm-ups are short."""
    monkeypatch.setattr("specbench.publish.suite.MeasuringProcess", InProcess)
    run_chain(CHAINS[name], specbench, tmp_path)


def check_tuned(out: str, err: str) -> None:
    """A fuzzy method tuned from end to end: the files are methods, none of which has less than its own floor."""
    assert "the slice is too small" in err and "T_SD = " in err
    specs = [load_file(name) for name in out.split("files: ")[1].splitlines()[0].split(", ")]
    assert len(specs) in (1, 3)
    found = [spec.verification.options["threshold"] for spec in specs if isinstance(spec, MethodSpec)]
    assert len(found) == len(specs) and found == sorted(found) and found[0] > 0 and found[-1] < 0.7
    assert max(map(len, out.split("files: ")[0].splitlines())) <= 100


def test_the_two_first_commands_are_run_by_the_continuous_checks() -> None:
    """They install, so they run on a fresh machine there and not here."""
    checks = (CHECKOUT / ".ci" / "run").read_text(encoding="utf-8")
    install, test = COMMANDS[README][:2]
    assert "python3 -m venv" in install and install.endswith(FIRST) and FIRST in CHAINS
    assert FIRST in checks
    assert test == "pip install -e '.[test]' && pytest"
    assert re.search(r"pip install .*-e '\.\[(\w+,)*test(,\w+)*\]'", checks) and re.search(r"^pytest\b", checks, re.M)


def plain(text: str) -> str:
    """Returns printed text without what differs between runs and machines: numbers, digests, the device, breaks."""
    text = re.sub(r" on [^\n]*, 1 thread", "", text).replace("†", "")
    return " ".join(re.sub(r"[0-9a-f]{12}|\d[\d.]*", "0", text).split())


def test_the_output_in_the_readme_is_what_the_command_prints(specbench: Specbench) -> None:
    """The head, the shape of the last line, and all lines below; of the line on few prompts only the beginning."""
    shown = re.findall(r"```\n( +tok/s.*?)```", TEXTS[README], re.S)[0]
    head, _, rest = shown.partition(" ───")
    last = next(line for line in rest.splitlines() if line.startswith(" all "))
    below, _, few = rest[rest.index("target embedded") :].partition(" in en,")[0].partition("fewer than")
    code, out, err = specbench(
        *words_of("specbench run --task mgsm --method fsd --subset en,te"),
        *("--limit", "3", "--set", "generation.max_new_tokens=4"),
    )
    assert code == 0, err
    for part in (*head.splitlines(), last, below, f"fewer than{few}"):
        assert plain(part) in plain(out), part


def test_the_readme_is_short() -> None:
    lines = TEXTS[README].splitlines()
    assert len(lines) <= 120
    assert all(len(line) <= 120 for line in lines)


def test_the_readme_counts_the_tasks() -> None:
    assert f"of the {len(task_names())} tasks" in TEXTS[README]


def test_every_package_is_in_the_map() -> None:
    listed = set(re.findall(r"(\w+)/", TEXTS[README].split("## Map")[1]))
    assert {file.parent.name for file in (CHECKOUT / "specbench").glob("*/__init__.py")} <= listed


@pytest.mark.parametrize("page", TEXTS)
def test_the_files_that_are_linked_or_named_exist(page: str) -> None:
    text = TEXTS[page]
    folder = (CHECKOUT / page).parent
    links = [(folder / link).resolve() for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)]
    named = [CHECKOUT / name for name in re.findall(r"`((?:specbench|tests|tools|leaderboards|docs)/[\w/.-]+)`", text)]
    assert not [path for path in [*links, *named] if not path.exists()]


def test_a_link_to_the_reference_leads_to_a_section_here_and_to_a_page_on_the_site() -> None:
    sections = re.findall(r"^## (.+)$", TEXTS["docs/reference.md"], re.M)
    assert {f"reference/{name.lower()}.md" for name in sections} == REFERENCE
    linked = {name for text in TEXTS.values() for name in re.findall(r"reference\.md#([\w-]+)\)", text)}
    assert linked <= {name.lower() for name in sections} and len(linked) >= 6
    assert on_page_markdown("[Keys](../reference.md#tasks)", page=None) == "[Keys](../reference/tasks.md)"
    assert on_page_markdown("[All](reference.md)") == "[All](reference.md)"


def test_every_page_is_in_the_navigation() -> None:
    config = (CHECKOUT / ".mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r": ([\w/]+\.md)$", yaml.safe_dump(yaml.safe_load(config)["nav"]), re.M))
    there = {page.removeprefix("docs/") for page in TEXTS if page.startswith("docs/")} | {*REFERENCE, notebook.PAGE}
    assert there == listed


def test_the_external_decoder_of_the_guide_is_that_of_the_package() -> None:
    shown = next(code for name, code in NAMED_FILE.findall(TEXTS["docs/guide/plugins.md"]) if name == "my_decoder.py")
    least = textwrap.dedent(str(externals.__doc__).split("A minimal example:")[1])
    assert shown.split() == least.split()
