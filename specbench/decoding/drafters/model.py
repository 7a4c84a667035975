"""The drafter that is a small language model."""

from typing import Annotated

import torch
from pydantic import Field

from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import Drafter
from specbench.decoding.proposal import OnDeviceProposal, Proposal, up_to_end
from specbench.decoding.sampling import Distributions, Sampling
from specbench.models.causal_lm import ModelPair
from specbench.models.devices import upload
from specbench.models.scoring import ScoringModel
from specbench.specs.components import DraftTemperature


class ModelDrafter(Drafter):
    """A model that drafts token by token; a drafted EOS ends the draft.

    If reading a token would wait for the device, the drafter does not stop at an EOS; the draft is cut there when the
    step's outcome is read.
    """

    model: ScoringModel
    sampling: Sampling

    def __init__(self, model: ScoringModel, sampling: Sampling) -> None:
        super().__init__(model, sampling)
        self._last: OnDeviceProposal | None = None
        self._is_end: torch.Tensor | None = None  # computed once per generation

    def prefill(self, prompt_ids: list[int]) -> None:
        self._last = self._is_end = None
        super().prefill(prompt_ids)

    def reserve(self, num_draft_tokens: int) -> tuple[int, float]:
        return self.model.reserve_draft(num_draft_tokens, self.sampling)

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        if self.model.prefers_pending and num_draft_tokens:
            return self._propose_on_device(ids, num_draft_tokens, generator)
        mark = self.model.passes.clock.mark
        drafted_ids = list(ids)
        rows: list[Distributions] = []
        for _ in range(num_draft_tokens):
            distribution = Distributions(self.model.score(drafted_ids, 1).logits, self.sampling)
            start = mark()
            token = distribution.draw(0, generator)
            self.model.passes.add_choice(start, mark())
            drafted_ids.append(token)
            rows.append(distribution)
            if token in self.model.eos_token_ids:
                break
        return Proposal(drafted_ids[len(ids) :], Distributions.concat(rows) if rows else None)

    def _propose_on_device(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> OnDeviceProposal:
        if self._last is not None:
            self.model.resolve_pending(self._last.scored_ids)
        tokens, distributions = self._draft_pending(ids, num_draft_tokens, generator)
        if self._is_end is None:
            self._is_end = end_mask(self.model.eos_token_ids, distributions.logits.shape[-1], tokens.device)
        is_proposed = up_to_end(self._is_end.index_select(0, tokens))
        self._last = OnDeviceProposal(tokens, is_proposed, distributions)
        return self._last

    def _draft_pending(
        self, ids: list[int], num_draft_tokens: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, Distributions]:
        """Returns pending draft tokens, [num_draft_tokens], and the distributions they were drawn from."""
        draft = self.model.draft(ids, num_draft_tokens, self.sampling, generator)
        if draft is not None:
            return draft.tokens, Distributions(draft.logits, self.sampling, draft.probs)
        mark = self.model.passes.clock.mark
        pending: torch.Tensor | None = None
        rows: list[Distributions] = []
        for _ in range(num_draft_tokens):
            rows.append(Distributions(self.model.score(ids, 1, pending).logits, self.sampling))
            start = mark()
            token = rows[-1].draw_all(generator)
            self.model.passes.add_choice(start, mark())
            pending = token if pending is None else torch.cat([pending, token])
        assert pending is not None
        return pending, Distributions.concat(rows)


def end_mask(ends: frozenset[int], vocab_size: int, device: torch.device) -> torch.Tensor:
    """Returns a mask of the tokens in `ends`: [vocab]."""
    token_ids = torch.tensor([token for token in ends if token < vocab_size], dtype=torch.long)
    table = torch.zeros(vocab_size, dtype=torch.bool, device=device)
    return table.index_fill_(0, upload(token_ids, device), True)


CHECKPOINT = (
    "The draft model: a folder, a hub id or embedded:NAME (which belongs to embedded:target and to no other target); "
    "null: the one of --drafter."
)
Checkpoint = Annotated[str | None, Field(min_length=1, description=CHECKPOINT)]


@DRAFTERS.register("model", provides={"probs", "raw_probs"}, needs_model=True)
def model_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    temperature: DraftTemperature = None,
    checkpoint: Checkpoint = None,
) -> ModelDrafter:
    """A small language model drafts token by token, with the run's sampling parameters or its own temperature
    (0: greedy drafts, as in arXiv:2502.20704)."""
    del checkpoint  # already loaded as models.drafter
    assert models.drafter is not None
    return ModelDrafter(models.drafter, sampling.at(temperature))
