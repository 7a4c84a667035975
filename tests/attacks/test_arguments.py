"""Arguments that the Python interface cannot take: one line that names the argument, before anything is measured."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import specbench
from specbench.core.errors import ConfigError

run = functools.partial(specbench.run, quiet=True, limit=1)
own = functools.partial(specbench.Method, lambda ids, num_draft_tokens: [])
ARGUMENTS: dict[str, tuple[Callable[[], Any], str]] = {
    "no task": (lambda: run(None, "pld"), "task = None: give a name or a YAML file, or a list of these"),  # type: ignore[arg-type]
    "a task that is a number": (lambda: run(5, "pld"), "task = 5: give a name"),  # type: ignore[arg-type]
    "a task in bytes": (lambda: run(b"mgsm", "pld"), "task = b'mgsm': give a name"),  # type: ignore[arg-type]
    "tasks in a mapping": (lambda: run({"mgsm": 1}, "pld"), "task = {'mgsm': 1}: give a name"),  # type: ignore[arg-type]
    "no task in a list": (lambda: run([None], "pld"), "task = None: give a name"),  # type: ignore[list-item]
    "an empty list": (lambda: run([], "pld"), "--task and --method need at least one name each"),
    "no method": (lambda: run("mgsm", None), "method = None: give a name or a YAML file, or a specbench.Method"),  # type: ignore[arg-type]
    "a method that is a function": (lambda: run("mgsm", run), "method = functools.partial("),  # type: ignore[arg-type]
    "a target that is a number": (lambda: run("mgsm", "sd", target=5), "target = 5: give a hub id, a folder"),  # type: ignore[arg-type]
    "a target without a tokenizer": (lambda: run("mgsm", "sd", target=(1,)), "target = (1,): give a hub id"),  # type: ignore[arg-type]
    "a target of numbers": (lambda: run("mgsm", "sd", target=(1, 2)), "model 'int' is of type int: give"),
    "a drafter in a mapping": (lambda: run("mgsm", "sd", drafter={}), "drafter = {}: give a hub id"),  # type: ignore[arg-type]
    "an output that is a number": (lambda: run("mgsm", "pld", output=5), "output = 5: give a path"),  # type: ignore[arg-type]
    "a board in a list": (lambda: run("mgsm", "pld", leaderboard=[]), "leaderboard = []: give a path"),  # type: ignore[arg-type]
    "a judge that is a number": (lambda: run("mgsm", "pld", judge=5), "judge = 5: give a text"),  # type: ignore[arg-type]
    "overrides that are a text": (lambda: run("mgsm", "pld", overrides="a=1"), "overrides = 'a=1': input should be"),
    "an override that is an object": (lambda: run("mgsm", "pld", overrides={"a": {1}}), "overrides['a'] = {1}: give"),
    "subsets that are a number": (lambda: run("mgsm", "pld", subsets=5), "subsets = 5: input should be a list"),
    "a seed that is a text": (lambda: run("mgsm", "pld", seed="1"), "seed = '1': input should be a valid integer"),
    "a dtype of torch": (lambda: run("mgsm", "pld", dtype=complex), "dtype = <class 'complex'>: "),
    "an unknown option": (lambda: run("mgsm", "pld", sed=1), "sed: unknown key 'sed': did you mean 'seed'"),
    "everything at once": (lambda: run("mgms", "sd,sdd", data="nowhere"), "3 problems: (1) unknown task 'mgms'"),
    "a drafter that is nothing": (lambda: specbench.Method(None).spec, "drafter = None: cannot draft"),
    "a drafter without a type": (lambda: specbench.Method({}).spec, "drafter.type: the key 'type' is missing"),
    "a length that is a text": (lambda: own(num_draft_tokens="3").spec, "num_draft_tokens = '3': input should be"),
    "no length": (lambda: own(num_draft_tokens=0).spec, "num_draft_tokens = 0: nothing is drafted"),
    "a name with a blank": (lambda: own(name="a b").spec, "name = 'a b': string should match"),
    "a claim in words": (lambda: own(lossless="yes").spec, "lossless = 'yes': give True or False"),
    "a bridge that is a number": (lambda: own(bridge=5).spec, "bridge = 5: write a mapping"),
    "a rule without a name": (lambda: own(rule={}).spec, "verification.rule: the key 'rule' is missing"),
    "a run that is a number": (lambda: specbench.load(5), "path = 5: give the folder of a run"),  # type: ignore[arg-type]
    "a run that is nothing": (lambda: specbench.compare(None, "a"), "'None': no such folder or file"),  # type: ignore[arg-type]
    "a fall in words": (lambda: specbench.check("a", "b", max_regression="3%"), "max_regression = '3%': give a share"),  # type: ignore[arg-type]
    "a fall that is NaN": (lambda: specbench.check("a", "b", max_regression=float("nan")), "max_regression = nan"),
    "a condition that is a number": (lambda: specbench.check("a", "b", ignore=5), "ignore = 5: give a name"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_it_is_refused_with_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, message = ARGUMENTS[name]
    with pytest.raises(ConfigError) as caught:
        call()
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
