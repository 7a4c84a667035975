"""One `specbench fairness`: runs → models, texts, numbers, report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbench.fairness.common import Common, common
from specbench.fairness.drafters import Entry, make_entries
from specbench.fairness.forced import forced_numbers
from specbench.fairness.forecasts import ModelForecaster
from specbench.fairness.loader import Loader
from specbench.fairness.numbers import FairnessReport
from specbench.fairness.prompts import prompts_of, tasks_of
from specbench.fairness.report import Subject, comparison_of, drafter_report, make_subject
from specbench.fairness.request import Request, Side, check, read_all
from specbench.fairness.texts import texts_of
from specbench.models.causal_lm import CausalLM, shortest_context
from specbench.representation import Representation, representation
from specbench.resources import EMBEDDED
from specbench.scoring.language import known
from specbench.threads import set_threads

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
    tasks = tasks_of(list(shared.groups.values()))
    row = chosen[0][0].rows[0]
    set_threads(request.threads, row.target.startswith(EMBEDDED))
    say("loading models")
    loader = Loader(request.device, request.dtype)
    target = loader.load(row.target, row.target_revision)
    entries = make_entries(chosen, request.drafters, loader)
    models = [model for entry in entries for model in entry.models]
    prompts = prompts_of(shared, tasks, target, models, request.data)
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
