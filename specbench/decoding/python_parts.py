"""Drafters and verification rules that are given as Python functions, objects or classes."""

from collections.abc import Callable
from typing import Any

import torch

from specbench.core.errors import ConfigError
from specbench.decoding.drafters import Drafter
from specbench.decoding.proposal import PointMass, Proposal, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.verification import VerificationRule
from specbench.models.causal_lm import ModelPair
from specbench.models.meters import Clock, PassLog


class FunctionDrafter(Drafter):
    """Drafts the tokens that a function returns for the token ids so far and a number of draft tokens. Tokens beyond
    that number are dropped. One pass is logged per proposal."""

    def __init__(self, function: Callable[[list[int], int], Any], vocab_size: int) -> None:
        self.function, self.vocab_size = function, vocab_size
        self.passes: PassLog = PassLog(Clock(torch.device("cpu")))

    def prefill(self, prompt_ids: list[int]) -> None:
        pass

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        start = self.passes.clock.mark()
        token_ids = [int(token) for token in self.function(list(ids), num_draft_tokens)][:num_draft_tokens]
        self.passes.add(len(token_ids), start, self.passes.clock.mark())
        if wrong := [token for token in token_ids if not 0 <= token < self.vocab_size]:
            raise ConfigError(
                f"the drafter returned token {wrong[0]}: the target has tokens 0 to {self.vocab_size - 1}"
            )
        return Proposal(token_ids, PointMass(token_ids)) if token_ids else Proposal()


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
    if isinstance(part, type):
        return part
    if isinstance(part, Drafter):
        if part.draws is not None:
            raise ConfigError(
                f"drafter {type(part).__name__}: proposes trees: give a factory with @DRAFTERS.declare(tree_depth=…)"
            )
        return lambda models, sampling: part
    if not callable(part):
        raise ConfigError(f"drafter: a {type(part).__name__} drafts nothing: give a name, a function or a Drafter")

    def make(models: ModelPair, sampling: Sampling) -> Drafter:
        return FunctionDrafter(part, models.target.vocab_size)

    return make


def rule_factory(part: Any) -> Callable[..., Any]:
    """Returns the factory of a rule that is given as an object or a function; a class is its own factory. Raises
    ConfigError for anything else."""
    if isinstance(part, type):
        return part
    if isinstance(part, VerificationRule):
        return lambda: part
    if not callable(part):
        raise ConfigError(
            f"rule: a {type(part).__name__} judges nothing: give a name, a function or a VerificationRule"
        )
    return lambda: FunctionRule(part)
