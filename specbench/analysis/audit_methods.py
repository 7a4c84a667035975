"""The audit of several methods on one target, with the same prompts, noise floor and control for all."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import ClassVar

from specbench.analysis.audit_distribution import (
    AnyDecoder,
    Cut,
    MethodDraws,
    Outlier,
    WithoutResidual,
    choose_prompts,
    draw_many,
    exact_distributions,
    judge_draws,
    reported_counts,
)
from specbench.analysis.audit_report import (
    AuditFindings,
    ControlTest,
    DrawStatistics,
    DrawTest,
    MethodVerdict,
    Reference,
    TokenDeviation,
    VerdictName,
)
from specbench.core.errors import ConfigError
from specbench.core.progress import Say
from specbench.decoding.decoder import DraftingDecoder, stream_seed
from specbench.decoding.drafters.model import ModelDrafter
from specbench.decoding.loop import StopRules
from specbench.decoding.sampling import Sampling
from specbench.integrations.entry import load, takes_sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.scoring import ScoringModel
from specbench.results.greedy import DecodeText, compare_greedy, measure_noise
from specbench.results.verdict import NUM_LONG_TOKENS, NUM_TOKENS, BaselineAnswer, Greedy, Noise, declares_lossless
from specbench.running.compose import compose
from specbench.running.models import Models, parts
from specbench.served.decoder import SERVED, ServedDecoder
from specbench.specs.method import MethodSpec

NUM_DRAW_PROMPTS = 3
NOT_COUNTED = "it does not count accepted draft tokens, so it may have accepted none"
MIN_ACCEPTED = 20  # draft tokens: with fewer of them a test says little about a method
AR = "ar"
CONTROL = ""  # no method has this name
CONTROLS = {NUM_TOKENS: CONTROL, NUM_LONG_TOKENS: " "}  # names of the controls, by the length of a draw
JudgeDraws = Callable[[MethodDraws], tuple[DrawStatistics, Outlier | None]]


@dataclass
class AuditedMethod:
    """A method under audit. `greedy`, `drawing`: its decoders for greedy decoding and for draws; None if it cannot
    decode in this way, for the reason in `note`."""

    name: str
    declared_lossless: bool | None
    num_draft_tokens: int
    greedy: AnyDecoder | None
    drawing: AnyDecoder | None
    note: str | None = None

    def refuse(self, part: str, error: ConfigError) -> None:
        """Notes why a part of the audit could not be run."""
        self.note = "; ".join(filter(None, [self.note, f"{part} not run: {error}"]))


@dataclass(frozen=True)
class AuditPrompt:
    """A prompt of the greedy comparison, encoded for the target, with its stop rules."""

    name: str
    ids: list[int]
    stop: StopRules


@dataclass(frozen=True)
class Audit:
    """An audit of methods on one target. `subjects`: AR, then the others. `control`: the name and decoder of a wrong
    method. `drafter`: None, or a draft model with the target's vocabulary, used only to choose prompts. `num_draws`: 0
    for no distribution test. `progress` gets lines of text. `models`: the methods' models, which read the prompt of
    many draws only once."""

    reference: ClassVar[Reference] = "target"
    subjects: Sequence[AuditedMethod]
    prompts: Sequence[AuditPrompt]
    target: ScoringModel
    decode_text: DecodeText
    drafter: ScoringModel | None
    control: tuple[str, AnyDecoder]
    sampling: Sampling
    num_draws: int
    seed: int
    progress: Say
    models: Sequence[CausalLM] = ()

    def findings(self) -> AuditFindings:
        """Returns the verdicts. A method that raises ConfigError is "not run", with the reason."""
        ar = self.subjects[0]
        assert ar.greedy is not None
        self.progress("ar: noise floor")
        answers = [
            BaselineAnswer(each.name, each.ids, ar.greedy.generate(each.ids, each.stop, 0).token_ids)
            for each in self.prompts
        ]
        noise = measure_noise(self.target, answers, max(subject.num_draft_tokens for subject in self.subjects) + 1)
        greedy = {subject.name: self._compare_greedy(subject, answers, noise) for subject in self.subjects}
        cuts: list[Cut] = []
        judged: dict[str, DrawTest] = {}
        if self.num_draws:
            self.progress("prompts of the draws")
            cuts = choose_prompts(self.target, self.drafter, answers, self.sampling, NUM_DRAW_PROMPTS, NUM_TOKENS)
            judged = self._test_draws(cuts, noise)
        controls = {
            most_tokens: ControlTest(name=self.control[0], distribution=judged[name])
            for most_tokens, name in CONTROLS.items() if name in judged
        }  # fmt: skip
        answer_tests = self._test_answers(noise) if self.num_draws else {}
        verdicts = [
            decide_verdict(subject, greedy[subject.name], judged, controls, answer_tests) for subject in self.subjects
        ]
        return AuditFindings(
            reference=self.reference, noise=noise, prompts=[*map(self._name_of, cuts)], verdicts=verdicts,
            control=controls.get(NUM_TOKENS), long_control=controls.get(NUM_LONG_TOKENS),
        )  # fmt: skip

    def _compare_greedy(self, subject: AuditedMethod, answers: Sequence[BaselineAnswer], noise: Noise) -> Greedy | None:
        """Returns the greedy evidence of one method; None if it could not be run."""
        self.progress(f"{subject.name}: greedy")
        if subject.greedy is None:
            return None
        try:
            made = [subject.greedy.generate(each.ids, each.stop, 0) for each in self.prompts]
        except ConfigError as error:
            subject.refuse("greedy", error)
            return None
        steps = [step for generation in made for step in generation.steps]
        is_external = any(generation.external is not None for generation in made)
        num_judged = None if is_external else sum(step.num_judged for step in steps)
        reported = [counts["num_accepted"] for generation in made if (counts := reported_counts(generation))]
        is_counted = steps or reported or not is_external
        num_accepted = sum(reported, sum(step.num_accepted for step in steps)) if is_counted else None
        outputs = [generation.token_ids for generation in made]
        return compare_greedy(
            self.target, answers, outputs, noise.tolerance, self.decode_text, num_judged, num_accepted
        )

    def _test_draws(self, cuts: Sequence[Cut], noise: Noise) -> dict[str, DrawTest]:
        """Returns the distribution test of every method that draws, and of the control."""
        prompt_ids = [cut.ids for cut in cuts]
        with ExitStack() as stack:
            for model in self.models:
                stack.enter_context(model.reading_prompts_once())
            draws = self._draw_all(prompt_ids)
        judge, tests = self._make_judge(draws, prompt_ids, self._allowance(noise)), {}
        for name, each in draws.items():
            statistics, outlier = judge(each)
            example = None if outlier is None else self._describe(outlier, cuts)
            tests[name] = DrawTest(
                num_draws=self.num_draws, most_tokens=each.most_tokens, example=example, **dict(statistics),
                **each.counts(),
            )  # fmt: skip
        return tests

    def _allowance(self, noise: Noise) -> float:
        """Returns the E_p[(Δ ln p)²] that a test forgives: twice the measured amplitude."""
        return 4 * noise.mean_square_change / self.sampling.temperature**2

    def _make_judge(
        self, draws: Mapping[str, MethodDraws], prompt_ids: Sequence[list[int]], noise: float
    ) -> JudgeDraws:
        """Returns the test of one method's draws. All methods are tested against one table of exact probabilities."""
        self.progress("exact probabilities")
        sequences = [each.sequences for each in draws.values()]
        rows = exact_distributions(self.target, prompt_ids, sequences, self.sampling, self.num_draws)
        return lambda each: judge_draws(each.sequences, rows, noise)

    def _test_answers(self, noise: Noise) -> Mapping[str, DrawStatistics]:
        """Returns the test of whole drawn answers by subject. It is empty for methods of this process: their greedy
        answers show errors that begin late in a text."""
        return {}

    def _draw_all(self, prompt_ids: Sequence[list[int]]) -> dict[str, MethodDraws]:
        """Returns the draws of every method that draws, and of the control. If a method drafts nothing in its short
        draws, it and the control draw again, with longer draws."""
        draws: dict[str, MethodDraws] = {CONTROLS[NUM_TOKENS]: self._draw(CONTROL, self.control[1], prompt_ids)}
        for subject in self.subjects:
            if subject.drawing is None:
                continue
            try:
                found = self._draw(subject.name, subject.drawing, prompt_ids)
                if subject.num_draft_tokens and found.counts().get("num_drafted") == 0:
                    found = self._draw(subject.name, subject.drawing, prompt_ids, NUM_LONG_TOKENS)
            except ConfigError as error:
                subject.refuse("draws", error)
                continue
            draws[subject.name] = found
        if any(each.most_tokens == NUM_LONG_TOKENS for each in draws.values()):
            draws[CONTROLS[NUM_LONG_TOKENS]] = self._draw(CONTROL, self.control[1], prompt_ids, NUM_LONG_TOKENS)
        return draws

    def _draw(
        self, name: str, decoder: AnyDecoder, prompt_ids: Sequence[list[int]], num_tokens: int = NUM_TOKENS
    ) -> MethodDraws:
        """Returns the draws of one method. Long draws have other random streams than short draws, because the short
        draws decide whether there are long ones."""
        is_long = num_tokens != NUM_TOKENS
        self.progress(f"{name or 'control'}: {self.num_draws} {'longer ' if is_long else ''}draws")
        seed_of = partial(stream_seed, self.seed, "audit-long" if is_long else "audit", name)
        return draw_many(decoder, prompt_ids, self.prompts[0].stop, self.num_draws, seed_of, num_tokens)

    def _describe(self, outlier: Outlier, cuts: Sequence[Cut]) -> TokenDeviation:
        prompt, drawn = outlier.key
        return TokenDeviation(
            prompt=self._name_of(cuts[prompt]), drawn=self.decode_text(drawn), token=self.decode_text([outlier.token]),
            num_observed=outlier.num_observed, num_expected=outlier.num_expected,
        )  # fmt: skip

    def _name_of(self, cut: Cut) -> str:
        """Returns the name of the prompt of a cut, and the end of its text."""
        return f"{cut.name}: …{self.decode_text(cut.ids)[-40:]}"


