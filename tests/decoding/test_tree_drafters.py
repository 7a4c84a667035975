"""Drafters of trees: their outputs follow the target's distribution through the real loop, greedily and with draws."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding import tree_rules
from specbench.decoding.build import build_decoder
from specbench.decoding.drafters import Drafter, ModelDrafter, NoDrafter
from specbench.decoding.drafters.lookahead import Lookahead, TokenRecycling
from specbench.decoding.drafters.model_tree import ModelTreeDrafter
from specbench.decoding.drafters.retrieval import RetrievalDrafter
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.proposal import Draws, TreeProposal, Verification
from specbench.decoding.sampling import Sampling, process
from specbench.decoding.tree_rules import (
    BestPathBlock,
    BlockVerification,
    GreedyMultiDraft,
    KSeq,
    RecursiveRejection,
    Traversal,
)
from specbench.decoding.tree_shape import TreeShape, best_shape, regular_shape
from specbench.decoding.verification import VerificationRule, exact_match, rejection
from specbench.models.causal_lm import ModelPair
from specbench.models.scoring import Output
from specbench.running.models import engine_for
from specbench.specs.catalogue import load_method, with_overrides
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.training.corpus_arrays import build_datastore
from tests.support import tiny
from tests.support.answers import summarize
from tests.support.records import autoregressive, compared, generation
from tests.support.toys import TableModel, models, path_to
from tests.support.tree_drafters import PROMPT, VOCAB, generate

PLAIN, TOP_P = Sampling(1.0), Sampling(1.0, None, 0.8)
Make = Callable[[TableModel, Sampling], tuple[Drafter, VerificationRule]]


def model_tree(draws: Draws, rule: VerificationRule) -> Make:
    return lambda draft, sampling: (ModelTreeDrafter(draft, sampling, regular_shape([2, 2]), draws), rule)


def retrieval_drafter() -> RetrievalDrafter:
    """A drafter with random documents, whose files stay mapped."""
    random = Random(3)
    with TemporaryDirectory() as folder:
        documents = [random.choices(range(VOCAB), k=6) for _ in range(20)]
        store = build_datastore(documents, VOCAB, Path(folder) / "store", "d")
        return RetrievalDrafter(models(), PLAIN, store, num_nodes=6, max_match=4, min_match=1, max_occurrences=9)


METHODS: dict[str, Make] = {
    "fixed": model_tree("fixed", exact_match),
    "fixed, recursive": model_tree("fixed", RecursiveRejection()),
    "independent": model_tree("independent", RecursiveRejection()),
    "without replacement": model_tree("without_replacement", RecursiveRejection()),
    "k-seq": model_tree("independent", KSeq()),
    "top and one": model_tree("top_and_one", GreedyMultiDraft()),
    "traversal": model_tree("without_replacement", Traversal()),
    "best path": model_tree("independent", BestPathBlock()),
    "exact match of draws": model_tree("without_replacement", exact_match),
    "block": lambda draft, sampling: (ModelDrafter(draft, sampling), BlockVerification()),
    "token recycling": lambda draft, sampling: (
        TokenRecycling(models(), sampling, rank_chances=[0.5, 0.3, 0.1], num_nodes=8, depth=3), exact_match,
    ),
    "lookahead": lambda draft, sampling: (Lookahead(models(), sampling, window=3, ngram=2, guesses=4), exact_match),
    "retrieval": lambda draft, sampling: (retrieval_drafter(), exact_match),
}  # fmt: skip
SLOW = (  # also proved by enumeration
    "fixed, recursive", "independent", "top and one", "exact match of draws", "without replacement", "k-seq", "block",
)  # fmt: skip


LENGTH = 4


def tables(sampling: Sampling) -> tuple[TableModel, TableModel]:
    """A target and a drafter in which wrong rules show most: one that is unsure, and one that is sure; with top-p, two
    alike."""
    seed, *spreads = (5, 0.5, 4.0) if sampling == PLAIN else (7, 1.5, 1.5)
    return TableModel(VOCAB, seed, spreads[0]), TableModel(VOCAB, seed + 1000, spreads[1])


def law(model: TableModel, length: int, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The exact distribution of the next tokens with temperature, top-k and top-p."""
    found = {(): 1.0}
    for _ in range(length):
        found = {
            (*tokens, token): mass * probability
            for tokens, mass in found.items()
            for token, probability in enumerate(
                process(model.table[([*PROMPT, *tokens])[-2], ([*PROMPT, *tokens])[-1]][None], sampling)[0].tolist()
            )
            if probability > 0
        }
    return found


