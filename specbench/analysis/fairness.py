"""One `specbench fairness`: runs, models and texts → the report, and its numbers in leaderboard rows."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.analysis.fairness_drafters import DrafterEntry, ModelForecaster, forced_numbers, make_entries
from specbench.analysis.fairness_numbers import FairnessReport
from specbench.analysis.fairness_report import ComparedDrafter, compared_drafter, comparison_of, drafter_report
from specbench.analysis.fairness_runs import REFERENCES, CommonRecords, Reference, common, read_run, texts_of
from specbench.analysis.representation import Representation, representation
from specbench.core.errors import ConfigError, nearest
from specbench.core.resources import EMBEDDED
from specbench.core.threads import set_threads
from specbench.models.causal_lm import CausalLM
from specbench.models.text_model import shortest_context
from specbench.results.leaderboard import load, set_fields
from specbench.results.recorded_prompts import ModelLoader, prompts_of, tasks_of
from specbench.results.row import Family, GroupNumbers
from specbench.results.runs import RecordedRun
from specbench.specs.languages import known

RunMethod = tuple[RecordedRun, str]  # a run and one of its methods


@dataclass(frozen=True)
class FairnessRequest:
    """The options of `specbench fairness`, as a user gives them. `runs`, `before`, `after`: RUN or RUN:METHOD;
    `samples`: texts for the representation of languages, 0 for none; `prompt`: what they go on from."""

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


def check_request(request: FairnessRequest) -> None:
    """Raises ConfigError for options that do not fit together."""
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


def read_all(
    request: FairnessRequest,
) -> tuple[list[tuple[RecordedRun, list[str]]], tuple[RunMethod, RunMethod] | None]:
    """Returns every run with its methods, each once, and the two that --before and --after name."""
    named = [request.before, request.after] if request.before and request.after else []
    read: dict[str, RecordedRun] = {}
    chosen: dict[str, tuple[RecordedRun, list[str]]] = {}
    sides: list[RunMethod] = []
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
class FairnessAnswer:
    """The report, and the runs, groups and records that it is about."""

    report: FairnessReport
    common: CommonRecords


def fairness_answer(request: FairnessRequest, say: Say = lambda text: None) -> FairnessAnswer:
    """Returns the report: reads the runs, loads the models, computes. Raises ConfigError for bad input, BoundViolation
    where numbers contradict the theorems."""
    check_request(request)
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
        compared_drafter(entry, shared, {r: numbers[each.name, each.revision] for r, each in entry.forecasters.items()})
        for entry in entries
    ]
    return FairnessAnswer(_report(request, shared, subjects, pair, represented(request, shared, entries, say)), shared)


def represented(
    request: FairnessRequest, shared: CommonRecords, entries: Sequence[DrafterEntry], say: Say
) -> dict[int, Representation]:
    """Returns by draft model the languages of the texts that it writes on an empty prompt; empty where no group has
    one."""
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
    request: FairnessRequest, shared: CommonRecords, subjects: Sequence[ComparedDrafter],
    pair: tuple[RunMethod, RunMethod] | None, found: dict[int, Representation],
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


def fairness_rows(answer: FairnessAnswer) -> dict[str, GroupNumbers | Family]:
    """Returns the numbers of each row, by the row's key. `all` gets the numbers of the family only where the groups are
    exactly its subsets."""
    found: dict[str, GroupNumbers | Family] = {}
    runs = {str(run.path): run for run in answer.common.runs}
    for drafter in answer.report.drafters:
        if drafter.run is None:
            continue
        rows = [row for row in runs[drafter.run].rows if row.method_name == drafter.method]
        places = {(group.task, group.subset): group for group in drafter.groups.values()}
        for row in rows:
            subsets = {other.subset for other in rows if other.task == row.task and other.subset != "all"}
            group = places.get((row.task_name, row.subset))
            if group is not None:
                found[row.key] = group
            elif row.subset == "all" and places.keys() == {(row.task_name, subset) for subset in subsets}:
                found[row.key] = drafter.family
    return found


def check_rows(path: Path) -> None:
    """Raises ConfigError where a leaderboard is not there or damaged."""
    if not path.is_file():
        raise ConfigError(f"--leaderboard {path}: no such file: `specbench run --leaderboard {path}` makes it")
    load(path)


def add_to(path: Path, answer: FairnessAnswer) -> int:
    """Give the matching rows of the file their `fairness`; returns how many there are. Raises ConfigError for none."""
    found: Mapping[str, GroupNumbers | Family] = fairness_rows(answer)
    num_rows = set_fields(path, ("fairness",), lambda row: (found[row.key],) if row.key in found else None)
    if not num_rows:
        raise ConfigError(f"--leaderboard {path}: got no fairness numbers: {absent(path, answer)}")
    return num_rows


def absent(path: Path, answer: FairnessAnswer) -> str | None:
    """Returns how many rows with numbers the file lacks, and the command that adds them; None where it has all."""
    missing = fairness_rows(answer).keys() - {row.key for row in load(path)}
    if not missing:
        return None
    runs = [str(run.path) for run in answer.common.runs if any(row.key in missing for row in run.rows)]
    how = shlex.join(["specbench", "leaderboard", "add", *runs, "--to", str(path)])
    return f"{len(missing)} rows of {', '.join(runs)} are not in it: add them with `{how}`, then repeat this command"