def decide_verdict(
    subject: AuditedMethod, greedy: Greedy | None, judged: Mapping[str, DrawTest],
    controls: Mapping[int, ControlTest], answers: Mapping[str, DrawStatistics] = MappingProxyType({}),
) -> MethodVerdict:  # fmt: skip
    """Returns the verdict on a method from its evidence. `controls`: by the length of a draw. `answers`: the tests of
    whole drawn answers; if that of AR fails too, it says nothing about other methods."""
    draws, reasons, whole = judged.get(subject.name), [], answers.get(subject.name)
    name: VerdictName = "lossless"
    if subject.declared_lossless is False:
        name = "lossy by design"
    elif greedy is not None and greedy.num_diverged:
        name = "diverged"
        reasons.append("its greedy output is not AR's")
    elif greedy is not None and greedy.num_near_ties:
        name = "near-tie only"
    if name != "lossy by design" and draws is not None and draws.failed:
        name = "diverged"
        reasons.append("its draws do not follow the target's probabilities")
    if whole is not None and whole.failed and not (AR in answers and answers[AR].failed):
        name = "diverged"
        reasons.append("its whole drawn answers are less or more probable than those of the target")
    control = None if draws is None else controls.get(draws.most_tokens)
    caveats = reasons_for_doubt(subject, greedy, control, judged)
    if name in ("lossless", "near-tie only") and caveats:
        name = "undecided"
        reasons += caveats
    if name == "lossless" and greedy is not None and subject.drawing is None:
        name = "greedy equal"
    if name == "lossless" and (greedy is None or draws is None):  # one half of the evidence does not prove it
        name = "undecided"
        reasons.append("its greedy output was not compared" if greedy is None else "nothing was drawn")
    if greedy is None and draws is None:
        name = "not run"
    return MethodVerdict(
        method=subject.name, verdict=name, declared_lossless=subject.declared_lossless,
        reason="; ".join(filter(None, [*reasons, subject.note])) or None, greedy=greedy, distribution=draws,
        answers=whole,
    )  # fmt: skip


