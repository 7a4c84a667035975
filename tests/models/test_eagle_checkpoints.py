"""EAGLE heads in published layouts: their logits are those of plain loops, and what does not fit is refused."""

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.drafters import heads
from specbench.decoding.loop import StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.checkpoints import fingerprint
from specbench.models.heads.checkpoints import read_checkpoint
from specbench.models.heads.eagle import EagleHead, EagleModel
from specbench.models.heads.eagle_checkpoint import NormOutput, load_eagle
from specbench.report.captions import model_name
from specbench.specs.catalogue import load_method, with_overrides
from tests.support import tiny
from tests.support.heads import (
    DRAFT_VOCAB,
    EAGLE1,
    EAGLE3,
    HEAD_DIM,
    HEADS,
    INNER,
    KV_HEADS,
    LAYER,
    SPECFORGE,
    SPECULATORS,
    VOCAB,
    WIDTH,
    Draws,
    PlainEagle,
    Tensors,
    eagle1_tensors,
    eagle3_tensors,
    save_head,
)

NUM_LAYERS = 8
PROMPT, DRAFTED = [3, 1, 4], [2, 6]
AUX = (2, 4, 5)  # the inputs of layers that EAGLE-3 reads of a target with 8 layers
AUX_KEY = "eagle_aux_hidden_state_layer_ids"
Config = dict[str, Any]


@cache
def target() -> CausalLM:
    return tiny.causal_lm(num_hidden_layers=NUM_LAYERS)


@dataclass(frozen=True)
class Layout:
    """A published layout: the files, the plain network that they describe, and the layers whose inputs it reads (None:
    the last hidden state after the norm)."""

    config: Config
    tensors: Tensors
    plain: Callable[..., PlainEagle] = PlainEagle
    layers: tuple[int, ...] | None = AUX
    file: str = "model.safetensors"
    reading: NormOutput = "logits"


def speculators(**options: Any) -> Config:
    return {**SPECULATORS, **options}


def specforge(**options: Any) -> Config:
    """Layers are numbered by their outputs."""
    return {**SPECFORGE, "eagle_config": {"use_aux_hidden_state": True, AUX_KEY: [1, 3, 4]}, **options}


def with_norms(tensors: Tensors, name: str, *sizes: int) -> Tensors:
    draw = Draws(9)
    if name == "fc_norm":
        return {**tensors, **{f"fc_norm.{i}.weight": draw.gain(size) for i, size in enumerate(sizes)}}
    return {**tensors, f"{name}.weight": draw.gain(sizes[0])}


def with_biases(tensors: Tensors, prefix: str) -> Tensors:
    draw = Draws(8)
    sizes = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    return {**tensors, **{f"{prefix}.self_attn.{name}_proj.bias": draw(size) for name, size in sizes.items()}}


def plain(**options: Any) -> Callable[..., PlainEagle]:
    return lambda *given: PlainEagle(*given, **options)


def without(tensors: Tensors, *names: str) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


