"""The audit: correct methods pass, wrong ones are caught, and the command says which is which.

Toys have known tables, so that right and wrong are known. Seeds are fixed: outcomes are deterministic.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specbench.analysis.audit.audit import MIN_ACCEPTED, Audit, AuditedMethod, AuditPrompt, decide_verdict
from specbench.analysis.audit.distribution import (
    MethodSamples,
    WithoutResidual,
    choose_prompts,
    compare_with_target,
    draw_samples,
    exact_distributions,
)
from specbench.analysis.audit.report import (
    AuditedIdentity,
    AuditFindings,
    AuditReport,
    MethodVerdict,
    SampleTest,
    p_text,
    width_caption,
    width_table,
)
from specbench.core.errors import ConfigError
from specbench.core.registry import RULES
from specbench.decoding.draft_length import (
    Confidence,
    CostSchedule,
    DraftLength,
    EntropyBound,
    RootEntropy,
)
from specbench.decoding.drafters import Drafter, ModelDrafter, NoDrafter
from specbench.decoding.drafters.heads import EagleDrafter
from specbench.decoding.drafters.lookahead import TokenRecycling
from specbench.decoding.drafters.model_tree import DynamicTreeDrafter
from specbench.decoding.loop import GenerationOutput, StopRules, decode
from specbench.decoding.proposal import Proposal
from specbench.decoding.proposal import Verification as Decision
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.verification import Fuzzy, VerificationRule, count_leading, exact_match, rejection
from specbench.models.batch_width import BaselineAnswer, BatchWidth, WidthChange, measure_noise, near_tie_tolerance
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.eager import EagerSequence
from specbench.models.heads.eagle import EagleModel
from specbench.models.near_ties import Greedy, find_differences
from specbench.models.scoring import Output, ScoringModel
from specbench.records.generation import External, Record
from specbench.report.captions import verdict_of
from specbench.results.answers import answers_of, different_answers
from specbench.results.leaderboard import load
from specbench.results.row import RowSampling as Sampled
from specbench.results.verdict import FAILS_BELOW, NUM_LONG_TOKENS, NUM_TOKENS, verdict_of_records
from specbench.specs.catalogue import load_method, method_names
from tests.support import records, tiny
from tests.support.heads import new_head
from tests.support.rows import row
from tests.support.toys import TableModel

Specbench = Callable[..., tuple[int, str, str]]
VOCAB = 5
GAMMA = 2
PLAIN, GREEDY = Sampling(1.0), Sampling(0.0)
STOP = StopRules(max_new_tokens=24)


@dataclass(frozen=True)
class Toy:
    """A method on toy models, as the audit sees any method."""

    target: ScoringModel
    drafter: Drafter
    rule: VerificationRule
    sampling: Sampling

    def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> GenerationOutput:
        return decode(
            self.target, self.drafter, self.rule, prompt_ids, sampling=self.sampling, stop=stop,
            num_draft_tokens=GAMMA, generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip


def subject(
    name: str, target: TableModel, draft: TableModel | None, rule: VerificationRule, lossless: bool = True
) -> AuditedMethod:
    made = [
        Toy(target, NoDrafter() if draft is None else ModelDrafter(draft, sampling), rule, sampling)
        for sampling in (GREEDY, PLAIN)
    ]
    return AuditedMethod(name, lossless, 0 if draft is None else GAMMA, *made)


def audited(
    target: TableModel,
    draft: TableModel,
    *others: AuditedMethod,
    num_draws: int = 60,  # the control and the coarse errors below have p-values under 1e-18 with so many
    say: Callable[[str], None] = str,
) -> AuditFindings:
    """AR and the others on three prompts; the control accepts every draft of `draft`."""
    prompts = [AuditPrompt(f"p{i}", [i, 1, 2], STOP) for i in range(3)]
    control = Toy(target, ModelDrafter(draft, PLAIN), AcceptEverything(), PLAIN)
    subjects = [subject("ar", target, None, rejection), *others]
    wrong = ("every draft accepted", control)
    return Audit(subjects, prompts, target, str, draft, wrong, PLAIN, num_draws, seed=0, progress=say).findings()


def verdict(findings: AuditFindings, method: str) -> MethodVerdict:
    return next(each for each in findings.verdicts if each.method == method)


@pytest.fixture(scope="module")
def target() -> TableModel:
    return TableModel(VOCAB, 1)


@pytest.fixture(scope="module")
def draft() -> TableModel:
    return TableModel(VOCAB, 1004)  # accepted often enough, also greedily


# Wrong rules. Greedily some of them are right: only draws can tell.


def swapped(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Decision:
    """Rejection with p and q exchanged in the test."""
    if not proposal.num_drafted or target.sampling.greedy:
        return rejection(proposal, target, generator)
    assert proposal.probs is not None
    ids = torch.tensor(proposal.token_ids)
    uniform = torch.rand(len(ids), generator=generator)
    target_prob = target.probs[:-1].gather(1, ids[:, None])[:, 0]
    count = count_leading((uniform * target_prob < proposal.probs.token_probs(ids)).tolist())
    return Decision(count, target.draw(count, generator))


class AcceptEverything(VerificationRule):
    """Every draft token is accepted."""

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Decision:
        return Decision(proposal.num_drafted, target.draw(proposal.num_drafted, generator))


def wrong_bonus(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Decision:
    """The bonus token from the row before."""
    decision = rejection(proposal, target, generator)
    if not proposal.num_drafted or decision.num_accepted < proposal.num_drafted or target.sampling.greedy:
        return decision
    return replace(decision, next_token=target.draw(proposal.num_drafted - 1, generator))


def test_correct_methods_are_lossless(target: TableModel, draft: TableModel) -> None:
    findings = audited(
        target, draft, subject("sd", target, draft, rejection), subject("match", target, draft, exact_match),
        num_draws=100,
    )  # fmt: skip
    assert [each.verdict for each in findings.verdicts] == ["lossless"] * 3
    assert findings.control is not None and findings.control.caught
    assert findings.noise.num_changed == 0
    sd = verdict(findings, "sd")
    assert sd.greedy is not None and sd.greedy.num_equal == sd.greedy.num_prompts == 3
    assert sd.distribution is not None and sd.distribution.num_draws == 100 and sd.distribution.num_tokens == 500
    counts = (sd.distribution.num_accepted, sd.distribution.num_recovered, sd.distribution.num_bonus)
    assert min(counts) > 50  # type: ignore[type-var]  # all kinds of tokens are in the draws
    assert abs(sd.distribution.mean_log_p - sd.distribution.expected_log_p) < 4 * sd.distribution.standard_error


class Dropping(ModelDrafter):
    """Leaves out a drawn token to which it gave little probability."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        made = super().propose(ids, num_draft_tokens, generator)
        if made.probs is None or self.sampling.greedy:
            return made
        number = count_leading((made.probs.token_probs(torch.tensor(made.token_ids)) >= 0.4).tolist())
        assert isinstance(made.probs, Distributions)
        return Proposal(made.token_ids[:number], Distributions(made.probs.logits[:number], PLAIN) if number else None)


