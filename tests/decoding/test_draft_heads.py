"""Draft heads: what they read and cache, the trees that they draft, and that training and drafting agree."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.drafters import NoDrafter
from specbench.decoding.drafters.heads import MedusaDrafter, medusa_shape
from specbench.decoding.drafters.model_tree import DynamicTreeDrafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.proposal import Proposal, TreeProposal, Verification
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import rejection
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.heads.checkpoints import read_checkpoint
from specbench.models.heads.eagle import EagleHead, EagleModel
from specbench.models.heads.eagle_checkpoint import load_eagle
from specbench.models.meters import Clock, PassLog
from specbench.models.scoring import Output, ScoringModel
from specbench.running.request import Request, request_notes, resolve
from specbench.specs.catalogue import load_method, with_overrides
from specbench.specs.components import build
from specbench.specs.run_options import RunOptions
from specbench.training.heads import DraftHead, read_by_target, unroll
from specbench.training.passes import Batch, Sample
from specbench.training.spec import TrainSpec
from tests.support import tiny
from tests.support.heads import (
    EAGLE1,
    EAGLE3,
    WIDTH,
    eagle1_tensors,
    eagle3_tensors,
    medusa_tensors,
    new_head,
    save_head,
    saved_head,
)
from tests.support.toys import TableModel, path_to

PROMPT = list(range(40, 60))
KINDS = ("medusa", "eagle", "eagle3")


def target(num_layers: int = 4, **more: Any) -> CausalLM:
    return tiny.causal_lm("llama", num_hidden_layers=num_layers, **more)


def hidden_of(model: CausalLM, ids: list[int], layers: Sequence[int]) -> list[torch.Tensor]:
    made = model.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    return [made.hidden_states[layer][0] for layer in layers]


@torch.no_grad()
def naive_logits(head: EagleHead, hidden: Sequence[torch.Tensor], ids: list[int], drafted: list[int]) -> torch.Tensor:
    """The logits after the drafted tokens, [vocab], from passes over everything, without a cache or a tree."""
    states = head.project([layer[: len(ids) - 1] for layer in hidden])
    tokens = ids[1:]
    for token in [*drafted, None]:
        made = head(torch.tensor([tokens]), states[None], torch.arange(len(tokens))[None])[0, -1:]
        if token is None:
            return head.logits(made, 257)[0]
        states, tokens = torch.cat([states, head.next_states(made)]), [*tokens, token]
    raise AssertionError


@pytest.mark.parametrize(("kind", "settings"), [("eagle", {}), ("eagle3", {}), ("eagle3", {"draft_vocab_size": 100})])
def test_a_head_reads_the_targets_states_and_then_its_own(kind: str, settings: dict[str, Any]) -> None:
    """Chains and trees, before and after a verification that accepts two of them, agree with naive passes."""
    model = target()
    head: EagleHead = new_head(kind, model, **settings).model
    hidden = hidden_of(model, [*PROMPT, 61, 62, 63, 64], head.layout.hidden_layers)
    drafter = EagleModel(head, 257, frozenset())
    drafter.read_target([layer[:20] for layer in hidden], range(20))
    ids = [*PROMPT, 61]
    for drafted in ([], [62], [62, 70], [62, 70, 71]):
        found = drafter.score([*ids, *drafted], 1).logits[0]
        assert torch.allclose(found, naive_logits(head, hidden, ids, drafted), atol=2e-3, rtol=1e-4)
    # The target read 61 and the draft 62 70 71, and accepted 62; 64 is the next token, and 63 was not read.
    drafter.read_target([layer[[20, 21]] for layer in hidden], [0, 1])
    ids = [*PROMPT, 61, 62, 63]
    drafter.score(ids, 1)
    tree, parents = [64, 65], [-1, -1]
    level = drafter.score_tree(ids, tree, parents, 2).logits
    tree, parents = [*tree, 66, 67, 68], [*parents, 1, 0, 1]
    level = torch.cat([level, drafter.score_tree(ids, tree, parents, 3).logits])
    for node in range(5):
        path = [tree[each] for each in path_to(node, parents)]
        assert torch.allclose(level[node], naive_logits(head, hidden, ids, path), atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@torch.no_grad()
def test_training_reads_what_drafting_reads(kind: str) -> None:
    """Step s of the unrolled training gives the logits of a draft of s + 1 tokens that starts at each position."""
    model = target()
    head: EagleHead = new_head(kind, model).model
    samples = [Sample("en", tuple(PROMPT), 5), Sample("en", tuple(PROMPT[:13]), 5)]
    found = read_by_target(model, Batch(samples), head)
    steps = unroll(head, found.ids, found.hidden, 3)
    for row, sample in enumerate(samples):
        ids = list(sample.ids)
        hidden = hidden_of(model, ids, head.layout.hidden_layers)
        for start, step in product((0, 4, 8), range(3)):
            expected = naive_logits(head, hidden, ids[: start + 2], ids[start + 2 : start + 2 + step])
            assert torch.allclose(head.logits(steps[step][row, start], 257), expected, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("method", ["medusa", "medusa-typical", "eagle", "eagle2", "eagle3", "eagle3-chain"])
def test_greedy_outputs_are_those_of_autoregressive_decoding(method: str, tmp_path: Path) -> None:
    model = target()
    kind = load_method(method).drafter.options.get("head", "medusa")
    path = saved_head(kind, model, tmp_path / "head")
    _, (spec,) = with_overrides([], [load_method(method)], [f"drafter.path={path}"])
    greedy, generator = Sampling(0.0), torch.Generator()
    expected = decode(
        model, NoDrafter(), rejection, PROMPT, num_draft_tokens=0, sampling=greedy, stop=StopRules(12),
        generator=generator,
    )  # fmt: skip
    decoder = build_decoder(spec, ModelPair(model), greedy)
    made = decoder.generate(PROMPT, StopRules(12), 0)
    assert made.token_ids == expected.token_ids
    assert any(step.num_drafted for step in made.steps)
    assert decoder.generate(PROMPT, StopRules(12), 0).steps == made.steps  # no state passes from prompt to prompt


@pytest.mark.parametrize(
    ("method", "config", "tensors"),
    [
        ("eagle", EAGLE1, {**eagle1_tensors(), "embed_tokens.weight": torch.ones(300, WIDTH)}),
        ("eagle3-chain", EAGLE3, {**eagle3_tensors(), "t2d": torch.zeros(300, dtype=torch.bool)}),
        (
            "eagle3-chain", {**EAGLE3, "draft_vocab_size": 300},
            {"lm_head.weight": 9 * torch.eye(300, WIDTH).flip(0)}
            | {k: v for k, v in eagle3_tensors().items() if k not in ("d2t", "t2d", "lm_head.weight")},
        ),
        ("medusa", {"medusa_num_layers": 1}, {k: 9 * v for k, v in medusa_tensors(vocab_size=300).items()}),
    ],
)  # fmt: skip
def test_a_head_of_padded_embeddings_drafts_no_padding(
    method: str, config: dict[str, Any], tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """The target's embeddings have 300 rows, as the head says, and its tokenizer 257 tokens."""
    model = target(vocab_size=300)
    path = save_head(tmp_path / "head", {**config, "vocab_size": 300}, tensors)
    _, (spec,) = with_overrides([], [load_method(method)], [f"drafter.path={path}"])
    decoder = build_decoder(spec, ModelPair(model), Sampling(0.0))
    plain = build_decoder(load_method("ar"), ModelPair(model), Sampling(0.0)).generate(PROMPT, StopRules(12), 0)
    made = decoder.generate(PROMPT, StopRules(12), 0)
    assert made.token_ids == plain.token_ids and any(step.num_drafted for step in made.steps)


