"""Decoders of toy models."""

import torch

from specbench.decoding.drafters import ModelDrafter, NoDrafter
from specbench.decoding.loop import GenerationOutput, StopRules, decode
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import rejection
from specbench.models.causal_lm import CausalLM
from specbench.models.scoring import Output
from tests.support.toys import TableModel

GREEDY = Sampling(0.0)


def autoregressive(
    target: CausalLM | TableModel, prompt: list[int], stop: StopRules, sampling: Sampling = GREEDY
) -> GenerationOutput:
    generator = torch.Generator().manual_seed(0)
    return decode(
        target, NoDrafter(), rejection, prompt, num_draft_tokens=0, sampling=sampling, stop=stop, generator=generator
    )


def speculative(
    target: CausalLM | TableModel, draft: CausalLM | TableModel, prompt: list[int], stop: StopRules,
    gamma: int = 4, sampling: Sampling = GREEDY, rule: object = rejection,
) -> GenerationOutput:  # fmt: skip
    return decode(
        target, ModelDrafter(draft, sampling), rule, prompt, num_draft_tokens=gamma, sampling=sampling, stop=stop,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


class SometimesWrong(CausalLM):
    """The target's twin, but after every sequence whose length is divisible by three it prefers another token."""

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        logits = super().score(ids, num_logits, pending).logits
        return Output(logits.roll(1, dims=-1) if len(ids) % 3 == 0 else logits)
