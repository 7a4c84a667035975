"""pass@k: a program is right if it passes the tests of its problem, which are executed."""

import ast
import builtins
import re
import symtable
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import comb, inf
from typing import Literal

from specbench.core.errors import ConfigError, nearest
from specbench.core.markdown import Piece, split_blocks
from specbench.core.metric import Metric
from specbench.core.registry import SCORERS
from specbench.tasks.sandbox import run as permission
from specbench.tasks.sandbox.run import Limits, ProgramTest, run_program
from specbench.tasks.scoring import Reference, Score, Scorer, reference_texts, unscored

PYTHON = re.compile(r"(?:python|py)?[\d.]*", re.IGNORECASE)  # a block without a language may be Python too
CODE = re.compile(
    r"^(?:(?:async def|def|class) \w|@\w|import [\w., ]+$|from [\w.]+ import \S|\w+ *= *lambda\b)", re.MULTILINE
)
# Nothing may come before these in a program, not even the prompt's text.
FUTURE = re.compile(r"^from __future__ import (?:\([^)]{0,999}\).*|.*)\n?", re.MULTILINE)
IMPORTS = (ast.Import, ast.ImportFrom)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ASSIGNMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)
SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def fenced_blocks(text: str) -> list[Piece]:
    """Returns the fenced blocks of a text that are not blank."""
    return [piece for piece in split_blocks(text) if piece.language is not None and piece.content.strip()]


def until_error(source: str, head: str = "") -> str:
    """Returns a text up to the statement at which it no longer is Python: what follows is prose, or was cut. `head`:
    program text before it."""
    lines = source.split("\n")
    while lines:
        line = error_line(head + "\n".join(lines))
        if line is None:
            break
        # A statement begins with a line that is not indented.
        starts = (number for number in range(len(lines) - 1, 0, -1) if number < line - head.count("\n"))
        lines = lines[: next((number for number in starts if lines[number][:1].strip()), 0)]
        lines += [""] if lines else []
    return "\n".join(lines)


def python_parts(text: str) -> list[str]:
    """Returns the parts of a text that are Python: the whole text, or each run of lines from its beginning or a line of
    code on to where it no longer is Python."""
    if compiles(text):
        return [text]
    lines = text.split("\n")
    number = 0
    found: list[str] = []
    while number < len(lines) and len(found) < MAX_PARTS:
        if number == 0 or CODE.match(lines[number]):
            found.append(until_error("\n".join(lines[number:])))
            number += found[-1].count("\n")
        number += 1
    return [part for part in found if part]


