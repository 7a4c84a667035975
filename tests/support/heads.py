"""Folders of draft heads in published layouts, with random weights, and networks of plain loops to compare with."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from specbench.analysis.audit.report import AuditReport, MethodVerdict
from specbench.decoding.drafters import Drafter
from specbench.decoding.proposal import Proposal
from specbench.models.causal_lm import CausalLM
from specbench.specs.components import build
from specbench.training.heads import DraftHead
from specbench.training.passes import Sample
from specbench.training.spec import TrainSpec

Tensors = dict[str, torch.Tensor]
WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 32, 48, 4, 2, 8, 257  # those of tests.support.tiny
DRAFT_VOCAB = 64
LAYER: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
}
EAGLE1: dict[str, Any] = {**LAYER, "architectures": ["LlamaForCausalLM"], "bias": True}
EAGLE3: dict[str, Any] = {**LAYER, "architectures": ["LlamaForCausalLM"], "draft_vocab_size": DRAFT_VOCAB}
SPECFORGE: dict[str, Any] = {**EAGLE3, "architectures": ["LlamaForCausalLMEagle3"]}
SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.5.0",
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "org/target"}},
    "transformer_layer_config": LAYER,
    "draft_vocab_size": DRAFT_VOCAB,
    "norm_before_residual": True,
    "norm_before_fc": False,
    "target_hidden_size": None,
    "eagle_aux_hidden_state_layer_ids": None,
    "embed_requires_grad": False,
}


def save_head(folder: Path, config: Mapping[str, Any], tensors: Tensors, file: str = "model.safetensors") -> Path:
    """Writes a checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if file.endswith(".safetensors"):
        save_file(contiguous, folder / file)
    else:
        torch.save(contiguous, folder / file)
    return folder


