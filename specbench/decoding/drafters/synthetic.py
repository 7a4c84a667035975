"""A drafter of prescribed acceptance: it agrees with the target with a given probability per draft token.

It separates what an engine costs from how good a drafter is, and tests the harness: α is known, so τ and the speed-up
are too. Its draft tokens are planned with the target itself in a rehearsal that no clock sees; the measured generation
replays them, and makes the draft model's passes as any model drafter does, so that the cost ratio is a real one.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import torch
from pydantic import Field

from specbench.decoding.drafters import drafter
from specbench.decoding.drafters.model import ScoringModel, deferring
from specbench.decoding.drafters.synthetic_plan import Plan
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import Distributions, Sampling
from specbench.errors import ConfigError
from specbench.models.pair import ModelPair
from specbench.models.timing import PassLog
from specbench.models.transfer import uploaded


class Cue(NamedTuple):
    """A step of the rehearsal: how long the sequence was, its last token, and what was drafted behind it."""

    num_tokens: int
    last_token: int
    proposal: Proposal


class SyntheticDrafter:
    """Each draft token is accepted with probability `acceptance`, given that all before it were; a drafted EOS ends the
    draft. Without a rehearsal the target's passes that the plan takes are made while the clock runs."""

    def __init__(self, target: ScoringModel, model: ScoringModel, acceptance: float, sampling: Sampling) -> None:
        self.model = model
        self.sampling = sampling
        self.passes: PassLog | None = model.passes
        self._script: list[Cue] | None = None  # of the generation that comes next
        self._written: list[Cue] | None = None  # while it is rehearsed
        self._cues: Iterator[Cue] | None = None  # that are left, while it is measured
        self._plan = Plan(target, acceptance, sampling)

    def rehearse(self, decode: Callable[[], object]) -> None:
        """Let `decode` generate once, and remember what is drafted in each step for the next generation, the measured
        one: with the same prompt and seed it meets the same tokens."""
        self._script, self._written = None, []
        try:
            decode()
            self._script = self._written
        finally:
            self._written = None

    def prefill(self, prompt_ids: list[int]) -> None:
        self._cues, self._script = None if self._script is None else iter(self._script), None
        self._num_prompt_tokens = len(prompt_ids)
        self._plan.start()
        self.model.reset()
        self.model.score(prompt_ids, 1)

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        if self._cues is not None:
            proposal = self._replayed(self._cues, ids)
        else:
            proposal = self._plan.behind(ids, num_draft_tokens, generator)
            if self._written is not None:
                self._written.append(Cue(len(ids), ids[-1], proposal))
        self._draft(ids, proposal.token_ids, generator)
        return proposal

    def _replayed(self, cues: Iterator[Cue], ids: list[int]) -> Proposal:
        """What was rehearsed. As every step before it drafted the same, length and last token say that all tokens are
        the same. Raises ConfigError where they are not: a plan made now would be measured as the method's own work."""
        cue = next(cues, None)
        if cue is None or (cue.num_tokens, cue.last_token) != (len(ids), ids[-1]):
            raise ConfigError(
                f"drafter 'synthetic': what is measured left its rehearsal behind {len(ids) - self._num_prompt_tokens} "
                "new tokens, most likely because the same passes were rounded in two ways, so that its draft is not "
                "known: give the same command again to go on, or --dtype float32 to a new run"
            )
        return cue.proposal

    def _draft(self, ids: list[int], token_ids: list[int], generator: torch.Generator) -> None:
        """The passes and draws of a drafter that has to find these tokens behind `ids`; nobody waits for its draws."""
        model, mark = deferring(self.model), self.model.passes.clock.mark
        tail = uploaded(torch.tensor(token_ids, dtype=torch.long), generator.device)
        for number in range(len(token_ids)):
            if model is None:
                logits = self.model.score([*ids, *token_ids[:number]], 1)
            else:
                logits = model.score(ids, 1, tail[:number] if number else None)
            start = mark()
            Distributions(logits, self.sampling).draw_all(generator)
            self.model.passes.add_choice(start, mark())
        if model is not None:
            model.settle(token_ids)


ACCEPTANCE = "α: the probability that a draft token is accepted, given that all before it were."


@drafter("synthetic", provides=frozenset({"probs"}), needs_model=True, prescribes="rejection")
def synthetic_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    acceptance: Annotated[float, Field(ge=0, le=1, description=ACCEPTANCE)] = 0.8,
) -> SyntheticDrafter:
    """Agrees with the target with a prescribed probability per draft token; the draft model makes its passes, and what
    it would draft is thrown away. It knows the target's tokens beforehand, from a rehearsal that is not measured: a
    test of the harness and of an engine, no drafter to compare with others."""
    assert models.drafter is not None
    return SyntheticDrafter(models.target, models.drafter, acceptance, sampling)
