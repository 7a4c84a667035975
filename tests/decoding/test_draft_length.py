"""Draft lengths: their laws, exactly and through the real loop, with the controls that must be caught; their schedules;
and what they may not remember."""

from collections.abc import Callable, Sequence

import pytest
import torch

from specbench.api import Method
from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFT_LENGTHS
from specbench.decoding.build import build_decoder
from specbench.decoding.checked_parts import CheckedDrafter
from specbench.decoding.draft_length import (
    AskedLength,
    Confidence,
    CostSchedule,
    DraftLength,
    EntropyBound,
    Heuristic,
    RootEntropy,
    best_threshold,
    make_length,
)
from specbench.decoding.drafters import ModelDrafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.tree_rules import BlockVerification
from specbench.decoding.verification import VerificationRule, exact_match, rejection
from specbench.models.causal_lm import ModelPair
from specbench.models.loading import load_model
from specbench.specs.catalogue import load_method
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from tests.support.distributions import PLAIN, PROMPT, VOCAB, chi_square_p, draws
from tests.support.loops import autoregressive
from tests.support.toys import TableModel, joint

GREEDY = Sampling(0.0)
Make = Callable[[], DraftLength]

# Thresholds near the middle of what a table of three tokens gives, so that drafts end at every length.
LENGTHS: dict[str, Make] = {
    "confidence": lambda: Confidence(threshold=0.5),
    "confidence, roc": lambda: Confidence(threshold=0.5, update="roc"),
    "confidence, acceptance": lambda: Confidence(threshold=0.5, update="acceptance", state="run"),
    "adaedl": lambda: EntropyBound(threshold=0.6, update="none"),
    "adaedl, acceptance": lambda: EntropyBound(threshold=0.6),
    "svip": lambda: RootEntropy(threshold=0.35),
    "heuristic": lambda: Heuristic(first=1, state="run"),
    "costs": lambda: CostSchedule(draft_cost=0.3, verify_costs=[1.0, 1.2, 1.4], state="run"),
}
MODEL_NAMES = ("sd-confidence", "sd-roc", "sd-adaedl", "sd-svip", "sd-heuristic", "sd-costs")


TABLES = 71  # in which wrong cuts change a fifth of the mass
NUM_DRAWS = 300


def pair(seed: int = TABLES, prefers_pending: bool = False) -> tuple[TableModel, TableModel]:
    target = TableModel(VOCAB, seed, prefers_pending=prefers_pending)
    return target, TableModel(VOCAB, seed + 1000, prefers_pending=prefers_pending)


def asked(drafter: ModelDrafter, length: DraftLength) -> ModelDrafter:
    length.is_asked = isinstance(length, AskedLength)
    drafter.use_length(length)
    return drafter


# 1. Exact laws. A step is enumerated with the length's own decisions: what it draws, keeps and leaves.

Law = dict[tuple[int, ...], float]


def exact_law(
    target: TableModel, draft: TableModel, make: Make, gamma: int, num_tokens: int,
    drop: Callable[[float, float], bool] = lambda own, drafted: False,
) -> Law:  # fmt: skip
    """The law of the first tokens under the rejection rule. `drop`: whether a drawn token is left out of the draft,
    given its probability under target and drafter: a defect."""
    law: Law = {}

    def emit(tokens: tuple[int, ...], mass: float) -> bool:
        if len(tokens) == num_tokens and mass:
            law[tokens] = law.get(tokens, 0.0) + mass
        return len(tokens) == num_tokens

    def step(tokens: tuple[int, ...], mass: float) -> None:
        if not emit(tokens, mass):
            most = min(gamma, num_tokens - len(tokens))  # drafts beyond the last token change nothing
            draft_from(tokens, (), mass, most)

    def draft_from(tokens: tuple[int, ...], confidences: tuple[float, ...], mass: float, most: int) -> None:
        """`confidences`: of the draft tokens, which are the last of `tokens` and stand."""
        ids = [*PROMPT, *tokens]
        p, q = target.probs(ids).double(), draft.probs(ids).double()
        length, goes_on = make(), True
        length.is_asked = True
        length.limit(gamma)
        for place, confidence in enumerate(confidences):
            before = draft.probs(ids[: len(ids) - len(confidences) + place])
            assert length.draws(entropy(before))
            goes_on = length.goes_on(confidence)
        if len(confidences) == most or not goes_on or not length.draws(entropy(q)):
            for token in range(VOCAB):
                step((*tokens, token), mass * float(p[token]))
            return
        for token in range(VOCAB):
            drafted = mass * float(q[token])
            if drop(float(p[token]), float(q[token])):
                for other in range(VOCAB):
                    step((*tokens, other), drafted * float(p[other]))
                continue
            stands = min(1.0, float(p[token] / q[token]))
            if not emit((*tokens, token), drafted * stands):
                draft_from((*tokens, token), (*confidences, float(q[token])), drafted * stands, most)
            if stands < 1:
                rest = (p - q).clamp_min(0)
                for other in range(VOCAB):
                    step((*tokens, other), drafted * (1 - stands) * float(rest[other] / rest.sum()))

    step((), 1.0)
    return law


