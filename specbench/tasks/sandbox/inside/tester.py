"""The trusted process of the sandbox: it starts the answerer, runs the tests, and reports whether they passed."""

from __future__ import annotations

import ast
import builtins
import json
import os
import resource
import signal
import subprocess
import symtable
import sys
from collections.abc import Callable, Collection
from contextlib import suppress

from specbench.tasks.sandbox.inside import TYPE_CHECKING, kernel
from specbench.tasks.sandbox.inside.answerer import NotPlain, decode, encode, receive, send

if TYPE_CHECKING:
    from typing import Any, NoReturn


def needed_names(test: str, defined: Collection[str], continued: str | None) -> list[str]:
    """Returns the global names that a test uses but that neither the test nor `defined` has. If there are none, returns
    `continued`, the function that the program continues, if the test uses it. Raises SyntaxError and ValueError for
    invalid Python."""
    used, own = set[str](), set[str]()
    top = symtable.symtable(test, "<test>", "exec")
    tables = [top]
    for table in tables:  # grows during the iteration
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table is not top and not symbol.is_global():
                continue
            if symbol.is_assigned() or symbol.is_imported():
                own.add(symbol.get_name())
            if symbol.is_referenced():
                used.add(symbol.get_name())
    free = used - own
    return sorted(free - set(defined)) or sorted(free & {continued})


ANSWERER = (
    "import sys; sys.path.insert(0, {root!r}); from specbench.tasks.sandbox.inside.answerer import main; "
    "del sys.path[0]; main({requests}, {replies})"
)


