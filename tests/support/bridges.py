"""Decoding through a bridge."""

from specbench.decoding.build import build_decoder
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.specs.catalogue import load_method

GREEDY = Sampling(0.0)


def generate(
    method: str, models: ModelPair, prompt: list[int], num: int = 12, sampling: Sampling = GREEDY
) -> GenerationOutput:
    decoder = build_decoder(load_method(method), models, sampling)
    return decoder.generate(prompt, StopRules(num, models.target.eos_token_ids), seed=1)
