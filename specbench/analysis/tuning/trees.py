"""`specbench tune` for draft trees: the shape with the most expected tokens per time, by measured chances and costs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile, zip_longest
from statistics import fmean

import numpy as np

from specbench.analysis.tuning.shared_runs import LENGTH, TrialRun, with_value
from specbench.analysis.tuning.tune import TunedPreset, Tuner
from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.core.table import Table, number_columns, text_columns
from specbench.core.values import depths
from specbench.decoding.drafters.heads import CHANCES
from specbench.decoding.tree_shape import USUAL_CHANCES, best_shape_by_level
from specbench.records.records import Generation
from specbench.results.metric_format import number, with_interval
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.statistics.bootstrap import Estimate

LevelChances = Sequence[Sequence[float]]  # by level of the tree, then by rank
SIZES = (4, 8, 16, 32, 64)
MAX_NODES = 512
MAX_DEPTH = 16
MIN_JUDGED = 20  # judged children of a rank; a chance from fewer is left out
NUM_CANDIDATES = 3  # shapes that are measured


def has_shape(method: MethodSpec) -> bool:
    """Returns whether a method's trees can get their shape from chances by rank, for all levels or for each head. False
    for trees that grow (`top_k`)."""
    if method.decoder is not None or method.routes is not None or grows(method):
        return False
    return has_heads(method) or {"num_nodes", "rank_chances", "depth"} <= known_options(method)


def grows(method: MethodSpec) -> bool:
    """Returns whether a method's trees grow while they are drafted, up to a number of nodes."""
    return method.decoder is None and method.routes is None and method.drafter.options.get("top_k") is not None


def has_heads(method: MethodSpec) -> bool:
    """Returns whether a method's trees get their shape from the chances of each head."""
    return {"num_nodes", "head_chances"} <= known_options(method)


def known_options(method: MethodSpec) -> set[str]:
    return set(DRAFTERS.options_model(method.drafter.type).model_fields)


def with_shape(method: MethodSpec, num_nodes: int, level_chances: LevelChances) -> MethodSpec:
    """Returns the method with the best tree shape of this size, named after size and depth."""
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
    """Returns the measured chances by rank for each level, up to the first level without any."""
    levels = zip_longest(*(generation.get("tree_levels", ()) for generation in generations), fillvalue=())
    return list(takewhile(bool, map(chances_by_rank, levels)))


def chances_by_rank(counts: Iterable[Sequence[Sequence[int]]]) -> list[float]:
    """Returns the measured chance of each rank: accepted ÷ judged children, but never above that of the rank before.
    Ranks with too few judged children, or without accepted ones, are left out. `counts`: [judged, accepted] by rank,
    for each generation."""
    by_rank = zip_longest(*counts, fillvalue=(0, 0))
    sums = ([sum(column) for column in zip(*ranks, strict=True)] for ranks in by_rank)
    known = [accepted / judged for judged, accepted in sums if judged >= MIN_JUDGED]
    return [round(chance, 4) for chance in accumulate(known, min) if chance >= 1e-4]


def measure_costs(generations: Mapping[str, Sequence[Generation]], baseline: Sequence[Generation]) -> TreeCosts:
    """Returns the costs of trees. `generations`: by method; each method has trees of another size."""
    plain = [seconds for generation in baseline for _, seconds in generation["passes"]["target"]]
    target_pass = fmean(plain)
    verifying = {0.0: sum(generation["decode_seconds"] for generation in baseline) / len(plain) / target_pass}
    depths, drafting = [], []
    for own in generations.values():
        num_steps = sum(len(generation["steps"]) for generation in own)
        drafted = sum(seconds for generation in own for _, seconds in generation["passes"]["draft"])
        whole = sum(generation["decode_seconds"] for generation in own)
        size = sum(sum(generation.get("tree_nodes", ())) for generation in own) / num_steps
        verifying[size] = (whole - drafted) / num_steps / target_pass
        depths.append(sum(step[0] for generation in own for step in generation["steps"]) / num_steps)
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
    """Returns the chance that each node is accepted: the product of the chances on its path."""
    found: list[float] = []
    for parent, chance in zip(parents, chances, strict=True):
        found.append(chance * (found[parent] if parent >= 0 else 1.0))
    return found


def candidate_shapes(ranked: Sequence[Shape]) -> list[Shape]:
    """Returns the best shape, the best one with at most half its nodes, and the best one with at least twice."""
    best = ranked[0]
    smaller = [shape for shape in ranked if 2 * shape.num_nodes <= best.num_nodes]
    larger = [shape for shape in ranked if shape.num_nodes >= 2 * best.num_nodes]
    return [best, *smaller[:1], *larger[:1]][:NUM_CANDIDATES]


def tune_shape(tuner: Tuner, sizes: Sequence[int]) -> list[TunedPreset]:
    """Returns the method with the tree shape that decodes the most tokens per second. One run measures chances by rank
    and costs by size, which select three shapes; a second run measures these and decides."""
    trials, by_level = tuner.trials, has_heads(tuner.trials.base)
    usual = (trials.base.drafter.options["head_chances"] or CHANCES) if by_level else [USUAL_CHANCES] * MAX_DEPTH
    probes = {made.name: made for made in (with_shape(trials.base, size, usual) for size in sizes)}
    run = trials.run("sizes-" + "-".join(map(str, sizes)), list(probes.values()))
    chances, costs = read_chances(run, list(probes), by_level)
    tried = candidate_shapes(rank_shapes(chances, costs, max(sizes)))
    tuner.show(ranks_table(chances if by_level else chances[:1]))
    tuner.show(costs_table(costs))
    chosen = [with_shape(trials.base, shape.num_nodes, chances[: shape.depth]) for shape in tried]
    second = trials.run("shapes-" + "-".join(method.name for method in chosen), chosen)
    found = {method.name: second.metrics(method.name) for method in chosen}
    tuner.show(shapes_table([(shape, found[method.name]) for shape, method in zip(tried, chosen, strict=True)]))
    best = fastest_preset(trials.base, chosen, found)
    levels = f"{best.method.num_draft_tokens} levels"
    is_most = best.method.num_draft_tokens == len(chances) and not by_level
    limit = ", the most that were measured: larger --sizes allow more" if is_most else ""
    tuner.decide(f"chosen: {best.method.drafter.options['num_nodes']} draft tokens on {levels}{limit}")
    return [best]


