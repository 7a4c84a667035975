"""The metrics of draft trees: size, acceptance and costs."""

from collections.abc import Mapping, Sequence
from itertools import count, takewhile, zip_longest

from specbench.results.bootstrap import SHARE, Metric, Prompts
from specbench.running.records import DRAFTED, Generation, step_sum

COST = "verification_cost"
MIN_PASSES = 10
LEVEL_CHANCES = ("tree_acceptance_expected", "tree_acceptance_optimal")


def tree_metrics(
    prompts: Prompts, own: Sequence[Generation], baseline: Sequence[Generation], found: Mapping[str, Metric]
) -> dict[str, Metric]:
    """Returns the metrics that only draft trees have. `found`: the metrics that all methods have."""
    num_steps, num_plain_steps = ([len(g["steps"]) for g in side] for side in (own, baseline))
    verifying, plain = (
        [sum(seconds for _, seconds in g["passes"]["target"]) for g in side] for side in (own, baseline)
    )
    trees = {
        "tree_nodes": prompts.ratio([sum(g.get("tree_nodes", ())) for g in own], num_steps),
        "tree_depth": prompts.ratio([step_sum(g, DRAFTED) for g in own], num_steps),
        "draft_passes_per_step": prompts.ratio([len(g["passes"]["draft"]) for g in own], num_steps),
        COST: prompts.ratio(verifying, num_steps, plain, num_plain_steps),
        **costs_by_length(prompts, own, (plain, num_plain_steps)),
        **rank_chances(prompts, own),
        **level_chances(prompts, own),
    }
    values = {name: metric.value for name, metric in {**found, **trees}.items()}
    if sum(plain):
        target_pass = sum(plain) / sum(num_plain_steps)
        plain_step = sum(g["decode_seconds"] for g in baseline) / sum(num_plain_steps) / target_pass
        overhead = (values["overhead_seconds"] or 0.0) / (sum(num_steps) or 1) / target_pass
        speedup = speedup_of_costs(values, overhead, plain_step)
    else:
        speedup = None
    return {**trees, "speedup_of_costs": Metric(value=speedup)}


def speedup_of_costs(values: Mapping[str, float | None], overhead: float, plain_step: float) -> float | None:
    """Returns the speed-up that the costs explain: τ · `plain_step` ÷ (draft passes per step · c + v + `overhead`).
    `overhead`: the overhead of a step. `plain_step`: a step of the baseline. Both in target passes over one token."""
    length, passes, cost_ratio, verifying = (
        values[name] for name in ("mean_acceptance_length", "draft_passes_per_step", "cost_ratio", "verification_cost")
    )
    if length is None or passes is None or cost_ratio is None or verifying is None:
        return None
    return length * plain_step / (passes * cost_ratio + verifying + overhead)


def costs_by_length(
    prompts: Prompts, own: Sequence[Generation], baseline: tuple[list[float], list[int]]
) -> dict[str, Metric]:
    """Returns the verification cost by the number of tokens that a pass reads, in classes that end at powers of two.
    Classes of fewer than MIN_PASSES passes are left out. `baseline`: seconds and number of passes of AR's answers."""
    classes: dict[int, list[list[float]]] = {}
    for place, generation in enumerate(own):
        for length, seconds in generation["passes"]["target"]:
            sums = classes.setdefault(1 << (length - 1).bit_length(), [[0.0] * len(own), [0.0] * len(own)])
            sums[0][place] += seconds
            sums[1][place] += 1
    return {
        f"{COST}@{most}": prompts.ratio(seconds, num_passes, *baseline)
        for most, (seconds, num_passes) in sorted(classes.items()) if sum(num_passes) >= MIN_PASSES
    }  # fmt: skip


def rank_chances(prompts: Prompts, own: Sequence[Generation]) -> dict[str, Metric]:
    """Returns for each rank, from 1 on: of the judged nodes with a child of this rank, the share whose child of this
    rank was accepted."""
    counts = [g.get("tree_ranks") or [] for g in own]
    ranks = [[each[rank] if rank < len(each) else (0, 0) for each in counts] for rank in range(max(map(len, counts)))]
    return {
        f"rank_chance@{rank}": prompts.ratio([pair[1] for pair in pairs], [pair[0] for pair in pairs], bounds=SHARE)
        for rank, pairs in enumerate(ranks, start=1)
    }


def level_chances(prompts: Prompts, own: Sequence[Generation]) -> dict[str, Metric]:
    """Returns for each level, from 1 on, the mean chance of acceptance under the rule, and the optimal one, over the
    sampled steps."""
    levels = [list(zip_longest(*(g.get("tree_samples") or []))) for g in own]
    found = {}
    for level in range(max(map(len, levels))):
        samples = [list(filter(None, each[level])) if level < len(each) else [] for each in levels]
        for place, name in enumerate(LEVEL_CHANCES):
            sums = [sum(pair[place] for pair in each) for each in samples]
            found[f"{name}@{level + 1}"] = prompts.ratio(sums, list(map(len, samples)), bounds=SHARE)
    return found


def numbered_metrics(metrics: Mapping[str, Metric], name: str) -> list[Metric]:
    """Returns the metrics NAME@1, NAME@2, … of a row."""
    found = (metrics.get(f"{name}@{number}") for number in count(1))
    return list(takewhile(lambda metric: metric is not None, found))  # type: ignore[arg-type]
