"""Draft trees of toy models through the real loop."""

import torch

from specbench.decoding.drafters import Drafter
from specbench.decoding.loop import GenerationOutput, StopRules, decode
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import VerificationRule
from specbench.models.scoring import ScoringModel

VOCAB, PROMPT = 3, [1, 2]


def generate(
    target: ScoringModel, drafter: Drafter, rule: VerificationRule, length: int, seed: int, sampling: Sampling,
    prompt: list[int] = PROMPT,
) -> GenerationOutput:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    return decode(
        target,
        drafter,
        rule,
        prompt,
        num_draft_tokens=3,
        sampling=sampling,
        stop=StopRules(length),
        generator=generator,
    )
