"""The sandbox: what programs and their tests can do in it. What they cannot do is in tests/attacks/test_programs.py."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from specbench.tasks.sandbox import run
from specbench.tasks.sandbox.run import Limits, ProgramTest, run_program, strongest
from tests.attacks.world import MODES, isolation

TEST = "assert add(1, 2) == 3\nassert add(5, 5) == 10\n"
RIGHT = "def add(a, b): return a + b"
QUICK = Limits(timeout_seconds=1, memory_mib=128)
LONG = Limits(timeout_seconds=30, memory_mib=128)


def test_its_processes_import_little():
    """Two are started for each program, so what they import is what many programs cost."""
    code = f"import sys; sys.path.insert(0, {str(run.ROOT)!r}); import specbench.tasks.sandbox.inside.tester, "
    code += "specbench.tasks.sandbox.inside.answerer; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "specbench.tasks.sandbox.inside.answerer" in told
    assert not {"importlib.metadata", "email", "pydantic", "yaml", "numpy", "pathlib", "traceback"} & set(told)


def test_all_that_can_be_called_is_a_function():
    program = """
import functools, operator
from operator import add as built_in
@functools.lru_cache
def cached(a, b): return a + b
partial = functools.partial(operator.add)
class Adder:
    def __call__(self, a, b): return a + b
instance = Adder()
unnamed = lambda a, b: a + b
def abs(a): return None
"""
    kinds = ("built_in", "cached", "partial", "instance", "unnamed")
    test = "".join(f"assert {kind}(1, 2) == 3 == abs(-3)\n" for kind in kinds)
    for entry_points in ((), kinds):
        assert run_program(ProgramTest(program, test, entry_points), Limits()).reason == ""


@pytest.mark.parametrize("body", ["", '    """The sum."""\n', "    c = a\n"])
def test_the_function_that_a_prefix_begins_is_wanted(body):
    prefix = f"def add(a, b):\n{body}"
    assert run_program(ProgramTest(RIGHT, TEST, prefix=prefix), Limits()).reason == ""
    assert run_program(ProgramTest("def other(): pass", TEST, prefix=prefix), Limits()).status == "failed"


def test_the_wanted_function_is_found_wherever_a_test_names_it():
    """Beside names of a module, as an argument, and in a class; what the prefix and the test define is not wanted."""
    test = """
from math import *
assert floor(add(1, 2)) == limit
def check(f):
    assert f(1, 2) == limit
check(add)
class Test:
    def run(self): return [add(x, 2) for x in (1,)]
assert Test().run() == [limit]
"""
    assert run_program(ProgramTest(RIGHT, test, prefix="limit = 3"), Limits()).reason == ""
    assert run_program(ProgramTest("def other(): pass", test, prefix="limit = 3"), Limits()).status == "failed"


def test_a_prefix_that_raises_is_not_the_programs_fault():
    job = ProgramTest("1 / 0", TEST, ("add",), prefix="import nowhere_to_be_found")
    outcome = run_program(job, Limits())
    assert outcome.status == "not judged" and outcome.reason.startswith("the prefix raised ModuleNotFoundError")


@pytest.mark.parametrize("mode", MODES)
def test_a_right_program_passes_and_a_wrong_one_fails(mode):
    assert run_program(ProgramTest(RIGHT, TEST), Limits(), isolation(mode)).status == "passed"
    wrong = run_program(
        ProgramTest("def add(a, b):\n    print('hello')\n    return 3", TEST, ("add",)), Limits(), isolation(mode)
    )
    assert wrong.status == "failed" and "test line 2: assert add(5, 5) == 10" in wrong.reason
    assert wrong.output == "hello\n" * 2


def test_values_come_back_as_they_are():
    values = [
        "None", "True", "-3", "10**5000", "0.1", "float('inf')", "1e-300", "'ü\\ud800'", "b'\\x00'", "1j", "[1, [2]]",
        "(1, (2,))", "{1, 2}", "frozenset({1})", "{'a': [1], (1, 2): None}", "()", "set()", "{}",
    ]  # fmt: skip
    lines = [f"got = same({value})\nassert got == {value} and type(got) is type({value})" for value in values]
    assert run_program(ProgramTest("def same(value): return value", "\n".join(lines)), Limits()).reason == ""


def test_iterators_and_exact_numbers_come_back():
    """HumanEval's tests read some answers with tuple(...) and list(...)."""
    program = """
from decimal import Decimal
from fractions import Fraction
def f(kind):
    return {"map": map(str, [1]), "steps": (n for n in (1, 2)), "range": range(9, 2, -3), "half": Fraction(1, 2),
            "tenth": [Decimal("0.10")]}[kind]
"""
    test = """
from decimal import Decimal
assert tuple(f("map")) == ("1",) and list(f("steps")) == [1, 2] and f("steps") != [1, 2] and next(f("steps")) == 1
assert f("range") == range(9, 2, -3) and f("half") == 0.5 and f("half").denominator == 2
assert f("tenth") == [Decimal("0.1")] and str(f("tenth")[0]) == "0.10"
"""
    assert run_program(ProgramTest(program, test), Limits()).reason == ""