EMBEDDINGS = {"embed_tokens.weight": Draws(7)(VOCAB, WIDTH)}
OLD = plain(prefix="layers.0")
LAYER_AND_NORM = plain(prefix="layers.0", norm_before_residual=True)
OF_SPECULATORS = eagle3_tensors(prefix="layers.0")
OTHER_ROPE = {**LAYER, "rope_theta": 500000.0, "head_dim": 16}
LAYOUTS = {
    "eagle-1": Layout(EAGLE1, eagle1_tensors(), OLD, None, "pytorch_model.bin"),
    "eagle-1 without bias": Layout({**EAGLE1, "bias": False}, eagle1_tensors(bias=False), OLD, None),
    "eagle-1 without embeddings": Layout(LAYER, eagle1_tensors(embeddings=False), OLD, None),
    "eagle-1 of Qwen2": Layout(EAGLE1, with_biases(eagle1_tensors(), "layers.0"), OLD, None),
    "eagle-3": Layout(EAGLE3, eagle3_tensors(), file="pytorch_model.bin"),
    "eagle-3 with embeddings": Layout(EAGLE3, {**eagle3_tensors(), **EMBEDDINGS}),
    "eagle-3 of all tokens": Layout(
        {**EAGLE3, "draft_vocab_size": VOCAB}, without(eagle3_tensors(draft_vocab=VOCAB), "d2t", "t2d")
    ),
    "eagle-3 with empty maps": Layout(
        {**EAGLE3, "draft_vocab_size": VOCAB},
        {**eagle3_tensors(draft_vocab=VOCAB), "t2d": torch.zeros(VOCAB, dtype=torch.bool)},
    ),
    "eagle-3 that drafts the first tokens": Layout(
        EAGLE3,
        {
            **eagle3_tensors(),
            "d2t": torch.zeros(DRAFT_VOCAB, dtype=torch.int64),
            "t2d": torch.arange(VOCAB) < DRAFT_VOCAB,
        },
    ),
    "eagle-3 numbered like vLLM": Layout({**EAGLE3, AUX_KEY: [1, 3, 7]}, eagle3_tensors(), layers=(1, 3, 7)),
    "eagle-3 of another width": Layout(
        {**EAGLE3, "hidden_size": 24, "head_dim": HEAD_DIM, "target_hidden_size": WIDTH},
        {**eagle3_tensors(width=24), "embed_tokens.weight": Draws(6)(VOCAB, 24)},
    ),
    "specforge": Layout(specforge(), eagle3_tensors()),
    "specforge with four layers": Layout(
        specforge(eagle_config={AUX_KEY: [0, 2, 4, 6]}), eagle3_tensors(num_features=4), layers=(1, 3, 5, 7)
    ),
    "specforge with norm_output": Layout(specforge(norm_output=True), eagle3_tensors()),
    "specforge without norm_output": Layout(
        specforge(norm_output=False), eagle3_tensors(), plain(norm_before_head=False)
    ),
    "new specforge with norm_output": Layout(
        specforge(norm_output=True), eagle3_tensors(), plain(feeds_norm=True), reading="feedback"
    ),
    "new specforge without norm_output": Layout(specforge(norm_output=False), eagle3_tensors(), reading="feedback"),
    "new specforge of EAGLE-3.1": Layout(
        specforge(norm_output=True, fc_norm=True), with_norms(eagle3_tensors(), "fc_norm", *[WIDTH] * 3),
        plain(feeds_norm=True), reading="feedback",
    ),
    "specforge with fc_norm": Layout(specforge(fc_norm=True), with_norms(eagle3_tensors(), "fc_norm", *[WIDTH] * 3)),
    "speculators": Layout(speculators(), OF_SPECULATORS, LAYER_AND_NORM),
    "speculators without norm_before_residual": Layout(speculators(norm_before_residual=False), OF_SPECULATORS, OLD),
    "speculators with layers": Layout(
        speculators(**{AUX_KEY: [1, 2, 6]}), OF_SPECULATORS, LAYER_AND_NORM, (1, 2, 6)
    ),
    "speculators with norm_before_fc": Layout(
        speculators(norm_before_fc=True), with_norms(OF_SPECULATORS, "input_norm", 3 * WIDTH), LAYER_AND_NORM
    ),
    "speculators with fc_norm": Layout(
        speculators(fc_norm=True), with_norms(OF_SPECULATORS, "fc_norm", *[WIDTH] * 3), LAYER_AND_NORM
    ),
    "speculators with norm_output": Layout(
        speculators(norm_output=True), OF_SPECULATORS,
        plain(prefix="layers.0", norm_before_residual=True, feeds_norm=True),
    ),
    "speculators with rope and heads of its own": Layout(
        speculators(transformer_layer_config=OTHER_ROPE), eagle3_tensors(prefix="layers.0", head_dim=16),
        plain(prefix="layers.0", norm_before_residual=True, rope_theta=500000.0, head_dim=16),
    ),
    "speculators with embeddings": Layout(speculators(), {**OF_SPECULATORS, **EMBEDDINGS}, LAYER_AND_NORM),
}  # fmt: skip


def loaded(
    folder: Path, config: Config, tensors: Tensors, file: str = "model.safetensors", of: CausalLM | None = None,
    reading: NormOutput = "logits",
) -> EagleHead:  # fmt: skip
    return load_eagle(read_checkpoint(str(save_head(folder, config, tensors, file))), of or target(), reading)


