"""Losslessness against exact joint distributions of toy models, with controls that must fail.

Each test draws 150 sequences from a vocabulary of three tokens, or 300 where drafts are read late, and compares their
first three tokens (a fourth lets two tokens be drafted) with the exact distribution by chi-square at p > 1e-3; with so
many every control fails at p < 1e-6, often at far less. Tests and controls share their tables, in which defects show.
With the seeds fixed here the outcome is deterministic; over fresh seeds a correct method would fail one test in 1,000.
"""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from specbench.decoding import drafters as model_drafter
from specbench.decoding.bridges import CommonIdsModel
from specbench.decoding.drafters import ModelDrafter, NoDrafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.proposal import OnDeviceProposal, Proposal, Verification
from specbench.decoding.sampling import Distributions, Sampling, draw, residual
from specbench.decoding.tree_rules import BlockVerification, KSeq, RecursiveRejection, Traversal, Typical
from specbench.decoding.verification import (
    Fuzzy,
    RandomAccept,
    VerificationRule,
    count_leading,
    exact_match,
    rejection,
)
from tests.support.distributions import PLAIN, PROMPT, VOCAB, chi_square_p
from tests.support.toys import TableModel, TextModel, joint

NUM_DRAWS, NUM_LATE_DRAWS = 150, 300
NEVER: frozenset[int] = frozenset()


def draws(
    target: TableModel,
    make: Callable[[], tuple[object, VerificationRule]],
    gamma: int,
    seed: int,
    ends: frozenset[int] = NEVER,
) -> Counter[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    drafter, rule = make()
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(NUM_LATE_DRAWS if target.prefers_pending else NUM_DRAWS):
        generation = decode(
            target, drafter, rule, PROMPT, num_draft_tokens=gamma, sampling=PLAIN,
            stop=StopRules(max_new_tokens=4, eos_token_ids=ends), generator=generator,
        )  # fmt: skip
        counts[tuple(generation.token_ids[:3])] += 1
    return counts


def pair(seed: int = 1) -> tuple[TableModel, TableModel]:
    return TableModel(VOCAB, seed), TableModel(VOCAB, seed + 1000)


def test_autoregressive_decoding_follows_the_target() -> None:
    target, _ = pair()
    assert chi_square_p(draws(target, lambda: (NoDrafter(), rejection), 0, 1), joint(target, PROMPT, 3)) > 1e-3


@pytest.mark.parametrize("gamma", [1, 2])
def test_speculative_decoding_follows_the_target(gamma: int) -> None:
    """With one draft token the third token can be a bonus token, with two it can be the second draft."""
    target, draft = pair()
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), rejection), gamma, 1)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3


def test_greedy_drafts_are_lossless_too() -> None:
    target, draft = pair()
    counts = draws(target, lambda: (ModelDrafter(draft, Sampling(0.0)), rejection), 2, 4)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3


def swapped(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
    """The rejection rule with p and q exchanged."""
    if proposal.num_drafted == 0:
        return Verification(0, target.draw(0, generator))
    assert proposal.probs is not None
    token_ids = torch.tensor(proposal.token_ids)
    target_prob = target.probs[:-1].gather(1, token_ids[:, None])[:, 0]
    accepts = torch.rand(len(token_ids), generator=generator) * target_prob < proposal.probs.token_probs(token_ids)
    count = count_leading(accepts.tolist())
    if count == len(token_ids):
        return Verification(count, target.draw(count, generator))
    draft = proposal.probs.probs[count]
    return Verification(count, draw(residual(draft, target.probs[count]), generator))


def test_control_swapped_distributions_are_caught() -> None:
    target, draft = pair()
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), swapped), 2, 1)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6


def wrong_bonus(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
    """The rejection rule, but the bonus token comes from the row before."""
    verification = rejection(proposal, target, generator)
    if proposal.num_drafted and verification.num_accepted == proposal.num_drafted:
        return Verification(verification.num_accepted, target.draw(proposal.num_drafted - 1, generator))
    return verification


def test_control_wrong_bonus_token_is_caught() -> None:
    target, draft = pair()
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), wrong_bonus), 1, 1)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6


