"""pass@k: a program is right if it passes the tests of its problem, which are executed."""

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, inf
from typing import Literal

from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import SCORERS
from specbench.tasks.sandbox import run as permission
from specbench.tasks.sandbox.run import Limits, ProgramTest, run_program
from specbench.tasks.scoring import Reference, Score, Scorer, reference_texts, unscored

FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})([^`]*)")
PYTHON = re.compile(r"(?:python|py)?[\d.]*", re.IGNORECASE)  # a block without a language may be Python too
CODE = re.compile(r"(?:async def|def|class) \w|@\w|import [\w., ]+$|from [\w.]+ import \S")


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Returns (language, content) of each fenced block of a Markdown text, by the rules of CommonMark: a block ends
    with a fence of the same kind that is at least as long and has no text, or with the text. The indentation of its
    fence is removed from the content."""
    blocks: list[tuple[str, str]] = []
    opening: tuple[str, str] | None = None  # indentation and fence
    for line in text.replace("\r\n", "\n").splitlines(keepends=True):
        fence = FENCE.fullmatch(line.rstrip("\n"))
        if opening is None:
            if fence:
                opening = fence[1], fence[2]
                blocks.append((fence[3].strip().partition(" ")[0], ""))
        elif fence and fence[2].startswith(opening[1]) and not fence[3].strip():
            opening = None
        else:
            language, content = blocks[-1]
            blocks[-1] = language, content + line.removeprefix(opening[0])
    return blocks


def drop_sentences(text: str) -> str:
    """Returns a text that compiles unchanged; else from its first line of code as many lines as compile together."""
    lines = text.replace("\r\n", "\n").splitlines(keepends=True)
    start = next((number for number, line in enumerate(lines) if CODE.match(line)), None)
    if start is None or compiles(text):
        return text
    # A part ends before a line that is not indented.
    ends = [number for number, line in enumerate(lines) if number > start and line[0].strip()]
    parts = ("".join(lines[start:end]) for end in (None, *reversed(ends)))
    return next(filter(compiles, parts), text)


def compiles(source: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # too deeply nested brackets raise the last two
        return False
    return True


Extract = Literal["raw", "fenced", "auto"]
KEYS = ("prefix", "test", "entry_point")
MAX_SHOWN = 300  # characters of a run's output in a record
EXECUTION_IS_OFF = "code execution is off: --allow-code-execution"


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float | None:
    """Returns the probability that at least one of k drawn samples is correct: 1 - C(n - c, k) / C(n, k) (Chen et al.
    2021, eq. 1); None if there are fewer than k samples."""
    if num_samples < k:
        return None
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def build_program(answer: str, prefix: str, entry_point: str | None, extract: Extract) -> str:
    """Returns the whole program: the prompt's text, continued or followed by a function that is written anew.

    "raw": the answer continues the prompt. "fenced": the Markdown block that defines the entry point is the answer,
    else the longest block of Python, if there is one. "auto": like "fenced"; also, an answer that defines the entry
    point without a block does not continue the prompt, and sentences around its code are dropped.
    """
    if extract == "raw":
        return prefix + answer
    name = re.escape(entry_point) if entry_point else r"\w+"
    definition = re.compile(rf"^(?:async )?def {name}\b", re.MULTILINE)
    blocks = [(language, content) for language, content in fenced_blocks(answer) if content.strip()]
    python = [content for language, content in blocks if PYTHON.fullmatch(language)]
    defining = (content for _, content in blocks if definition.search(content))
    block = next(defining, max(python, key=len, default=None))
    code = answer if block is None else block
    if not definition.search(code) or (block is None and extract != "auto"):
        return prefix + code
    head = next((head for head in (prefix, prefix.rstrip() + "\n    pass") if compiles(head)), "")
    return f"{head}\n\n{code if block is not None else drop_sentences(code)}"


RUN_SCRIPT, CALL_METHOD = "run_script", "call_method"
STARRED = ("bisect", "collections", "functools", "heapq", "itertools", "math", "typing")  # as in LiveCodeBench
MODULES = sorted([*STARRED, "random", "re", "string", "sys"])
PRELUDE = "\n".join([f"import {', '.join(MODULES)}", *(f"from {name} import *" for name in STARRED)])
SCRIPT = f"""
def _run():
    names = {{"__name__": "__main__"}}
    exec({PRELUDE!r}, names)
    exec(compile(SOURCE, "answer", "exec"), names)
    return names

def {RUN_SCRIPT}(given):
    import io, sys, threading
    written, before = io.BytesIO(), (sys.stdin, sys.stdout)
    output = io.TextIOWrapper(written)
    sys.stdin, sys.stdout = io.TextIOWrapper(io.BytesIO(given.encode())), output
    try:
        try:
            _run()
        except SystemExit:
            pass
        for thread in threading.enumerate():  # as Python does at its end
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    finally:
        sys.stdin, sys.stdout = before
    output.flush()
    return written.getvalue().decode()

def {CALL_METHOD}(name, arguments):
    return getattr(_run()["Solution"](), name)(*arguments)
"""


@dataclass(frozen=True)
class CodeScorer(Scorer):
    """Scores programs. An answer has only a pass@1; `of_samples` computes the pass@k of a problem from all its
    answers."""

    names: tuple[str, ...]
    limits: Limits
    extract: Extract
    script: bool = False
    combines_samples = True

    def __call__(self, text: str, reference: Reference) -> Score:
        if not reference_texts(reference):
            return unscored(("pass@1",))
        job = self._make_test(text, reference)
        defined = re.findall(r"^(?:async )?def (\w+)", job.prefix, re.MULTILINE)
        for name in job.entry_points if defined else ():
            if name not in defined:  # no answer could pass
                problem = f"the row's prompt defines other functions than its entry_point '{name}'"
                return unscored(("pass@1",), problem)
        if not permission.allowed():
            return unscored(("pass@1",), EXECUTION_IS_OFF)
        outcome = run_program(job, self.limits)
        if outcome.status == "not judged":
            return unscored(("pass@1",), " ".join(f"{outcome.reason} {outcome.output}".split())[:MAX_SHOWN])
        ended = {"status": outcome.status, "reason": outcome.reason[:MAX_SHOWN]}
        return Score({"pass@1": float(outcome.status == "passed")}, outcome=ended)

    def of_samples(self, name: str, values: Sequence[float]) -> float | None:
        """Returns a metric of one problem from the pass@1 of each of its answers; None if there are too few."""
        return pass_at_k(len(values), sum(value == 1.0 for value in values), int(name.removeprefix("pass@")))

    def _make_test(self, text: str, reference: Reference) -> ProgramTest:
        if not isinstance(reference, dict):
            raise ConfigError(f"scorer code: the reference is not a mapping: give it the keys {', '.join(KEYS)}")
        for key in reference:
            if key not in KEYS:
                raise ConfigError(f"scorer code: the reference has an unknown key '{key}': {nearest(key, KEYS)}")
        if not reference.get("test", "").strip():
            raise ConfigError("scorer code: the reference has no 'test': give the source that calls the function")
        prefix, name = reference.get("prefix", ""), reference.get("entry_point", "").strip()
        program = build_program(text, prefix, None if self.script else name or None, self.extract)
        if self.script:
            program = f"SOURCE = {program!r}\n{SCRIPT}"
        return ProgramTest(program, reference["test"], (name,) if name else (), prefix)


@SCORERS.register("code")
def code(
    *,
    k: tuple[int, ...] = (1,),
    timeout_seconds: float = 10.0,
    memory_mib: int = 512,
    extract: Extract = "auto",
    script: Literal[True] | None = None,
) -> CodeScorer:
    """pass@k by execution. Without `--allow-code-execution` nothing is executed, and answers have no value.

    The reference is a mapping: `test`, source that calls the answer's function; `prefix`, the program text that the
    answer continues; `entry_point`, the function's name. `script: true`: the answer is a whole program, which is run
    anew by each call in the tests: `run_script(text)` returns its output for a standard input, `call_method(name,
    arguments)` the result of a method of its class `Solution`. `timeout_seconds`, `memory_mib`: limits of one program.
    Raises ConfigError for options out of range and for a reference of another type.
    """
    numbers = {"k": min(k, default=1), "timeout_seconds": timeout_seconds, "memory_mib": memory_mib}
    for option, value in numbers.items():
        if not 0 < value < inf:
            raise ConfigError(f"scorer code: {option} = {value}: must be positive and finite")
    names = tuple(f"pass@{number}" for number in sorted({1, *k}))
    return CodeScorer(names, Limits(timeout_seconds=timeout_seconds, memory_mib=memory_mib), extract, bool(script))
