r"""Accuracy by the content of an answer's last \boxed{}, such as in MATH. Two expressions of the same value are equal.

The comparison (`equality`) runs in a process of its own, because sympy can take any time and memory for a few
characters (10^{10^{10}}) and cannot be interrupted: signals reach only the main thread, do not exist on Windows, and
wait for a computation in C. The process is kept for later comparisons, and computes only while this one waits for it:
a successor that starts in the background would disturb the generation that is measured next.
"""

import atexit
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.tasks.scoring import ACCURACY, PerAnswer, Reference, accepted_texts, equality, shown

BRACES = re.compile(
    r"(?P<box>\\f?boxed\s*)?\{|\}|\\boxed\s+(?P<word>[^\s{]\S*)|\\[^fb\\]|\\\\(?!f?boxed)|\\(?!f?boxed)"
)
# How an answer is announced in English, also in bold or in italics. A "final answer" may be a heading.
MARKS = "[*_]{0,3}"
SAYS_ANSWER = (
    rf"(?:(?<![^\W_])(?<!wrong )(?<!incorrect )answer{MARKS}\s+is\b"
    rf"|(?<![^\W_])final\s+answer{MARKS}[ \t]*(?::|{MARKS}$))"
)
LABELS_ANSWER = rf"(?<![^\W_])answer{MARKS}\s*:"
PHRASE = re.compile(rf"(?:{SAYS_ANSWER}|{LABELS_ANSWER}){MARKS}(?:\s*:)?{MARKS}\s*(?=\S)", re.IGNORECASE | re.MULTILINE)
FORMULA = re.compile(r"(?:\$\$?|\\\(|\\\[)(.+?)(?:\$|\\\)|\\\])")
SENTENCE = re.compile(r".*?(?=\.(?:\s|$)|\n|$)")

CPU_SECONDS = 0.3  # of a comparison; the slowest of the tests take a third of it, usual ones 10 to 50 ms
WALL_SECONDS = 10.0  # of a comparison, and where the system does not limit the time of a processor
START_SECONDS = 120.0  # of the process, on a busy machine
MEMORY_BYTES = 2**31
MAX_LENGTH = 1000  # characters; longer answers are equal only if their texts are
MAX_DEPTH = 50  # levels of brackets


def last_box(text: str) -> tuple[int, str] | None:
    r"""Returns the place and the content of the last complete \boxed{} of a text; None if there is none."""
    opened: list[tuple[bool, int]] = []  # whether it is a box's, and where its content begins
    last = -1, ""
    for match in BRACES.finditer(text):
        if match["word"]:
            last = max(last, (match.start("word"), match["word"].strip("$.")))
        elif match[0].endswith("{") and match[0] != r"\{":
            opened.append((match["box"] is not None, match.end()))
        elif match[0] == "}" and opened:
            is_box, start = opened.pop()
            if is_box:
                last = max(last, (start, text[start : match.start()]))
    return None if last[0] < 0 else last


def boxed_answer(text: str) -> str | None:
    r"""Returns the content of the last complete \boxed{} of a text; without one what follows the last "answer is" or
    "answer:", up to the end of its sentence or formula; else None."""
    if box := last_box(text):
        return box[1]
    *_, said = [None, *PHRASE.finditer(text)]
    if said is None:
        return None
    formula, sentence = FORMULA.match(text, said.end()), SENTENCE.match(text, said.end())
    return formula[1] if formula else sentence and sentence[0].strip()


class Comparison:
    """Compares answers in another process, which starts with the first of them. Threads take turns."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process: subprocess.Popen[str] | None = None

    def equal(self, gold: str, answer: str) -> bool:
        """Returns whether an answer has the value of `gold`; False for a comparison that takes too long."""
        known = equality.quick(gold, answer)
        is_long = max(len(gold), len(answer)) > MAX_LENGTH or max(map(_depth, (gold, answer))) > MAX_DEPTH
        if known is not None or is_long:
            return known or False
        with self._lock:
            self.start()
            assert self._process is not None and self._process.stdin is not None
            with suppress(OSError):
                print(json.dumps([gold, answer]), file=self._process.stdin, flush=True)
            return self._line(WALL_SECONDS) == "1"

    def start(self) -> None:
        """Starts the process unless it runs. Raises ConfigError if it cannot work."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            self.close()
            program = [sys.executable, "-P", equality.__file__, str(CPU_SECONDS), str(MEMORY_BYTES)]
            try:
                self._process = subprocess.Popen(  # in its own process group: an interrupt reaches only this one
                    program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8",
                    start_new_session=True,
                )  # fmt: skip
                said = self._line(START_SECONDS)
            except OSError as error:
                said = str(error)
            if said != "ready":
                self.close()
                raise ConfigError(
                    f"scorer boxed: the process that compares answers does not start ({said or 'no reason given'}): "
                    "install math-verify again"
                )

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            _kill(self._process)
            self._process.communicate()
            self._process = None

    def _line(self, seconds: float) -> str:
        """Returns the next line of the process. Without one after some seconds it is ended; then the line is empty."""
        assert self._process is not None and self._process.stdout is not None
        timer = threading.Timer(seconds, _kill, [self._process])
        timer.start()
        line = self._process.stdout.readline().strip()
        timer.cancel()
        timer.join()
        if not line:
            self.close()
        return line


def _kill(process: subprocess.Popen[str]) -> None:
    """Ends a process and its fork, which are a process group."""
    if sys.platform == "win32":
        process.kill()
    elif process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        depth += (char in "{[(") - (char in "}])")
        deepest = max(deepest, depth)
    return deepest


@cache
def _comparison(process: int) -> Comparison:
    """Returns the comparison of a process; one that was forked has another."""
    made = Comparison()
    atexit.register(made.close)
    return made


@dataclass(frozen=True)
class _Boxed(PerAnswer):
    def check_reference(self, reference: Reference) -> None:
        accepted_texts(reference, "boxed")
        _comparison(os.getpid()).start()


@SCORERS.register("boxed", metrics=(ACCURACY,), packages=("math-verify", "latex2sympy2-extended", "sympy"))
def boxed() -> PerAnswer:
    r"""Accuracy: 1 if the content of the last \boxed{} of the answer equals the reference (or one of them), else 0.

    Without a box, what follows the last "answer is" counts. Expressions of the same value are equal, such as 2(x+1) and
    2x+2; math-verify decides, with the additions that docs/scoring.md describes.
    """

    def judge(text: str, reference: Reference) -> Mapping[str, float]:
        found, golds = boxed_answer(text), accepted_texts(reference, "boxed")
        comparison = _comparison(os.getpid())
        return {"accuracy": float(found is not None and any(comparison.equal(gold, found) for gold in golds))}

    def read(text: str, reference: Reference) -> str:
        found = boxed_answer(text)
        what = "no answer found" if found is None else f"read {shown(found)}"
        return what if last_box(text) else rf"no \boxed{{}}: {what}"

    return _Boxed(("accuracy",), judge, read=read)