class Draws:
    """Random tensors; gains of norms are near 1."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> torch.Tensor:
        return 0.2 * torch.randn(shape, generator=self.generator)

    def gain(self, size: int) -> torch.Tensor:
        return 1 + self(size)


def layer_tensors(draw: Draws, prefix: str, num_read: int, width: int = WIDTH, head_dim: int = HEAD_DIM) -> Tensors:
    return {
        f"{prefix}.self_attn.q_proj.weight": draw(HEADS * head_dim, num_read),
        f"{prefix}.self_attn.k_proj.weight": draw(KV_HEADS * head_dim, num_read),
        f"{prefix}.self_attn.v_proj.weight": draw(KV_HEADS * head_dim, num_read),
        f"{prefix}.self_attn.o_proj.weight": draw(width, HEADS * head_dim),
        f"{prefix}.mlp.gate_proj.weight": draw(INNER, width),
        f"{prefix}.mlp.up_proj.weight": draw(INNER, width),
        f"{prefix}.mlp.down_proj.weight": draw(width, INNER),
        f"{prefix}.post_attention_layernorm.weight": draw.gain(width),
    }


def eagle1_tensors(seed: int = 1, *, bias: bool = True, embeddings: bool = True) -> Tensors:
    """The tensors of EAGLE-1 and EAGLE-2."""
    draw = Draws(seed)
    return {
        **({"embed_tokens.weight": draw(VOCAB, WIDTH)} if embeddings else {}),
        "fc.weight": draw(WIDTH, 2 * WIDTH),
        **({"fc.bias": draw(WIDTH)} if bias else {}),
        **layer_tensors(draw, "layers.0", WIDTH),
    }


def eagle3_tensors(
    seed: int = 2, *, prefix: str = "midlayer", width: int = WIDTH, head_dim: int = HEAD_DIM, num_features: int = 3,
    draft_vocab: int = DRAFT_VOCAB,
) -> Tensors:  # fmt: skip
    """The tensors of EAGLE-3 with d2t and t2d, and without embeddings."""
    draw = Draws(seed)
    is_drafted = torch.zeros(VOCAB, dtype=torch.bool)
    is_drafted[torch.randperm(VOCAB, generator=draw.generator)[:draft_vocab]] = True
    return {
        "fc.weight": draw(width, num_features * WIDTH),
        **layer_tensors(draw, prefix, 2 * width, width, head_dim),
        f"{prefix}.hidden_norm.weight": draw.gain(width),
        f"{prefix}.input_layernorm.weight": draw.gain(width),
        "norm.weight": draw.gain(width),
        "lm_head.weight": draw(draft_vocab, width),
        "d2t": is_drafted.nonzero()[:, 0] - torch.arange(draft_vocab),
        "t2d": is_drafted,
    }


def medusa_tensors(seed: int = 3, num_heads: int = 5, num_blocks: int = 1, vocab_size: int = VOCAB) -> Tensors:
    draw = Draws(seed)
    found: Tensors = {}
    for head in range(num_heads):
        for block in range(num_blocks):
            found[f"{head}.{block}.linear.weight"] = draw(WIDTH, WIDTH)
            found[f"{head}.{block}.linear.bias"] = draw(WIDTH)
        found[f"{head}.{num_blocks}.weight"] = draw(vocab_size, WIDTH)
    return found


BLOCK: dict[str, Any] = {**LAYER, "model_type": "qwen3", "head_dim": HEAD_DIM, "num_hidden_layers": 2, "block_size": 4}
MASK = 250
DFLASH: dict[str, Any] = {  # as z-lab and SpecForge write it
    **BLOCK, "architectures": ["DFlashDraftModel"], "num_target_layers": 8,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 4]},
}  # fmt: skip
DEEPSPEC: dict[str, Any] = {
    **BLOCK, "architectures": ["Qwen3DSparkModel"], "num_target_layers": 8, "mask_token_id": MASK,
    "target_layer_ids": [1, 4], "markov_rank": 6, "markov_head_type": "vanilla", "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}  # fmt: skip
DOMINO: dict[str, Any] = {
    **DFLASH, "dflash_config": {
        **DFLASH["dflash_config"], "projector_type": "domino", "emb_dim": 7, "gru_hidden_dim": 5, "shift_label": True,
        "pure_draft_prefix_len": 1,
    },
}  # fmt: skip
SPECULATORS_DSPARK: dict[str, Any] = {
    "architectures": ["DSparkDraftModel"], "speculators_model_type": "dspark", "transformer_layer_config": BLOCK,
    "speculators_config": {"algorithm": "dspark", "proposal_methods": [{"proposal_type": "greedy"}]},
    "block_size": 4, "mask_token_id": MASK, "aux_hidden_state_layer_ids": [2, 5], "draft_vocab_size": DRAFT_VOCAB,
    "markov_rank": 6, "markov_head_type": "vanilla",
}  # fmt: skip


def block_tensors(
    seed: int = 4, *, kind: str = "dflash", markov: str = "vanilla", own: bool = False, confidence: bool = True,
    draft_vocab: int = VOCAB, width: int = WIDTH, vocab: int = VOCAB, num_layers: int = 2, spread: float = 1.0,
) -> Tensors:  # fmt: skip
    """The tensors of a head that drafts blocks. `own`: with embeddings and output layer. `spread`: the factor of what
    makes the correction."""
    draw = Draws(seed)
    found: Tensors = {
        "fc.weight": draw(width, 2 * width), "hidden_norm.weight": draw.gain(width), "norm.weight": draw.gain(width),
    }  # fmt: skip
    for number in range(num_layers):
        prefix = f"layers.{number}"
        found |= layer_tensors(draw, prefix, width, width)
        found[f"{prefix}.input_layernorm.weight"] = draw.gain(width)
        found |= {f"{prefix}.self_attn.{name}_norm.weight": draw.gain(HEAD_DIM) for name in "qk"}
    if own:
        found |= {"embed_tokens.weight": draw(vocab, width), "lm_head.weight": draw(draft_vocab, width)}
    if draft_vocab != vocab:
        is_drafted = torch.zeros(vocab, dtype=torch.bool)
        is_drafted[torch.randperm(vocab, generator=draw.generator)[:draft_vocab]] = True
        found |= {"d2t": is_drafted.nonzero()[:, 0] - torch.arange(draft_vocab), "t2d": is_drafted}
    if kind == "dspark":
        rank = 6
        found |= {
            "markov_head.markov_w1.weight": spread * draw(vocab, rank),
            "markov_head.markov_w2.weight": spread * draw(draft_vocab, rank),
        }
        if markov == "gated":
            found |= {
                "markov_head.gate_proj.weight": draw(rank, width + rank),
                "markov_head.gate_proj.bias": draw(rank),
            }
        if markov == "rnn":
            found["markov_head.joint_proj.weight"] = draw(3 * rank, 2 * rank + width)
            found["markov_head.joint_proj.bias"] = draw(3 * rank)
        if confidence:
            found["confidence_head.proj.weight"] = spread * draw(1, width + rank)
            found["confidence_head.proj.bias"] = draw(1)
    if kind == "domino":
        found |= {
            "prefix_gru.weight_ih_l0": spread * draw(15, width), "prefix_gru.weight_hh_l0": draw(15, 5),
            "embed_proj.0.weight": spread * draw(7, width + 5), "embed_proj.2.weight": spread * draw(draft_vocab, 7),
        }  # fmt: skip
    return found


@dataclass(frozen=True)
class PlainBlock:
    """A head that drafts blocks, by its papers and reference codes, in float64 and by loops over rows, without cache.

    `sees(layer, row, place)`: whether a row of the block sees a position of the text and the block.
    """

    tensors: Tensors
    embeddings: torch.Tensor
    lm_head: torch.Tensor
    sees: Callable[[int, int, int], bool] = lambda layer, row, place: True
    block_size: int = 4
    from_anchor: bool = False
    markov: str = "vanilla"
    num_plain: int = 1
    eps: float = 1e-5
    rope_theta: float = 10000.0

    def weight(self, name: str) -> torch.Tensor:
        return self.tensors[name].double()

    def norm(self, name: str, values: torch.Tensor) -> torch.Tensor:
        return values / torch.sqrt((values * values).mean() + self.eps) * self.weight(name)

    def states(self, features: Sequence[Sequence[torch.Tensor]], anchor: int) -> list[torch.Tensor]:
        """The states of the drafting rows. `features`: of each token before the anchor."""
        joined = [torch.cat([value.double() for value in each]) for each in features]
        context = [self.norm("hidden_norm.weight", self.weight("fc.weight") @ each) for each in joined]
        tokens = [anchor, *[MASK] * (self.block_size - 1)]
        rows = [self.embeddings[token].double() for token in tokens]
        for layer in range(2):
            rows = self.layer(layer, rows, context)
        made = [self.norm("norm.weight", row) for row in rows]
        return made if self.from_anchor else made[1:]

    def layer(self, number: int, rows: list[torch.Tensor], context: list[torch.Tensor]) -> list[torch.Tensor]:
        prefix = f"layers.{number}"
        read = [*context, *(self.norm(f"{prefix}.input_layernorm.weight", row) for row in rows)]
        start, made = len(context), []
        for row in range(len(rows)):
            heads = []
            seen = [place for place in range(len(read)) if self.sees(number, start + row, place)]
            for head in range(HEADS):
                query = self.rotated(self.part(prefix, "q", head, read[start + row]), start + row)
                kv = head * KV_HEADS // HEADS
                keys = [self.rotated(self.part(prefix, "k", kv, read[place]), place) for place in seen]
                chances = torch.softmax(torch.stack([query @ key / math.sqrt(HEAD_DIM) for key in keys]), dim=0)
                values = [self.part(prefix, "v", kv, read[place]) for place in seen]
                heads.append(sum(chance * value for chance, value in zip(chances, values, strict=True)))
            middle = rows[row] + self.weight(f"{prefix}.self_attn.o_proj.weight") @ torch.cat(heads)
            normed = self.norm(f"{prefix}.post_attention_layernorm.weight", middle)
            gate, up = (self.weight(f"{prefix}.mlp.{name}_proj.weight") @ normed for name in ("gate", "up"))
            made.append(middle + self.weight(f"{prefix}.mlp.down_proj.weight") @ (gate * torch.sigmoid(gate) * up))
        return made

    def part(self, prefix: str, name: str, head: int, read: torch.Tensor) -> torch.Tensor:
        rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        made = self.weight(f"{prefix}.self_attn.{name}_proj.weight")[rows] @ read
        return made if name == "v" else self.norm(f"{prefix}.self_attn.{name}_norm.weight", made)

    def rotated(self, values: torch.Tensor, position: int) -> torch.Tensor:
        half = HEAD_DIM // 2
        angles = position * self.rope_theta ** (-2 * torch.arange(half, dtype=torch.float64) / HEAD_DIM)
        first, second = values[:half], values[half:]
        return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()])

    def logits(self, features: Sequence[Sequence[torch.Tensor]], tokens: Sequence[int]) -> list[torch.Tensor]:
        """The logits of each draft token, over the target's vocabulary. `tokens`: the anchor and the draft tokens, each
        of which the next one's logits may depend on."""
        states = self.states(features, tokens[0])
        found = []
        for place, state in enumerate(states[: len(tokens)]):
            drafted = self.lm_head.double() @ state + self.correction(place, states, tokens[: place + 1])
            if "d2t" in self.tensors:
                whole = torch.full((VOCAB,), -math.inf, dtype=torch.float64)
                for number, offset in enumerate(self.tensors["d2t"].tolist()):
                    whole[number + offset] = drafted[number]
                drafted = whole
            found.append(drafted)
        return found

    def correction(self, place: int, states: list[torch.Tensor], tokens: Sequence[int]) -> torch.Tensor:
        """What is added to the logits, given anchor and draft tokens before `place`."""
        if "markov_head.markov_w1.weight" in self.tensors:
            w1, w2 = (self.weight(f"markov_head.markov_{name}.weight") for name in ("w1", "w2"))
            before = w1[tokens[-1]]
            if self.markov == "gated":
                read = torch.cat([states[place], before])
                gate = torch.sigmoid(
                    self.weight("markov_head.gate_proj.weight") @ read + self.weight("markov_head.gate_proj.bias")
                )
                return w2 @ (gate * before)
            if self.markov == "rnn":
                memory, rank = torch.zeros(w1.shape[1], dtype=torch.float64), w1.shape[1]
                for number, token in enumerate(tokens):
                    joint = self.weight("markov_head.joint_proj.weight") @ torch.cat(
                        [memory, w1[token], states[number]]
                    ) + self.weight("markov_head.joint_proj.bias")
                    gate = torch.sigmoid(joint[:rank])
                    memory = gate * memory + (1 - gate) * torch.tanh(joint[rank : 2 * rank])
                return w2 @ torch.tanh(joint[2 * rank :])
            return w2 @ before
        if "prefix_gru.weight_ih_l0" in self.tensors and place >= self.num_plain:
            inputs, hidden = self.weight("prefix_gru.weight_ih_l0"), self.weight("prefix_gru.weight_hh_l0")
            memory, size = torch.zeros(hidden.shape[1], dtype=torch.float64), hidden.shape[1]
            for token in tokens:
                x, h = inputs @ self.embeddings[token].double(), hidden @ memory
                reset, update = torch.sigmoid(x[:size] + h[:size]), torch.sigmoid((x + h)[size : 2 * size])
                new = torch.tanh(x[2 * size :] + reset * h[2 * size :])
                memory = (1 - update) * new + update * memory
            inner = self.weight("embed_proj.0.weight") @ torch.cat([states[place], memory])
            return self.weight("embed_proj.2.weight") @ (inner * torch.sigmoid(inner))
        return torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True)
