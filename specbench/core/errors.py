"""The only kind of error that a user sees: one line that states the problem, its place, and the remedy."""

import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class ConfigError(Exception):
    """A user's mistake, or a missing resource outside the program. It is printed as one line, with exit code 2."""

    def __init__(self, message: str, others: Iterable[str] = ()) -> None:
        """`others`: further problems. Only `specbench validate` prints them."""
        super().__init__(" ".join(message.split()))
        self.others = tuple(others)


class NeedsCode(ConfigError):
    """A checkpoint comes with Python code that is not allowed to run."""


class DrafterError(ConfigError):
    """A drafter or a verification rule from outside this package raised an exception, which is the cause, or returned
    what cannot be used."""


def nearest(value: str, choices: Iterable[str], listed: str = "", cutoff: float = 0.6) -> str:
    """Returns the end of an error message that lists the valid choices, the most similar one first: "did you mean
    'fsd'? (choices: …)". `listed`: a sentence that replaces a list that would be too long. Of a dotted choice, the last
    part alone is similar, too. `cutoff`: the similarity, from 0 to 1, below which no choice is proposed."""
    known = sorted(choices)
    ends = [choice for choice in known if choice.rpartition(".")[2] == value]
    close = ends or get_close_matches(value, known, n=1, cutoff=cutoff)
    every = ", ".join(known)
    if close:
        return f"did you mean '{close[0]}'? {listed or f'(choices: {every})'}"
    return listed or (f"the choices are {every}" if known else "there are none")


INTERRUPTED, TERMINATED = 130, 143  # exit codes of an interrupt and of SIGTERM, as shells give them
NO_MEMORY = ("out of memory", "can't allocate memory")  # in messages of torch and Python
OWN = Path(__file__).resolve().parents[1]
LIBRARIES = {"torch", "transformers", "numpy"}


class naming_code:
    """Turns exceptions of code outside this package into errors of `kind` that begin with `place` and name the line,
    with the exception as their cause. Errors for lack of memory, ConfigErrors and interrupts pass."""

    def __init__(self, place: str, kind: type[ConfigError] = ConfigError) -> None:
        self.place, self.kind = place, kind

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_interrupt = isinstance(error, SystemExit) and error.code == INTERRUPTED
        if (
            not isinstance(error, Exception | SystemExit)
            or is_interrupt
            or isinstance(error, ConfigError | MemoryError)
        ):
            return
        if not any(words in str(error).lower() for words in NO_MEMORY):
            raise self.kind(f"{self.place} {raised(error)}") from error


def raised(error: BaseException) -> str:
    """Returns "raised ValueError: no such luck (mine.py, line 3)", with the innermost line of the user's code; without
    a line if none of it ran, as in a call that the signature does not allow."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not LIBRARIES & set(Path(f.filename).parts) and OWN not in Path(f.filename).parents]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"raised {type(error).__name__}: {str(error)[:300]}{place}"


def import_problem(error: BaseException) -> str:
    """Returns why a user's module cannot be imported. Raises the error if it is a user's interrupt: any other one is
    the module's, also a SystemExit."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    return str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
