"""`specbench tune`: candidates are measured on a calibration slice, and the fastest one becomes a method file.

Draft lengths and sizes of growing trees are measured directly. The sub-layers that a target skips in its own drafts are
searched by its answers. The thresholds of fuzzy rules are searched as in arXiv:2502.20704, App. D. Draft lengths that
vary are replayed from one run, and the best are measured. Shapes of draft trees follow from measured chances and costs,
as in arXiv:2402.12374.
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
from typing import NamedTuple

import numpy as np
import yaml
from rich.console import Console

from specbench.analysis.draft_lengths import (
    RECORDING,
    candidate_lengths,
    is_recording,
    length_name,
    replayed_rates,
    with_length,
)
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
    scoring_of,
    shown,
    trial_spec,
    with_value,
)
from specbench.analysis.tuning.skip_search import Text, search, some_texts
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
from specbench.models.own_drafts import SubLayers
from specbench.records.records import Generation
from specbench.report.captions import model_name
from specbench.results.answers import BASELINE, answers_of
from specbench.results.draft_lengths import costs_of_widths
from specbench.results.metric_format import NULL, metric_of, number, score, score_pair, with_interval
from specbench.results.scores import main_metric
from specbench.running.plan import Loaded
from specbench.running.prompts import baseline_prompts, prompt_digest
from specbench.running.request import Request
from specbench.specs.catalogue import load_file, load_method
from specbench.specs.components import build
from specbench.specs.method import CalibrationSpec, MethodSpec, tree_levels
from specbench.statistics.bootstrap import MIN_PROMPTS, Estimate

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
    thresholds; `decisions`: as sentences."""

    trials: Trials
    candidates: Sequence[int] = LENGTHS
    step: float = 0.1
    decisions: list[str] = field(default_factory=list)

    def decide(self, text: str) -> None:
        self.decisions.append(text)
        say(self.trials.console, text)

    def measure(self, folder: str, methods: Iterable[MethodSpec]) -> dict[str, Metrics]:
        made = list(methods)
        run = self.trials.run(folder, made)
        return {method.name: run.metrics(method.name) for method in made}

    def choose_fastest(
        self, kind: str, tried: Mapping[str, MethodSpec], others: Sequence[MethodSpec] = ()
    ) -> tuple[MethodSpec, dict[str, Metrics]]:
        """Measures the candidates, by the text that tells them apart, and `others` in one run. Returns the candidate
        with the most tokens per second, and the metrics of all methods."""
        names = {text: f"{kind} {text}".replace(" ", "-") for text in tried}
        methods = {text: method.model_copy(update={"name": names[text]}) for text, method in tried.items()}
        found = self.measure("-".join([kind, *tried]).replace(" ", "-"), [*methods.values(), *others])
        best = max(tried, key=lambda text: found[names[text]]["tokens_per_second"].value or 0.0)
        speeds = ", ".join(
            f"{text}: {with_interval(found[name]['tokens_per_second'], 1)}, τ "
            f"{number(found[name]['mean_acceptance_length'], 2)}"
            for text, name in names.items()
        )
        self.decide(f"{kind}: {best} is the fastest; tokens/s with 95 % interval: {speeds}")
        return methods[best], found


def is_fuzzy(method: MethodSpec) -> bool:
    return method.verification.rule == "fuzzy"


def lossless_method(method: MethodSpec) -> MethodSpec:
    return with_value(method, "verification", {"rule": "rejection"}) if is_fuzzy(method) else method


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


def tune_length(tuner: Tuner) -> list[TunedPreset]:
    """Chooses the draft length with the most tokens per second. For a fuzzy method, it is that of speculative decoding
    with the same drafter, and the `ThresholdSearch` follows, which also needs the drafter alone."""
    base = tuner.trials.base
    if base.draft_length is not None:
        return tune_policy(tuner)
    tried = {str(length): with_value(lossless_method(base), LENGTH, length) for length in tuner.candidates}
    others = [load_method("draft-only")] if is_fuzzy(base) else []
    best, found = tuner.choose_fastest("draft length", tried, others)
    own = found[best.name]
    if is_fuzzy(base):
        return ThresholdSearch(tuner, best.num_draft_tokens, own, found["draft-only"]).presets()
    return [TunedPreset("", with_value(base, LENGTH, best.num_draft_tokens), own)]


NUM_TRIED = 3  # policies, beside the best fixed length