@pytest.mark.parametrize("method", ["eagle3", "eagle3-chain", "eagle"])
def test_a_head_may_pause_where_its_positions_end(method: str, tmp_path: Path) -> None:
    model = target()
    path = saved_head(load_method(method).drafter.options["head"], model, tmp_path / "head")
    config = tmp_path / "head" / "config.json"
    settings = json.loads(config.read_text())
    options = [f"drafter.path={path}", "drafter.beyond_context=pause"]
    _, (spec,) = with_overrides([], [load_method(method)], options)
    plain = build_decoder(load_method("ar"), ModelPair(model), Sampling(0.0)).generate(PROMPT, StopRules(12), 0)
    for size in (len(PROMPT) + 4, len(PROMPT)):
        config.write_text(json.dumps(settings | {"max_position_embeddings": size}))
        made = build_decoder(spec, ModelPair(model), Sampling(0.0)).generate(PROMPT, StopRules(12), 0)
        ends = [len(PROMPT) + 1 + sum(s.num_emitted for s in made.steps[:n]) for n in range(len(made.steps))]
        assert made.token_ids == plain.token_ids
        for end, step in zip(ends, made.steps[:-1], strict=False):
            assert (step.num_drafted > 0) == (end < size) and step.num_drafted <= max(0, size - end)
    _, (going_on,) = with_overrides([], [load_method(method)], options[:1])
    drafter = build_decoder(going_on, ModelPair(model), Sampling(0.0)).drafter  # type: ignore[attr-defined]
    assert (drafter.trained_length, drafter.pauses_at) == (len(PROMPT), None)
    config.write_text(json.dumps({key: settings[key] for key in settings if key != "max_position_embeddings"}))
    with pytest.raises(ConfigError, match="has no max_position_embeddings: leave"):
        build_decoder(spec, ModelPair(model), Sampling(0.0))


