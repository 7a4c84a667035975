"""The numbers of draft trees: what a rule accepts beside the optimum, acceptance by depth and by rank, and costs."""

import itertools
from collections import defaultdict
from fractions import Fraction

import pytest
import torch

from specbench.decoding.drafters.model_tree import ModelTreeDrafter, draw_siblings
from specbench.decoding.proposal import TreeProposal
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.tree_acceptance import (
    FIRST_SAMPLE,
    MAX_SAMPLES,
    SAMPLED_EVERY,
    _missed_without_replacement,
    acceptance_by_level,
    node_acceptance,
    optimal_acceptance,
)
from specbench.decoding.tree_rules import RecursiveRejection, Typical, WalkingRule, normalized
from specbench.decoding.tree_shape import regular_shape
from specbench.decoding.verification import exact_match
from specbench.report.captions import draft_length
from specbench.report.tables import comparison_table, tree_table
from specbench.results.metrics import numbered_metrics
from specbench.results.row import RowSampling
from specbench.running.measure import tree_fields
from specbench.statistics.bootstrap import Estimate
from tests.support.answers import summarize
from tests.support.records import autoregressive, changed, compared, generation
from tests.support.rows import row
from tests.support.toys import TableModel
from tests.support.tree_drafters import generate
from tests.support.tree_rules import CASES, RULES, optimum
from tools.tree_laws import Tokens, all_draws, outcomes, sibling_draws, table, target_rows, trees

WIDE = 6


