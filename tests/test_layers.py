"""The packages import downwards only, and no two files import each other; lazy imports and those of types count."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "specbench"
LAYERS = (
    {"core"}, {"statistics"}, {"specs"}, {"records"}, {"models"}, {"tasks"}, {"decoding"}, {"results"}, {"report"},
    {"running"}, {"integrations"}, {"training"}, {"analysis"}, {"publish"}, {"gate"}, {"plugin"}, {"cli", "api"},
)  # fmt: skip
LEVEL = {package: number for number, packages in enumerate(LAYERS) for package in packages}
LOADERS = {"specbench.models.sources", "specbench.training.data"}  # the only ones that may import the embedded family


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py") if "inside" not in path.parts}
Imports = list[ast.Import | ast.ImportFrom]


def imports(nodes: Imports) -> Iterator[str]:
    """The modules that a file imports anywhere, also those that only type checkers import."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "specbench":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else str(node.module)
        else:
            yield from (alias.name for alias in node.names if alias.name in MODULES)


Graph = dict[str, set[str]]


@pytest.fixture(scope="module")
def nodes() -> dict[str, Imports]:
    """The statements by which every module of the package imports."""
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
    return {
        name: [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        for name, tree in trees.items()
    }


@pytest.fixture(scope="module")
def graph(nodes: dict[str, Imports]) -> Graph:
    """What every module of the package imports."""
    return {name: {*imports(found)} - {name} for name, found in nodes.items()}


def package(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_the_page_for_contributors_has_the_same_layers() -> None:
    page = (PACKAGE.parent / "docs/contributing.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^cli.* > core$", page, re.M)
    assert [set(layer.split(", ")) for layer in line.split(" > ")] == list(reversed(LAYERS))


def test_every_package_has_a_layer() -> None:
    packages = {package(name) for name in MODULES} - {"", "__main__", "built_in", "embedded"}
    assert packages == set(LEVEL)


def test_packages_import_downwards_only(graph: Graph) -> None:
    upwards = [
        f"{name} imports {other}" for name, others in graph.items() for other in others
        if package(name) in LEVEL and LEVEL.get(package(other), -1) > LEVEL[package(name)]
    ]  # fmt: skip
    assert not upwards, "\n".join(sorted(upwards))


def test_core_names_no_package_above_it() -> None:
    """Neither in an import nor in a text, such as the path of a module that is loaded later."""
    above = re.compile(rf"specbench\.({'|'.join(set(LEVEL) - {'core'})}|embedded)\b")
    named = [
        name for name, path in MODULES.items() if package(name) == "core" and above.search(path.read_text("utf-8"))
    ]
    assert not named, named


def test_packages_of_one_layer_do_not_import_each_other(graph: Graph) -> None:
    across = [
        f"{name} imports {other}" for name, others in graph.items() for other in others
        if package(name) != package(other) and LEVEL.get(package(name), -1) == LEVEL.get(package(other), -2)
    ]  # fmt: skip
    assert not across, "\n".join(sorted(across))


def test_servers_and_the_other_integrations_do_not_import_each_other(graph: Graph) -> None:
    served = "specbench.integrations.served"
    across = [
        f"{name} imports {other}" for name, others in graph.items() for other in others
        if package(name) == package(other) == "integrations" and name.startswith(served) != other.startswith(served)
    ]  # fmt: skip
    assert not across, "\n".join(sorted(across))


def test_only_the_loaders_import_the_embedded_family(graph: Graph) -> None:
    others = [
        f"{name} imports {other}" for name, found in graph.items() for other in found
        if package(other) == "embedded" and package(name) != "embedded" and name not in LOADERS
    ]  # fmt: skip
    assert not others, "\n".join(sorted(others))


def cycle(graph: Graph) -> list[str]:
    """One cycle of a graph, its first node again at the end; empty where there is none."""
    done: set[str] = set()
    for start in graph:
        path: list[tuple[str, Iterator[str]]] = [(start, iter(graph[start]))] if start not in done else []
        while path:
            following = next(path[-1][1], None)
            if following is None:
                done.add(path.pop()[0])
                continue
            names = [name for name, _ in path]
            if following in names:
                return [*names[names.index(following) :], following]
            if following not in done:
                path.append((following, iter(graph.get(following, ()))))
    return []


def test_the_embedded_family_imports_only_the_core(graph: Graph) -> None:
    others = {
        f"{name} imports {other}" for name, found in graph.items() for other in found
        if package(name) == "embedded" and package(other) not in ("embedded", "core")
    }  # fmt: skip
    assert not others, "\n".join(sorted(others))


def test_no_import_is_relative(nodes: dict[str, Imports]) -> None:
    relative = {
        name for name, found in nodes.items() for node in found if isinstance(node, ast.ImportFrom) and node.level
    }  # fmt: skip
    assert not relative


def test_no_files_import_each_other(graph: Graph) -> None:
    assert not cycle(graph)


def test_no_packages_import_each_other(graph: Graph) -> None:
    found: dict[str, set[str]] = {}
    for name, others in graph.items():
        found.setdefault(package(name), set()).update(package(other) for other in others)
    found.pop("", None)
    for name, others in found.items():
        others -= {name, ""}
    assert not cycle(found)


@pytest.mark.parametrize("circular", [{"a": {"b"}, "b": {"c"}, "c": {"a"}}, {"a": set(), "b": {"b"}}])
def test_control_a_cycle_is_found(circular: Graph) -> None:
    assert cycle(circular)