def test_drafts_that_end_early_are_lossless_and_dropped_tokens_are_not(draft: TableModel) -> None:
    target = TableModel(VOCAB, 2)  # with which a dropped token changes more

    def method(name: str, make: type[ModelDrafter], length: DraftLength | None) -> AuditedMethod:
        drafters = [make(draft, sampling) for sampling in (GREEDY, PLAIN)]
        for drafter in drafters if length is not None else ():
            drafter.use_length(length)
        toys = [Toy(target, drafter, rejection, drafter.sampling) for drafter in drafters]
        return AuditedMethod(name, True, GAMMA, *toys)

    lengths = {"confidence": Confidence(threshold=0.4), "svip": RootEntropy(threshold=0.35)}
    lengths |= {"adaedl": EntropyBound(threshold=0.4), "costs": CostSchedule(draft_cost=0.3, verify_costs=[1.0, 1.2])}
    for length in lengths.values():
        length.is_asked = True
    findings = audited(
        target, draft, *(method(name, ModelDrafter, length) for name, length in lengths.items()),
        method("dropping", Dropping, None), num_draws=600,
    )  # fmt: skip
    assert {each.method: each.verdict for each in findings.verdicts} == {
        **dict.fromkeys(("ar", *lengths), "lossless"), "dropping": "diverged"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "num_draws"),
    [(swapped, 60), (WithoutResidual(), 450), pytest.param(wrong_bonus, 600, marks=pytest.mark.slow)],
)
def test_rules_that_are_wrong_only_in_draws_diverge(
    target: TableModel, draft: TableModel, wrong: VerificationRule, num_draws: int
) -> None:
    found = verdict(audited(target, draft, subject("wrong", target, draft, wrong), num_draws=num_draws), "wrong")
    assert found.greedy is not None and found.greedy.num_equal == 3
    assert found.distribution is not None and found.distribution.failed
    assert found.verdict == "diverged" and found.reason == "its samples do not follow the target's probabilities"
    assert found.distribution.p_by_token[0] is not None and found.distribution.p_by_token[0] > 1e-3  # the prefill's
    assert found.distribution.example is not None


def test_a_wrong_first_token_is_found(target: TableModel, draft: TableModel) -> None:
    hot = Toy(target, NoDrafter(), rejection, Sampling(20.0))
    hotter = AuditedMethod("hot", True, 0, Toy(target, NoDrafter(), rejection, GREEDY), hot)
    findings = audited(target, draft, hotter, num_draws=100)
    found = verdict(findings, "hot")
    assert found.verdict == "diverged" and found.distribution is not None
    assert found.distribution.p_by_token[0] is not None and found.distribution.p_by_token[0] < 1e-3


def test_accepting_everything_diverges_and_fuzzy_is_lossy_by_design(target: TableModel, draft: TableModel) -> None:
    fuzzy = Fuzzy(divergence="js", threshold=0.5)
    findings = audited(
        target, draft, subject("all", target, draft, AcceptEverything()), subject("fuzzy", target, draft, fuzzy, False)
    )
    everything, lossy = verdict(findings, "all"), verdict(findings, "fuzzy")
    assert everything.verdict == "diverged" and everything.greedy is not None and everything.greedy.example is not None
    example = everything.greedy.example
    assert not example.near_tie and example.gap is not None and example.gap > 0.01
    assert example.ar_token != example.method_token and everything.greedy.num_diverged > 0
    assert lossy.verdict == "lossy by design" and lossy.greedy is not None and lossy.distribution is not None
    assert lossy.distribution.failed and lossy.greedy.median_position is not None


class Undecided(TableModel):
    """Two tokens share the highest logit up to 1e-6, and a pass over several tokens rounds otherwise than over one."""

    def __init__(self, seed: int, gap: float) -> None:
        super().__init__(VOCAB, seed)
        best = self.table.topk(2, dim=-1)
        self.table.scatter_(-1, best.indices[..., 1:], best.values[..., :1] - gap)

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        logits = super().score(ids, num_logits).logits.clone()
        if num_logits > 1:
            second = logits.topk(2, dim=-1).indices[:, 1:]
            logits.scatter_add_(-1, second, torch.full(second.shape, 2e-6))
        return Output(logits)


