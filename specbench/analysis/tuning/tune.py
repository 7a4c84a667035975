"""The search of `specbench tune`, as in arXiv:2502.20704, App. D."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from specbench.analysis.tuning.shared_runs import LENGTH, TrialRun, Trials, fuzzy_at, with_value
from specbench.analysis.tuning.sweep import record_run
from specbench.core.console import say
from specbench.core.errors import ConfigError
from specbench.core.table import Table
from specbench.decoding.verification import MAX_JS
from specbench.results.metric_format import metric_of, score, with_interval
from specbench.specs.catalogue import load_method
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.statistics.bootstrap import Estimate
from specbench.tasks.scoring import make_scorer

FILE_WIDTH = 110  # characters of a table in a method's file
LENGTHS = (5, 10, 15, 20)
TOLERATED = 0.2  # how far quality may fall, as a share of the gap between target and drafter
NEARLY_ALL = 0.9  # if this share of the draft tokens is accepted, a longer draft is tried
FINE = 0.05  # the grid for T_SD, which is fine because estimates cost no run
LARGEST = 1.0  # the largest threshold to try for a divergence without a bound


def thresholds_up_to(divergence: str, step: float, start: float = 0.0) -> list[float]:
    """Returns start + step, start + 2 step, … up to the threshold that accepts everything, ln 2, for Jensen–Shannon
    divergences; up to 1, as in the paper, for the others."""
    most = MAX_JS if divergence in ("js", "top_k_js") else LARGEST
    count = math.floor((most - start) / step + 1e-9)
    return [round(start + number * step, 6) for number in range(1, count + 1)]


def nearest_threshold(shares: Mapping[float, float], wanted: float) -> float:
    """Returns the threshold with the share of accepted draft tokens that is nearest to `wanted`; the smaller one if two
    are equal."""
    return min(sorted(shares), key=lambda threshold: abs(shares[threshold] - wanted))


def candidate_thresholds(shares: Mapping[float, float], wanted: float) -> list[float]:
    """Returns the nearest threshold by the estimates and its neighbours, among which a real run chooses."""
    ordered = sorted(shares)
    place = ordered.index(nearest_threshold(shares, wanted))
    return ordered[max(0, place - 1) : place + 2]


def keep_allowed(qualities: Sequence[tuple[float, float]], allowed: float) -> list[float]:
    """Returns the thresholds before the first one with a quality below `allowed`. `qualities`: [(threshold, quality)]
    in rising order of thresholds."""
    kept = []
    for threshold, quality in qualities:
        if quality < allowed - 1e-9:
            break
        kept.append(threshold)
    return kept


def is_blind(difference: Estimate, gap: float, num_prompts: int, most: float = 1.0) -> bool:
    """Returns whether the slice is too small to detect the tolerated fall: the interval of the quality's difference is
    wider than the fall, and contains it.

    A corpus score has an interval without width if all answers are AR's. It is replaced, because n prompts cannot
    exclude a fall of 3 / n (at 95 %) of `most`, the largest possible difference.
    """
    if difference.value is None or difference.low is None or difference.high is None:
        return True
    fall = TOLERATED * gap
    low = difference.low if difference.low < difference.high else difference.value - 3 * most / num_prompts
    return difference.high - low > fall and low <= -fall <= difference.high


CHUNK = 3  # thresholds measured in one run, with one AR
MetricsByName = dict[str, Estimate]


@dataclass(frozen=True)
class TunedPreset:
    """A chosen setting with its metrics on the calibration slice. `label`: low, med, high, or empty."""

    label: str
    method: MethodSpec
    metrics: MetricsByName


@dataclass
class Tuner:
    """The runs of a tuning and its decisions. `notes`: the decisions as sentences, and tables as text."""

    trials: Trials
    lengths: Sequence[int] = LENGTHS
    step: float = 0.1
    notes: list[str] = field(default_factory=list)

    def decide(self, text: str) -> None:
        """Prints a decision with its numbers, and notes it for the method's file."""
        self.notes.append(text)
        say(self.trials.console, text)

    def show(self, table: Table) -> None:
        """Prints a table on which decisions are based, and notes it for the method's file."""
        console = Console(width=FILE_WIDTH, force_terminal=False, color_system=None)
        with console.capture() as captured:
            console.print(table)
        self.notes.append(captured.get())
        self.trials.console.print(table)

    def choose_length(self) -> tuple[int, TrialRun]:
        """Returns the draft length with the most tokens per second, and the run that measured all lengths. For a fuzzy
        method, the run is of speculative decoding with the same drafter, and of the drafter without a target."""
        base = self.trials.base
        methods = [
            with_value(lossless_method(base), LENGTH, length).model_copy(update={"name": f"length-{length}"})
            for length in self.lengths
        ]
        draft_only = [load_method("draft-only")] if is_fuzzy(base) else []
        run = self.trials.run("lengths-" + "-".join(map(str, self.lengths)), [*methods, *draft_only])
        found = {length: run.metrics(f"length-{length}")["tokens_per_second"] for length in self.lengths}
        best = max(sorted(found), key=lambda length: found[length].value or 0.0)
        subject = "speculative decoding with this drafter" if is_fuzzy(base) else base.name
        speeds = ", ".join(f"{length}: {with_interval(speed, 1)}" for length, speed in found.items())
        self.decide(f"draft length {best}: tokens/s of {subject} by length, 95 % interval: {speeds}")
        return best, run

    def find_equivalent(self, length: int, lossless_metrics: MetricsByName) -> tuple[float, MetricsByName]:
        """Returns T_SD, the threshold that accepts the same share of draft tokens as speculative decoding, and its
        metrics. Estimates from one recorded run select three thresholds, and a real run decides."""
        wanted = lossless_metrics["draft_efficiency"]
        assert wanted.value is not None
        grid = thresholds_up_to(self.divergence, FINE)
        _, recording = record_run(self.trials, grid[0], length)
        estimated = {t: recording.estimate(t, length).metrics["draft_efficiency"].value or 0.0 for t in grid}
        near = candidate_thresholds(estimated, wanted.value)
        found = self.measure(near, length)
        shares = {threshold: found[threshold]["draft_efficiency"].value or 0.0 for threshold in near}
        equivalent = nearest_threshold(shares, wanted.value)
        by_threshold = ", ".join(f"{t:g}: ≈ {estimated[t]:.3f}, run {shares[t]:.3f}" for t in near)
        self.decide(
            f"T_SD = {equivalent:g}: speculative decoding accepts {with_interval(wanted, 3)} of its draft tokens; by "
            f"threshold (≈ estimated from one run): {by_threshold}"
        )
        return equivalent, found[equivalent]

    @property
    def quality(self) -> str:
        assert self.trials.quality is not None  # checked by `check_quality`
        return self.trials.quality

    @property
    def divergence(self) -> str:
        return str(self.trials.base.verification.options["divergence"])

    def measure(self, thresholds: Sequence[float], length: int) -> dict[float, MetricsByName]:
        names = {threshold: f"threshold-{threshold:g}" for threshold in thresholds}
        methods = [fuzzy_at(self.trials.base, threshold, length, name) for threshold, name in names.items()]
        folder = f"length-{length}-thresholds-" + "-".join(f"{threshold:g}" for threshold in thresholds)
        run = self.trials.run(folder, methods)
        return {threshold: run.metrics(name) for threshold, name in names.items()}

    def search_above(
        self, start: float, metrics: MetricsByName, length: int, allowed: float
    ) -> dict[float, MetricsByName]:
        """Returns the thresholds from T_SD upwards that keep the quality at `allowed` or above; T_SD if none does."""
        found = {start: metrics}
        rest = thresholds_up_to(self.divergence, self.step, start)
        while rest and len(keep_allowed(self.qualities(found), allowed)) == len(found):
            found |= self.measure(rest[:CHUNK], length)
            rest = rest[CHUNK:]
        kept = keep_allowed(self.qualities(found), allowed)
        failed = f"T_SD = {start:g} loses more quality than allowed, so the search continues below it"
        result = f"largest threshold {kept[-1]:g}" if kept else failed
        unit = metric_of(self.quality)
        limit = f"{unit.label} may fall to {unit.factor * allowed:.{unit.digits}f}"
        self.decide(f"{result}: {limit}; by threshold: {self.scores(found)}")
        return {threshold: found[threshold] for threshold in kept or [start]}

    def search_below(self, start: float, length: int, allowed: float) -> dict[float, MetricsByName]:
        """Returns the thresholds below T_SD that keep the quality, if T_SD itself does not; empty if none does. The
        paper only searches upwards, but a fuzzy rule may accept as many tokens as SD and yet worse ones."""
        rest = [round(number * FINE, 6) for number in range(math.ceil(start / FINE - 1e-9) - 1, 0, -1)]
        found: dict[float, MetricsByName] = {}
        kept: list[float] = []
        while rest and not kept:
            found |= self.measure(rest[:CHUNK], length)
            rest = rest[CHUNK:]
            kept = [threshold for threshold, quality in self.qualities(found) if quality >= allowed - 1e-9]
        result = f"below T_SD: {kept[-1]:g} is the largest threshold that keeps the quality" if kept else (
            "no smaller threshold keeps the quality"
        )  # fmt: skip
        self.decide(f"{result}; by threshold: {self.scores(found) or 'none is left'}")
        return {threshold: found[threshold] for threshold in kept}

    def scores(self, found: dict[float, MetricsByName]) -> str:
        return ", ".join(f"{t:g}: {score(found[t][self.quality], self.quality)}" for t in sorted(found))

    def qualities(self, found: dict[float, MetricsByName]) -> list[tuple[float, float]]:
        """Returns (threshold, quality) in rising order of thresholds."""
        return [(threshold, found[threshold][self.quality].value or 0.0) for threshold in sorted(found)]

    def make_preset(
        self, label: str, threshold: float, metrics: MetricsByName, length: int, allowed: float
    ) -> TunedPreset:
        """Returns the preset at a threshold. Its drafts get longer as long as nearly all draft tokens are accepted and
        the longer draft is faster."""
        while (metrics["draft_efficiency"].value or 0.0) >= NEARLY_ALL and length < max(self.lengths):
            following = min(other for other in self.lengths if other > length)
            pair = {n: fuzzy_at(self.trials.base, threshold, n, f"length-{n}") for n in (length, following)}
            run = self.trials.run(f"threshold-{threshold:g}-lengths-{length}-{following}", list(pair.values()))
            now, then = (run.metrics(method.name) for method in pair.values())
            before, after = now["tokens_per_second"], then["tokens_per_second"]
            is_faster = (after.value or 0.0) > (before.value or 0.0)
            better = is_faster and (then[self.quality].value or 0.0) >= allowed - 1e-9
            self.decide(
                f"{label or 'preset'}: {with_interval(metrics['draft_efficiency'], 3)} of the draft tokens are "
                f"accepted; {following} instead of {length}: tokens/s {with_interval(before, 1)} → "
                f"{with_interval(after, 1)}, {metric_of(self.quality).label} "
                f"{score(then[self.quality], self.quality)}: " + ("taken" if better else "not taken")
            )
            if not better:
                break
            length, metrics = following, then
        return TunedPreset(label, fuzzy_at(self.trials.base, threshold, length), metrics)


