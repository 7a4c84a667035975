"""Programs that a model could write: none does harm outside its sandbox, and none that is wrong passes its tests."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from specbench.tasks.sandbox.run import Limits, ProgramTest, run_program
from tests.attacks.world import MODES, isolation, world
from tests.support.read_yaml import read_yaml

FOLDER = Path(__file__).parent / "programs"
HARM, FORGERIES, CALLS = (
    {attack["name"]: attack for attack in read_yaml(FOLDER / f"{file}.yaml")} for file in ("harm", "forgeries", "calls")
)
PROGRAMS = HARM | FORGERIES
TEST = "assert add(1, 2) == 3\nassert add(5, 5) == 10\n"
QUICK, LONG = Limits(timeout_seconds=0.3, memory_mib=128), Limits(timeout_seconds=30, memory_mib=128)


def contains(mode: str, attack: dict[str, Any]) -> bool:
    """Whether an isolation promises to contain the attack. With limits alone, root's programs get another user."""
    needs = attack.get("needs", "limits")
    return mode != "limits" or needs == "limits" or (needs == "another user" and os.getuid() == 0)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        # What a forger learns does not depend on the isolation.
        pytest.param(name, mode, marks=[pytest.mark.slow] if mode == "limits" and name in FORGERIES else [])
        for name, attack in PROGRAMS.items()
        for mode in MODES
        if contains(mode, attack) and mode in attack.get("mode", mode)
    ],
)
def test_a_program_does_no_harm_and_does_not_pass(name: str, mode: str) -> None:
    attack = PROGRAMS[name]
    if not contains(isolation(mode), attack):
        pytest.skip("this machine has no isolation that promises it")
    entry_points = () if "test" in attack else ("add",)
    with world() as place:
        job = ProgramTest(
            place.filled_in(attack["program"]), attack.get("test", TEST),
            tuple(attack.get("entry_points", entry_points)), attack.get("prefix", ""),
        )  # fmt: skip
        outcome = run_program(job, QUICK if attack.get("ends") == "timed out" else LONG, isolation(mode))
        assert place.harm(outcome.reason + outcome.output) == ""
    assert outcome.status == attack.get("ends", "failed"), outcome.reason


def joined(attacks: dict[str, dict[str, Any]]) -> ProgramTest:
    """All programs in one, and tests that pass if each program fails its own: the first that passes is named."""
    program, test = "", ""
    for number, (name, attack) in enumerate(attacks.items()):
        program += f"names{number} = {{}}\nexec({attack['program']!r}, names{number})\n"
        program += f"def call{number}(*given): return names{number}['add'](*given)\n"
        test += f"def test{number}(add):\n{indent(attack.get('test', TEST), '    ')}\n"
        test += f"try: test{number}(call{number})\nexcept BaseException: pass\nelse: raise RuntimeError({name!r})\n"
    return ProgramTest(program, test, tuple(f"call{number}" for number in range(len(attacks))))


@pytest.mark.parametrize("mode", ["strongest", pytest.param("limits", marks=pytest.mark.slow)])
def test_nothing_that_a_call_returns_or_raises_passes(mode: str) -> None:
    outcome = run_program(joined(CALLS), LONG, isolation(mode))
    assert outcome.status == "passed", outcome.reason


def test_a_control_an_answer_that_is_right_is_named_among_them() -> None:
    right = {"program": "def add(a, b): return a + b"}
    outcome = run_program(joined({**CALLS, "is right": right}), LONG, isolation("strongest"))
    assert outcome.status == "failed" and "RuntimeError: is right" in outcome.reason, outcome.reason


@pytest.mark.parametrize("name", [name for name, attack in PROGRAMS.items() if "outside" in attack])
def test_a_control_without_a_sandbox_does_the_harm(name: str, tmp_path: Path) -> None:
    with world() as place:
        source = place.filled_in(PROGRAMS[name]["program"]) + "\nprint(add(1, 2))\n"
        done = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
        )
        error = done.stderr.splitlines()[-1:]  # what is above it quotes the program
        assert place.harm(done.stdout + "".join(error)) == PROGRAMS[name]["outside"]