def deviation(
    target: TableModel, drafter: Drafter, rule: VerificationRule, sampling: Sampling
) -> tuple[float, list[GenerationOutput]]:
    """Returns how far 500 texts, with top-p 120, are from the law of the target, and these texts."""
    num_draws = 500 if sampling == PLAIN else 120
    made = [generate(target, drafter, rule, LENGTH, seed, sampling) for seed in range(num_draws)]
    counts = Counter(tuple(each.token_ids) for each in made)
    return chi_squared(counts, law(target, LENGTH, sampling), num_draws), made


def chi_squared(counts: Counter[tuple[int, ...]], masses: dict[tuple[int, ...], float], num_draws: int) -> float:
    """Returns (χ² − degrees of freedom) in standard deviations; infinite if an impossible text was drawn."""
    if set(counts) - set(masses):
        return float("inf")
    common = {key: mass for key, mass in masses.items() if num_draws * mass >= 5}
    pairs = [(counts[key], num_draws * mass) for key, mass in common.items()]
    pairs.append((num_draws - sum(n for n, _ in pairs), num_draws * (1 - sum(common.values()))))  # all rare texts
    degrees = len(pairs) - 1
    return (sum((n - expected) ** 2 / expected for n, expected in pairs) - degrees) / (2 * degrees) ** 0.5


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        *(pytest.param(name, PLAIN, marks=[pytest.mark.slow] * (name in SLOW)) for name in METHODS),
        *((name, TOP_P) for name in ("without replacement", "lookahead")),
    ],
)
def test_draws_follow_the_target(name: str, sampling: Sampling) -> None:
    """Texts of four tokens: the first, a step, and what follows it."""
    target, draft = tables(sampling)
    found, made = deviation(target, *METHODS[name](draft, sampling), sampling)
    assert found < 4
    assert sum(step.num_accepted for each in made for step in each.steps) > 0.1 * len(made)


@pytest.fixture(autouse=True, scope="module")
def _factors_are_found_once() -> Iterator[None]:
    """The factor of `k_seq` is found by 30 halvings, of the same few rows of the tables in every draw."""
    found: dict[tuple[Any, ...], float] = {}
    find = tree_rules.k_seq_factor

    def factor(target_probs: torch.Tensor, draft_probs: torch.Tensor, num_drafts: int) -> float:
        key = (*target_probs.tolist(), *draft_probs.tolist(), num_drafts)
        if key not in found:
            found[key] = find(target_probs, draft_probs, num_drafts)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_rules, "k_seq_factor", factor)
        yield


class ReusedCoins(RecursiveRejection):
    """The control: the coins of every step are those of the first, as where they are made once per prompt."""

    def __call__(self, proposal, target, generator):  # type: ignore[no-untyped-def]
        again = torch.Generator().manual_seed(generator.initial_seed() + 1)
        return super().__call__(proposal, target, again)


class BonusOfTheWholeLaw(RecursiveRejection):
    """The control: a bonus token ignores top-p."""

    def __call__(self, proposal, target, generator):  # type: ignore[no-untyped-def]
        decision = super().__call__(proposal, target, generator)
        if decision.num_accepted < proposal.num_drafted or not decision.path:
            return decision
        token = int(torch.multinomial(target.raw_probs[decision.path[-1] + 1], 1, generator=generator))
        return Verification(decision.num_accepted, token, nodes=decision.nodes)


@pytest.mark.parametrize(("control", "sampling"), [(ReusedCoins(), PLAIN), (BonusOfTheWholeLaw(), TOP_P)])
def test_the_test_above_finds_wrong_rules(control: VerificationRule, sampling: Sampling) -> None:
    """With the same tables, trees and number of draws."""
    target, draft = tables(sampling)
    drafter, right = METHODS["independent"](draft, sampling)
    wrong, correct = (deviation(target, drafter, rule, sampling)[0] for rule in (control, right))
    assert wrong > 6 > 4 > correct


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        pytest.param(method, kind, marks=[pytest.mark.slow] * ((number + place) % 3 > 0))
        for number, method in enumerate(["sd-tree", "sd-block", "token-recycling", "lookahead"])
        for place, kind in enumerate(["llama", "gemma2", "gemma3_text"])
    ],
)
def test_greedy_outputs_are_those_of_autoregressive_decoding(method: str, kind: str) -> None:
    pair = ModelPair(tiny.causal_lm(kind, num_hidden_layers=2), tiny.causal_lm(kind, 1, num_hidden_layers=2))
    prompt = list(range(40, 60))
    greedy = Sampling(0.0)
    expected = generate(pair.target, NoDrafter(), rejection, 20, 0, greedy, prompt).token_ids
    decoder = build_decoder(load_method(method), pair, greedy)
    made = decoder.generate(prompt, StopRules(20), 0)
    assert made.token_ids == expected
    again = decoder.generate(prompt, StopRules(20), 0)  # no state passes from prompt to prompt
    assert again.steps == made.steps