def tune_size(tuner: Tuner, sizes: Sequence[int]) -> list[TunedPreset]:
    """Returns the method with the size of growing trees that decodes the most tokens per second."""
    trials, tried = tuner.trials, []
    for size in sizes:  # a tree has no more levels than nodes
        shorter = with_value(trials.base, LENGTH, min(trials.base.num_draft_tokens, size))
        tried.append(with_value(shorter, "drafter.num_nodes", size).model_copy(update={"name": f"nodes-{size}"}))
    run = trials.run("sizes-" + "-".join(map(str, sizes)), tried)
    found = {method.name: run.metrics(method.name) for method in tried}
    tuner.show(sizes_table(dict(zip(sizes, found.values(), strict=True))))
    best = fastest_preset(trials.base, tried, found)
    tuner.decide(f"chosen: {best.method.drafter.options['num_nodes']} draft tokens in a tree that grows")
    return [best]


def fastest_preset(
    base: MethodSpec, tried: Sequence[MethodSpec], found: Mapping[str, dict[str, Estimate]]
) -> TunedPreset:
    """Returns the method with the most tokens per second, under the name of the tuned method. `found`: the metrics by
    the method's name."""
    best = max(tried, key=lambda method: found[method.name]["tokens_per_second"].value or 0.0)
    return TunedPreset("", best.model_copy(update={"name": base.name}), found[best.name])


def ranks_table(chances: LevelChances) -> Table:
    """Returns a table of the measured chances by rank, with a line for each head, or one line for all levels."""
    width = max(map(len, chances))
    rows = [
        [f"head {place}" if len(chances) > 1 else "all levels", *(f"{chance:.3f}" for chance in level),
         *[""] * (width - len(level))]
        for place, level in enumerate(chances, 1)
    ]  # fmt: skip
    return Table(
        "acceptance by rank", (*text_columns("", folds=False), *number_columns(*map(str, range(1, width + 1)))), rows
    )


def costs_table(costs: TreeCosts) -> Table:
    rows = [[f"{size:.3g}", f"{cost:.2f}"] for size, cost in sorted(costs.verifying.items())]
    fixed, per_level = costs.drafting
    drafting = f"drafting: {fixed:.3f} + {per_level:.3f} per level"
    columns = number_columns("draft\ntokens", "verification\nand overhead")
    return Table("costs of a step", columns, rows, ["in passes of ar", drafting])


def sizes_table(found: Mapping[int, Mapping[str, Estimate]]) -> Table:
    rows = [
        [str(size), number(metrics["tree_nodes"], 1), number(metrics["tree_depth"], 1),
         with_interval(metrics["mean_acceptance_length"]), with_interval(metrics["tokens_per_second"], 1)]
        for size, metrics in found.items()
    ]  # fmt: skip
    columns = number_columns(
        "size", "nodes\nof a step", "levels\nof a step", "τ\n95 % interval", "tok/s\n95 % interval"
    )
    return Table("sizes of trees", columns, rows)


def shapes_table(tried: Sequence[tuple[Shape, Mapping[str, Estimate]]]) -> Table:
    rows = [
        [str(shape.num_nodes), str(shape.depth), f"{shape.tokens:.2f}",
         with_interval(metrics["mean_acceptance_length"]), with_interval(metrics["tokens_per_second"], 1)]
        for shape, metrics in tried
    ]  # fmt: skip
    columns = number_columns("size", "depth", "τ\nexpected", "τ, run\n95 % interval", "tok/s\n95 % interval")
    return Table("shapes of trees", columns, rows, num_keys=2)


def read_chances(run: TrialRun, names: Sequence[str], by_level: bool) -> tuple[LevelChances, TreeCosts]:
    """Returns the chances by rank of the measured levels, and the costs. `by_level`: whether the levels differ in
    chances. Raises ConfigError if nothing was accepted."""
    own = {name: [record["methods"][name] for record in run.records] for name in names}
    generations = [generation for each in own.values() for generation in each]
    common = chances_by_rank(generation.get("tree_ranks", ()) for generation in generations)
    levels = chances_by_level(generations)
    chances = levels if by_level else [common] * len(levels)
    if not chances or not common:
        raise ConfigError(
            "no draft token of this slice was accepted often enough to shape a tree: give more examples with "
            "--calibration or --limit, or another drafter"
        )
    return chances, measure_costs(own, [record["methods"]["ar"] for record in run.records])


def parse_sizes(texts: Sequence[str]) -> list[int]:
    """Returns the numbers of draft tokens to try. Raises ConfigError for a number that no tree can have."""
    for text in texts:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_NODES:
            raise ConfigError(
                f"--sizes {text}: not a number of draft tokens from 1 to {MAX_NODES}: give some like 4,16,64"
            )
    sizes = sorted({int(text) for text in texts})
    if len(sizes) < 2:
        raise ConfigError("--sizes: one size shows no costs by size: give two or more, such as 4,16,64")
    return sizes