def random_probs(seed: int, size: int = WIDE, spread: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(spread * torch.randn(size, generator=generator, dtype=torch.float64), dim=0)


def smallest_bound(p: torch.Tensor, drawn: list[tuple[float, Tokens]]) -> float:
    """Returns min over all sets H of P(H) + 1 − Pr(all children in H)."""
    subsets = itertools.chain.from_iterable(itertools.combinations(range(len(p)), n) for n in range(len(p) + 1))
    return min(
        float(p[list(kept)].sum()) + 1 - sum(mass for mass, tokens in drawn if set(tokens) <= set(kept))
        for kept in subsets
    )


@pytest.mark.parametrize("draws", ["independent", "without_replacement"])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_the_optimum_by_sorting_is_that_of_all_sets(width: int, draws: str) -> None:
    for seed in range(4):
        p, q = random_probs(seed), random_probs(seed + 100)
        if seed % 2:  # a truncated draft distribution
            q = normalized(q.index_fill(0, q.argmin(), 0.0))
        found = optimal_acceptance(p, q, [0] * width, draws)
        assert found == pytest.approx(smallest_bound(p, list(all_draws(q, width, draws))), abs=1e-9)
        if width == 1:
            assert found == pytest.approx(float(torch.minimum(p, q).sum()))


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("support", [1, 2, 3, 4, WIDE])
def test_the_optimum_where_the_drafter_has_few_tokens(width: int, support: int) -> None:
    """Where the top tokens have all of the drafter's mass no other is drawn, and a node has fewer children."""
    p, q = random_probs(support), normalized(random_probs(support + 100) * (torch.arange(WIDE) < support))
    rows, generator = Distributions(q.log()[None], Sampling(1.0), q[None]), torch.Generator().manual_seed(0)
    top = q.topk(min(width - 1, support)).indices.tolist()
    rest = normalized(q.index_fill(0, torch.tensor(top, dtype=torch.long), 0.0))
    drawn = [(float(rest[token]), (*top, token)) for token in range(WIDE) if rest[token] > 0] or [(1.0, tuple(top))]
    children = draw_siblings(rows, 0, width, "top_and_one", generator)
    assert tuple(children) in [tokens for _, tokens in drawn]
    expected = smallest_bound(p, drawn)
    assert optimal_acceptance(p, q, children, "top_and_one") == pytest.approx(expected)
    if len(children) < width:  # also where the missing child is given as a token that is never drawn
        assert optimal_acceptance(p, q, [*top, WIDE - 1], "top_and_one") == pytest.approx(expected)


@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
def test_the_chance_that_all_draws_are_in_a_set(spread: float) -> None:
    """Also for a draft distribution with nearly all of its mass on one token."""
    q = random_probs(3, spread=spread)
    for width in range(1, WIDE + 1):
        drawn = list(all_draws(q, width, "without_replacement"))
        inside = [sum(mass for mass, tokens in drawn if max(tokens) < size) for size in range(1, WIDE + 1)]
        assert (1 - _missed_without_replacement(q, width)).tolist() == pytest.approx(inside, abs=1e-8)


def exact_bound(p: torch.Tensor, q: torch.Tensor, width: int) -> float:
    """Returns min over all sets H of P(H) + 1 − Pr(all children in H) for draws without replacement, in fractions."""
    target, draft = ([Fraction(value) for value in probs.tolist()] for probs in (p, q))
    drawn: dict[frozenset[int], Fraction] = {frozenset(): Fraction(1)}
    for _ in range(width):
        longer: dict[frozenset[int], Fraction] = defaultdict(Fraction)
        for tokens, mass in drawn.items():
            left = sum(value for token, value in enumerate(draft) if token not in tokens)
            for token in set(range(len(draft))) - tokens:
                longer[tokens | {token}] += mass * draft[token] / left
        drawn = longer
    return min(
        float(
            sum((target[token] for token in kept), Fraction(1))
            - sum(mass for tokens, mass in drawn.items() if tokens <= set(kept))
        )
        for size in range(len(q) + 1)
        for kept in itertools.combinations(range(len(q)), size)
    )


@pytest.mark.parametrize("gap", [5.0, 16.0, 30.0, 33.0, 35.0, 40.0, 80.0])
@pytest.mark.parametrize("num_sharp", [1, 2, 3, 6])
@pytest.mark.parametrize("seeds", [(0,), pytest.param((1, 2, 3), marks=pytest.mark.slow)], ids=["few", "more"])
def test_the_optimum_of_a_sharp_draft_distribution_is_that_of_exact_arithmetic(
    seeds: tuple[int, ...], num_sharp: int, gap: float
) -> None:
    """One token, or several that are equal, far above the others; and a gap below each token."""
    for seed, width in itertools.product(seeds, range(1, 6)):
        logits = random_probs(seed + 100).log()
        steps = [gap * (num_sharp - token) * (token < num_sharp) for token in range(WIDE)]
        q = torch.softmax(logits + (torch.tensor(steps) if num_sharp == WIDE else gap * torch.tensor(steps).sign()), 0)
        p = random_probs(seed)
        found = optimal_acceptance(p, q, [0] * width, "without_replacement")
        assert found == pytest.approx(exact_bound(p, q, width), abs=1e-8)


def test_the_optimum_of_a_large_vocabulary_is_between_its_bounds() -> None:
    p, q = random_probs(1, 5000), random_probs(2, 5000)
    found = [optimal_acceptance(p, q, [0] * width, "without_replacement") for width in (1, 2, 4, 8)]
    assert found == sorted(found) and found[0] == pytest.approx(float(torch.minimum(p, q).sum())) and found[-1] < 1
    assert optimal_acceptance(p, q, [0] * 4, "independent") < found[2]


@pytest.mark.parametrize("widths", [pytest.param((2,), marks=pytest.mark.slow), (3,), (2, 1)])
@pytest.mark.parametrize(("name", "draws"), CASES)
def test_the_chance_of_a_rule_is_that_of_all_its_outcomes(name: str, draws: str, widths: tuple[int, ...]) -> None:
    """For each tree; and over all trees it is at most the optimum, which it is for fixed children."""
    p, q = table(1), table(1001)
    mean = best = 0.0
    rule: WalkingRule = RULES[name]
    for mass, tree in trees(q, widths, draws):
        rows = target_rows(p, tree)
        found = node_acceptance(rule, tree, Distributions(rows.log(), Sampling(1.0), rows), -1)
        assert found is not None
        accepted = sum(chance for chance, path, _ in outcomes(lambda choices: rule.walk(tree, rows, choices)) if path)  # noqa: B023
        assert found[0] == pytest.approx(accepted, abs=1e-9)
        mean, best = mean + mass * found[0], best + mass * found[1]
    assert best == pytest.approx(optimum(p(()), list(sibling_draws(q(()), widths[0], draws))), abs=1e-9)
    assert mean <= best + 1e-9 and (draws != "fixed" or mean == pytest.approx(best))


def test_exact_match_accepts_the_mass_of_the_children_and_others_are_unknown() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2]] * 3)
    target = Distributions(probs.log(), Sampling(1.0))
    fixed = TreeProposal([0, 2], [-1, -1])
    assert acceptance_by_level(exact_match, fixed, target, [1]) == [pytest.approx((0.7, 0.7))]
    assert acceptance_by_level(Typical(), fixed, target, [1]) == []
    assert acceptance_by_level(exact_match, TreeProposal([0, 2], [-1, 0], num_candidates=0), target, []) == []
    deeper = TreeProposal([0, 2, 1], [-1, -1, 0])
    target = Distributions(torch.tensor([[0.5, 0.3, 0.2]] * 4).log(), Sampling(1.0))
    assert acceptance_by_level(exact_match, deeper, target, [0, 2]) == [pytest.approx((p, p)) for p in (0.7, 0.3)]
    assert acceptance_by_level(exact_match, deeper, target, [1])[1] == (0.0, 0.0), "of a node without children"


