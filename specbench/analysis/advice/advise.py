"""`specbench advise`: which of the measured ways to run a model serves a goal best.

A way is a target in a precision and an engine, with a method and its draft length; plain decoding (AR) is one of them,
and so is AR of a quantized target. All ways come from recorded runs of the same task on one machine. Shorter draft
lengths than the measured one are replayed from the recorded verdicts (`predict`) with the pass costs of their own run,
and the replay is scaled by measured ÷ replayed at the recorded length, which holds the time between passes.

In a given memory, ways under load are ranked at the concurrency that they hold: AR at a higher one than a method with
a drafter (`memory`). Between measured levels it is computed.

Ways are ranked by the goal. A way is told from the best one by the ratio of their speeds, paired by prompt where both
have records. Another precision is another target: its quality stands beside its speed, as a difference from the
reference, which is AR of the first run.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from pydantic import Field

from specbench.analysis.advice.memory import LevelCheck, SharedMemory, check_levels, levels_of, value_at
from specbench.analysis.roofline.predict import Machine, Prediction, RecordedRow, has_shorter_drafts
from specbench.core.errors import ConfigError, nearest
from specbench.records.folder import read_environments
from specbench.report.captions import runs_on, verdict_word, why_unranked
from specbench.results.concurrency import LIMITS as LIMITS
from specbench.results.concurrency import Limits, goodput, load_groups, load_of, rows_by_server
from specbench.results.conditions import conditions_that_differ
from specbench.results.metric_format import metric_of
from specbench.results.paired import RowWithRecords, pair_up, unpaired_difference, unpaired_ratio
from specbench.results.row import Row, RowWarning
from specbench.results.runs import RecordedRun, RecordedRuns, read_path, rows_of_subsets, run_folder_of, split_detail
from specbench.statistics.bootstrap import Estimate, FilePart

Goal = Literal["latency", "throughput", "goodput", "energy", "cost"]
GOALS: tuple[str, ...] = get_args(Goal)
GOAL_TEXTS = {
    "latency": "tokens/s of one user",
    "throughput": "total tokens/s",
    "goodput": "answers/s within the limits",
    "energy": "tokens per joule",
    "cost": "dollars per million tokens",
}
# What a way may differ in: the target's precision and how its passes run. Scores are compared only where their
# signatures are equal.
FREE = (
    "target", "target_revision", "dtype", "engine", "attention", "products", "pass_width", "drafter_passes",
    "signatures", "versions", "code",
)  # fmt: skip
OF_LOADS = ("served.load", "n", "subsets", "repeats")  # in which levels of a load differ, too
MILLION = 1e6


Basis = Literal["measured", "replayed", "computed"]


class Way(FilePart):
    """A way to run the model. `run`: as it was given. `basis`: measured, replayed from records, or computed between
    measured levels. `value`: of the goal. `ratio`: this way's goodness ÷ the best one's, `paired` by prompt or
    from both intervals. `quality`: the main score; `quality_change`: minus the reference's. `keeps`: whether it writes
    what the reference's target would: the same target and precision, and a lossless method that was not caught.
    `share_cut_in_reasoning`: of its answers, those that ended inside their reasoning, which score as empty; None if
    none has reasoning. `runs_on`: whether most of its answers go on to the limit on new tokens where those of AR in its
    run end. `n`: its prompts. `why_out`: why it is not ranked."""

    run: str
    target: str
    precision: str
    engine: str
    method: str
    num_draft_tokens: int
    load: str
    basis: Basis
    value: Estimate
    ratio: Estimate
    paired: bool
    speedup: Estimate
    quality: Estimate
    quality_change: Estimate
    verdict: str
    keeps: bool
    peak_bytes: float | None
    share_cut_in_reasoning: float | None
    runs_on: bool
    n: int
    why_out: str | None
    warnings: tuple[RowWarning, ...]

    @property
    def conditions(self) -> tuple[str, ...]:
        """How the method runs: the target's precision, the engine and the load, each if there is something to tell."""
        texts = (self.precision, self.engine, self.load)
        return tuple(text for text in texts if text not in ("as served", "eager", ""))  # the engine says `served`

    @property
    def name(self) -> str:
        return self.name_without(())

    def name_without(self, shared: Collection[str]) -> str:
        """Returns the name without conditions that are told once for all ways."""
        length = "" if self.method == "ar" else f", γ {self.num_draft_tokens}"
        return ", ".join([f"{self.method}{length}", *(text for text in self.conditions if text not in shared)])


