"""The models of one method: a target and, for most, a draft model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specbench.models.causal_lm import CausalLM


@dataclass(frozen=True)
class ModelPair:
    """A target and the draft model of a method; `drafter` is None when the method asks for none. `of_routes`: the draft
    models of a method's routes by METHOD/LANGUAGE; a route that is not among them takes `drafter`."""

    target: CausalLM
    drafter: CausalLM | None = None
    of_routes: Mapping[str, CausalLM] = field(default_factory=dict)
