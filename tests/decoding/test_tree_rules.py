"""Rules for draft trees, exactly: over all draws of drafter and rule, the law of the tokens is the target's."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch

from specbench.decoding.proposal import TreeProposal
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.tree_rules import (
    BestPathBlock,
    BestPathLaw,
    BlockVerification,
    Choices,
    Level,
    RecursiveRejection,
    Traversal,
    Typical,
    Verified,
    k_seq_factor,
    normalized,
)
from specbench.decoding.verification import exact_match
from tests.support.tree_rules import CASES, RULES, optimum
from tools.tree_controls import CONTROLS, Control, P, Q, reused_coin, truncated
from tools.tree_laws import (
    VOCAB,
    Enumerated,
    Tokens,
    chains,
    distance,
    law,
    sibling_draws,
    table,
    target_rows,
    trees,
)

DEPTH = 2
WIDTHS = [(2,), (2, 1), (1, 2), (3,)]
EXACT = 1e-12


@pytest.mark.parametrize(
    ("name", "draws", "widths", "seed"),
    [
        *(
            pytest.param(*case, widths, seed, marks=[pytest.mark.slow] * (seed != number % 2))
            for case in CASES
            for number, widths in enumerate(WIDTHS)
            for seed in (0, 1)
        ),
        *(
            pytest.param(name, draws, (2, 2), seed, marks=[pytest.mark.slow] * (seed != 1))
            for name, draws in (
                ("traversal", "independent"),
                ("traversal", "without_replacement"),
                ("best_path_block", "independent"),
            )
            for seed in (0, 1)
        ),
    ],
)
def test_the_law_of_the_tokens_is_the_targets(name: str, draws: str, widths: tuple[int, ...], seed: int) -> None:
    p, q = table(seed), table(seed + 1000)
    drafts = trees(q, widths, draws)
    assert distance(RULES[name], p, drafts, len(widths) + 1) < EXACT


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_block_verification_is_exact_and_never_accepts_less(length: int, seed: int) -> None:
    p, q = table(seed), table(seed + 1000)
    assert distance(BlockVerification(), p, chains(q, length), length + 1) < EXACT
    tokens = law(RecursiveRejection(), p, chains(q, length), length + 1)[1]
    block = law(BlockVerification(), p, chains(q, length), length + 1)[1]
    for same in (Traversal(), BestPathBlock()):
        assert block == pytest.approx(law(same, p, chains(q, length), length + 1)[1], abs=EXACT)
    assert block >= tokens - EXACT and (length == 1 or block > tokens)


@pytest.mark.parametrize("widths", [(2, 1), (3, 1), (2, 2), pytest.param((2, 1, 1), marks=pytest.mark.slow)])
def test_the_best_path_has_the_stated_law(widths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all draws, the paths that are taken have the probabilities by which the rule judges them, also where an end
    token has no children; and more draft tokens are accepted than of one path."""
    p, q, end = table(5), table(1005), VOCAB - 1
    taken: dict[Tokens, float] = defaultdict(float)
    stated: dict[Tokens, float] = {}

    def note(tokens: list[int], target_probs: torch.Tensor, draft_probs: torch.Tensor, choices: Choices) -> Verified:
        taken[tuple(tokens)] += mass
        stated[tuple(tokens)] = math.prod(float(row[token]) for row, token in zip(draft_probs, tokens, strict=True))
        return 0, 0

    with monkeypatch.context() as patched:
        patched.setattr("specbench.decoding.tree_rules.verify_block", note)
        for mass, tree in trees(q, widths, "independent", end):  # noqa: B007
            BestPathBlock().walk(tree, target_rows(p, tree), Choices(torch.Generator()))
    assert taken == pytest.approx(stated, abs=EXACT) and sum(stated.values()) == pytest.approx(1)
    assert len(stated) > VOCAB
    assert distance(BestPathBlock(), p, trees(q, widths, "independent", end), len(widths) + 1) < EXACT
    several, one = (
        law(BestPathBlock(), p, trees(q, each, "independent", end), len(widths) + 1)[1]
        for each in (widths, (1,) * len(widths))
    )
    assert several > one