class Tester:
    """Calls the answerer and reports the verdict. `report`: a file descriptor that the answerer does not have."""

    def __init__(self, job: dict[str, Any], report: int) -> None:
        self.job = job
        self.report = report
        self.num_calls = 0
        self.ends_iteration: tuple[type[BaseException], ...] = (StopIteration, StopAsyncIteration, GeneratorExit)

    def run(self) -> NoReturn:
        """Starts the program, runs the tests against it, and ends this process."""
        printed = os.dup(1)
        nowhere = os.open(os.devnull, os.O_WRONLY)  # the output of prefix and tests is discarded
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        names: dict[str, object] = {"__name__": "test"}
        continued = self._prepare(names)
        source = self.job["test"]
        try:
            found = needed_names(source, {*names, *dir(builtins)} - self._unfinished, continued)
            functions = self.job["entry_points"] or found
            test = compile(source, "<test>", "exec")
            nodes = list(ast.walk(ast.parse(source)))
        except (SyntaxError, ValueError) as error:
            self.end("not judged", f"the test is not Python: {error}")
        self._start(printed)
        with suppress(BrokenPipeError):  # if the program has ended, the next line reports it
            send(self.requests, {"limits": self.job["limits"], "program": self.job["program"]})
        loaded = self._receive()
        if "raised" in loaded:
            self.end("failed", f"the program raised {loaded['raised']}: {loaded.get('text')}")
        names = {**names, **{name: self._make_function(name) for name in functions}}
        in_test = {getattr(node, "id", getattr(node, "attr", None)) for node in nodes}
        self.ends_iteration = tuple(kind for kind in self.ends_iteration if kind.__name__ not in in_test)
        if StopIteration in self.ends_iteration:
            names.setdefault("next", _next)
        try:
            exec(test, names)
        except NotPlain as error:
            self.end("not judged", f"the test gives the program {error}, which cannot be sent to it")
        except BaseException as error:
            self.end("failed" if self.num_calls else "not judged", self._describe(error))
        if not self.num_calls:
            self.end("not judged", "the test never calls the program")
        self.end("passed", "")

    def end(self, status: str, reason: str) -> NoReturn:
        os.write(self.report, json.dumps({"status": status, "reason": reason[:1000]}).encode() + b"\n")
        os._exit(0)

    def _start(self, printed: int) -> None:
        program_end, self.requests = os.pipe()
        self.replies, reply_end = os.pipe()
        code = ANSWERER.format(root=self.job["root"], requests=program_end, replies=reply_end)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-u", "-X", "utf8", "-c", code], env={}, cwd=self.job["folder"],
            stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, pass_fds=(program_end, reply_end),
            start_new_session=True, **kernel.confined(self.job["user"]),
        )  # fmt: skip
        for fd in (program_end, reply_end, printed):
            os.close(fd)
        os.write(self.report, json.dumps({"pid": self.process.pid}).encode() + b"\n")
        kernel.end_after(self.job["limits"]["timeout_seconds"] + 5)

    def _receive(self) -> dict[str, Any]:
        ended = ""
        try:
            reply = receive(self.replies)
        except EOFError:
            with suppress(subprocess.TimeoutExpired):
                code = self.process.wait(1)
                ended = f" (signal {signal.Signals(-code).name})" if code < 0 else f" (exit code {code})"
            self.end("failed", f"the program ended before its tests did{ended}")
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            self.end("failed", "the program wrote something that is not an answer")
        return reply

    def _prepare(self, names: dict[str, object]) -> str | None:
        """Runs the trusted prefix and returns its last function. If it ends in the head of a function, adds a body."""
        self._unfinished = set[str]()
        for source in (self.job["prefix"], self.job["prefix"] + "\n    pass\n"):
            try:
                code = compile(source, "<prefix>", "exec")
            except (SyntaxError, ValueError):
                continue
            try:
                exec(code, names)
            except BaseException as error:
                self.end("not judged", f"the prefix raised {type(error).__name__}: {error}")
            statements = ast.parse(source).body
            last = statements[-1] if statements else None
            if not isinstance(last, ast.FunctionDef | ast.AsyncFunctionDef):
                return None
            others = [part for part in last.body if not isinstance(part, ast.Pass)]
            if all(isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) for part in others):
                self._unfinished.add(last.name)  # the program must supply its body
            return last.name
        return None

    def _make_function(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self.num_calls += 1
            request = {"function": name, "arguments": encode(arguments), "keywords": encode(keywords)}
            with suppress(BrokenPipeError):
                send(self.requests, request)
            reply = self._receive()
            if "raised" in reply:
                raise self._exception(reply)
            try:
                return decode(reply["value"])
            except (KeyError, ValueError, TypeError, ArithmeticError, RecursionError):
                self.end("failed", "the program wrote something that is not an answer")

        call.__name__ = name
        return call

    def _exception(self, reply: dict[str, Any]) -> BaseException:
        """Returns what the program raised, as the nearest built-in exception and with its arguments; without them, with
        its text. Any other exception becomes RuntimeError, and so do a group and one that would end one of the test's
        iterations (as in PEP 479), unless the test names it."""
        name, text = str(reply["raised"]), str(reply.get("text"))
        names = reply.get("kinds")
        kinds = (getattr(builtins, str(each), None) for each in (names if isinstance(names, list) else [name]))
        kind = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseException)), Exception)
        if issubclass(kind, self.ends_iteration):
            return RuntimeError(f"the function raised {name}")
        if (kind is Exception and name != "Exception") or issubclass(kind, BaseExceptionGroup):
            return RuntimeError(text)
        with suppress(Exception):  # no arguments, or some that its class does not take
            return kind(*decode(reply["arguments"]))
        with suppress(TypeError):  # UnicodeDecodeError has five arguments
            return kind(text)
        return kind.__new__(kind)

    def _describe(self, error: BaseException) -> str:
        number, traceback = 0, error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == "<test>":
                number = traceback.tb_lineno or number
            traceback = traceback.tb_next
        line = f", test line {number}: {self.job['test'].splitlines()[number - 1].strip()}" if number else ""
        return f"{type(error).__name__}{': ' if str(error) else ''}{error}{line}"


def _next(iterator: Any, *default: Any) -> Any:
    """Works as the built-in `next`, for tests. Raises RuntimeError if there is no item: a StopIteration would end the
    test's own iteration early, and `all(map(lambda x: next(f(x)) == 3, xs))` would be true."""
    try:
        return next(iterator, *default)
    except StopIteration as error:
        if sys._getframe(1).f_code.co_name == "__next__":
            raise
        raise RuntimeError("next() found no item") from error


def main(report: int) -> None:
    """Reads the job from stdin, isolates this process accordingly, and runs it."""
    os.set_inheritable(report, False)
    job = json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.set_int_max_str_digits(0)
    tester = Tester(job, report)
    try:
        if job["isolation"] == "namespaces":
            kernel.enter_namespaces(job["readable"], job["outer_user"], job["limits"]["disk_mib"])
        kernel.filter_system_calls()
    except OSError as error:
        tester.end("not judged", f"the sandbox could not be made: {error}")
    memory = job["limits"]["memory_mib"] << 20  # values from the program take memory in the tests
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    kernel.end_after(job["limits"]["timeout_seconds"] + 5)
    tester.run()
