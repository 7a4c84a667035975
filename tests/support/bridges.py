"""Decoding through a bridge."""

from typing import Any

import torch

from specbench.decoding.build import build_decoder
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair, TextModel
from specbench.models.meters import Clock, PassLog
from specbench.models.scoring import Output, ScoringModel
from specbench.specs.catalogue import load_method

GREEDY = Sampling(0.0)
NUM_ROWS = 64


class RowsModel(TextModel, ScoringModel):
    """A model with a real tokenizer, whose random logits [NUM_ROWS, vocab] are chosen by the last two tokens: what it
    writes is as little a text as that of a random network, and no network is computed."""

    def __init__(self, tokenizer: Any, name: str, seed: int, context_limit: int = 512) -> None:
        ends = frozenset({tokenizer.eos_token_id}) - {None}
        limits = {"context_limit": context_limit, "vocab_size": len(tokenizer)}
        super().__init__(tokenizer, name, None, eos_token_ids=ends, **limits)
        self.rows = 3 * torch.randn(NUM_ROWS, self.vocab_size, generator=torch.Generator().manual_seed(seed))
        self.device = torch.device("cpu")
        self.passes = PassLog(Clock(self.device))

    def reset(self) -> None:
        pass

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        assert pending is None
        self.passes.add(num_logits, 0.0, 0.0)
        ends = range(len(ids) - num_logits, len(ids))
        return Output(self.rows[[(7 * ids[end - 1] + ids[end]) % NUM_ROWS for end in ends]])


def generate(
    method: str, models: ModelPair, prompt: list[int], num: int = 12, sampling: Sampling = GREEDY
) -> GenerationOutput:
    decoder = build_decoder(load_method(method), models, sampling)
    return decoder.generate(prompt, StopRules(num, models.target.eos_token_ids), seed=1)
