"""The bridges between toy vocabularies follow the target's exact joint distribution; altered ones do not.

As in test_losslessness.py: chi-square of the first three tokens of 200 sequences at p > 1e-3, seeds fixed. A control
is a test with an altered method: with the same tables, in which a defect shows most, and the same number of sequences
it fails at p < 1e-6.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specbench.decoding.bridges import token_level
from specbench.decoding.bridges.token_level import TokenBridge, TranslatedProbs
from specbench.decoding.build import bridged_drafter
from specbench.decoding.draft_length import Confidence, EntropyBound, RootEntropy
from specbench.decoding.drafters import Drafter
from specbench.decoding.loop import GenerationOutput, StopRules, decode
from specbench.decoding.proposal import OUT_OF_VOCABULARY, OnDeviceProposal, Proposal
from specbench.decoding.sampling import DenseProbs, Sampling
from specbench.decoding.verification import exact_match, rejection
from specbench.models.causal_lm import ModelPair
from specbench.specs.catalogue import load_method, with_overrides
from tests.support.distributions import PLAIN, PROMPT, chi_square_p, draws
from tests.support.string_bridges import joint as shaped_joint
from tests.support.toys import TextModel, joint

NUM_DRAWS, NUM_SHAPED_DRAWS = 200, 250
PAIRS: dict[str, tuple[Sequence[str | None], Sequence[str | None]]] = {
    "each side has its own": (("a", "b", "ab", "d"), ("b", "c", "a", "ba")),
    "prefixes of one another": (("a", "b", "ab", "abb"), ("a", "b", "bb", "abb", "abba")),
    "the drafter ends texts": (("a", "b", "ba"), ("b", None, "a", "aa")),
    "one is a part of the other": (("a", "b", "c", "ab", "bc"), ("a", "c")),
    "an ordinary token ends the drafter's texts": (("a", "b", "c", "d"), ("b", "c", "a", "d")),
}
CONTROLLED = "each side has its own"  # the pair of most controls
TABLES = {"tli": (6, 2.5), "union": (2, 1.5), "slem": (6, 2.5)}  # seed and spread of its tables, by method
LATER = ("prefixes of one another", "one is a part of the other")  # run with the slow tests


def later(name: str, *values: Any) -> Any:
    """A case of a test, slow for the pairs of LATER."""
    return pytest.param(*values, name, marks=[pytest.mark.slow] * (name in LATER))


RULES = {"tli": rejection, "union": rejection, "slem": exact_match}


SHAPED = Sampling(temperature=0.7, top_k=3, top_p=0.9)
HOT = 6.0  # temperature of drafts that are shaped unlike the target


def drafter_of(
    method: str, target: TextModel, draft: TextModel, sampling: Sampling, draft_temperature: float | None = None
) -> Drafter:
    overrides = [] if draft_temperature is None else [f"drafter.temperature={draft_temperature}"]
    _, (spec,) = with_overrides([], [load_method(method)], overrides)
    return bridged_drafter(spec, ModelPair(target, draft), sampling)  # type: ignore[arg-type]


def models(name: str, seed: int, spread: float = 1.5) -> tuple[TextModel, TextModel]:
    ours, theirs = PAIRS[name]
    target, draft = TextModel(ours, seed, spread=spread), TextModel(theirs, seed + 1000, spread=spread)
    if "ordinary" in name:
        draft.eos_token_ids = frozenset({0})
    return target, draft


def p_value(method: str, name: str, rule: Any = None) -> float:
    """Returns the p-value of a method, also with another rule than its own, on a pair of vocabularies.

    Every pair meets the methods whose rule sees the drafter's probabilities, and these meet every draft length; exact
    match, the rule of slem, sees none."""
    seed = 1 + (list(PAIRS).index(name) + list(RULES).index(method)) % 3
    target, draft = models(name, *(TABLES[method] if name == CONTROLLED else (seed,)))
    drafter = drafter_of(method, target, draft, PLAIN)
    num_draws = 2 * NUM_DRAWS if (method, name) == ("union", CONTROLLED) else NUM_DRAWS  # as a control needs
    counts = draws(target, drafter, rule or RULES[method], seed % 3 + 1, seed, num_draws=num_draws)
    return chi_square_p(counts, joint(target, PROMPT, 3))


@pytest.mark.parametrize(
    ("method", "name"),
    [
        *(later(name, method) for method, name in itertools.product(("tli", "union"), PAIRS)),
        ("slem", CONTROLLED),
        ("slem", "the drafter ends texts"),
    ],
)
def test_a_bridge_follows_the_target(method: str, name: str) -> None:
    assert p_value(method, name) > 1e-3


@pytest.mark.parametrize("method", ["tli", "union", "slem"])
def test_a_bridged_draft_of_a_varying_length_follows_the_target(method: str) -> None:
    """Its length is decided in the drafter's own tokens, also where the drafter draws the end of a text."""
    lengths = (Confidence(threshold=0.5), EntropyBound(threshold=0.5, update="none"), RootEntropy(threshold=0.4))
    for name, length in itertools.product((CONTROLLED, "the drafter ends texts"), lengths):
        target, draft = models(name, *(TABLES[method] if name == CONTROLLED else (2,)))
        drafter = drafter_of(method, target, draft, PLAIN)
        length.is_asked = True
        drafter.use_length(length)
        counts = draws(target, drafter, RULES[method], 2, 1, num_draws=NUM_DRAWS)
        assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3