def tune_policy(tuner: Tuner) -> list[TunedPreset]:
    """Chooses among fixed draft lengths and those that vary, with the costs of this machine."""
    trials, base, most = tuner.trials, tuner.trials.base, max(tuner.candidates)
    # 1. One run of the fixed lengths measures costs, and one method in it records what the others need.
    fixed = {str(length): with_length(base, None, length) for length in tuner.candidates}
    fixed = {text: method.model_copy(update={"name": f"fixed-{text}"}) for text, method in fixed.items()}
    asks = base.drafter.features.asks_length
    recorded = with_length(base, RECORDING if asks else None, most).model_copy(update={"name": f"recorded-{most}"})
    run = trials.run("-".join(["lengths", *fixed]), [*fixed.values(), recorded])
    speeds = {text: run.metrics(method.name)["tokens_per_second"] for text, method in fixed.items()}
    best_fixed = max(speeds, key=lambda text: speeds[text].value or 0.0)
    listed = ", ".join(f"{text}: {with_interval(speed, 1)}" for text, speed in speeds.items())
    tuner.decide(f"fixed draft length: {best_fixed} is the fastest; tokens/s with 95 % interval: {listed}")
    own = {method.name: answers_of(run.records, method.name) for method in (*fixed.values(), recorded)}
    baseline = answers_of(run.records, BASELINE)
    draft_cost = run.metrics(recorded.name)["cost_ratio"].value or 0.0
    costs = costs_of_widths([answer for each in own.values() for answer in each], baseline)
    verify_costs = costs(np.arange(1, most + 2)).tolist()
    tuner.decide(
        f"costs in passes of ar: draft pass {draft_cost:.3f}; verification by tokens "
        + ", ".join(f"{number}: {cost:.2f}" for number, cost in enumerate(verify_costs, 1))
    )
    # 2. Replays of the recorded one select policies, where the texts do not depend on the draft length.
    tried = candidate_lengths(draft_cost, verify_costs, asks)
    if is_recording(recorded):
        most_tokens = {
            (each.task.name, each.subset): each.task.generation.max_new_tokens for each in run.subset_runs
        }  # fmt: skip
        rates = replayed_rates(run.records, recorded, tried, most_tokens, draft_cost, costs)
        ordered = sorted(tried, key=lambda length: rates[length_name(length)], reverse=True)
        best_of_policy = {length["policy"]: length for length in reversed(ordered)}
        tried = sorted(best_of_policy.values(), key=lambda length: rates[length_name(length)], reverse=True)[:NUM_TRIED]
        estimates = ", ".join(f"{length_name(each)} ≈ {rates[length_name(each)]:.3f}" for each in ordered[:8])
        tuner.decide(f"replayed tokens per pass of ar, the best: {estimates}")
    else:
        tried = list({length["policy"]: length for length in reversed(tried)}.values())
    # 3. A second run measures these.
    lengths = {length_name(length): with_length(base, length, most) for length in tried}
    best, found = tuner.choose_fastest("length", {f"fixed {best_fixed}": fixed[best_fixed], **lengths})
    return [TunedPreset("", best.model_copy(update={"name": base.name}), found[best.name])]