def test_a_model_that_is_its_own_drafter_accepts_whole_paths() -> None:
    """Every level of its tree holds the target's own token, so all levels are accepted; of the tokens that the drafter
    has read, only new ones are read again."""
    model, twin = (tiny.causal_lm("llama", num_hidden_layers=1) for _ in range(2))
    decoder = build_decoder(load_method("sd-tree"), ModelPair(model, twin), Sampling(0.0))
    steps = decoder.generate(list(range(40, 60)), StopRules(20), 0).steps
    assert all(step.num_accepted == step.num_drafted == 5 for step in steps[:-1])
    assert [step.num_nodes for step in steps[:-1]] == [3 + 6 + 6 + 6 + 6] * (len(steps) - 1)


def test_lookahead_fills_its_pool_with_the_targets_guesses() -> None:
    """Each column of the window and the most probable token after it is an n-gram."""
    drafter = Lookahead(models(), Sampling(), window=2, ngram=3, guesses=1)
    drafter.prefill([7, 8])
    generator = torch.Generator()
    proposals = []
    for rows in ([3, 4], [5, 6], [1, 2]):
        proposal = drafter.propose([7, 8], 2, generator)
        proposals.append(proposal)
        logits = torch.nn.functional.one_hot(torch.tensor([0] * (len(proposal.token_ids) - 1) + rows), 9).float()
        drafter.observe(proposal, Output(logits), Verification(0, 0))
    assert [proposal.token_ids for proposal in proposals] == [[8, 7], [8, 7, 3, 4], [3, 5, 3, 4, 5, 6]]
    assert list(proposals[1].parents) == [-1, 0, 0, 1]
    # [8 3] → 5, [7 4] → 6, then [3 5] → 1, [4 6] → 2
    assert drafter.propose([4], 2, generator).token_ids[:2] == [6, 2]
    assert drafter.propose([8], 2, generator).token_ids[:2] == [3, 5]
    assert drafter.propose([8], 1, generator).num_drafted == 1
    window = drafter.propose([0], 2, generator)
    assert window.num_drafted == 0 and window.num_nodes == 4 and not window.has_children(-1)


def test_the_lookahead_window_ends_at_the_context_limit() -> None:
    """A model with learned positions cannot read a token beyond them, not even a guessed one."""
    target = tiny.causal_lm("gpt2", max_position_embeddings=48, num_hidden_layers=2)
    stop, prompt, greedy = StopRules(100, context_limit=48), list(range(40, 60)), Sampling(0.0)
    plain = build_decoder(load_method("ar"), ModelPair(target, None), greedy).generate(prompt, stop, 0)
    made = build_decoder(load_method("lookahead"), ModelPair(target, None), greedy).generate(prompt, stop, 0)
    assert made.token_ids == plain.token_ids and made.finish == "context"
    sizes = [step.num_nodes or 0 for step in made.steps]
    assert max(sizes) >= 28 > sizes[-2]  # four levels of seven columns, then fewer


def test_token_recycling_proposes_what_the_target_thought_likely() -> None:
    drafter = TokenRecycling(models((9,)), Sampling(), rank_chances=[0.5, 0.3], num_nodes=4, depth=2)
    drafter.prefill([1, 2])
    generator = torch.Generator()
    assert drafter.propose([1, 2], 3, generator).token_ids == []  # nothing was read yet
    logits = torch.zeros(1, 10)
    logits[0, 5], logits[0, 9] = 2.0, 1.0
    drafter.observe(drafter.propose([1, 2], 3, generator), Output(logits), Verification(0, 5))
    tree = drafter.propose([2], 3, generator)
    assert isinstance(tree, TreeProposal) and tree.token_ids == [5, 9] and list(tree.parents) == [-1, -1]
    drafter.observe(tree, Output(logits.repeat(3, 1)), Verification(0, 5))
    again = drafter.propose([2], 3, generator)
    assert again.token_ids == [5, 9, 5, 9] and list(again.parents) == [-1, -1, 0, 0]  # nothing follows an end token
    drafter.prefill([3])
    assert drafter.propose([2], 3, generator).token_ids == []


def test_the_best_shape_has_the_most_probable_nodes() -> None:
    shape = best_shape([0.5, 0.3, 0.1], 6, 3)
    # chances: 0 .5, 1 .3, 00 .25, 01 .15, 10 .15, 000 .125
    assert sorted(zip(shape.parents, shape.ranks, strict=True)) == sorted(
        [(-1, 0), (-1, 1), (0, 0), (0, 1), (1, 0), (2, 0)]
    )


