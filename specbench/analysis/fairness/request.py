"""What a user asks of `specbench fairness`, and the runs that it names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbench.analysis.fairness.entries import Entry, make_entries
from specbench.analysis.fairness.forced import ModelForecaster, forced_numbers
from specbench.analysis.fairness.numbers import FairnessReport
from specbench.analysis.fairness.report import Subject, comparison_of, drafter_report, make_subject
from specbench.analysis.fairness.runs import Common, common, read_run
from specbench.analysis.fairness.texts import REFERENCES, Reference, texts_of
from specbench.analysis.representation import Representation, representation
from specbench.core.errors import ConfigError, nearest
from specbench.core.resources import EMBEDDED
from specbench.core.threads import set_threads
from specbench.models.causal_lm import CausalLM, shortest_context
from specbench.results.recorded_prompts import ModelLoader, prompts_of, tasks_of
from specbench.results.runs import RecordedRun
from specbench.tasks.scoring.language import known

Side = tuple[RecordedRun, str]  # a run and one of its methods


@dataclass(frozen=True)
class Request:
    """What a user asked for, as it was said. `runs`, `before`, `after`: RUN or RUN:METHOD; `samples`: texts for the
    representation of languages, 0 for none; `prompt`: what they go on from."""

    runs: Sequence[str]
    before: str | None
    after: str | None
    drafters: Sequence[str]
    reference: Reference
    samples: int
    prompt: str = ""
    tasks: Sequence[str] = ()
    subsets: Sequence[str] = ()
    data: str | None = None
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None


def check(request: Request) -> None:
    """Raise ConfigError for what no run can mend."""
    if (request.before is None) != (request.after is None):
        given, missing = ("--before", "--after") if request.after is None else ("--after", "--before")
        raise ConfigError(f"{given}: needs {missing} as well")
    if not request.runs and request.before is None:
        raise ConfigError("no run is given: give the folder of a run, or --before RUN --after RUN")
    if request.reference not in REFERENCES:
        raise ConfigError(f"--reference {request.reference}: {nearest(request.reference, REFERENCES)}")
    if request.samples < 0:
        raise ConfigError(f"--samples {request.samples}: give 0 (leaves the representation out) or more")
    if request.seed < 0:
        raise ConfigError(f"--seed {request.seed}: give 0 or more")


def read_all(request: Request) -> tuple[list[tuple[RecordedRun, list[str]]], tuple[Side, Side] | None]:
    """Every run with its methods, each once, and the two that --before and --after name."""
    named = [request.before, request.after] if request.before and request.after else []
    read: dict[str, RecordedRun] = {}
    chosen: dict[str, tuple[RecordedRun, list[str]]] = {}
    sides: list[Side] = []
    for text in [*named, *request.runs]:
        run, methods = read_run(text)
        run = read.setdefault(str(run.path.resolve()), run)
        if text in named and len(sides) < len(named):
            sides.append((run, only(text, methods)))
        _, known_methods = chosen.setdefault(str(run.path.resolve()), (run, []))
        known_methods += [method for method in methods if method not in known_methods]
    pair = (sides[0], sides[1]) if named else None
    if pair is not None and (pair[0][0].path, pair[0][1]) == (pair[1][0].path, pair[1][1]):
        raise ConfigError(f"--before and --after are the same: {request.before}: name two runs, or two methods of one")
    return list(chosen.values()), pair


def only(text: str, methods: Sequence[str]) -> str:
    if len(methods) > 1:
        raise ConfigError(f"run '{text}': drafts with {', '.join(methods)}: choose one, as {text}:{methods[0]}")
    return methods[0]


REPRESENTATION_TOKENS = 64
Say = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """The report, and what it is of."""

    report: FairnessReport
    common: Common


def answer(request: Request, say: Say = lambda text: None) -> Answer:
    """Read the runs, load the models, compute. Raises ConfigError for bad input, BoundViolation where numbers
    contradict the theorems."""
    check(request)
    chosen, pair = read_all(request)
    shared = common([run for run, _ in chosen], request.tasks, request.subsets)
    row = chosen[0][0].rows[0]
    set_threads(request.threads, row.target.startswith(EMBEDDED))
    say("loading models")
    loader = ModelLoader(request.device, request.dtype)
    target = loader.load(row.target, row.target_revision)
    entries = make_entries(chosen, request.drafters, loader)
    models = [model for entry in entries for model in entry.models]
    prompts = prompts_of(shared.runs[0], shared.groups, shared.keys, target, models, request.data)
    texts = texts_of(shared, prompts, target, request.reference, shortest_context([target, *models]))
    forecasters = {(each.name, each.revision): each for entry in entries for each in entry.forecasters.values()}
    found = forced_numbers(
        ModelForecaster(target), list(forecasters.values()), texts, target.vocab_size,
        lambda num_done: say(f"{num_done} of {len(texts)} texts"),
    )  # fmt: skip
    numbers = dict(zip(forecasters, found, strict=True))
    subjects = [
        make_subject(entry, shared, {r: numbers[each.name, each.revision] for r, each in entry.forecasters.items()})
        for entry in entries
    ]
    return Answer(_report(request, shared, subjects, pair, represented(request, shared, entries, say)), shared)


def represented(request: Request, shared: Common, entries: Sequence[Entry], say: Say) -> dict[int, Representation]:
    """By draft model: the languages of what it writes on an empty prompt; none where no group has a language."""
    languages = [row.language for row in shared.groups.values() if row.language and known(row.language)]
    models: dict[int, CausalLM] = {id(entry.model): entry.model for entry in entries if entry.model is not None}
    if not request.samples or not languages:
        return {}
    found = {}
    for name, model in models.items():
        say(f"sampling {request.samples} texts from {model.name}")
        found[name] = representation(
            model, request.samples, max_new_tokens=REPRESENTATION_TOKENS, temperature=1.0, seed=request.seed,
            prompt=request.prompt, languages=languages,
        )  # fmt: skip
    return found


def _report(
    request: Request, shared: Common, subjects: Sequence[Subject], pair: tuple[Side, Side] | None,
    found: dict[int, Representation],
) -> FairnessReport:  # fmt: skip
    tasks = tasks_of(list(shared.groups.values()))
    first = shared.runs[0].rows[0]
    comparison = None
    if pair is not None:
        by_place = {(s.entry.run.path, s.entry.method): s for s in subjects if s.entry.run is not None}
        before, after = (by_place[run.path, method] for run, method in pair)
        comparison = comparison_of(before, after, request.seed)
    return FairnessReport(
        target=first.target,
        target_revision=first.target_revision,
        reference=request.reference,
        seed=request.seed,
        num_samples=request.samples,
        num_prompts=len({key[:3] for keys in shared.keys.values() for key in keys}),
        num_left_out=shared.num_left_out,
        runs=tuple(str(run.path) for run in shared.runs),
        drafters=tuple(
            drafter_report(subject, shared, tasks, found.get(id(subject.entry.model)), request.seed)
            for subject in subjects
        ),
        comparison=comparison,
    )
