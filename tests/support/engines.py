"""Models on two engines, and logits of a plain forward pass."""

from typing import Any

import torch

from specbench.models.causal_lm import CausalLM
from specbench.models.loading import make_passes
from tests.support import tiny


def both(kind: str = "llama", seed: int = 0, **options: Any) -> tuple[CausalLM, CausalLM]:
    """One network, read eagerly and in passes that may be compiled."""
    network = tiny.network(kind, seed, **options)
    eager, other = (CausalLM(network, tiny.tokenizer(), f"tiny-{kind}", None) for _ in range(2))
    make_passes(other)
    return eager, other


def plain_logits(model: CausalLM, ids: list[int], num_logits: int) -> torch.Tensor:
    with torch.no_grad():
        return model.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -num_logits:, : model.vocab_size]