WHOLE_PATHS = ("traversal", "best_path_block")


@pytest.mark.parametrize("widths", [(2, 1), pytest.param((1, 2), marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "draws"), CASES)
def test_the_chance_below_an_accepted_node_is_that_of_all_outcomes(
    name: str, draws: str, widths: tuple[int, ...]
) -> None:
    """For each node of each tree; and over all trees it is at most the optimum."""
    p, q = table(1), table(1001)
    mean = best = 0.0
    rule: WalkingRule = RULES[name]
    for mass, tree in trees(q, widths, draws):
        rows = target_rows(p, tree)
        target = Distributions(rows.log(), Sampling(1.0), rows)
        found = list(outcomes(lambda choices: rule.walk(tree, rows, choices)))  # noqa: B023
        for node in tree.children(-1):
            reached = sum(chance for chance, path, _ in found if path[:1] == [node])
            levels = acceptance_by_level(rule, tree, target, [node])
            if name in WHOLE_PATHS:
                assert len(levels) == 1, "it judges whole paths"
            elif reached:
                accepted = sum(chance for chance, path, _ in found if path[:1] == [node] and len(path) > 1)
                assert levels[1][0] == pytest.approx(accepted / reached, abs=1e-9)
                mean, best = mean + mass * reached * levels[1][0], best + mass * reached * levels[1][1]
    assert mean <= best + 1e-9 and (name in WHOLE_PATHS or mean > 0.01)
    assert draws != "fixed" or mean == pytest.approx(best)


def test_the_siblings_of_verified_levels() -> None:
    tree = TreeProposal([5, 6, 7, 8, 9], [-1, -1, 1, 1, 1])
    assert tree.siblings((1, 4), 2) == ((2, 1), (3, 2))  # both accepted, nothing follows
    assert tree.siblings((1,), 2) == ((2, 1), (3, None))  # the second level was rejected
    assert tree.siblings((), 1) == ((2, None),)
    assert tree.siblings((), 0) == ()


def test_counts_by_rank_and_samples_of_a_generation() -> None:
    """Every verified level has a first child, every accepted token one rank; samples are in every eighth step."""
    drafter = ModelTreeDrafter(TableModel(8, 3), Sampling(1.0), regular_shape([3, 2]), "without_replacement")
    made = generate(TableModel(8, 4), drafter, RecursiveRejection(), 300, 0, Sampling(1.0))
    found = tree_fields(made)
    verified, accepted = zip(*found["tree_ranks"], strict=True)
    assert verified[0] == sum(step.num_verified for step in made.steps)
    assert sum(accepted) == sum(step.num_accepted for step in made.steps) > 100
    assert verified[0] == verified[1] > verified[2] and accepted[0] > accepted[1] > accepted[2] > 0
    samples = made.tree_samples or []
    num_steps = len(made.steps)
    assert len(samples) == min(MAX_SAMPLES, len(range(FIRST_SAMPLE, num_steps, SAMPLED_EVERY))) == MAX_SAMPLES
    assert all(0 < chance <= 1 and 0 < best <= 1 for (chance, best), *_ in samples)
    assert {len(levels) for levels in samples} == {1, 2}
    chain = generate(TableModel(8, 4), drafter, exact_match, 1, 0, Sampling(1.0))
    assert tree_fields(chain) == {} and chain.tree_samples is None


def test_a_cut_generation_counts_no_rank_after_its_end() -> None:
    drafter = ModelTreeDrafter(TableModel(8, 4), Sampling(0.0), regular_shape([2, 1, 1]), "fixed")
    made = generate(TableModel(8, 4), drafter, exact_match, 5, 0, Sampling(0.0))
    assert sum(step.num_accepted for step in made.steps) == tree_fields(made)["tree_ranks"][0][1]


TREE = generation(
    [[3, 3, 2, 3], [2, 1, 0, 1]], decode_seconds=2.0, target=[(7, 0.6), (5, 0.5)],
    draft=[(1, 0.04)] * 3 + [(1, 0.05)] * 2,
    tree_nodes=[6, 4], tree_ranks=[[4, 1], [3, 1]], tree_samples=[[[0.5, 0.75], [0.2, 0.4]], [[0.9, 0.95]]],
)  # fmt: skip
PLAIN = autoregressive(5, decode_seconds=4.4, target=[(1, 1.0)] * 4)


def test_the_costs_of_trees_give_a_speed_up() -> None:
    found = summarize([compared(0, PLAIN, TREE)], "m", num_draft_tokens=3, verification={"rule": "exact_match"})
    values = {name: metric.value for name, metric in found.items()}
    assert values["verification_cost"] == pytest.approx(0.55)
    expected, optimal = ([values[f"tree_acceptance_{name}@{d}"] for d in (1, 2)] for name in ("expected", "optimal"))
    assert expected == pytest.approx([0.7, 0.2]) and optimal == pytest.approx([0.85, 0.4])
    assert "tree_acceptance_expected@3" not in values
    # a step: 2.5 draft passes of 0.04, 0.55 of verifying, 0.34 of overhead; of the baseline 1.1
    overhead = (2.0 - 1.1 - 0.22) / 2
    assert values["speedup_of_costs"] == pytest.approx(2 * 1.1 / (2.5 * 0.04 + 0.55 + overhead))
    unsampled = changed(TREE, tree_samples=None)
    found = summarize([compared(0, PLAIN, unsampled)], "m", num_draft_tokens=3, verification={"rule": "exact_match"})
    assert not {name for name in found if name.startswith("tree_acceptance")}
    chain = summarize([compared(0, PLAIN, PLAIN)], "m", num_draft_tokens=3, verification={"rule": "exact_match"})
    assert not {"verification_cost", "speedup_of_costs", "tree_nodes"} & set(chain)


def test_the_verification_cost_by_the_length_of_the_pass() -> None:
    """In passes of 1 s: of 17 to 32 tokens 2 s, of 9 to 16 tokens 1.5 s; a single pass of 5 tokens shows nothing."""
    lengths = [(27, 2.0)] * 8 + [(32, 2.0)] * 4 + [(16, 1.25), (9, 1.75)] * 6 + [(5, 9.0)]
    steps = [[3, 3, 2, 3]] * len(lengths)
    made = generation(steps, decode_seconds=99.0, target=lengths, tree_nodes=[length - 1 for length, _ in lengths])
    found = summarize([compared(0, PLAIN, made)], "m", num_draft_tokens=3, verification={"rule": "exact_match"})
    costs = {name: metric.value for name, metric in found.items() if name.startswith("verification_cost@")}
    assert costs == {"verification_cost@16": pytest.approx(1.5), "verification_cost@32": pytest.approx(2.0)}
    tree = row(method="sd-tree@1:0", num_draft_tokens=3, accepted_tokens_per_step=(4, 4, 2, 0), metrics=found)
    assert "(v: 1.50 for 9 to 16, 2.00 for 17 to 32 tokens), and overhead" in tree_table([tree]).caption[-1]


def test_chances_by_rank_are_over_all_answers() -> None:
    """A record without them, of an earlier version, has none."""
    other = generation([[3, 1, 0, 1]], tree_nodes=[9], tree_ranks=[[1, 0], [1, 0], [1, 0]])
    records = [compared(0, PLAIN, TREE), compared(1, autoregressive(2), other)]
    found = summarize(records, "m", num_draft_tokens=3, verification={"rule": "exact_match"})
    assert [chance.value for chance in numbered_metrics(found, "rank_chance")] == [1 / 5, 1 / 4, 0]
    without = changed(TREE, tree_ranks=None)
    old = summarize([compared(0, PLAIN, without)], "m", num_draft_tokens=3, verification={"rule": "exact_match"})
    assert numbered_metrics(old, "rank_chance") == [] and old["tree_nodes"].value == 5


@pytest.mark.parametrize(
    "ranks",
    [
        [[4, 1], [3, 2]],  # three accepted
        [[5, 1], [3, 1]],  # five verified
        [[4, 1], [5, 1]],  # more second children than first ones
        [[4, 0], [1, 2]],  # more accepted than verified
        [],
    ],
)
def test_contradictory_counts_by_rank_are_refused(ranks: list[list[int]]) -> None:
    compared(0, PLAIN, TREE).check_counts("m", 3)
    with pytest.raises(ValueError, match=r"tree_ranks \[.*\] for 4 verified and 2 accepted tokens"):
        compared(0, PLAIN, changed(TREE, tree_ranks=ranks)).check_counts("m", 3)


def test_the_table_of_trees() -> None:
    """Of 10 steps 4 accept nothing, 4 one and 2 two tokens; a chain has its rate as the chance of the first rank."""
    metrics = summarize([compared(0, PLAIN, TREE)], "m", num_draft_tokens=3, verification={"rule": "exact_match"})
    tree = row(
        method="sd-tree@1:0", num_draft_tokens=3, accepted_tokens_per_step=(4, 4, 2, 0), metrics=metrics
    )  # fmt: skip
    rate = {"acceptance_rate_pooled": Estimate(value=0.8)}
    chain = row(method="sd@1:0", num_draft_tokens=1, accepted_tokens_per_step=(2, 6), metrics=rate)
    plain = row(method="ar@1:0", num_draft_tokens=0, accepted_tokens_per_step=(6,), metrics={})
    found = tree_table([plain, chain, tree])
    assert [line for line in found.rows if line] == [
        ["sd"],
        ["P(≥ d accepted)", "0.75", "", ""],
        ["P(≥ d | ≥ d − 1)", "0.75", "", ""],
        ["P(child b accepted)", "0.80", "", ""],
        ["sd-tree"],
        ["P(≥ d accepted)", "0.60", "0.20", "0.00"],
        ["P(≥ d | ≥ d − 1)", "0.60", "0.33", "0.00"],
        ["P(child b accepted)", "0.25", "0.33", ""],
    ]
    drawn = tree_table([tree.model_copy(update={"sampling": RowSampling(temperature=1.0)})])
    assert [line for line in drawn.rows if line and line[0].startswith("–")] == [
        ["– of the rule", "0.70", "0.20", ""],
        ["– at most", "0.85", "0.40", ""],
    ]
    assert any("of the rule: P(≥ d | ≥ d − 1) computed" in line for line in drawn.caption)
    assert not any("of the rule" in line for line in found.caption), "a greedy run draws nothing"
    assert "2.5 draft passes of 0.040 each (c), one pass" in drawn.caption[-1]
    lookup = tree.model_copy(update={"metrics": metrics | {"cost_ratio": Estimate(value=0.001)}})
    assert "draft passes" not in tree_table([lookup]).caption[-1]
    assert "one pass over the tree of 0.55 (v)" in found.caption[-1]
    assert (draft_length(tree), draft_length(chain)) == ("up to 3 levels", "1 draft token")
    headings = [column.heading for column in comparison_table([plain, chain, tree]).columns]
    assert "α\n(chains)" in headings
    assert "α" in [column.heading for column in comparison_table([plain, chain]).columns]