def test_planted_near_ties() -> None:
    target, draft = Undecided(1, 1e-6), TableModel(VOCAB, 9)
    findings = audited(target, draft, subject("sd", target, draft, rejection))
    found = verdict(findings, "sd")
    assert findings.noise.num_changed == 3 and 1e-6 < findings.noise.max_gap_change < 1e-5
    assert found.verdict == "near-tie only" and found.greedy is not None and found.greedy.num_near_ties > 0
    assert found.greedy.example is not None and found.greedy.example.gap is not None
    assert found.greedy.example.gap <= findings.noise.tolerance < 1e-4


def test_a_gap_beyond_the_noise_is_no_near_tie() -> None:
    target, draft = Undecided(1, 0.01), TableModel(VOCAB, 2)

    def second_best(proposal: Proposal, found: Distributions, generator: torch.Generator) -> Decision:
        return Decision(0, int(found.logits[0].topk(2).indices[1]))

    wrong = verdict(audited(target, draft, subject("second", target, draft, second_best), num_draws=0), "second")
    assert wrong.verdict == "diverged" and wrong.reason == "its greedy output is not AR's"
    assert wrong.greedy is not None and wrong.greedy.example is not None
    assert wrong.greedy.example.gap == pytest.approx(0.01, abs=1e-4) and wrong.distribution is None


def test_an_output_that_ends_early_diverges(target: TableModel, draft: TableModel) -> None:
    class Short:
        def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> GenerationOutput:
            made = Toy(target, NoDrafter(), rejection, GREEDY).generate(prompt_ids, stop, seed)
            return replace(made, token_ids=made.token_ids[:7])

    found = verdict(audited(target, draft, AuditedMethod("short", True, 0, Short(), None), num_draws=0), "short")
    assert found.verdict == "diverged" and found.greedy is not None and found.greedy.example is not None
    assert found.greedy.example.position == 7
    assert found.greedy.example.method_token is None and found.greedy.example.gap is None


def test_too_few_draws_are_said(target: TableModel, draft: TableModel) -> None:
    findings = audited(target, draft, subject("sd", target, draft, rejection), num_draws=6)
    found = verdict(findings, "sd")
    assert found.verdict == "undecided" and found.reason is not None and "lacks power" in found.reason


def test_few_accepted_draft_tokens_are_said(target: TableModel, draft: TableModel) -> None:
    rare = subject("rare", target, TableModel(VOCAB, 1003), rejection)
    findings = audited(target, draft, rare)
    found = verdict(findings, "rare")
    assert found.greedy is not None and found.greedy.num_accepted == 3 and found.verdict == "undecided"
    assert found.reason == (
        "a verdict needs 20 accepted draft tokens, and there were 3 in greedy decoding: give more prompts (--limit, "
        "--subset)"
    )
    assert found.distribution is not None
    for number, name in ((MIN_ACCEPTED - 1, "undecided"), (MIN_ACCEPTED, "lossless")):
        greedy = found.greedy.model_copy(update={"num_accepted": MIN_ACCEPTED})
        draws = found.distribution.model_copy(update={"num_accepted": number})
        assert findings.control is not None
        decided = decide_verdict(rare, greedy, {"rare": draws}, {NUM_TOKENS: findings.control})
        assert decided.verdict == name and (
            decided.reason is None or "in the samples: give more --draws" in decided.reason
        )
    draws = found.distribution.model_copy(update={"num_accepted": 4})
    reason = decide_verdict(rare, found.greedy, {"rare": draws}, {NUM_TOKENS: findings.control}).reason
    assert reason == (
        "a verdict needs 20 accepted draft tokens, and there were 3 in greedy decoding and 4 in the samples: give more "
        "prompts (--limit, --subset) and more --draws"
    )


def test_a_method_that_drafts_late_is_judged_by_longer_draws(target: TableModel, draft: TableModel) -> None:
    """A draw of five tokens ends before its first draft; a wrong rule is found in the longer ones."""

    @dataclass(frozen=True)
    class Late:
        inner: Toy

        def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> GenerationOutput:
            plain = replace(self.inner, drafter=NoDrafter())
            num_first = min(6, stop.max_new_tokens)
            first = plain.generate(prompt_ids, replace(stop, max_new_tokens=num_first), seed)
            if stop.max_new_tokens <= num_first:
                return first
            rest = self.inner.generate(
                [*prompt_ids, *first.token_ids], replace(stop, max_new_tokens=stop.max_new_tokens - num_first), seed + 1
            )
            return replace(rest, token_ids=[*first.token_ids, *rest.token_ids], steps=[*first.steps, *rest.steps])

    def late(name: str, rule: VerificationRule) -> AuditedMethod:
        toys = [Late(Toy(target, ModelDrafter(draft, each), rule, each)) for each in (GREEDY, PLAIN)]
        return AuditedMethod(name, True, GAMMA, *toys)

    findings = audited(target, draft, late("late", rejection), late("swapped", swapped))
    right, wrong = (verdict(findings, name) for name in ("late", "swapped"))
    assert findings.long_control is not None and findings.long_control.caught
    assert right.verdict == "lossless" and wrong.verdict == "diverged"
    for each in (right, wrong, verdict(findings, "ar")):
        assert each.distribution is not None
        assert each.distribution.most_tokens == (NUM_TOKENS if each.method == "ar" else NUM_LONG_TOKENS)
        assert len(each.distribution.p_by_token) == each.distribution.most_tokens


