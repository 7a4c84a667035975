"""Revisions of code outside the package: which files they cover, and that every edit of one of them is another run."""

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.core import source
from specbench.core.registry import DRAFTERS, RULES, SCORERS
from specbench.core.source import code_revision, plugins_digest, source_files
from specbench.core.values import file_digest
from specbench.decoding.drafters import Drafter
from specbench.decoding.proposal import PointMass, Proposal
from specbench.integrations.external import load_entry
from specbench.models.objects import object_digest
from specbench.results.conditions import RowPair, conditions_that_differ
from specbench.results.leaderboard import load
from specbench.results.row import Row
from specbench.running.request import Request, run_spec
from specbench.specs.catalogue import component_revisions
from specbench.specs.run_options import RunOptions
from tests.support.plugins import forget_plugins
from tests.support.site_rows import some_rows

PACKAGE = {
    "mine_source/__init__.py": "from mine_source.used import draft\n",
    "mine_source/used.py": "from . import inner\nimport numpy, torch\n\ndef draft(ids, n):\n    import mine_beside\n",
    "mine_source/inner.py": "import importlib\nLATE = importlib.import_module('mine_source.late')\n",
    "mine_source/late.py": "import mine_source.broken_name\n",
    "mine_source/unused.py": "import torch\n",
    "mine_beside.py": "TABLE = [1]\n",
}  # fmt: skip
USED = {"mine_source", "mine_source.used", "mine_source.inner", "mine_source.late", "mine_beside"}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, dict[str, str]], Any]]:
    """Writes files and imports the package anew, as another process would."""
    folders: list[Path] = []

    def forget() -> None:
        for name in [name for name in sys.modules if name.startswith("mine_")]:
            del sys.modules[name]
        importlib.invalidate_caches()

    def load(folder: Path, files: dict[str, str], name: str = "mine_source") -> Any:
        forget()
        write(folder, files)
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        shutil.rmtree(folder / "mine_source" / "__pycache__", ignore_errors=True)
        if folder not in folders:
            folders.append(folder)
            monkeypatch.syspath_prepend(folder)
        return importlib.import_module(name)

    yield load
    forget()


def test_the_files_of_a_module_are_its_own_and_those_it_imports(modules: Any, tmp_path: Path) -> None:
    package = modules(tmp_path, {name: text for name, text in PACKAGE.items() if "late" not in name}
                      | {"mine_source/late.py": ""})  # fmt: skip
    write(tmp_path, PACKAGE)
    assert set(source_files([("mine_source", Path(package.__file__))])) == USED
    one = tmp_path / "mine_beside.py"
    assert source_files([("mine_beside", one)]) == {"mine_beside": one}
    assert source.digest_of({"mine_beside": one}) == f"local-{file_digest(one)}", (
        "as folders of earlier versions have it"
    )
    assert code_revision(["specbench.core.source", "torch", None, "no_such_module"]) is None


@pytest.mark.parametrize("name", [*PACKAGE])
def test_an_edit_of_any_used_file_is_another_revision(modules: Any, tmp_path: Path, name: str) -> None:
    files = PACKAGE | {"mine_source/late.py": ""}
    before = code_revision([modules(tmp_path, files)])
    module = modules(tmp_path, files | {name: files[name] + "# edited\n"})
    after = code_revision(["mine_source"])
    assert (before == after) == (name == "mine_source/unused.py")
    write(tmp_path, files)
    assert code_revision([module]) == after, "what was imported is what runs"
    assert code_revision([modules(tmp_path, files)]) == before, "after the repair, the old revision"


def test_the_revision_does_not_depend_on_the_place(modules: Any, tmp_path: Path) -> None:
    files = PACKAGE | {"mine_source/late.py": ""}
    first = code_revision([modules(tmp_path / "a", files)])
    shutil.rmtree(tmp_path / "a")
    assert code_revision([modules(tmp_path / "b", files)]) == first