class PlainEagle:
    """An EAGLE head by its papers and reference codes, in float64, without cache: every call computes all positions.

    `tensors`: as published, with the layer under `prefix`. `embeddings` [vocab, width] and `lm_head` [vocab, width] are
    those that the head uses.
    """

    tensors: Tensors
    embeddings: torch.Tensor
    lm_head: torch.Tensor
    prefix: str = "midlayer"
    head_dim: int = HEAD_DIM
    rope_theta: float = 10000.0
    eps: float = 1e-5
    norm_before_residual: bool = False
    feeds_norm: bool = False
    norm_before_head: bool = True

    def weight(self, name: str) -> torch.Tensor:
        return self.tensors[name].double()

    def norm(self, name: str, values: torch.Tensor) -> torch.Tensor:
        return values / torch.sqrt((values * values).mean() + self.eps) * self.weight(name)

    @property
    def is_eagle3(self) -> bool:
        return f"{self.prefix}.hidden_norm.weight" in self.tensors

    def logits(self, features: Sequence[Sequence[torch.Tensor]], tokens: Sequence[int]) -> torch.Tensor:
        """The logits after the last token. features: of each of the first positions, one for each of the target's
        layers; tokens: the one after each position, of which there may be more: then the head continues alone."""
        states = [self.project(each) for each in features]
        while True:
            output = self.layer(states, tokens)
            if len(states) == len(tokens):
                return self.head(output)
            states.append(self.norm("norm.weight", output) if self.feeds_norm else output)

    def project(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        values = [feature.double() for feature in features]
        if not self.is_eagle3:
            return values[0]
        if "fc_norm.0.weight" in self.tensors:
            values = [self.norm(f"fc_norm.{number}.weight", value) for number, value in enumerate(values)]
        joined = torch.cat(values)
        if "input_norm.weight" in self.tensors:
            joined = self.norm("input_norm.weight", joined)
        return self.weight("fc.weight") @ joined

    def layer(self, states: Sequence[torch.Tensor], tokens: Sequence[int]) -> torch.Tensor:
        """The output at the last state."""
        inputs, residuals = [], []
        for state, token in zip(states, tokens, strict=False):
            embedding = self.embeddings[token].double()
            if self.is_eagle3:
                normed = self.norm(f"{self.prefix}.hidden_norm.weight", state)
                inputs.append(torch.cat([self.norm(f"{self.prefix}.input_layernorm.weight", embedding), normed]))
                residuals.append(normed if self.norm_before_residual else state)
            else:
                joined = self.weight("fc.weight") @ torch.cat([embedding, state])
                joined = joined + self.weight("fc.bias") if "fc.bias" in self.tensors else joined
                inputs.append(joined)
                residuals.append(joined)
        middle = residuals[-1] + self.attention(inputs)
        read = self.norm(f"{self.prefix}.post_attention_layernorm.weight", middle)
        gate, up = (self.weight(f"{self.prefix}.mlp.{name}_proj.weight") @ read for name in ("gate", "up"))
        return middle + self.weight(f"{self.prefix}.mlp.down_proj.weight") @ (gate * torch.sigmoid(gate) * up)

    def attention(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """What the last input attends to."""
        made = []
        keys = [
            [self.rotated(self.part("k", head, read), position) for position, read in enumerate(inputs)]
            for head in range(KV_HEADS)
        ]
        for head in range(HEADS):
            query = self.rotated(self.part("q", head, inputs[-1]), len(inputs) - 1)
            kv_head = head * KV_HEADS // HEADS
            scores = [query @ key / math.sqrt(self.head_dim) for key in keys[kv_head]]
            values = [self.part("v", kv_head, read) for read in inputs]
            chances = torch.softmax(torch.stack(scores), dim=0)
            made.append(sum(chance * value for chance, value in zip(chances, values, strict=True)))
        return self.weight(f"{self.prefix}.self_attn.o_proj.weight") @ torch.cat(made)

    def part(self, name: str, head: int, read: torch.Tensor) -> torch.Tensor:
        rows = slice(head * self.head_dim, (head + 1) * self.head_dim)
        made = self.weight(f"{self.prefix}.self_attn.{name}_proj.weight")[rows] @ read
        bias = f"{self.prefix}.self_attn.{name}_proj.bias"
        return made + self.weight(bias)[rows] if bias in self.tensors else made

    def rotated(self, values: torch.Tensor, position: int) -> torch.Tensor:
        """Rotates the pairs (i, i + half) by position · theta^(−2i ÷ head_dim)."""
        half = self.head_dim // 2
        angles = position * self.rope_theta ** (-2 * torch.arange(half, dtype=torch.float64) / self.head_dim)
        first, second = values[:half], values[half:]
        return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()])

    def head(self, state: torch.Tensor) -> torch.Tensor:
        if self.is_eagle3 and self.norm_before_head:
            state = self.norm("norm.weight", state)
        drafted = self.lm_head.double() @ state
        if "d2t" not in self.tensors:
            return drafted
        found = torch.full((VOCAB,), -math.inf, dtype=torch.float64)
        for number, offset in enumerate(self.tensors["d2t"].tolist()):
            found[number + offset] = drafted[number]
        return found