def test_outputs_and_draws_without_drafts_prove_nothing(target: TableModel, draft: TableModel) -> None:
    """What was drawn may be lossless; greedily nothing was tried, though the outputs are AR's."""
    sd, late = (subject(name, target, draft, rejection) for name in ("sd", "late"))
    late.greedy = Toy(target, NoDrafter(), rejection, GREEDY)
    idle = replace(subject("idle", target, None, rejection), num_draft_tokens=GAMMA)
    findings = audited(target, draft, late, idle, sd)
    found = verdict(findings, "late")
    assert found.greedy is not None and found.greedy.num_equal == 3 and found.greedy.num_judged == 0
    assert found.verdict == "undecided" and found.reason == "none of its draft tokens was verified in greedy decoding"
    nothing = verdict(findings, "idle")
    assert nothing.verdict == "undecided" and "; no drafts in samples of up to 16 tokens" in str(nothing.reason)
    drafting = verdict(findings, "sd")
    assert drafting.greedy is not None and drafting.greedy.num_judged and drafting.verdict == "lossless"


def test_a_method_that_refuses_is_not_run(target: TableModel, draft: TableModel) -> None:
    class Refuses:
        def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> GenerationOutput:
            raise ConfigError("more than 3 draft passes")

    found = verdict(audited(target, draft, AuditedMethod("capped", True, GAMMA, Refuses(), Refuses())), "capped")
    assert found.verdict == "not run" and found.reason is not None and "more than 3 draft passes" in found.reason


def test_a_decoder_without_steps_is_audited_too(target: TableModel, draft: TableModel) -> None:
    """An external decoder may give tokens and nothing else."""

    @dataclass(frozen=True)
    class Foreign:
        inner: Toy

        def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> GenerationOutput:
            made = self.inner.generate(prompt_ids, stop, seed)
            return replace(made, steps=[], external=External(num_first_tokens=0, num_target_passes=None))

    toys = [Foreign(Toy(target, ModelDrafter(draft, s), rejection, s)) for s in (GREEDY, PLAIN)]
    found = verdict(audited(target, draft, AuditedMethod("foreign", True, GAMMA, *toys)), "foreign")
    assert found.verdict == "undecided" and found.distribution is not None
    assert found.reason == "it does not count accepted draft tokens, so it may have accepted none"
    assert found.distribution.num_accepted is None and found.greedy is not None and found.greedy.num_judged is None


# The distribution test itself.


def test_exact_rows_are_the_tables(target: TableModel) -> None:
    prompts = [[0, 1], [2]]
    drawn = [[(1, 2, 3), (1, 2, 4), (0,)], [(4, 4)]]
    rows = exact_distributions(target, prompts, [drawn], PLAIN, num_draws=100)
    assert set(rows) == {(0, ()), (0, (1,)), (0, (1, 2)), (1, ()), (1, (4,))}
    probs = target.probs([0, 1, 1, 2]).double().numpy()
    row = rows[0, (1, 2)]
    assert row.probs == pytest.approx(probs[row.tokens], rel=1e-5) and set(row.tokens) == set(np.where(probs > 0.05)[0])
    assert row.log_p == {3: pytest.approx(np.log(probs[3]), rel=1e-4), 4: pytest.approx(np.log(probs[4]), rel=1e-4)}
    assert row.mean == pytest.approx(float(probs @ np.log(probs)), rel=1e-4)


@pytest.mark.parametrize(("vocab", "spread"), [(5, 1.5), pytest.param(40, 4.0, marks=pytest.mark.slow)])
def test_false_alarms_are_as_rare_as_stated(vocab: int, spread: float) -> None:
    """120 audits of a correct method with few draws: p < 0.05 in 5 % of them or fewer, and p is not always 1.

    With 10,000 audits of each of four such settings p < 1e-3 came in at most 1.1e-3 of them; with 20,000 of one, p <
    5e-4, where the verdict is "diverged", in 3e-4.
    """
    model = TableModel(vocab, 3, spread)
    table = torch.softmax(model.table, -1).double().numpy()
    generator = np.random.default_rng(0)
    p_values = []
    for _ in range(120):
        sequences = [samples(table, [number, 1], 60, generator) for number in range(2)]
        rows = exact_distributions(model, [[0, 1], [1, 1]], [sequences], PLAIN, 120)
        p_values.append(compare_with_target(sequences, rows, noise=0.0)[0].p_value)
    assert np.mean(np.array(p_values) < 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 120)
    assert np.mean(np.array(p_values) < 0.5) > 0.2


def samples(
    table: np.ndarray, prompt: Sequence[int], number: int, generator: np.random.Generator
) -> list[tuple[int, ...]]:
    """Draws of three tokens after a prompt, all at once."""
    ids = np.tile(prompt, (number, 1))
    for _ in range(3):
        cumulated = table[ids[:, -2], ids[:, -1]].cumsum(-1)
        below = generator.random((number, 1)) * cumulated[:, -1:] > cumulated
        ids = np.append(ids, below.sum(-1, keepdims=True), axis=1)
    return [tuple(row) for row in ids[:, len(prompt) :].tolist()]


def test_measured_noise_is_forgiven_and_no_more(target: TableModel) -> None:
    """A method whose probabilities differ by rounding as large as was measured passes; without that it would fail."""
    rough = TableModel(VOCAB, 1)
    rough.table = rough.table + 0.3 * torch.randn(rough.table.shape, generator=torch.Generator().manual_seed(5))
    prompts = [[0, 1], [1, 2]]
    drawn = draw_samples(Toy(rough, NoDrafter(), rejection, PLAIN), prompts, STOP, 600, lambda *place: hash(place))
    rows = exact_distributions(target, prompts, [drawn.sequences], PLAIN, 600)
    assert compare_with_target(drawn.sequences, rows, noise=0.0)[0].p_value < 1e-3
    assert compare_with_target(drawn.sequences, rows, noise=4 * 0.3**2)[0].p_value > 1e-3


