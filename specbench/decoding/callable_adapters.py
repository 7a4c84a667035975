"""Drafters and verification rules that are given as Python functions, objects or classes."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from specbench.core.errors import ConfigError, DrafterError, naming_code
from specbench.decoding.checked_parts import drafted_tokens
from specbench.decoding.drafters import Drafter, LookUpDrafter
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import VerificationRule
from specbench.models.causal_lm import ModelPair


class FunctionDrafter(LookUpDrafter):
    """Drafts the tokens that a function returns for the token ids so far and a number of draft tokens. Tokens beyond
    that number are dropped. `place`: begins the messages about what it returns."""

    def __init__(self, function: Callable[[list[int], int], Any], vocab_size: int, place: str = "the drafter") -> None:
        super().__init__()
        self.function, self.vocab_size, self.place = function, vocab_size, place

    def look_up(self, ids: list[int], num_draft_tokens: int) -> tuple[list[int], None]:
        with naming_code(self.place, DrafterError):
            found = self.function(list(ids), num_draft_tokens)
        return drafted_tokens(self.place, found, num_draft_tokens, self.vocab_size), None


class FunctionRule(VerificationRule):
    """The rule that a function of the proposal, the target's distributions and the random generator defines."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


def drafter_factory(part: Any) -> Callable[..., Any]:
    """Returns the factory of a drafter that is given as an object or a function; a class is its own factory.

    Raises ConfigError for anything else, and for an object that proposes trees, since only factories declare shapes.
    """
    if isinstance(part, Drafter) and part.draws is not None:
        raise ConfigError(
            f"drafter {type(part).__name__}: proposes trees: give a factory with @DRAFTERS.declare(tree_depth=…)"
        )

    def make(models: ModelPair, sampling: Sampling) -> Drafter:
        return part if isinstance(part, Drafter) else FunctionDrafter(part, models.target.vocab_size)

    return _factory(part, Drafter, make, "drafter", "drafts", ("ids", "num_draft_tokens"))


def rule_factory(part: Any) -> Callable[..., Any]:
    """Returns the factory of a rule that is given as an object or a function; a class is its own factory. Raises
    ConfigError for anything else."""

    def make() -> VerificationRule:
        return part if isinstance(part, VerificationRule) else FunctionRule(part)

    return _factory(part, VerificationRule, make, "rule", "judges", ("proposal", "target", "generator"))


def _factory(
    part: Any, base: type, make: Callable[..., Any], key: str, verb: str, arguments: Sequence[str]
) -> Callable[..., Any]:
    """`arguments`: those with which a function is called."""
    if isinstance(part, type):
        return part
    if isinstance(part, base):
        return make
    if not callable(part):
        raise ConfigError(
            f"{key}: a {type(part).__name__} {verb} nothing: give a name, a function or a {base.__name__}"
        )
    name = getattr(part, "__name__", type(part).__name__)
    call = f"{key} '{name}': is called as {name}({', '.join(arguments)})"
    if inspect.iscoroutinefunction(part) or inspect.isasyncgenfunction(part):
        raise ConfigError(f"{call}: write it with def, not async def")
    try:
        inspect.signature(part).bind(*arguments)
    except TypeError as error:
        raise ConfigError(f"{call}, but its signature does not take this: {error}") from error
    except ValueError:  # built-in functions do not tell theirs
        pass
    return make
