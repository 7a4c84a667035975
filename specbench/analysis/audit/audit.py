"""One `specbench audit`: specs, data, models and decoders → verdicts, by the same prompts, noise floor and control."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from rich.console import Console

from specbench.analysis.audit.distribution import (
    Cut,
    MethodSamples,
    PromptPrefix,
    TokenDistribution,
    Tokens,
    WithoutResidual,
    choose_prompts,
    compare_with_samples,
    compare_with_target,
    draw_samples,
    exact_distributions,
    reported_counts,
)
from specbench.analysis.audit.report import (
    AuditedIdentity,
    AuditFindings,
    AuditReport,
    ControlTest,
    MethodVerdict,
    Reference,
    SampleStatistics,
    SampleTest,
    TokenDeviation,
    VerdictName,
)
from specbench.core.environment import EMBEDDED, set_threads
from specbench.core.errors import ConfigError
from specbench.core.progress import Say
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import Decoder, DraftingDecoder, stream_seed, tree_width
from specbench.decoding.drafters import ModelDrafter
from specbench.decoding.loop import StopRules
from specbench.decoding.sampling import Sampling
from specbench.integrations.external import load_entry
from specbench.integrations.served.decoder import ServedDecoder
from specbench.integrations.served.engine import Engine
from specbench.models.batch_width import BaselineAnswer, BatchWidth, measure_batch_width
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.gguf.files import is_gguf
from specbench.models.loading import load_model
from specbench.models.near_ties import DecodeText, Greedy, compare_greedy
from specbench.models.own_passes import OwnPasses
from specbench.models.scoring import ScoringModel
from specbench.results.verdict import NUM_LONG_TOKENS, NUM_TOKENS, declares_lossless
from specbench.running.capture_plan import allocate_and_capture_for
from specbench.running.models import LoadedModels, load_models, parts
from specbench.running.plan import (
    Loaded,
    drafter_identity,
    load_data,
    make_subset_runs,
    with_present_subsets,
)
from specbench.running.request import ALL, Request, requested_methods, run_spec
from specbench.specs.catalogue import load_method, versioned_name
from specbench.specs.components import MAX_TEMPERATURE, MIN_TEMPERATURE, SERVED
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec

NUM_SAMPLE_PROMPTS = 3
WIDTH_ONLY = "each token that differs is the argmax of its own pass: the target itself depends on the width of a pass"
NOT_COUNTED = "it does not count accepted draft tokens, so it may have accepted none"
MIN_ACCEPTED = 20  # draft tokens: with fewer of them a test says little about a method
TOO_FEW = f"a verdict needs {MIN_ACCEPTED} accepted draft tokens"
NUM_ANSWERS = 4  # whole drawn answers of a server: to score one, a server of the target gets a request for each token
AR = "ar"
AR_AGAIN = "ar again"  # no method has a name with a blank
CONTROL = ""  # no method has this name


@dataclass
class AuditedMethod:
    """A method under audit. `greedy`, `drawing`: its decoders for greedy decoding and for samples; None if it cannot
    decode in this way, for the reason in `note`. `tree_width`: the tokens of its widest pass over a tree; None: it
    drafts chains."""

    name: str
    declared_lossless: bool | None
    num_draft_tokens: int
    greedy: Decoder | None
    drawing: Decoder | None
    note: str | None = None
    tree_width: int | None = None

    def refuse(self, part: str, error: ConfigError) -> None:
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
    many samples only once. `is_served`: whether servers answer. `reference`: "ar" if the target of the servers is not
    in this process, so that its exact probabilities are not known: then samples are compared with further samples of
    the first server, which is AR. `shows_width`: measures all that the report tells of the width of a pass."""

    subjects: Sequence[AuditedMethod]
    prompts: Sequence[AuditPrompt]
    target: ScoringModel
    decode_text: DecodeText
    drafter: ScoringModel | None
    control: tuple[str, Decoder]
    sampling: Sampling
    num_draws: int
    seed: int
    progress: Say
    models: Sequence[CausalLM] = ()
    is_served: bool = False
    reference: Reference = "target"
    shows_width: bool = False

    def findings(self) -> AuditFindings:
        """Returns the verdicts. A method that raises ConfigError is "not run", with the reason."""
        ar = self.subjects[0]
        assert ar.greedy is not None
        answers = []
        for number, each in enumerate(self.prompts, start=1):
            self.progress(f"ar: answer {number} of {len(self.prompts)}")
            answers.append(BaselineAnswer(each.name, each.ids, ar.greedy.generate(each.ids, each.stop, 0).token_ids))
        self.progress("ar: noise floor")
        most = max(subject.num_draft_tokens for subject in self.subjects) + 1
        if len(self.subjects) == 1:
            most = MAX_WIDTH  # nothing is drafted: the widths of no method are asked for
        trees = max((subject.tree_width for subject in self.subjects if subject.tree_width), default=None)
        width = measure_batch_width(
            self.target, answers, most, trees, whole=self.shows_width,
            progress=lambda left: self.progress(f"ar: noise floor · {left}"),
        )  # fmt: skip
        noise = width.noise()
        allowance = 4 * noise.mean_square_change / self.sampling.temperature**2  # twice the measured amplitude
        greedy = {subject.name: self._compare_greedy(subject, answers, width) for subject in self.subjects}
        cuts: list[Cut] = []
        tests: dict[str, SampleTest] = {}
        controls: dict[int, ControlTest] = {}
        answer_tests: dict[str, SampleStatistics] = {}
        if self.num_draws:
            self.progress("prompts of the samples")
            cuts = choose_prompts(self.target, self.drafter, answers, self.sampling, NUM_SAMPLE_PROMPTS, NUM_TOKENS)
            for (name, num_tokens), test in self._test_samples(cuts, allowance).items():
                if name == CONTROL:
                    controls[num_tokens] = ControlTest(name=self.control[0], distribution=test)
                else:
                    tests[name] = test
            answer_tests = self._test_answers(allowance)
        verdicts = [
            decide_verdict(subject, greedy[subject.name], tests, controls, answer_tests) for subject in self.subjects
        ]
        return AuditFindings(
            reference=self.reference, noise=noise, batch_width=width if self.shows_width else None,
            prompts=[self._name_of(cut) for cut in cuts], verdicts=verdicts,
            control=controls.get(NUM_TOKENS), long_control=controls.get(NUM_LONG_TOKENS),
        )  # fmt: skip

    def _compare_greedy(
        self, subject: AuditedMethod, answers: Sequence[BaselineAnswer], width: BatchWidth
    ) -> Greedy | None:
        self.progress(f"{subject.name}: greedy")
        if subject.greedy is None:
            return None
        try:
            generations = [subject.greedy.generate(each.ids, each.stop, 0) for each in self.prompts]
        except ConfigError as error:
            subject.refuse("greedy", error)
            return None
        steps = [step for generation in generations for step in generation.steps]
        is_external = any(generation.external is not None for generation in generations)
        num_verified = None if is_external else sum(step.num_verified for step in steps)
        reported = [counts["num_accepted"] for generation in generations if (counts := reported_counts(generation))]
        is_counted = steps or reported or not is_external
        num_accepted = sum(reported, sum(step.num_accepted for step in steps)) if is_counted else None
        outputs = [generation.token_ids for generation in generations]

        def decode_again(index: int, position: int) -> OwnPasses | None:
            prompt, decoder = self.prompts[index], subject.greedy
            if not isinstance(decoder, Decoder):
                return None
            return decoder.record_passes(prompt.ids, prompt.stop, 0, position)

        noise = width.noise(subject.num_draft_tokens + 1, subject.tree_width)
        return compare_greedy(
            self.target, answers, outputs, noise.tolerance, self.decode_text, num_verified, num_accepted, decode_again,
            width.trust(subject.tree_width), noise.kept_tolerance,
        )  # fmt: skip

    def _test_samples(self, cuts: Sequence[Cut], allowance: float) -> dict[tuple[str, int], SampleTest]:
        """Returns the distribution test of every method that samples, and of the control, by name and maximum number of
        tokens of a sample. `allowance`: the E_p[(Δ ln p)²] that a test forgives."""
        prompt_ids = [cut.ids for cut in cuts]
        samples: dict[tuple[str, int], MethodSamples] = {}

        def sample(name: str, decoder: Decoder, num_tokens: int = NUM_TOKENS) -> MethodSamples:
            # Long samples have other random streams than short ones, which decide whether there are long ones.
            is_long = num_tokens != NUM_TOKENS
            self.progress(f"{name or 'control'}: {self.num_draws} {'longer ' if is_long else ''}samples")
            seed_of = partial(stream_seed, self.seed, "audit-long" if is_long else "audit", name)
            stop = self.prompts[0].stop
            samples[name, num_tokens] = draw_samples(decoder, prompt_ids, stop, self.num_draws, seed_of, num_tokens)
            return samples[name, num_tokens]

        # 1. The samples. If a method drafts nothing in its short samples, it and the control draw longer ones.
        with ExitStack() as stack:
            for model in self.models:
                stack.enter_context(model.reading_prompts_once())
            sample(CONTROL, self.control[1])
            for subject in self.subjects:
                if subject.drawing is None:
                    continue
                try:
                    drawn_samples = sample(subject.name, subject.drawing)
                    if subject.num_draft_tokens and drawn_samples.counts().get("num_drafted") == 0:
                        del samples[subject.name, NUM_TOKENS]
                        sample(subject.name, subject.drawing, NUM_LONG_TOKENS)
                except ConfigError as error:
                    subject.refuse("samples", error)
            lengths = {num_tokens for _, num_tokens in samples}
            if NUM_LONG_TOKENS in lengths:
                sample(CONTROL, self.control[1], NUM_LONG_TOKENS)
        # 2. All methods are tested against one table of exact probabilities, or against the same samples of AR. The
        # server without speculation then has two controls: further samples of its own must pass, and samples at a
        # higher temperature must fail.
        others: dict[int, list[list[Tokens]]] = {}
        rows: dict[PromptPrefix, TokenDistribution] = {}
        if self.reference == "ar":
            baseline = self.subjects[0].drawing
            assert baseline is not None
            others = {length: sample(AR_AGAIN, baseline, length).sequences for length in sorted(lengths)}
        else:
            self.progress("exact probabilities")
            sequences = [each.sequences for each in samples.values()]
            rows = exact_distributions(self.target, prompt_ids, sequences, self.sampling, self.num_draws)
        # 3. The tests.
        tests = {}
        for (name, num_tokens), each in samples.items():
            if name == AR_AGAIN:
                continue
            if self.reference == "ar":
                statistics, outlier = compare_with_samples(each.sequences, others[num_tokens], allowance)
            else:
                statistics, outlier = compare_with_target(each.sequences, rows, allowance)
            example = None if outlier is None else TokenDeviation(
                prompt=self._name_of(cuts[outlier.key[0]]), drawn=self.decode_text(outlier.key[1]),
                token=self.decode_text([outlier.token]), num_observed=outlier.num_observed,
                num_expected=outlier.num_expected,
            )  # fmt: skip
            numbers = {"num_draws": self.num_draws, "most_tokens": num_tokens, "example": example}
            tests[name, num_tokens] = SampleTest.model_validate({**dict(statistics), **each.counts(), **numbers})
        return tests

    def _test_answers(self, allowance: float) -> dict[str, SampleStatistics]:
        """Returns the test of whole drawn answers of servers to the first prompts, by their log-probabilities under the
        target. A server that raises ConfigError has no test. The greedy answers of methods of this process show errors
        that begin late in a text."""
        # A server that holds the target reports only the most probable tokens of temperature 1, which say nothing about
        # samples at another temperature or top-p.
        sampling = self.sampling
        is_whole = (sampling.temperature, sampling.top_p) == (1, None) and (sampling.top_k or 0) <= Engine.num_logprobs
        if not self.is_served or not (self.reference == "target" or is_whole):
            return {}
        samples_by_method: dict[str, list[list[Tokens]]] = {}
        prompts = self.prompts[:NUM_ANSWERS]
        for subject in self.subjects:
            if subject.drawing is None:
                continue
            self.progress(f"{subject.name}: whole answers")
            seed_of = partial(stream_seed, self.seed, "audit-answers", subject.name)
            try:
                samples_by_method[subject.name] = [
                    [tuple(subject.drawing.generate(prompt.ids, prompt.stop, seed_of(number)).token_ids)]
                    for number, prompt in enumerate(prompts)
                ]
            except ConfigError as error:
                subject.refuse("whole answers", error)
        if not samples_by_method:
            return {}
        rows = exact_distributions(
            self.target, [prompt.ids for prompt in prompts], samples_by_method.values(), self.sampling, 1
        )
        tests = {name: compare_with_target(each, rows, allowance)[0] for name, each in samples_by_method.items()}
        return {name: test.model_copy(update={"p_by_token": []}) for name, test in tests.items()}

    def _name_of(self, cut: Cut) -> str:
        return f"{cut.name}: …{self.decode_text(cut.ids)[-40:]}"


