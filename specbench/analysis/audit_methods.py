"""The audit of several methods on one target: the same prompts, the same noise floor, the same control for all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from specbench.analysis.audit_distribution import (
    AcceptEverything,
    AnyDecoder,
    Cut,
    MethodDraws,
    Outlier,
    choose_prompts,
    draw_many,
    exact_rows,
    judge_draws,
)
from specbench.analysis.audit_report import (
    AuditFindings,
    ControlTest,
    DrawTest,
    MethodVerdict,
    TokenDeviation,
    VerdictName,
)
from specbench.core.errors import ConfigError
from specbench.decoding.decoder import DraftingDecoder, stream_seed
from specbench.decoding.drafters.model import ModelDrafter, ScoringModel
from specbench.decoding.generation_state import StopRules
from specbench.decoding.sampling import Sampling
from specbench.integrations.entry import load, takes_sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.results.greedy import DecodeText, compare, measure_noise
from specbench.results.verdict import NUM_TOKENS, BaselineAnswer, Greedy, Noise, declaration
from specbench.running.compose import compose
from specbench.running.models import Models, parts
from specbench.specs.method import MethodSpec

NUM_DRAW_PROMPTS = 3
AR = "ar"
CONTROL = ""  # no method has this name
Progress = Callable[[str], None]


@dataclass
class AuditedMethod:
    """A method under audit, composed for greedy decoding and for draws; either is null where it cannot, with a note."""

    name: str
    declared_lossless: bool | None
    num_draft_tokens: int
    greedy: AnyDecoder | None
    drawing: AnyDecoder | None
    note: str | None = None

    def refuse(self, part: str, error: ConfigError) -> None:
        """Add the reason why a part could not be run to the note."""
        self.note = "; ".join(filter(None, [self.note, f"{part} not run: {error}"]))


@dataclass(frozen=True)
class AuditPrompt:
    """A prompt of the greedy comparison, encoded for the target, and where its generation ends."""

    name: str
    ids: list[int]
    stop: StopRules


@dataclass(frozen=True)
class AuditConditions:
    """The conditions of all methods of an audit. `control`: a wrong method with its name. `drafter`, if any, shares the
    target's vocabulary and is used to choose prompts only. `num_draws` 0 leaves the distribution test out."""

    target: ScoringModel
    decode_text: DecodeText
    drafter: ScoringModel | None
    control: tuple[str, AnyDecoder]
    sampling: Sampling
    num_draws: int
    seed: int


def audit_methods(
    subjects: Sequence[AuditedMethod], prompts: Sequence[AuditPrompt], conditions: AuditConditions, progress: Progress
) -> AuditFindings:
    """Audit methods, the first of which is AR. A method that raises ConfigError on the way is "not run", with the
    reason."""
    ar = subjects[0]
    assert ar.greedy is not None
    progress("ar: noise floor")
    answers = [
        BaselineAnswer(each.name, each.ids, ar.greedy.generate(each.ids, each.stop, 0).token_ids) for each in prompts
    ]
    noise = measure_noise(conditions.target, answers, max(subject.num_draft_tokens for subject in subjects) + 1)
    greedy = {}
    for subject in subjects:
        progress(f"{subject.name}: greedy")
        greedy[subject.name] = compare_greedy(subject, prompts, answers, noise, conditions)
    cuts: list[Cut] = []
    judged: dict[str, DrawTest] = {}
    if conditions.num_draws:
        progress("prompts of the draws")
        models = (conditions.target, conditions.drafter)
        cuts = choose_prompts(*models, answers, conditions.sampling, NUM_DRAW_PROMPTS, NUM_TOKENS)
        judged = tests_of_draws(subjects, cuts, prompts[0].stop, noise, conditions, progress)
    control = ControlTest(name=conditions.control[0], distribution=judged[CONTROL]) if judged else None
    verdicts = [decide(subject, greedy[subject.name], judged, control) for subject in subjects]
    prompt_names = [named(cut, conditions) for cut in cuts]
    return AuditFindings(noise=noise, prompts=prompt_names, control=control, verdicts=verdicts)