def candidates_by_brute_force(model: TableModel, num_nodes: int, top_k: int, depth: int) -> set[tuple[int, ...]]:
    """The best paths of EAGLE-2: all levels are expanded before any candidate is ranked."""
    found: dict[tuple[int, ...], float] = {}
    frontier: list[tuple[int, ...]] = [()]
    for _ in range(depth):
        level: dict[tuple[int, ...], float] = {}
        for path in frontier:
            logs = torch.log_softmax(model.score([1, 2, *path], 1).logits[0], -1).topk(top_k)
            for value, token in zip(logs.values.tolist(), logs.indices.tolist(), strict=True):
                level[*path, token] = found.get(path, 0.0) + value
        found |= level
        frontier = sorted(level, key=level.__getitem__, reverse=True)[:top_k]
    return set(sorted(found, key=found.__getitem__, reverse=True)[:num_nodes])


@pytest.mark.parametrize(("num_nodes", "top_k", "depth"), [(3, 2, 6), (12, 3, 4), (30, 4, 5), (4, 4, 1)])
def test_a_growing_tree_has_the_most_probable_candidates(num_nodes: int, top_k: int, depth: int) -> None:
    for seed in range(5):
        model = TableModel(6, seed)
        drafter = DynamicTreeDrafter(model, num_nodes, top_k)
        drafter.prefill([1, 2])
        tree = drafter.propose([1, 2], depth, torch.Generator())
        paths = {
            tuple(tree.token_ids[each] for each in path_to(node, tree.parents)) for node in range(len(tree.parents))
        }
        assert paths == candidates_by_brute_force(TableModel(6, seed), num_nodes, top_k, depth)


class ByLevel(ScoringModel):
    """A model whose probabilities [num_nodes, vocab] after the nodes of a level are given, level by level."""

    def __init__(self, levels: list[list[list[float]]], ends: frozenset[int] = frozenset()) -> None:
        self.levels, self.eos_token_ids, self.read = [torch.tensor(level) for level in levels], ends, [[-1]]

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        return Output(self.levels[0].log())

    def score_tree(self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int) -> Output:
        self.read.append(tree_ids[len(tree_ids) - num_logits :])
        return Output(self.levels[len(self.read) - 1].log())

    passes = PassLog(Clock(torch.device("cpu")))


def test_a_tree_stops_growing_when_no_child_can_be_among_the_best() -> None:
    """After the first level the best child has probability .4 · .5, less than the second of the level, .3."""
    model = ByLevel([[[0.4, 0.35, 0.25]], [[0.5, 0.5, 0.0], [0.9, 0.1, 0.0]]])
    tree = DynamicTreeDrafter(model, 2, 2).propose([0], 4, torch.Generator())
    assert model.read == [[-1], [0, 1]] and tree.token_ids == [0, 1] and list(tree.parents) == [-1, -1]


