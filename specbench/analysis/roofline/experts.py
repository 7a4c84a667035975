"""Models with mixed experts: how many of them a pass over several tokens reads, by uniform routing and as routed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

import torch
from pydantic import BaseModel

from specbench.analysis.roofline.report import Experts, ExpertUnion, make_quartiles
from specbench.models.causal_lm import CausalLM
from specbench.models.gguf.model import LlamaLM

MODULE = "experts"  # the name of the module of a layer's experts in transformers; a router's choices are an argument


class Mixture(BaseModel):
    """The experts of each layer of a model, and those that a token uses."""

    number: int
    per_token: int

    @classmethod
    def of(cls, model: CausalLM) -> "Mixture | None":
        """Returns the mixture that a model's configuration states; None for a model without experts."""
        if isinstance(model, LlamaLM):
            number, used = (model.header.of_architecture(key) for key in ("expert_count", "expert_used_count"))
        else:
            config = model.model.config.get_text_config()
            used = getattr(config, "num_experts_per_tok", None)
            number = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
        return cls(number=int(number), per_token=int(used)) if number and used else None

    @property
    def share(self) -> float:
        return self.per_token / self.number

    def expected_union(self, num_tokens: int) -> float:
        """Returns E · (1 − (1 − k/E)ⁿ), the mean number of experts of n tokens that choose k of E independently, each
        equally often (arXiv:2505.19645). Real routing prefers some experts, and neighbours choose alike: then n tokens
        use fewer."""
        return self.number * (1.0 - (1.0 - self.share) ** num_tokens)


@contextmanager
def recorded_choices(network: Any) -> Iterator[list[torch.Tensor]]:
    """Yields a list to which every pass in the block adds the experts of each token [num_tokens, k], layer by layer, as
    the layer's router hands them to its experts."""
    found: list[torch.Tensor] = []

    def note(module: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        for each in (*args, *keywords.values()):
            if isinstance(each, torch.Tensor) and not each.is_floating_point():
                found.append(each.reshape(-1, each.shape[-1]).cpu())
                return

    hooks = [
        module.register_forward_pre_hook(note, with_kwargs=True)
        for name, module in network.named_modules() if name.rpartition(".")[2] == MODULE
    ]  # fmt: skip
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def choices_after(model: CausalLM, ids: Sequence[int], context: int) -> torch.Tensor | None:
    """Returns the experts [num_layers, num_tokens, k] that the tokens of `ids` after the first `context` choose, from
    one pass. None for passes that run no code of the model's own, and for experts that are not handed their choices."""
    if isinstance(model, LlamaLM) or model.static is not None:
        return None
    model.reset()
    model.score(list(ids[:context]), 1)
    with recorded_choices(model.model) as found:
        model.score(list(ids), len(ids) - context)
    model.reset()
    return torch.stack(found) if found else None


def union_sizes(choices: torch.Tensor, number: int, num_tokens: int) -> list[float]:
    """Returns for each layer the mean number of different experts of `num_tokens` tokens in a row, over all such runs
    of tokens. `choices`: [num_layers, all tokens, k]."""
    is_used = torch.zeros(*choices.shape[:2], number, dtype=torch.bool).scatter_(2, choices.long(), True)
    runs = is_used.unfold(1, num_tokens, 1).any(dim=-1)  # [num_layers, num_runs, number]
    return [float(size) for size in runs.sum(dim=-1).double().mean(dim=1)]


def experts_of(
    model: CausalLM, ids: Sequence[int], context: int, lengths: Sequence[int], bytes_read: dict[int, float],
    expert_bytes: float,
) -> Experts | None:  # fmt: skip
    """Returns the experts that passes over `lengths` tokens read; None for a model without experts. `ids`: the tokens
    of the timed passes. `bytes_read`: of a pass by its length, by uniform routing; `expert_bytes`: of all experts."""
    mixture = Mixture.of(model)
    if mixture is None:
        return None
    choices = choices_after(model, ids[: context + max(lengths)], context)
    unions = []
    for length in lengths:
        expected = mixture.expected_union(length)
        layers = None if choices is None else union_sizes(choices, mixture.number, length)
        unions.append(ExpertUnion(
            query_length=length, expected=expected, measured=None if layers is None else fmean(layers),
            over_layers=None if layers is None else make_quartiles(layers),
        ))  # fmt: skip

    def num_bytes(union: ExpertUnion) -> float:
        used = union.expected if union.measured is None else union.measured
        return bytes_read[union.query_length] + expert_bytes * (used - union.expected) / mixture.number

    single = num_bytes(next(union for union in unions if union.query_length == 1))
    unions = [union.model_copy(update={"bytes_ratio": num_bytes(union) / single}) for union in unions]
    return Experts(
        number=mixture.number, per_token=mixture.per_token, unions=unions,
        num_layers=None if choices is None else len(choices),
    )  # fmt: skip
