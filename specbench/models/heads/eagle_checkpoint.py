"""Loads EAGLE heads in the layouts of their authors, SpecForge and speculators."""

from collections.abc import Callable
from typing import Literal, TypeVar

import torch
from torch import nn
from transformers import LlamaConfig, Qwen3Config
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specbench.core.errors import ConfigError, nearest
from specbench.models.causal_lm import CausalLM
from specbench.models.checkpoints import check_sizes, one_line
from specbench.models.heads.checkpoints import (
    EAGLE_LAYER,
    MASK_STATE,
    SPECULATORS,
    Config,
    HeadCheckpoint,
    Tensors,
    assign,
    check_vocabulary,
    check_width,
    place,
)
from specbench.models.heads.eagle import EagleHead, EagleLayout
from specbench.models.heads.parallel import ParallelEagleHead

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
CONFIG_KEYS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act",
    "rms_norm_eps", "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters",
)  # fmt: skip
# What `norm_output` in the config.json of a SpecForge head refers to. logits, until September 2026: the output layer
# reads the normalized state, and the next draft token the plain one. feedback, since SpecForge's pull request 879: the
# output layer always reads the normalized state, and with true so does the next draft token (EAGLE-3.1,
# arXiv:2605.09992).
NormOutput = Literal["logits", "feedback"]
NORM_OUTPUT = "norm_output"
NUM_PROPOSED = 5  # draft tokens that an EAGLE-3 head of speculators proposes by default
BOOLEANS = ("bias", "norm_before_fc", "fc_norm", "norm_before_residual", "norm_output", "use_sliding_window")
SWITCHES = {  # by kind of head: key → the tensor that it announces
    "eagle": {"bias": "fc.bias"},
    "eagle3": {"norm_before_fc": "input_norm.weight", "fc_norm": "fc_norm.0.weight"},
}


def load_eagle(checkpoint: HeadCheckpoint, target: CausalLM, norm_output: NormOutput = "logits") -> EagleHead:
    """Returns an EAGLE head for a target. Missing embeddings and output layers are the target's. `norm_output`: the
    meaning of this key, for heads with two `norm_readings`.

    Raises ConfigError for a head that does not fit the target, and for a configuration that contradicts the tensors.
    """
    checkpoint.check_booleans(*BOOLEANS)
    checkpoint.check_proposals()
    is_parallel = checkpoint.kind == "peagle"
    layers = {".".join(name.split(".")[:2]) for name in checkpoint.tensors if name.startswith("layers.")}
    if len(layers) > 1 and not is_parallel:
        raise checkpoint.problem(f"it has {len(layers)} decoder layers, expected 1")
    tensors = {EAGLE_LAYER.sub("midlayer.", name, count=1): tensor for name, tensor in checkpoint.tensors.items()}
    offsets, is_drafted = tensors.pop("d2t", None), tensors.pop("t2d", None)
    given = decoder_settings(checkpoint, "peagle" if is_parallel else "eagle3")
    if given.get("use_sliding_window") and given.get("sliding_window"):
        raise checkpoint.problem(f"sliding_window = {given['sliding_window']!r:.40} is not supported, expected null")
    config = decoder_config(
        checkpoint, given, LlamaConfig, LlamaRotaryEmbedding,
        attention_bias="midlayer.self_attn.o_proj.bias" in tensors, mlp_bias="midlayer.mlp.gate_proj.bias" in tensors,
    )  # fmt: skip
    # Rows that pad the target's embeddings are reached by no text. A head with d2t has an output layer of its own size.
    # P-EAGLE's mask token may be such a row of the embeddings.
    padded = {"embed_tokens.weight": not is_parallel, "lm_head.weight": offsets is None}
    for name in (name for name, is_dropped in padded.items() if is_dropped):
        if name in tensors and tensors[name].dim() and len(tensors[name]) == target.padded_vocab_size:
            tensors[name] = tensors[name][: target.vocab_size]
    own = tensors.get("embed_tokens.weight")
    sizes = [len(tensor) for tensor in (own, is_drafted) if tensor is not None]
    check_vocabulary(checkpoint, [given.get("vocab_size"), *sizes], target)
    layout = eagle_layout(checkpoint, tensors, target, norm_output)
    if layout.generation == 1:
        check_width(checkpoint, config.hidden_size, target)
    embed_tokens, lm_head = target.model.get_input_embeddings(), target.model.get_output_embeddings()
    if own is None and config.hidden_size != layout.target_width:
        raise checkpoint.problem(
            f"its tensors do not fit: missing tensor embed_tokens.weight [{target.vocab_size}, {config.hidden_size}]; "
            f"the embeddings of target '{target.name}' have {layout.target_width} values"
        )
    with torch.device("meta"):
        if own is not None:
            embed_tokens = nn.Embedding(len(own), config.hidden_size)
        if is_parallel:
            mask_token_id = mask_token(checkpoint, own)
            tensors[MASK_STATE] = tensors[MASK_STATE].reshape(1, 1, -1)  # also published as [1, n]
            head: EagleHead = ParallelEagleHead(config, layout, embed_tokens, len(layers), mask_token_id)
        else:
            head = EagleHead(config, layout, embed_tokens, lm_head if layout.generation == 1 else None)
    shared = (*(("embed_tokens.",) if own is None else ()), *(("lm_head.",) if layout.generation == 1 else ()))
    assign(head, checkpoint, tensors, shared)
    head.rotary_emb = LlamaRotaryEmbedding(config)
    place(head, target)
    if layout.generation == 3:
        head.d2t = draft_offsets(checkpoint, layout.draft_vocab_size, offsets, is_drafted, target)
    return head