def features(ids: list[int], layers: tuple[int, ...] | None) -> list[list[torch.Tensor]]:
    """What a head reads of each token: the inputs of layers, or the output of the last norm; taken by hooks."""
    network = target().model.model
    found: dict[int, torch.Tensor] = {}

    def note_input(layer: int) -> Any:
        return lambda _, given: found.__setitem__(layer, given[0][0])

    def note_output(_: Any, given: Any, made: torch.Tensor) -> None:
        found[-1] = made[0]

    hooks = [network.layers[layer].register_forward_pre_hook(note_input(layer)) for layer in layers or ()]
    hooks.append(network.norm.register_forward_hook(note_output))
    with torch.no_grad():
        network(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return [[found[layer][place] for layer in layers or (-1,)] for place in range(len(ids))]


def plain_head(layout: Layout) -> PlainEagle:
    network = target().model
    embeddings = layout.tensors.get("embed_tokens.weight", network.get_input_embeddings().weight.detach())
    lm_head = layout.tensors.get("lm_head.weight", network.get_output_embeddings().weight.detach())
    return layout.plain(layout.tensors, embeddings, lm_head)


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """The head computes in float32: differences are below 2e-5 of the largest logit."""
    largest = expected[expected.isfinite()].abs().max().item()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-5 * max(largest, 1))


ALIKE = (  # each differs in one small part from another one
    "eagle-1 without bias", "eagle-1 of Qwen2", "eagle-3 with embeddings", "eagle-3 with empty maps",
    "eagle-3 that drafts the first tokens", "specforge with four layers", "speculators with embeddings",
)  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in LAYOUTS])
def test_logits_are_those_of_plain_loops(name: str, tmp_path: Path) -> None:
    """In a chain after the prompt, in a tree, and after the target has read accepted tokens."""
    layout = LAYOUTS[name]
    head = loaded(tmp_path, layout.config, layout.tensors, layout.file, reading=layout.reading)
    model, expected = EagleModel(head, VOCAB, frozenset()), plain_head(layout)
    target().hidden_layers = head.layout.hidden_layers
    target().reset()
    model.read_target(target().score(PROMPT, 1).hidden, range(len(PROMPT)))
    ids, known = [*PROMPT, 7], features(PROMPT, layout.layers)
    for num_drafted in range(len(DRAFTED) + 1):
        text = [*ids, *DRAFTED[:num_drafted]]
        assert_same(model.score(text, 1).logits[0], expected.logits(known, text[1:]))
    output = target().score([*ids, *DRAFTED], 3)
    model.read_target(output.hidden, [0, 1])  # the target accepts one drafted token
    text = [*ids, DRAFTED[0], 8]
    known = features(text[:-1], layout.layers)
    assert_same(model.score(text, 1).logits[0], expected.logits(known, text[1:]))
    for num_read, paths in ((2, ([12],)), (4, ([12, 13], [11, 14])), (5, ([12, 13, 15],))):  # level by level
        made = model.score_tree(text, [11, 12, 13, 14, 15][:num_read], [-1, -1, 1, 0, 2][:num_read], len(paths)).logits
        for logits, path in zip(made, paths, strict=True):
            assert_same(logits, expected.logits(known, [*text[1:], *path]))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("speculators", {"norm_before_residual": False}), ("speculators with norm_output", {"feeds_norm": False}),
        ("specforge without norm_output", {"norm_before_head": True}),
        ("new specforge with norm_output", {"feeds_norm": False}),
        ("speculators with rope and heads of its own", {"rope_theta": 10000.0}),
    ],
)  # fmt: skip
def test_a_misread_switch_changes_the_logits(name: str, change: dict[str, Any]) -> None:
    """So the test above can fail."""
    right = plain_head(LAYOUTS[name])
    known, tokens = features(PROMPT, AUX), [*PROMPT[1:], 7, *DRAFTED]
    difference = replace(right, **change).logits(known, tokens) - right.logits(known, tokens)
    assert difference[~difference.isnan()].abs().max() > 1e-2


def test_the_trained_length_is_no_limit(tmp_path: Path) -> None:
    short, long = (
        loaded(tmp_path / str(size), {**EAGLE3, "max_position_embeddings": size}, eagle3_tensors())
        for size in (4, 4096)
    )
    ids = list(range(1, 40))
    found = []
    for head in (short, long):
        model = EagleModel(head, VOCAB, frozenset())
        target().hidden_layers = head.layout.hidden_layers
        target().reset()
        model.read_target(target().score(ids, 1).hidden, range(len(ids)))
        found.append(model.score([*ids, 5, 6, 7], 1).logits)
    assert torch.equal(*found)


