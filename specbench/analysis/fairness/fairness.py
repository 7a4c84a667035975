"""One `specbench fairness`: runs, models and texts → the report, and its numbers in leaderboard rows. Rates are shares,
divergences are nats."""

import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from specbench.analysis.fairness.drafters import (
    REFERENCES,
    WHOLE,
    CommonRecords,
    DrafterEntry,
    Numbers,
    Reference,
    RunMethods,
    common_records,
    forced_numbers,
    make_entries,
    model_forecaster,
    texts_of,
)
from specbench.analysis.fairness.groups import (
    DIVERGENCES,
    NUMBERS,
    STATISTICS,
    WIDTH,
    GroupSums,
    Values,
    estimate,
    excluded_masses,
    forced_numbers_of,
    group_sums,
    measured_numbers,
    statistic_bounds,
    summarize_family,
    values_of,
)
from specbench.analysis.fairness.representation import Representation, representation, share_of
from specbench.core.console import counted
from specbench.core.environment import EMBEDDED, require, set_threads
from specbench.core.errors import ConfigError, nearest
from specbench.core.progress import Say, say_nothing
from specbench.models.causal_lm import shortest_context, split_precision
from specbench.records.records import Record
from specbench.report.captions import draft_length
from specbench.results.answers import BASELINE, answers_of
from specbench.results.fairness import FairnessSummary, GroupNumbers
from specbench.results.leaderboard import load, set_fields
from specbench.results.metrics import times
from specbench.results.runs import RecordedRun, run_path
from specbench.running.recorded_prompts import ModelLoader, prompts_of, tasks_of
from specbench.specs.components import identifiable_code
from specbench.specs.run_options import RunOptions
from specbench.specs.task import TaskSpec
from specbench.statistics.bootstrap import Array, Bounds, Estimate, FilePart, Resampler
from specbench.tasks.scoring import make_scorer
from specbench.training.passes import unfairness


class DrafterReport(FilePart):
    """One drafter. `draft_length`: as a run's caption states it, None if no run measured it; `cost_ratio`: c over all
    groups of its run; `problem`: the reason why it has no teacher-forced numbers."""

    label: str
    drafter: str | None
    revision: str | None
    run: str | None
    method: str | None
    num_draft_tokens: int
    draft_length: str | None = None
    cost_ratio: float | None
    problem: str | None
    num_texts_represented: int | None = None
    prompt_represented: str | None = None  # the beginning of these texts, as `Representation.prompt`
    groups: dict[str, GroupNumbers]
    family: FairnessSummary


class NumberChange(FilePart):
    """A number before and after. `difference`: after − before, paired; `percent`: the difference in percent of the
    number before. All four come from the same resamples."""

    before: Estimate
    after: Estimate
    difference: Estimate
    percent: Estimate


class DrafterComparison(FilePart):
    """Two drafters on the same prompts. `groups`, `family`: the changes of each group and over all groups, by the name
    of the number. `excluded_before`, `excluded_after`: by group, as in `ForcedNumbers`."""

    before: str
    after: str
    excluded_before: dict[str, float]
    excluded_after: dict[str, float]
    groups: dict[str, dict[str, NumberChange]]
    family: dict[str, NumberChange]


class FairnessReport(FilePart):
    """The report of `specbench fairness`. `num_left_out`: the number of records that some runs lack."""

    target: str
    target_revision: str | None
    reference: str
    seed: int
    num_samples: int
    num_prompts: int
    num_left_out: int
    runs: tuple[str, ...]
    drafters: tuple[DrafterReport, ...]
    comparison: DrafterComparison | None = None


DEFAULT_NUM_DRAFT_TOKENS = 5  # γ of a drafter that no run measured, from arXiv:2510.02128, appendix D