MASK_KEYS = ("mask_token_id", "ptd_token_id", "pard_token")  # of speculators, and of others


def mask_token(checkpoint: HeadCheckpoint, embeddings: torch.Tensor | None) -> int:
    """Returns the mask token of a P-EAGLE head. Raises ConfigError without one, and without embeddings, which its
    training changes."""
    found = {key: checkpoint.config[key] for key in MASK_KEYS if checkpoint.config.get(key) is not None}
    value = next(iter(found.values()), None)
    if type(value) is not int or any(other != value for other in found.values()):
        raise checkpoint.problem(f"config.json has {found or 'no mask_token_id'}: expected one mask_token_id, a token")
    if embeddings is None:
        raise checkpoint.problem("its tensors do not fit: missing tensor embed_tokens.weight, which P-EAGLE trains")
    if not 0 <= value < len(embeddings):
        raise checkpoint.problem(f"mask_token_id = {value}: its embeddings have {len(embeddings)} rows")
    return value


def decoder_settings(checkpoint: HeadCheckpoint, *kinds: str) -> Config:
    """Returns the settings of the decoder layers, which speculators writes into a section; `kinds`: those of
    speculators that fit. Raises ConfigError for unsupported settings."""
    model_type = checkpoint.config.get(SPECULATORS)
    if model_type is not None and model_type not in kinds:
        expected = " or ".join(map(repr, kinds))
        raise checkpoint.problem(f"{SPECULATORS} = {model_type!r:.40} is not supported, expected {expected}")
    given = checkpoint.config if model_type is None else checkpoint.section("transformer_layer_config")
    rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
    share = given.get("partial_rotary_factor", rope.get("partial_rotary_factor") if isinstance(rope, dict) else None)
    if share not in (None, 1, 1.0):
        raise checkpoint.problem(f"partial_rotary_factor = {share!r:.40} is not supported, expected 1")
    return given


AnyConfig = TypeVar("AnyConfig", LlamaConfig, Qwen3Config)


