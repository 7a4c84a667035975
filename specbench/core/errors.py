"""The only kind of error that a user sees: one line that states the problem, its place, and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches


class ConfigError(Exception):
    """A user's mistake, or a missing resource outside the program. It is printed as one line, with exit code 2."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def nearest(value: str, choices: Iterable[str]) -> str:
    """Returns the part of an error that lists the valid choices, a similar one first: "did you mean 'fsd'? (choices:
    …)"."""
    known = sorted(choices)
    close = get_close_matches(value, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'? (choices: {', '.join(known)})"
    return f"the choices are {', '.join(known)}" if known else "there are none"
