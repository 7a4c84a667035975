"""`specbench tune`: candidates are measured on a calibration slice, the fastest one is taken, and the files of tuned
methods state how each was found.

Draft lengths and sizes of growing trees are measured directly. The thresholds of fuzzy rules are searched as in
arXiv:2502.20704, App. D. Shapes of draft trees follow from measured chances and costs, as in arXiv:2402.12374.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate, takewhile, zip_longest
from pathlib import Path
from random import Random
from statistics import fmean
from textwrap import fill

import numpy as np
import yaml
from rich.console import Console

from specbench.analysis.tuning.shared_runs import (
    LENGTH,
    Metrics,
    TrialRun,
    Trials,
    TuningReport,
    dumped,
    fuzzy_at,
    open_trials,
    score_heading,
    shown,
    trial_spec,
    with_value,
)
from specbench.analysis.tuning.sweep import record_run
from specbench.built_in import __version__
from specbench.core.console import say
from specbench.core.errors import ConfigError
from specbench.core.files import check_output, write_output
from specbench.core.registry import DRAFTERS
from specbench.core.table import Table, number_columns, text_columns
from specbench.core.values import depths
from specbench.decoding.decoder import stream_seed
from specbench.decoding.drafters.heads import CHANCES
from specbench.decoding.tree_shape import USUAL_CHANCES, best_shape_by_level
from specbench.decoding.verification import MAX_JS
from specbench.records.records import Generation
from specbench.results.metric_format import NULL, metric_of, number, score, score_pair, with_interval
from specbench.running.plan import Loaded
from specbench.running.prompts import prompt_digest
from specbench.running.request import Request
from specbench.specs.catalogue import load_file, load_method
from specbench.specs.components import build
from specbench.specs.method import CalibrationSpec, MethodSpec, tree_levels
from specbench.specs.run import RunSpec
from specbench.statistics.bootstrap import MIN_PROMPTS, Estimate
from specbench.tasks.scoring import make_scorer

FILE_WIDTH = 110  # characters of a table in a method's file
LENGTHS = (5, 10, 15, 20)
TOLERATED = 0.2  # how far quality may fall, as a share of the gap between target and drafter
NEARLY_ALL = 0.9  # if this share of the draft tokens is accepted, a longer draft is tried
FINE = 0.05  # the grid for T_SD, which is fine because estimates cost no run
LARGEST = 1.0  # the largest threshold to try for a divergence without a bound
CHUNK = 3  # thresholds measured in one run, with one AR


@dataclass(frozen=True)
class TunedPreset:
    """A chosen setting with its metrics on the calibration slice. `label`: low, med, high, or empty."""

    label: str
    method: MethodSpec
    metrics: Metrics


@dataclass
class Tuner:
    """The runs of a tuning and its decisions. `candidates`: the draft lengths or tree sizes to try; `step`: between
    thresholds; `notes`: the decisions as sentences, and tables as text."""

    trials: Trials
    candidates: Sequence[int] = LENGTHS
    step: float = 0.1
    notes: list[str] = field(default_factory=list)

    def decide(self, text: str) -> None:
        self.notes.append(text)
        say(self.trials.console, text)

    def show(self, table: Table) -> None:
        console = Console(width=FILE_WIDTH, force_terminal=False, color_system=None)
        with console.capture() as captured:
            console.print(table)
        self.notes.append(captured.get())
        self.trials.console.print(table)

    @property
    def quality(self) -> str:
        assert self.trials.quality is not None  # checked by `check_quality`
        return self.trials.quality

    @property
    def divergence(self) -> str:
        return str(self.trials.base.verification.options["divergence"])

    def measure(self, folder: str, methods: Iterable[MethodSpec]) -> dict[str, Metrics]:
        made = list(methods)
        run = self.trials.run(folder, made)
        return {method.name: run.metrics(method.name) for method in made}

    def measure_thresholds(self, thresholds: Sequence[float], length: int) -> dict[float, Metrics]:
        names = {threshold: f"threshold-{threshold:g}" for threshold in thresholds}
        methods = [fuzzy_at(self.trials.base, threshold, length, name) for threshold, name in names.items()]
        found = self.measure(f"length-{length}-thresholds-" + "-".join(f"{t:g}" for t in thresholds), methods)
        return {threshold: found[name] for threshold, name in names.items()}

    def qualities(self, found: Mapping[float, Metrics]) -> list[tuple[float, float]]:
        return [(threshold, found[threshold][self.quality].value or 0.0) for threshold in sorted(found)]

    def scores(self, found: Mapping[float, Metrics]) -> str:
        return ", ".join(f"{t:g}: {score(found[t][self.quality], self.quality)}" for t in sorted(found))

    def choose_length(self) -> tuple[int, dict[str, Metrics]]:
        """Returns the draft length with the most tokens per second, and the metrics of the run that measured all
        lengths. For a fuzzy method, the run is of speculative decoding with the same drafter, and of the drafter
        alone."""
        base = self.trials.base
        methods = {
            length: with_value(lossless_method(base), LENGTH, length).model_copy(update={"name": f"length-{length}"})
            for length in self.candidates
        }
        draft_only = [load_method("draft-only")] if is_fuzzy(base) else []
        found = self.measure("lengths-" + "-".join(map(str, methods)), [*methods.values(), *draft_only])
        best = fastest([methods[length] for length in sorted(methods)], found)
        subject = "speculative decoding with this drafter" if is_fuzzy(base) else base.name
        speeds = ", ".join(
            f"{length}: {with_interval(found[method.name]['tokens_per_second'], 1)}"
            for length, method in methods.items()
        )
        length = best.num_draft_tokens
        self.decide(f"draft length {length}: tokens/s of {subject} by length, 95 % interval: {speeds}")
        return length, found

    def find_equivalent(self, length: int, lossless_metrics: Metrics) -> tuple[float, Metrics]:
        """Returns T_SD, the threshold that accepts the same share of draft tokens as speculative decoding, and its
        metrics. Estimates from one recorded run select three thresholds, and a real run decides."""
        wanted = lossless_metrics["draft_efficiency"]
        assert wanted.value is not None
        grid = thresholds_up_to(self.divergence, FINE)
        _, recording = record_run(self.trials, grid[0], length)
        estimated = {t: recording.estimate(t, length).metrics["draft_efficiency"].value or 0.0 for t in grid}
        near = candidate_thresholds(estimated, wanted.value)
        found = self.measure_thresholds(near, length)
        shares = {threshold: found[threshold]["draft_efficiency"].value or 0.0 for threshold in near}
        equivalent = nearest_threshold(shares, wanted.value)
        by_threshold = ", ".join(f"{t:g}: ≈ {estimated[t]:.3f}, run {shares[t]:.3f}" for t in near)
        self.decide(
            f"T_SD = {equivalent:g}: speculative decoding accepts {with_interval(wanted, 3)} of its draft tokens; by "
            f"threshold (≈ estimated from one run): {by_threshold}"
        )
        return equivalent, found[equivalent]

    def search_above(self, start: float, metrics: Metrics, length: int, allowed: float) -> dict[float, Metrics]:
        """Returns the thresholds from T_SD upwards that keep the quality at `allowed` or above; T_SD if none does."""
        found = {start: metrics}
        rest = thresholds_up_to(self.divergence, self.step, start)
        while rest and len(keep_allowed(self.qualities(found), allowed)) == len(found):
            found |= self.measure_thresholds(rest[:CHUNK], length)
            rest = rest[CHUNK:]
        kept = keep_allowed(self.qualities(found), allowed)
        failed = f"T_SD = {start:g} loses more quality than allowed, so the search continues below it"
        result = f"largest threshold {kept[-1]:g}" if kept else failed
        unit = metric_of(self.quality)
        limit = f"{unit.label} may fall to {unit.factor * allowed:.{unit.digits}f}"
        self.decide(f"{result}: {limit}; by threshold: {self.scores(found)}")
        return {threshold: found[threshold] for threshold in kept or [start]}

    def search_below(self, start: float, length: int, allowed: float) -> dict[float, Metrics]:
        """Returns the thresholds below T_SD that keep the quality, if T_SD itself does not; empty if none does. The
        paper only searches upwards, but a fuzzy rule may accept as many tokens as SD and yet worse ones."""
        rest = [round(number * FINE, 6) for number in range(math.ceil(start / FINE - 1e-9) - 1, 0, -1)]
        found: dict[float, Metrics] = {}
        kept: list[float] = []
        while rest and not kept:
            found |= self.measure_thresholds(rest[:CHUNK], length)
            rest = rest[CHUNK:]
            kept = [threshold for threshold, quality in self.qualities(found) if quality >= allowed - 1e-9]
        result = "no smaller threshold keeps the quality"
        if kept:
            result = f"below T_SD: {kept[-1]:g} is the largest threshold that keeps the quality"
        self.decide(f"{result}; by threshold: {self.scores(found) or 'none is left'}")
        return {threshold: found[threshold] for threshold in kept}

    def make_preset(self, label: str, threshold: float, metrics: Metrics, length: int, allowed: float) -> TunedPreset:
        """Returns the preset at a threshold. Its drafts get longer as long as nearly all draft tokens are accepted and
        the longer draft is faster."""
        while (metrics["draft_efficiency"].value or 0.0) >= NEARLY_ALL and length < max(self.candidates):
            following = min(other for other in self.candidates if other > length)
            now, then = self.measure(
                f"threshold-{threshold:g}-lengths-{length}-{following}",
                [fuzzy_at(self.trials.base, threshold, n, f"length-{n}") for n in (length, following)],
            ).values()
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
    return with_value(method, "verification", {"rule": "rejection"}) if is_fuzzy(method) else method


def fastest(methods: Sequence[MethodSpec], found: Mapping[str, Metrics]) -> MethodSpec:
    return max(methods, key=lambda method: found[method.name]["tokens_per_second"].value or 0.0)


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
    ordered = sorted(shares)
    place = ordered.index(nearest_threshold(shares, wanted))
    return ordered[max(0, place - 1) : place + 2]


def keep_allowed(qualities: Sequence[tuple[float, float]], allowed: float) -> list[float]:
    """Returns the thresholds before the first one with a quality below `allowed`. `qualities`: [(threshold, quality)]
    in rising order of thresholds."""
    return [threshold for threshold, _ in takewhile(lambda pair: pair[1] >= allowed - 1e-9, qualities)]


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


def tune(tuner: Tuner) -> list[TunedPreset]:
    """Returns the presets low, med and high of a fuzzy method; one preset without a label if they are equal, and for
    any other method."""
    trials = tuner.trials
    length, found = tuner.choose_length()
    own = found[f"length-{length}"]
    if not is_fuzzy(trials.base):
        return [TunedPreset("", with_value(trials.base, LENGTH, length), own)]
    # 1. The quality that a preset must keep, from the gap between the target and the drafter alone.
    quality, unit = tuner.quality, metric_of(tuner.quality)
    target, drafter = own[f"{quality}_ar"], found["draft-only"][quality]
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
    # 2. The thresholds: as strict as speculative decoding (low), the largest that keeps the quality (high), the middle.
    low, low_metrics = tuner.find_equivalent(length, own)
    kept = tuner.search_above(low, low_metrics, length, allowed)
    if (kept[low][quality].value or 0.0) < allowed - 1e-9:
        kept = tuner.search_below(low, length, allowed) or kept
    low, high = min(kept), max(kept)
    med = round((low + high) / 2, 6)
    if med not in kept:
        kept |= tuner.measure_thresholds([med], length)
    if low == high:
        tuner.decide("low, med and high are equal (one file): no other threshold keeps the quality or is left to try")
    # 3. A slice that cannot show the tolerated fall says so.
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


LevelChances = Sequence[Sequence[float]]  # by level of the tree, then by rank
SIZES = (4, 8, 16, 32, 64)
MAX_DEPTH = 16
MIN_VERIFIED = 20  # verified children of a rank; a chance from fewer is left out


def has_shape(method: MethodSpec) -> bool:
    """Returns whether trees can get their shape from chances by rank. False for trees that grow (`top_k`)."""
    if method.decoder is not None or method.routes is not None or grows(method):
        return False
    return has_heads(method) or {"num_nodes", "rank_chances", "depth"} <= known_options(method)


def grows(method: MethodSpec) -> bool:
    return method.decoder is None and method.routes is None and method.drafter.options.get("top_k") is not None


def has_heads(method: MethodSpec) -> bool:
    return {"num_nodes", "head_chances"} <= known_options(method)


def known_options(method: MethodSpec) -> set[str]:
    return set(DRAFTERS.options_model(method.drafter.type).model_fields)


def with_shape(method: MethodSpec, num_nodes: int, level_chances: LevelChances) -> MethodSpec:
    depth = best_shape_by_level(level_chances, num_nodes).depth
    data = method.model_dump(exclude={"sweep"})
    shape = {
        "widths": None, "num_nodes": num_nodes, "rank_chances": list(level_chances[0]), "depth": depth,
        "head_chances": [list(chances) for chances in level_chances[:depth]],
    }  # fmt: skip
    data["drafter"] |= {name: value for name, value in shape.items() if name in known_options(method)}
    return build(MethodSpec, {**data, "name": f"nodes-{num_nodes}-depth-{depth}", "num_draft_tokens": depth})


@dataclass(frozen=True)
class Shape:
    """A size and a depth of trees, with their expected numbers."""

    num_nodes: int
    depth: int
    tokens: float  # per target pass
    speed: float  # tokens per target pass over one token


@dataclass(frozen=True)
class TreeCosts:
    """The measured costs of a step, in mean target passes over one token.

    `verifying`: the target's pass and the overhead, by the number of draft tokens. `drafting`: the fixed cost of
    the draft passes of a step, and their cost per level.
    """

    verifying: Mapping[float, float]
    drafting: tuple[float, float]

    def step(self, num_nodes: int, depth: int) -> float:
        sizes = sorted(self.verifying)
        verifying = float(np.interp(num_nodes, sizes, [self.verifying[size] for size in sizes]))
        fixed, per_level = self.drafting
        return verifying + fixed + per_level * depth


def chances_by_level(generations: Sequence[Generation]) -> list[list[float]]:
    levels = zip_longest(*(generation.tree_levels or () for generation in generations), fillvalue=())
    return list(takewhile(bool, map(chances_by_rank, levels)))


def chances_by_rank(counts: Iterable[Sequence[Sequence[int]]]) -> list[float]:
    """Returns the measured chance of each rank: accepted ÷ verified children, but never above that of the rank before.
    Ranks with too few verified children, or without accepted ones, are left out. `counts`: [verified, accepted] by
    rank, for each generation."""
    by_rank = zip_longest(*counts, fillvalue=(0, 0))
    sums = ([sum(column) for column in zip(*ranks, strict=True)] for ranks in by_rank)
    known = [accepted / verified for verified, accepted in sums if verified >= MIN_VERIFIED]
    return [round(chance, 4) for chance in accumulate(known, min) if chance >= 1e-4]


def measure_costs(generations: Mapping[str, Sequence[Generation]], baseline: Sequence[Generation]) -> TreeCosts:
    """Returns the costs of trees. `generations`: by method; each method has trees of another size."""
    plain = [seconds for generation in baseline for _, seconds in generation.passes.target]
    target_pass = fmean(plain)
    verifying = {0.0: sum(generation.decode_seconds for generation in baseline) / len(plain) / target_pass}
    depths, drafting = [], []
    for own in generations.values():
        num_steps = sum(len(generation.steps) for generation in own)
        drafted = sum(seconds for generation in own for _, seconds in generation.passes.draft)
        whole = sum(generation.decode_seconds for generation in own)
        size = sum(sum(generation.tree_nodes or ()) for generation in own) / num_steps
        verifying[size] = (whole - drafted) / num_steps / target_pass
        depths.append(sum(generation.num_draft_levels for generation in own) / num_steps)
        drafting.append(drafted / num_steps / target_pass)
    per_level, fixed = np.polyfit(depths, drafting, 1) if np.ptp(depths) > 0 else (0.0, fmean(drafting))
    return TreeCosts(verifying, (max(0.0, float(fixed)), max(0.0, float(per_level))))


def rank_shapes(level_chances: LevelChances, costs: TreeCosts, most: int) -> list[Shape]:
    """Returns the best shape of every size up to `most`, by expected tokens per cost, the best size first.

    The best tree of a size and depth comes from the dynamic programme of arXiv:2402.12374, §4.1. Depth and size follow
    from the measured costs (§4.1.2).
    """
    found = []
    for num_nodes in range(1, most + 1):
        tried = []
        for depth in range(1, min(num_nodes, len(level_chances)) + 1):
            shape = best_shape_by_level(level_chances[:depth], num_nodes)
            places = zip(depths(shape.parents), shape.ranks, strict=True)
            tokens = 1.0 + sum(node_chances(shape.parents, [level_chances[d - 1][rank] for d, rank in places]))
            tried.append(Shape(len(shape.parents), shape.depth, tokens, tokens / costs.step(num_nodes, depth)))
        found.append(max(tried, key=lambda shape: shape.speed))
    return sorted(found, key=lambda shape: shape.speed, reverse=True)


def node_chances(parents: Sequence[int], chances: Sequence[float]) -> list[float]:
    found: list[float] = []
    for parent, chance in zip(parents, chances, strict=True):
        found.append(chance * (found[parent] if parent >= 0 else 1.0))
    return found


def candidate_shapes(ranked: Sequence[Shape]) -> list[Shape]:
    best = ranked[0]
    smaller = [shape for shape in ranked if 2 * shape.num_nodes <= best.num_nodes]
    larger = [shape for shape in ranked if shape.num_nodes >= 2 * best.num_nodes]
    return [best, *smaller[:1], *larger[:1]]


def tune_shape(tuner: Tuner) -> list[TunedPreset]:
    trials, sizes, by_level = tuner.trials, tuner.candidates, has_heads(tuner.trials.base)
    # 1. One run of every size with the usual shapes measures chances by rank and costs by size.
    usual = (trials.base.drafter.options["head_chances"] or CHANCES) if by_level else [USUAL_CHANCES] * MAX_DEPTH
    probes = {made.name: made for made in (with_shape(trials.base, size, usual) for size in sizes)}
    run = trials.run("sizes-" + "-".join(map(str, sizes)), list(probes.values()))
    chances, costs = read_chances(run, list(probes), by_level)
    shown = chances if by_level else chances[:1]
    ranks = range(1, max(map(len, shown)) + 1)
    tuner.show(Table(
        "acceptance by rank", (*text_columns("", folds=False), *number_columns(*map(str, ranks))),
        [[f"head {place}" if len(shown) > 1 else "all levels", *(f"{chance:.3f}" for chance in level),
          *[""] * (len(ranks) - len(level))] for place, level in enumerate(shown, 1)],
    ))  # fmt: skip
    fixed, per_level = costs.drafting
    tuner.show(Table(
        "costs of a step", number_columns("draft\ntokens", "verification\nand overhead"),
        [[f"{size:.3g}", f"{cost:.2f}"] for size, cost in sorted(costs.verifying.items())],
        ["in passes of ar", f"drafting: {fixed:.3f} + {per_level:.3f} per level"],
    ))  # fmt: skip
    # 2. They select three shapes, which a second run measures.
    tried = candidate_shapes(rank_shapes(chances, costs, max(sizes)))
    chosen = [with_shape(trials.base, shape.num_nodes, chances[: shape.depth]) for shape in tried]
    found = tuner.measure("shapes-" + "-".join(method.name for method in chosen), chosen)
    columns = number_columns("size", "depth", "τ\nexpected", "τ, run\n95 % interval", "tok/s\n95 % interval")
    rows = [
        [str(shape.num_nodes), str(shape.depth), f"{shape.tokens:.2f}",
         with_interval(metrics["mean_acceptance_length"]), with_interval(metrics["tokens_per_second"], 1)]
        for shape, metrics in zip(tried, found.values(), strict=True)
    ]  # fmt: skip
    tuner.show(Table("shapes of trees", columns, rows, num_keys=2))
    # 3. The fastest one is taken.
    best = fastest(chosen, found)
    is_most = best.num_draft_tokens == len(chances) and not by_level
    limit = ", the most that were measured: larger --sizes allow more" if is_most else ""
    num_nodes = best.drafter.options["num_nodes"]
    tuner.decide(f"chosen: {num_nodes} draft tokens on {best.num_draft_tokens} levels{limit}")
    return [TunedPreset("", best.model_copy(update={"name": trials.base.name}), found[best.name])]


def tune_size(tuner: Tuner) -> list[TunedPreset]:
    base, tried = tuner.trials.base, {}
    for size in tuner.candidates:  # a tree has no more levels than nodes
        shorter = with_value(base, LENGTH, min(base.num_draft_tokens, size))
        made = with_value(shorter, "drafter.num_nodes", size)
        tried[size] = made.model_copy(update={"name": f"nodes-{size}"})
    found = tuner.measure("sizes-" + "-".join(map(str, tried)), tried.values())
    columns = number_columns(
        "size", "nodes\nof a step", "levels\nof a step", "τ\n95 % interval", "tok/s\n95 % interval"
    )
    rows = [
        [str(size), number(metrics["tree_nodes"], 1), number(metrics["tree_depth"], 1),
         with_interval(metrics["mean_acceptance_length"]), with_interval(metrics["tokens_per_second"], 1)]
        for size, metrics in zip(tried, found.values(), strict=True)
    ]  # fmt: skip
    tuner.show(Table("sizes of trees", columns, rows))
    best = fastest(list(tried.values()), found)
    tuner.decide(f"chosen: {best.drafter.options['num_nodes']} draft tokens in a tree that grows")
    return [TunedPreset("", best.model_copy(update={"name": base.name}), found[best.name])]


def read_chances(run: TrialRun, names: Sequence[str], by_level: bool) -> tuple[LevelChances, TreeCosts]:
    """Returns the chances by rank of the measured levels, and the costs. `by_level`: whether the levels differ in
    chances. Raises ConfigError if nothing was accepted."""
    own = {name: [record.methods[name] for record in run.records] for name in names}
    generations = [generation for each in own.values() for generation in each]
    common = chances_by_rank(generation.tree_ranks or () for generation in generations)
    levels = chances_by_level(generations)
    chances = levels if by_level else [common] * len(levels)
    if not chances or not common:
        raise ConfigError(
            "no draft token of this slice was accepted often enough to shape a tree: give more examples with "
            "--calibration or --limit, or another drafter"
        )
    return chances, measure_costs(own, [record.methods["ar"] for record in run.records])


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
DEFAULTS = {"decodes_with": "target", "bridge": "shared", "paper": None}  # omitted from the files
MAX_NODES = 512


def run_tune(
    request: Request, output: Path, *, amount: str, lengths: Sequence[str] | None, sizes: Sequence[str] | None,
    step: float, console: Console,
) -> TuningReport:  # fmt: skip
    """Tunes a method and writes the method files. `lengths`: of chains; `sizes`: of draft trees. Raises ConfigError for
    bad input, before anything is measured."""
    # 1. Everything that can be wrong with the input.
    spec = trial_spec(request, "tune", console)
    method = spec.methods[1]
    check_files(output, ("", "low", "med", "high") if is_fuzzy(method) else ("",))
    candidates = parse_candidates(method, lengths, sizes)
    if is_fuzzy(method):
        check_quality(spec, step)
    # 2. The slice, and the search on it.
    trials = open_trials(spec, request, console, "tune")
    trials = replace(trials, loaded=choose_slice(trials.loaded, amount, spec.seed))
    counts = ", ".join(f"{len(data.examples)} of {subset}" for _, subset, data in trials.loaded)
    say(console, f"calibration slice: {counts}")
    tuner = Tuner(trials, candidates, step)
    search = tune_shape if has_shape(method) else tune_size if grows(method) and lengths is None else tune
    presets = search(tuner)
    # 3. The files and the report.
    calibration = calibration_of(trials.loaded)
    paths, rows = [], []
    for preset in presets:
        path = file_of(output, preset.label)
        lines = comments(trials, preset, calibration, tuner.notes)
        comment = "\n".join(fill(line, 118, initial_indent="# ", subsequent_indent="#   ") for line in lines)
        label = f", {preset.label}" if preset.label else ""
        content = {
            **preset.method.model_dump(mode="json", exclude={"sweep"}), "name": path.stem, "version": 1,
            "title": f"{trials.base.title}, tuned on {calibration.task}{label}",
        }  # fmt: skip
        kept = {key: value for key, value in content.items() if key not in DEFAULTS or value != DEFAULTS[key]}
        for key, value in kept.items():
            if isinstance(value, dict):
                kept[key] = {name: option for name, option in value.items() if option is not None}
        kept["calibration"] = calibration.model_dump(mode="json")
        text = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
        write_output("--output", path, f"{comment}\n{text}", kept="; the runs are kept")
        load_file(path)  # as a check
        paths.append(path)
        metrics, threshold = preset.metrics, preset.method.verification.options.get("threshold")
        rows.append([
            path.name, NULL if threshold is None else shown(threshold), str(preset.method.num_draft_tokens),
            number(metrics["draft_efficiency"], 1, 100), number(metrics["tokens_per_second"], 1),
            with_interval(metrics["speedup"], 2), score_pair(metrics, trials.quality),
        ])  # fmt: skip
    figures = ("threshold", "draft\ntokens", "accepted %", "tok/s", "speed-up\n95 % interval")
    columns = text_columns("file") + number_columns(*figures, score_heading(trials.quality, "method"))
    caption = (
        "Measured on the calibration slice, with which the presets were chosen: evaluate on other examples. "
        + trials.pair_and_prompts
    )
    data = {
        "files": [str(path) for path in paths], "decisions": tuner.notes, "calibration": calibration.model_dump(),
        "presets": [
            {"preset": preset.label, "method": preset.method.model_dump(mode="json"),
             "metrics": dumped(preset.metrics, preset.metrics)}
            for preset in presets
        ],
    }  # fmt: skip
    return TuningReport(data, [Table(trials.title("tuned"), columns, rows, [caption])], trials.folder)


def parse_candidates(method: MethodSpec, lengths: Sequence[str] | None, sizes: Sequence[str] | None) -> list[int]:
    """Returns the tree sizes or draft lengths to try. Raises ConfigError for a number that the method cannot draft, and
    for the option that it does not take."""
    if has_shape(method) or (grows(method) and (lengths is None or sizes is not None)):
        if lengths is not None:
            raise ConfigError(
                f"--lengths {','.join(lengths)}: {method.name} drafts trees: give --sizes, or leave it out"
            )
        if sizes is None:
            return list(SIZES)
        for text in sizes:
            if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_NODES:
                raise ConfigError(
                    f"--sizes {text}: not a number of draft tokens from 1 to {MAX_NODES}: give some like 4,16,64"
                )
        if len(found := sorted({int(text) for text in sizes})) < 2:
            raise ConfigError("--sizes: one size shows no costs by size: give two or more, such as 4,16,64")
        return found
    if sizes is not None:
        raise ConfigError(
            f"--sizes {','.join(sizes)}: the drafter of {method.name} has no shape to choose: give "
            "--lengths, or leave it out"
        )
    if lengths is None:
        longest = tree_levels(method.drafter) or max(LENGTHS)
        lengths = [str(length) for length in LENGTHS if length <= longest] or [str(longest)]
    found = []
    for text in lengths:
        if not text.isascii() or not text.isdigit():
            raise ConfigError(f"--lengths {text}: not a number of tokens: give some like 5,10,15,20")
        found.append(with_value(method, LENGTH, int(text), place=f"--lengths {text}").num_draft_tokens)
    return sorted(set(found))


def check_quality(spec: RunSpec, step: float) -> None:
    """Raises ConfigError if the quality of a fuzzy method, or of its drafter, cannot be measured."""
    task, method = spec.tasks[0], spec.methods[1]
    if not 0 < step < math.inf:
        raise ConfigError(f"--step {step:g}: must be above 0")
    scorers = (make_scorer(task.subset(subset)) for _, subset in spec.task_subsets())
    mains = {scorer.names[0] for scorer in scorers if scorer is not None}
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


def choose_slice(loaded: Loaded, amount: str, seed: int) -> Loaded:
    """Returns the examples to tune on, drawn from each subset with the seed. `amount`: a share (0.25) or a number (8)
    of each subset's examples.

    Raises ConfigError if nothing is left to evaluate, or if the examples are too few for an interval.
    """
    try:
        number = float(amount)
    except ValueError:
        number = math.nan
    is_share = 0 < number < 1
    if not is_share and not (number >= 1 and number.is_integer()):
        raise ConfigError(f"--calibration {amount}: give a share between 0 and 1, such as 0.25, or a number such as 8")
    taken = []
    for task, subset, data in loaded:
        num_examples = len(data.examples)
        count = math.ceil(number * num_examples) if is_share else int(number)
        if count >= num_examples:
            raise ConfigError(
                f"--calibration {amount}: takes all {num_examples} examples of subset '{subset}', so that none is left "
                "to evaluate: give less, or a larger --limit"
            )
        drawn = Random(stream_seed("calibration", seed, task.name, subset)).sample(data.examples, count)
        taken.append((task, subset, replace(data, examples=tuple(sorted(drawn, key=lambda e: e.index)))))
    total = sum(len(data.examples) for _, _, data in taken)
    if total < MIN_PROMPTS:
        raise ConfigError(
            f"--calibration {amount}: gives {total} examples, but an interval needs {MIN_PROMPTS}: give more, "
            "a larger --limit or more subsets"
        )
    return taken


def calibration_of(loaded: Loaded) -> CalibrationSpec:
    task, _, data = loaded[0]
    return CalibrationSpec(
        task=task.name, data=f"{data.source} {data.location}", revision=data.revision,
        prompts={
            subset: tuple(prompt_digest(example, turn=0) for example in data.examples) for _, subset, data in loaded
        },
    )  # fmt: skip


def file_of(output: Path, label: str) -> Path:
    return output.with_name(f"{output.stem}-{label}{output.suffix}") if label else output


def check_files(output: Path, labels: Sequence[str]) -> None:
    """Raises ConfigError if method files of this name cannot be written or read back, and for an existing file."""
    if output.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--output {output}: must end in .yaml: it names a method file")
    if not NAME.fullmatch(output.stem):
        raise ConfigError(f"--output {output}: '{output.stem}' is not a method name: use letters, digits, _ . and -")
    check_output("--output", output)
    for path in (file_of(output, label) for label in labels):
        if path.exists():
            raise ConfigError(f"--output {path}: exists: name another file, or move this one away")


def comments(trials: Trials, preset: TunedPreset, calibration: CalibrationSpec, notes: Sequence[str]) -> list[str]:
    models, metrics, quality, drafter = trials.models, preset.metrics, trials.quality, trials.drafter
    sizes = ", ".join(f"{len(prompts)} of {subset}" for subset, prompts in calibration.prompts.items())
    scored = ""
    if quality:
        before, after = (score(metrics[name], quality) for name in (f"{quality}_ar", quality))
        scored = f", {metric_of(quality).label} {before} → {after}"
    numbers = (
        f"{with_interval(metrics['tokens_per_second'], 1)} tokens/s, speed-up {with_interval(metrics['speedup'], 2)}, "
        f"accepted share of draft tokens {with_interval(metrics['draft_efficiency'], 3)}{scored}"
    )
    pair = ((models.target.name, models.target.revision), (drafter["name"], drafter["revision"]))
    named = ", ".join(f"{name} ({revision})" if revision else str(name) for name, revision in pair)
    today, command = datetime.now(UTC).date().isoformat(), " ".join(trials.command.split())
    return [
        f"Written by specbench {__version__} on {today}: {command}",
        f"Pair: {named}; {models.target.precision} on {trials.conditions['device']}, {models.engine(trials.base)}",
        f"Task: {calibration.task}; calibration slice: {sizes} ({calibration.data}), listed below: a run of this "
        "method leaves it out",
        f"Measured on the slice, with 95 % intervals: {numbers}",
        *(line.rstrip() for note in notes for line in note.splitlines() if line.strip()),
    ]
