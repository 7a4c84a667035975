"""The only kind of error that a user sees: one line that states the problem, its place, and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches


class ConfigError(Exception):
    """A user's mistake, or a missing resource outside the program. It is printed as one line, with exit code 2."""

    def __init__(self, message: str, others: Iterable[str] = ()) -> None:
        """`others`: further problems. Only `specbench validate` prints them."""
        super().__init__(" ".join(message.split()))
        self.others = tuple(others)


class NeedsCode(ConfigError):
    """A checkpoint comes with Python code that is not allowed to run."""


def nearest(value: str, choices: Iterable[str], listed: str = "") -> str:
    """Returns the end of an error message that lists the valid choices, the most similar one first: "did you mean
    'fsd'? (choices: …)". `listed`: a sentence that replaces a list that would be too long."""
    known = sorted(choices)
    close, every = get_close_matches(value, known, n=1, cutoff=0.5), ", ".join(known)
    if close:
        return f"did you mean '{close[0]}'? {listed or f'(choices: {every})'}"
    return listed or (f"the choices are {every}" if known else "there are none")


def import_problem(error: BaseException) -> str:
    """Returns why a user's module cannot be imported. Raises the error if it is a user's interrupt: any other one is
    the module's, also a SystemExit."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    return str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