def entropy(probs: torch.Tensor) -> float:
    return float(torch.special.entr(probs).sum())


def total_variation(first: Law, second: Law) -> float:
    return sum(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in first.keys() | second.keys()) / 2


STATELESS = ("confidence", "adaedl", "svip")


@pytest.mark.parametrize("name", STATELESS)
@pytest.mark.parametrize("seed", range(1, 6))
def test_the_law_of_two_drafts_is_the_targets(name: str, seed: int) -> None:
    target, draft = pair(seed)
    law = exact_law(target, draft, LENGTHS[name], 2, 3)
    assert total_variation(law, joint(target, PROMPT, 3)) < 1e-6


def test_thresholds_of_these_tables_end_drafts_at_every_length() -> None:
    """Otherwise the laws above would be those of fixed lengths."""
    for name in LENGTHS:
        lengths = set()
        for seed in range(1, 6):
            target, draft = pair(seed)
            drafter = asked(ModelDrafter(draft, PLAIN), LENGTHS[name]())
            output = decode(
                target, drafter, rejection, PROMPT, num_draft_tokens=2, sampling=PLAIN,
                stop=StopRules(max_new_tokens=60), generator=torch.Generator().manual_seed(seed),
            )  # fmt: skip
            lengths |= {step.num_drafted for step in output.steps[:-2]}
        assert lengths == {1, 2}, name


def largest_variation(drop: Callable[[float, float], bool]) -> float:
    found = []
    for seed in range(1, 21):
        target, draft = pair(seed)
        law = exact_law(target, draft, DraftLength, 2, 2, drop)
        found.append(total_variation(law, joint(target, PROMPT, 2)))
    return max(found)


def test_control_the_exact_law_tells_a_dropped_token() -> None:
    """A drawn token is dropped because of its own probability, and its distribution is claimed unchanged."""
    assert largest_variation(lambda own, drafted: drafted < 0.4) > 0.1


def test_control_the_exact_law_tells_a_look_at_the_verdict() -> None:
    assert largest_variation(lambda own, drafted: own < drafted) > 0.1


# 2. The same through the decode loop.


@pytest.mark.parametrize("rule", [rejection, BlockVerification(), exact_match])
@pytest.mark.parametrize("name", LENGTHS)
def test_sampled_texts_follow_the_target(name: str, rule: VerificationRule) -> None:
    target, draft = pair()
    counts = draws(target, asked(ModelDrafter(draft, PLAIN), LENGTHS[name]()), rule, 2, 1, num_draws=NUM_DRAWS)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3


@pytest.mark.parametrize("name", LENGTHS)
def test_sampled_texts_follow_the_target_with_top_p(name: str) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.8)
    target, draft = pair(4)
    counts = draws(target, asked(ModelDrafter(draft, sampling), LENGTHS[name]()), rejection, 2, 3, sampling)
    expected: Law = {}
    for tokens in joint(target, PROMPT, 3):
        mass, ids = 1.0, list(PROMPT)
        for token in tokens:
            logits = target.table[ids[-2], ids[-1]][None]
            mass *= float(Distributions(logits, sampling).probs[0, token])
            ids.append(token)
        if mass:
            expected[tokens] = mass
    assert set(counts) <= set(expected)
    assert chi_square_p(counts, expected) > 1e-3


def test_greedy_drafts_that_end_early_follow_the_target() -> None:
    target, draft = pair()
    counts = draws(target, asked(ModelDrafter(draft, GREEDY), LENGTHS["svip"]()), rejection, 2, 1)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3


