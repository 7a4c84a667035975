"""One `specbench audit`: specs, data, models and decoders → verdicts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from rich.console import Console

from specbench.analysis.audit.distribution import WithoutResidual
from specbench.analysis.audit.methods import Audit, AuditedMethod, AuditPrompt
from specbench.analysis.audit.report import AuditedIdentity, AuditReport, MethodVerdict, VerdictName
from specbench.core.environment import EMBEDDED, set_threads
from specbench.core.errors import ConfigError
from specbench.core.progress import Say
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import Decoder, DraftingDecoder
from specbench.decoding.drafters import ModelDrafter
from specbench.decoding.sampling import Sampling
from specbench.integrations.entry import load, takes_sampling
from specbench.integrations.served.decoder import SERVED, ServedDecoder
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.loading import load_model
from specbench.models.scoring import ScoringModel
from specbench.results.verdict import NUM_LONG_TOKENS, declares_lossless
from specbench.running.capture_plan import allocate_and_capture_for
from specbench.running.models import LoadedModels, load_models, parts
from specbench.running.plan import (
    Loaded,
    SubsetRun,
    check_prompts,
    drafter_identity,
    load_data,
    system_prompt,
    with_present_subsets,
    with_prompt_stops,
)
from specbench.running.prompts import PromptRenderer
from specbench.running.request import ALL, Request, requested_methods, run_spec
from specbench.specs.catalogue import load_method, versioned_name
from specbench.specs.components import MAX_TEMPERATURE, MIN_TEMPERATURE
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec

GREEDY = Sampling(0.0)
HOTTER = 1.5
EAGER = "ar (eager)"
NUM_PROMPTS = 8  # at least, from all subsets in turn
MAX_NEW_TOKENS = 96


def run_audit(
    request: Request, num_draws: int, temperature: float, progress: Say, console: Console,
    load_servers: Callable[[RunSpec], LoadedModels] | None = None,
) -> AuditReport:  # fmt: skip
    """Audits the methods of a request, or all known methods if the request names only "all". `progress` gets lines of
    text; `console` gets lines about subsets that have no files. `load_servers`: returns the servers of the request, if
    it has any; then the request's target, if named, is loaded into this process and scores their answers.

    Raises ConfigError for a named method that does not fit the models. With "all", such a method is "not run", with the
    reason.
    """
    check_numbers(num_draws, temperature)
    own_target = None if load_servers is None else request.options.target
    if own_target is not None:
        request = replace(request, options=replace(request.options, target=None))
    audits_all = ALL in request.methods
    methods, left_out = requested_methods(request)
    reasons = left_out or {}
    request = replace(request, methods=methods)
    without_drafter = [without_evidence("not run", load_method(name), reason) for name, reason in reasons.items()]
    spec = with_present_subsets(run_spec(request), console)
    spec = spec.model_copy(update={"limit": spec.limit or -(-NUM_PROMPTS // len(spec.cells()))})
    if spec.servers is not None and spec.servers.turns is not None:
        raise ConfigError(f"{request.servers}: turns: an audit asks all servers in the same minutes: leave turns out")
    embedded = spec.target.startswith(EMBEDDED)
    set_threads(request.options.threads, embedded)
    loaded = load_data(spec, use_sample=embedded)
    models = (load_servers or load_models)(spec)
    scoring = scoring_target(models, own_target)
    generation = loaded[0][0].subset(loaded[0][1]).generation
    sampling = Sampling(temperature, generation.top_k, generation.top_p)
    subjects, unfit = make_subjects(spec.methods, models, sampling, strict=not audits_all)
    identities = audited_identities(subjects, spec.methods, models)
    audit = prepare_audit(spec, models, loaded, subjects, sampling, num_draws, progress, scoring)
    if load_servers is not None:
        audit = replace(audit, is_served=True, reference="ar" if own_target is None else "target")
    findings = audit.findings()
    target, conditions = models.target, models.environment()
    return AuditReport(
        **{**dict(findings), "verdicts": [*findings.verdicts, *unfit, *without_drafter]},
        task=spec.tasks[0].name, subsets=[subset for _, subset, _ in loaded], target=target.name,
        target_revision=target.revision, drafters={name: model.name for name, model in models.drafters.items()},
        identities=identities, dtype=conditions["dtype"], engine=conditions["engine"], device=conditions["device"],
        temperature=temperature, top_k=sampling.top_k, top_p=sampling.top_p, num_draws=num_draws, seed=spec.seed,
    )  # fmt: skip


def audited_identities(
    subjects: Sequence[AuditedMethod], methods: Sequence[MethodSpec], models: LoadedModels
) -> dict[str, AuditedIdentity]:
    """Returns the identities of the audited methods in leaderboard rows, by name."""
    decoders = {subject.name: subject.greedy or subject.drawing for subject in subjects}
    found = {}
    for method in methods:
        if (decoder := decoders.get(method.name)) is not None:
            drafter = drafter_identity(decoder, models)
            found[method.name] = AuditedIdentity(
                method=versioned_name(method), drafter=drafter["name"], drafter_revision=drafter["revision"],
                engine=models.engine(method),
            )  # fmt: skip
    return found


def prepare_audit(
    spec: RunSpec, models: LoadedModels, loaded: Loaded, subjects: Sequence[AuditedMethod], sampling: Sampling,
    num_draws: int, progress: Say, scoring: ScoringModel,
) -> Audit:  # fmt: skip
    """Returns the audit of the methods on the prompts of all subsets. Compiles or records the passes that it needs.
    `scoring`: the target that scores answers."""
    names, target = {subject.name for subject in subjects}, models.target
    fitting = [method for method in spec.methods if method.name in names]
    drafting = same_vocabulary_drafter(fitting, models)
    control = make_control(fitting[0], drafting, models, sampling)
    composed = [made for subject in subjects for made in (subject.greedy, subject.drawing) if made is not None]
    compared = [*subjects, *([eager_baseline(spec.methods[0], target)] if target.static is not None else [])]
    prompts = make_prompts(spec, models, loaded)
    allocate_and_capture_for(
        models, fitting, MAX_NEW_TOKENS + NUM_LONG_TOKENS, progress, [prompt.ids for prompt in prompts], composed
    )
    reading = {id(model): model for model in (target, *models.drafters.values()) if isinstance(model, CausalLM)}
    return Audit(
        compared, prompts, scoring, partial(token_text, target), drafting[1] if drafting else None, control, sampling,
        num_draws, spec.seed, progress, list(reading.values()),
    )  # fmt: skip


def scoring_target(models: LoadedModels, name: str | None) -> ScoringModel:
    """Returns the target that scores answers: the model `name`, loaded into this process, else that of `models`. Raises
    ConfigError if it has other tokens, and if there is none."""
    if name is not None:
        loaded = load_model(name)
        if not has_same_tokens(loaded, models.target):
            raise ConfigError(f"--target {name}: has other tokens than the tokenizer of the servers: give their target")
        return loaded
    if models.scoring is None:
        raise ConfigError(
            "--servers: the server 'ar' reports no log-probabilities, or none that are real: give --target with "
            "its target, to score the answers in this process"
        )
    return models.scoring


def check_numbers(num_draws: int, temperature: float) -> None:
    if num_draws < 0:
        raise ConfigError(f"--draws {num_draws}: give 1 or more, or 0 for no draws")
    if not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise ConfigError(
            f"--temperature {temperature:g}: the draws need {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}; greedy "
            "decoding is audited in any case, and --draws 0 leaves the draws out"
        )


def make_prompts(spec: RunSpec, models: LoadedModels, loaded: Loaded) -> list[AuditPrompt]:
    """Returns the prompts of all subsets with their stop rules, encoded and checked as in a run."""
    prompts = []
    baseline = build_decoder(spec.methods[0], models.pair(spec.methods[0]), GREEDY)
    limit = models.context_limit(spec.methods)
    for task, subset, data in loaded:
        merged = with_prompt_stops(task.subset(subset), models.target, spec.chat)
        renderer = PromptRenderer(spec.chat, system=system_prompt(spec, merged))
        check_prompts(SubsetRun(merged, subset, data, models, (baseline,), limit, renderer), spec.prompt_checks)
        num_tokens = min(MAX_NEW_TOKENS, merged.generation.max_new_tokens)
        generation = merged.generation.model_copy(update={"max_new_tokens": num_tokens})
        stop = baseline.stop_rules(generation, limit)
        prompts += [
            AuditPrompt(f"{subset} {example.id}", renderer.render(models.target, (example.prompt,)).ids, stop)
            for example in data.examples
        ]
    return prompts


def token_text(model: CausalLM, token_ids: Sequence[int]) -> str:
    """Returns the text of tokens; for a single token that is no text by itself, the tokenizer's spelling."""
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
    """Returns a method composed for greedy decoding and for draws. Raises ConfigError if it can do neither."""
    is_served = method.decoder is not None and method.decoder.type == SERVED
    declared = is_served or declares_lossless(method)  # engines say that speculation keeps the target's distribution
    subject = AuditedMethod(method.name, declared, method.most_draft_tokens, greedy=None, drawing=None)
    try:
        subject.greedy = build_decoder(method, pair, GREEDY)
    except ConfigError as error:
        subject.refuse("greedy", error)
        subject.drawing = build_decoder(method, pair, sampling)
        return subject
    if method.decoder is not None and not is_served and not takes_sampling(load(method.decoder.entry)):
        subject.note = "nothing drawn: its code takes no 'sampling', so it decodes greedily only"
        return subject
    try:
        subject.drawing = build_decoder(method, pair, sampling)
    except ConfigError as error:
        subject.refuse("draws", error)
    return subject


