"""A plug-in package, built and installed: a drafter, and a folder with a method that uses it."""

import importlib
import io
import re
import sys
import zipfile
from contextlib import chdir, contextmanager, redirect_stdout

import hatchling.build
import pytest

from specbench.cli.info import components_table
from specbench.core.errors import ConfigError
from specbench.core.registry import NoFeatures, Registry
from specbench.integrations import external
from specbench.specs import catalogue
from specbench.specs.catalogue import load_method
from tests.support.plugins import forget_plugins

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "specbench-parrot"
version = "0.0.1"

[project.entry-points."specbench.drafters"]
parrot = "specbench_parrot:parrot"

[project.entry-points."specbench.methods"]
parrot = "specbench_parrot:METHODS"

[project.entry-points."specbench.tasks"]
parrot = "specbench_parrot:TASKS"
"""

MODULE = '''
from pathlib import Path

from specbench.plugin import DRAFTERS, Drafter, PointMass, Proposal

METHODS = Path(__file__).parent / "methods"
TASKS = str(Path(__file__).parent / "tasks")


class Parrot(Drafter):
    """Repeats the last token."""

    def __init__(self, count):
        self.count = count

    def prefill(self, prompt_ids):
        pass

    def propose(self, ids, num_draft_tokens, generator):
        token_ids = ids[-1:] * min(num_draft_tokens, self.count)
        return Proposal(token_ids, PointMass(token_ids)) if token_ids else Proposal()


@DRAFTERS.declare(provides={"probs"})
def parrot(models, sampling, *, count: int = 7):
    return Parrot(count)
'''

METHOD = """\
name: parrot
version: 1
title: Repeats the last token
drafter: {type: parrot}
verification: {rule: rejection}
num_draft_tokens: 3
"""

TASK = 'name: echo\nversion: 1\ntitle: Echo\nprompt: "{{ row.text }}"\ngeneration: {max_new_tokens: 4}\n'


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the plug-in was installed into."""
    folder = tmp_path_factory.mktemp("plugin")
    files = {
        "pyproject.toml": PYPROJECT,
        "specbench_parrot/__init__.py": MODULE,
        "specbench_parrot/methods/parrot.yaml": METHOD,
        "specbench_parrot/tasks/echo.yaml": TASK,
    }
    for name, text in files.items():
        path = folder / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with chdir(folder / "source"):
        wheel = hatchling.build.build_wheel(str(folder))
    with zipfile.ZipFile(folder / wheel) as content:  # all that an installer does here; `test_new.py` calls pip
        content.extractall(folder / "installed")
    return folder / "installed"


@contextmanager
def on_path(folder):
    """Packages of this folder are installed in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        forget_plugins()
        try:
            yield
        finally:
            patch.undo()
            forget_plugins()
            sys.modules.pop("specbench_parrot", None)


def python(code, folder, *arguments):
    """What a program prints where these packages are installed."""
    with on_path(folder), redirect_stdout(io.StringIO()) as printed, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["-c", *map(str, arguments)])
        exec(compile(code, "program", "exec"), {})
    return printed.getvalue().strip()


PROGRAM = """
import sys
import torch
from specbench.specs import catalogue
from specbench.specs.catalogue import with_overrides
from specbench.decoding.loop import StopRules
from specbench.decoding.loop import decode
from specbench.decoding.sampling import Sampling
from specbench.cli.help.method import parameters
from specbench.cli.show import help_lines
from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS, RULES
from tests.support.toys import TableModel

assert "parrot" in catalogue.method_names() and "echo" in catalogue.task_names()
assert catalogue.load_task("echo").prompt == "{{ row.text }}"
_, (method, ar) = with_overrides(
    [], [catalogue.load_method("parrot"), catalogue.load_method("ar")], ["num_draft_tokens=2"]
)
print(method.lossless, method.needs_drafter, method.num_draft_tokens, method.drafter.options)
target = TableModel(7, seed=1)
target.table += 8 * torch.eye(7)
target.table[:, 3] -= 20 * torch.eye(7)[3]
def run(spec):
    drafter = DRAFTERS.get(spec.drafter.type)(None, Sampling(0.0), **spec.drafter.options)
    rule = RULES.get(spec.verification.rule)(**spec.verification.options)
    return decode(target, drafter, rule, [0, 3], num_draft_tokens=spec.num_draft_tokens, sampling=Sampling(0.0),
                  stop=StopRules(24), generator=torch.Generator().manual_seed(0))
ours, plain = run(method), run(ar)
print(ours.token_ids == plain.token_ids, len(plain.steps), len(ours.steps))
try:
    catalogue.load_method(sys.argv[1])
except ConfigError as error:
    print(error)