def sums_by_group(entry: DrafterEntry, common: CommonRecords, numbers: Mapping[str, Numbers]) -> dict[str, GroupSums]:
    records = entry.run.records if entry.run is not None else common.runs[0].records
    # γ and c of every route. c is computed from all records of a route, so that the expected speed-ups of groups differ
    # only by acceptance. A drafter that no run measured gets the γ of the first method.
    speeds: dict[str, tuple[int, float | None]] = {}
    if entry.method is None:
        of_rows = [row.num_draft_tokens for row in common.runs[0].rows if row.num_draft_tokens]
        speeds[WHOLE] = ((*of_rows, DEFAULT_NUM_DRAFT_TOKENS)[0], None)
    else:
        by_route: dict[str, list[Record]] = defaultdict(list)
        for record in (records[key] for keys in common.keys.values() for key in keys):
            by_route[entry.route(record)].append(record)
        for route, of_route in by_route.items():
            own, baseline = (answers_of(of_route, name) for name in (entry.method, BASELINE))
            cost_ratio = times(Resampler.of(own, 0), own, baseline)["cost_ratio"].value
            speeds[route] = (entry.num_draft_tokens(route), cost_ratio)
    groups = {}
    for place, keys in common.keys.items():
        routes = {key: entry.route(records[key]) for key in keys}
        forced = {key: numbers[r][key] for key, r in routes.items() if r in numbers and key in numbers[r]}
        lengths, costs = zip(*(speeds[route] for route in sorted({*routes.values()})), strict=True)
        cost = costs[0] if len(costs) == 1 else None
        groups[common.labels[place]] = group_sums(keys, records, entry.method, forced, max(lengths), cost)
    return groups


def drafter_report(
    entry: DrafterEntry, sums: Mapping[str, GroupSums], common: CommonRecords, tasks: Mapping[str, TaskSpec],
    texts: Representation | None, seed: int,
) -> DrafterReport:  # fmt: skip
    row = entry.rows[0] if entry.rows else None
    groups = {}
    for (task, subset), label in common.labels.items():
        own = sums[label]
        scorer = make_scorer(tasks[task].subset(subset)) if own.bleu is not None else None
        language = common.groups[task, subset].language
        share = share_of(texts.languages, language) if texts else None
        groups[label] = GroupNumbers(
            task=task, subset=subset, language=language, num_prompts=len(own.sums),
            measured=None if entry.method is None else measured_numbers(own, scorer, seed),
            forced=forced_numbers_of(f"{entry.label}, {label}", own, seed),
            representation_rank=share.rank if share else None, representation_share=share.share if share else None,
        )  # fmt: skip
    costs = {group.cost_ratio for group in sums.values()}
    return DrafterReport(
        label=entry.label,
        drafter=row.drafter if row is not None else entry.label,
        revision=row.drafter_revision if row is not None else entry.models[0].revision,
        run=str(entry.run.path) if entry.run is not None else None,
        method=entry.method,
        num_draft_tokens=max(group.num_draft_tokens for group in sums.values()),
        draft_length=draft_length(row) if row is not None else None,
        cost_ratio=costs.pop() if len(costs) == 1 else None,
        problem=entry.problem,
        num_texts_represented=texts.num_texts if texts else None,
        prompt_represented=texts.prompt if texts else None,
        groups=groups,
        family=summarize_family(sums, groups, seed),
    )


Pairs = Sequence[tuple[GroupSums, GroupSums]]  # each group before and after, with the same prompts in the same order


def compare_drafters(
    labels: tuple[str, str], before: Mapping[str, GroupSums], after: Mapping[str, GroupSums], seed: int
) -> DrafterComparison:
    """Returns the changes from the first drafter to the second in the same groups, and those of 𝒰 and of the mean,
    variance and max/min of every rate and speed-up over all groups. Resamples draw a prompt for both drafters
    together."""

    def changes(pairs: Pairs, *statistics: str) -> dict[tuple[str, str], NumberChange]:
        one, other = (values_of(groups) for groups in zip(*pairs, strict=True))
        found = {}
        for name in [name for name in one if name in other]:
            for statistic in ("mean",) if name in DIVERGENCES else statistics:
                bounds = statistic_bounds(statistic, NUMBERS[name].bounds)
                change = measure_change(pairs, STATISTICS[statistic], (one[name], other[name]), bounds, seed)
                if change.difference.value is not None:
                    found[name, statistic] = change
        return found

    pairs = [(group, after[label]) for label, group in before.items()]
    family = {f"{name}.{statistic}": change for (name, statistic), change in changes(pairs, *STATISTICS).items()}
    divergence = values_of([])["cross_entropy"]
    change = measure_change(pairs, unfairness, (divergence, divergence), (0.0, np.inf), seed)
    return DrafterComparison(
        before=labels[0], after=labels[1], excluded_before=excluded_masses(before),
        excluded_after=excluded_masses(after),
        groups={
            label: {name: change for (name, _), change in changes([pair], "mean").items()}
            for label, pair in zip(before, pairs, strict=True)
        },
        family=family if change.difference.value is None else {"unfairness": change, **family},
    )  # fmt: skip