def test_the_rope_of_a_half_precision_head_is_exact(tmp_path: Path) -> None:
    half = tiny.causal_lm(num_hidden_layers=NUM_LAYERS)
    half.model.to(torch.bfloat16)
    head = loaded(tmp_path, EAGLE3, eagle3_tensors(), of=half)
    assert head.dtype == torch.bfloat16
    assert head.rotary_emb.inv_freq.dtype == torch.float32


def test_the_output_layer_is_not_tied_to_the_embeddings(tmp_path: Path) -> None:
    config = {**EAGLE3, "draft_vocab_size": VOCAB, "tie_word_embeddings": True}
    tensors = {**without(eagle3_tensors(draft_vocab=VOCAB), "d2t", "t2d"), **EMBEDDINGS}
    head = loaded(tmp_path, config, tensors)
    assert torch.equal(head.lm_head.weight, tensors["lm_head.weight"])
    assert torch.equal(head.embed_tokens.weight, tensors["embed_tokens.weight"])


def changed(tensors: Tensors, **others: torch.Tensor) -> Tensors:
    return {**tensors, **{name.replace("__", "."): tensor for name, tensor in others.items()}}


NARROW = {**EAGLE3, "hidden_size": 24, "head_dim": HEAD_DIM}
REFUSED: dict[str, tuple[Config, Tensors, str]] = {
    "no d2t": (EAGLE3, without(eagle3_tensors(), "d2t"), "it drafts 64 of 257 tokens, and no tensor d2t says which"),
    "d2t of token ids": (
        EAGLE3, changed(eagle3_tensors(), d2t=eagle3_tensors()["t2d"].nonzero()[:, 0]),
        r"d2t holds no offsets: i \+ d2t\[i\] must be 64 different tokens below 257",
    ),
    "d2t of other tokens": (
        EAGLE3, changed(eagle3_tensors(), t2d=eagle3_tensors(seed=5)["t2d"]), "d2t and t2d name different tokens",
    ),
    "short d2t": (
        EAGLE3, changed(eagle3_tensors(), d2t=torch.zeros(9, dtype=torch.int64)), r"d2t has shape \[9\], .*\[64\]",
    ),
    "draft vocabulary": (
        {**EAGLE3, "draft_vocab_size": 32}, eagle3_tensors(), "draft_vocab_size 32, and lm_head.weight has 64 rows",
    ),
    "vocabulary": (
        {**EAGLE3, "vocab_size": 300}, eagle3_tensors(),
        "its vocabulary has 300 tokens, and that of target 'tiny-llama' has 257: it is a head of another target",
    ),
    "vocabulary of the embeddings": (
        EAGLE3, changed(eagle3_tensors(), embed_tokens__weight=Draws(1)(300, WIDTH)), "its vocabulary has 300 tokens",
    ),
    "vocabulary of speculators": (
        speculators(transformer_layer_config={**LAYER, "vocab_size": 300}), OF_SPECULATORS,
        "its vocabulary has 300 tokens",
    ),
    "features": (
        EAGLE3, eagle3_tensors(num_features=4),
        r"fc.weight reads 128 values, and 3 hidden states of target 'tiny-llama' have 3 · 32 = 96",
    ),
    "width of EAGLE-1": (
        {**LAYER, "hidden_size": 24, "head_dim": HEAD_DIM},
        {"fc.weight": torch.zeros(24, 48), "layers.0.self_attn.q_proj.weight": torch.zeros(32, 24)},
        "it reads hidden states of 24 values, and those of target 'tiny-llama' have 32",
    ),
    "no embeddings of another width": (
        NARROW, eagle3_tensors(width=24),
        r"missing tensor embed_tokens.weight \[257, 24\]; the embeddings of .* have 32",
    ),
    "layer numbers": ({**EAGLE3, AUX_KEY: [2, 4, 9]}, eagle3_tensors(), r"hidden states \[2, 4, 9\], .* has 0 to 7"),
    "the last hidden state": (
        specforge(eagle_config={AUX_KEY: [1, 3, 7]}), eagle3_tensors(), r"\[2, 4, 8\], .* 0 to 7",
    ),
    "layers that are not numbers": ({**EAGLE3, AUX_KEY: "2,4"}, eagle3_tensors(), "hidden states"),
    "two lists of layers": (
        specforge(**{AUX_KEY: [1, 3, 4]}), eagle3_tensors(), r"expected lists of the same layers",
    ),
    "layers in a mapping": (
        specforge(eagle_config={AUX_KEY: {"a": 1}}), eagle3_tensors(), "expected lists of the same layers",
    ),
    "no norm_before_residual": (
        {key: value for key, value in SPECULATORS.items() if key != "norm_before_residual"}, OF_SPECULATORS,
        "no norm_before_residual",
    ),
    "norm_before_fc": (
        speculators(norm_before_fc=True), OF_SPECULATORS,
        "has norm_before_fc true, and the file has no tensor input_norm.weight",
    ),
    "unsaid norm_before_fc": (
        speculators(), with_norms(OF_SPECULATORS, "input_norm", 3 * WIDTH),
        "has norm_before_fc false, and the file has tensor input_norm.weight",
    ),
    "fc_norm": (specforge(fc_norm=True), eagle3_tensors(), "has no tensor fc_norm.0.weight"),
    "bias": ({**EAGLE1, "bias": False}, eagle1_tensors(), "has bias false, and the file has tensor fc.bias"),
    "no bias": (EAGLE1, eagle1_tensors(bias=False), "has bias true, and the file has no tensor fc.bias"),
    "missing": (EAGLE3, without(eagle3_tensors(), "norm.weight"), r"do not fit: missing tensor norm.weight \[32\]"),
    "unknown": (
        EAGLE3, changed(eagle3_tensors(), midlayer__self_attn__q_norm__weight=torch.ones(8)),
        "unknown tensor midlayer.self_attn.q_norm.weight",
    ),
    "no output layer": (
        {**EAGLE3, "draft_vocab_size": None}, without(eagle3_tensors(), "lm_head.weight", "d2t"),
        r"missing tensor lm_head.weight \[257, 32\]",
    ),
    "output layer of EAGLE-1": (
        EAGLE1, changed(eagle1_tensors(), lm_head__weight=torch.zeros(VOCAB, WIDTH)), "unknown tensor lm_head.weight",
    ),
    "many": (
        EAGLE3, {name: tensor for name, tensor in eagle3_tensors().items() if "mlp" not in name and "norm" not in name},
        r"missing tensor .*; missing tensor .*; … \(7 problems in all\)",
    ),
    "shape": (
        {**EAGLE3, "intermediate_size": INNER + 1}, eagle3_tensors(),
        r"midlayer.mlp.down_proj.weight has shape \[32, 48\], expected \[32, 49\]",
    ),
    "integers": (
        EAGLE3, changed(eagle3_tensors(), fc__weight=torch.zeros(WIDTH, 3 * WIDTH, dtype=torch.int8)),
        "fc.weight has type int8, expected floating-point numbers",
    ),
    "EAGLE-3 that says so and is not": (
        {**EAGLE1, "architectures": ["LlamaForCausalLMEagle3"]}, eagle1_tensors(),
        "config.json says EAGLE-3, and layers.0.self_attn.q_proj.weight reads 32 values: expected 64",
    ),
    "neither EAGLE": (
        EAGLE3, changed(eagle3_tensors(), midlayer__self_attn__q_proj__weight=torch.zeros(32, 96)),
        r"q_proj.weight reads 96 values, expected 32 \(EAGLE-1, 2\) or 64 \(EAGLE-3\)",
    ),
    "two layers": (
        speculators(), {**OF_SPECULATORS, "layers.1.mlp.up_proj.weight": torch.zeros(INNER, WIDTH)},
        "it has 2 decoder layers, expected 1",
    ),
    "part of the rope": (
        {**EAGLE3, "partial_rotary_factor": 0.25}, eagle3_tensors(), "partial_rotary_factor = 0.25 is not",
    ),
    "part of the rope in its section": (
        {**EAGLE3, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        eagle3_tensors(), "partial_rotary_factor = 0.5",
    ),
    "unknown rope": ({**EAGLE3, "rope_scaling": {"rope_type": "x"}}, eagle3_tensors(), "describes no decoder layer"),
    "window": (
        specforge(use_sliding_window=True, sliding_window=256), eagle3_tensors(), "sliding_window = 256 is not",
    ),
    "text for a number": ({**EAGLE3, "hidden_size": "wide"}, eagle3_tensors(), "describes no decoder layer"),
    "implausible": ({**EAGLE3, "hidden_size": 10**9}, eagle3_tensors(), "hidden_size = 1000000000 in its config.json"),
    "other speculators": (
        speculators(speculators_model_type="independent"), OF_SPECULATORS,
        "'independent' is not supported, expected 'eagle3'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case: str, tmp_path: Path) -> None:
    config, tensors, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message) as error:
        loaded(tmp_path, config, tensors)
    assert str(error.value).startswith(f"drafter.path = '{tmp_path}': ")
    assert "\n" not in str(error.value)


def test_heads_run(tmp_path: Path, specbench: Callable[..., tuple[int, str, str]]) -> None:
    """A chain and trees: their greedy answers are AR's."""
    folder = tiny.save(tmp_path / "target", num_hidden_layers=NUM_LAYERS)
    head = save_head(tmp_path / "head", specforge(), eagle3_tensors())
    code, _, error = specbench(
        "run", "--task", "mgsm", "--subset", "en", "--method", "ar,eagle3-chain,eagle3", "--target", str(folder),
        "--limit", "1", "--data", "sample", "--set", f"drafter.path={head}", "--set", "generation.max_new_tokens=6",
        "--output", "run",
    )  # fmt: skip
    assert code == 0, error
    identity = json.loads(Path("run/run.json").read_text())
    (line,) = Path("run/records.jsonl").read_text().splitlines()
    answers = json.loads(line)["methods"]
    for name in ("eagle3-chain", "eagle3"):
        assert identity["drafters"][name] == {"name": str(head), "revision": fingerprint(str(head))}
        assert answers[name]["token_ids"] == answers["ar"]["token_ids"]
        assert sum(step[0] for step in answers[name]["steps"]) > 0


def test_heads_of_eagle_1_write_the_tokens_of_ar(tmp_path: Path) -> None:
    head = save_head(tmp_path / "head", EAGLE1, eagle1_tensors())
    specs = [load_method("ar"), load_method("eagle"), load_method("eagle2")]
    specs[1:] = with_overrides([], specs[1:], [f"drafter.path={head}"])[1]
    plain, *drafted = (
        build_decoder(spec, ModelPair(target()), Sampling(0.0)).generate(PROMPT, StopRules(6), seed=1) for spec in specs
    )
    for output in drafted:
        assert output.token_ids == plain.token_ids and sum(step.num_drafted for step in output.steps) > 0


# A target without attention and MLP, whose hidden state is the embedding of the last token, and heads that pass it on
# unchanged. The norm of the head turns its sign, so that one of the two readings of `norm_output` drafts the opposite.
FIRST, SECOND = 65, 66  # the tokens that the target writes
AXIS = torch.zeros(WIDTH).index_fill_(0, torch.tensor([0]), 1.0)


@cache
def writer(alternates: bool) -> CausalLM:
    """A target that writes FIRST for ever, or FIRST and SECOND alternately."""
    network = tiny.network("llama", num_hidden_layers=4)
    signs = torch.where(torch.arange(VOCAB) % 2 == 1, 1.0, -1.0 if alternates else 1.0)  # FIRST is odd
    with torch.no_grad():
        for layer in network.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        network.model.embed_tokens.weight.copy_(signs[:, None] * AXIS)
        network.model.norm.weight.fill_(1.0)
        network.lm_head.weight.zero_()
        network.lm_head.weight[FIRST] = -AXIS if alternates else AXIS
        network.lm_head.weight[SECOND] = AXIS if alternates else -AXIS
    return CausalLM(network, tiny.tokenizer(), f"writer-{alternates}", None)


def mirror_head(folder: Path, norm_output: bool, *, drafts: torch.Tensor) -> str:
    """A head that drafts FIRST after the state `drafts` as the output layer reads it, SECOND after the opposite."""
    tensors = without(eagle3_tensors(draft_vocab=VOCAB), "d2t", "t2d")
    tensors["fc.weight"] = torch.cat([torch.eye(WIDTH), torch.zeros(WIDTH, 2 * WIDTH)], dim=1)
    for name in ("midlayer.self_attn.o_proj.weight", "midlayer.mlp.down_proj.weight", "lm_head.weight"):
        tensors[name] = torch.zeros_like(tensors[name])
    tensors["norm.weight"] = -torch.ones(WIDTH)
    tensors["lm_head.weight"][FIRST], tensors["lm_head.weight"][SECOND] = drafts, -drafts
    config = specforge(norm_output=norm_output, draft_vocab_size=VOCAB, eagle_config={AUX_KEY: [0, 1, 2]})
    return str(save_head(folder, config, tensors))


@pytest.fixture
def one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial of both readings is on a single short answer."""
    monkeypatch.setattr(heads, "TRIAL_TEXTS", heads.TRIAL_TEXTS[:1])


@pytest.mark.usefixtures("one_text")
@pytest.mark.parametrize(
    ("method", "norm_output", "alternates", "drafts", "reading"),
    [
        ("eagle3-chain", False, False, AXIS, "logits"),  # the plain state gives FIRST, the turned one SECOND
        ("eagle3-chain", False, False, -AXIS, "feedback"),
        ("eagle3", True, False, -AXIS, "logits"),  # every draft token reads the same plain state
        ("eagle3-chain", True, True, -AXIS, "feedback"),  # the state that is fed back is turned each time
    ],
)
def test_the_acceptance_of_both_readings_decides(
    method: str, norm_output: bool, alternates: bool, drafts: torch.Tensor, reading: str, tmp_path: Path
) -> None:
    pair = ModelPair(writer(alternates))
    path = mirror_head(tmp_path / "head", norm_output, drafts=drafts)
    spec = load_method(method)
    (asked, other, chosen) = (
        with_overrides([], [spec], [f"drafter.path={path}", *sets])[1][0]
        for sets in ([], ["drafter.norm_output=logits"], ["drafter.norm_output=feedback"])
    )
    with pytest.warns(UserWarning, match=f"has two meanings: read as '{reading}'") as told:
        made = build_decoder(asked, pair, Sampling(0.0))
    (line,) = [str(each.message) for each in told]
    best, least = map(float, re.search(r"since ([\d.]+) draft tokens .* and ([\d.]+) as '.*': --set", line).groups())
    assert best > 2 and least < 1 and f"--set drafter.norm_output={reading} skips" in line
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = build_decoder(asked, pair, Sampling(1.0))  # decided once for this target
        explicit = {
            each.drafter.options["norm_output"]: build_decoder(each, pair, Sampling(0.0)) for each in (other, chosen)
        }
    for decoder in (again, explicit[reading]):
        assert decoder.drafter.model.head.layout == made.drafter.model.head.layout
        assert decoder.drafter.revision == made.drafter.revision
    wrong = explicit["feedback" if reading == "logits" else "logits"]
    assert wrong.drafter.model.head.layout != made.drafter.model.head.layout
    assert wrong.drafter.revision != made.drafter.revision, "rows and resumes of the readings are not mixed"
    revision = explicit["feedback"].drafter.revision
    assert revision == f"{fingerprint(Path(path))}, norm_output=feedback"
    assert model_name("head", revision).endswith(", norm_output=feedback)"), "rows show it"


def test_a_head_with_one_reading_is_not_tried(tmp_path: Path) -> None:
    for name, config in (("absent", specforge()), ("speculators", {**speculators(), "norm_output": True})):
        tensors = eagle3_tensors(prefix="layers.0" if name == "speculators" else "midlayer")
        path = save_head(tmp_path / name, config, tensors)
        (spec,) = with_overrides([], [load_method("eagle3-chain")], [f"drafter.path={path}"])[1]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            build_decoder(spec, ModelPair(target()), Sampling(0.0))
        (spec,) = with_overrides([], [spec], ["drafter.norm_output=logits"])[1]
        with pytest.raises(ConfigError, match=r"drafter.norm_output = 'logits': has no effect on .*: leave it out"):
            build_decoder(spec, ModelPair(target()), Sampling(0.0))
    (spec,) = with_overrides([], [load_method("eagle3")], [f"drafter.path={tmp_path / 'absent'}"])[1]
    with pytest.raises(ConfigError, match=r"drafter\.norm_output"):
        with_overrides([], [spec], ["drafter.norm_output=new"])


@pytest.mark.usefixtures("one_text")
def test_the_trial_leaves_the_target_alone(tmp_path: Path) -> None:
    made = CausalLM(writer(False).model, tiny.tokenizer(), "again", None)
    made.reset()
    made.score(PROMPT, 1)
    path = mirror_head(tmp_path, False, drafts=AXIS)
    (spec,) = with_overrides([], [load_method("eagle3-chain")], [f"drafter.path={path}"])[1]
    with pytest.warns(UserWarning, match="two meanings"):
        build_decoder(spec, ModelPair(made), Sampling(0.0))
    assert made.sequence.cached_ids == PROMPT and made.hidden_layers == ()