def decide_verdict(
    subject: AuditedMethod, greedy: Greedy | None, tests: Mapping[str, SampleTest],
    controls: Mapping[int, ControlTest], answers: Mapping[str, SampleStatistics] = MappingProxyType({}),
) -> MethodVerdict:  # fmt: skip
    """Returns the verdict on a method from its evidence. `controls`: by the length of a draw. `answers`: the tests of
    whole drawn answers; if that of AR fails too, it says nothing about other methods."""
    samples = tests.get(subject.name)
    reasons = []
    whole = answers.get(subject.name)
    name: VerdictName = "lossless"
    if subject.declared_lossless is False:
        name = "lossy by design"
    elif greedy is not None and greedy.num_diverged:
        kinds = greedy.divergence
        is_width = kinds is not None and kinds.is_width_only
        name = "width only" if is_width else "diverged"
        why = f" ({kinds})" if kinds is not None and kinds.kinds.keys() != {"unknown"} and not is_width else ""
        reasons.append(WIDTH_ONLY if is_width else f"its greedy output is not AR's{why}")
    elif greedy is not None and greedy.num_near_ties:
        name = "near-tie only"
    if name != "lossy by design" and samples is not None and samples.failed:
        name = "diverged"
        reasons.append("its samples do not follow the target's probabilities")
    if whole is not None and whole.failed and not (AR in answers and answers[AR].failed):
        name = "diverged"
        reasons.append("its sampled answers are less or more probable than those of the target")
    control = None if samples is None else controls.get(samples.most_tokens)
    caveats = reasons_for_doubt(subject, greedy, control, tests)
    if name in ("lossless", "near-tie only", "width only") and caveats:
        name = "undecided"
        reasons += caveats
    if name == "lossless" and greedy is not None and subject.drawing is None:
        name = "greedy equal"
    if name == "lossless" and (greedy is None or samples is None):  # one half of the evidence does not prove it
        name = "undecided"
        reasons.append("its greedy output was not compared" if greedy is None else "it was not sampled")
    if greedy is None and samples is None:
        name = "not run"
    return MethodVerdict(
        method=subject.name, verdict=name, declared_lossless=subject.declared_lossless,
        reason="; ".join(filter(None, [*reasons, subject.note])) or None, greedy=greedy, distribution=samples,
        answers=whole,
    )  # fmt: skip