class Advice(FilePart):
    """The report. `ways`: best first, those that are not ranked last. `quality`: the name of the score, or None.
    `checks`: of the interpolation between levels, if ways are computed. `without_value`: why rows have no value of the
    goal, as PATH:METHOD."""

    goal: Goal
    task: str
    device: str
    quality: str | None
    reference: str
    max_loss: float | None
    ways: tuple[Way, ...]
    checks: tuple[LevelCheck, ...] = ()
    without_value: Mapping[str, str] = Field(default_factory=dict)

    @property
    def shared(self) -> list[str]:
        """The conditions of all ways, which a table tells below it instead of in every line."""
        first = self.ways[0].conditions if len(self.ways) > 1 else ()
        return [text for text in first if all(text in way.conditions for way in self.ways)]

    def short_name(self, way: Way) -> str:
        return way.name_without(self.shared)

    @property
    def ranked(self) -> list[Way]:
        return [way for way in self.ways if way.why_out is None]

    def best(self, keeps: bool = False) -> Way | None:
        """Returns the first way; with `keeps` the first one that keeps the reference's answers."""
        return next((way for way in self.ranked if way.keeps or not keeps), None)


class Measured(NamedTuple):
    """A row of an input, with its records where they can be read. `run`: its run, if the folder is there."""

    text: str
    run: RecordedRun | None
    row: Row
    found: RowWithRecords


Candidate = tuple[Measured, int, Basis, Estimate]  # a row, its draft length, and its value of the goal


def advise(
    runs: Sequence[str], goal: Goal, *, task: str | None = None, subset: str | None = None,
    price_per_hour: float | None = None, limits: Limits | None = None, max_loss: float | None = None,
    memory: SharedMemory | None = None, context: int | None = None,
) -> Advice:  # fmt: skip
    """Ranks the ways in runs and leaderboard files, each given as PATH or PATH:METHOD. `limits`: those of goodput.
    `max_loss`: the largest loss of quality, in the score's own units, of ways that are ranked. `memory`: that which all
    ways have. `context`: of the loads, if they are of several.

    Raises ConfigError for rows of several tasks, or that were measured on different machines or prompts, and for a goal
    that no row has the numbers of.
    """
    if goal not in GOALS:
        raise ConfigError(f"--goal {goal}: {nearest(goal, GOALS)}")
    needed = (
        ("cost", "--price-per-hour", price_per_hour, "DOLLARS, the price of the machine"),
        ("goodput", "--slo", limits, "with limits in seconds, such as --slo ttft=0.5,tpot=0.05"),
    )
    for own, option, given, how in needed:
        if goal == own and given is None:
            raise ConfigError(f"--goal {goal}: give {option} {how}")
        if goal != own and given is not None:
            raise ConfigError(f"{option}: has no effect with --goal {goal}: give --goal {own}")
    reads_loads = goal not in ("latency", "energy")
    for option, is_given in (("--memory", memory is not None), ("--context", context is not None)):
        if is_given and not reads_loads:
            raise ConfigError(f"{option}: has no effect with --goal {goal}: give --goal throughput, goodput or cost")
    # 1. The rows of one task, all measured alike but for what may differ.
    found = measured_rows(runs, task, subset)
    found = of_context(found, context) if reads_loads else [each for each in found if not each.row.level]
    if not found:
        raise ConfigError(f"--goal {goal}: no row has {GOAL_TEXTS[goal]}: {MISSING[goal]}")
    first = next((each for each in found if each.row.is_baseline), found[0])
    for each in found:
        if differ := conditions_that_differ(first.row, each.row, (*FREE, *OF_LOADS) if each.row.level else FREE):
            raise ConfigError(
                f"'{first.text}' and '{each.text}' were not measured alike ({'; '.join(map(str, differ))}): give runs "
                "of the same prompts on one machine"
            )
    # 2. Each as measured, then shorter draft lengths where they are better.
    value_of = goal_value(goal, price_per_hour)
    values = [value_of(each.row) if limits is None else goodput_of(each, limits) for each in found]
    candidates: list[Candidate] = [
        (each, each.row.num_draft_tokens, "measured", value) for each, value in zip(found, values, strict=True)
    ]
    if memory is not None:
        candidates += computed(found, values, memory)
    if goal in ("latency", "throughput", "cost"):
        for each in found:
            candidates += replayed(each, value_of)
    without_value = {
        f"{each.text}:{each.row.method_name}": why_no_joules(each) if goal == "energy" else "not recorded"
        for each, _, _, value in candidates if value.value is None
    }  # fmt: skip
    candidates = [each for each in candidates if each[3].value is not None]
    if not candidates:
        reasons = dict.fromkeys(without_value.values()) if goal == "energy" else [MISSING[goal]]
        raise ConfigError(f"--goal {goal}: no row has {GOAL_TEXTS[goal]}: {'; '.join(reasons)}")
    # 3. Ranked by the goal; those that are left out come last.
    baselines = {(each.text, each.row.level): each.row for each in found if each.row.is_baseline}
    ways = []
    for each, length, basis, value in candidates:
        quality, change = quality_of(first, each)
        baseline = baselines.get((each.text, each.row.level), each.row)
        speedup = each.row.metric("speedup") if basis == "measured" else Estimate()
        why_out = why_unranked(each.row)
        if why_out is None and memory is not None:
            why_out = why_too_large(each.row, memory)
        if why_out is None and max_loss is not None:
            why_out = why_too_bad(first.row.quality, change, max_loss)
        ways.append((each, Way(
            run=each.text, target=each.row.target, precision=each.row.dtype, engine=each.row.engine,
            method=each.row.method_name, num_draft_tokens=length, load=each.row.level, basis=basis, value=value,
            ratio=Estimate(value=1.0), paired=False, speedup=speedup,
            quality=quality, quality_change=change, verdict=verdict_word(each.row), keeps=keeps(first.row, each.row),
            peak_bytes=each.row.peak_bytes, share_cut_in_reasoning=each.row.value("share_cut_in_reasoning"),
            runs_on=runs_on(each.row, baseline), n=each.row.n, why_out=why_out, warnings=each.row.warnings,
        )))  # fmt: skip
    sign = -1.0 if goal == "cost" else 1.0
    ways.sort(key=lambda pair: (pair[1].why_out is not None, -sign * (pair[1].value.value or 0.0)))
    best, best_way = ways[0]
    told = [way if way is best_way else way.model_copy(update=ratio_to(best, best_way, each, way, goal))
            for each, way in ways]  # fmt: skip
    by_row = {id(each.row): value for each, value in zip(found, values, strict=True)}
    is_computed = any(basis == "computed" for _, _, basis, _ in candidates)
    checks = check_levels([each.row for each in found], lambda row: by_row[id(row)]) if is_computed else []
    return Advice(
        goal=goal, task=f"{first.row.task_name}/{first.row.subset}", device=first.row.device, quality=first.row.quality,
        reference=f"{first.text}:{first.row.method_name}", max_loss=max_loss, ways=tuple(told),
        checks=tuple(checks), without_value=without_value,
    )  # fmt: skip