def test_an_end_token_has_no_children_and_impossible_tokens_are_no_candidates() -> None:
    model = ByLevel([[[0.4, 0.6, 0.0]], [[1.0, 0.0, 0.0]]], frozenset({1}))
    tree = DynamicTreeDrafter(model, 9, 2).propose([0], 2, torch.Generator())
    assert model.read == [[-1], [0]] and tree.token_ids == [1, 0, 0] and list(tree.parents) == [-1, -1, 1]


def test_medusa_drafts_by_depth_from_the_last_accepted_state(tmp_path: Path) -> None:
    path, chances = saved_head("medusa", target(), tmp_path / "head"), [[0.5, 0.3]] * 2
    drafter = MedusaDrafter(ModelPair(target()), Sampling(0.0), path=path, num_nodes=5, head_chances=chances)
    heads, states = drafter.heads, torch.randn(4, WIDTH)
    drafter.observe(Proposal(), Output(torch.empty(1, 6), (states[:2],)), Verification(0, 0))  # of a prompt
    tree = drafter.propose([], 2, torch.Generator())
    assert isinstance(tree, TreeProposal)
    best = heads(states[1]).topk(2, dim=-1).indices.tolist()
    for node, parent in enumerate(tree.parents):
        assert tree.token_ids[node] == best[len(path_to(parent, tree.parents))][tree.children(parent).index(node)]
    assert len(tree.parents) == 5
    small = TreeProposal([3, 4, 5], [-1, -1, 1])
    drafter.observe(small, Output(torch.empty(4, 6), (states,)), Verification(2, 0, nodes=(1, 2)))
    assert drafter.propose([], 1, torch.Generator()).token_ids == heads(states[3])[0].topk(2).indices.tolist()