def new_head(kind: str, model: CausalLM, **settings: Any) -> DraftHead:
    """A random head, whose norms and output layers are random too."""
    spec = build(TrainSpec, {"kind": kind, "data": {"text": {"en": "x.txt"}}, "output": "x", kind: settings})
    head = DraftHead.of(spec, model)
    shared = {id(parameter) for parameter in model.model.parameters()}
    torch.manual_seed(7)
    for parameter in head.model.parameters():
        if id(parameter) not in shared:
            torch.nn.init.normal_(parameter, std=0.3)
    head.choose_vocabulary(spec, [Sample("en", (1, 5, 5, 9), 1)])
    head.model.eval().requires_grad_(False)
    return head


def saved_head(kind: str, model: CausalLM, folder: Path, **settings: Any) -> str:
    folder.mkdir()
    new_head(kind, model, **settings).save(folder, torch.float32)
    return str(folder)


def block_spec(kind: str, **block: Any) -> TrainSpec:
    """Settings of a small head that drafts blocks of four rows."""
    small: dict[str, Any] = {"num_layers": 2, "block_size": 4}
    small |= {"dspark": {"markov_rank": 6}, "domino": {"gru_hidden_dim": 5, "emb_dim": 7}}.get(kind, {})
    given = {"kind": kind, "data": {"text": {"en": "x.txt"}}, "output": "x", kind: {**small, **block}}
    return build(TrainSpec, given)