def measure_change(
    pairs: Pairs, function: Callable[[Array], Array], values: tuple[Values, Values], bounds: Bounds, seed: int
) -> NumberChange:
    """Returns the change of a statistic over groups ([..., m] → [...]) from one drafter to the other. `values`: the
    number of each group, for either drafter; `bounds`: the least (not below 0) and the greatest value of the statistic.
    """
    both = [np.hstack([before.sums, after.sums]) for before, after in pairs]  # [num_prompts, 2 · WIDTH]
    least, most = bounds

    def old(sums: Sequence[Array]) -> Array:
        return function(values[0]([each[..., :WIDTH] for each in sums]))

    def new(sums: Sequence[Array]) -> Array:
        return function(values[1]([each[..., WIDTH:] for each in sums]))

    def percent(sums: Sequence[Array]) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(100 * (new(sums) / old(sums) - 1))

    return NumberChange(
        before=estimate(both, old, seed, least, most),
        after=estimate(both, new, seed, least, most),
        difference=estimate(both, lambda sums: new(sums) - old(sums), seed, least - most, most - least),
        percent=estimate(both, percent, seed, least=-100.0),
    )


RunMethod = tuple[Path, str]  # the folder of a run, and one of its methods


def read_runs(runs: Sequence[str], before: str | None, after: str | None) -> tuple[RunMethods, list[RunMethod]]:
    """Returns the runs that RUN or RUN:METHOD name, each once with its methods, and the two methods to compare."""
    if (before is None) != (after is None):
        given, missing = ("--before", "--after") if after is None else ("--after", "--before")
        raise ConfigError(f"{given}: needs {missing} as well")
    compared = [text for text in (before, after) if text is not None]
    if not runs and not compared:
        raise ConfigError("no run is given: give the folder of a run, or --before RUN --after RUN")
    pair: list[RunMethod] = []
    found: dict[Path, tuple[RecordedRun, list[str]]] = {}
    for number, text in enumerate([*compared, *runs]):
        read, methods = read_run(text)
        run, known_methods = found.setdefault(read.path.resolve(), (read, []))
        if number < len(compared):
            if len(methods) > 1:
                choices = ", ".join(methods)
                raise ConfigError(f"run '{text}': drafts with {choices}: choose one, as {text}:{methods[0]}")
            pair.append((run.path, methods[0]))
        known_methods += [method for method in methods if method not in known_methods]
    if pair and pair[0] == pair[1]:
        raise ConfigError(f"--before and --after are the same: {before}: name two runs, or two methods of one")
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
    assert run.records  # reads them now, so that damaged records are reported before any model is loaded
    # AR drafts nothing, and external code has no draft distribution.
    names = (row.method_name for row in run.rows if row.num_draft_tokens > 0 and "decoder" not in row.options)
    drafting = list(dict.fromkeys(names))
    if not drafting:
        raise ConfigError(f"run '{path}': none of its methods drafts: run one with a drafter, such as --method sd")
    if method is not None and method not in drafting:
        raise ConfigError(f"run '{text}': no method '{method}' that drafts: {nearest(method, drafting)}")
    return run, drafting if method is None else [method]


