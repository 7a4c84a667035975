"""Draft trees: one pass over a tree equals one pass per path, the kept path is the cached sequence, and the exact-match
rule walks a tree without changing the target's distribution."""

import random
from collections import Counter

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.core.values import depths
from specbench.decoding.bridges import BridgedDrafter
from specbench.decoding.drafters import Drafter, NoDrafter
from specbench.decoding.proposal import Proposal, TreeProposal, Verification
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.kv_cache import depths_and_ancestors
from specbench.models.scoring import Output
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from tests.support import tiny
from tests.support.toys import TableModel, joint, path_to
from tests.support.trees import CLOSE, NO_SDPA, HiddenReader, generated, random_tree

KINDS = ("llama", "qwen2", "mistral", "gemma2", "gemma3_text")  # full, sliding, and both kinds of attention


def with_attention(kind: str, attention: str) -> CausalLM:
    model = tiny.causal_lm(kind, **tiny.two_layers(kind))
    model.model.set_attn_implementation(attention)
    return model


@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        *((kind, name) for kind in KINDS for name in ("sdpa", "eager") if (kind, name) != NO_SDPA),
        *(pytest.param(kind, "flex_attention", marks=pytest.mark.slow) for kind in ("llama", "gemma3_text")),
    ],
)
def test_a_pass_over_a_tree_equals_one_pass_per_path(kind: str, attention: str) -> None:
    """After any history, with windows shorter than the sequence, and with up to three tokens before the tree that are
    not cached yet."""
    model, rng = with_attention(kind, attention), random.Random(0)
    single = tiny.causal_lm(kind, **tiny.two_layers(kind))
    ids = [rng.randrange(256) for _ in range(20)]
    for _ in range(6):
        tokens, parents = random_tree(rng, rng.randint(1, 12), 256)
        num_logits = rng.randint(1, len(tokens) + 1)
        logits = model.score_tree(ids, tokens, parents, num_logits).logits
        paths = [path_to(node, parents) for node in range(-1, len(tokens))]
        expected = [single.score(ids + [tokens[node] for node in path], 1).logits for path in paths]
        torch.testing.assert_close(logits, torch.cat(expected)[-num_logits:], **CLOSE)
        kept = rng.choice(paths)
        model.keep_path(kept)
        ids = [*ids, *(tokens[node] for node in kept), *(rng.randrange(256) for _ in range(rng.randint(1, 3)))]
        if rng.random() < 0.3:
            torch.testing.assert_close(model.score(ids, 2).logits, single.score(ids, 2).logits, **CLOSE)
            ids = [*ids[: rng.randint(12, len(ids))], rng.randrange(256)]


def test_a_tree_grows_level_by_level() -> None:
    """As a draft model reads it: only the new nodes of each level are read."""
    model, single = tiny.causal_lm("gemma3_text"), tiny.causal_lm("gemma3_text")
    ids, tokens, parents = list(range(30, 50)), [1, 2, 3, 4, 5, 6], [-1, -1, 0, 0, 1, 2]
    model.score(ids, 1)
    model.passes.clear()
    found = [model.score_tree(ids, tokens[:end], parents[:end], num).logits for end, num in ((2, 2), (5, 3), (6, 1))]
    assert [length for length, _ in model.passes.read()] == [2, 3, 1]
    for node, row in enumerate(torch.cat(found)):
        path = [tokens[each] for each in path_to(node, parents)]
        torch.testing.assert_close(row, single.score(ids + path, 1).logits[0], **CLOSE)
    model.keep_path([0, 2, 5])
    model.passes.clear()
    torch.testing.assert_close(
        model.score([*ids, 1, 3, 6, 9], 1).logits, single.score([*ids, 1, 3, 6, 9], 1).logits, **CLOSE
    )
    assert [length for length, _ in model.passes.read()] == [1]


def test_a_mask_that_shows_siblings_gives_other_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    model, single = tiny.causal_lm("llama"), tiny.causal_lm("llama")
    triangle = lambda parents: torch.ones((len(parents), len(parents)), dtype=torch.bool).tril()  # noqa: E731
    monkeypatch.setattr("specbench.models.kv_cache.ancestors", triangle)
    depths_and_ancestors.cache_clear()
    logits = model.score_tree([1, 2, 3], [4, 5], [-1, -1], 3).logits
    depths_and_ancestors.cache_clear()
    assert not torch.allclose(logits[2], single.score([1, 2, 3, 5], 1).logits[0], **CLOSE)


def test_the_hidden_states_of_a_tree_are_those_of_its_tokens() -> None:
    model, single = tiny.causal_lm("llama"), tiny.causal_lm("llama")
    model.hidden_layers = single.hidden_layers = (0, 2, 4)
    model.score([1, 2, 3], 1)
    hidden = model.score_tree([1, 2, 3, 4], [5, 6, 7], [-1, -1, 1], 4).hidden
    whole = single.score([1, 2, 3, 4, 6, 7], 1).hidden
    assert [states.shape for states in hidden] == [(4, 32)] * 3
    for states, expected in zip(hidden, whole, strict=True):
        torch.testing.assert_close(states[[0, 2, 3]], expected[3:], **CLOSE)


@pytest.mark.parametrize("kind", ["mamba2", "qwen3_5_text"])
def test_a_model_with_recurrent_layers_refuses_trees(kind: str) -> None:
    with pytest.raises(ConfigError, match="has recurrent layers, which cannot read a draft tree"):
        tiny.causal_lm(kind).check_trees()


def test_an_attention_without_masks_per_token_refuses_trees() -> None:
    model = tiny.causal_lm("llama")
    model.model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ConfigError, match="sdpa or eager or flex_attention"):
        model.check_trees()


