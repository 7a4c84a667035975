"""What a drafter of prescribed acceptance drafts: planned with the target itself."""

import torch

from specbench.decoding.drafters.model import ScoringModel
from specbench.decoding.proposal import PointMass, Proposal
from specbench.decoding.sampling import Distributions, Sampling, draw, residual

COINS = 0x5EED  # apart from the run's own stream: the rule draws the same in the rehearsal and when it is measured


class Mixture:
    """q_i = a_i p_i + (1 − a_i) δ(wrong_i): the target's own distribution, and one token that it finds least likely.

    Σ min(p_i, q_i) = a_i (1 − p_i(wrong)) + p_i(wrong). `own_shares` [num_drafted] holds the a_i, `wrong_ids`
    [num_drafted] the tokens, `drafted_probs` [num_drafted] q_i of what was drafted.
    """

    def __init__(self, own_shares: torch.Tensor, wrong_ids: torch.Tensor, drafted_probs: torch.Tensor) -> None:
        self._own_shares, self._wrong_ids, self._drafted_probs = own_shares, wrong_ids, drafted_probs

    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._drafted_probs

    def overlap(self, target_probs: torch.Tensor) -> torch.Tensor:
        of_wrong = target_probs.gather(1, self._wrong_ids[:, None])[:, 0]
        return self._own_shares * (1.0 - of_wrong) + of_wrong

    def rest(self, index: torch.Tensor, target_probs: torch.Tensor) -> torch.Tensor:
        own_share = self._own_shares.index_select(0, index)
        draft_probs = own_share * target_probs
        draft_probs = draft_probs.index_add(0, self._wrong_ids.index_select(0, index), 1.0 - own_share)
        return residual(target_probs, draft_probs)


class Plan:
    """Draft tokens that are accepted with probability `acceptance` each, given that all before them were; a drafted EOS
    ends the draft."""

    def __init__(self, target: ScoringModel, acceptance: float, sampling: Sampling) -> None:
        self.target = target
        self.acceptance = acceptance
        self.sampling = sampling
        self.start()

    def start(self) -> None:
        """Forget the last generation."""
        self._coins: torch.Generator | None = None
        self._foreseen: list[int] = []

    def behind(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        """At most `num_draft_tokens` tokens behind `ids`; the target makes as many passes or more."""
        if self._coins is None:
            seed = generator.initial_seed() ^ COINS
            self._coins = torch.Generator(device=generator.device).manual_seed(seed)
        if num_draft_tokens < 1:
            return Proposal()
        plan = self._greedy if self.sampling.greedy else self._drawn
        return plan(ids, num_draft_tokens, self._coins)

    def _greedy(self, ids: list[int], num_draft_tokens: int, coins: torch.Generator) -> Proposal:
        """The target's own tokens, each replaced by a wrong one with probability 1 − acceptance."""
        logits = self._ahead(ids, num_draft_tokens)
        uniform = torch.rand(num_draft_tokens, generator=coins, device=coins.device).tolist()
        wrong = self._least_likely(logits).tolist()
        token_ids: list[int] = []
        for own, other, number in zip(logits.argmax(dim=-1).tolist(), wrong, uniform, strict=True):
            token_ids.append(own if number < self.acceptance else other)
            if token_ids[-1] in self.target.eos_token_ids:
                break
        return Proposal(token_ids, PointMass(token_ids))

    def _ahead(self, ids: list[int], num_tokens: int) -> torch.Tensor:
        """The target's logits along its own greedy continuation of `ids`: [num_tokens, vocab], from passes as long as
        the one that will verify it, so that both round alike. Each pass settles one more token at least."""
        known = self._foreseen[len(ids) :] if self._foreseen[: len(ids)] == ids else []
        guess = [*known, *([ids[-1]] * num_tokens)][:num_tokens]
        while True:
            logits = self.target.score([*ids, *guess], num_tokens + 1)[:num_tokens]
            best: list[int] = logits.argmax(dim=-1).tolist()
            if best == guess:
                self._foreseen = [*ids, *best]
                return logits
            guess = best

    def _drawn(self, ids: list[int], num_draft_tokens: int, coins: torch.Generator) -> Proposal:
        """Tokens drawn from mixtures whose overlap with the target is the acceptance."""
        token_ids: list[int] = []
        parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        for _ in range(num_draft_tokens):
            logits = self.target.score([*ids, *token_ids], 1)
            target_probs = Distributions(logits, self.sampling).probs[0]
            wrong = self._least_likely(logits)[0]
            of_wrong = target_probs[wrong]
            own_share = ((self.acceptance - of_wrong) / (1.0 - of_wrong)).clamp(0.0, 1.0)
            draft_probs = own_share * target_probs
            draft_probs[wrong] += 1.0 - own_share
            token_ids.append(draw(draft_probs, coins))
            parts.append((own_share, wrong, draft_probs[token_ids[-1]]))
            if token_ids[-1] in self.target.eos_token_ids:
                break
        own_shares, wrong_ids, drafted_probs = (torch.stack(column) for column in zip(*parts, strict=True))
        return Proposal(token_ids, Mixture(own_shares, wrong_ids, drafted_probs))

    def _least_likely(self, logits: torch.Tensor) -> torch.Tensor:
        """The token of each row that the target would choose last, and that ends no text: [num_rows]."""
        ends = [token for token in self.target.eos_token_ids if token < logits.shape[-1]]
        kept = logits.clone()
        kept[:, ends] = float("inf")
        return kept.argmin(dim=-1)
