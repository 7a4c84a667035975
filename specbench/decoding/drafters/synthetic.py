"""The drafter with a prescribed acceptance rate: each draft token is accepted with a given probability, one for all
positions of a draft or one each, from an acceptance profile.

It separates the cost of an engine from the quality of a drafter, and tests the harness: α is known, and thus also τ and
the speed-up. A rehearsal that is not timed plans the draft tokens with the target itself. The measured generation
replays them and makes the same draft model passes as any model drafter, so that the cost ratio is realistic.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.core.values import json_digest
from specbench.decoding.drafters import BeyondContext, Drafter
from specbench.decoding.proposal import PointMass, Proposal
from specbench.decoding.sampling import Distributions, DraftProbs, Sampling, draw, residual
from specbench.models.causal_lm import ModelPair
from specbench.models.devices import upload
from specbench.models.scoring import ScoringModel
from specbench.records.profile import read_profile

COINS = 0x5EED  # separates these draws from the run's, so that the rule draws the same in rehearsal and measurement


class Mixture(DraftProbs):
    """q_i = a_i p_i + (1 − a_i) δ(wrong_i): a mixture of the target's distribution and its least likely token.

    Σ min(p_i, q_i) = a_i (1 − p_i(wrong)) + p_i(wrong). `own_shares` [num_drafted] holds the a_i, `wrong_ids`
    [num_drafted] the least likely tokens, `drafted_probs` [num_drafted] the q_i of the draft tokens.
    """

    def __init__(self, own_shares: torch.Tensor, wrong_ids: torch.Tensor, drafted_probs: torch.Tensor) -> None:
        self._own_shares, self._wrong_ids, self._drafted_probs = own_shares, wrong_ids, drafted_probs

    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._drafted_probs

    def overlap(self, target_probs: torch.Tensor) -> torch.Tensor:
        of_wrong = target_probs.gather(1, self._wrong_ids[:, None])[:, 0]
        return self._own_shares * (1.0 - of_wrong) + of_wrong

    def residual(self, index: torch.Tensor, target_probs: torch.Tensor) -> torch.Tensor:
        own_share = self._own_shares.index_select(0, index)
        draft_probs = own_share * target_probs
        draft_probs = draft_probs.index_add(0, self._wrong_ids.index_select(0, index), 1.0 - own_share)
        return residual(target_probs, draft_probs)


class RehearsedStep(NamedTuple):
    """A step of the rehearsal: the length of the sequence, its last token and the proposal after it."""

    num_tokens: int
    last_token: int
    proposal: Proposal


ACCEPTANCE = (
    "α: the probability that a draft token is accepted, given that all before it were. A profile takes its place."
)
PROFILE = (
    "File of an acceptance profile (`specbench profile`), whose conditional rate at each position takes the place of α."
)
ENTRY = "Id or method of the profile's entry; null: it has only one."
CELL = "Part of the entry, such as language=de; null: its total."


def profile_rates(file: str, entry: str | None, cell: str | None) -> tuple[str, list[float]]:
    """Returns the name of a profile's cell, and its conditional acceptance rate at each position. Behind a position
    whose rate is 0, it is 0. Raises ConfigError for other files, and for draft trees, whose levels are not
    positions."""
    profile = read_profile(Path(file))
    try:
        found = profile.entry(entry)
        rates = found.cell(cell).conditional
        name = f"{found.id} {found.cell(cell).name}"
    except ConfigError as error:
        raise ConfigError(f"drafter 'synthetic': {file}: {error}") from error
    if found.shape == "tree":
        raise ConfigError(
            f"drafter 'synthetic': {file}: entry {found.id} is of draft trees, whose levels are not positions of a "
            "chain: give the profile of a chain"
        )
    if not rates:
        raise ConfigError(f"drafter 'synthetic': {file}: {name} has no verified position: give another cell")
    return name, rates


@DRAFTERS.register("synthetic")
class SyntheticDrafter(Drafter):
    """Drafts tokens that are accepted with a prescribed probability each; the draft model makes its passes, but its own
    draft tokens are discarded. It knows the target's tokens in advance from a rehearsal that is not measured: a test of
    the harness and of an engine, not a drafter to compare with others."""

    # A drafted EOS ends the draft. Without a rehearsal, the plan's target passes are included in the measured time.

    model: ScoringModel
    sampling: Sampling

    def __init__(
        self,
        models: ModelPair,
        sampling: Sampling,
        *,
        acceptance: Annotated[float, Field(ge=0, le=1, description=ACCEPTANCE)] = 0.8,
        profile: Annotated[str | None, Field(min_length=1, description=PROFILE)] = None,
        entry: Annotated[str | None, Field(min_length=1, description=ENTRY)] = None,
        cell: Annotated[str | None, Field(min_length=1, description=CELL)] = None,
        beyond_context: BeyondContext = None,
    ) -> None:
        del beyond_context  # `build_decoder` sets pauses_at
        super().__init__(models.drafter, sampling)
        self.target: ScoringModel = models.target
        self._rates: Sequence[float] | None = None  # by position
        self.acceptance = acceptance
        if profile is not None:
            self.name, self._rates = profile_rates(profile, entry, cell)
            self.longest = len(self._rates)
            # The file may be anywhere: the rates are what identifies it.
            self.inner_identity = f"profile {self.name}", json_digest(self._rates)
        elif entry is not None or cell is not None:
            raise ConfigError("drafter.entry and drafter.cell: choose a part of drafter.profile: give it, too")
        self._plan: list[RehearsedStep] = []  # the steps of this generation so far
        self._is_rehearsed = False  # whether the next generation has the steps of the plan
        self._cues: Iterator[RehearsedStep] | None = None  # the steps left, if this generation was rehearsed
        self._coins: torch.Generator | None = None
        self._foreseen: list[int] = []

    def rehearse(self, decode: Callable[[], object]) -> None:
        """Calls `decode` once and stores the proposal of each step for the next generation, which is measured.

        The measured generation has the same prompt and seed, and therefore the same tokens.
        """
        self._is_rehearsed = False
        decode()
        self._is_rehearsed = True

    def reserve(self, num_draft_tokens: int) -> tuple[int, float]:
        return self.model.reserve_draft(num_draft_tokens, self.sampling)

    def prefill(self, prompt_ids: list[int]) -> None:
        self._cues = iter(self._plan) if self._is_rehearsed else None
        self._plan, self._is_rehearsed = [], False
        self._num_prompt_tokens = len(prompt_ids)
        self._coins, self._foreseen = None, []
        super().prefill(prompt_ids)

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        if self._cues is not None:
            proposal = self._replay(self._cues, ids)
        else:
            if self._coins is None:
                seed = generator.initial_seed() ^ COINS
                self._coins = torch.Generator(device=generator.device).manual_seed(seed)
            plan = self._plan_greedy if self.sampling.greedy else self._plan_drawn
            proposal = plan(ids, num_draft_tokens, self._coins) if num_draft_tokens > 0 else Proposal()
            self._plan.append(RehearsedStep(len(ids), ids[-1], proposal))
        self._draft(ids, proposal.token_ids, generator)
        return proposal

    def _plan_greedy(self, ids: list[int], num_tokens: int, coins: torch.Generator) -> Proposal:
        """Returns the target's own tokens, each replaced by a wrong one with probability 1 − its rate.

        The passes are as long as the pass that will verify the draft, so that both round in the same way. Each pass
        determines at least one more token.
        """
        known = self._foreseen[len(ids) :] if self._foreseen[: len(ids)] == ids else []
        best: list[int] = [*known, *([ids[-1]] * num_tokens)][:num_tokens]
        guess: list[int] = []
        while best != guess:
            guess = best
            logits = self.target.score([*ids, *guess], num_tokens + 1).logits[:num_tokens]
            best = logits.argmax(dim=-1).tolist()
        self._foreseen = [*ids, *best]
        uniform = torch.rand(num_tokens, generator=coins, device=coins.device).tolist()
        token_ids: list[int] = []
        for own, other, number in zip(best, self._least_likely(logits).tolist(), uniform, strict=True):
            token_ids.append(own if number < self._rate(len(token_ids)) else other)
            if token_ids[-1] in self.target.eos_token_ids:
                break
        return Proposal(token_ids, PointMass(token_ids))

    def _plan_drawn(self, ids: list[int], num_tokens: int, coins: torch.Generator) -> Proposal:
        """Draws tokens from mixtures whose overlap with the target's distribution is the prescribed rate."""
        token_ids: list[int] = []
        parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        for _ in range(num_tokens):
            logits = self.target.score([*ids, *token_ids], 1).logits
            target_probs = Distributions(logits, self.sampling).probs[0]
            wrong = self._least_likely(logits)[0]
            of_wrong = target_probs[wrong]
            own_share = ((self._rate(len(token_ids)) - of_wrong) / (1.0 - of_wrong)).clamp(0.0, 1.0)
            draft_probs = own_share * target_probs
            draft_probs[wrong] += 1.0 - own_share
            token_ids.append(draw(draft_probs, coins))
            parts.append((own_share, wrong, draft_probs[token_ids[-1]]))
            if token_ids[-1] in self.target.eos_token_ids:
                break
        own_shares, wrong_ids, drafted_probs = (torch.stack(column) for column in zip(*parts, strict=True))
        return Proposal(token_ids, Mixture(own_shares, wrong_ids, drafted_probs))

    def _rate(self, position: int) -> float:
        """Returns the prescribed acceptance rate at a position, from 0 on."""
        return self.acceptance if self._rates is None else self._rates[position]

    def _least_likely(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the least likely token of each row, end tokens excluded: [num_rows]."""
        ends = [token for token in self.target.eos_token_ids if token < logits.shape[-1]]
        without_ends = logits.clone()
        without_ends[:, ends] = float("inf")
        return without_ends.argmin(dim=-1)

    def _replay(self, cues: Iterator[RehearsedStep], ids: list[int]) -> Proposal:
        """Returns the proposal of the rehearsed step.

        Every step before it had the same proposal, so that an equal length and last token imply equal sequences. Raises
        ConfigError if they differ: the time of a plan made now would be counted as the method's own.
        """
        cue = next(cues, None)
        if cue is None or (cue.num_tokens, cue.last_token) != (len(ids), ids[-1]):
            raise ConfigError(
                "drafter 'synthetic': the measured generation differs from its rehearsal after "
                f"{len(ids) - self._num_prompt_tokens} new tokens, most likely because the same passes were rounded in "
                "two ways, so the prescribed draft is invalid: repeat the command to continue, or start a new run with "
                "--dtype float32"
            )
        return cue.proposal

    def _draft(self, ids: list[int], token_ids: list[int], generator: torch.Generator) -> None:
        """Makes the passes and draws of a model drafter for these tokens after `ids`; the draws are discarded."""
        mark = self.model.passes.clock.mark
        tokens = upload(torch.tensor(token_ids, dtype=torch.long), generator.device)
        if token_ids and self.model.draft(ids, len(token_ids), self.sampling, generator, tokens) is not None:
            self.model.resolve_pending(token_ids)
            return
        for number in range(len(token_ids)):
            if self.model.prefers_pending:
                output = self.model.score(ids, 1, tokens[:number] if number else None)
            else:
                output = self.model.score([*ids, *token_ids[:number]], 1)
            start = mark()
            Distributions(output.logits, self.sampling).draw_all(generator)
            self.model.passes.add_choice(start, mark())
        if self.model.prefers_pending:
            self.model.resolve_pending(token_ids)
