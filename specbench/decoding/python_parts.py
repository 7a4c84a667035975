"""Drafters and verification rules that are given as Python functions, objects or classes."""

from collections.abc import Callable
from typing import Any

import torch

from specbench.core.errors import ConfigError
from specbench.decoding.drafters import Drafter, LookUpDrafter
from specbench.decoding.proposal import Proposal, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.verification import VerificationRule
from specbench.models.causal_lm import ModelPair


class FunctionDrafter(LookUpDrafter):
    """Drafts the tokens that a function returns for the token ids so far and a number of draft tokens. Tokens beyond
    that number are dropped."""

    def __init__(self, function: Callable[[list[int], int], Any], vocab_size: int) -> None:
        super().__init__()
        self.function, self.vocab_size = function, vocab_size

    def look_up(self, ids: list[int], num_draft_tokens: int) -> tuple[list[int], None]:
        token_ids = [int(token) for token in self.function(list(ids), num_draft_tokens)][:num_draft_tokens]
        if wrong := [token for token in token_ids if not 0 <= token < self.vocab_size]:
            raise ConfigError(
                f"the drafter returned token {wrong[0]}: the target has tokens 0 to {self.vocab_size - 1}"
            )
        return token_ids, None


class FunctionRule(VerificationRule):
    """The rule that a function of the proposal, the target's distributions and the random generator defines."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        found = self.function(proposal, target, generator)
        return found if isinstance(found, Verification) else Verification(*found)


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

    return _factory(part, Drafter, make, "drafter", "drafts")


def rule_factory(part: Any) -> Callable[..., Any]:
    """Returns the factory of a rule that is given as an object or a function; a class is its own factory. Raises
    ConfigError for anything else."""

    def make() -> VerificationRule:
        return part if isinstance(part, VerificationRule) else FunctionRule(part)

    return _factory(part, VerificationRule, make, "rule", "judges")


def _factory(part: Any, base: type, make: Callable[..., Any], key: str, verb: str) -> Callable[..., Any]:
    if isinstance(part, type):
        return part
    if not isinstance(part, base) and not callable(part):
        raise ConfigError(
            f"{key}: a {type(part).__name__} {verb} nothing: give a name, a function or a {base.__name__}"
        )
    return make