@pytest.mark.parametrize(("tokens", "parents"), [([1, 1], [-1, -1]), ([1, 2], [1, -1]), ([1], [-2])])
def test_a_tree_with_equal_siblings_or_late_parents_is_a_defect(tokens: list[int], parents: list[int]) -> None:
    with pytest.raises(ValueError, match="cannot be a child of node"):
        TreeProposal(tokens, parents)


def test_a_chain_has_the_token_before_as_parent() -> None:
    chain, tree = Proposal([7, 8, 9]), TreeProposal([7, 8, 9], [-1, 0, 1])
    assert list(chain.parents) == list(tree.parents) == [-1, 0, 1] and depths(tree.parents) == [1, 2, 3]
    assert [chain.child(1, 9), chain.child(1, 8), chain.child(2, 9)] == [2, None, None]
    assert [tree.child(1, 9), tree.child(1, 8), tree.child(2, 9)] == [2, None, None]
    assert chain.num_drafted == tree.num_drafted == 3 and (chain.num_nodes, tree.num_nodes) == (None, 3)


class RandomTrees(Drafter):
    """Proposes trees that depend on the length of the sequence only; records what it observes."""

    def __init__(self, vocab_size: int, num_nodes: int) -> None:
        self.vocab_size, self.num_nodes = vocab_size, num_nodes
        self.observed: list[tuple[int, int]] = []

    def prefill(self, prompt_ids: list[int]) -> None:
        self.observed = []

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        tokens, parents = random_tree(random.Random(len(ids)), self.num_nodes, self.vocab_size)
        kept = [node for node in range(len(tokens)) if len(path_to(node, parents)) <= num_draft_tokens]
        place = {node: index for index, node in enumerate(kept)} | {-1: -1}
        return TreeProposal([tokens[node] for node in kept], [place[parents[node]] for node in kept])

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        self.observed.append((proposal.num_drafted, verification.num_accepted))


def test_sampled_trees_follow_the_target() -> None:
    """The law of three tokens over 1,500 generations; a target with another temperature is recognized (control)."""
    num_draws, length = 1500, 3
    target, drafter = TableModel(4, 3), RandomTrees(4, 5)
    counts = Counter(tuple(generated(target, drafter, length, seed, 1.0)) for seed in range(num_draws))
    cooler = TableModel(4, 3)
    cooler.table = cooler.table / 0.8
    distances = []
    for model in (target, cooler):
        law = joint(model, [1, 2], length)
        distances.append(
            sum((counts[tokens] - num_draws * mass) ** 2 / (num_draws * mass) for tokens, mass in law.items())
        )
    degrees = 4**length - 1
    # of 63 degrees of freedom: the mean and four standard deviations
    assert distances[0] < degrees + 4 * (2 * degrees) ** 0.5 < distances[1]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_trees_give_the_tokens_of_autoregressive_decoding(kind: str) -> None:
    model = tiny.causal_lm(kind, num_hidden_layers=2)
    own = generated(model, NoDrafter(), 24, 0, 0.0)

    class Lookahead(RandomTrees):
        """Trees of random tokens, with the right continuation of up to three tokens as one path of every second."""

        def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
            right = own[len(ids) - 2 :][: min(3, num_draft_tokens)] if len(ids) % 2 else []
            other = [token for token in (5, 6) if token not in right[:1]][:num_draft_tokens]
            return TreeProposal([*right, *other], [*range(-1, len(right) - 1), *([-1] * len(other))])

    drafter = Lookahead(256, 5)
    assert generated(model, drafter, 24, 0, 0.0) == own
    assert drafter.observed[0] == (0, 0) and any(accepted > 1 for _, accepted in drafter.observed)


def test_a_rule_for_chains_does_not_take_a_drafter_of_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    DRAFTERS.names()
    monkeypatch.setattr(DRAFTERS, "_builtin", dict(DRAFTERS._builtin))

    @DRAFTERS.register("bush", provides={"probs"}, tree_shape=lambda: 3)
    def bush(models: object, sampling: Sampling) -> RandomTrees:
        return RandomTrees(4, 5)

    asked = {"name": "bush", "version": 1, "title": "Trees", "drafter": {"type": "bush"}, "num_draft_tokens": 3}
    build(MethodSpec, {**asked, "verification": {"rule": "exact_match"}})
    with pytest.raises(ConfigError, match="verifies chains only, and drafter 'bush' proposes trees"):
        build(MethodSpec, {**asked, "verification": {"rule": "rejection"}})


def test_a_drafter_observes_every_pass_with_the_hidden_states_it_asks_for() -> None:
    model, single = tiny.causal_lm("llama"), tiny.causal_lm("llama")
    drafter = HiddenReader()
    tokens = generated(model, drafter, 6, 0, 0.0)
    assert [drafted for drafted, _, _ in drafter.seen][:2] == [0, 2]
    assert drafter.seen[0][1] == tokens[0]
    single.hidden_layers = (1, 4)
    for states, expected in zip(drafter.seen[0][2].hidden, single.score([1, 2], 1).hidden, strict=True):
        torch.testing.assert_close(states, expected, **CLOSE)
    read = single.score([1, 2, tokens[0], tokens[0], tokens[0]], 3).hidden
    for states, expected in zip(drafter.seen[1][2].hidden, read, strict=True):
        torch.testing.assert_close(states, expected, **CLOSE)
    generated(model, NoDrafter(), 3, 0, 0.0)
    assert model.hidden_layers == ()  # for drafters that read none, none are kept


def test_a_drafter_of_hidden_states_is_refused_behind_a_bridge() -> None:
    pair = ModelPair(tiny.causal_lm("llama"), tiny.causal_lm("llama", 1))
    with pytest.raises(ConfigError, match="which no vocabulary bridge translates"):
        BridgedDrafter(HiddenReader(), pair)