class ThresholdSearch:
    """The search for the thresholds of a fuzzy method at one draft length. `sd`, `drafter`: the metrics of speculative
    decoding and of the drafter alone. A threshold is allowed if it keeps the quality: of the gap between the target and
    the drafter alone, a share of at most TOLERATED may be lost."""

    def __init__(self, tuner: Tuner, length: int, sd: Metrics, drafter: Metrics) -> None:
        trials = tuner.trials
        self.sd = sd
        self.tuner = tuner
        self.base = trials.base
        self.length = length
        assert trials.quality is not None  # checked by `run_tune`
        self.quality = trials.quality
        self.divergence = str(self.base.verification.options["divergence"])
        target, alone = sd[f"{self.quality}_ar"], drafter[self.quality]
        label = metric_of(self.quality).label
        if target.value is None or alone.value is None:
            raise ConfigError(f"no answer on this slice has a score ({label}): give examples with references")
        scores = f"{label}: target {score(target, self.quality)}, drafter alone {score(alone, self.quality)}"
        if alone.value >= target.value:
            raise ConfigError(
                f"{scores}: without a gap between them, no fall of quality can be seen on this slice: give more "
                "examples with --calibration or --limit, or another task"
            )
        self.fall = TOLERATED * (target.value - alone.value)
        self.allowed = target.value - self.fall
        tuner.decide(f"{scores}; allowed {score(Estimate(value=self.allowed), self.quality)}")

    def keeps(self, metrics: Metrics) -> bool:
        return (metrics[self.quality].value or 0.0) >= self.allowed - 1e-9

    def measure(self, thresholds: Sequence[float]) -> dict[float, Metrics]:
        names = {threshold: f"threshold-{threshold:g}" for threshold in thresholds}
        methods = [fuzzy_at(self.base, threshold, self.length, name) for threshold, name in names.items()]
        folder = f"length-{self.length}-thresholds-" + "-".join(f"{t:g}" for t in thresholds)
        found = self.tuner.measure(folder, methods)
        return {threshold: found[name] for threshold, name in names.items()}

    def presets(self) -> list[TunedPreset]:
        """Returns the presets low, med and high; one preset without a label if they are equal. Low is as strict as
        speculative decoding, high the largest threshold that is allowed, and med is in the middle."""
        start, metrics = self.find_equivalent()
        kept = self.search(start, metrics)
        low, high = min(kept), max(kept)
        med = round((low + high) / 2, 6)
        if med not in kept:
            kept |= self.measure([med])
        if low == high:
            self.tuner.decide(
                "low, med and high are equal (one file): no other threshold keeps the quality or is left to try"
            )
        difference = kept[high][f"{self.quality}_difference"]
        self.tuner.decide(f"{metric_of(self.quality).label} of high − AR: {score(difference, self.quality)}")
        if not self.sees_fall(difference):
            self.tuner.decide("the slice is too small to see a fall that is not allowed: tune on more examples")
        labelled = {"": low} if low == high else {"low": low, "med": med, "high": high}
        return [self.make_preset(label, threshold, kept[threshold]) for label, threshold in labelled.items()]

    def sees_fall(self, difference: Estimate) -> bool:
        """Returns whether the interval of a difference from AR tells a fall that is not allowed from none. One without
        width, as where all answers are AR's, is replaced, because n prompts exclude no fall below 3 / n (at 95 %) of
        the largest possible difference."""
        if difference.value is None or difference.low is None or difference.high is None:
            return False
        low = difference.low
        if low == difference.high:
            num_prompts = sum(len(data.examples) for _, _, data in self.tuner.trials.loaded)
            low = difference.value - 3 * metric_of(self.quality).most / num_prompts
        return difference.high - low <= self.fall or not low <= -self.fall <= difference.high

    def find_equivalent(self) -> tuple[float, Metrics]:
        """Returns T_SD, the threshold that accepts the same share of draft tokens as speculative decoding, and its
        metrics. Estimates from one recorded run select three thresholds, and a real run decides."""
        wanted = self.sd["draft_efficiency"]
        assert wanted.value is not None
        grid = thresholds_up_to(self.divergence, FINE)
        _, recording = record_run(self.tuner.trials, grid[0], self.length)
        estimated = {t: recording.estimate(t, self.length).metrics["draft_efficiency"].value or 0.0 for t in grid}
        place = grid.index(nearest_threshold(estimated, wanted.value))
        near = grid[max(0, place - 1) : place + 2]
        found = self.measure(near)
        shares = {threshold: found[threshold]["draft_efficiency"].value or 0.0 for threshold in near}
        equivalent = nearest_threshold(shares, wanted.value)
        by_threshold = ", ".join(f"{t:g}: ≈ {estimated[t]:.3f}, run {shares[t]:.3f}" for t in near)
        self.tuner.decide(
            f"T_SD = {equivalent:g}: speculative decoding accepts {with_interval(wanted, 3)} of its draft tokens; by "
            f"threshold (≈ estimated from one run): {by_threshold}"
        )
        return equivalent, found[equivalent]

    def search(self, start: float, metrics: Metrics) -> dict[float, Metrics]:
        """Returns the allowed thresholds from T_SD upwards until one is not; the first allowed ones below T_SD if it is
        not itself, which the paper does not search; T_SD if there is none."""
        found = {start: metrics}
        is_up = self.keeps(metrics)
        rest = thresholds_up_to(self.divergence, self.tuner.step, start) if is_up else [
            round(number * FINE, 6) for number in range(math.ceil(start / FINE - 1e-9) - 1, 0, -1)
        ]  # fmt: skip
        while rest and all(self.keeps(each) == is_up for each in found.values()):
            found |= self.measure(rest[:CHUNK])
            rest = rest[CHUNK:]
        ordered = sorted(found)
        kept = list(takewhile(lambda t: self.keeps(found[t]), ordered)) if is_up else [
            threshold for threshold in ordered if self.keeps(found[threshold])
        ]  # fmt: skip
        result = f"{kept[-1]:g} is the largest threshold" if kept else "no threshold up to T_SD"
        scores = ", ".join(f"{t:g}: {score(found[t][self.quality], self.quality)}" for t in ordered)
        self.tuner.decide(f"{result} that keeps the quality; by threshold: {scores}")
        return {threshold: found[threshold] for threshold in kept or [start]}

    def make_preset(self, label: str, threshold: float, metrics: Metrics) -> TunedPreset:
        """Returns the preset at a threshold. Its drafts get longer as long as nearly all draft tokens are accepted and
        the longer draft is faster."""
        length, longest = self.length, max(self.tuner.candidates)
        while (metrics["draft_efficiency"].value or 0.0) >= NEARLY_ALL and length < longest:
            following = min(other for other in self.tuner.candidates if other > length)
            now, then = self.tuner.measure(
                f"threshold-{threshold:g}-lengths-{length}-{following}",
                [fuzzy_at(self.base, threshold, n, f"length-{n}") for n in (length, following)],
            ).values()
            before, after = now["tokens_per_second"], then["tokens_per_second"]
            is_better = (after.value or 0.0) > (before.value or 0.0) and self.keeps(then)
            self.tuner.decide(
                f"{label or 'preset'}: {following} instead of {length} draft tokens: tokens/s "
                f"{with_interval(before, 1)} → {with_interval(after, 1)}: {'taken' if is_better else 'not taken'}"
            )
            if not is_better:
                break
            length, metrics = following, then
        return TunedPreset(label, fuzzy_at(self.base, threshold, length), metrics)


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