def test_a_model_drafts_the_best_shape() -> None:
    """The nodes of an irregular tree get the tokens of their ranks."""
    drafter = ModelTreeDrafter(TableModel(VOCAB, 5), Sampling(0.0), best_shape([0.5, 0.3], 5, 3), "fixed")
    drafter.prefill(PROMPT)
    tree = drafter.propose(PROMPT, 3, torch.Generator())
    assert isinstance(tree, TreeProposal) and sorted(tree.parents) == [-1, -1, 0, 0, 1]
    for node, parent in enumerate(tree.parents):
        before = [*PROMPT, *(tree.token_ids[each] for each in path_to(parent, tree.parents))]
        best = drafter.model.score(before, 1).logits[0].topk(2).indices.tolist()
        assert tree.token_ids[node] == best[tree.children(parent).index(node)]


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("drafter.widths=null", "given: none of them"),
        ("drafter.num_nodes=8", "given: widths, num_nodes"),
        ("num_draft_tokens=6", "the drafter's trees have 5 levels: give 5 or less"),
    ],
)
def test_a_tree_has_one_shape_with_enough_levels(option: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        with_overrides([], [load_method("sd-tree")], [option])


@pytest.mark.parametrize(("method", "levels"), [("token-recycling", 6), ("lookahead", 4)])
def test_no_more_draft_tokens_than_levels(method: str, levels: int) -> None:
    with pytest.raises(ConfigError, match=f"the drafter's trees have {levels} levels"):
        with_overrides([], [load_method(method)], [f"num_draft_tokens={levels + 1}"])


def test_a_rule_for_other_draws_is_refused() -> None:
    sd_tree, medusa = load_method("sd-tree"), load_method("medusa")
    with pytest.raises(
        ConfigError, match=r"drafter 'model_tree' draws them as top_and_one: set drafter.draws to fixed"
    ):
        with_overrides([], [sd_tree], ["drafter.draws=top_and_one"])
    with pytest.raises(ConfigError, match="drafter 'medusa' draws them as fixed: choose the rule exact_match"):
        build(MethodSpec, medusa.model_dump() | {"verification": {"rule": "k_seq"}})
    drawn = build(MethodSpec, sd_tree.model_dump() | {"verification": {"rule": "traversal"}})
    pair = ModelPair(tiny.causal_lm("llama"), tiny.causal_lm("llama", 1))
    assert build_decoder(drawn, pair, Sampling(1.0))
    with pytest.raises(ConfigError, match=r"method 'sd-tree': .* draws them as fixed"):
        build_decoder(drawn, pair, Sampling(0.0))


def test_a_rule_for_equal_widths_is_refused_for_other_trees() -> None:
    paths = load_method("sd-paths")
    with pytest.raises(ConfigError, match=r"rule = 'best_path_block': needs trees .* give drafter.widths in place of"):
        options = {"num_nodes": 20, "rank_chances": [0.6, 0.3], "depth": 5, "draws": "independent"}
        build(MethodSpec, paths.model_dump() | {"drafter": {"type": "model_tree", **options}})
    assert regular_shape([3, 2, 1]).has_equal_widths
    assert not TreeShape((-1, -1, 0), (0, 1, 0)).has_equal_widths and not best_shape([0.6, 0.3], 4, 3).has_equal_widths


def test_a_row_of_trees_has_their_size_and_no_acceptance_rate() -> None:
    """Two steps: trees of 6 and 4 tokens on 3 and 2 levels, of which 2 and 0 are accepted."""
    own = generation([[3, 3, 2, 3], [2, 1, 0, 1]], tree_nodes=[6, 4])
    found = summarize(
        [compared(0, autoregressive(5), own)], "m", num_draft_tokens=3, verification={"rule": "exact_match"}
    )
    values = {name: metric.value for name, metric in found.items()}
    assert values["acceptance_rate"] is values["acceptance_rate_pooled"] is values["acceptance_rate_expected"] is None
    assert values["mean_acceptance_length"] == 2 and values["accepted_length"] == 1
    assert values["draft_efficiency"] == pytest.approx(0.2)
    assert (values["tree_nodes"], values["tree_depth"]) == (5, 2.5)


def test_trees_leave_the_engine_to_the_device() -> None:
    assert {
        engine_for("auto", [load_method("sd"), load_method(name)], "embedded:target")
        for name in ("sd-tree", "sd-block")
    } == {"auto"}