def decoder_config(
    checkpoint: HeadCheckpoint, given: Config, kind: type[AnyConfig], rotary: Callable[[AnyConfig], object],
    **biases: bool,
) -> AnyConfig:  # fmt: skip
    """Returns the configuration of the decoder layers. Absent settings have the defaults of its class, not the target's
    values.

    Raises ConfigError for values that do not describe a layer.
    """
    settings = {key: given[key] for key in CONFIG_KEYS if given.get(key) is not None}
    try:
        config = kind(**settings, num_hidden_layers=1, **biases)  # type: ignore[arg-type]
        check_sizes(config)
        if not 0 <= config.rms_norm_eps < 1:  # also for NaN
            raise ConfigError(f"rms_norm_eps = {config.rms_norm_eps!r:.40} in its config.json: expected a small number")
        if config.hidden_act not in ACT2FN:
            choices = nearest(str(config.hidden_act), ACT2FN)
            raise ConfigError(f"hidden_act = {config.hidden_act!r:.40} in its config.json is unknown: {choices}")
        rotary(config)
    except ConfigError as error:
        raise checkpoint.problem(str(error)) from error
    except Exception as error:  # transformers checks values with many classes of errors
        raise checkpoint.problem(f"config.json describes no decoder layer: {one_line(error)}") from error
    config._attn_implementation = "sdpa"
    return config


def norm_readings(checkpoint: HeadCheckpoint) -> dict[NormOutput, tuple[bool, bool]]:
    """Returns whether the next draft token and the output layer of a head read the normalized state, by what the key
    `norm_output` is about. SpecForge changed that; in speculators it was always about the next draft token. Where the
    key is absent, all programs agree."""
    value = checkpoint.config.get(NORM_OUTPUT)
    is_of_specforge = "eagle_config" in checkpoint.config or "llamaforcausallmeagle3" in checkpoint.claims()
    if value is None or checkpoint.kind != "eagle3" or not is_of_specforge:
        return {"logits": (bool(value), True)}
    return {"logits": (False, bool(value)), "feedback": (bool(value), True)}


def eagle_layout(
    checkpoint: HeadCheckpoint, tensors: Tensors, target: CausalLM, norm_output: NormOutput
) -> EagleLayout:
    """Returns the layout of a head. Raises ConfigError if the configuration contradicts the tensors, or if the target
    lacks the hidden states that the head reads."""
    config = target.model.config.get_text_config()
    width, num_layers = config.hidden_size, config.num_hidden_layers
    has_qkv_bias = "midlayer.self_attn.q_proj.bias" in tensors
    is_first = checkpoint.kind == "eagle"
    for key, tensor in SWITCHES["eagle" if is_first else "eagle3"].items():
        value = checkpoint.config.get(key)
        if value is None and not is_first:
            value = checkpoint.section("eagle_config").get(key)
        if value is not None and bool(value) != (tensor in tensors):
            has = "has" if tensor in tensors else "has no"
            raise checkpoint.problem(f"config.json has {key} {str(value).lower()}, and the file {has} tensor {tensor}")
    if checkpoint.kind == "eagle":
        has_bias = "fc.bias" in tensors
        return EagleLayout(1, (num_layers,), width, target.vocab_size, has_bias=has_bias, has_qkv_bias=has_qkv_bias)
    if SPECULATORS in checkpoint.config and "norm_before_residual" not in checkpoint.config:
        raise checkpoint.problem(
            "config.json has no norm_before_residual, whose default differs between programs: add it"
        )
    layers = hidden_layers(checkpoint, num_layers)
    num_read = tensors["fc.weight"].shape[-1]
    if num_read != len(layers) * width:
        raise checkpoint.problem(
            f"fc.weight reads {num_read} values, and {len(layers)} hidden states of target '{target.name}' have "
            f"{len(layers)} · {width} = {len(layers) * width}: it is a head of another target"
        )
    num_drafted = len(tensors["lm_head.weight"]) if "lm_head.weight" in tensors else target.vocab_size
    size = checkpoint.config.get("draft_vocab_size")
    if size not in (None, num_drafted) and (size, num_drafted) != (target.padded_vocab_size, target.vocab_size):
        raise checkpoint.problem(f"config.json has draft_vocab_size {size}, and lm_head.weight has {num_drafted} rows")
    readings = norm_readings(checkpoint)
    feeds_normed, outputs_normed = readings.get(norm_output, readings["logits"])
    return EagleLayout(
        generation=3,
        hidden_layers=layers,
        target_width=width,
        draft_vocab_size=num_drafted,
        has_qkv_bias=has_qkv_bias,
        norm_before_residual=bool(checkpoint.config.get("norm_before_residual")),
        norm_before_fc="input_norm.weight" in tensors,
        norm_per_layer="fc_norm.0.weight" in tensors,
        norm_output=feeds_normed,
        norm_logits=outputs_normed,
    )