def is_fuzzy(method: MethodSpec) -> bool:
    return method.verification.rule == "fuzzy"


def lossless_method(method: MethodSpec) -> MethodSpec:
    """Returns the method; for a fuzzy method, speculative decoding with the same drafter and bridge."""
    if not is_fuzzy(method):
        return method
    return with_value(method, "verification", {"rule": "rejection"})


def tune(tuner: Tuner) -> list[TunedPreset]:
    """Returns the presets low, med and high of a fuzzy method; one preset without a label if they are equal, and for
    any other method."""
    trials = tuner.trials
    length, run = tuner.choose_length()
    own = run.metrics(f"length-{length}")
    if not is_fuzzy(trials.base):
        return [TunedPreset("", with_value(trials.base, LENGTH, length), own)]
    quality, unit = tuner.quality, metric_of(tuner.quality)
    target, drafter = own[f"{quality}_ar"], run.metrics("draft-only")[quality]
    if target.value is None or drafter.value is None:
        raise ConfigError(f"no answer on this slice has a score ({unit.label}): give examples with references")
    gap = target.value - drafter.value
    scores = f"{unit.label}: target {score(target, quality)}, drafter alone {score(drafter, quality)}"
    if gap <= 0:
        raise ConfigError(
            f"{scores}: without a gap between them, no fall of quality can be seen on this slice: give more examples "
            "with --calibration or --limit, or another task"
        )
    tuner.decide(scores)
    allowed = target.value - TOLERATED * gap
    low, low_metrics = tuner.find_equivalent(length, own)
    kept = tuner.search_above(low, low_metrics, length, allowed)
    if (kept[low][quality].value or 0.0) < allowed - 1e-9:
        kept = tuner.search_below(low, length, allowed) or kept
    low, high = min(kept), max(kept)
    med = round((low + high) / 2, 6)
    if med not in kept:
        kept |= tuner.measure([med], length)
    if low == high:
        tuner.decide("low, med and high are equal (one file): no other threshold keeps the quality or is left to try")
    num_prompts = sum(len(data.examples) for _, _, data in trials.loaded)
    difference = kept[high][f"{quality}_difference"]
    if is_blind(difference, gap, num_prompts, unit.most):
        tuner.decide(
            f"the slice is too small to see a fall of {TOLERATED:.0%} of the gap "
            f"({TOLERATED * unit.factor * gap:.1f} points): on {num_prompts} prompts the {unit.label} of "
            f"high − AR is {score(difference, quality)} points; tune on more"
        )
    labelled = {"": low} if low == high else {"low": low, "med": med, "high": high}
    return [tuner.make_preset(label, t, kept[t], length, allowed) for label, t in labelled.items()]