class Shape(NamedTuple):
    """A size and a depth of trees. `speed`: the expected tokens per target pass over one token."""

    num_nodes: int
    depth: int
    speed: float


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
            tried.append(Shape(len(shape.parents), shape.depth, tokens / costs.step(num_nodes, depth)))
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
    levels = [", ".join(f"{chance:.3f}" for chance in level) for level in chances]
    of_levels = (f"head {place}: {level}" for place, level in enumerate(levels, 1)) if by_level else levels[:1]
    tuner.decide(f"acceptance by rank: {'; '.join(of_levels)}")
    verifying = ", ".join(f"{size:.3g}: {cost:.2f}" for size, cost in sorted(costs.verifying.items()))
    fixed, per_level = costs.drafting
    tuner.decide(
        f"costs of a step in passes of ar: verification and overhead by draft tokens {verifying}; drafting "
        f"{fixed:.3f} + {per_level:.3f} per level"
    )
    # 2. They select three shapes, which a second run measures.
    shapes = candidate_shapes(rank_shapes(chances, costs, max(sizes)))
    tried = {
        f"{shape.num_nodes} on {shape.depth} levels": with_shape(trials.base, shape.num_nodes, chances[: shape.depth])
        for shape in shapes
    }
    best, found = tuner.choose_fastest("draft tokens", tried)
    if best.num_draft_tokens == len(chances) and not by_level:
        tuner.decide("the tree has as many levels as were measured: larger --sizes allow more")
    return [TunedPreset("", best.model_copy(update={"name": trials.base.name}), found[best.name])]


def tune_size(tuner: Tuner) -> list[TunedPreset]:
    """Chooses the size of a tree that grows as it is drafted."""
    base = tuner.trials.base
    tried = {}
    for size in tuner.candidates:  # a tree has no more levels than nodes
        shorter = with_value(base, LENGTH, min(base.num_draft_tokens, size))
        tried[str(size)] = with_value(shorter, "drafter.num_nodes", size)
    best, found = tuner.choose_fastest("draft tokens", tried)
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


def skips_layers(method: MethodSpec) -> bool:
    return method.decoder is None and method.routes is None and method.drafter.type == "self_skip"