def test_the_default_tree_of_medusa_has_63_nodes_on_4_levels() -> None:
    assert [sum(len(children) for _, children in level) for level in medusa_shape().levels] == [10, 28, 23, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_head_is_read_again_unchanged(kind: str, tmp_path: Path) -> None:
    model = target()
    path = saved_head(kind, model, tmp_path / "head")
    spec = build(TrainSpec, {"kind": kind, "data": {"text": {"en": "x"}}, "output": "x", "drafter": path})
    again, first = DraftHead.of(spec, model), new_head(kind, model)
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_medusa_heads_are_saved_as_vllm_reads_them(tmp_path: Path) -> None:
    """vLLM leaves out tensors that it does not know, and biases that the configuration does not name."""
    folder = Path(saved_head("medusa", target(), tmp_path / "head", num_heads=2, num_blocks=2))
    names = [
        f"blocks.{head}.layers.{block}.{part}" for head in (0, 1) for block in (0, 1) for part in ("weight", "bias")
    ]
    tensors = load_file(folder / "model.safetensors")
    assert sorted(tensors) == sorted([*names, "lm_heads.0.weight", "lm_heads.1.weight"])
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("medusa", ["MedusaModel"])
    assert config["medusa_fc_bias"] and (config["medusa_num_heads"], config["medusa_num_layers"]) == (2, 2)


def test_eagle3_heads_are_saved_as_vllm_and_sglang_read_them(tmp_path: Path) -> None:
    """SGLang numbers the outputs of layers, and transformers before version 5 knows no `rope_parameters`."""
    model = target(6, rope_parameters={"rope_type": "default", "rope_theta": 500_000.0})
    folder = Path(saved_head("eagle3", model, tmp_path / "head", draft_vocab_size=100))
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 500_000.0
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 3, 3]
    assert config["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [1, 2, 2], "use_aux_hidden_state": True}
    assert {"d2t", "t2d", "fc.weight", "norm.weight", "lm_head.weight"} < load_file(folder / "model.safetensors").keys()
    again = load_eagle(read_checkpoint(str(folder)), model)
    assert again.layout.hidden_layers == (2, 3, 3) and again.config.rope_parameters["rope_theta"] == 500_000.0


def test_a_head_of_another_layout_keeps_it(tmp_path: Path) -> None:
    """A published head that is trained further reads the same hidden states in the same way."""
    model, folder = target(), tmp_path / "head"
    head = new_head("eagle3", model)
    head.model.layout = replace(head.model.layout, hidden_layers=(1, 2, 3), norm_before_residual=True)
    folder.mkdir()
    head.save(folder, torch.float32)
    spec = build(TrainSpec, {"kind": "eagle3", "data": {"text": {"en": "x"}}, "output": "x", "drafter": str(folder)})
    assert DraftHead.of(spec, model).model.layout == head.model.layout


def test_a_restricted_vocabulary_is_that_of_the_training_texts(tmp_path: Path) -> None:
    model = target()
    head = new_head("eagle3", model, draft_vocab_size=3)
    assert (head.model.d2t + torch.arange(3)).tolist() == [0, 5, 9]  # 5 and 9 were learnt; 0 is the first of the others
    logits = head.model.logits(torch.zeros(1, 32), 257)[0]
    assert torch.isfinite(logits).nonzero()[:, 0].tolist() == [0, 5, 9] and math.isinf(logits[1])


@pytest.mark.parametrize(
    ("method", "options", "problem"),
    [
        ("eagle3", ["drafter.num_nodes=null"], "takes only the options top_k and num_nodes"),
        ("eagle3", ["drafter.widths=[2]"], "leave out widths"),
        ("eagle3", ["drafter.draws=independent"], "leave out draws"),
        ("eagle2", ["drafter.temperature=0.5"], "leave out temperature"),
        ("medusa", ["num_draft_tokens=5"], "the drafter's trees have 4 levels"),
        (
            "eagle2",
            ["drafter.head=eagle3"],
            "'drafter.head' cannot be changed with --set: a task or method with another value needs its own file",
        ),
    ],
)
def test_options_that_do_not_fit(method: str, options: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        with_overrides([], [load_method(method)], options)


@pytest.mark.parametrize("method", ["medusa", "eagle3"])
def test_another_target_has_no_heads_of_its_own(method: str) -> None:
    with pytest.raises(ConfigError, match=r"drafter\.path is missing: target 'tiny-llama' has no"):
        build_decoder(load_method(method), ModelPair(target()), Sampling(0.0))


@pytest.mark.parametrize(("method", "name", "head"), [
    ("medusa", "lmsys/vicuna-7b-v1.3", "FasterDecoding/medusa-vicuna-7b-v1.3"),
    ("eagle", "lmsys/vicuna-7b-v1.3", "yuhuili/EAGLE-Vicuna-7B-v1.3"),
    ("eagle2", "meta-llama/Llama-2-7b-chat-hf", "yuhuili/EAGLE-llama2-chat-7B"),
    ("eagle3", "Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.eagle3"),
])  # fmt: skip
def test_the_published_head_of_a_target_is_found_by_its_name(
    method: str, name: str, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Exception):
        pass

    def read(name: str, revision: str | None) -> None:
        raise Asked(name)

    monkeypatch.setattr("specbench.decoding.drafters.heads.read_checkpoint", read)
    model = target()
    model.name = name
    with pytest.raises(Asked, match=head):
        build_decoder(load_method(method), ModelPair(model), Sampling(0.0))


def test_a_head_of_another_kind_is_refused(tmp_path: Path) -> None:
    model = target()
    path = saved_head("eagle", model, tmp_path / "head")
    _, (spec,) = with_overrides([], [load_method("eagle3")], [f"drafter.path={path}"])
    with pytest.raises(ConfigError, match="it is a head of kind eagle, not eagle3"):
        build_decoder(spec, ModelPair(model), Sampling(0.0))


@pytest.mark.parametrize(("methods", "is_used"), [(("eagle3",), False), (("eagle3", "sd"), True)])
def test_a_draft_model_beside_a_head_is_named(methods: tuple[str, ...], is_used: bool) -> None:
    """A head is not given by --drafter: a run that does so would measure another head."""
    options = RunOptions(drafter="embedded:drafter", subsets=("en",))
    request, spec, _ = resolve(Request(("mgsm",), methods, options, "specbench run"))
    said = [line for line in request_notes(request, spec) if "--drafter embedded:drafter: has no effect" in line]
    assert len(said) == (not is_used)