def test_numbers_of_numpy_are_numbers():
    pytest.importorskip("numpy")
    program = (
        "import numpy\ndef f(kind): return {'i': numpy.int64(3), 'f': numpy.float32(0.5), 'b': numpy.bool_(1)}[kind]"
    )
    test = "assert [f('i'), f('f'), f('b')] == [3, 0.5, True]"
    assert run_program(ProgramTest(program, test), Limits(memory_mib=2048)).reason == ""


def test_tests_are_limited_too():
    outcome = run_program(ProgramTest("def f(): return 2**33", "assert len(bytes(f())) == 2**33", ("f",)), LONG)
    assert outcome.status == "failed" and "MemoryError" in outcome.reason


RAISED = [
    ("raise ValueError('negative')", "except ValueError as error: assert str(error) == 'negative'"),
    ("raise KeyError('k')", "except KeyError as error: assert str(error) == repr('k') and error.args == ('k',)"),
    ("b'\\xff'.decode()", "except UnicodeDecodeError as error: assert (error.object, error.start) == (b'\\xff', 0)"),
    ("import json; json.loads('x')", "except ValueError as error: assert 'Expecting value' in str(error)"),
    ("raise type('Own', (LookupError,), {})('o')", "except LookupError as error: assert str(error) == 'o'"),
    ("raise ExceptionGroup('m', [ValueError('x')])", "except RuntimeError as error: assert 'm' in str(error)"),
    ("raise UnicodeDecodeError('utf-8', bytes(2**23), 0, 1, 'r')", "except UnicodeDecodeError: pass"),
    ("raise SystemExit(3)", "except SystemExit as error: assert error.code == 3"),
    ("raise type('Own', (BaseException,), {})('o')", "except BaseException as error: assert str(error) == 'o'"),
    ("raise GeneratorExit", "except RuntimeError: pass"),
]


def test_exceptions_reach_the_tests():
    program = "".join(f"def f{number}():\n    {raised}\n" for number, (raised, _) in enumerate(RAISED))
    test = "".join(f"try:\n    f{number}()\n{caught}\nelse:\n    1 / 0\n" for number, (_, caught) in enumerate(RAISED))
    assert run_program(ProgramTest(program, test), Limits()).reason == ""


@pytest.mark.parametrize("mode", MODES)
def test_a_program_may_start_threads(mode):
    """The idiom of programs that recurse deeply; with limits only, other processes of this user count too."""
    if mode == "limits" and os.getuid():
        pytest.skip("the threads count together with this user's processes")
    program = "import threading\nthreading.stack_size(2**27)\ndef add(a, b):\n    found = []\n"
    program += "    thread = threading.Thread(target=lambda: found.append(a + b))\n    thread.start(); thread.join()\n"
    assert run_program(ProgramTest(program + "    return found[0]", TEST), Limits(), isolation(mode)).reason == ""