def tune_skipping(tuner: Tuner) -> list[TunedPreset]:
    """Chooses the sub-layers that drafts skip, then the draft length. The target's own answers select a set for each
    share of sub-layers, without decoding; runs decide between these sets, and then between lengths."""
    trials, base = tuner.trials, tuner.trials.base
    run = trials.run("answers", [base])
    examples = {(subset, each.index): each for _, subset, data in trials.loaded for each in data.examples}
    target = trials.models.target
    renderers = {each.subset: each.renderer for each in run.subset_runs}
    prompt_of = baseline_prompts(examples, renderers, {record.key: record for record in run.records}, target)
    answers = ((prompt_of(record), record.methods["ar"].token_ids.tolist()) for record in run.records)
    texts = some_texts(Text([*prompt, *tokens], len(tokens)) for prompt, tokens in answers)
    if not texts:
        raise ConfigError(
            "no answer on this slice has two tokens, so no set of sub-layers can be tried: give more examples with "
            "--calibration or --limit"
        )
    found = search(target, texts, stream_seed("skipped", trials.spec.seed))
    shown_sets = "; ".join(f"{share:g}: {each.agreement:.3f}, {each.skipped}" for share, each in found.items())
    tuner.decide(
        f"share of {sum(text.num_tokens - 1 for text in texts)} tokens of AR that drafts find, by share of skipped "
        f"sub-layers: {shown_sets}"
    )
    made = {f"{share:g}": with_skipped(base, each.skipped) for share, each in found.items()}
    best, _ = tuner.choose_fastest("share", made)
    tried = {str(length): with_value(best, LENGTH, length) for length in tuner.candidates}
    best, metrics = tuner.choose_fastest("draft length", tried)
    return [TunedPreset("", best.model_copy(update={"name": base.name}), metrics[best.name])]


def with_skipped(method: MethodSpec, skipped: SubLayers) -> MethodSpec:
    data = method.model_dump(exclude={"sweep"})
    data["drafter"] |= {"attention": list(skipped.attention), "mlp": list(skipped.mlp), "choice": "fixed"}
    return build(MethodSpec, data)


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
MAX_NODES = 512