def error_line(source: str) -> int | None:
    """Returns the number of the line at which a text is not a program, from 1 on; None for a program."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, MemoryError, RecursionError):  # too deeply nested brackets raise the last two
        return 1
    outside: list[ast.AST] = list(tree.body)
    while outside:
        node = outside.pop()
        if isinstance(node, ast.Return):  # which only compilation refuses
            return node.lineno
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
            outside += ast.iter_child_nodes(node)
    return None


def compiles(source: str) -> bool:
    return error_line(source) is None


def bound_names(statement: ast.stmt) -> set[str]:
    """Returns the names that a top-level statement defines, also in a loop or condition; "*" for an import of all
    names. `x[0] = 1` and `x += 1` define nothing."""
    names: set[str] = set()
    inside: list[ast.AST] = [statement]
    while inside:
        node = inside.pop()
        if isinstance(node, IMPORTS):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif not isinstance(node, (ast.AugAssign, *SCOPES)):
            inside += ast.iter_child_nodes(node)
    return names


def changed_names(statement: ast.stmt) -> set[str]:
    """Returns the names whose values a top-level statement may change: those that it assigns to, also in part, as in
    `x[0] = 1`; of a loop, a condition or a call, all that it mentions. A call of `print` changes nothing."""
    if isinstance(statement, (ast.Assign, ast.Delete)):
        return set().union(*map(mentioned_names, statement.targets))
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        return mentioned_names(statement.target)
    if isinstance(statement, ast.Expr):
        call = statement.value
        is_print = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
        return mentioned_names(statement) if isinstance(call, ast.Call) and not is_print else set()
    is_compound = hasattr(statement, "body") and not isinstance(statement, DEFINITIONS)
    return mentioned_names(statement) if is_compound else set()


def mentioned_names(node: ast.AST, only: type[ast.expr_context] = ast.expr_context) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, only)}


def missing_names(source: str) -> set[str]:
    """Returns the global names that a program reads but does not define; empty for a text that is not a program."""
    try:
        top = symtable.symtable(source, "answer", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return set()
    tables, defined = [top], {*dir(builtins), "__file__"}
    read: set[str] = set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table is top or symbol.is_global():
                read |= {symbol.get_name()} if symbol.is_referenced() else set()
                defined |= {symbol.get_name()} if symbol.is_assigned() or symbol.is_imported() else set()
    return read - defined


def completed(code: str, others: Sequence[str], head: str) -> str:
    """Returns a program after what it reads and lacks of `others`: imports, functions, classes, and variables with the
    statements that fill them. Of several definitions of a name the last one counts. `head`: program text that comes
    before it."""
    found = [node for other in others for part in python_parts(other) for node in ast.parse(part).body]
    # 1. The last definition of each name; `x = x + [1]` only changes one.
    last: dict[str, int] = {}
    for number, node in enumerate(found):
        is_new = isinstance(node, (*IMPORTS, *DEFINITIONS))
        reads = mentioned_names(node, ast.Load) if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        for name in bound_names(node):
            if name not in last or is_new or (reads is not None and name not in reads):
                last[name] = number
    # 2. What changes its value after that. Calls and loops with a function are examples of its use, and so are all with
    # a function of the program itself, which they would need before it is there.
    own = {node.name for node in ast.parse(code).body if isinstance(node, DEFINITIONS)} if compiles(code) else set()
    parts = {name: {number} for name, number in last.items()}
    for number, node in enumerate(found):
        if mentioned_names(node) & {*own, "input", "__name__"}:
            continue
        for name in changed_names(node) & last.keys():
            is_variable = not isinstance(found[last[name]], (*IMPORTS, *DEFINITIONS))
            if number > last[name] and (is_variable or isinstance(node, ASSIGNMENTS)):
                parts[name].add(number)
    # 3. What is added may itself lack something, and runs before the program defines anything.
    added: list[str] = []
    needed: set[int] = set()
    for _ in range(MAX_PARTS):
        before = "\n".join([head, *added])
        missing = missing_names(before) | missing_names(f"{before}\n{code}")
        sought = missing | ({"*"} if missing else set())
        more = {number for name in sought for number in parts.get(name, ())} - needed
        if not more:
            break
        needed |= more
        added = [ast.unparse(found[number]) for number in sorted(needed)]
    return "\n".join([*added, code])


Extract = Literal["raw", "fenced", "auto"]
INDENT = "    "
MAX_PARTS = 100  # parts of a text that are Python, and definitions that need each other
KEYS = ("prefix", "test", "entry_point")
MAX_SHOWN = 300  # characters of a run's output in a record
EXECUTION_IS_OFF = "code execution is off: --allow-code-execution"


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float | None:
    """Returns the probability that at least one of k drawn samples is correct: 1 - C(n - c, k) / C(n, k) (Chen et al.
    2021, eq. 1); None if there are fewer than k samples."""
    if num_samples < k:
        return None
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def begins_indented(code: str) -> bool:
    return code.lstrip("\n")[:1].isspace()


def answer_blocks(answer: str, prefix: str) -> list[Piece]:
    """Returns the fenced blocks of an answer. Code before the first fence is a block too: the prompt may have opened
    it, and the first fence then closes it."""
    before, newline, rest = answer.partition("\n```")
    continues = begins_indented(before)
    is_code = bool(before.strip()) and (continues or CODE.search(before) is not None)
    if not newline or not is_code or not compiles(prefix * continues + before):
        return fenced_blocks(answer)
    info, _, after = rest.partition("\n")
    infos = [line[3:].strip() for line in after.split("\n") if line.startswith("```")]  # of the other fences
    # A fence with a language opens a block, so that the one before it has closed one.
    closes = not info.strip() and (len(infos) % 2 == 0 or infos[0] != "")
    return [Piece("", before + "\n", is_closed=True), *fenced_blocks(after if closes else f"```{rest}")]


def build_program(answer: str, prefix: str, entry_point: str | None, extract: Extract) -> str:
    """Returns the whole program: the prompt's text, continued or followed by a function that is written anew.

    "raw": the answer continues the prompt. "fenced": of its Markdown blocks the last one that defines the entry point
    is the answer, after what it lacks of the other blocks; else the last one that continues the prompt, else the
    longest of Python. "auto": like "fenced"; also, an answer without blocks may define the entry point, and sentences
    around its code are dropped.
    """
    answer = answer if extract == "raw" else answer.replace("\r\n", "\n")
    blocks = [] if extract == "raw" else answer_blocks(answer, prefix)
    if not blocks and extract != "auto":
        return prefix + answer
    # 1. A function that is written anew.
    name = re.escape(entry_point) if entry_point else r"\w+"
    by_lambda = rf"|{name} *(?::.*)?= *lambda\b" if entry_point else ""  # without a name, any could be a helper's
    definition = re.compile(rf"^(?:(?:async )?def {name}\b{by_lambda})", re.MULTILINE)
    contents = [block.content for block in blocks] or [answer]
    defining = [number for number, content in enumerate(contents) if definition.search(content)]
    is_cut = len(defining) > 1 and defining[-1] == len(blocks) - 1 and not blocks[-1].is_closed
    if is_cut and not any(map(definition.search, python_parts(contents[-1]))):
        defining.pop()  # the answer ends inside another version of the function
    if defining:
        last = defining[-1]
        head = next((head for head in (prefix, prefix.rstrip() + "\n    pass") if compiles(head)), "")
        parts = python_parts(contents[last])
        code = next(filter(definition.search, reversed(parts)), contents[last])
        others = [*contents[last + 1 :], *contents[:last], *(part for part in parts if part is not code)]
        futures = "".join(found[0].rstrip() + "\n" for found in FUTURE.finditer(code))
        return f"{futures}{head}\n\n{completed(FUTURE.sub('', code), others, head)}"
    # 2. A continuation of the prompt. Its first line or all its lines may have lost their indentation.
    python = [block.content for block in blocks if PYTHON.fullmatch(block.language or "")]
    continuing = (content for content in reversed(python) if begins_indented(content) and until_error(content, prefix))
    code = next(continuing, max(python, key=len, default=answer))
    spellings = (code, textwrap.indent(code, INDENT), INDENT + code)
    whole = (each for each in spellings if compiles(prefix + each))
    begun = filter(None, (until_error(each, prefix) for each in spellings))
    return prefix + next(chain(whole, begun), code)


def whole_program(answer: str, extract: Extract) -> str:
    """Returns the last Markdown block of an answer, as LiveCodeBench does, or the answer if it has none; with "auto"
    without sentences around its code."""
    blocks = [] if extract == "raw" else answer_blocks(answer.replace("\r\n", "\n"), "")
    if blocks:
        return blocks[-1].content
    return "\n".join(python_parts(answer)) or answer if extract == "auto" else answer


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
        if self.script:
            program = f"SOURCE = {prefix + whole_program(text, self.extract)!r}\n{SCRIPT}"
        else:
            program = build_program(text, prefix, name or None, self.extract)
        return ProgramTest(program, reference["test"], (name,) if name else (), prefix)


@SCORERS.register(
    "code",
    metrics=(
        Metric.share(
            "pass@k", "pass@k", "mean over prompts: n answers (repeats), c of which pass; arXiv:2107.03374",
            "1 − C(n − c, k) / C(n, k)",
        ),
    ),
)  # fmt: skip
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