def compare_greedy(
    subject: AuditedMethod,
    prompts: Sequence[AuditPrompt],
    answers: Sequence[BaselineAnswer],
    noise: Noise,
    conditions: AuditConditions,
) -> Greedy | None:
    """Returns the greedy evidence of one method; None where it could not be run."""
    if subject.greedy is None:
        return None
    try:
        made = [subject.greedy.generate(each.ids, each.stop, 0) for each in prompts]
    except ConfigError as error:
        subject.refuse("greedy", error)
        return None
    counts = all(generation.external is None for generation in made)
    num_judged = sum(step.num_judged for generation in made for step in generation.steps) if counts else None
    outputs = [generation.token_ids for generation in made]
    return compare(conditions.target, answers, outputs, noise.tolerance, conditions.decode_text, num_judged)


def tests_of_draws(
    subjects: Sequence[AuditedMethod],
    cuts: Sequence[Cut],
    stop: StopRules,
    noise: Noise,
    conditions: AuditConditions,
    progress: Progress,
) -> dict[str, DrawTest]:
    """Returns the distribution test of every method that draws, and of the control, over one table of exact
    probabilities."""
    drawing = {subject.name: (subject, subject.drawing) for subject in subjects if subject.drawing is not None}
    prompt_ids = [cut.ids for cut in cuts]
    draws: dict[str, MethodDraws] = {}
    for name, (subject, decoder) in {**drawing, CONTROL: (None, conditions.control[1])}.items():
        progress(f"{name or 'control'}: {conditions.num_draws} draws")
        seed_of = partial(stream_seed, conditions.seed, "audit", name)
        try:
            draws[name] = draw_many(decoder, prompt_ids, stop, conditions.num_draws, seed_of)
        except ConfigError as error:
            if subject is None:
                raise
            subject.refuse("draws", error)
    progress("exact probabilities")
    sequences = [each.sequences for each in draws.values()]
    rows = exact_rows(conditions.target, prompt_ids, sequences, conditions.sampling, conditions.num_draws)
    # Twice the amplitude that was measured.
    allowance = 4 * noise.mean_square_change / conditions.sampling.temperature**2
    tests = {}
    for name, each in draws.items():
        statistics, outlier = judge_draws(each.sequences, rows, allowance)
        example = None if outlier is None else deviation(outlier, cuts, conditions)
        tests[name] = DrawTest(num_draws=conditions.num_draws, example=example, **dict(statistics), **each.counts())
    return tests


def deviation(outlier: Outlier, cuts: Sequence[Cut], conditions: AuditConditions) -> TokenDeviation:
    prompt, drawn = outlier.key
    return TokenDeviation(
        prompt=named(cuts[prompt], conditions), drawn=conditions.decode_text(drawn),
        token=conditions.decode_text([outlier.token]), num_observed=outlier.num_observed,
        num_expected=outlier.num_expected,
    )  # fmt: skip


def decide(
    subject: AuditedMethod, greedy: Greedy | None, judged: Mapping[str, DrawTest], control: ControlTest | None
) -> MethodVerdict:
    """Returns the verdict on a method from its evidence."""
    draws, reasons = judged.get(subject.name), []
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
    doubts = reasons_for_doubt(subject, greedy, control, judged)
    if name in ("lossless", "near-tie only") and doubts:
        name = "undecided"
        reasons += doubts
    if name == "lossless" and greedy is not None and subject.drawing is None:
        name = "greedy equal"
    if name == "lossless" and (greedy is None or draws is None):  # one half of the evidence is no proof
        name = "undecided"
        reasons.append("its greedy output was not compared" if greedy is None else "nothing was drawn")
    if greedy is None and draws is None:
        name = "not run"
    return MethodVerdict(
        method=subject.name, verdict=name, declared_lossless=subject.declared_lossless,
        reason="; ".join(filter(None, [*reasons, subject.note])) or None, greedy=greedy, distribution=draws,
    )  # fmt: skip


def reasons_for_doubt(
    subject: AuditedMethod, greedy: Greedy | None, control: ControlTest | None, judged: Mapping[str, DrawTest]
) -> list[str]:
    """Returns why parts of the evidence that pass prove nothing."""
    found = []
    if subject.num_draft_tokens and greedy is not None and greedy.num_judged == 0:
        found.append("none of its draft tokens was judged in greedy decoding")
    if (draws := judged.get(subject.name)) is not None:
        if control is not None and not control.caught:
            found.append(f"not enough draws: the control ({control.name}) was not caught")
        elif subject.name != AR and AR in judged and judged[AR].failed:
            found.append("AR itself fails the test, so passing it proves nothing")
        elif subject.num_draft_tokens and draws.num_drafted == 0:
            found.append("it drafted nothing in the draws")
    return found


