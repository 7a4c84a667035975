"""The only kind of error that a user sees: one line that states the problem, its place, and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches


class ConfigError(Exception):
    """A user's mistake, or a missing resource outside the program. It is printed as one line, with exit code 2."""

    def __init__(self, message: str, others: Iterable[str] = ()) -> None:
        """`others`: further problems, which only `specbench validate` prints."""
        super().__init__(" ".join(message.split()))
        self.others = tuple(others)


class NeedsCode(ConfigError):
    """A checkpoint has Python code of its own, which is not allowed to run."""


def nearest(value: str, choices: Iterable[str], listed: str = "") -> str:
    """Returns the part of an error that lists the valid choices, a similar one first: "did you mean 'fsd'? (choices:
    …)". `listed`: a sentence in place of a list that would be too long."""
    known = sorted(choices)
    close, every = get_close_matches(value, known, n=1, cutoff=0.5), ", ".join(known)
    if close:
        return f"did you mean '{close[0]}'? {listed or f'(choices: {every})'}"
    return listed or (f"the choices are {every}" if known else "there are none")
