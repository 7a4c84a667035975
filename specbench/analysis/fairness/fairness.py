"""One `specbench fairness`: runs, models and texts → the report, and its numbers in leaderboard rows."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.analysis.fairness.drafters import (
    REFERENCES,
    CommonRecords,
    DrafterEntry,
    Reference,
    RunMethods,
    common_records,
    forced_numbers,
    make_entries,
    model_forecaster,
    texts_of,
)
from specbench.analysis.fairness.groups import GroupSums
from specbench.analysis.fairness.report import (
    FairnessReport,
    compare_drafters,
    drafter_report,
    sums_by_group,
)
from specbench.analysis.fairness.representation import Representation, representation
from specbench.core.console import counted
from specbench.core.environment import EMBEDDED, require, set_threads
from specbench.core.errors import ConfigError, nearest
from specbench.core.progress import Say, say_nothing
from specbench.models.causal_lm import CausalLM, shortest_context, split_precision
from specbench.results.leaderboard import load, set_fields
from specbench.results.row import FairnessSummary, GroupNumbers
from specbench.results.runs import RUN_HINT, RecordedRun, run_path
from specbench.running.recorded_prompts import ModelLoader, prompts_of, tasks_of
from specbench.specs.components import identifiable_code
from specbench.specs.run_options import RunOptions

RunMethod = tuple[Path, str]  # the folder of a run, and one of its methods


@dataclass(frozen=True)
class FairnessRequest:
    """The options of `specbench fairness`. `runs`, `before`, `after`: RUN or RUN:METHOD; `samples`: the number of texts
    to sample for the representation of languages, 0 for none; `prompt`: the beginning of these texts; `drafters`: more
    drafters than those of the runs."""

    runs: Sequence[str]
    options: RunOptions
    before: str | None = None
    after: str | None = None
    drafters: Sequence[str] = ()
    reference: Reference = "continuation"
    samples: int = 0
    prompt: str = ""
    tasks: Sequence[str] = ()

    def __post_init__(self) -> None:
        if (self.before is None) != (self.after is None):
            given, missing = ("--before", "--after") if self.after is None else ("--after", "--before")
            raise ConfigError(f"{given}: needs {missing} as well")
        if not self.runs and self.before is None:
            raise ConfigError("no run is given: give the folder of a run, or --before RUN --after RUN")
        if self.reference not in REFERENCES:
            raise ConfigError(f"--reference {self.reference}: {nearest(self.reference, REFERENCES)}")
        if self.samples < 0:
            raise ConfigError(f"--samples {self.samples}: give 0 (no representation) or more")
        if self.options.seed < 0:
            raise ConfigError(f"--seed {self.options.seed}: give 0 or more")


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


def read_run(text: str) -> tuple[RecordedRun, list[str]]:
    """Returns the run and the drafting methods that RUN or RUN:METHOD names.

    Raises ConfigError for a path without a finished run, for a run that another process is measuring, for damaged
    records, and if no such method drafts.
    """
    path, method = run_path(text)
    run = RecordedRun(path)
    if split_precision(run.rows[0].dtype)[1] != "none":
        raise ConfigError(
            f"run '{path}': its target was {run.rows[0].dtype}, and texts are scored without quantization: give a run "
            "without --quantize"
        )
    routes = run.identity.get("routes", {})
    if not isinstance(routes, dict):
        raise ConfigError(f"{run.path / 'run.json'}: routes = {routes!r:.60}: is not a mapping: {RUN_HINT}")
    assert run.records  # reads them now, so that damaged records are reported before any model is loaded
    # AR drafts nothing, and external code has no draft distribution.
    names = (row.method_name for row in run.rows if row.num_draft_tokens > 0 and "decoder" not in row.options)
    drafting = list(dict.fromkeys(names))
    if not drafting:
        raise ConfigError(f"run '{path}': none of its methods drafts: run one with a drafter, such as --method sd")
    if method is not None and method not in drafting:
        raise ConfigError(f"run '{text}': no method '{method}' that drafts: {nearest(method, drafting)}")
    return run, drafting if method is None else [method]


def fairness_report(request: FairnessRequest, progress: Say = say_nothing) -> FairnessReport:
    """Reads the runs, loads the models, and returns the report. Raises ConfigError for bad input, and BoundViolation if
    numbers contradict the theorems."""
    (methods, pair), options = read_runs(request), request.options
    common = common_records([run for run, _ in methods], request.tasks, options.subsets or ())
    row = common.runs[0].rows[0]
    set_threads(options.threads, row.target.startswith(EMBEDDED))
    languages = [
        group.language for group in common.groups.values() if group.language and identifiable_code(group.language)
    ]
    if request.samples and languages:
        require("lingua", "--samples")
    progress("loading models")
    loader = ModelLoader(options.device, options.dtype, trust_remote_code=options.trust_remote_code)
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
        comparison = compare_drafters(names, sums[before], sums[after], options.seed)
    return FairnessReport(
        target=row.target,
        target_revision=row.target_revision,
        reference=request.reference,
        seed=options.seed,
        num_samples=request.samples,
        num_prompts=len({key[:3] for keys in common.keys.values() for key in keys}),
        num_left_out=common.num_left_out,
        runs=tuple(str(run.path) for run in common.runs),
        drafters=tuple(
            drafter_report(entry, own, common, tasks, texts.get(id(entry.model)), options.seed)
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
    prompts = prompts_of(common.runs[0], common.groups, common.keys, target, models, request.options.data)
    texts = texts_of(common, prompts, target, request.reference, shortest_context([target, *models]))
    forecasters = {(each.name, each.revision): each for entry in entries for each in entry.forecasters.values()}
    forced = forced_numbers(model_forecaster(target), list(forecasters.values()), texts, target.vocab_size, progress)
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
    models = {id(entry.model): entry.model for entry in entries if request.samples and languages}
    found = {}
    for name, model in models.items():
        if model is None:
            continue
        progress(f"sampling {request.samples} texts from {model.name}")
        found[name] = representation(
            model, request.samples, seed=request.options.seed, prompt=request.prompt, languages=languages
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
