"""A small language model as the drafter."""

from typing import Annotated, Protocol

import torch
from pydantic import Field

from specbench.decoding.drafters import drafter
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import Distributions, Sampling
from specbench.models.pair import ModelPair
from specbench.models.timing import PassLog
from specbench.temperature import DraftTemperature


class ScoringModel(Protocol):
    """What the loop and the model drafter need of a model (models.CausalLM, or a table in a test)."""

    passes: PassLog
    eos_token_ids: frozenset[int]

    def reset(self) -> None:
        """Forget the sequence."""

    def score(self, ids: list[int], num_logits: int) -> torch.Tensor:
        """The logits after each of the last `num_logits` tokens of `ids`: [num_logits, vocab]."""


class ModelDrafter:
    """Drafts token by token; a drafted EOS ends the draft."""

    def __init__(self, model: ScoringModel, sampling: Sampling) -> None:
        self.model = model
        self.sampling = sampling
        self.passes: PassLog | None = model.passes

    def prefill(self, prompt_ids: list[int]) -> None:
        self.model.reset()
        self.model.score(prompt_ids, 1)

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        mark = self.model.passes.clock.mark
        drafted_ids = list(ids)
        rows: list[Distributions] = []
        for _ in range(num_draft_tokens):
            distribution = Distributions(self.model.score(drafted_ids, 1), self.sampling)
            start = mark()
            token = distribution.draw(0, generator)
            self.model.passes.add_choice(start, mark())
            drafted_ids.append(token)
            rows.append(distribution)
            if token in self.model.eos_token_ids:
                break
        return Proposal(drafted_ids[len(ids) :], Distributions.concat(rows) if rows else None)


CHECKPOINT = (
    "The draft model: a folder, a hub id or embedded:NAME (which belongs to embedded:target and to no other target); "
    "null: the one of --drafter."
)


@drafter("model", provides=frozenset({"probs", "raw_probs"}), needs_model=True)
def model_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    temperature: DraftTemperature = None,
    checkpoint: Annotated[str | None, Field(min_length=1, description=CHECKPOINT)] = None,
) -> ModelDrafter:
    """A small language model drafts token by token, with the run's sampling or at a temperature of its own (0: greedy
    drafts, as in arXiv:2502.20704)."""
    del checkpoint  # what it names is loaded: models.drafter
    if temperature is not None:
        sampling = Sampling(temperature, sampling.top_k, sampling.top_p)
    assert models.drafter is not None
    return ModelDrafter(models.drafter, sampling)
