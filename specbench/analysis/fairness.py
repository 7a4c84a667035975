"""One `specbench fairness`: runs, models and texts → the report, and its numbers in leaderboard rows."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.analysis.fairness_drafters import DrafterEntry, ModelForecaster, forced_numbers, make_entries
from specbench.analysis.fairness_groups import GroupSums
from specbench.analysis.fairness_report import (
    FairnessReport,
    compare_drafters,
    drafter_report,
    sums_by_group,
)
from specbench.analysis.fairness_runs import (
    REFERENCES,
    CommonRecords,
    Reference,
    RunMethods,
    common_records,
    read_run,
    texts_of,
)
from specbench.analysis.representation import Representation, representation
from specbench.core.console import counted
from specbench.core.errors import ConfigError, nearest
from specbench.core.extras import require
from specbench.core.progress import Say, say_nothing
from specbench.core.resources import EMBEDDED
from specbench.core.threads import set_threads
from specbench.models.causal_lm import CausalLM, shortest_context
from specbench.results.leaderboard import load, set_fields
from specbench.results.recorded_prompts import ModelLoader, prompts_of, tasks_of
from specbench.results.row import FairnessSummary, GroupNumbers
from specbench.results.runs import RecordedRun
from specbench.specs.languages import identifiable_code

RunMethod = tuple[Path, str]  # the folder of a run, and one of its methods


@dataclass(frozen=True)
class FairnessRequest:
    """The options of `specbench fairness`. `runs`, `before`, `after`: RUN or RUN:METHOD; `samples`: the number of texts
    to sample for the representation of languages, 0 for none; `prompt`: the beginning of these texts."""

    runs: Sequence[str]
    before: str | None = None
    after: str | None = None
    drafters: Sequence[str] = ()
    reference: Reference = "continuation"
    samples: int = 0
    prompt: str = ""
    tasks: Sequence[str] = ()
    subsets: Sequence[str] = ()
    data: str | None = None
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError for options that do not fit together."""
        if (self.before is None) != (self.after is None):
            given, missing = ("--before", "--after") if self.after is None else ("--after", "--before")
            raise ConfigError(f"{given}: needs {missing} as well")
        if not self.runs and self.before is None:
            raise ConfigError("no run is given: give the folder of a run, or --before RUN --after RUN")
        if self.reference not in REFERENCES:
            raise ConfigError(f"--reference {self.reference}: {nearest(self.reference, REFERENCES)}")
        if self.samples < 0:
            raise ConfigError(f"--samples {self.samples}: give 0 (no representation) or more")
        if self.seed < 0:
            raise ConfigError(f"--seed {self.seed}: give 0 or more")


def read_runs(request: FairnessRequest) -> tuple[RunMethods, list[RunMethod]]:
    """Returns every run once, with its methods; and the two methods that --before and --after name, if given."""
    pair: list[RunMethod] = []
    found: dict[Path, tuple[RecordedRun, list[str]]] = {}
    compared = [text for text in (request.before, request.after) if text is not None]
    for number, text in enumerate([*compared, *request.runs]):
        read, methods = read_run(text)
        run, known_methods = found.setdefault(read.path.resolve(), (read, []))
        if number < len(compared):
            if len(methods) > 1:
                choices = ", ".join(methods)
                raise ConfigError(f"run '{text}': drafts with {choices}: choose one, as {text}:{methods[0]}")
            pair.append((run.path, methods[0]))
        known_methods += [method for method in methods if method not in known_methods]
    if pair and pair[0] == pair[1]:
        raise ConfigError(f"--before and --after are the same: {request.before}: name two runs, or two methods of one")
    return list(found.values()), pair