def test_control_fuzzy_rule_is_caught() -> None:
    target, draft = pair()
    rule = Fuzzy(divergence="js", threshold=0.5)
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), rule), 2, 1)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6


def test_fuzzy_at_zero_follows_the_target() -> None:
    target, draft = pair()
    rule = Fuzzy(divergence="js", threshold=0.0)
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), rule), 2, 2)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3


def test_fuzzy_at_infinity_accepts_every_draft() -> None:
    """First token from the target, then a draft of one and the bonus token: target, drafter, target."""
    target, draft = pair(3)
    rule = Fuzzy(divergence="kl", threshold=float("inf"))
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), rule), 1, 3)
    expected = {}
    for first, second, third in joint(target, PROMPT, 3):
        ids = [*PROMPT, first, second]
        mass = target.probs(PROMPT)[first] * draft.probs(ids[:3])[second] * target.probs(ids)[third]
        expected[first, second, third] = float(mass)
    assert chi_square_p(counts, expected) > 1e-3
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6


END = 2
ENDS = frozenset({END})
ACCEPTED = 0.7
LATE_SEED = 3  # of a drafter that drafts END often


def late_pair(seed: int = LATE_SEED) -> tuple[TableModel, TableModel]:
    """Read late, with a token that ends every draft: what is drafted behind it must not stand."""
    target, draft = (
        TableModel(VOCAB, each, spread=2.5, eos_token_ids=ENDS, prefers_pending=True) for each in (seed, seed + 1000)
    )
    return target, draft


def cut(expected: dict[tuple[int, ...], float], ends: frozenset[int]) -> dict[tuple[int, ...], float]:
    """The distribution of texts that stop behind an end."""
    masses: dict[tuple[int, ...], float] = {}
    for tokens, mass in expected.items():
        length = next((place for place, token in enumerate(tokens, start=1) if token in ends), len(tokens))
        masses[tokens[:length]] = masses.get(tokens[:length], 0.0) + mass
    return masses


@pytest.mark.parametrize(
    ("rule", "ends"),
    [
        *(
            pytest.param(rule, NEVER, id=f"{type(rule).__name__}-the draft")
            for rule in (rejection, exact_match, BlockVerification(), Traversal(), RecursiveRejection(), KSeq())
        ),
        pytest.param(rejection, ENDS, id="Rejection-the text"),
    ],
)
def test_a_draft_that_is_read_late_follows_the_target_over_its_end(
    rule: VerificationRule, ends: frozenset[int]
) -> None:
    """The end of the draft alone, behind which the target goes on, or of the text, where rules meet the same loop."""
    target, draft = late_pair()
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), rule), 2, LATE_SEED, ends)
    assert chi_square_p(counts, cut(joint(target, PROMPT, 3), ends)) > 1e-3


def test_typical_acceptance_takes_nothing_behind_the_end_of_a_draft_that_is_read_late() -> None:
    target, draft = late_pair()
    assert sum(draws(target, lambda: (ModelDrafter(draft, PLAIN), Typical(epsilon=0.01)), 2, LATE_SEED, ENDS).values())