def parse_lengths(texts: Sequence[str], method: MethodSpec) -> list[int]:
    """Returns the draft lengths to try. Raises ConfigError for one that the method cannot draft."""
    lengths = []
    for text in texts:
        if not text.isascii() or not text.isdigit():
            raise ConfigError(f"--lengths {text}: not a number of tokens: give some like 5,10,15,20")
        lengths.append(with_value(method, LENGTH, int(text), place=f"--lengths {text}").num_draft_tokens)
    if not lengths:
        raise ConfigError("--lengths: is empty: give some like 5,10,15,20")
    return sorted(set(lengths))


def check_quality(spec: RunSpec, step: float) -> None:
    """Raises ConfigError if the quality of a fuzzy method, or of its drafter, cannot be measured."""
    task, method = spec.tasks[0], spec.methods[1]
    if not is_fuzzy(method):
        return
    if not 0 < step < math.inf:
        raise ConfigError(f"--step {step:g}: must be above 0")
    scorers = {subset: make_scorer(task.subset(subset)) for _, subset in spec.cells()}
    mains = {scorer.names[0] for scorer in scorers.values() if scorer is not None}
    if not mains:
        raise ConfigError(
            f"--task {task.name}: has no scorer, so there is no quality to trade for speed: choose a task with "
            "`scorer` and `reference`"
        )
    if len(mains) > 1:
        scores = ", ".join(sorted(mains))
        raise ConfigError(f"--task {task.name}: its subsets have several scores ({scores}): choose one with --subset")
    if not method.needs_drafter:
        raise ConfigError(
            f"--method {method.name}: drafts without a model, so there is no drafter's own quality to measure "
            "thresholds against: choose one with drafter.type = 'model'"
        )