def named(cut: Cut, conditions: AuditConditions) -> str:
    """Returns the name of the prompt of a cut, and the end of its text."""
    return f"{cut.name}: …{conditions.decode_text(cut.ids)[-40:]}"


GREEDY = Sampling(0.0)
HOTTER = 1.5
EAGER = "ar (eager)"


def audited_methods(
    methods: Sequence[MethodSpec], models: Models, sampling: Sampling, strict: bool
) -> tuple[list[AuditedMethod], list[MethodVerdict]]:
    """Returns the methods that fit the models, and verdicts on the others. Raises ConfigError for one of these if
    `strict`."""
    subjects, others = [], []
    for method in methods:
        if method.decodes_with == "drafter" and not has_tokens_of(models.drafters[method.name], models.target):
            reason = "its tokens are the drafter's, which are not the target's: nothing to compare"
            others.append(without_evidence("lossy by design", method, reason))
            continue
        try:
            subjects.append(audited_method(method, models.pair(method), sampling))
        except ConfigError as error:
            if strict:
                raise
            others.append(without_evidence("not run", method, str(error)))
    return subjects, others


def audited_method(method: MethodSpec, pair: ModelPair, sampling: Sampling) -> AuditedMethod:
    """Returns a method composed for greedy decoding and for draws. Raises ConfigError where it can do neither."""
    subject = AuditedMethod(method.name, declaration(method), method.most_draft_tokens, greedy=None, drawing=None)
    try:
        subject.greedy = compose(method, pair, GREEDY)
    except ConfigError as error:
        subject.refuse("greedy", error)
        subject.drawing = compose(method, pair, sampling)
        return subject
    if method.decoder is not None and not takes_sampling(load(method.decoder.entry)):
        subject.note = "nothing drawn: its code takes no 'sampling', so it decodes greedily only"
        return subject
    try:
        subject.drawing = compose(method, pair, sampling)
    except ConfigError as error:
        subject.refuse("draws", error)
    return subject


def eager_baseline(baseline: MethodSpec, target: CausalLM) -> AuditedMethod:
    """Returns AR of a compiled target, run by the eager engine: it shows whether both engines write the same.

    The difference between the engines is no part of the noise; else the audit would tolerate it.
    """
    eager = CausalLM(target.model, target.tokenizer, target.name, target.revision)
    made = compose(baseline, ModelPair(eager), GREEDY)
    return AuditedMethod(
        EAGER, True, 0, greedy=made, drawing=None, note="AR of --engine eager, compared with AR of this engine"
    )


def without_evidence(verdict: VerdictName, method: MethodSpec, reason: str) -> MethodVerdict:
    """Returns the verdict on a method that was not tried."""
    return MethodVerdict(method=method.name, verdict=verdict, declared_lossless=declaration(method), reason=reason)


def same_vocabulary_drafter(methods: Sequence[MethodSpec], models: Models) -> tuple[MethodSpec, CausalLM] | None:
    """Returns the first draft model with the target's own tokens, with its method; None where there is none."""
    for method in parts(methods):
        drafter = models.drafters.get(method.name)
        drafts = method.num_draft_tokens > 0 and method.same_vocabulary
        if drafter is not None and drafts and has_tokens_of(drafter, models.target):
            return method, drafter
    return None


def has_tokens_of(drafter: CausalLM, target: CausalLM) -> bool:
    """Returns whether two models give the same ids to the same tokens."""
    return drafter.vocabulary == target.vocabulary and drafter.vocab_size == target.vocab_size


def make_control(
    baseline: MethodSpec, drafting: tuple[MethodSpec, CausalLM] | None, models: Models, sampling: Sampling
) -> tuple[str, AnyDecoder]:
    """Returns a wrong method: drafts that are never rejected, or, without drafts in the target's tokens (`drafting`,
    from `same_vocabulary_drafter`), AR at a higher temperature."""
    autoregressive = compose(baseline, models.pair(baseline), sampling)
    assert isinstance(autoregressive, DraftingDecoder)
    if drafting is None:
        hotter = replace(sampling, temperature=HOTTER * sampling.temperature)
        return f"AR at {HOTTER} times the temperature", replace(autoregressive, sampling=hotter)
    method, drafter = drafting
    wrong = replace(
        autoregressive, method=method, drafter=ModelDrafter(drafter, sampling), rule=AcceptEverything()
    )  # fmt: skip
    return "every draft accepted", wrong