def reasons_for_doubt(
    subject: AuditedMethod, greedy: Greedy | None, control: ControlTest | None, judged: Mapping[str, DrawTest]
) -> list[str]:
    """Returns the reasons why passed tests prove nothing."""
    found = []
    if subject.num_draft_tokens and greedy is not None:
        if greedy.num_judged == 0:
            found.append("none of its draft tokens was judged in greedy decoding")
        elif greedy.num_accepted is None:
            found += [NOT_COUNTED] if subject.drawing is not None else []  # "greedy equal" does not claim more
        elif greedy.num_accepted < MIN_ACCEPTED:
            problem = too_few_accepted(greedy.num_accepted)
            found.append(f"{problem} in greedy decoding: give more prompts (--limit, --subset)")
    if (draws := judged.get(subject.name)) is not None:
        if control is not None and not control.caught:
            found.append(f"not enough draws: the control ({control.name}) was not caught: give more --draws")
        elif subject.name != AR and AR in judged and judged[AR].failed:
            found.append("AR itself fails the test, so passing it proves nothing")
        elif subject.num_draft_tokens and draws.num_drafted == 0:
            found.append(f"it drafted nothing in draws of up to {draws.most_tokens} tokens")
        elif subject.num_draft_tokens and draws.num_accepted is None:
            found.append(NOT_COUNTED)
        elif subject.num_draft_tokens and draws.num_accepted is not None and draws.num_accepted < MIN_ACCEPTED:
            found.append(f"{too_few_accepted(draws.num_accepted)} in the draws: give more --draws")
    return list(dict.fromkeys(found))


def too_few_accepted(num_accepted: int) -> str:
    return f"a verdict needs {MIN_ACCEPTED} accepted draft tokens, and there were {num_accepted}"