def read_late(name: str, seed: int) -> tuple[TextModel, TextModel]:
    made = models(name, seed)
    for model in made:
        model.prefers_pending = True
    return made


@pytest.mark.parametrize("name", list(map(later, PAIRS)))
def test_a_draft_that_is_carried_over_unread_follows_the_target(name: str) -> None:
    target, draft = read_late(name, 2)
    drafter = drafter_of("tli", target, draft, PLAIN)
    drafter.prefill(PROMPT)
    assert isinstance(drafter.propose(PROMPT, 2, torch.Generator()), OnDeviceProposal)
    counts = draws(target, drafter, rejection, 2, 1, num_draws=NUM_DRAWS)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3


@pytest.mark.parametrize("name", PAIRS)
def test_a_greedy_draft_that_is_carried_over_unread_is_the_one_that_is_read(name: str) -> None:
    greedy = Sampling(0.0)
    for seed in range(2):
        late, early = (
            decode(target, drafter_of("tli", target, draft, greedy), rejection, PROMPT, num_draft_tokens=3,
                   sampling=greedy, stop=StopRules(40), generator=torch.Generator())
            for target, draft in (read_late(name, seed), models(name, seed))
        )  # fmt: skip
        assert (late.token_ids, late.steps, late.positions) == (early.token_ids, early.steps, early.positions)


def test_control_an_end_that_is_verified_unread_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a foreign token, though the draft is verified given that no text ends."""
    carried = TokenBridge.propose

    def verified(self: TokenBridge, *given: Any) -> Proposal:
        found = carried(self, *given)
        if isinstance(found, OnDeviceProposal) and found._source is not None:
            found.is_proposed = found._source.is_proposed
        return found

    target, draft = read_late("the drafter ends texts", 2)
    monkeypatch.setattr(TokenBridge, "propose", verified)
    counts = draws(target, drafter_of("tli", target, draft, PLAIN), rejection, 2, 1, num_draws=NUM_DRAWS)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6


def shaped_p_value(method: str, name: str, draft_temperature: float | None) -> float:
    target, draft = models(name, 3, spread=2.5)
    drafter = drafter_of(method, target, draft, SHAPED, draft_temperature)
    expected = {tokens: mass for tokens, mass in shaped_joint(target, 3, SHAPED).items() if mass > 0}
    assert len(expected) < target.vocab_size**3
    counts = draws(target, drafter, RULES[method], 2, 2, SHAPED, NUM_SHAPED_DRAWS)
    assert set(counts) <= set(expected)
    return chi_square_p(counts, expected)


@pytest.mark.parametrize(
    ("method", "name", "draft_temperature"),
    [
        ("tli", CONTROLLED, HOT),
        pytest.param("tli", "prefixes of one another", 0.0, marks=pytest.mark.slow),
        pytest.param("union", CONTROLLED, None, marks=pytest.mark.slow),
        ("union", CONTROLLED, HOT),
        ("slem", "prefixes of one another", None),
    ],
)
def test_a_bridge_follows_the_shaped_target(method: str, name: str, draft_temperature: float | None) -> None:
    """Truncated, at a temperature below 1, with drafts shaped as the target is, greedy, or hotter."""
    assert shaped_p_value(method, name, draft_temperature) > 1e-3


def test_control_drafts_judged_at_another_temperature_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn from the processed rows and verified by the raw ones."""
    monkeypatch.setattr(TranslatedProbs, "probs", TranslatedProbs.raw_probs)
    assert shaped_p_value("union", CONTROLLED, HOT) < 1e-6