def reasons_for_doubt(
    subject: AuditedMethod, greedy: Greedy | None, control: ControlTest | None, tests: Mapping[str, SampleTest]
) -> list[str]:
    reasons, too_few = [], dict[str, tuple[int, str]]()  # per place: accepted draft tokens, and what gives more
    if subject.num_draft_tokens and greedy is not None:
        if greedy.num_judged == 0:
            reasons.append("none of its draft tokens was verified in greedy decoding")
        elif greedy.num_accepted is None:
            reasons += [NOT_COUNTED] if subject.drawing is not None else []  # "greedy equal" does not claim more
        elif greedy.num_accepted < MIN_ACCEPTED:
            too_few["in greedy decoding"] = greedy.num_accepted, "more prompts (--limit, --subset)"
    if (samples := tests.get(subject.name)) is not None:
        if control is not None and not control.caught:
            reasons.append(f"the test lacks power: control ({control.name}) not rejected: give more --draws")
        elif subject.name != AR and AR in tests and tests[AR].failed:
            reasons.append("AR itself fails the test, so passing it proves nothing")
        elif subject.num_draft_tokens and samples.num_drafted == 0:
            reasons.append(f"no drafts in samples of up to {samples.most_tokens} tokens")
        elif subject.num_draft_tokens and samples.num_accepted is None:
            reasons.append(NOT_COUNTED)
        elif subject.num_draft_tokens and samples.num_accepted is not None and samples.num_accepted < MIN_ACCEPTED:
            too_few["in the samples"] = samples.num_accepted, "more --draws"
    if too_few:
        nums = " and ".join(f"{num} {place}" for place, (num, _) in too_few.items())
        remedies = " and ".join(remedy for _, remedy in too_few.values())
        reasons.append(f"{TOO_FEW}, and there were {nums}: give {remedies}")
    return list(dict.fromkeys(reasons))