def fairness_report(request: FairnessRequest, progress: Say = say_nothing) -> FairnessReport:
    """Reads the runs, loads the models, and returns the report. Raises ConfigError for bad input, and BoundViolation if
    numbers contradict the theorems."""
    methods, pair = read_runs(request)
    common = common_records([run for run, _ in methods], request.tasks, request.subsets)
    row = common.runs[0].rows[0]
    set_threads(request.threads, row.target.startswith(EMBEDDED))
    languages = [
        group.language for group in common.groups.values() if group.language and identifiable_code(group.language)
    ]
    if request.samples and languages:
        require("lingua", "--samples")
    progress("loading models")
    loader = ModelLoader(request.device, request.dtype, trust_remote_code=request.trust_remote_code)
    target = loader.load(row.target, row.target_revision)
    entries = make_entries(methods, request.drafters, loader)
    sums = sums_of_entries(request, common, entries, target, progress)
    texts = sample_representations(request, languages, entries, progress)
    tasks = tasks_of(list(common.groups.values()))
    comparison = None
    if pair:
        places = [(entry.run.path, entry.method) if entry.run else None for entry in entries]
        before, after = (places.index(each) for each in pair)
        names = (entries[before].label, entries[after].label)
        comparison = compare_drafters(names, sums[before], sums[after], request.seed)
    return FairnessReport(
        target=row.target,
        target_revision=row.target_revision,
        reference=request.reference,
        seed=request.seed,
        num_samples=request.samples,
        num_prompts=len({key[:3] for keys in common.keys.values() for key in keys}),
        num_left_out=common.num_left_out,
        runs=tuple(str(run.path) for run in common.runs),
        drafters=tuple(
            drafter_report(entry, own, common, tasks, texts.get(id(entry.model)), request.seed)
            for entry, own in zip(entries, sums, strict=True)
        ),
        comparison=comparison,
    )


def sums_of_entries(
    request: FairnessRequest, common: CommonRecords, entries: Sequence[DrafterEntry], target: CausalLM,
    progress: Say,
) -> list[dict[str, GroupSums]]:  # fmt: skip
    """Returns the sums of the groups of every drafter, from the records and from teacher-forced passes."""
    models = [model for entry in entries for model in entry.models]
    prompts = prompts_of(common.runs[0], common.groups, common.keys, target, models, request.data)
    texts = texts_of(common, prompts, target, request.reference, shortest_context([target, *models]))
    forecasters = {(each.name, each.revision): each for entry in entries for each in entry.forecasters.values()}
    forced = forced_numbers(ModelForecaster(target), list(forecasters.values()), texts, target.vocab_size, progress)
    numbers = dict(zip(forecasters, forced, strict=True))
    return [
        sums_by_group(entry, common, {r: numbers[each.name, each.revision] for r, each in entry.forecasters.items()})
        for entry in entries
    ]


def sample_representations(
    request: FairnessRequest, languages: Sequence[str], entries: Sequence[DrafterEntry], progress: Say
) -> dict[int, Representation]:
    """Samples texts from every draft model. Returns their languages by the model's id; empty if no texts were requested
    or `languages` is empty."""
    models: dict[int, CausalLM] = {id(entry.model): entry.model for entry in entries if entry.model is not None}
    if not request.samples or not languages:
        return {}
    found = {}
    for name, model in models.items():
        progress(f"sampling {request.samples} texts from {model.name}")
        found[name] = representation(
            model, request.samples, seed=request.seed, prompt=request.prompt, languages=languages
        )
    return found


def fairness_of_rows(report: FairnessReport) -> dict[str, GroupNumbers | FairnessSummary]:
    """Returns the numbers of each row, by the row's key. A row `all` gets the numbers over all groups, but only if the
    groups are exactly its subsets."""
    found: dict[str, GroupNumbers | FairnessSummary] = {}
    for drafter in report.drafters:
        if drafter.run is None or drafter.method is None:
            continue
        rows = RecordedRun(Path(drafter.run)).rows_of(drafter.method)
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
    """Raises ConfigError if a leaderboard is missing or damaged."""
    if not path.is_file():
        raise ConfigError(f"--leaderboard {path}: no such file: `specbench run --leaderboard {path}` creates it")
    load(path)


def add_fairness(path: Path, report: FairnessReport) -> str:
    """Writes the field `fairness` into the matching rows of a leaderboard. Returns a line with their number, the number
    of rows that the leaderboard lacks, and the command that adds those. Raises ConfigError if no row matches."""
    found = fairness_of_rows(report)
    num_rows = set_fields(path, ("fairness",), lambda row: (found[row.key],) if row.key in found else None)
    missing, absent = found.keys() - {row.key for row in load(path)}, ""
    if missing:
        runs = [run for run in report.runs if any(row.key in missing for row in RecordedRun(Path(run)).rows)]
        command = shlex.join(["specbench", "leaderboard", "add", *runs, "--leaderboard", str(path)])
        names = ", ".join(runs)
        absent = f"not in it: {counted(len(missing), 'row')} of {names}: run `{command}`, then repeat this command"
    if not num_rows:
        raise ConfigError(f"--leaderboard {path}: got no fairness numbers; {absent}")
    return "; ".join(filter(None, [f"{counted(num_rows, 'row')} got fairness numbers", absent]))