def recorded_drafts(drafter: Drafter) -> list[tuple[list[int], Proposal]]:
    """Returns a list to which the drafter adds the ids and the drafts of each step that has any."""
    recorded: list[tuple[list[int], Proposal]] = []
    propose = drafter.propose

    def recording(ids: list[int], *rest: Any, **more: Any) -> Proposal:
        made = propose(ids, *rest, **more)
        if made.token_ids:
            recorded.append((list(ids), made))
        return made

    drafter.propose = recording  # type: ignore[method-assign]
    return recorded


def check_is_written_again(folder: Path, spec: TrainSpec, head: DraftHead, target: CausalLM) -> None:
    """A training that starts from a head's files writes the same again."""
    settings = spec.model_dump(mode="json") | {"drafter": str(folder)}
    further = DraftHead.of(build(TrainSpec, settings), target)
    assert further.own_parameters.keys() == head.own_parameters.keys()
    (folder / "again").mkdir()
    further.save(folder / "again", torch.float32)
    first, again = (json.loads((place / "config.json").read_text()) for place in (folder, folder / "again"))
    assert again == first
    tensors, written = (load_file(place / "model.safetensors") for place in (folder, folder / "again"))
    assert written.keys() == tensors.keys() and all(torch.equal(written[each], tensors[each]) for each in tensors)


def audited(specbench: Callable[..., tuple[int, str, str]], method: str, *words: str) -> MethodVerdict:
    """Returns the verdict on a method by 240 draws at temperature 1 on two prompts, which the control fails."""
    code, _, error = specbench(
        "audit", "--task", "mgsm", "--subset", "en", "--method", method, "--limit", "2", *words, "--draws", "240",
        "--temperature", "1", "--output", "audit.json",
    )  # fmt: skip
    assert code == 0, error
    report = AuditReport.model_validate_json(Path("audit.json").read_text(encoding="utf-8"))
    assert report.control is not None and report.control.caught
    return next(each for each in report.verdicts if each.method == method)