def test_control_intersection_without_renormalisation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled within the intersection, verified with the probabilities over the whole draft vocabulary."""
    monkeypatch.setattr(TranslatedProbs, "_to_target", lambda self, rows: 0.5 * original(self, rows))
    assert p_value("tli", CONTROLLED) < 1e-6


original = TranslatedProbs._to_target


def test_control_union_with_renormalised_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def renormalised(self: TranslatedProbs, rows: torch.Tensor) -> torch.Tensor:
        carried = original(self, rows)
        return carried / carried.sum(dim=-1, keepdim=True)

    monkeypatch.setattr(TranslatedProbs, "_to_target", renormalised)
    assert p_value("union", CONTROLLED) < 1e-6


def test_control_a_foreign_token_that_is_not_judged_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out of the draft, so that the target draws from p and not from the residual."""
    carried = TokenBridge.propose

    def known(self: TokenBridge, *given: Any) -> Proposal:
        found = carried(self, *given)
        if found.token_ids[-1:] != [OUT_OF_VOCABULARY]:
            return found
        assert isinstance(found.probs, TranslatedProbs)
        kept = found.token_ids[:-1]
        return Proposal(kept, TranslatedProbs(found.probs._draft, len(kept), found.probs._common), ended=True)

    monkeypatch.setattr(TokenBridge, "propose", known)
    assert p_value("union", CONTROLLED) < 1e-6


def test_control_exact_match_that_accepts_what_it_likes_is_caught() -> None:
    def lenient(proposal: Proposal, target: Any, generator: torch.Generator) -> Any:
        verification = exact_match(proposal, target, generator)
        if proposal.num_drafted and verification.num_accepted == 0:
            likely = float(target.probs[0, proposal.token_ids[0]]) > 0.3
            return type(verification)(1, target.draw(1, generator)) if likely else verification
        return verification

    assert p_value("slem", CONTROLLED, lenient) < 1e-6


@pytest.mark.parametrize("seed", range(20))
def test_tli_accepts_at_least_as_much_as_union(seed: int) -> None:
    """Theorem 4.1 of arXiv:2502.05202 on random tables: Σ min(p, q over the intersection) ≥ Σ min(p, q)."""
    target, draft = models(list(PAIRS)[seed % len(PAIRS)], seed)
    common = token_level.SharedTokens(target, draft)  # type: ignore[arg-type]
    target_probs = target.probs([0, 1])
    rows = draft.probs([0, 1])
    overlaps = {}
    for name, mask in (("union", 0.0), ("tli", common.mask)):
        masked = torch.softmax(rows.log() + mask, dim=-1)[None]
        carried = TranslatedProbs(type("Rows", (DenseProbs,), {"probs": masked})(), 1, common)  # type: ignore[arg-type]
        overlaps[name] = float(carried.overlap(target_probs[None]))
    assert overlaps["tli"] >= overlaps["union"] - 1e-6


P = (0.5, 0.3, 0.2)  # of a, b, ba
Q = (0.25, 0.5, 0.125, 0.125)  # of b, the end, a, aa
# Given no end: tli draws b and a with 2/3 and 1/3, union b, a and aa with 1/2, 1/4 and 1/4; P(end) is 4/7 and 1/2.
GIVEN_NO_END = {"tli": 1 / 3 + 0.3, "union": 0.25 + 0.3}
PER_DRAW = {"tli": 3 / 7 * (1 / 3 + 0.3), "union": 1 / 2 * (0.25 + 0.3)}


def with_ends(late: bool = False) -> tuple[TextModel, TextModel]:
    """The same distributions, P and Q, at every position."""
    target, draft = (read_late if late else models)("the drafter ends texts", 0)
    target.table[:], draft.table[:] = torch.tensor(P).log(), torch.tensor(Q).log()
    return target, draft