def test_the_law_of_the_best_path_needs_no_differences_of_nearly_equal_numbers() -> None:
    """Of many unlikely tokens, whose chances are below the resolution of the chances that they are added to."""
    q = torch.cat([torch.tensor([1.0], dtype=torch.float64), torch.full((999,), 1e-18, dtype=torch.float64)])
    p = torch.linspace(1, 2, 1000, dtype=torch.float64).flip(0)
    level = Level(normalized(p), q, 3)
    found = BestPathLaw().next_probs(level)
    assert float(found.sum()) == pytest.approx(1) and found[1:] == pytest.approx([3e-18] * 999)
    below = BestPathLaw()
    below.append(level, 0)
    assert below.next_probs(level)[1:] == pytest.approx([9e-18] * 999)  # the best of 9


def root_cases(seed: int, width: int, draws: str) -> tuple[torch.Tensor, torch.Tensor, list[tuple[float, Tokens]]]:
    """Returns p and q after the sequence, and all draws of `width` children."""
    p, q = table(seed)(()), table(seed + 1000)(())
    return p, q, list(sibling_draws(q, width, draws))


@pytest.mark.parametrize(("name", "draws"), CASES)
def test_no_rule_accepts_more_than_the_optimum_of_its_drafts(name: str, draws: str) -> None:
    for seed, width in itertools.product(range(2), (2, 3)):
        p, q, drafts = root_cases(seed, width, draws)
        expected = law(RULES[name], table(seed), trees(table(seed + 1000), (width,), draws), 2)[1]
        assert expected <= optimum(p, drafts) + EXACT
        assert name not in FORMULAS or expected == pytest.approx(FORMULAS[name](p, q, draws, width), abs=EXACT)


def of_k_seq(p: torch.Tensor, q: torch.Tensor, draws: str, width: int) -> float:
    """Returns 1 − (1 − β)^k, β = Σ min(q, p/ρ)."""
    share = float(torch.minimum(q, p / k_seq_factor(p, q, width)).sum())
    return 1 - (1 - share) ** width


def of_greedy_multi_draft(p: torch.Tensor, q: torch.Tensor, draws: str, width: int) -> float:
    """Returns P(top) + Σ min(p, q') over the other tokens, for the most probable tokens and one of the others."""
    top = q.topk(width - 1).indices
    rest = normalized(q.index_fill(0, top, 0.0))
    return float(p[top].sum() + torch.minimum(p, rest).sum())


def of_recursive_rejection(p: torch.Tensor, q: torch.Tensor, draws: str, width: int) -> float:
    """Returns 1 − E Π (1 − Σ min(p_i, q_i)) for children drawn from q_i, where p_i is the target's residual after the
    children before; P(children) of fixed ones."""
    if draws == "fixed":
        return float(p[q.topk(width).indices].sum())
    return 1 - all_rejected(p, q, draws, width)


def all_rejected(p: torch.Tensor, q: torch.Tensor, draws: str, width: int) -> float:
    """Returns the chance that `width` children are rejected: a rejected child is x with chance (q(x) − p(x))+, on which
    the distribution of the next one depends if it is drawn without replacement."""
    lost = (q - p).clamp_min(0)
    if width == 1 or not lost.any():
        return float(lost.sum())
    rest = normalized((p - q).clamp_min(0))
    after = [q if draws == "independent" else normalized(q.index_fill(0, torch.tensor(x), 0.0)) for x in range(VOCAB)]
    return sum(float(lost[x]) * all_rejected(rest, after[x], draws, width - 1) for x in range(VOCAB) if lost[x])


