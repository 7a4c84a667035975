"""One `specbench audit`: specs, data, models and decoders → verdicts."""

from collections.abc import Callable, Sequence

from rich.console import Console

from specbench.analysis.audit_methods import (
    GREEDY,
    Audit,
    AuditedMethod,
    AuditPrompt,
    audited_methods,
    eager_baseline,
    make_control,
    same_vocabulary_drafter,
    without_evidence,
)
from specbench.analysis.audit_report import AuditedIdentity, AuditReport
from specbench.core.errors import ConfigError
from specbench.core.progress import Say
from specbench.core.resources import EMBEDDED
from specbench.core.threads import set_threads
from specbench.decoding.decoder import Decoder
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM
from specbench.results.verdict import NUM_LONG_TOKENS
from specbench.running.checked import ALL, all_methods, run_spec
from specbench.running.compose import compose
from specbench.running.identity import drafter_identity
from specbench.running.models import Models, load_models
from specbench.running.plan import Cell, Loaded, check_prompts, load_data, present, where_asked
from specbench.running.prompts import prompt_ids
from specbench.running.request import Request
from specbench.running.requirements import reserve_for
from specbench.specs.catalogue import load_method
from specbench.specs.components import MAX_TEMPERATURE, MIN_TEMPERATURE
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec, named

NUM_PROMPTS = 8  # at least, from all subsets in turn
MAX_NEW_TOKENS = 96


def run_audit(request: Request, num_draws: int, temperature: float, progress: Say, console: Console) -> AuditReport:
    """Audits the methods of a request, or all known ones where its only method is "all". `progress` gets lines of text;
    `console` gets lines about subsets that have no files.

    Raises ConfigError for a method that was asked for by name and does not fit the models; of "all", such a method is
    "not run", with the reason.
    """
    check_numbers(num_draws, temperature)
    audits_all = ALL in request.methods
    request, reasons = all_methods(request)
    without_drafter = [without_evidence("not run", load_method(name), reason) for name, reason in reasons.items()]
    spec = present(run_spec(request), console)
    spec = spec.model_copy(update={"limit": spec.limit or -(-NUM_PROMPTS // len(spec.cells()))})
    embedded = spec.target.startswith(EMBEDDED)
    set_threads(request.options.threads, embedded)
    loaded = load_data(spec, use_sample=embedded)
    models = load_models(spec)
    generation = loaded[0][0].subset(loaded[0][1]).generation
    sampling = Sampling(temperature, generation.top_k, generation.top_p)
    subjects, unfit = audited_methods(spec.methods, models, sampling, strict=not audits_all)
    identities = identities_of(subjects, spec.methods, models)
    findings = prepared_audit(spec, models, loaded, subjects, sampling, num_draws, progress).findings()
    target = models.target
    return AuditReport(
        **{**dict(findings), "verdicts": [*findings.verdicts, *unfit, *without_drafter]},
        task=spec.tasks[0].name, subsets=[subset for _, subset, _ in loaded], target=target.name,
        target_revision=target.revision, drafters={name: model.name for name, model in models.drafters.items()},
        identities=identities, dtype=target.precision, engine=target.engine, device=target.placement,
        temperature=temperature, top_k=sampling.top_k, top_p=sampling.top_p, num_draws=num_draws, seed=spec.seed,
    )  # fmt: skip


def identities_of(
    subjects: Sequence[AuditedMethod], methods: Sequence[MethodSpec], models: Models
) -> dict[str, AuditedIdentity]:
    """Returns the audited methods that specbench decodes as their leaderboard rows identify them, by name."""
    decoders = {subject.name: subject.greedy or subject.drawing for subject in subjects}
    found = {}
    for method in methods:
        if isinstance(decoder := decoders.get(method.name), Decoder):
            drafter = drafter_identity(decoder, models)
            found[method.name] = AuditedIdentity(
                method=named(method), drafter=drafter["name"], drafter_revision=drafter["revision"],
                engine=models.engine(method),
            )  # fmt: skip
    return found


def prepared_audit(
    spec: RunSpec, models: Models, loaded: Loaded, subjects: Sequence[AuditedMethod], sampling: Sampling,
    num_draws: int, progress: Say,
) -> Audit:  # fmt: skip
    """Returns the audit of the methods on the prompts of all subsets; compiles or records the passes that it needs."""
    names, target = {subject.name for subject in subjects}, models.target
    fitting = [method for method in spec.methods if method.name in names]
    drafting = same_vocabulary_drafter(fitting, models)
    control = make_control(fitting[0], drafting, models, sampling)
    composed = [made for subject in subjects for made in (subject.greedy, subject.drawing) if isinstance(made, Decoder)]
    compared = [*subjects, *([eager_baseline(spec.methods[0], target)] if target.static is not None else [])]
    prompts = make_prompts(spec, models, loaded)
    reserve_for(
        models, fitting, MAX_NEW_TOKENS + NUM_LONG_TOKENS, progress, [prompt.ids for prompt in prompts], composed
    )
    return Audit(
        compared, prompts, target, token_text(target), drafting[1] if drafting else None, control, sampling, num_draws,
        spec.seed, progress,
    )  # fmt: skip


def check_numbers(num_draws: int, temperature: float) -> None:
    if num_draws < 0:
        raise ConfigError(f"--draws {num_draws}: give 1 or more, or 0 to leave the draws out")
    if not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise ConfigError(
            f"--temperature {temperature:g}: the draws need {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}; greedy "
            "decoding is audited in any case, and --draws 0 leaves the draws out"
        )


def make_prompts(spec: RunSpec, models: Models, loaded: Loaded) -> list[AuditPrompt]:
    """Returns the prompts of all subsets, encoded as a run does and checked, with where their generations end."""
    prompts = []
    baseline = compose(spec.methods[0], models.pair(spec.methods[0]), GREEDY)
    limit = models.context_limit(spec.methods)
    for task, subset, data in loaded:
        merged = where_asked(task.subset(subset), models.target, spec.chat)
        check_prompts(Cell(merged, subset, data, models, (baseline,), limit), spec.chat)
        num_tokens = min(MAX_NEW_TOKENS, merged.generation.max_new_tokens)
        generation = merged.generation.model_copy(update={"max_new_tokens": num_tokens})
        stop = baseline.stop_rules(generation, limit)
        prompts += [
            AuditPrompt(f"{subset} {example.id}", prompt_ids(models.target, example, spec.chat), stop)
            for example in data.examples
        ]
    return prompts


def token_text(model: CausalLM) -> Callable[[Sequence[int]], str]:
    """Returns a function for the text of token ids. A single token that is not a text by itself is given as the
    tokenizer spells it."""

    def text_of(token_ids: Sequence[int]) -> str:
        text = model.decode_text(token_ids)
        if len(token_ids) == 1 and (not text or "\N{REPLACEMENT CHARACTER}" in text):
            return str(model.tokenizer.convert_ids_to_tokens(token_ids[0]))
        return text

    return text_of