GREEDY = Sampling(0.0)
HOTTER = 1.5
EAGER = "ar (eager)"


def make_subjects(
    methods: Sequence[MethodSpec], models: Models, sampling: Sampling, strict: bool
) -> tuple[list[AuditedMethod], list[MethodVerdict]]:
    """Returns the methods that fit the models, and verdicts on the others. If `strict`, raises ConfigError for a method
    that does not fit."""
    subjects, others = [], []
    for method in methods:
        if method.decodes_with == "drafter" and not has_same_tokens(models.drafters[method.name], models.target):
            reason = "its tokens are the drafter's, which are not the target's: nothing to compare"
            others.append(without_evidence("lossy by design", method, reason))
            continue
        try:
            subjects.append(make_subject(method, models.pair(method), sampling))
        except ConfigError as error:
            if strict:
                raise
            others.append(without_evidence("not run", method, str(error)))
    return subjects, others


def make_subject(method: MethodSpec, pair: ModelPair, sampling: Sampling) -> AuditedMethod:
    """Returns a method composed for greedy decoding and for draws. Raises ConfigError if it can do neither."""
    is_served = method.decoder is not None and method.decoder.type == SERVED
    declared = is_served or declares_lossless(method)  # engines say that speculation keeps the target's distribution
    subject = AuditedMethod(method.name, declared, method.most_draft_tokens, greedy=None, drawing=None)
    try:
        subject.greedy = compose(method, pair, GREEDY)
    except ConfigError as error:
        subject.refuse("greedy", error)
        subject.drawing = compose(method, pair, sampling)
        return subject
    if method.decoder is not None and not is_served and not takes_sampling(load(method.decoder.entry)):
        subject.note = "nothing drawn: its code takes no 'sampling', so it decodes greedily only"
        return subject
    try:
        subject.drawing = compose(method, pair, sampling)
    except ConfigError as error:
        subject.refuse("draws", error)
    return subject


def eager_baseline(baseline: MethodSpec, target: CausalLM) -> AuditedMethod:
    """Returns AR of a compiled target on the eager engine: it shows whether both engines write the same text.

    It is no part of the noise floor: the audit must not tolerate a difference between the engines.
    """
    eager = CausalLM(target.model, target.tokenizer, target.name, target.revision)
    made = compose(baseline, ModelPair(eager), GREEDY)
    return AuditedMethod(
        EAGER, True, 0, greedy=made, drawing=None, note="AR of --engine eager, compared with AR of this engine"
    )


def without_evidence(verdict: VerdictName, method: MethodSpec, reason: str) -> MethodVerdict:
    """Returns the verdict on a method that was not run."""
    return MethodVerdict(
        method=method.name, verdict=verdict, declared_lossless=declares_lossless(method), reason=reason
    )


def same_vocabulary_drafter(methods: Sequence[MethodSpec], models: Models) -> tuple[MethodSpec, CausalLM] | None:
    """Returns a draft model with the target's tokens, and its method; None if there is none. The run's draft model goes
    before those that methods name, which may be trained for other prompts, so that few of their tokens are accepted."""
    for method in sorted(parts(methods), key=lambda method: method.checkpoint is not None):
        drafter = models.drafters.get(method.name)
        drafts = method.num_draft_tokens > 0 and method.same_vocabulary
        if drafter is not None and drafts and has_same_tokens(drafter, models.target):
            return method, drafter
    return None


def has_same_tokens(drafter: CausalLM, target: CausalLM) -> bool:
    """Returns whether two models give the same ids to the same tokens."""
    return drafter.vocabulary == target.vocabulary and drafter.vocab_size == target.vocab_size


def make_control(
    baseline: MethodSpec, drafting: tuple[MethodSpec, CausalLM] | None, models: Models, sampling: Sampling
) -> tuple[str, AnyDecoder]:
    """Returns the name and decoder of a wrong method: speculative decoding without the residual, or AR at a higher
    temperature if no drafter has the target's tokens. `drafting`: the result of `same_vocabulary_drafter`."""
    autoregressive = compose(baseline, models.pair(baseline), sampling)
    assert isinstance(autoregressive, DraftingDecoder | ServedDecoder)
    if drafting is None or isinstance(autoregressive, ServedDecoder):
        hotter = replace(sampling, temperature=HOTTER * sampling.temperature)
        return f"AR at {HOTTER} times the temperature", replace(autoregressive, sampling=hotter)
    method, drafter = drafting
    wrong = replace(autoregressive, method=method, drafter=ModelDrafter(drafter, sampling), rule=WithoutResidual())
    return "rejected drafts replaced by draws from p instead of the residual", wrong