def hidden_layers(checkpoint: HeadCheckpoint, num_layers: int) -> tuple[int, ...]:
    """Returns the target's layers whose hidden states the head reads, numbered as in transformers' `hidden_states`.

    EAGLE's authors, vLLM and speculators number the inputs of layers, as transformers does. SpecForge's `eagle_config`
    numbers their outputs, so that 1 is added. Raises ConfigError for numbers that contradict each other or that the
    target does not have.
    """
    inputs = checkpoint.config.get(LAYER_IDS)
    outputs = checkpoint.section("eagle_config").get(LAYER_IDS)
    found = [inputs] if inputs else []
    try:
        found += [[layer + 1 for layer in outputs]] if outputs else []
        (layers,) = {tuple(each) for each in found} or {(2, num_layers // 2, num_layers - 3)}
        fits = all(type(layer) is int and 0 <= layer < num_layers for layer in layers)
    except (TypeError, ValueError):
        raise checkpoint.problem(
            f"config.json has {LAYER_IDS} {inputs!r:.60}, and in eagle_config {outputs!r:.60} (outputs, one less): "
            "expected lists of the same layers"
        ) from None
    if not fits:
        raise checkpoint.problem(
            f"it reads the hidden states {list(layers)!r:.80}, and the target has 0 to {num_layers - 1}: it is a head "
            "of another target"
        )
    return layers


def draft_offsets(
    checkpoint: HeadCheckpoint, size: int, offsets: torch.Tensor | None, is_drafted: torch.Tensor | None,
    target: CausalLM,
) -> torch.Tensor | None:  # fmt: skip
    """Returns the offset from each of `size` draft tokens to the target's token, [size]; None if they are equal.

    `is_drafted` [vocab_size]: whether the head drafts a token; ignored if it is false everywhere. Raises ConfigError
    for offsets that are absent or of another shape, and for those that lead to no token or to other tokens than
    `is_drafted`.
    """
    vocab_size = target.vocab_size
    if offsets is None:
        if size != vocab_size:
            raise checkpoint.problem(
                f"it drafts {size} of {vocab_size} tokens, and no tensor d2t says which: its tokens are unknown"
            )
        return None
    if list(offsets.shape) != [size] or offsets.is_floating_point():
        raise checkpoint.problem(f"d2t has shape {list(offsets.shape)}, expected [{size}] whole numbers")
    tokens = torch.arange(size) + offsets.long()
    if len(tokens.unique()) != size or not bool(((tokens >= 0) & (tokens < vocab_size)).all()):
        raise checkpoint.problem(f"d2t holds no offsets: i + d2t[i] must be {size} different tokens below {vocab_size}")
    drafted = torch.empty(0) if is_drafted is None else is_drafted.nonzero()[:, 0]
    if len(drafted) and not torch.equal(tokens.sort().values, drafted):
        raise checkpoint.problem("d2t and t2d name different tokens: i + d2t[i] must be the tokens of t2d")
    return offsets.long().to(target.device) if size != vocab_size or bool(offsets.any()) else None


def eagle_files(head: EagleHead, tensors: Tensors, target: CausalLM) -> tuple[dict[str, object], Tensors]:
    """Returns the configuration and the tensors of a head as EAGLE's and EAGLE-3's authors name them.

    One key is written twice: vLLM numbers the inputs of the layers whose hidden states the head reads, and SGLang, in
    `eagle_config`, their outputs. Heads of P-EAGLE and of EAGLE-3.1 have the layout of speculators: elsewhere
    `norm_output` has two meanings.
    """
    layout = head.layout
    config = head.config.to_diff_dict()
    config.pop("transformers_version", None)
    config |= old_rope_settings(head.config)
    if isinstance(head, ParallelEagleHead):
        config |= {
            "model_type": "llama", "num_hidden_layers": 1 + len(head.layers),
            "vocab_size": len(tensors["embed_tokens.weight"]),
        }  # fmt: skip
        return speculators_files(head, config, tensors, target)
    config |= {"model_type": "llama", "num_hidden_layers": 1, "vocab_size": target.vocab_size}
    if layout.norm_output:
        return speculators_files(head, config, tensors, target)
    if layout.generation == 1:
        config |= {"architectures": ["LlamaForCausalLM"], "bias": layout.has_bias}
        return config, {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"], "target_hidden_size": layout.target_width,
        "draft_vocab_size": layout.draft_vocab_size if head.d2t is None else len(head.d2t),
        LAYER_IDS: list(layout.hidden_layers),
        "eagle_config": {LAYER_IDS: [layer - 1 for layer in layout.hidden_layers], "use_aux_hidden_state": True},
        "norm_before_residual": layout.norm_before_residual,
        **({} if layout.norm_logits else {NORM_OUTPUT: False}),  # absent, it has one meaning in all programs
    }  # fmt: skip
    if head.d2t is not None:  # a restricted vocabulary
        tensors = {**tensors, **draft_tensors(head.d2t, target.vocab_size)}
    return config, tensors


def speculators_files(
    head: EagleHead, layer: dict[str, object], tensors: Tensors, target: CausalLM
) -> tuple[dict[str, object], Tensors]:
    """Returns the configuration and the tensors of a head of EAGLE-3.1 or P-EAGLE as speculators writes them. `layer`:
    the settings of its decoder layers."""
    layout = head.layout
    kind, architecture, num_proposed = "eagle3", "Eagle3Speculator", NUM_PROPOSED
    own: dict[str, object] = {"embed_requires_grad": False}
    if isinstance(head, ParallelEagleHead):
        kind, architecture, num_proposed = "peagle", "PEagleSpeculator", head.num_drafts
        own = {"mask_token_id": head.mask_token_id, "embed_requires_grad": True}
    config: dict[str, object] = {
        "architectures": [architecture], SPECULATORS: kind,
        "speculators_config": speculators_config(kind, num_proposed, target), "transformer_layer_config": layer,
        "draft_vocab_size": layout.draft_vocab_size if head.d2t is None else len(head.d2t),
        LAYER_IDS: list(layout.hidden_layers), "target_hidden_size": layout.target_width,
        "norm_before_residual": layout.norm_before_residual, "norm_before_fc": layout.norm_before_fc,
        "fc_norm": layout.norm_per_layer, NORM_OUTPUT: layout.norm_output, **own,
    }  # fmt: skip
    tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    return config, tensors | ({} if head.d2t is None else draft_tensors(head.d2t, target.vocab_size))


def speculators_config(kind: str, num_draft_tokens: int, target: CausalLM) -> dict[str, object]:
    """Returns the section of speculators' configuration that names the target and how tokens are proposed."""
    proposals = {
        "proposal_type": "greedy", "speculative_tokens": num_draft_tokens, "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }  # fmt: skip
    return {
        "algorithm": kind,
        "proposal_methods": [proposals],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": target.name, "architectures": target.model.config.architectures or []},
    }


def draft_tensors(d2t: torch.Tensor, vocab_size: int) -> Tensors:
    """Returns the tensors of a restricted draft vocabulary: d2t, and whether each of the target's tokens is in it."""
    offsets = d2t.cpu()
    is_drafted = torch.zeros(vocab_size, dtype=torch.bool)
    is_drafted[offsets + torch.arange(len(offsets))] = True
    return {"d2t": offsets, "t2d": is_drafted}


def old_rope_settings(config: LlamaConfig | Qwen3Config) -> dict[str, object]:
    """Returns the settings of the rotation for transformers before version 5, which does not know `rope_parameters`."""
    rope = dict(config.rope_parameters or {})
    settings: dict[str, object] = {"rope_theta": rope.pop("rope_theta")} if "rope_theta" in rope else {}
    return settings | ({"rope_scaling": rope} if rope.get("rope_type", "default") != "default" else {})