MISSING = {
    "latency": "give runs with answers of more than one token",
    "throughput": "give runs with answers of more than one token",
    "cost": "give runs with answers of more than one token",
    "goodput": "give runs of servers with a load (`load:` in servers.yaml), and their folders",
    "energy": "give runs of this process, not of servers",
}


def measured_rows(runs: Sequence[str], task: str | None, subset: str | None) -> list[Measured]:
    """Returns the rows of all inputs. Raises ConfigError for an unknown path, method or task, and for several tasks."""
    opened = RecordedRuns()
    rows: list[Measured] = []
    for text in dict.fromkeys(runs):
        path, method = split_detail(text)
        if not path.exists():
            raise ConfigError(f"'{text}': no such folder or file: give the folder of a run, or a leaderboard file")
        given = read_path(text, path)
        given = given if method is None else given.of_methods(method, "ar")
        for row in rows_of_subsets(given.rows, [] if subset is None else [subset]):
            place = run_folder_of(row, given.file)
            run = opened.at(place) if place is not None and place.is_dir() else None
            rows.append(Measured(str(path), run, row, opened.with_records(row, given.file)))
    tasks = dict.fromkeys(each.row.task_name for each in rows)
    if task is not None and task not in tasks:
        raise ConfigError(f"--task {task}: no row has it: {nearest(task, tasks)}")
    if task is None and len(tasks) > 1:
        raise ConfigError(f"the rows are of several tasks ({', '.join(tasks)}): choose one with --task")
    return [each for each in rows if task is None or each.row.task_name == task]