def fairness_report(
    runs: Sequence[str], options: RunOptions, progress: Say = say_nothing, *, before: str | None = None,
    after: str | None = None, drafters: Sequence[str] = (), reference: Reference = "continuation", samples: int = 0,
    prompt: str = "", tasks: Sequence[str] = (),
) -> FairnessReport:  # fmt: skip
    """Reads the runs, loads the models, and returns the report. `runs`, `before`, `after`: RUN or RUN:METHOD;
    `drafters`: more drafters than those of the runs; `samples`: the number of texts to sample for the representation of
    languages, 0 for none; `prompt`: the beginning of these texts.

    Raises ConfigError for bad input, and BoundViolation if numbers contradict the theorems.
    """
    # 1. Everything that can be wrong with the input.
    if reference not in REFERENCES:
        raise ConfigError(f"--reference {reference}: {nearest(reference, REFERENCES)}")
    for option, number in (("--samples", samples), ("--seed", options.seed)):
        if number < 0:
            raise ConfigError(f"{option} {number}: give 0 or more")
    methods, pair = read_runs(runs, before, after)
    common = common_records([run for run, _ in methods], tasks, options.subsets or ())
    row = common.runs[0].rows[0]
    set_threads(options.threads, row.target.startswith(EMBEDDED))
    languages = [
        group.language for group in common.groups.values() if group.language and identifiable_code(group.language)
    ]
    if samples and languages:
        require("lingua", "--samples")
    # 2. The models, and teacher-forced numbers: every distribution reads the same texts once.
    progress("loading models")
    loader = ModelLoader(options.device, options.dtype, trust_remote_code=options.trust_remote_code)
    target = loader.load(row.target, row.target_revision)
    entries = make_entries(methods, drafters, loader)
    models = [model for entry in entries for model in entry.models]
    prompts = prompts_of(common.runs[0], common.groups, common.keys, target, models, options.data)
    texts = texts_of(common, prompts, target, reference, shortest_context([target, *models]))
    forecasters = {(each.name, each.revision): each for entry in entries for each in entry.forecasters.values()}
    forced = forced_numbers(model_forecaster(target), list(forecasters.values()), texts, target.vocab_size, progress)
    numbers = dict(zip(forecasters, forced, strict=True))
    sums = [
        sums_by_group(entry, common, {r: numbers[each.name, each.revision] for r, each in entry.forecasters.items()})
        for entry in entries
    ]
    # 3. The languages that every draft model writes by itself, by the model's id.
    represented: dict[int, Representation] = {}
    for model in [entry.model for entry in entries if samples and languages]:
        if model is not None and id(model) not in represented:
            progress(f"sampling {samples} texts from {model.name}")
            represented[id(model)] = representation(
                model, samples, seed=options.seed, prompt=prompt, languages=languages
            )
    # 4. The report.
    specs = tasks_of(list(common.groups.values()))
    comparison = None
    if pair:
        places = [(entry.run.path, entry.method) if entry.run else None for entry in entries]
        one, other = (places.index(each) for each in pair)
        names = (entries[one].label, entries[other].label)
        comparison = compare_drafters(names, sums[one], sums[other], options.seed)
    return FairnessReport(
        target=row.target,
        target_revision=row.target_revision,
        reference=reference,
        seed=options.seed,
        num_samples=samples,
        num_prompts=len({key[:3] for keys in common.keys.values() for key in keys}),
        num_left_out=common.num_left_out,
        runs=tuple(str(run.path) for run in common.runs),
        drafters=tuple(
            drafter_report(entry, own, common, specs, represented.get(id(entry.model)), options.seed)
            for entry, own in zip(entries, sums, strict=True)
        ),
        comparison=comparison,
    )


def check_rows(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"--leaderboard {path}: no such file: `specbench run --leaderboard {path}` creates it")
    load(path)


def add_fairness(path: Path, report: FairnessReport) -> str:
    """Writes the field `fairness` into the matching rows of a leaderboard. Returns a line with their number, the number
    of rows that the leaderboard lacks, and the command that adds those. Raises ConfigError if no row matches."""
    found: dict[str, GroupNumbers | FairnessSummary] = {}  # by the row's key
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
                found[row.key] = drafter.family  # only if the groups are exactly its subsets
    num_rows = set_fields(path, ("fairness",), lambda row: (found[row.key],) if row.key in found else None)
    missing = found.keys() - {row.key for row in load(path)}
    absent = ""
    if missing:
        runs = [run for run in report.runs if any(row.key in missing for row in RecordedRun(Path(run)).rows)]
        command = shlex.join(["specbench", "leaderboard", "add", *runs, "--leaderboard", str(path)])
        names = ", ".join(runs)
        absent = f"not in it: {counted(len(missing), 'row')} of {names}: run `{command}`, then repeat this command"
    if not num_rows:
        raise ConfigError(f"--leaderboard {path}: no rows updated; {absent}")
    return "; ".join(filter(None, [f"fairness written to {counted(num_rows, 'row')}", absent]))
