"""The audit of several methods on one target: the same prompts, the same noise floor, the same control for all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from specbench.analysis.audit_distribution import (
    AcceptEverything,
    Cut,
    Generates,
    MethodDraws,
    PromptPrefix,
    TokenDistribution,
    choose_prompts,
    draw_many,
    exact_rows,
    judge,
)
from specbench.analysis.audit_report import (
    AuditFindings,
    ControlTest,
    DrawTest,
    MethodVerdict,
    TokenDeviation,
    VerdictName,
    decide,
)
from specbench.core.errors import ConfigError
from specbench.decoding.decoder import DraftingDecoder, stream_seed
from specbench.decoding.drafters.model import ModelDrafter
from specbench.decoding.generation_state import StopRules
from specbench.decoding.sampling import Sampling
from specbench.integrations.entry import load, takes_sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.scoring import ScoringModel
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
    greedy: Generates | None
    drawing: Generates | None
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
    control: tuple[str, Generates]
    sampling: Sampling
    num_draws: int
    seed: int


def audit_methods(
    subjects: Sequence[AuditedMethod], prompts: Sequence[AuditPrompt], bench: AuditConditions, say: Progress
) -> AuditFindings:
    """Audit methods, the first of which is AR. A method that raises ConfigError on the way is "not run", with the
    reason."""
    ar = subjects[0]
    assert ar.greedy is not None
    say("ar: noise floor")
    answers = [
        BaselineAnswer(each.name, each.ids, ar.greedy.generate(each.ids, each.stop, 0).token_ids) for each in prompts
    ]
    noise = measure_noise(bench.target, answers, max(subject.num_draft_tokens for subject in subjects) + 1)
    greedy = {}
    for subject in subjects:
        say(f"{subject.name}: greedy")
        greedy[subject.name] = compare_greedy(subject, prompts, answers, noise, bench)
    cuts: list[Cut] = []
    judged: dict[str, DrawTest] = {}
    if bench.num_draws:
        say("prompts of the draws")
        cuts = choose_prompts(bench.target, bench.drafter, answers, bench.sampling, NUM_DRAW_PROMPTS, NUM_TOKENS)
        judged = judge_draws(subjects, cuts, prompts[0].stop, noise, bench, say)
    control = ControlTest(name=bench.control[0], distribution=judged[CONTROL]) if judged else None
    verdicts = [
        decide(subject.name, subject.declared_lossless, greedy[subject.name], judged.get(subject.name),
               reasons_for_doubt(subject, greedy[subject.name], control, judged), subject.note,
               greedy_only=subject.drawing is None)
        for subject in subjects
    ]  # fmt: skip
    return AuditFindings(noise=noise, prompts=[named(cut, bench) for cut in cuts], control=control, verdicts=verdicts)


def compare_greedy(
    subject: AuditedMethod,
    prompts: Sequence[AuditPrompt],
    answers: Sequence[BaselineAnswer],
    noise: Noise,
    bench: AuditConditions,
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
    return compare(bench.target, answers, outputs, noise.tolerance, bench.decode_text, num_judged)


def judge_draws(
    subjects: Sequence[AuditedMethod],
    cuts: Sequence[Cut],
    stop: StopRules,
    noise: Noise,
    bench: AuditConditions,
    say: Progress,
) -> dict[str, DrawTest]:
    """Returns the distribution test of every method that draws, and of the control, over one table of exact
    probabilities."""
    draws: dict[str, MethodDraws] = {}
    for subject in subjects:
        if subject.drawing is not None:
            say(f"{subject.name}: {bench.num_draws} draws")
            try:
                draws[subject.name] = draw(subject.name, subject.drawing, cuts, stop, bench)
            except ConfigError as error:
                subject.refuse("draws", error)
    say(f"control: {bench.num_draws} draws")
    draws[CONTROL] = draw(CONTROL, bench.control[1], cuts, stop, bench)
    say("exact probabilities")
    prompt_ids = [cut.ids for cut in cuts]
    sequences = [each.sequences for each in draws.values()]
    rows = exact_rows(bench.target, prompt_ids, sequences, bench.sampling, bench.num_draws)
    allowance = 4 * noise.mean_square_change / bench.sampling.temperature**2  # twice the amplitude that was measured
    return {name: tested_draws(each, rows, cuts, allowance, bench) for name, each in draws.items()}


def draw(name: str, decoder: Generates, cuts: Sequence[Cut], stop: StopRules, bench: AuditConditions) -> MethodDraws:
    return draw_many(
        decoder, [cut.ids for cut in cuts], stop, bench.num_draws,
        lambda prompt, number: stream_seed(bench.seed, "audit", name, prompt, number),
    )  # fmt: skip


def tested_draws(
    draws: MethodDraws,
    rows: dict[PromptPrefix, TokenDistribution],
    cuts: Sequence[Cut],
    allowance: float,
    bench: AuditConditions,
) -> DrawTest:
    result = judge(draws.sequences, rows, allowance)
    example = None
    if (outlier := result.outlier) is not None:
        prompt, drawn = outlier.key
        example = TokenDeviation(
            prompt=named(cuts[prompt], bench), drawn=bench.decode_text(drawn),
            token=bench.decode_text([outlier.token]), num_observed=outlier.num_observed,
            num_expected=outlier.num_expected,
        )  # fmt: skip
    return DrawTest(
        num_draws=bench.num_draws, num_tokens=result.num_tokens, p_value=result.p_value,
        p_by_token=result.p_by_token, mean_log_p=result.mean_log_p, expected_log_p=result.expected_log_p,
        standard_error=result.standard_error, num_drafted=draws.num_drafted, num_accepted=draws.num_accepted,
        num_recovered=draws.num_recovered, num_bonus=draws.num_bonus, example=example,
    )  # fmt: skip


def reasons_for_doubt(
    subject: AuditedMethod, greedy: Greedy | None, control: ControlTest | None, judged: Mapping[str, DrawTest]
) -> str | None:
    """Returns why a part of the evidence that passes proves nothing; None where both parts prove something, or were not
    tried."""
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
    return "; ".join(found) or None


def named(cut: Cut, bench: AuditConditions) -> str:
    """Returns the name of the prompt of a cut, and the end of its text."""
    return f"{cut.name}: …{bench.decode_text(cut.ids)[-40:]}"


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
        if method.decodes_with == "drafter" and not speaks_as(models.drafters[method.name], models.target):
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
        EAGER, True, 0, greedy=made, drawing=None, note="AR of --engine eager beside that of this engine"
    )


def without_evidence(verdict: VerdictName, method: MethodSpec, reason: str) -> MethodVerdict:
    """Returns the verdict on a method that was not tried."""
    return MethodVerdict(method=method.name, verdict=verdict, declared_lossless=declaration(method), reason=reason)


def same_vocabulary_drafter(methods: Sequence[MethodSpec], models: Models) -> tuple[MethodSpec, CausalLM] | None:
    """Returns the first draft model with the target's own tokens, with its method; None where there is none."""
    for method in parts(methods):
        drafter = models.drafters.get(method.name)
        drafts = method.num_draft_tokens > 0 and method.same_vocabulary
        if drafter is not None and drafts and speaks_as(drafter, models.target):
            return method, drafter
    return None


def speaks_as(drafter: CausalLM, target: CausalLM) -> bool:
    """Returns whether two models give the same ids to the same tokens."""
    return drafter.vocabulary == target.vocabulary and drafter.vocab_size == target.vocab_size


def make_control(methods: Sequence[MethodSpec], models: Models, sampling: Sampling) -> tuple[str, Generates]:
    """Returns a wrong method: drafts that are never rejected, or, without drafts in the target's tokens, AR at a higher
    temperature."""
    autoregressive = compose(methods[0], models.pair(methods[0]), sampling)
    assert isinstance(autoregressive, DraftingDecoder)
    found = same_vocabulary_drafter(methods, models)
    if found is None:
        hotter = replace(sampling, temperature=HOTTER * sampling.temperature)
        return f"AR at {HOTTER} times the temperature", replace(autoregressive, sampling=hotter)
    method, drafter = found
    wrong = replace(
        autoregressive, method=method, drafter=ModelDrafter(drafter, sampling), rule=AcceptEverything()
    )  # fmt: skip
    return "every draft accepted", wrong