def of_context(found: Sequence[Measured], context: int | None) -> list[Measured]:
    """Returns the rows of one context: of those under a load that were measured at it, or if none was, all rows. Raises
    ConfigError if it is not measured, and for several contexts if none is chosen."""
    contexts = {load_of(each.row).context for each in found if each.row.level}
    known = sorted(each for each in contexts if each is not None)
    if context is not None and context not in known:
        shown = f"the choices are {', '.join(map(str, known))}" if known else "no row is of a load with context"
        raise ConfigError(f"--context {context}: {shown}")
    if context is None and len(contexts) > 1:
        raise ConfigError(
            f"the loads are of several contexts ({', '.join(map(str, known))}): choose one with --context"
        )
    chosen = context if context is not None else next(iter(known), None)
    if chosen is None:
        return list(found)
    return [each for each in found if each.row.level and load_of(each.row).context == chosen]


def computed(found: Sequence[Measured], values: Sequence[Estimate], memory: SharedMemory) -> list[Candidate]:
    """Returns each server at the concurrency that it holds in the memory, where this lies between measured levels."""
    given = {id(each.row): (each, value) for each, value in zip(found, values, strict=True)}
    made: list[Candidate] = []
    for group in load_groups([each.row for each in found]):
        for rows in rows_by_server(group):
            if load_of(rows[0]).kind == "rate":
                continue
            requests = memory.capacity(rows[0].method_name).requests
            at = value_at(levels_of(rows, lambda row: given[id(row)][1]), requests)
            if at.basis != "computed":
                continue
            below = max((row for row in rows if load_of(row).level < requests), key=lambda row: load_of(row).level)
            load = load_of(below).model_copy(update={"level": float(requests)})
            served = below.served and below.served.model_copy(update={"load": load})
            row = below.model_copy(update={"served": served})
            each = given[id(below)][0]
            made.append((Measured(each.text, each.run, row, RowWithRecords(row)), row.num_draft_tokens, "computed",
                         at.value))  # fmt: skip
    return made


def why_too_large(row: Row, memory: SharedMemory) -> str | None:
    """Returns why a row is not ranked in a memory; None if it fits."""
    if row.level and load_of(row).kind == "rate":
        return "how many requests it has at once, and so its memory, is not known"
    capacity = memory.capacity(row.method_name)
    requests = int(load_of(row).level) if row.level else 1
    if requests <= capacity.requests:
        return None
    return (
        f"{memory.spec.total_gib:g} GiB hold {capacity.requests} of its requests of {memory.spec.tokens} tokens, not "
        f"{requests}"
    )


def replayed(each: Measured, value_of: Callable[[Row], Estimate]) -> list[Candidate]:
    """Returns the best shorter draft length, if it is better than the measured one. Nothing without records, or if the
    drafts depend on their length."""
    row, measured = each.row, each.row.value("tokens_per_second")
    if each.run is None or not each.found.own or row.level or measured is None:
        return []
    best = max(
        replayed_lengths(each.run, each.found), key=lambda found: found.tokens_per_second.value or 0.0, default=None
    )
    if best is None or (best.tokens_per_second.value or 0.0) <= measured:
        return []
    faster = row.model_copy(update={"metrics": {**row.metrics, "tokens_per_second": best.tokens_per_second}})
    return [(each, best.num_draft_tokens, "replayed", value_of(faster))]


def replayed_lengths(run: RecordedRun, found: RowWithRecords) -> list[Prediction]:
    """Returns a row at each shorter draft length, on a machine with the mean pass costs of its own run. Speeds are
    scaled by measured ÷ replayed at the measured length, which holds the time between passes. Nothing if the drafts
    depend on their length."""
    row = found.row
    if row.num_draft_tokens < 2 or row.is_baseline or "decoder" in row.options:
        return []
    recorded = RecordedRow.of(run, row, Machine.of_answers(found.own, found.baseline))
    if not has_shorter_drafts(recorded.method):
        return []
    *shorter, own = [each for each in recorded.predictions(str(run.path)) if each.draft_length is None]
    scales = [
        (row.value(name) or 0.0) / replayed.value if replayed.value else 0.0
        for name, replayed in (("tokens_per_second", own.tokens_per_second), ("speedup", own.speedup))
    ]
    return [
        each.model_copy(update={
            "tokens_per_second": times(each.tokens_per_second, scales[0]), "speedup": times(each.speedup, scales[1])
        })
        for each in shorter if all(scales)
    ]  # fmt: skip


