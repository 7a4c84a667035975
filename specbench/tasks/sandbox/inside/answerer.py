"""The process of the untrusted program: it runs the program, then calls its functions at the tester's request. The
messages between the tester and this process are plain values as JSON, which contain no code.

It sends only the values of calls, so it cannot report a passed test.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real

from specbench.tasks.sandbox.inside import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

MAX_BYTES = 8 * 2**20  # of one message
MAX_THREADS = 64  # of a program, the first one included


class NotPlain(Exception):
    """A value that cannot be sent."""


def encode(value: Any) -> Any:
    """Returns the value as JSON. Lists stay lists, other values that JSON does not have are tagged with their type, and
    iterators are read to their end. Raises NotPlain for any other value."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return encode(value.item())
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, float) or (isinstance(value, Real) and not hasattr(value, "numerator")):
        return float(value)
    if isinstance(value, list):
        return [encode(item) for item in value]
    for name, (kind, parts, _) in TAGGED.items():
        if isinstance(value, kind):
            return {name: encode(parts(value))}
    raise NotPlain(f"a value of type {type(value).__name__}")


def decode(data: Any) -> Any:
    """Returns the value of an `encode` result. Raises ValueError, TypeError, KeyError or ArithmeticError for others."""
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((name, content),) = data.items()
    return TAGGED[name][2](decode(content))


# Name → type, what JSON holds of a value, and how the value is made of that.
TAGGED: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "Fraction": (Fraction, lambda value: [int(value.numerator), int(value.denominator)], lambda pair: Fraction(*pair)),
    "Decimal": (Decimal, str, Decimal),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    "complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "dict": (dict, lambda value: [list(item) for item in value.items()], dict),
    "tuple": (tuple, list, tuple),
    "set": (set, list, set),
    "frozenset": (frozenset, list, frozenset),
    "iterator": (Iterator, list, iter),
}


def send(fd: int, message: Any) -> None:
    """Writes one message: its length in four bytes, then JSON. Raises OSError, and NotPlain if it is too long."""
    content = json.dumps(message).encode()
    if len(content) > MAX_BYTES:
        raise NotPlain(f"a value of more than {MAX_BYTES} bytes")
    content = len(content).to_bytes(4) + content
    while content:
        content = content[os.write(fd, content) :]


def receive(fd: int) -> Any:
    """Reads one message. Raises EOFError if the other side has closed the pipe, ValueError for an invalid message."""
    size = int.from_bytes(_read(fd, 4))
    if size > MAX_BYTES:
        raise ValueError(f"a message of {size} bytes")
    return json.loads(_read(fd, size))


def _read(fd: int, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = os.read(fd, size - len(content))
        if not part:
            raise EOFError
        content += part
    return content


def main(requests: int, replies: int) -> None:
    """Serves requests until the tester closes the pipe. `requests`, `replies`: file descriptors."""
    job = receive(requests)
    limits = job["limits"]
    seconds, memory, size = int(limits["timeout_seconds"]) + 1, limits["memory_mib"] << 20, limits["file_mib"] << 20
    for kind, value in (  # only a privileged process can lift them; the tester's filter forbids other processes
        (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, size),
        (resource.RLIMIT_NPROC, MAX_THREADS), (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_CORE, 0),
    ):  # fmt: skip
        resource.setrlimit(kind, (value, value))
    sys.set_int_max_str_digits(0)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # otherwise numpy fails when it cannot start threads
    names: dict[str, object] = {"__name__": "answer", "__builtins__": __builtins__}
    try:
        exec(compile(job["program"], "<program>", "exec"), names)
        reply: dict[str, object] = {"value": None}
    except BaseException as error:
        reply = _raised(error)
    send(replies, reply)
    while True:
        try:
            call = receive(requests)
        except EOFError:
            return
        send(replies, _answer(names, call))


def _answer(names: dict[str, object], call: dict[str, object]) -> dict[str, object]:
    name = str(call["function"])
    function = names.get(name)
    if not callable(function) or isinstance(function, type):
        return {"raised": "NameError", "text": f"the program has no function '{name}'"}
    try:
        arguments, keywords = decode(call["arguments"]), decode(call["keywords"])
        value = function(*arguments, **keywords)
    except BaseException as error:
        return _raised(error)
    try:
        return {"value": encode(value)}
    except NotPlain as error:
        return {"raised": "TypeError", "text": f"returned {error}, which cannot be compared with plain values"}
    except BaseException as error:
        return _raised(error)


def _raised(error: BaseException) -> dict[str, object]:
    """Returns an exception as JSON: its text, the names of its class and of all that it inherits from, and `arguments`
    if they are plain values."""
    try:
        text = str(error)[:500]
    except BaseException:
        text = ""
    reply: dict[str, object] = {"raised": type(error).__name__, "text": text}
    try:
        reply["kinds"] = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
        reply["arguments"] = encode(list(error.args))
        if len(json.dumps(reply)) > MAX_BYTES:
            raise NotPlain
    except BaseException:  # arguments that cannot be sent, or too many of them
        reply.pop("arguments", None)
    return reply