print(*help_lines("parrot"), sep=chr(10))
keys = parameters(catalogue.load_method("parrot"))
print([(p.key, p.type, p.range, p.default, p.meaning, p.settable) for p in keys][1])
print(*help_lines("echo"), sep=chr(10))
"""


@pytest.fixture(scope="module")
def told(installed, tmp_path_factory):
    """What a program says of the method, in two lines, of one whose rule lacks something, in the third, and in its help
    of the method and the task."""
    bad = tmp_path_factory.mktemp("bad") / "bad.yaml"
    bad.write_text(METHOD.replace("{rule: rejection}", "{rule: fuzzy, divergence: js, threshold: 0.1}"))
    return python(PROGRAM, installed, bad).splitlines()


def test_the_method_loads_and_its_drafter_drafts(told):
    """Greedy decoding with the plug-in's method, loaded by name, gives what plain decoding gives, in fewer passes."""
    first, second = told[:2]
    assert first == "True False 2 {'count': 7}"
    same, num_plain, num_ours = second.split()
    assert same == "True"
    assert int(num_plain) == 23
    assert int(num_ours) < 15


def test_without_the_plug_in_the_method_is_unknown():
    with pytest.raises(ConfigError, match=r"^unknown method 'parrot': "):
        load_method("parrot")


def test_an_illegal_method_of_a_plug_in_is_refused(told):
    """The plug-in's drafter gives no raw probabilities, which the fuzzy rule compares."""
    assert "bad.yaml: verification.rule = 'fuzzy': needs raw_probs, which drafter 'parrot' lacks" in told[2]
    able = "block, eagle, model, mtp, ngram, self_quantized, self_skip, self_window"
    assert f"a drafter that has it ({able})" in told[2]


def test_a_plug_in_is_explained_as_far_as_its_code_says(told):
    out = "\n".join(told[3:])
    assert "parrot (version 1): Repeats the last token" in out and "drafter: parrot" in out
    assert "no draft model" in out and "specbench run --task mgsm --method parrot --set num_draft_tokens=4" in out
    assert "('drafter.count', 'an integer', '', 7, None, True)" in told and "  {{ row.text }}" in told


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import sys; sys.exit()", "SystemExit: "), ("import sys; sys.exit('no licence')", "SystemExit: no licence"),
        ("raise BaseException('odd')", "BaseException: odd"), ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise GeneratorExit", "GeneratorExit: "), ("import nowhere_to_be_found", "No module named 'nowhere_to_be"),
    ],
)  # fmt: skip
def test_a_plug_in_that_ends_python_at_its_import_is_one_line(tmp_path, monkeypatch, code, told):
    """As a component, as a folder of methods, and as the entry of a decoder."""
    (tmp_path / "ends_python.py").write_text(code)
    info = tmp_path / "ending-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ending\nVersion: 1\n")
    groups = "".join(f"[specbench.{kind}]\nending = ends_python:make\n" for kind in ("endings", "ending_methods"))
    (info / "entry_points.txt").write_text(groups)
    monkeypatch.syspath_prepend(tmp_path)
    calls = [
        lambda: Registry("drafter", "specbench.endings", NoFeatures).get("ending"),
        lambda: catalogue._plugin_folders("ending_methods"),
        lambda: external.load_entry("ends_python:make"),
        lambda: external.load_entry(f"{tmp_path / 'ends_python.py'}:make"),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=re.escape(told)) as caught:
            call()
        assert "\n" not in str(caught.value) and "ends_python" in str(caught.value)
    (tmp_path / "ends_python.py").write_text("raise KeyboardInterrupt")
    importlib.invalidate_caches()
    with pytest.raises(KeyboardInterrupt):
        external.load_entry("ends_python:make")


def test_a_broken_plug_in_is_named_in_one_line(tmp_path):
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[specbench.methods]\nbroken = no_such_module:METHODS\n")
    code = """
from specbench.specs import catalogue
from specbench.specs.catalogue import with_overrides
from specbench.core.errors import ConfigError
try:
    catalogue.method_names()
except ConfigError as error:
    print(error)
"""
    text = python(code, tmp_path)
    assert text == (
        "plug-in 'broken' (no_such_module:METHODS) failed to load: No module named 'no_such_module': "
        "repair or uninstall it"
    )


def test_broken_plug_ins_are_listed_with_their_reasons_beside_all_others(tmp_path):
    """One that raises on import, and one whose entry point is not a factory."""
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[specbench.drafters]\naaa = ends_at_once:make\n[specbench.rules]\nzzz = json:__name__\n"
    )
    (tmp_path / "ends_at_once.py").write_text("raise ValueError('no such licence')")
    with on_path(tmp_path):
        table = components_table()
    told = {(kind, name): text for kind, name, text in table.rows}
    assert told["drafter", "aaa"] == (
        "broken: plug-in drafter 'aaa' (ends_at_once:make) failed to load: ValueError: no such licence: repair or "
        "uninstall it"
    )
    assert told["rule", "zzz"].startswith("broken: rule 'zzz' ('json') is not a factory")
    assert "max_match: 3" in told["drafter", "prompt_lookup"] and ("rule", "rejection") in told
    assert table.caption == ["broken plug-ins, which no method can use: aaa, zzz"]