def eager_baseline(baseline: MethodSpec, target: CausalLM) -> AuditedMethod:
    """Returns AR of a compiled target on the eager engine: it shows whether both engines write the same text.

    It is no part of the noise floor: the audit must not tolerate a difference between the engines.
    """
    eager = CausalLM(target.model, target.tokenizer, target.name, target.revision)
    made = build_decoder(baseline, ModelPair(eager), GREEDY)
    return AuditedMethod(
        EAGER, True, 0, greedy=made, drawing=None, note="AR of --engine eager, compared with AR of this engine"
    )


def without_evidence(verdict: VerdictName, method: MethodSpec, reason: str) -> MethodVerdict:
    return MethodVerdict(
        method=method.name, verdict=verdict, declared_lossless=declares_lossless(method), reason=reason
    )


def same_vocabulary_drafter(methods: Sequence[MethodSpec], models: LoadedModels) -> tuple[MethodSpec, CausalLM] | None:
    """Returns a draft model with the target's tokens, and its method; None if there is none. The run's draft model goes
    before those that methods name, which may be trained for other prompts, so that few of their tokens are accepted."""
    for method in sorted(parts(methods), key=lambda method: method.checkpoint is not None):
        drafter = models.drafters.get(method.name)
        drafts = method.num_draft_tokens > 0 and method.same_vocabulary
        if drafter is not None and drafts and has_same_tokens(drafter, models.target):
            return method, drafter
    return None


def has_same_tokens(drafter: CausalLM, target: CausalLM) -> bool:
    return drafter.vocabulary == target.vocabulary and drafter.vocab_size == target.vocab_size


def make_control(
    baseline: MethodSpec, drafting: tuple[MethodSpec, CausalLM] | None, models: LoadedModels, sampling: Sampling
) -> tuple[str, Decoder]:
    """Returns the name and decoder of a wrong method: speculative decoding without the residual, or AR at a higher
    temperature if no drafter has the target's tokens. `drafting`: the result of `same_vocabulary_drafter`."""
    autoregressive = build_decoder(baseline, models.pair(baseline), sampling)
    assert isinstance(autoregressive, DraftingDecoder | ServedDecoder)
    if drafting is None or isinstance(autoregressive, ServedDecoder):
        hotter = replace(sampling, temperature=HOTTER * sampling.temperature)
        return f"AR at {HOTTER} times the temperature", replace(autoregressive, sampling=hotter)
    method, drafter = drafting
    wrong = replace(autoregressive, method=method, drafter=ModelDrafter(drafter, sampling), rule=WithoutResidual())
    return "rejected drafts replaced by draws from p instead of the residual", wrong