def test_a_folder_is_removed_whatever_a_program_left_in_it(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    folder = tmp_path / "folder"
    folder.mkdir()
    code = "import os\nfor _ in range(1100): os.mkdir('d'); os.chdir('d')\nos.mkfifo('pipe'); os.chmod('.', 0)"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    (folder / "link").symlink_to(tmp_path / "kept")
    run.remove_tree(str(folder))
    assert os.listdir(tmp_path) == ["kept"] and os.listdir(tmp_path / "kept") == ["file"]


def test_what_cannot_be_removed_is_named():
    folder = f"/proc/{os.getpid()}/fdinfo"
    assert folder in run.remove_tree(folder)


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(): raise StopIteration('end')", "try: f()\nexcept StopIteration as error: assert str(error) == 'end'"),
        ("def f(): raise StopIteration", "import builtins\nassert list(iter(f, 1)) == [] and builtins.StopIteration"),
        (
            "def f(): return iter([1, 2])",
            "assert next(f()) == 1 and next(iter([]), 2) == 2\n"
            "class Each:\n    def __init__(self): self.items = f()\n    def __iter__(self): return self\n"
            "    def __next__(self): return next(self.items)\nassert list(Each()) == [1, 2]",
        ),
    ],
)
def test_a_test_that_names_the_end_of_an_iteration_sees_it(program, test):
    assert run_program(ProgramTest(program, test), Limits()).reason == ""


@pytest.mark.parametrize("mode", MODES)
def test_asyncio_runs(mode):
    """Its loop makes a pair of sockets, which is all that the filter of system calls leaves of them."""
    program = "import asyncio\n\nasync def later(a, b):\n    await asyncio.sleep(0.01)\n    return a + b\n"
    program += "def add(a, b): return asyncio.run(later(a, b))"
    assert run_program(ProgramTest(program, TEST), Limits(), isolation(mode)).reason == ""


def test_what_tests_do_wrong_is_not_the_programs_fault():
    cases = {
        "assert add(1, 2) ==": "not Python", "check(1)": "NameError", "pass": "never calls",
        "add(lambda: 1, 2)": "cannot be sent",
    }  # fmt: skip
    for test, reason in cases.items():
        outcome = run_program(ProgramTest("def add(a, b): return 9", test, ("add",)), Limits())
        assert outcome.status == "not judged" and reason in outcome.reason


def test_a_program_that_outlives_its_tester_is_ended():
    """In the limits alone, and by a user who is not root, a program can kill its tester: it is ended all the same."""
    seen = Path(tempfile.mkstemp()[1])
    seen.chmod(0o666)
    program = f"""
import os, signal, time
open({str(seen)!r}, "w").write(str(os.getpid()))
def add(a, b):
    try: os.kill(os.getppid(), signal.SIGKILL)
    except OSError: pass
    time.sleep(60)
"""
    assert run_program(ProgramTest(program, TEST, ("add",)), QUICK, "limits").status != "passed"
    time.sleep(0.1)
    pid = seen.read_text()
    seen.unlink()
    assert pid and not _runs(pid)


def _runs(pid: str) -> bool:
    stat = Path("/proc", pid, "stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_sandbox_that_cannot_be_made_is_no_failure_of_the_program():
    """Where the machine allows namespaces, the root cannot be made; where not, they cannot either."""
    assert run_program(ProgramTest(RIGHT, TEST), Limits(disk_mib=-1), "namespaces").status == "not judged"


def test_the_weakest_isolation_warns_and_names_what_is_open():
    strongest.cache_clear()
    with pytest.warns(UserWarning, match=r"they can reach (the|all) files .*processes.*disk"):
        assert strongest(lambda mode: False) == "limits"
    assert strongest(lambda mode: mode == "namespaces") == "namespaces"
    strongest.cache_clear()


@pytest.mark.parametrize(
    ("user", "reads_all", "said"),
    [(0, True, "all files of this machine for reading"), (0, False, "the files that"), (1000, True, "the files that")],
)
def test_the_warning_says_that_all_files_can_be_read(monkeypatch, user, reads_all, said):
    monkeypatch.setattr(os, "getuid", lambda: user)
    monkeypatch.setattr(run, "_unprivileged", lambda number: {"id": number, "reads_all": reads_all})
    assert f"can reach {said}" in run.not_isolated()