def one(
    method: str,
    gamma: int,
    late: bool,
    temperature: float = 1.0,
    draft_temperature: float | None = None,
    num_tokens: int = 40,
) -> GenerationOutput:
    target, draft = with_ends(late)
    sampling = Sampling(temperature)
    drafter = drafter_of(method, target, draft, sampling, draft_temperature)
    return decode(target, drafter, rejection, PROMPT, num_draft_tokens=gamma, sampling=sampling,
                  stop=StopRules(num_tokens), generator=torch.Generator().manual_seed(gamma))  # fmt: skip


@pytest.mark.parametrize(("method", "late"), [("tli", False), ("tli", True), ("union", False)])
@pytest.mark.parametrize("gamma", [1, 3])
def test_the_chance_of_a_draft_token_counts_the_ends_that_are_drafted(method: str, late: bool, gamma: int) -> None:
    """Σ min(p, q) of what is verified is given no end. Per position where a token was to be drawn as many are accepted
    as the unconditional number says; the conditional one, the control, is far off."""
    found = one(method, gamma, late, num_tokens=200)
    assert found.draw_overlap is not None and found.positions["overlap"] is not None
    assert found.draw_overlap == pytest.approx([PER_DRAW[method]] * len(found.draw_overlap), abs=1e-6)
    num_verified = sum(step.num_verified for step in found.steps)
    assert found.positions["overlap"] == pytest.approx([GIVEN_NO_END[method]] * num_verified, abs=1e-6)
    num_ends = len(found.draw_overlap) - num_verified
    accepted = sum(step.num_accepted for step in found.steps)
    error = (PER_DRAW[method] * (1 - PER_DRAW[method]) / len(found.draw_overlap)) ** 0.5
    assert num_ends > 40 and accepted / len(found.draw_overlap) == pytest.approx(PER_DRAW[method], abs=4 * error)
    assert accepted / len(found.draw_overlap) < GIVEN_NO_END[method] - 6 * error


@pytest.mark.parametrize(("method", "chance"), [("tli", 1 / 7), ("union", 1 / 8)])
def test_a_greedy_target_accepts_its_best_token_as_often_as_it_is_drawn(method: str, chance: float) -> None:
    found = one(method, 2, late=False, temperature=0.0, draft_temperature=1.0)
    assert found.draw_overlap == pytest.approx([chance] * len(found.draw_overlap or []), abs=1e-6)


@pytest.mark.parametrize("late", [False, True])
def test_a_greedy_draft_that_ends_at_once_has_no_chance(late: bool) -> None:
    found = one("tli", 2, late, temperature=0.0)
    assert found.draw_overlap == [0.0] * (len(found.steps) - 1)  # the last token leaves no room for a draft
    assert found.positions["overlap"] is None and {step.num_verified for step in found.steps} == {0}


def test_only_drafts_whose_end_is_not_proposed_have_another_chance() -> None:
    assert one("slem", 2, late=False).draw_overlap is None


def test_exact_match_accepts_less_than_rejection() -> None:
    """With the target as its own drafter rejection accepts everything, and exact match Σ p² of what is verified, at the
    positions that were visited (arXiv:2502.05202, Theorem 3.1)."""
    target = TextModel(("a", "b", "c", "d"), 0)
    rates = {}
    for method, rule in (("slem", exact_match), ("tli", rejection)):
        generator = torch.Generator().manual_seed(0)
        drafter = drafter_of(method, target, target, PLAIN)
        generations = [
            decode(target, drafter, rule, PROMPT, num_draft_tokens=1, sampling=PLAIN, stop=StopRules(6),
                   generator=generator)
            for _ in range(150)
        ]  # fmt: skip
        chances = [chance for generation in generations for chance in chances_of_a_repetition(target, generation)]
        steps = [step for generation in generations for step in generation.steps]
        assert len(chances) == sum(step.num_verified for step in steps) >= 300
        rates[method] = sum(step.num_accepted for step in steps) / len(chances)
        if method == "slem":
            expected = sum(chances) / len(chances)
            error = sum(chance * (1 - chance) for chance in chances) ** 0.5 / len(chances)
            assert abs(rates[method] - expected) < 4 * error
    assert rates["slem"] < rates["tli"] == 1.0


def chances_of_a_repetition(target: TextModel, generation: GenerationOutput) -> list[float]:
    """Σ p² at every verified position, at most one per step."""
    chances, at = [], 1
    for step in generation.steps:
        if step.num_verified:
            chances.append(float(target.probs(PROMPT + generation.token_ids[:at]).square().sum()))
        at += step.num_emitted
    return chances