def goal_value(goal: Goal, price_per_hour: float | None) -> Callable[[Row], Estimate]:
    """Returns the function that gives a row's value of a goal; empty where it has none."""
    if goal == "energy":
        return lambda row: inverse(joules_of(row))
    if goal == "cost":
        assert price_per_hour is not None
        return lambda row: times(inverse(row.metric("tokens_per_second")), price_per_hour / 3600 * MILLION)
    if goal == "latency":  # a user of a loaded server gets a share of its tokens
        return lambda row: Estimate() if row.level else row.metric("tokens_per_second")
    return lambda row: row.metric("tokens_per_second")


def goodput_of(each: Measured, limits: Limits) -> Estimate:
    if not each.row.level or each.run is None:
        return Estimate()
    return goodput(each.row, each.run.windows, limits)


def joules_of(row: Row) -> Estimate:
    """Returns joules per token of the processor and the GPU together; of one of them if the other is not measured."""
    parts = [row.metric(f"{place}_joules_per_token") for place in ("cpu", "gpu")]
    known = [part for part in parts if part.value is not None]
    if len(known) < 2:
        return known[0] if known else Estimate()
    return Estimate(value=sum(part.value or 0.0 for part in known))


def why_no_joules(each: Measured) -> str:
    """Returns why a row has no energy, as its run noted when it was measured."""
    if each.row.served is not None:
        return "the energy of a server is not measured"
    environments = [] if each.run is None else read_environments(each.run.path)
    told: object = next((found for noted in reversed(environments) if (found := noted.get("energy_unknown"))), {})
    reasons = [reason for reason in told.values() if isinstance(reason, str)] if isinstance(told, dict) else []
    return "; ".join(reasons) or "its run could not read a counter of the processor (RAPL) or of the GPU (NVML)"


def times(metric: Estimate, factor: float) -> Estimate:
    return Estimate(**{name: None if (end := getattr(metric, name)) is None else end * factor
                       for name in ("value", "low", "high")})  # fmt: skip


def inverse(metric: Estimate) -> Estimate:
    if not metric.value:
        return Estimate()
    if not metric.low or not metric.high:
        return Estimate(value=1 / metric.value)
    return Estimate(value=1 / metric.value, low=1 / metric.high, high=1 / metric.low)


def keeps(reference: Row, row: Row) -> bool:
    """Whether a row's answers are those of the reference's target. No server declares that its method is lossless, so
    that its answers have to be AR's."""
    same = all(getattr(reference, name) == getattr(row, name) for name in ("target", "target_revision", "dtype"))
    is_lossless = row.lossless or row.is_baseline or (row.served is not None and row.verdict == "greedy equal")
    return same and is_lossless and not row.verdict.startswith(("diverged", "not lossless"))


def quality_of(reference: Measured, each: Measured) -> tuple[Estimate, Estimate]:
    """Returns the main score and its difference from the reference's, paired by prompt where records are there."""
    name = reference.row.quality
    if name is None or each.row.quality != name or each.row.signatures != reference.row.signatures:
        return each.row.metric(each.row.quality), Estimate()
    if each is reference:
        return each.row.metric(name), Estimate(value=0.0, low=0.0, high=0.0)
    pairs = pair_up(reference.found, each.found)
    if not pairs.own[0]:
        return each.row.metric(name), unpaired_difference(reference.row.metric(name), each.row.metric(name))
    return each.row.metric(name), pairs.change(name).change


def why_too_bad(name: str | None, change: Estimate, max_loss: float) -> str | None:
    """Returns why a score is not ranked, given its change from the reference; None if it has not lost too much."""
    if change.value is None:
        return "its score is not known, or not comparable with the reference's"
    loss = change.value if metric_of(name).lower_is_better else -change.value
    return f"its score is {loss:.3g} worse than the reference's" if loss > max_loss else None


def ratio_to(best: Measured, best_way: Way, each: Measured, way: Way, goal: Goal) -> dict[str, object]:
    """Returns how good a way is beside the best one, as fields of Way: 0.8 is a fifth fewer tokens in the same time."""
    is_measured = way.basis == best_way.basis == "measured" and goal not in ("energy", "goodput")
    pairs = pair_up(best.found, each.found) if is_measured and best.found.own and each.found.own else None
    if pairs is not None and pairs.own[0]:
        return {"ratio": pairs.change("tokens_per_second").change, "paired": True}
    ratio = unpaired_ratio(best_way.value, way.value)
    return {"ratio": inverse(ratio) if goal == "cost" else ratio}