GREEDY = Sampling(0.0)
HOTTER = 1.5
EAGER = "ar (eager)"
NUM_PROMPTS = 8  # at least, from all subsets in turn
MAX_NEW_TOKENS = 96
MAX_WIDTH = 6  # tokens of a pass over five draft tokens, for a target without methods


def run_audit(
    request: Request, num_draws: int, temperature: float, progress: Say, console: Console,
    load_servers: Callable[[RunSpec], LoadedModels] | None = None, *, shows_width: bool = False,
) -> AuditReport:  # fmt: skip
    """Audits the methods of a request, or all known methods if the request names only "all". `progress` gets lines of
    text; `console` gets lines about subsets that have no files. `load_servers`: returns the servers of the request, if
    it has any; then the request's target, if named, is loaded into this process and scores their answers.

    `shows_width`: whether the report tells how the target depends on the width of a pass; of a request without methods
    it tells nothing else.

    Raises ConfigError for a named method that does not fit the models. With "all", such a method is "not run", with the
    reason.
    """
    # 1. Everything that can be wrong with the request.
    if num_draws < 0:
        raise ConfigError(f"--draws {num_draws}: give 1 or more, or 0 for no samples")
    if not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise ConfigError(
            f"--temperature {temperature:g}: samples need {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}; greedy "
            "decoding is audited in any case, and --draws 0 leaves them out"
        )
    own_target = None if load_servers is None else request.options.target
    if own_target is not None:
        request = replace(request, options=replace(request.options, target=None))
    is_alone = shows_width and load_servers is None and set(request.methods) <= {AR}
    num_draws = 0 if is_alone else num_draws
    strict = ALL not in request.methods
    methods, left_out = requested_methods(request)
    request = replace(request, methods=methods)
    without_drafter = [without_evidence("not run", load_method(name), why) for name, why in (left_out or {}).items()]
    spec = with_present_subsets(run_spec(request), console)
    spec = spec.model_copy(update={"limit": spec.limit or -(-NUM_PROMPTS // len(spec.task_subsets()))})
    if spec.servers is not None and spec.servers.turns is not None:
        raise ConfigError(f"{request.servers}: turns: an audit needs all servers up at once: leave turns out")
    # 2. Data, models, and the decoders of every method that fits them.
    embedded = spec.target.startswith(EMBEDDED)
    set_threads(request.options.threads, embedded)
    loaded = load_data(spec, use_sample=embedded)
    models = (load_servers or load_models)(spec)
    target = models.target
    scoring = scoring_target(models, own_target)
    generation = loaded[0][0].subset(loaded[0][1]).generation
    sampling = Sampling(temperature, generation.top_k, generation.top_p)
    subjects, unfit = make_subjects(spec.methods, models, sampling, strict)
    decoders = {subject.name: subject.greedy or subject.drawing for subject in subjects}
    identities = {}
    for method in spec.methods:
        if (decoder := decoders.get(method.name)) is not None:
            identity = drafter_identity(decoder, models)
            identities[method.name] = AuditedIdentity(
                method=versioned_name(method), drafter=identity["name"], drafter_revision=identity["revision"],
                engine=models.engine(method),
            )  # fmt: skip
    fitting = [method for method in spec.methods if method.name in decoders]
    control, drafter = make_control(fitting, models, sampling)
    decoders_in_use = [each for subject in subjects for each in (subject.greedy, subject.drawing) if each is not None]
    if target.static is not None and not is_alone:
        # AR on the eager engine shows whether both engines write the same text. It is not part of the noise floor: the
        # audit must not tolerate a difference between the engines.
        eager = ModelPair(CausalLM(target.model, target.tokenizer, target.name, target.revision))
        greedy = build_decoder(spec.methods[0], eager, GREEDY)
        note = "AR of --engine eager, compared with AR of this engine"
        subjects.append(AuditedMethod(EAGER, True, 0, greedy, drawing=None, note=note))
    # 3. Compiles or records the passes, and audits.
    prompts = make_prompts(spec, models, loaded)
    allocate_and_capture_for(
        models, fitting, MAX_NEW_TOKENS + NUM_LONG_TOKENS, progress, [prompt.ids for prompt in prompts], decoders_in_use
    )
    reading = {id(model): model for model in (target, *models.drafters.values()) if isinstance(model, CausalLM)}
    findings = Audit(
        subjects, prompts, scoring, partial(token_text, target), drafter, control, sampling,
        num_draws, spec.seed, progress, list(reading.values()), is_served=load_servers is not None,
        reference="ar" if load_servers is not None and own_target is None else "target", shows_width=shows_width,
    ).findings()  # fmt: skip
    conditions = models.environment()
    return AuditReport(
        **{**dict(findings), "verdicts": [] if is_alone else [*findings.verdicts, *unfit, *without_drafter]},
        task=spec.tasks[0].name, subsets=[subset for _, subset, _ in loaded], target=target.name,
        target_revision=target.revision, drafters={name: model.name for name, model in models.drafters.items()},
        identities=identities, dtype=conditions["dtype"], engine=conditions["engine"], pass_width=target.pass_width,
        attention=conditions["attention"], device=conditions["device"],
        temperature=temperature, top_k=sampling.top_k, top_p=sampling.top_p,
        num_draws=num_draws, seed=spec.seed,
    )  # fmt: skip


def scoring_target(models: LoadedModels, name: str | None) -> ScoringModel:
    """Returns the target that scores answers: the model `name`, loaded into this process, else that of `models`. Raises
    ConfigError if it has other tokens, and if there is none."""
    if name is not None:
        loaded = load_model(name, engine="auto" if is_gguf(name) else "eager")  # with llama.cpp's kernels, as servers
        if not has_same_tokens(loaded, models.target):
            raise ConfigError(f"--target {name}: has other tokens than the tokenizer of the servers: give their target")
        return loaded
    if models.scoring is None:
        raise ConfigError(
            "--servers: the server 'ar' reports no log-probabilities, or none that are real: give --target with "
            "its target, to score the answers in this process"
        )
    return models.scoring


def make_prompts(spec: RunSpec, models: LoadedModels, loaded: Loaded) -> list[AuditPrompt]:
    """Returns the prompts as a run of AR has them, with at most MAX_NEW_TOKENS new tokens."""
    prompts = []
    limit = models.context_limit(spec.methods)
    for run in make_subset_runs(spec.model_copy(update={"methods": spec.methods[:1]}), models, loaded):
        num_tokens = min(MAX_NEW_TOKENS, run.task.generation.max_new_tokens)
        stop = run.decoders[0].stop_rules(run.task.generation.model_copy(update={"max_new_tokens": num_tokens}), limit)
        prompts += [
            AuditPrompt(f"{run.subset} {example.id}", run.renderer.render(models.target, (example.prompt,)).ids, stop)
            for example in run.data.examples
        ]
    return prompts


def token_text(model: CausalLM, token_ids: Sequence[int]) -> str:
    """Returns the text of tokens; for a single token that is not text by itself, the tokenizer's spelling."""
    text = model.decode_text(token_ids)
    if len(token_ids) == 1 and (not text or "\N{REPLACEMENT CHARACTER}" in text):
        return str(model.tokenizer.convert_ids_to_tokens(token_ids[0]))
    return text


def make_subjects(
    methods: Sequence[MethodSpec], models: LoadedModels, sampling: Sampling, strict: bool
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
    """Returns a method with decoders for greedy decoding and for samples. Raises ConfigError if it can do neither."""
    is_served = method.decoder is not None and method.decoder.type == SERVED
    declared = is_served or declares_lossless(method)  # engines say that speculation keeps the target's distribution
    subject = AuditedMethod(method.name, declared, method.most_draft_tokens, greedy=None, drawing=None)
    try:
        subject.greedy = build_decoder(method, pair, GREEDY)
        subject.tree_width = tree_width([subject.greedy])
    except ConfigError as error:
        subject.refuse("greedy", error)
        subject.drawing = build_decoder(method, pair, sampling)
        return subject
    if method.decoder is not None and not is_served and not load_entry(method.decoder.entry).takes_sampling:
        subject.note = "not sampled: decoder has no `sampling` argument"
        return subject
    try:
        subject.drawing = build_decoder(method, pair, sampling)
    except ConfigError as error:
        subject.refuse("samples", error)
    return subject


def without_evidence(verdict: VerdictName, method: MethodSpec, reason: str) -> MethodVerdict:
    return MethodVerdict(
        method=method.name, verdict=verdict, declared_lossless=declares_lossless(method), reason=reason
    )


def has_same_tokens(drafter: CausalLM, target: CausalLM) -> bool:
    return drafter.vocabulary == target.vocabulary and drafter.vocab_size == target.vocab_size


def make_control(
    methods: Sequence[MethodSpec], models: LoadedModels, sampling: Sampling
) -> tuple[tuple[str, Decoder], CausalLM | None]:
    """Returns the name and decoder of a wrong method: speculative decoding without the residual, or AR at a higher
    temperature if no drafter has the target's tokens; and this drafter, if there is one."""
    autoregressive = build_decoder(methods[0], models.pair(methods[0]), sampling)
    assert isinstance(autoregressive, DraftingDecoder | ServedDecoder)
    # The run's draft model goes before those that methods name, which may be trained for other prompts, so that few of
    # their tokens are accepted.
    same = None
    for method in sorted(parts(methods), key=lambda method: method.checkpoint is not None):
        drafter = models.drafters.get(method.name)
        drafts = method.num_draft_tokens > 0 and method.same_vocabulary
        if drafter is not None and drafts and has_same_tokens(drafter, models.target):
            same = drafter
            break
    if same is None or isinstance(autoregressive, ServedDecoder):
        hotter = replace(sampling, temperature=HOTTER * sampling.temperature)
        return (f"AR at {HOTTER} times the temperature", replace(autoregressive, sampling=hotter)), same
    wrong = replace(autoregressive, method=method, drafter=ModelDrafter(same, sampling), rule=WithoutResidual())
    return ("rejected drafts replaced by samples from p instead of the residual", wrong), same