def test_a_drafter_on_an_accelerator_reads_its_tokens_one_by_one() -> None:
    """It would otherwise draft to the full length before the length is asked."""
    target, draft = pair(prefers_pending=True)
    counts = draws(target, asked(ModelDrafter(draft, PLAIN), LENGTHS["confidence"]()), rejection, 2, 1)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3


class Dropping(ModelDrafter):
    """Leaves out a drawn token to which it gave little probability, and what follows it."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        made = super().propose(ids, num_draft_tokens, generator)
        return made if made.probs is None else self.cut(ids, made)

    def cut(self, ids: list[int], made: Proposal) -> Proposal:
        assert isinstance(made.probs, Distributions)
        kept = made.probs.token_probs(torch.tensor(made.token_ids)) >= 0.4
        return first(made, kept.tolist())


class Peeking(Dropping):
    """Leaves out a token that the target may reject."""

    def __init__(self, model: TableModel, target: TableModel) -> None:
        super().__init__(model, PLAIN)
        self.target = target

    def cut(self, ids: list[int], made: Proposal) -> Proposal:
        assert isinstance(made.probs, Distributions)
        own = [self.target.probs([*ids, *made.token_ids[:place]])[x] for place, x in enumerate(made.token_ids)]
        kept = torch.stack(own) >= made.probs.token_probs(torch.tensor(made.token_ids))
        return first(made, kept.tolist())


def first(made: Proposal, kept: list[bool]) -> Proposal:
    number = [*kept, False].index(False)
    assert isinstance(made.probs, Distributions)
    probs = Distributions(made.probs.logits[:number], PLAIN) if number else None
    return Proposal(made.token_ids[:number], probs)


@pytest.mark.parametrize("rule", [rejection, BlockVerification()])
@pytest.mark.parametrize("is_peeking", [False, True])
def test_control_wrong_cuts_are_caught_in_the_loop(is_peeking: bool, rule: VerificationRule) -> None:
    target, draft = pair()
    drafter = Peeking(draft, target) if is_peeking else Dropping(draft, PLAIN)
    counts = draws(target, drafter, rule, 2, 1, num_draws=NUM_DRAWS)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) < 1e-6


def test_a_drafter_of_a_user_is_asked_like_a_built_in_one() -> None:
    target, draft = pair()
    drafter = CheckedDrafter(ModelDrafter(draft, PLAIN), "mine", VOCAB, needs_probs=True)
    length = LENGTHS["confidence"]()
    length.is_asked = True
    drafter.use_length(length)
    assert drafter.length is length
    counts = draws(target, drafter, rejection, 2, 1, num_draws=NUM_DRAWS)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3
    assert length.confidences


# 3. The embedded family.


@pytest.mark.parametrize("name", [*MODEL_NAMES, "ngram", "tli", "slem"])
def test_greedy_answers_equal_ars(name: str) -> None:
    method = load_method(name)
    if method.draft_length is None:
        method = with_length(name, {"policy": "confidence", "threshold": 0.6})
    other = "drafter-bpe" if name in ("tli", "slem") else "drafter"
    target, drafter = load_model("embedded:target", device="cpu"), load_model(f"embedded:{other}", device="cpu")
    decoder = build_decoder(method, ModelPair(target, drafter), GREEDY)
    stop = StopRules(max_new_tokens=40, eos_token_ids=target.eos_token_ids, decode_text=target.decode_text)
    lengths = set()
    for text in ("Question: Tom has 3 apples and buys 4 more. How many", "Translate to German: the house"):
        prompt = target.tokenizer(text)["input_ids"]
        output = decoder.generate(prompt, stop, 0)
        assert output.token_ids == autoregressive(target, prompt, stop).token_ids
        lengths |= {step.num_drafted for step in output.steps[:-1]}
    assert len(lengths) > 1 or name == "sd-costs"


# 4. What each length decides.


def test_a_draft_ends_after_an_unlikely_token_which_is_kept() -> None:
    length = Confidence(threshold=0.4)
    length.limit(8)
    assert [length.draws(1.0) and length.goes_on(each) for each in (0.9, 0.4, 0.39)] == [True, True, False]


def test_a_draft_ends_before_a_token_with_a_low_bound_but_has_one() -> None:
    length = EntropyBound(factor=0.2, threshold=0.5, update="none")
    length.limit(8)
    assert length.draws(5.0)  # the first token
    assert length.goes_on(0.01)
    assert length.draws(1.24)  # 1 − √(0.2 · 1.24) = 0.502
    assert not length.draws(1.26)


def test_svip_ends_a_draft_after_an_uncertain_distribution() -> None:
    length = RootEntropy(factor=0.15, threshold=0.3)
    decided = []
    for entropy_before in (0.59, 0.61):  # √(0.15 · 0.6) = 0.3
        length.limit(8)
        decided.append(length.draws(entropy_before) and length.goes_on(0.2))
    assert decided == [True, False]


def test_transformers_schedule_grows_by_two_and_falls_by_one() -> None:
    length = Heuristic(first=3)
    found = []
    for num_accepted in (3, 5, 2, 6, 8, 0, 0):
        number = length.limit(8)
        found.append(number)
        length.observe(number, min(number, num_accepted))
    assert found == [3, 5, 7, 6, 8, 8, 7]
    assert length.limit(2) == 2
    length.observe(2, 2)  # the end of the text
    assert length.limit(8) == 6


def test_the_longest_draft_that_the_method_allows_bounds_the_schedule() -> None:
    length = Heuristic(first=20)
    assert length.limit(4) == 4
    length.observe(4, 3)
    assert length.limit(4) == 3


@pytest.mark.parametrize("seed", range(5))
def test_the_refitted_threshold_is_the_best_of_all(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    confidences = torch.randint(0, 20, (30,), generator=generator).div(20).tolist()
    pairs = [(c, bool(torch.rand((), generator=generator) < 0.2 + 0.6 * c)) for c in confidences]
    num_accepted = sum(accepted for _, accepted in pairs)

    def loss(threshold: float) -> float:
        false_positives = sum(c >= threshold and not accepted for c, accepted in pairs)
        false_negatives = sum(c < threshold and accepted for c, accepted in pairs)
        return false_positives / (len(pairs) - num_accepted) + 3 * false_negatives / num_accepted

    best = best_threshold(pairs)
    assert best is not None
    assert loss(best) == pytest.approx(min(map(loss, confidences)))


def test_the_threshold_is_not_refitted_from_few_pairs_or_one_verdict() -> None:
    assert best_threshold([(0.5, True), (0.4, False)] * 2) is None
    assert best_threshold([(0.5, True)] * 9) is None
    assert best_threshold([(0.9, True)] * 5 + [(0.3, False)]) == 0.9


def test_pairs_are_those_of_verified_tokens() -> None:
    length = Confidence(threshold=0.0, update="roc")
    for _ in range(3):
        length.limit(4)
        for confidence in (0.9, 0.2, 0.8, 0.7):  # the second is rejected, and the others are not verified
            assert length.draws(1.0)
            length.goes_on(confidence)
        length.observe(4, 1)
    assert length.threshold == 0.9


@pytest.mark.parametrize("length", [EntropyBound(threshold=0.5), Confidence(threshold=0.5, update="acceptance")])
def test_the_acceptance_moves_a_threshold_by_the_published_algorithm(length: EntropyBound | Confidence) -> None:
    """Worked out by hand: the running share is .5, .75, .875, .9375, .96875, .609."""
    for num_drafted, num_accepted, thousandths in (
        (4, 4, 501), (4, 4, 502), (4, 4, 503), (4, 4, 503), (3, 3, 502), (4, 1, 503),
    ):  # fmt: skip
        length.limit(4)
        length.observe(num_drafted, num_accepted)
        assert length.threshold == pytest.approx(thousandths / 1000)


def test_a_whole_draft_is_accepted_whole_for_adaedl_and_only_drafted_for_confidence() -> None:
    found = []
    for length in (EntropyBound(threshold=0.5), Confidence(threshold=0.5, update="acceptance")):
        for _ in range(4):
            length.limit(10)
            length.observe(10, 10)
        assert length.threshold == pytest.approx(0.503)
        length.limit(10)
        length.observe(10, 9)  # the running share stays above .9
        found.append(length.threshold)
    assert found == pytest.approx([0.502, 0.503])


def test_thresholds_stay_probabilities() -> None:
    for start, num_accepted, expected in ((0.999, 0, 1.0), (0.001, 3, 0.0)):
        length = EntropyBound(threshold=start)
        for _ in range(12):
            length.limit(4)
            length.observe(3, num_accepted)
        assert length.threshold == expected


def test_costs_decide_the_length_of_drafts_without_probabilities() -> None:
    free, dear = ([1.0] * 9, [1.0, 2.0, 3.0, 4.0])
    lengths = []
    for costs, num_accepted in ((free, 8), (dear, 8), (dear, 0)):
        length = CostSchedule(draft_cost=0.0, verify_costs=costs)
        for _ in range(40):
            number = length.limit(8)
            length.observe(number, min(number, num_accepted))
        lengths.append(length.limit(8))
    assert lengths == [8, 1, 1]


def test_costs_end_a_draft_when_the_next_token_is_not_worth_a_pass() -> None:
    for draft_cost, num_accepted, expected in ((0.05, 2, 4), (0.9, 0, 1)):
        length = CostSchedule(draft_cost=draft_cost, verify_costs=[1.0, 1.0])
        length.is_asked = True
        for _ in range(60):
            assert length.limit(4) == 4
            number, goes_on = 0, True
            while number < 4 and goes_on and length.draws(0.5):
                number, goes_on = number + 1, length.goes_on(0.75)
            length.observe(number, min(number, num_accepted))
        assert number == expected


@pytest.mark.parametrize("name", ["confidence, roc", "adaedl, acceptance", "heuristic", "costs"])
@pytest.mark.parametrize("state", ["prompt", "run"])
def test_nothing_crosses_prompts_unless_declared(name: str, state: str) -> None:
    target, draft = pair(2)
    made = {
        "confidence, roc": lambda: Confidence(threshold=0.2, update="roc", state=state),
        "adaedl, acceptance": lambda: EntropyBound(threshold=0.6, state=state),
        "heuristic": lambda: Heuristic(first=3, state=state),
        "costs": lambda: CostSchedule(draft_cost=0.15, verify_costs=[1.0], state=state),
    }[name]()
    drafter = asked(ModelDrafter(draft, PLAIN), made)
    assert drafter.learns_over_prompts == (state == "run")

    def steps(seed: int) -> list[int]:
        output = decode(
            target, drafter, rejection, PROMPT, num_draft_tokens=6, sampling=PLAIN, stop=StopRules(max_new_tokens=80),
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        return [step.num_drafted for step in output.steps]

    alone = steps(1)
    for seed in (2, 3, 4):
        steps(seed)
    assert (steps(1) == alone) == (state == "prompt")
    made.forget()
    assert steps(1) == alone


# 5. Records.


def test_confidences_and_entropies_are_those_of_the_draft_tokens() -> None:
    target, draft = pair()
    drafter = asked(ModelDrafter(draft, PLAIN), EntropyBound(threshold=0.6))
    output = decode(
        target, drafter, rejection, PROMPT, num_draft_tokens=4, sampling=PLAIN, stop=StopRules(max_new_tokens=40),
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    num_drafted = sum(step.num_drafted for step in output.steps)
    assert output.draft_confidence is not None
    assert output.draft_entropy is not None
    assert (len(output.draft_confidence), len(output.draft_entropy)) == (num_drafted, num_drafted)
    place, expected = 0, []
    for step in output.steps:  # draft_prob is of verified tokens, and the drafter is sampled at temperature 1
        expected += output.draft_confidence[place : place + step.num_verified]
        place += step.num_drafted
    assert output.positions["draft_prob"] == pytest.approx(expected, abs=1e-5)
    assert len(output.draft_passes) > num_drafted  # the pass before a token that was not drawn


def test_other_tokens_than_the_drafters_own_are_not_recorded() -> None:
    length = Confidence()
    length.begin_prompt()
    length.limit(4)
    length.draws(1.0)
    length.goes_on(0.5)
    length.observe(2, 1)
    assert length.confidences is None


def test_a_fixed_length_records_nothing() -> None:
    target, draft = pair()
    output = decode(
        target, ModelDrafter(draft, PLAIN), rejection, PROMPT, num_draft_tokens=2, sampling=PLAIN,
        stop=StopRules(max_new_tokens=8), generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    assert output.draft_confidence is None


# 6. Method files.


def with_length(name: str, length: object) -> MethodSpec:
    return build(MethodSpec, {**load_method(name).model_dump(exclude={"sweep"}), "draft_length": length})


@pytest.mark.parametrize("fixed", [None, "fixed", {"policy": "fixed"}])
def test_a_fixed_length_is_the_method_as_before(fixed: object) -> None:
    assert with_length("sd", fixed) == build(MethodSpec, load_method("sd").model_dump(exclude={"sweep"}))
    assert "draft_length" not in with_length("sd", fixed).model_dump()


SVIP = {"policy": "svip"}


@pytest.mark.parametrize(
    ("name", "length", "words"),
    [
        ("sd", {"policy": "svp"}, "draft_length.policy: unknown draft length 'svp'"),
        ("sd", "svip", "draft_length = 'svip': write a mapping"),
        ("sd", {"policy": "confidence", "threshold": 1.5}, "draft_length.threshold = 1.5"),
        ("sd", {"policy": "costs", "draft_cost": 0.1}, "draft_length.verify_costs"),
        ("sd", {"policy": "costs", "draft_cost": 0.1, "verify_costs": [1, 0]}, "draft_length.verify_costs.1 = 0"),
        ("pld", SVIP, "which drafter 'prompt_lookup' does not offer"),
        ("sd-tree", SVIP, "proposes trees"),
        ("synthetic", SVIP, "plans its drafts"),
        ("slrs", SVIP, "bridge 'string'"),
        ("ar", SVIP, "drafts nothing"),
        ("hf-sd", SVIP, "an external decoder chooses its own"),
    ],
)
def test_lengths_that_do_not_fit_are_one_line(name: str, length: object, words: str) -> None:
    with pytest.raises(ConfigError, match="draft_length") as caught:
        with_length(name, length)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_python_methods_take_a_draft_length() -> None:
    method = Method(draft_length={"policy": "svip", "threshold": 0.2}, name="mine")
    assert method.spec.draft_length == with_length("sd", {"policy": "svip", "threshold": 0.2}).draft_length
    assert Method(name="mine").spec.draft_length is None


def test_a_policy_of_a_plug_in_is_one_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DRAFT_LENGTHS, "_builtin", dict(DRAFT_LENGTHS._builtin))

    @DRAFT_LENGTHS.register("alternating", looks_at_drafts=True)
    class Alternating(AskedLength):
        def __init__(self, *, every: int = 2) -> None:
            self.every = every
            super().__init__()

        def wants_more(self, confidence: float, entropy: float) -> bool:
            return len(self._draft) % self.every != 0

    spec = with_length("sd", {"policy": "alternating"}).draft_length
    assert spec is not None
    assert spec.options == {"every": 2}
    assert lengths_seen(make_length(spec.factory, spec.options, is_asked=True), [0.1] * 5) == 2  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"made a str: derive its class from specbench\.plugin\.DraftLength"):
        make_length(str, {}, is_asked=True)


def test_a_look_up_may_have_a_length_of_its_verdicts() -> None:
    assert with_length("pld", {"policy": "heuristic"}).draft_length is not None
    assert not make_length(Heuristic, {}, is_asked=True).is_asked, "it needs no probabilities"
    assert make_length(Confidence, {}, is_asked=True).is_asked


def test_a_route_that_drafts_nothing_has_no_length() -> None:
    data = load_method("routed").model_dump(exclude={"sweep"})
    routes = {**data["routes"], "de": {"drafter": {"type": "none"}, "num_draft_tokens": 0}}
    method = build(MethodSpec, {**data, "routes": routes, "draft_length": {"policy": "confidence"}})
    assert method.route("de").draft_length is None
    assert method.route("default").draft_length is not None


def lengths_seen(length: AskedLength, confidences: Sequence[float]) -> int:
    length.limit(len(confidences))
    for number, confidence in enumerate(confidences, start=1):
        if not length.draws(0.1) or not length.goes_on(confidence):
            return number
    return len(confidences)


def test_a_threshold_of_zero_never_ends_a_draft() -> None:
    assert lengths_seen(Confidence(threshold=0.0), [0.0, 0.1, 0.0]) == 3


def test_a_length_that_learns_over_prompts_leaves_the_drafters_memory_as_declared() -> None:
    """The row says that earlier prompts count, but a drafter whose own memory is the prompt's learns no answers."""
    method = load_method("suffix").model_dump() | {"draft_length": {"policy": "heuristic", "state": "run"}}
    decoder = build_decoder(build(MethodSpec, method), ModelPair(load_model("embedded:target", device="cpu")), PLAIN)
    assert decoder.memory == "shuffled" and decoder.learns
    drafter = decoder.drafter  # type: ignore[attr-defined]
    assert drafter.length.learns_over_prompts and not drafter.learns_answers
    for _ in range(2):
        decoder.generate(PROMPT * 4, StopRules(max_new_tokens=8), 0)
    assert drafter.left_out_own is None  # it knows no other answers
