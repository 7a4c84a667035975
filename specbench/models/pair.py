"""The models of one method: a target and, for most, a draft model."""

from dataclasses import dataclass

from specbench.models.causal_lm import CausalLM


@dataclass(frozen=True)
class ModelPair:
    """A target and the draft model of a method; `drafter` is None when the method asks for none."""

    target: CausalLM
    drafter: CausalLM | None = None