FORMULAS: dict[str, Callable[[torch.Tensor, torch.Tensor, str, int], float]] = {
    "k_seq": of_k_seq, "greedy_multi_draft": of_greedy_multi_draft, "recursive_rejection": of_recursive_rejection,
}  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "widths"),
    [
        pytest.param(seed, widths, marks=[pytest.mark.slow] * (seed != (widths == (2, 2))))
        for widths in (*WIDTHS, (1, 1), (2, 2))
        for seed in (0, 1)
    ],
)
def test_exact_match_of_fixed_trees(widths: tuple[int, ...], seed: int) -> None:
    """The law is the target's; the root accepts p(children), which is the optimum of fixed children."""
    p, q = table(seed), table(seed + 1000)
    rule = Enumerated(exact_match)
    assert distance(rule, p, trees(q, widths, "fixed"), len(widths) + 1) < EXACT
    found = law(rule, p, trees(q, widths[:1], "fixed"), 2)[1]
    assert found == pytest.approx(float(p(())[q(()).topk(widths[0]).indices].sum()), abs=EXACT)
    assert found == pytest.approx(optimum(p(()), list(sibling_draws(q(()), widths[0], "fixed"))), abs=EXACT)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_exact_match_of_chains(length: int, seed: int) -> None:
    """The law is the target's, and the first token is accepted with probability Σ p q, at most Σ min(p, q)."""
    p, q = table(seed), table(seed + 1000)
    assert distance(Enumerated(exact_match), p, chains(q, length), length + 1) < EXACT
    found = law(Enumerated(exact_match), p, chains(q, 1), 2)[1]
    assert found == pytest.approx(float((p(()) * q(())).sum()), abs=EXACT)
    assert found <= optimum(p(()), list(sibling_draws(q(()), 1, "independent")))


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.error)
def test_wrong_rules_have_another_law(control: Control) -> None:
    assert control.distance() > 0.01


def test_the_error_of_a_control_is_its_only_one() -> None:
    """Without it the law is the target's."""
    assert reused_coin(P, Q, is_reused=False) < EXACT
    rule = RecursiveRejection()
    for draws in ("independent", "without_replacement"):
        assert distance(rule, P, trees(Q, (2,), draws), 2) < EXACT
    assert distance(rule, truncated(P), trees(Q, (2,), "independent"), 2) < EXACT
    assert distance(rule, P, trees(truncated(Q), (2,), "independent"), 2) < EXACT
    assert distance(Enumerated(exact_match), P, trees(Q, (2,), "fixed"), 2) < EXACT
    assert distance(Traversal(), P, trees(Q, (2, 2), "without_replacement"), 3) < EXACT


def rows(*probs: list[float]) -> Distributions:
    return Distributions(torch.tensor(probs).log(), Sampling(1.0))


def test_typical_acceptance_takes_the_longest_likely_path() -> None:
    """Limits: min(0.09, 0.3 · exp(−H)): 0.09 where the target is sure, less where it is not."""
    sure, unsure = [0.9, 0.06, 0.04], [0.34, 0.33, 0.33]
    tree = TreeProposal([0, 1, 2, 1], [-1, -1, 0, 1])
    judge = Typical()
    # 1 is too unlikely after a sure target; 0 is likely, and 2 after it as well
    found = judge(tree, rows(sure, unsure, sure, sure, sure), torch.Generator().manual_seed(0))
    assert found.path == (0, 2) and found.num_accepted == 2
    # after an unsure target both are likely; the path of 1 goes on, that of 0 does not
    found = judge(tree, rows(unsure, sure, unsure, sure, sure), torch.Generator().manual_seed(0))
    assert found.path == (1, 3)
    greedy = Distributions(torch.tensor([sure, unsure, sure, sure, sure]).log(), Sampling(0.0))
    found = judge(tree, greedy, torch.Generator())
    assert found.path == (0,) and found.next_token == 0


def test_typical_acceptance_is_lossy() -> None:
    """Of a draft token that is always proposed, it accepts more than p(x)."""
    judge, found = Typical(), []
    for seed in range(200):
        tree = TreeProposal([1], [-1])
        found.append(judge(tree, rows([0.7, 0.3], [0.5, 0.5]), torch.Generator().manual_seed(seed)).num_accepted)
    assert sum(found) == 200