def tree_of_head(target: CausalLM) -> tuple[Drafter, VerificationRule]:
    head = EagleModel(new_head("eagle3", target).model, target.vocab_size, frozenset())
    return EagleDrafter(head, DynamicTreeDrafter(head, 8, 3)), exact_match


def recycled_tree(target: CausalLM) -> tuple[Drafter, VerificationRule]:
    return TokenRecycling(ModelPair(target), Sampling(), rank_chances=[0.5, 0.3], num_nodes=8, depth=3), exact_match


def recurrent_draft(target: CausalLM) -> tuple[Drafter, VerificationRule]:
    return ModelDrafter(tiny.causal_lm("mamba", 1, num_hidden_layers=1), PLAIN), rejection


@pytest.mark.parametrize(
    ("kind", "make"), [("llama", tree_of_head), ("llama", recycled_tree), ("qwen3_5_text", recurrent_draft)]
)
def test_the_prompt_of_many_draws_is_read_once(
    kind: str, make: Callable[[CausalLM], tuple[Drafter, VerificationRule]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draws are those of a method that reads the prompt for each of them."""
    target = tiny.causal_lm(kind, **({"num_hidden_layers": 6} if kind == "llama" else tiny.two_layers(kind)))
    drafter, rule = make(target)
    models = [model for model in (target, drafter.model) if isinstance(model, CausalLM)]
    prompts, num_read = [list(range(30, 60)), list(range(29, 59))], Counter[str]()
    read = EagerSequence._read

    def counted(
        sequence: EagerSequence, ids: list[int], pending: Any, parents: Any, num_tokens: int, *given: Any
    ) -> Output:
        num_read[sequence.name] += num_tokens >= len(prompts[0])
        return read(sequence, ids, pending, parents, num_tokens, *given)

    monkeypatch.setattr(EagerSequence, "_read", counted)

    def draws() -> MethodSamples:
        return draw_samples(Toy(target, drafter, rule, PLAIN), prompts, STOP, 4, lambda *place: hash(place), 6)

    separate = draws()
    assert set(num_read.values()) == {4} and len(num_read) == len(models)
    num_read.clear()
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(model.reading_prompts_once())
        assert draws() == separate
    assert set(num_read.values()) == {2} and len(num_read) == len(models)
    assert draws() == separate and set(num_read.values()) == {6}  # as before


def test_prompts_of_the_draws_are_cut_where_much_is_undecided(target: TableModel, draft: TableModel) -> None:
    answers = [BaselineAnswer("p", [0, 1], [2, 3, 1, 2, 3, 1, 4]), BaselineAnswer("q", [3, 3], [3, 3, 3, 3])]
    chosen = choose_prompts(target, draft, answers, PLAIN, 1, 4)
    assert len(chosen) == 1 and chosen[0].repeats  # a place where the coming pair has occurred before
    every = choose_prompts(target, None, answers, PLAIN, 3, 4)
    assert [cut.name for cut in every] != [] and all(cut.ids[: len(cut.ids)] for cut in every)
    for cut in every:
        whole = next([*a.prompt_ids, *a.token_ids] for a in answers if a.name == cut.name)
        assert cut.ids == whole[: len(cut.ids)] and 1 <= len(cut.ids) < len(whole)


def test_noise_of_a_real_model() -> None:
    model, ids = tiny.causal_lm(), list(range(30, 60))
    tokens = Toy(model, NoDrafter(), rejection, GREEDY).generate(ids, STOP, 0).token_ids
    noise = measure_noise(model, [BaselineAnswer("en", ids, tokens)], 6)
    assert noise.num_positions == 24 and noise.num_changed == 0
    assert 1e-7 < noise.max_gap_change < 1e-3 and noise.tolerance >= 2 * noise.max_gap_change


# Verdicts from the records of a run.


def record(own: list[int], other: list[int], example: int = 0) -> Record:
    written = {"ar": own, "sd": other, "fsd": other}
    methods = {name: records.generation(token_ids=token_ids) for name, token_ids in written.items()}
    return records.record(methods, example=example, id=str(example))


def test_verdicts_from_records(target: TableModel) -> None:
    sd = load_method("sd")
    own = Toy(target, NoDrafter(), rejection, GREEDY).generate([0, 1], STOP, 0).token_ids
    wrong = [*own[:3], (own[3] + 1) % VOCAB, *own[4:]]

    def say(records: list[Record], model: TableModel = target, greedy: bool = True, method: str = "sd") -> str:
        spec = sd if method == "sd" else load_method(method)
        different = different_answers(answers_of(records, spec.name), answers_of(records, "ar")) if greedy else []
        found = [each for each in records if each.key in different]
        answers = [BaselineAnswer("", [0, 1], each.methods["ar"].token_ids.tolist()) for each in found]
        outputs = [each.methods[spec.name].token_ids.tolist() for each in found]
        tolerance = near_tie_tolerance(model, answers, spec.most_draft_tokens + 1) if found else 0.0
        num_near_ties = sum(each.near_tie for each in find_differences(model, answers, outputs, tolerance))
        return verdict_of_records(
            spec, greedy=greedy, num_records=len(records), num_different=len(found), num_near_ties=num_near_ties
        )

    num_passes = len(target.query_lengths)
    assert say([record(own, own)] * 3) == "greedy equal"
    assert len(target.query_lengths) == num_passes  # nothing differs: no model is asked
    assert say([record(own, own), record(own, wrong)]) == "diverged"
    assert say([record(own, own)], greedy=False) == say([]) == "not audited"
    assert say([record(own, wrong)], method="fsd") == "lossy by design"
    model = Undecided(1, 1e-6)
    tied = Toy(model, NoDrafter(), rejection, GREEDY).generate([0, 1], STOP, 0).token_ids
    ids = [0, 1, *tied[:2]]
    second = int(model.score(ids, 1).logits[0].topk(2).indices[1])
    assert say([record(tied, [*tied[:2], second])], model=model) == "near-tie only"


# The command.


@pytest.fixture
def rows(tmp_path: Path) -> str:
    for language in ("en", "ja"):
        lines = [f"Question {i}: what is {i} + {i}?\t{2 * i}" for i in range(3)]
        (tmp_path / f"mgsm_{language}.tsv").write_text("\n".join(lines), encoding="utf-8")
    return str(tmp_path)


@pytest.fixture
def call(specbench: Specbench, tiny_pair: tuple[str, str], rows: str) -> Specbench:
    def on_tiny_pair(*more: str, drafter: bool = True) -> tuple[int, str, str]:
        models = ["--target", tiny_pair[0], *(["--drafter", tiny_pair[1]] if drafter else [])]
        short = ["--data", rows, "--subset", "en,ja", "--limit", "1", "--set", "generation.max_new_tokens=10"]
        return specbench("audit", *models, *short, *more)

    return on_tiny_pair


@pytest.fixture
def wrong_method(tmp_path: Path) -> Iterator[str]:
    """A rule that accepts everything and is declared lossless, and a method with it."""

    @RULES.register("wrong", lossless=True)
    def wrong() -> VerificationRule:
        return AcceptEverything()

    file = tmp_path / "wrong.yaml"
    file.write_text(
        "name: wrong\nversion: 1\ntitle: wrong\ndrafter: {type: model}\nverification: {rule: wrong}\n"
        "num_draft_tokens: 3\n"
    )
    yield str(file)
    del RULES._builtin["wrong"]


def test_command_reports_and_exits_by_what_it_finds(call: Specbench, wrong_method: str, tmp_path: Path) -> None:
    report = tmp_path / "new" / "audit.json"
    code, out, err = call("--method", f"sd,fsd,{wrong_method}", "--draws", "6", "--output", str(report))
    assert code == 1, err
    found = {each["method"]: each for each in json.loads(report.read_text())["verdicts"]}
    assert {name: each["verdict"] for name, each in found.items()} == {
        "ar": "undecided", "sd": "undecided", "fsd": "lossy by design", "wrong": "diverged",
    }  # fmt: skip
    assert "a verdict needs 20 accepted draft tokens, and there were" in found["sd"]["reason"]
    assert found["ar"]["reason"].startswith("the test lacks power: control (rejected drafts replaced by samples from p")
    assert found["ar"]["reason"].endswith("not rejected: give more --draws")
    assert "0 of 1 lossy method failed the sampling test, as expected." in " ".join(out.split())
    assert "wrong – diverged: its greedy output is not AR's" in out and "AR wrote" in out and "logit gap" in out
    kinds = found["wrong"]["greedy"]["divergence"]
    assert kinds["rule"] == 2 and found["wrong"]["reason"].startswith("its greedy output is not AR's (rule 2)")
    assert found["wrong"]["greedy"]["example"]["kind"] == "rule"
    lines = out.splitlines()
    lines.remove(f"report: {report}")
    assert max(map(len, lines)) <= 100
    assert f"the first {NUM_TOKENS - 2} draft positions and as many steps of a text" in " ".join(out.split())
    code, out, err = call("--method", "sd,fsd", "--draws", "0", "--json")
    assert code == 0, err
    again = json.loads(out)
    assert [each["verdict"] for each in again["verdicts"]] == ["undecided", "undecided", "lossy by design"]
    assert again["verdicts"][0]["reason"] == "it was not sampled"
    assert again["control"] is None and again["subsets"] == ["en", "ja"]


def test_without_a_task_the_bundled_sample_is_read_and_said(specbench: Specbench, tiny_pair: tuple[str, str]) -> None:
    """No hub is asked for the data of an analysis that names none."""
    words = ("--target", tiny_pair[0], "--subset", "en", "--limit", "1", "--set", "generation.max_new_tokens=4")
    said = "without --task, the prompts are the bundled sample of mgsm"
    code, out, err = specbench("audit", "--batch-width", *words, "--json")
    assert code == 0 and said in err.splitlines() and json.loads(out)["prompts"] == [], err
    code, out, err = specbench("drift", *words[:6], "--drafter", tiny_pair[1], "--change", "chat=never")
    assert code == 0 and said in err.splitlines(), err
    code, _, err = specbench("audit", "--batch-width", *words, "--task", "mgsm")
    assert code == 2 and said not in err, "a task that is named is the whole one, of the hub"


def test_the_batch_width_of_a_target_is_shown(call: Specbench) -> None:
    """Without methods nothing else is tested, with methods their widths are."""
    code, out, err = call("--batch-width")
    assert code == 0, err
    assert "batch width · " in out and "passes of 6, kept" in out and "audit · " not in out
    assert "gives the same rows; after wrong draft tokens were read and dropped it gives the same rows" in " ".join(
        out.split()
    )
    code, out, err = call("--method", "sd-tree", "--batch-width", "--draws", "0", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert [each["method"] for each in report["verdicts"]] == ["ar", "sd-tree"] and report["dtype"] == "float32"
    changes = report["batch_width"]["changes"]
    trees = {each["width"] for each in changes if each["compared"] == "tree"}
    chains = {each["width"] for each in changes if each["compared"] == "kept"}
    assert len(trees) == 1 and trees < chains and all(each["max_change"] < 1e-3 for each in changes)
    assert report["batch_width"]["sibling_change"] == 0 and {"fresh tree"} < {each["compared"] for each in changes}
    code, out, err = call("--method", "sd", "--draws", "0", "--json")
    assert code == 0 and json.loads(out)["batch_width"] is None


@pytest.mark.parametrize(
    ("shift", "sibling_change", "said"),
    [
        (1e-5, 0.0, "draft trees are read rightly"),
        (0.4, 0.0, "PASSES OVER DRAFT TREES ARE WRONG: rows of the right tokens are 0.4 standard deviations"),
        (1e-5, 0.2, "whether draft trees are read rightly is not known: wrong siblings change gaps between logits in "
         "rows of the right tokens by up to 0.2"),
    ],
)  # fmt: skip
def test_wrong_passes_are_shown(shift: float, sibling_change: float, said: str) -> None:
    kept = WidthChange(
        compared="kept", width=3, num_positions=4, num_equal=0, median_change=1.0, max_change=2.0, max_gap_change=2.0,
        flip_gaps=(), total_variation=None, divergence=None, shift=0.5,
    )  # fmt: skip
    prompt = kept.model_copy(update={"compared": "prompt", "width": 8, "max_gap_change": 0.01, "shift": 1e-5})
    tree = prompt.model_copy(update={"compared": "fresh tree", "width": 6, "shift": shift})
    width = BatchWidth(
        num_prompts=1, num_positions=4, num_changed=0, mean_square_change=0.0, rounding=1e-6,
        prefixes={"short": (3, 6)}, changes=(kept, prompt, tree), max_shift=1e-3, sibling_change=sibling_change,
    )  # fmt: skip
    report = AuditReport.model_construct(
        task="mgsm", subsets=["en"], target="org/target", dtype="float32", device="cpu", engine="eager",
        reference="target", pass_width=None, batch_width=width,
    )  # fmt: skip
    shown = " ".join(width_table(report).caption)
    assert said in shown and "Twice that change, 0.02, is" in shown
    assert (
        "PASSES OF 3 TOKENS AFTER CACHED ONES ARE WRONG: one row in fifty or more is 0.5 standard deviations" in shown
    )
    right = width.model_copy(update={"changes": (prompt,), "sibling_change": None})
    shown = " ".join(width_table(report.model_copy(update={"batch_width": right})).caption)
    assert "WRONG" not in shown and "draft trees" not in shown


@pytest.mark.parametrize(
    ("num_kept", "num_whole", "said"),
    [
        (4, 4, "the target does not depend on the width of a pass: greedy outputs of a lossless method equal AR's"),
        (4, 1, "passes as methods make them do not depend on their width: greedy outputs of a lossless method equal "
         "AR's. Only one pass over a whole answer rounds otherwise: gaps between logits change by up to 2"),
        (1, 4, "the target depends on the width of a pass: gaps between logits change by up to 2. So a lossless method "
         "may write another token than AR"),
    ],
)  # fmt: skip
def test_what_the_width_means_for_methods_is_told(num_kept: int, num_whole: int, said: str) -> None:
    kept = WidthChange(
        compared="kept", width=3, num_positions=4, num_equal=num_kept, median_change=1.0, max_change=2.0,
        max_gap_change=2.0, flip_gaps=(), total_variation=None, divergence=None, shift=1e-5,
    )  # fmt: skip
    whole = kept.model_copy(update={"compared": "prompt", "width": 8, "num_equal": num_whole})
    width = BatchWidth(
        num_prompts=1, num_positions=4, num_changed=0, mean_square_change=0.0, rounding=1e-6,
        prefixes={"short": (3, 6)}, changes=(kept, whole), max_shift=1e-3,
    )  # fmt: skip
    report = AuditReport.model_construct(
        task="mgsm", subsets=["en"], target="org/target", dtype="float32", device="cpu", engine="eager",
        reference="target", pass_width=None, batch_width=width,
    )  # fmt: skip
    assert said in list(width_caption(report, width))[-1]


def test_all_says_what_could_not_be_run(call: Specbench) -> None:
    code, out, err = call("--method", "all", "--draws", "0", "--json", drafter=False)
    assert code == 0, err
    found = {each["method"]: each for each in json.loads(out)["verdicts"]}
    assert found["ar"]["verdict"] == "undecided"
    assert found["sd"]["verdict"] == "not run" and "--drafter" in found["sd"]["reason"]
    assert set(found) == set(method_names())
    for name, reason in (("mtp", "has no layers for multi-token prediction"), ("eagle2", "no published eagle head")):
        assert found[name]["verdict"] == "not run" and reason in found[name]["reason"]
    code, _, err = call("--method", "mtp", drafter=False)
    assert code == 2 and "has no layers for multi-token prediction" in err and len(err.splitlines()) == 1


@pytest.mark.slow
def test_command_on_the_embedded_pair(specbench: Specbench) -> None:
    short = ("--limit", "1", "--set", "generation.max_new_tokens=64")
    code, out, err = specbench(
        "audit", "--method", "sd", "--subset", "th", *short, "--draws", "240", "--temperature", "1", "--json"
    )  # fewer draws than usual find the control in Thai
    assert code == 0, err
    report = json.loads(out)
    assert [each["verdict"] for each in report["verdicts"]] == ["lossless", "lossless"]
    assert report["control"]["distribution"]["p_value"] < FAILS_BELOW
    assert report["verdicts"][1]["distribution"]["num_accepted"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "sdd"], "unknown method 'sdd': did you mean 'sd'?"),
        (["--method", "sd", "--draws", "-1"], "--draws -1: give 1 or more"),
        (["--method", "sd", "--temperature", "0"], "--temperature 0: samples need 0.01 to 100"),
        (["--method", "sd", "--temperature", "nan"], "--temperature nan: samples need"),
        (["--method", "sd", "--task", "mgsm,mgsm"], "an audit uses the prompts of one task"),
        (["--method", "sd", "--output", "."], "--output .: cannot be written (it is a folder): name another file"),
        (["--method", "sd", "--subset", "enn"], "task 'mgsm' has no subset 'enn'"),
        (["--method", ""], "--task and --method need at least one name"),
    ],
)
def test_mistakes_are_one_line(specbench: Specbench, arguments: list[str], message: str) -> None:
    code, out, err = specbench("audit", *arguments)
    assert code == 2 and out == "" and message in err and len(err.splitlines()) == 1


def test_a_method_that_does_not_fit_is_an_error_when_named(call: Specbench) -> None:
    code, _, err = call("--method", "sd", drafter=False)
    assert code == 2 and "needs a drafter model: give one with --drafter" in err


def test_rows_of_another_dtype_engine_or_model_keep_their_verdict() -> None:
    """Rounding decides where outputs part, so an audit in one dtype says nothing of another."""
    own = row(drafter_revision="a", verdict="not audited")
    greedy = Greedy(num_prompts=8, num_equal=8, num_near_ties=0, num_judged=9, median_position=None, example=None)
    draws = SampleTest(
        num_draws=600, num_tokens=3000, p_value=0.25, p_by_token=[], mean_log_p=-1.0, expected_log_p=-1.0,
        standard_error=0.1, num_drafted=1, num_accepted=1, num_recovered=0, num_bonus=0, example=None,
    )  # fmt: skip
    verdict = MethodVerdict(method="fsd", verdict="lossless", declared_lossless=True, greedy=greedy)
    report = AuditReport.model_construct(
        target=own.target, target_revision=own.target_revision, dtype="float32", engine="eager", attention="sdpa",
        identities={
            "fsd": AuditedIdentity(method=own.method, drafter=own.drafter, drafter_revision="a", engine="eager"),
        },
        verdicts=[verdict.model_copy(update={"distribution": draws})], task="mgsm", subsets=["en", "ja"],
        temperature=1.0, top_k=None, top_p=None,
    )  # fmt: skip
    found = report.verdict_of(own)
    assert own.dtype == "float32" and found is not None and found[0] == "lossless"
    assert found[1].model_dump() == {
        "task": "mgsm", "subsets": ("en", "ja"), "num_prompts": 8, "num_draws": 600, "temperature": 1.0,
        "p_value": 0.25, "report": None,
    }  # fmt: skip
    audited = own.model_copy(update={"verdict": found[0], "evidence": found[1]})
    said = "lossless, by an audit: greedy on 8 prompts, 600 samples at temperature 1, p = 0.25 (mgsm: en, ja)"
    said += "; stated: its report was not kept"
    assert verdict_of(audited) == said and audited.key == own.key
    warm = own.model_copy(update={"sampling": Sampled(temperature=0.7)})
    assert report.verdict_of(warm) is not None
    cut = own.model_copy(update={"sampling": Sampled(temperature=0.7, top_k=50)})
    assert report.verdict_of(cut) is None, "the draws had another truncation"
    assert report.verdict_of(own.model_copy(update={"verdict": "diverged"})) is None, "what the row showed stays"
    undrawn = report.model_copy(update={"verdicts": [verdict]})
    assert undrawn.verdict_of(own) is not None and undrawn.verdict_of(warm) is None, "greedy outputs are not draws"
    for changes in (
        {"dtype": "bfloat16"},
        {"engine": "compiled"},
        {"attention": "float32 K/V"},
        {"target_revision": None},
        {"drafter_revision": "b"},
        {"method": "fsd@1"},
    ):
        assert report.verdict_of(own.model_copy(update=changes)) is None
    earlier = report.model_copy(update={"attention": None})
    assert earlier.verdict_of(own) is not None, "reports of earlier versions have no attention"


@pytest.mark.slow
def test_rows_of_a_leaderboard_get_the_verdict(specbench: Specbench, tiny_pair: tuple[str, str], rows: str) -> None:
    common = ("--target", tiny_pair[0], "--drafter", tiny_pair[1], "--data", rows, "--subset", "en", "--limit", "2")
    common += ("--set", "generation.max_new_tokens=10")
    code, _, err = specbench("run", "--task", "mgsm", "--method", "sd,fsd,pld", *common, "--leaderboard", "board.json")
    assert code == 0, err
    before = {"ar": "greedy equal", "sd": "greedy equal", "fsd": "lossy by design", "pld": "greedy equal"}
    assert {row.method_name: row.verdict for row in load("board.json")} == before
    code, _, err = specbench("audit", "--method", "sd,fsd", *common, "--draws", "200", "--leaderboard", "board.json")
    assert code == 0, err
    assert "verdict written to 2 rows" in err, "sd has too few accepted draft tokens"
    found = {row.method_name: row.verdict for row in load("board.json")}
    assert found == {"ar": "lossless", "sd": "greedy equal", "fsd": "lossy by design", "pld": "greedy equal"}
    code, _, err = specbench("audit", "--method", "sd", *common, "--draws", "0", "--leaderboard", "board.json")
    assert code == 0 and "verdict written to 0 rows" in err, "nothing was decided, so nothing is overwritten"
    code, _, err = specbench("audit", "--method", "all,sd", *common)
    assert code == 2 and "'all' is every method" in err
    code, _, err = specbench("audit", "--method", "sd", *common, "--leaderboard", "none.json")
    assert code == 2 and err.startswith("error: none.json: cannot be read")


@pytest.mark.parametrize(("value", "text"), [(1e-10, "p < 1e-9"), (0.25, "p = 0.25")])
def test_a_p_value_is_printed_with_its_relation(value: float, text: str) -> None:
    assert p_text(value) == text
