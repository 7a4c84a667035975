"""Trees of real (tiny, random) models: the texts that the loop, the tree mask and the cache's gather yield follow the
exact law of the target. The rules themselves are proved by enumeration in test_tree_rules.py."""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch.nn.functional import one_hot

from specbench.decoding.drafters import Drafter
from specbench.decoding.drafters.heads import EagleDrafter
from specbench.decoding.drafters.model_tree import DynamicTreeDrafter, ModelTreeDrafter
from specbench.decoding.sampling import Sampling, process
from specbench.decoding.tree_rules import RecursiveRejection
from specbench.decoding.tree_shape import regular_shape
from specbench.decoding.verification import VerificationRule, exact_match
from specbench.models import eager
from specbench.models.causal_lm import CausalLM
from specbench.models.heads.eagle import EagleModel
from specbench.models.kv_cache import PreallocatedLayer, tree_inputs
from tests.support import tiny
from tests.support.heads import new_head
from tests.support.tree_drafters import generate

VOCAB, LENGTH, NUM_TEXTS, PROMPT = 8, 40, 5, [1, 2, 0, 3, 3, 1]
PLAIN, TOP_P = Sampling(1.0), Sampling(1.0, None, 0.8)
Make = Callable[[CausalLM, Sampling], tuple[Drafter, VerificationRule]]


def target() -> CausalLM:
    """A model whose attention is so strong that texts of a wrong mask or gather differ in a few hundred tokens."""
    model = tiny.causal_lm("llama", vocab_size=VOCAB, num_hidden_layers=6)
    for layer in model.model.model.layers:
        for projection in layer.self_attn.children():
            projection.weight.data *= 2
    return model


def model_tree(model: CausalLM, sampling: Sampling) -> tuple[Drafter, VerificationRule]:
    draft = tiny.causal_lm("llama", 1, vocab_size=VOCAB, num_hidden_layers=1)
    return ModelTreeDrafter(draft, sampling, regular_shape([4, 3]), "without_replacement"), RecursiveRejection()


def eagle(make: Callable[[EagleModel, Sampling], Drafter], rule: VerificationRule) -> Make:
    def made(model: CausalLM, sampling: Sampling) -> tuple[Drafter, VerificationRule]:
        head = EagleModel(new_head("eagle3", model).model, VOCAB, frozenset())
        return EagleDrafter(head, make(head, sampling)), rule

    return made


METHODS: dict[str, Make] = {
    "sd-tree": model_tree,
    "growing EAGLE-3": eagle(lambda head, _: DynamicTreeDrafter(head, 16, 4), exact_match),
    "static EAGLE-3": eagle(
        lambda head, sampling: ModelTreeDrafter(head, sampling, regular_shape([4, 3]), "without_replacement"),
        RecursiveRejection(),
    ),
}


def p_value(name: str, sampling: Sampling) -> float:
    """Returns the p-value of three sums over texts of 40 tokens: how often the target's most probable and its second
    token were drawn, and the log probabilities of the drawn tokens.

    The distribution of each token is computed from the tokens before it, in one pass without a cache.
    """
    model = target()
    drafter, rule = METHODS[name](model, sampling)
    excess, covariance = torch.zeros(3, dtype=torch.float64), torch.zeros((3, 3), dtype=torch.float64)
    ranks: Counter[int | None] = Counter()
    for seed in range(NUM_TEXTS):
        made = generate(model, drafter, rule, LENGTH, seed, sampling, PROMPT)
        ranks.update(rank for step in made.steps for _, rank in step.siblings)
        rows = exact_rows(model, made.token_ids, sampling)
        drawn = torch.tensor(made.token_ids)[:, None]
        if not rows.gather(1, drawn).all():
            return 0.0  # a token that the target never draws
        best, second = one_hot(rows.topk(2, dim=-1).indices, VOCAB).double().unbind(1)
        values = torch.stack([best, second, rows.clamp(min=1e-4).log()], -1)  # of every token: [num_tokens, vocab, 3]
        deviations = values - (rows[..., None] * values).sum(1, keepdim=True)
        excess += deviations.gather(1, drawn[..., None].expand(-1, -1, 3)).sum((0, 1))
        covariance += torch.einsum("nv,nvi,nvj->ij", rows, deviations, deviations)
    assert min(ranks[rank] for rank in (0, 1, None)) > 5  # of the accepted siblings; None where none was
    return float(chi2.sf(excess @ torch.linalg.solve(covariance, excess), 3))


def exact_rows(model: CausalLM, token_ids: list[int], sampling: Sampling) -> torch.Tensor:
    """Returns the distributions of the tokens of a text, each given those before it: [num_tokens, vocab]."""
    with torch.inference_mode():
        logits = model.model(torch.tensor([[*PROMPT, *token_ids[:-1]]]), use_cache=False).logits[0]
    return process(logits[len(PROMPT) - 1 :], sampling).double()


FAST = [("sd-tree", PLAIN), ("growing EAGLE-3", PLAIN), ("static EAGLE-3", TOP_P)]


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (case not in FAST))
        for case in itertools.product(METHODS, (PLAIN, TOP_P))
    ],
)
def test_texts_follow_the_law_of_the_target(name: str, sampling: Sampling) -> None:
    assert p_value(name, sampling) > 1e-3


def keep_first_nodes(layer: PreallocatedLayer, start: int, places: torch.Tensor) -> None:
    """The control: keeps as many nodes as were accepted, but the first of the tree, as if it were a chain."""
    layer.truncate(start + len(places))


def causal_inputs(model: Any, windows: set[bool], num_ids: int, parents: Any, *counts: int) -> Any:
    """The control: every node reads all nodes before it."""
    positions, _ = tree_inputs(model, windows, num_ids, parents, *counts)
    _, masks = tree_inputs(model, windows, num_ids, range(-1, len(parents) - 1), *counts)
    return positions, masks


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "growing EAGLE-3")) for name in METHODS]
)
@pytest.mark.parametrize(
    ("owner", "part", "wrong"),
    [(PreallocatedLayer, "keep", keep_first_nodes), (eager, "tree_inputs", causal_inputs)],
    ids=["gather", "mask"],
)
def test_a_wrong_gather_or_mask_gives_another_law(
    owner: Any, part: str, wrong: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, part, wrong)
    assert p_value(name, PLAIN) < 1e-4