def test_of_installed_code_only_the_same_distribution_counts(modules: Any, tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    package = modules(folder, PACKAGE | {"mine_source/late.py": ""})
    assert set(source_files([("mine_source", Path(package.__file__))])) == USED - {"mine_beside"}


def test_a_circle_and_broken_code_end(tmp_path: Path) -> None:
    write(tmp_path, {"one.py": "import two", "two.py": "import one\nimport three", "three.py": "def broken(:"})
    assert set(source_files([("one", tmp_path / "one.py")])) == {"one", "two", "three"}


def test_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_FILES", 3)
    write(tmp_path, {f"m{number}.py": f"import m{number + 1}" for number in range(9)})
    assert set(source_files([("m0", tmp_path / "m0.py")])) == {"m0", "m1", "m2"}


def test_components_of_this_package_have_no_revision_of_their_own() -> None:
    assert {registry.revision(name) for registry in (DRAFTERS, RULES, SCORERS) for name in registry.names()} == {None}


def test_all_files_of_installed_plug_ins_count(modules: Any, tmp_path: Path) -> None:
    before = plugins_digest()
    info = {"mine-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1\n",
            "mine-1.dist-info/entry_points.txt": "[specbench.methods]\nmine = mine_source:METHODS\n"}  # fmt: skip
    files = PACKAGE | {"mine_source/late.py": "", "mine_source/methods/mine.yaml": "name: mine\n"}
    modules(tmp_path, files | info)
    found = [plugins_digest()]
    for name in ("mine_source/unused.py", "mine_source/methods/mine.yaml"):
        write(tmp_path, {name: files[name] + "# edited\n"})
        found.append(plugins_digest())
    assert len({before, *found}) == 4


# Objects: (before, after) of a module, whose `part` is the drafter.
EDITS = {
    "an import in the function": (
        "def part(ids, n):\n    from mine_helper import TIMES\n    return ids[-1:] * TIMES\n", "TIMES = 1\n",
        "TIMES = 2\n",
    ),
    "an import of an import": (
        "import mine_middle\ndef part(ids, n): return mine_middle.times()\n", "TIMES = 1\n", "TIMES = 2\n",
    ),
    "a name in a comprehension": (
        "import mine_helper\nTIMES = mine_helper.TIMES\ndef part(ids, n): return [TIMES for _ in ids]\n", "TIMES = 1\n",
        "TIMES = 2\n",
    ),
    "an array in an object": (
        "import numpy\nfrom mine_helper import TIMES\nclass Part:\n"
        "    def __init__(self): self.table = numpy.full(3, TIMES)\n"
        "    def __call__(self, ids, n): return self.table\npart = Part()\n", "TIMES = 1\n", "TIMES = 2\n",
    ),
    "slots": (
        "from mine_helper import TIMES\nclass Part:\n    __slots__ = ('times',)\n"
        "    def __init__(self): self.times = TIMES\n"
        "    def __call__(self, ids, n): return self.times\npart = Part()\n", "TIMES = 1\n", "TIMES = 2\n",
    ),
}  # fmt: skip
MIDDLE = {"mine_middle.py": "import mine_helper\ndef times(): return mine_helper.TIMES\n"}


@pytest.mark.parametrize("place", ["a file", "a notebook"])
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_what_an_object_uses_is_another_object(modules: Any, tmp_path: Path, name: str, place: str) -> None:
    code, *helpers = EDITS[name]

    def digest(helper: str) -> str:
        module = modules(tmp_path, {"mine_part.py": code, "mine_helper.py": helper, **MIDDLE}, "mine_part")
        if place == "a file":
            return object_digest(module.part)
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(code, names)
        return object_digest(names["part"])

    first, second = map(digest, helpers)
    assert first == digest(helpers[0]) != second


# A plug-in with a component of each kind, each in a module of its own.
PLUGIN = {
    "mine_plugin/__init__.py": "from pathlib import Path\nFOLDER = Path(__file__).parents[1] / 'specs'\n",
    "mine_plugin/drafter.py": "from tests.core.test_source import Copies\n\nclass Mine(Copies):\n    times = 1\n",
    "mine_plugin/rule.py": "from specbench.decoding.verification import ExactMatch\n\nclass Mine(ExactMatch): pass\n",
    "mine_plugin/scorer.py": """
from specbench.tasks.scoring import PerAnswer

def mine():
    return PerAnswer(("right",), lambda text, reference: {"right": text == reference})
""",
    "mine_plugin/reader.py": "def mine():\n    return lambda row: row\n",
    "mine_plugin/specs/mine-method.yaml": """
name: mine-method
version: 1
title: Mine
drafter: {type: mine-drafter}
verification: {rule: mine-rule}
num_draft_tokens: 2
""",
    "mine_plugin/specs/mine-task.yaml": """
name: mine-task
version: 1
title: Mine
prompt: "{{ row.text }}"
reference: "{{ row.text }}"
reader: mine-reader
scorer: {type: mine-scorer}
generation: {max_new_tokens: 4}
""",
    "mine_plugin-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine-plugin\nVersion: 1\n",
    "mine_plugin-1.dist-info/entry_points.txt": """
[specbench.drafters]
mine-drafter = mine_plugin.drafter:Mine
[specbench.rules]
mine-rule = mine_plugin.rule:Mine
[specbench.scorers]
mine-scorer = mine_plugin.scorer:mine
[specbench.readers]
mine-reader = mine_plugin.reader:mine
""",
}  # fmt: skip
KINDS = ("drafter", "rule", "scorer", "reader")


class Copies(Drafter):
    """The base class of the plug-in's drafter, in the package of the tests."""

    times = 1

    def __init__(self, models: Any, sampling: Any) -> None:
        super().__init__()

    def propose(self, ids: list[int], num_draft_tokens: int, generator: Any) -> Proposal:
        token_ids = ids[-1:] * min(self.times, num_draft_tokens)
        return Proposal(token_ids, PointMass(token_ids)) if token_ids else Proposal()


@pytest.fixture
def plugin(modules: Any, tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """Installs the plug-in, after an edit of some files, as another process would find it. Returns a command."""
    (tmp_path / "rows.jsonl").write_text('{"text": "What is 1 + 1?"}\n')

    def install(**edits: str) -> list[str]:
        changed = {f"mine_plugin/{kind}.py": PLUGIN[f"mine_plugin/{kind}.py"] + edit for kind, edit in edits.items()}
        modules(tmp_path / "installed", PLUGIN | changed, "mine_plugin")
        shutil.rmtree(tmp_path / "installed" / "mine_plugin" / "__pycache__", ignore_errors=True)
        forget_plugins()
        specs = tmp_path / "installed" / "mine_plugin" / "specs"
        return ["run", "--task", str(specs / "mine-task.yaml"), "--method", str(specs / "mine-method.yaml"), "--data",
                str(tmp_path / "rows.jsonl")]  # fmt: skip

    yield install
    for name in [name for name in sys.modules if name.startswith("mine_")]:
        del sys.modules[name]
    sys.path[:] = [place for place in sys.path if place != str(tmp_path / "installed")]
    forget_plugins()


def test_an_edited_component_is_measured_again_and_the_repaired_one_is_read(
    plugin: Any, specbench: Any, tmp_path: Path
) -> None:
    code, out, err = specbench(*plugin())
    assert code == 0, err
    folder = Path(out.rsplit("records: ", 1)[1].strip()).parent
    identity = json.loads((folder / "run.json").read_text())
    assert sorted(identity["components"]) == sorted(f"{kind} mine-{kind}" for kind in KINDS)
    rows = {row.method_name: row for row in load(folder / "leaderboard.json")}
    assert rows["mine-method"].options["code"] == identity["components"]
    assert sorted(rows["ar"].options["code"]) == ["reader mine-reader", "scorer mine-scorer"]
    code, out, err = specbench(*plugin(drafter="    times = 2\n"), "--json")
    assert code == 0 and "measured already" not in err
    _, edited = (Row.model_validate(each) for each in json.loads(out))
    (difference,) = [each for each in RowPair(rows["mine-method"], edited).changes() if "code" in each]
    assert difference.startswith("code.drafter mine-drafter local-") and not conditions_that_differ(
        rows["mine-method"], edited
    )
    code, out, err = specbench(*plugin(drafter="    times = 2\n"), "--output", str(folder))
    assert code == 2 and "components.drafter mine-drafter: " in err and len(err.splitlines()) == 1
    code, out, err = specbench(*plugin())
    assert code == 0 and f"measured already in {folder}" in err


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_component_counts(plugin: Any, kind: str) -> None:
    def revisions(**edits: str) -> dict[str, str]:
        words = plugin(**edits)
        options = RunOptions(data=words[-1])
        spec = run_spec(Request([words[2]], [words[4]], options, ""))
        return component_revisions(spec.tasks, spec.methods)

    before, after = revisions(), revisions(**{kind: "# edited\n"})
    assert {name for name in before if before[name] != after[name]} == {f"{kind} mine-{kind}"}


def test_rows_of_other_scorers_do_not_compare() -> None:
    def row(**code: str) -> Row:
        return some_rows()[0].model_copy(update={"options": {"code": code}})

    first, second = row(**{"scorer a": "local-1", "drafter b": "local-1"}), row(**{"scorer a": "local-2"})
    assert [str(each) for each in conditions_that_differ(first, second)] == ["code.scorer a: local-1 ≠ local-2"]
    assert RowPair(first, second).hindrances((), by_rows=False) == []


def test_an_edited_decoder_is_told_with_the_code_that_it_imports(modules: Any, tmp_path: Path) -> None:
    files = {"mine_entry.py": "import mine_helper\ndef decode(prompt_ids): return []\n", "mine_helper.py": "A = 1\n"}

    def revision(folder: Path, **changed: str) -> str | None:
        write(folder, files | {f"{name}.py": text for name, text in changed.items()})
        for name in [name for name in sys.modules if name.startswith(("specbench_external_", "mine_"))]:
            del sys.modules[name]
        return load_entry(f"{folder / 'mine_entry.py'}:decode").revision

    before = revision(tmp_path)
    alone = f"local-{file_digest(tmp_path / 'mine_entry.py')}"
    assert len({before, revision(tmp_path, mine_helper="A = 2\n"), alone}) == 3
    assert revision(tmp_path / "elsewhere") == before
    sys.path[:] = [place for place in sys.path if not place.startswith(str(tmp_path))]