def judged_by_length(self: OnDeviceProposal, accepts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    num_accepted, _ = Proposal.accepted_prefix(self, accepts & self.is_proposed)
    return num_accepted, num_accepted == len(accepts)


def test_control_a_residual_behind_a_late_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was proposed stands, but less than was drafted: the next token is a bonus token, not a recovered one."""
    target, draft = late_pair()
    monkeypatch.setattr(OnDeviceProposal, "accepted_prefix", judged_by_length)
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), rejection), 2, LATE_SEED)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6


def test_control_tokens_that_stand_behind_a_late_end_break_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = late_pair()
    monkeypatch.setattr(OnDeviceProposal, "accepted_prefix", Proposal.accepted_prefix)
    with pytest.raises(AssertionError):
        draws(target, lambda: (ModelDrafter(draft, PLAIN), rejection), 2, LATE_SEED)


def randomly_accepted(target: TableModel, draft: TableModel, gamma: int, length: int) -> dict[tuple[int, ...], float]:
    """The exact distribution of the first `length` of `length` + 1 tokens where every draft token stands with
    probability ACCEPTED, and END ends a draft."""
    masses: dict[tuple[int, ...], float] = {}

    def walk(tokens: tuple[int, ...], num_left: int, mass: float) -> None:
        if len(tokens) == length:
            masses[tokens] = masses.get(tokens, 0.0) + mass
            return
        ids = [*PROMPT, *tokens]
        chance = ACCEPTED if num_left else 0.0
        for token, (own, drafted) in enumerate(zip(target.probs(ids), draft.probs(ids), strict=True)):
            next_step = min(gamma, length - len(tokens) - 1)
            walk((*tokens, token), next_step, mass * (1 - chance) * float(own))
            if num_left:
                walk((*tokens, token), 0 if token == END else num_left - 1, mass * chance * float(drafted))

    walk((), 0, 1.0)
    return masses


def test_random_acceptance_of_a_draft_that_is_read_late_stops_at_its_end() -> None:
    target, draft = late_pair()
    expected = randomly_accepted(target, draft, 2, 3)
    assert sum(expected.values()) == pytest.approx(1.0, abs=1e-5)
    rule = RandomAccept(probability=ACCEPTED)
    assert chi_square_p(draws(target, lambda: (ModelDrafter(draft, PLAIN), rule), 2, LATE_SEED), expected) > 1e-3


def test_control_a_draft_that_goes_on_behind_its_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_drafter, "up_to_end", torch.ones_like)
    target, draft = late_pair()
    rule = RandomAccept(probability=ACCEPTED)
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), rule), 2, LATE_SEED)
    assert chi_square_p(counts, randomly_accepted(target, draft, 2, 3)) < 1e-6


def few_differ(seed: int, late: bool = False) -> tuple[TextModel, CommonIdsModel]:
    """A target of three tokens, and a drafter of four that has other tokens from id 2 on, as the target reads it.
    `late`: draft tokens are read with the step's outcome, as on a GPU."""
    target, draft = TextModel(("a", "b", "c"), seed), TextModel(("a", "b", "d", "e"), seed + 1000)
    for model in (target, draft):
        model.prefers_pending = late
        model.vocabulary = {str(text): index for index, text in enumerate(model.text_vocabulary.token_bytes)}
    draft.tokenizer = SimpleNamespace(unk_token_id=1)
    return target, CommonIdsModel(draft, target, frozenset({0, 1}))  # type: ignore[arg-type]


class LateMask(ModelDrafter):
    """Draws the common tokens only, and says that it drew from the distribution before the mask."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        made = super().propose(ids, num_draft_tokens, generator)
        if made.num_drafted:
            made.probs = Distributions(made.probs.logits.nan_to_num(neginf=1.0), self.sampling)  # type: ignore[union-attr]
        return made


@pytest.mark.parametrize("late", [False, True])
def test_a_drafter_that_lacks_a_token_follows_the_target(late: bool) -> None:
    target, draft = few_differ(1, late)
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), rejection), 2, 1)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3


def test_control_a_mask_behind_the_draw_is_caught() -> None:
    target, draft = few_differ(1)
    counts = draws(target, lambda: (LateMask(draft, PLAIN), rejection), 2, 1)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6


def test_a_drafter_that_pauses_follows_the_target() -> None:
    """It drafts the first two tokens only."""
    target, draft = pair()

    def pausing() -> tuple[object, VerificationRule]:
        drafter = ModelDrafter(draft, PLAIN)
        drafter.pauses_at = len(PROMPT) + 2
        return drafter, rejection

    assert chi_square_p(draws(target, pausing, 2, 1), joint(target, PROMPT, 3)) > 1e-3
