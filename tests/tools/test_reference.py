"""The reference pages are made from the code, and leave nothing of it out."""

import ast
import re
import runpy
import warnings
from functools import cache
from pathlib import Path

import pytest

from specbench.core.registry import BRIDGES, DRAFTERS, READERS, RULES, SCORERS
from specbench.results.metric_format import all_metrics
from specbench.specs.catalogue import method_names, task_names
from specbench.specs.method import MethodSpec
from specbench.specs.task import TaskSpec
from tools.picture import DEMO, REAL, Picture, picture
from tools.reference import FILES, OVERVIEW, escaped, on_page_markdown, overview, pages, table
from tools.surroundings import EXIT_CODES, OWN

CHECKOUT = Path(__file__).resolve().parents[2]
TOOLS = sorted(
    ".".join(file.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__main__")
    for file in (CHECKOUT / "tools").rglob("*.py")
    if '__name__ == "__main__"' in file.read_text("utf-8")
)


@cache
def code() -> list[list[ast.AST]]:
    """Returns the nodes of every file of the package that names variables of the environment or exit codes."""
    texts = [file.read_text(encoding="utf-8") for file in (CHECKOUT / "specbench").rglob("*.py")]
    return [list(ast.walk(ast.parse(text))) for text in texts if re.search(r"environ|Exit|exit\(", text)]


def dotted(node: ast.expr) -> str:
    """Returns a name with its attributes, such as os.environ.get."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


made = cache(pages)


def page(name: str) -> str:
    return made()[f"reference/{name}.md"]


def test_every_name_is_there() -> None:
    names = [name for registry in (DRAFTERS, RULES, BRIDGES, SCORERS, READERS) for name in registry.names()]
    assert set(names) <= set(re.findall(r"^### (.+)$", page("components"), re.M))
    assert set(method_names()) <= set(re.findall(r"^### (.+)$", page("methods"), re.M))
    assert set(task_names()) | set(TaskSpec.model_fields) <= set(re.findall(r"^\| `([\w-]+)` \|", page("tasks"), re.M))
    assert set(MethodSpec.model_fields) <= set(re.findall(r"^\| `(\w+)` \|", page("methods"), re.M))
    assert set(all_metrics()) <= set(re.findall(r"^\| `([^`]+)` \|", page("metrics"), re.M))


def test_every_command_has_a_section_with_its_options() -> None:
    sections = dict(re.findall(r"^## (specbench [\w -]+)\n(.*?)(?=^## |\Z)", page("commands"), re.M | re.S))
    assert len(sections) >= 25
    for option in ("--task", "--method", "--set", "--engine", "--judge", "--output"):
        assert f"| `{option}` |" in sections["specbench run"]
    assert "| `--samples` | `1000` |" in sections["specbench fairness"]
    assert "| `NAME` | required |" in sections["specbench suite"]


def read_variables() -> set[str]:
    """Returns the environment variables that the package reads or sets, constants by their values."""
    found: set[str] = set()
    for nodes in code():
        constants = {
            target.id: node.value.value for node in nodes if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant) for target in node.targets if isinstance(target, ast.Name)
        }  # fmt: skip
        for node in nodes:
            keys: list[ast.expr] = []
            if isinstance(node, ast.Call) and dotted(node.func).startswith("os.environ."):
                keys = node.args[:1]
            elif isinstance(node, ast.Call) and dotted(node.func) == "ApiKey.from_environment":
                keys = node.args[1:]
            elif isinstance(node, ast.Subscript) and dotted(node.value) == "os.environ":
                keys = [node.slice]
            elif isinstance(node, ast.Compare) and dotted(node.comparators[0]) == "os.environ":
                keys = [node.left]
            for key in keys:
                found.add(str(constants.get(key.id, "") if isinstance(key, ast.Name) else ast.literal_eval(key)))
    return found - {""}


def test_every_environment_variable_is_there() -> None:
    found = read_variables()
    assert {"OPENAI_API_KEY", "OPENAI_BASE_URL", "XDG_CACHE_HOME"} <= found <= set(OWN)


def test_every_exit_code_is_there() -> None:
    """Those that commands raise by their number."""
    found = {
        node.args[0].value for nodes in code() for node in nodes
        if isinstance(node, ast.Call) and dotted(node.func) in ("typer.Exit", "sys.exit") and node.args
        and isinstance(node.args[0], ast.Constant)
    }  # fmt: skip
    assert {1, 2} <= found <= set(EXIT_CODES)


def test_a_clone_has_the_keys_of_files_without_the_site() -> None:
    """docs/reference.md has them itself; the site has them on their own pages only."""
    text = OVERVIEW.read_text(encoding="utf-8")
    assert text == overview(text), "run python -m tools.reference --write"
    listed = {*re.findall(r"^\| `([\w-]+)` \|", text, re.M)}
    for specs in FILES.values():
        for spec in specs.values():
            assert set(spec.model_fields) <= listed
    assert set(OWN) <= listed
    assert "specbench/specs" not in text, "names of classes are no help to whoever writes a file"
    on_site = on_page_markdown(text)
    assert "| key |" not in on_site and "## Servers" in on_site


def test_text_of_the_code_is_no_markup() -> None:
    assert escaped("a * b, `c * d`, <e>, [f]") == r"a \* b, `c * d`, \<e>, \[f\]"
    assert table(["a"], [["b | `c|d`"]])[2] == r"| b \| `c\|d` |"


@pytest.mark.parametrize("drawn", [DEMO, REAL], ids=lambda drawn: drawn.board.stem)
def test_the_picture_is_of_the_board(drawn: Picture) -> None:
    drawing = drawn.file.read_text(encoding="utf-8") if drawn.file.is_file() else None
    assert drawing == picture(drawn), "run python -m tools.picture"


@pytest.mark.parametrize("module", TOOLS)
def test_every_tool_is_on_the_page_for_contributors(module: str) -> None:
    text = (CHECKOUT / "docs" / "contributing.md").read_text(encoding="utf-8")
    assert re.search(rf"python -m {re.escape(module)}\b|`{module.replace('.', '/')}(\.py)?`", text)


@pytest.mark.slow
@pytest.mark.parametrize("module", TOOLS)
def test_every_tool_has_a_help(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by `python -m`, in this process, which has imported most of what they import."""
    monkeypatch.setattr("sys.argv", [module, "--help"])
    with warnings.catch_warnings(), pytest.raises(SystemExit) as end:
        warnings.simplefilter("ignore")  # a module may be imported already
        runpy.run_module(module, run_name="__main__")
    shown = capsys.readouterr().out
    assert not end.value.code and "usage" in shown.lower() and len(shown.splitlines()) > 4
