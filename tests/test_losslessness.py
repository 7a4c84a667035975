"""Losslessness against exact joint distributions of toy models, with controls that must fail.

Each test draws 2,000 sequences and compares their first three tokens (a fourth lets two tokens be drafted)
with the exact distribution by chi-square at p > 1e-3; with that many every control fails at p < 1e-6.
With the seeds fixed here the outcome is deterministic; over fresh seeds a correct method would fail one test in 1,000.
"""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from scipy import stats

from specbench.decoding.drafters.model import ModelDrafter
from specbench.decoding.drafters.none import NoDrafter
from specbench.decoding.ledger import StopRules
from specbench.decoding.loop import decode
from specbench.decoding.lossy import fuzzy_rule
from specbench.decoding.proposal import Proposal, Verdict
from specbench.decoding.sampling import Distributions, Sampling, draw, residual
from specbench.decoding.verification import Rule, leading, rejection
from tests.toys import TableModel, joint

NUM_DRAWS = 2_000
PROMPT = [0, 1]
PLAIN = Sampling(temperature=1.0)


def chi_square_p(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """The p-value of the counts under the expected distribution, cells below five expected draws merged."""
    num_draws = counts.total()
    observed_cells, expected_cells, rest_observed, rest_expected = [], [], 0, 0.0
    for tokens, mass in expected.items():
        if mass * num_draws < 5:
            rest_observed += counts[tokens]
            rest_expected += mass * num_draws
        else:
            observed_cells.append(counts[tokens])
            expected_cells.append(mass * num_draws)
    if rest_expected:
        observed_cells.append(rest_observed)
        expected_cells.append(rest_expected)
    scale = num_draws / sum(expected_cells)
    return float(stats.chisquare(observed_cells, [cell * scale for cell in expected_cells]).pvalue)


def draws(
    target: TableModel, make: Callable[[], tuple[object, Rule]], gamma: int, seed: int
) -> Counter[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    drafter, rule = make()
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(NUM_DRAWS):
        generation = decode(
            target, drafter, rule, PROMPT, num_draft_tokens=gamma, sampling=PLAIN,
            stop=StopRules(max_new_tokens=4), generator=generator,
        )  # fmt: skip
        counts[tuple(generation.token_ids[:3])] += 1
    return counts


def pair(seed: int) -> tuple[TableModel, TableModel]:
    return TableModel(4, seed), TableModel(4, seed + 1000)


@pytest.mark.parametrize("seed", [1, 2])
def test_autoregressive_decoding_follows_the_target(seed: int) -> None:
    target, _ = pair(seed)
    assert chi_square_p(draws(target, lambda: (NoDrafter(), rejection), 0, seed), joint(target, PROMPT, 3)) > 1e-3


@pytest.mark.parametrize(("seed", "gamma"), [(1, 1), (1, 2), (2, 2), (3, 1)])
def test_speculative_decoding_follows_the_target(seed: int, gamma: int) -> None:
    """With one draft token the third token can be a bonus token, with two it can be the second draft."""
    target, draft = pair(seed)
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), rejection), gamma, seed)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3


def test_greedy_drafts_are_lossless_too() -> None:
    target, draft = pair(4)
    counts = draws(target, lambda: (ModelDrafter(draft, Sampling(0.0)), rejection), 2, 4)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3


def swapped(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verdict:
    """The rejection rule with p and q exchanged."""
    if proposal.num_drafted == 0:
        return Verdict(0, target.draw(0, generator))
    assert proposal.probs is not None
    token_ids = torch.tensor(proposal.token_ids)
    target_prob = target.probs[:-1].gather(1, token_ids[:, None])[:, 0]
    accepts = torch.rand(len(token_ids), generator=generator) * target_prob < proposal.probs.token_probs(token_ids)
    count = leading(accepts.tolist())
    if count == len(token_ids):
        return Verdict(count, target.draw(count, generator))
    draft = proposal.probs.probs[count]
    return Verdict(count, draw(residual(draft, target.probs[count]), generator))


@pytest.mark.parametrize("seed", [1, 2])
def test_control_swapped_distributions_are_caught(seed: int) -> None:
    target, draft = pair(seed)
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), swapped), 2, seed)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6


def wrong_bonus(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verdict:
    """The rejection rule, but the bonus token comes from the row before."""
    verdict = rejection(proposal, target, generator)
    if proposal.num_drafted and verdict.num_accepted == proposal.num_drafted:
        return Verdict(verdict.num_accepted, target.draw(proposal.num_drafted - 1, generator))
    return verdict


def test_control_wrong_bonus_token_is_caught() -> None:
    target, draft = pair(1)
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), wrong_bonus), 1, 1)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6


def test_control_fuzzy_rule_is_caught() -> None:
    target, draft = pair(1)
    rule = fuzzy_rule(divergence="js", threshold=0.5)
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), rule), 2, 1)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6


def test_fuzzy_at_zero_follows_the_target() -> None:
    target, draft = pair(2)
    rule = fuzzy_rule(divergence="js", threshold=0.0)
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), rule), 2, 2)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3


def test_fuzzy_at_infinity_accepts_every_draft() -> None:
    """First token from the target, then a draft of one and the bonus token: target, drafter, target."""
    target, draft = pair(3)
    rule = fuzzy_rule(divergence="kl", threshold=float("inf"))
    counts = draws(target, lambda: (ModelDrafter(draft, PLAIN), rule), 1, 3)
    expected = {}
    for first, second, third in joint(target, PROMPT, 3):
        ids = [*PROMPT, first, second]
        mass = target.probs(PROMPT)[first] * draft.probs(ids[:3])[second] * target.probs(ids)[third]
        expected[first, second, third] = float(mass)
    assert chi_square_p(counts, expected) > 1e-3
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6
