"""Runs of the embedded pair, one after the other on this machine, and what `specbench check` says of them."""

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from specbench.decoding import loop, verification
from specbench.decoding.drafters import ModelDrafter
from specbench.gate.check import check
from specbench.gate.report import SPEEDUP, CheckReport
from specbench.models import meters
from specbench.models.loading import model_source
from specbench.results.conditions import BASELINE
from specbench.running.execute import execute
from specbench.running.request import Request
from specbench.specs.run_options import RunOptions

METHODS = ("sd", "fsd")
NOISE = 0.3  # of a weight, in standard deviations of its matrix


class OwnTime:
    """In the place of the module `time`, where passes are timed: the time that this process had the processor, so that
    other work on the machine does not count; and what it slept in the loop."""

    slept = 0.0

    def perf_counter(self) -> float:
        return time.process_time() + self.slept

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self.slept += seconds


CLOCK = OwnTime()


class Machine:
    """Measures below a folder; the copies of the embedded models in it are what a local checkpoint is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if (folder / "worse").exists():
            return
        for name in ("target", "drafter"):
            for copy in (name, f"other-{name}"):
                shutil.copytree(model_source(f"embedded:{name}"), folder / copy)
            with_a_space(folder / f"other-{name}" / "tokenizer.json")
        make_worse(folder / "drafter", folder / "worse")

    def run(self, name: str, target: str = "target", drafter: str = "drafter", overrides: Sequence[str] = ()) -> Path:
        """Measures AR and METHODS on 16 prompts into a folder; what is there is kept."""
        if (self.folder / name / "leaderboard.json").exists():
            return self.folder / name
        request = Request(
            tasks=["mgsm"], methods=METHODS, command="python -m tools.gate --write", output=self.folder / name,
            options=RunOptions(
                subsets=("en", "sw"), target=str(self.folder / target), drafter=str(self.folder / drafter),
                data="sample", limit=8, device="cpu", threads=1, overrides=("generation.max_new_tokens=24", *overrides),
            ),
        )  # fmt: skip
        with mock.patch.object(meters, "time", CLOCK):
            execute(request, Console(quiet=True))
        return self.folder / name


@contextmanager
def sleeping(owner: Any, name: str, seconds: float) -> Iterator[None]:
    """A sleep before every call of a function."""
    fast = getattr(owner, name)

    def slow(*words: Any, **options: Any) -> Any:
        CLOCK.sleep(seconds)
        return fast(*words, **options)

    with mock.patch.object(owner, name, slow):
        yield


@contextmanager
def keeping_one_too_many() -> Iterator[None]:
    """A rule that keeps the first token that it should reject."""
    count_leading = verification.count_leading
    with mock.patch.object(verification, "count_leading", lambda flags: min(count_leading(flags) + 1, len(flags))):
        yield


REGRESSIONS: Mapping[str, tuple[Callable[[], AbstractContextManager[None]], Mapping[str, Any]]] = {
    "a drafter made worse: noise of 0.3 σ on its weights": (nullcontext, {"drafter": "worse"}),
    "20 ms of sleep before every draft": (partial(sleeping, ModelDrafter, "propose", 0.02), {}),
    "a rule made stricter: the fuzzy threshold 0.3 → 0": (
        nullcontext, {"overrides": ["verification.threshold=0.0"]},
    ),
    "a rule that is wrong: one rejected token is kept": (keeping_one_too_many, {}),
    "another tokenizer: words begin with a space": (
        nullcontext, {"target": "other-target", "drafter": "other-drafter"},
    ),
    "20 ms of sleep before every pass of the target, AR's too": (partial(sleeping, loop, "scored", 0.02), {}),
    "1 ms of sleep before every pass of the target, AR's too": (partial(sleeping, loop, "scored", 0.001), {}),
}  # fmt: skip


def make_worse(drafter: Path, path: Path) -> None:
    shutil.copytree(drafter, path)
    network = AutoModelForCausalLM.from_pretrained(drafter)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.add_(NOISE * parameter.std() * torch.randn(parameter.shape, generator=generator))
    network.save_pretrained(path)


def with_a_space(file: Path) -> None:
    """Another way to cut texts into tokens, with the same vocabulary."""
    text = file.read_text(encoding="utf-8")
    changed = text.replace('"add_prefix_space":false', '"add_prefix_space":true')
    changed = changed.replace('"add_prefix_space": false', '"add_prefix_space": true')
    assert changed != text, f"{file} has no such option"
    file.write_text(changed, encoding="utf-8")


def repetitions(machine: Machine, num: int) -> Iterator[CheckReport]:
    """Each run beside the one before it, as the regression check measures them."""
    before = machine.run("run-0")
    for number in range(1, num + 1):
        now = machine.run(f"run-{number}")
        yield check(str(before), str(now), 0.03)
        before = now


def regressions(machine: Machine) -> Iterator[tuple[str, CheckReport]]:
    """Each beside the same run without it, measured before them."""
    before = machine.run("before")
    for number, (name, (injected, options)) in enumerate(REGRESSIONS.items()):
        with injected():
            after = machine.run(f"after-{number}", **options)
        yield name, check(str(before), str(after), 0.03)


def repetition_line(number: int, report: CheckReport) -> list[str]:
    """Its cells: which repetition, AR's speed ÷ that before, the speed-ups now ÷ before, and the verdict."""
    found = {
        each.method: finding.ratio for each in report.compared for finding in each.findings if finding.what == SPEEDUP
    }
    ratios = [f"{r.value:.3f} [{r.low:.3f}, {r.high:.3f}]" if (r := found.get(name)) else "–" for name in METHODS]
    told = " ".join([*report.notes, *(text for each in report.compared for text in each.problems)])
    speed = re.search(r"([0-9.]+) times its speed", told)
    return [f"{number}", speed[1] if speed else "–", *ratios, f"{report.exit_code} ({report.result})"]


def regression_line(name: str, report: CheckReport) -> list[str]:
    found = [f"{each.method}, {finding}" for each in report.compared for finding in each.regressions]
    problems = dict.fromkeys([*report.problems, *(text for each in report.compared for text in each.problems)])
    told = found or list(problems) or [note for note in report.notes if BASELINE in note]
    more = f"; and {len(told) - 2} more" if len(told) > 2 else ""
    return [name, "; ".join(told[:2]) + more, f"{report.exit_code} ({report.result})"]
