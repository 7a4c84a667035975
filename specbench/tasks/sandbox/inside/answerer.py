"""The process of the untrusted program: it runs the program, then calls its functions at the tester's request.

It sends only the values of calls, so it cannot report a passed test.
"""

import os
import resource
import sys
from typing import Any

from specbench.tasks.sandbox.inside.messages import NotPlain, decode, encode, receive, send


def main(requests: int, replies: int) -> None:
    """Serves requests until the tester closes the pipe. `requests`, `replies`: file descriptors."""
    job = receive(requests)
    restrict(job["limits"])
    sys.set_int_max_str_digits(0)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # otherwise numpy fails when it cannot start threads
    names: dict[str, Any] = {"__name__": "answer", "__builtins__": __builtins__}
    try:
        exec(compile(job["program"], "<program>", "exec"), names)
        reply: dict[str, Any] = {"value": None}
    except BaseException as error:
        reply = _raised(error)
    send(replies, reply)
    while True:
        try:
            call = receive(requests)
        except EOFError:
            return
        send(replies, _answer(names, call))


def restrict(limits: dict[str, Any]) -> None:
    """Sets limits that only a privileged process can lift; they also forbid other processes and threads."""
    seconds, memory, size = int(limits["timeout_seconds"]) + 1, limits["memory_mib"] << 20, limits["file_mib"] << 20
    for kind, value in {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: size,
        resource.RLIMIT_NPROC: 1,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }.items():
        resource.setrlimit(kind, (value, value))


def _answer(names: dict[str, Any], call: dict[str, Any]) -> dict[str, Any]:
    name = call["function"]
    if not callable(names.get(name)) or isinstance(names[name], type):
        return {"raised": "NameError", "text": f"the program has no function '{name}'"}
    try:
        arguments, keywords = decode(call["arguments"]), decode(call["keywords"])
        value = names[name](*arguments, **keywords)
    except BaseException as error:
        return _raised(error)
    try:
        return {"value": encode(value)}
    except NotPlain as error:
        return {"raised": "TypeError", "text": f"returned {error}, which cannot be compared with plain values"}
    except BaseException as error:
        return _raised(error)


def _raised(error: BaseException) -> dict[str, Any]:
    try:
        text = str(error)[:500]
    except BaseException:
        text = ""
    return {"raised": type(error).__name__, "text": text}