def run_tune(
    request: Request, output: Path, *, amount: float, lengths: Sequence[str] | None, sizes: Sequence[str] | None,
    step: float, console: Console,
) -> TuningReport:  # fmt: skip
    """Tunes a method and writes the method files. `amount`: of the examples of each subset to tune on, as a number or
    as a share below 1; `lengths`: of chains; `sizes`: of draft trees. Raises ConfigError for bad input, before anything
    is measured."""
    # 1. Everything that can be wrong with the input.
    spec = trial_spec(request, "tune", console)
    method = spec.methods[1]
    check_files(output, ("", "low", "med", "high") if is_fuzzy(method) else ("",))
    candidates = parse_candidates(method, lengths, sizes)
    if not 0 < step < math.inf:
        raise ConfigError(f"--step {step:g}: must be above 0")
    if is_fuzzy(method) and method.draft_length is not None:
        raise ConfigError(
            f"--method {method.name}: draft_length.policy = '{method.draft_length.policy}': thresholds of fuzzy rules "
            "are searched at fixed draft lengths: delete the key 'draft_length', or tune it with another rule"
        )
    if is_fuzzy(method) and not method.needs_drafter:
        raise ConfigError(
            f"--method {method.name}: drafts without a model, so there is no drafter's own quality to measure "
            "thresholds against: choose one with drafter.type = 'model'"
        )
    if is_fuzzy(method) and main_metric(scoring_of(spec)) is None:
        raise ConfigError(
            f"--task {spec.tasks[0].name}: has no score that all its subsets share, so there is no quality to trade "
            "for speed: choose a task with `scorer` and `reference`, or subsets with one score"
        )
    # 2. The slice, and the search on it.
    trials = open_trials(spec, request, console, "tune")
    trials = replace(trials, loaded=choose_slice(trials.loaded, amount, spec.seed))
    counts = ", ".join(f"{len(data.examples)} of {subset}" for _, subset, data in trials.loaded)
    say(console, f"calibration slice: {counts}")
    tuner = Tuner(trials, candidates, step)
    if skips_layers(method):
        presets = tune_skipping(tuner)
    elif has_shape(method):
        presets = tune_shape(tuner)
    else:
        presets = tune_size(tuner) if grows(method) and lengths is None else tune_length(tuner)
    # 3. The files and the report.
    calibration = calibration_of(trials.loaded)
    target, drafter = trials.models.target, trials.drafter
    pair = f"{model_name(target.name, target.revision)} and {model_name(str(drafter['name']), drafter['revision'])}"
    today = datetime.now(UTC).date().isoformat()
    command = " ".join(request.command.split())
    comment = f"# Written by specbench {__version__} on {today} for {pair}: {command}"
    paths, rows = [], []
    for preset in presets:
        path = file_of(output, preset.label)
        label = f", {preset.label}" if preset.label else ""
        content = {
            **preset.method.model_dump(mode="json", exclude={"sweep"}, exclude_defaults=True, exclude_none=True),
            "name": path.stem, "version": 1, "title": f"{trials.base.title}, tuned on {calibration.task}{label}",
            "calibration": calibration.model_dump(mode="json"),
        }  # fmt: skip
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
        write_output("--output", path, f"{comment}\n{text}", kept="; the runs are kept")
        load_file(path)  # as a check
        paths.append(path)
        metrics = preset.metrics
        threshold = preset.method.verification.options.get("threshold")
        rows.append([
            path.name, NULL if threshold is None else shown(threshold), shown_length(preset.method),
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
        "files": [str(path) for path in paths], "decisions": tuner.decisions, "calibration": calibration.model_dump(),
        "presets": [
            {"preset": preset.label, "method": preset.method.model_dump(mode="json"),
             "metrics": dumped(preset.metrics, preset.metrics)}
            for preset in presets
        ],
    }  # fmt: skip
    table = Table(trials.title("tuned"), columns, rows, [caption])
    return TuningReport(data, [table], trials.folder, [str(path) for path in paths])


def shown_length(method: MethodSpec) -> str:
    length, most = method.draft_length, method.num_draft_tokens
    return str(most) if length is None else f"≤ {most}, {length_name(length.model_dump())}"


def parse_candidates(method: MethodSpec, lengths: Sequence[str] | None, sizes: Sequence[str] | None) -> list[int]:
    """Returns the tree sizes or draft lengths to try. Raises ConfigError for a number that the method cannot draft, and
    for the option that it does not take."""
    takes_sizes = has_shape(method) or (grows(method) and (lengths is None or sizes is not None))
    if takes_sizes and lengths is not None:
        raise ConfigError(f"--lengths {','.join(lengths)}: {method.name} drafts trees: give --sizes, or leave it out")
    if not takes_sizes and sizes is not None:
        raise ConfigError(
            f"--sizes {','.join(sizes)}: the drafter of {method.name} has no shape to choose: give --lengths, or leave "
            "it out"
        )
    option, given = ("--sizes", sizes) if takes_sizes else ("--lengths", lengths)
    if given is None:
        longest = MAX_NODES if takes_sizes else tree_levels(method.drafter) or max(LENGTHS)
        return [each for each in (SIZES if takes_sizes else LENGTHS) if each <= longest] or [longest]
    for text in given:
        if not text.isascii() or not text.isdigit() or (takes_sizes and not 1 <= int(text) <= MAX_NODES):
            raise ConfigError(
                f"{option} {text}: not a number of draft tokens{f' from 1 to {MAX_NODES}' if takes_sizes else ''}: "
                "give some like 4,16,64"
            )
        if not takes_sizes:
            with_value(method, LENGTH, int(text), place=f"--lengths {text}")
    found = sorted({int(text) for text in given})
    if takes_sizes and len(found) < 2:
        raise ConfigError("--sizes: one size shows no costs by size: give two or more, such as 4,16,64")
    return found


def choose_slice(loaded: Loaded, amount: float, seed: int) -> Loaded:
    """Returns the examples to tune on, drawn from each subset with the seed. Raises ConfigError if nothing is left to
    evaluate, or if the examples are too few for an interval."""
    taken = []
    for task, subset, data in loaded:
        num_examples = len(data.examples)
        count = math.ceil(amount * num_examples) if amount < 1 else int(amount)
        if count >= num_examples:
            raise ConfigError(
                f"--calibration {amount:g}: takes all {num_examples} examples of subset '{subset}', so that none is "
                "left to evaluate: give less, or a larger --limit"
            )
        drawn = Random(stream_seed("calibration", seed, task.name, subset)).sample(data.examples, count)
        taken.append((task, subset, replace(data, examples=tuple(sorted(drawn, key=lambda e: e.index)))))
    total = sum(len(data.examples) for _, _, data in taken)
    if total < MIN_PROMPTS:
        raise ConfigError(
            f"--calibration {amount:g}: gives {total} examples, but an interval needs {MIN_PROMPTS}: give more, "
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
