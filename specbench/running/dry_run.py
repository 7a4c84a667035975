"""`specbench run --dry-run`: what a command would measure, from specifications, data and tokenizers; no weights are
read and nothing is written."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median

from rich.console import Console

from specbench.core.console import counted, say
from specbench.core.environment import EMBEDDED, OBJECT
from specbench.core.errors import ConfigError
from specbench.core.table import Table, number_columns, text_columns
from specbench.decoding.build import check_vocabulary, make_drafter
from specbench.decoding.sampling import Sampling
from specbench.models.gguf.files import is_gguf
from specbench.models.heads.checkpoints import weights_of
from specbench.models.loading import is_local, load_model, model_source
from specbench.records.records import RECORDS, Record, RecordFile
from specbench.results.metric_format import NULL
from specbench.running.models import LoadedModels, load_models
from specbench.running.plan import SubsetRun, load_requested, make_subset_runs, without_calibration
from specbench.running.request import PATH_DRAFTERS, Request, request_notes, resolve
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec


def dry_run(request: Request, console: Console) -> Table:
    """Returns a table of the prompts of each subset, with the methods, the models and the records that are there.
    Raises ConfigError for what is wrong with the request, its data or its prompts."""
    request, spec, left_out = resolve(request)
    for line in request_notes(request, spec):
        say(console, line)
    loaded = without_calibration(load_requested(spec, spec.target.startswith(EMBEDDED), console), spec.methods)
    # Drafters of heads and stores need the target's weights: only AR gets a decoder. Prompts fit the models of all.
    models = load_models(spec, partial(load_model, weights=False))
    check_files(spec, models, left_out)
    if left_out:
        say(console, "--method all leaves out " + "; ".join(f"{name}: {why}" for name, why in left_out.items()))
        spec = spec.model_copy(update={"methods": tuple(each for each in spec.methods if each.name not in left_out)})
    alone = spec.model_copy(update={"methods": spec.methods[:1]})
    runs = make_subset_runs(alone, models, loaded, fitting=spec.methods)
    done = [] if request.output is None else list(RecordFile(request.output / RECORDS).stream())
    lengths = [
        [len(run.renderer.render(models.target, (each.prompt,)).ids) for each in run.data.examples] for run in runs
    ]
    rows = [line_of(run, each, spec.repeats, done) for run, each in zip(runs, lengths, strict=True)]
    target, drafters = models.target, dict.fromkeys(model.name for model in models.drafters.values())
    num_trials = sum(num_of(run) for run in runs) * spec.repeats
    caption = [
        f"methods: {', '.join(told(method) for method in spec.methods)}",
        f"target {target.name} ({target.revision or 'no revision'}); drafters: {', '.join(drafters) or 'no model'}",
        f"{counted(num_trials, 'trial')} of {counted(len(spec.methods), 'method')}; nothing was measured or written",
        *answers_cut(runs, [max(each) for each in lengths]),
    ]
    if request.output is None:
        caption.append("folder: runs/TASK-METHOD-DIGEST, whose digest also depends on the device; --output names one")
    else:
        left = num_trials - len(done)
        seconds = [sum((g.ttft_seconds or 0.0) + g.decode_seconds for g in record.methods.values()) for record in done]
        time = f", about {left * fmean(seconds) / 60:.0f} min at the speed of these" if seconds and left > 0 else ""
        caption.append(f"folder {request.output}: {len(done)} of {counted(num_trials, 'trial')} measured{time}")
    columns = (
        *text_columns("task", "subset"),
        *number_columns("examples", "prompt tokens\nmedian", "most", "new tokens\nmost"),
        *text_columns("data", "scorer"), *number_columns("measured"),
    )  # fmt: skip
    return Table("what would be measured", columns, rows, caption, num_keys=2)


def check_files(spec: RunSpec, models: LoadedModels, left_out: dict[str, str] | None) -> None:
    """Raises ConfigError for a model, a head, a table, a profile or a memory that is named and not there. `left_out`:
    of "all" methods, those that lack something are added with the reason instead."""
    check_weights(spec.target, f"model '{spec.target}'")
    for method in spec.methods:
        try:
            for part in method.parts:
                check_drafter(part, spec, models)
        except ConfigError as error:
            if left_out is None:
                raise
            left_out.setdefault(method.name, str(error))


# Built-in drafters that read what they draft from, and not the target's weights: they are made, with all their checks.
MADE_WITHOUT_WEIGHTS = {"ngram", "ngram_mod", "retrieval", "sam", "suffix", "synthetic"}


def check_drafter(part: MethodSpec, spec: RunSpec, models: LoadedModels) -> None:
    if part.decoder is not None:
        return
    if part.needs_drafter and (name := spec.drafter_of(part)) is not None:
        check_weights(name, f"model '{name}'")
        check_vocabulary(part, models.pair(part))
    options = part.drafter.options
    if part.drafter.type in PATH_DRAFTERS - MADE_WITHOUT_WEIGHTS and (path := options.get("path")) is not None:
        check_weights(path, f"method '{part.name}': drafter.path = '{path}'")
    is_cascade = part.drafter.type == "cascade" and options["level"] is None
    if is_cascade or part.drafter.type in MADE_WITHOUT_WEIGHTS:
        make_drafter(part, models.pair(part), Sampling(0.0))


def check_weights(name: str, place: str) -> None:
    """Raises ConfigError for a folder without weights. What a hub has is found when it is loaded."""
    if is_gguf(name) or name.startswith(OBJECT):
        return
    try:
        if is_local(source := model_source(name)):
            weights_of(Path(source))
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def num_of(run: SubsetRun) -> int:
    return sum(len(example.turns) for example in run.data.examples)


def told(method: MethodSpec) -> str:
    return method.name if method.name == "ar" else f"{method.name} (γ {method.num_draft_tokens})"


def answers_cut(runs: Sequence[SubsetRun], longest: Sequence[int]) -> list[str]:
    """Returns a line about subsets whose answers the context of a model may cut; none if all fit. `longest`: the tokens
    of the longest prompt of each."""
    rooms = [(run.context_limit - most, run) for run, most in zip(runs, longest, strict=True) if run.context_limit]
    cut = [(room, run) for room, run in rooms if room < run.task.generation.max_new_tokens]
    if not cut:
        return []
    room, run = min(cut, key=lambda each: each[0])
    others = f" (nor in {counted(len(cut) - 1, 'other subset')})" if len(cut) > 1 else ""
    return [
        f"answers are cut at the context of {run.limited_by}, {run.context_limit} tokens: behind the longest prompt of "
        f"{run.task.name}/{run.subset} {room} new tokens fit, not the {run.task.generation.max_new_tokens} of "
        f"generation.max_new_tokens{others}"
    ]


def line_of(run: SubsetRun, lengths: Sequence[int], repeats: int, done: list[Record]) -> list[str]:
    """`lengths`: of its prompts, in tokens."""
    own = sum((record.task, record.subset) == (run.task.name, run.subset) for record in done)
    return [
        run.task.name, run.subset, str(len(lengths)), f"{median(lengths):.0f}", str(max(lengths)),
        str(run.task.generation.max_new_tokens), run.data.location,
        NULL if run.task.scorer is None else run.task.scorer.type, f"{own}/{num_of(run) * repeats}",
    ]  # fmt: skip
