"""Loads heads that draft blocks, in the layouts of z-lab, DeepSpec, SpecForge and speculators."""

import re
from typing import Any, cast, get_args

import torch
from torch import nn
from torch.nn import functional
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from specbench.core.errors import nearest
from specbench.models.causal_lm import CausalLM
from specbench.models.heads.block import (
    BlockHead,
    BlockLayout,
    DominoHead,
    DominoLayout,
    DSparkHead,
    LayerMask,
    MarkovLayout,
    MarkovType,
)
from specbench.models.heads.checkpoints import (
    SPECULATORS,
    Config,
    HeadCheckpoint,
    Tensors,
    assign,
    check_vocabulary,
    check_width,
    place,
)
from specbench.models.heads.eagle_checkpoint import (
    CONFIG_KEYS,
    decoder_config,
    decoder_settings,
    draft_offsets,
    draft_tensors,
    old_rope_settings,
    speculators_config,
)

BOOLEANS = (
    "is_causal", "causal", "use_swa", "attention_sink_bias", "shift_label", "sample_from_anchor", "is_neox_style",
    "sliding_window_non_causal", "enable_confidence_head", "confidence_head_with_markov", "use_sliding_window",
)  # fmt: skip
NEUTRAL: dict[str, tuple[Any, ...]] = {  # settings of other networks → the values with which they change nothing
    "use_swa": (False,), "attention_sink_bias": (False,), "is_neox_style": (True,), "final_logit_softcapping": (),
    "input_embedding_scale": (1,), "output_multiplier": (1,), "tie_word_embeddings": (False,),
}  # fmt: skip
MOST, MOST_OF_OTHERS = {"block_size": 256}, 2**24
PADDED = ("markov_head.markov_w2.weight", "embed_proj.2.weight")  # with a row for each draft token
MARKOV = "markov_head.markov_w1.weight"
NUMBERED_LAYER = re.compile(r"layers\.(\d+)\.")


def load_block(checkpoint: HeadCheckpoint, target: CausalLM) -> BlockHead:
    """Returns a head that drafts blocks for a target. Missing embeddings and output layers are the target's.

    Raises ConfigError for a head that does not fit the target, and for a configuration that contradicts the tensors.
    """
    checkpoint.check_booleans(*BOOLEANS)
    checkpoint.check_proposals()
    kind = checkpoint.kind
    tensors = dict(checkpoint.tensors)
    offsets, is_drafted = tensors.pop("d2t", None), tensors.pop("t2d", None)
    given = decoder_settings(checkpoint, "dflash", "dspark")
    for key, values in NEUTRAL.items():
        value = given.get(key) if key in given else setting(checkpoint, key)
        if value is not None and value not in values:
            expected = " or ".join(["null", *(str(each).lower() for each in values)])
            raise checkpoint.problem(f"{key} = {str(value).lower():.40} is not supported, expected {expected}")
    config = decoder_config(
        checkpoint, given, Qwen3Config, Qwen3RotaryEmbedding, attention_bias="layers.0.self_attn.q_proj.bias" in tensors
    )
    check_width(checkpoint, config.hidden_size, target)
    own = tensors.get("embed_tokens.weight")
    sizes = [len(each) for each in (own, is_drafted) if each is not None and each.dim()]
    check_vocabulary(checkpoint, [given.get("vocab_size"), *sizes], target)
    without_padding(tensors, offsets is not None, target)
    layout = block_layout(checkpoint, given, tensors, target)
    if not 0 <= layout.mask_token_id < (num_rows := target.padded_vocab_size if own is None else len(own)):
        raise checkpoint.problem(
            f"mask_token_id = {layout.mask_token_id}: the embeddings have {num_rows} rows: it is a head of another "
            "target"
        )
    embed_tokens, lm_head = target.model.get_input_embeddings(), target.model.get_output_embeddings()
    shared = tuple(f"{name}." for name in ("embed_tokens", "lm_head") if f"{name}.weight" not in tensors)
    with torch.device("meta"):
        if own is not None:
            embed_tokens = nn.Embedding(len(own), config.hidden_size)
        if "lm_head." not in shared:
            lm_head = nn.Linear(config.hidden_size, layout.draft_vocab_size, bias=False)
        if kind == "dspark":
            head: BlockHead = DSparkHead(
                config, layout, embed_tokens, lm_head, markov_layout(checkpoint, tensors, target)
            )
        elif kind == "domino":
            head = DominoHead(config, layout, embed_tokens, lm_head, domino_layout(checkpoint))
        else:
            head = BlockHead(config, layout, embed_tokens, lm_head)
    assign(head, checkpoint, tensors, shared)
    head.rotary_emb = Qwen3RotaryEmbedding(config)
    place(head, target)
    head.d2t = draft_offsets(checkpoint, layout.draft_vocab_size, offsets, is_drafted, target)
    return head


def setting(checkpoint: HeadCheckpoint, key: str, default: Any = None) -> Any:
    """Returns a setting, which producers write at the top of config.json or into dflash_config. Raises ConfigError if
    both have it with different values."""
    places = (checkpoint.config, checkpoint.section("dflash_config"))
    found = [section[key] for section in places if section.get(key) is not None]
    if len(found) == 2 and found[0] != found[1]:
        raise checkpoint.problem(
            f"config.json has {key} {found[0]!r:.40}, and in dflash_config {found[1]!r:.40}: correct one of them"
        )
    return found[0] if found else default


def number(checkpoint: HeadCheckpoint, key: str, least: int = 0, default: int | None = None) -> int:
    """Returns a setting that is a whole number from `least` on, and not beyond what heads have. Raises ConfigError if
    it is absent or another value."""
    value = setting(checkpoint, key, default)
    most = MOST.get(key, MOST_OF_OTHERS)
    if type(value) is not int or not least <= value <= most:
        what = "no" if value is None else f"{value!r:.40} as"
        raise checkpoint.problem(f"config.json has {what} {key}: expected a whole number from {least} to {most}")
    return value


def without_padding(tensors: Tensors, has_offsets: bool, target: CausalLM) -> None:
    """Drops the rows that pad the target's vocabulary from tensors with a row for each draft token, which no text
    reaches. The embeddings keep them, because the mask token may be one of them."""
    for name in ("lm_head.weight", *PADDED):
        found = tensors.get(name)
        if not has_offsets and found is not None and found.dim() and len(found) == target.padded_vocab_size:
            tensors[name] = found[: target.vocab_size]


def block_layout(checkpoint: HeadCheckpoint, given: Config, tensors: Tensors, target: CausalLM) -> BlockLayout:
    """Returns the layout of a head. Raises ConfigError if the configuration contradicts the tensors or itself."""
    config = target.model.config.get_text_config()
    width, num_layers = config.hidden_size, config.num_hidden_layers
    numbers = {int(match[1]) for name in tensors if (match := NUMBERED_LAYER.match(name)) and len(match[1]) < 4}
    num_own = len(numbers)
    if numbers != set(range(num_own)) or given.get("num_hidden_layers", num_own) != num_own:
        raise checkpoint.problem(
            f"config.json has num_hidden_layers {given.get('num_hidden_layers')!r:.40}, and the file has the layers "
            f"{sorted(numbers)!r:.60}"
        )
    if setting(checkpoint, "num_target_layers", num_layers) != num_layers:
        raise checkpoint.problem(
            f"num_target_layers = {setting(checkpoint, 'num_target_layers')!r:.40}, and target '{target.name}' has "
            f"{num_layers} layers: it is a head of another target"
        )
    layers = context_layers(checkpoint, num_layers, num_own)
    num_read = tensors["fc.weight"].shape[-1]
    if num_read != len(layers) * width:
        raise checkpoint.problem(
            f"fc.weight reads {num_read} values, and {len(layers)} hidden states of target '{target.name}' have "
            f"{len(layers)} · {width} = {len(layers) * width}: it is a head of another target"
        )
    size = number(checkpoint, "block_size", 2)
    from_anchor = drafts_from_anchor(checkpoint)
    num_drafted = len(tensors["lm_head.weight"]) if "lm_head.weight" in tensors else target.vocab_size
    said = checkpoint.config.get("draft_vocab_size")
    if said not in (None, num_drafted) and (said, num_drafted) != (target.padded_vocab_size, target.vocab_size):
        raise checkpoint.problem(f"config.json has draft_vocab_size {said!r:.40}, and the head drafts {num_drafted}")
    return BlockLayout(
        hidden_layers=layers,
        target_width=width,
        block_size=size,
        mask_token_id=number(checkpoint, "mask_token_id"),
        from_anchor=from_anchor,
        # Domino's last row has a label in training, but its authors' drafts end a token earlier.
        num_drafts=size if from_anchor and checkpoint.kind != "domino" else size - 1,
        masks=layer_masks(checkpoint, given, num_own),
        draft_vocab_size=num_drafted,
        has_attention_bias="layers.0.self_attn.q_proj.bias" in tensors,
    )


def drafts_from_anchor(checkpoint: HeadCheckpoint) -> bool:
    """Returns whether the anchor's row drafts the next token. Programs that took one for the other lost most of the
    acceptance; config.json tells it in another way for each producer."""
    model_type = checkpoint.config.get(SPECULATORS)
    if model_type is not None:
        return bool(checkpoint.config.get("sample_from_anchor", model_type == "dspark"))
    if checkpoint.kind == "domino":
        return bool(setting(checkpoint, "shift_label", False))
    # DeepSpec's DFlash heads have the architecture of its DSpark heads, and their alignment.
    is_dspark = any("dspark" in claim for claim in checkpoint.claims())
    return is_dspark or setting(checkpoint, "projector_type") == "dspark"


def context_layers(checkpoint: HeadCheckpoint, num_layers: int, num_own: int) -> tuple[int, ...]:
    """Returns the target's layers whose hidden states the head reads, numbered as in transformers' `hidden_states`.

    speculators numbers them so. The others number the outputs of layers (−1: the embeddings), so that 1 is added; by
    default they are spread over the target. The last layer is refused: transformers normalizes its state, which
    training programs read without the norm.
    """
    if SPECULATORS in checkpoint.config:
        key, shift, found = "aux_hidden_state_layer_ids", 0, checkpoint.config.get("aux_hidden_state_layer_ids")
    else:
        key, shift, found = "target_layer_ids", 1, setting(checkpoint, "target_layer_ids")
        found = default_layer_ids(num_layers, num_own) if found is None else found
    if not isinstance(found, list) or not found or not all(type(layer) is int for layer in found):
        raise checkpoint.problem(f"config.json has {key} {found!r:.60}, expected a list of layers")
    layers = tuple(layer + shift for layer in found)
    if not all(0 <= layer < num_layers for layer in layers):
        raise checkpoint.problem(
            f"it reads the hidden states {list(layers)!r:.80}, and the target has 0 to {num_layers - 1} before its "
            "last norm: it is a head of another target"
        )
    return layers


def default_layer_ids(num_layers: int, num_own: int) -> list[int]:
    """Returns the numbers, as outputs, of the target's layers that a head of `num_own` layers reads by default."""
    if num_own == 1:
        return [num_layers // 2]
    return [round(1 + place * (num_layers - 4) / (num_own - 1)) for place in range(num_own)]


def layer_masks(checkpoint: HeadCheckpoint, given: Config, num_own: int) -> tuple[LayerMask, ...]:
    """Returns what the rows of a block see in each layer. Layers with a sliding window are causal in the block unless
    the configuration says otherwise; speculators and SpecForge count the window from other positions."""
    kinds = given.get("layer_types") or ["full_attention"] * num_own
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != num_own or not all(kind in known for kind in kinds):
        raise checkpoint.problem(
            f"config.json has layer_types {kinds!r:.80}, expected {num_own} of full_attention and sliding_attention"
        )
    is_sliding = "sliding_attention" in kinds
    window = given.get("sliding_window")
    if is_sliding and (type(window) is not int or window < 1):
        raise checkpoint.problem(
            f"config.json has sliding_window {window!r:.40}, expected a whole number of at least 1, because "
            "layer_types has sliding_attention"
        )
    if is_sliding and given.get("use_sliding_window") is False:
        raise checkpoint.problem("config.json has use_sliding_window false, and layer_types has sliding_attention")
    if SPECULATORS in checkpoint.config:
        sees_all = checkpoint.config.get("sliding_window_non_causal")
        if is_sliding and sees_all is None:
            raise checkpoint.problem(
                "config.json has no sliding_window_non_causal, whose default differs between programs: add it"
            )
        masks = {"full_attention": LayerMask(), "sliding_attention": LayerMask(not sees_all, window, from_anchor=True)}
        return tuple(masks[kind] for kind in kinds)
    names = ("is_causal", "causal")
    found = {value for name in names if (value := setting(checkpoint, name)) is not None}
    if len(found) == 2:
        raise checkpoint.problem(
            "config.json has is_causal and dflash_config.causal, which differ: correct one of them"
        )
    causal = found.pop() if found else None
    masks = {
        "full_attention": LayerMask(bool(causal)),
        "sliding_attention": LayerMask(True if causal is None else causal, window),
    }
    return tuple(masks[kind] for kind in kinds)


def markov_layout(checkpoint: HeadCheckpoint, tensors: Tensors, target: CausalLM) -> MarkovLayout:
    """Returns the sizes of DSpark's own heads, by their tensors. Raises ConfigError if the configuration says
    otherwise."""
    kind = setting(checkpoint, "markov_head_type", "vanilla")
    if kind not in get_args(MarkovType):
        raise checkpoint.problem(
            f"markov_head_type = {kind!r:.40} is unknown: {nearest(str(kind), list(get_args(MarkovType)))}"
        )
    shape = list(tensors["markov_head.markov_w1.weight"].shape)
    if len(shape) != 2:
        raise checkpoint.problem(f"markov_head.markov_w1.weight has shape {shape}, expected [tokens, rank]")
    num_tokens, rank = shape
    check_vocabulary(checkpoint, [num_tokens], target)
    if setting(checkpoint, "markov_rank", rank) != rank:
        raise checkpoint.problem(
            f"config.json has markov_rank {setting(checkpoint, 'markov_rank')!r:.40}, and markov_head.markov_w1.weight "
            f"has {rank} columns"
        )
    proj = tensors.get("confidence_head.proj.weight")
    says = setting(checkpoint, "enable_confidence_head")
    if says is not None and says != (proj is not None):
        has = "no" if proj is None else "a"
        raise checkpoint.problem(
            f"config.json has enable_confidence_head {str(says).lower()}, and the file has {has} confidence_head"
        )
    reads_token = setting(checkpoint, "confidence_head_with_markov")
    if reads_token is None:
        reads_token = proj is not None and proj.shape[-1] != len(tensors["fc.weight"])
    has_bias = "confidence_head.proj.bias" in tensors
    return MarkovLayout(kind, num_tokens, rank, proj is not None, has_bias, bool(reads_token))


def domino_layout(checkpoint: HeadCheckpoint) -> DominoLayout:
    return DominoLayout(
        number(checkpoint, "gru_hidden_dim", 1), number(checkpoint, "emb_dim", 1),
        number(checkpoint, "pure_draft_prefix_len", 0, 0),
    )  # fmt: skip


def block_files(head: BlockHead, tensors: Tensors, target: CausalLM) -> tuple[dict[str, object], Tensors]:
    """Returns the configuration and the tensors of a head in a published layout. `tensors`: its own ones, without
    embeddings and output layer.

    Heads that use the target's embeddings and output layer have the layout of SpecForge (Domino) or of z-lab. Those
    with copies have that of DeepSpec if the anchor's row drafts the next token, and else, as with a restricted
    vocabulary, that of speculators.
    """
    layout, tensors = head.layout, dict(tensors)
    num_rows = len(cast(torch.Tensor, head.embed_tokens.weight))
    given = head.config.to_dict()
    layer: dict[str, Any] = {key: given[key] for key in CONFIG_KEYS if given.get(key) is not None} | {
        **old_rope_settings(head.config), "model_type": "qwen3", "num_hidden_layers": len(head.layers),
        "vocab_size": num_rows, "attention_bias": layout.has_attention_bias, "tie_word_embeddings": False,
    }  # fmt: skip

    def with_padding(tensors: Tensors) -> Tensors:
        """Gives tensors with a row for each of the target's tokens as many rows as `vocab_size` says."""
        names = {MARKOV, *(("lm_head.weight", *PADDED) if head.d2t is None else ())} & tensors.keys()
        return tensors | {
            name: functional.pad(tensors[name], (0, 0, 0, num_rows - len(tensors[name]))) for name in names
        }

    outputs = [number - 1 for number in layout.hidden_layers]
    num_layers = target.model.config.get_text_config().num_hidden_layers
    common: dict[str, Any] = {**layer, "num_target_layers": num_layers, "block_size": layout.block_size}
    places = {"mask_token_id": layout.mask_token_id, "target_layer_ids": outputs}
    is_dspark = isinstance(head, DSparkHead)
    is_plain = isinstance(head, DominoHead) or not (is_dspark or layout.from_anchor)
    if is_plain and head.lm_head is target.model.get_output_embeddings():
        block: dict[str, Any] = dict(places)
        if isinstance(head, DominoHead):
            block |= {
                "projector_type": "domino", "emb_dim": head.domino.inner_width,
                "gru_hidden_dim": head.domino.gru_width, "pure_draft_prefix_len": head.domino.num_plain,
                "shift_label": layout.from_anchor,
            }  # fmt: skip
        return {**common, "architectures": ["DFlashDraftModel"], "dflash_config": block}, with_padding(tensors)

    dtype = tensors["fc.weight"].dtype
    with torch.no_grad():  # some targets scale their embeddings, and readers of the file do not
        embeddings = head.embed_tokens(torch.arange(num_rows, device=head.device))
    lm_head = cast(torch.Tensor, head.lm_head.weight).detach()[: layout.draft_vocab_size]
    copies = {"embed_tokens.weight": embeddings, "lm_head.weight": lm_head}
    tensors |= {name: weight.to("cpu", dtype, copy=True) for name, weight in copies.items()}
    correction: dict[str, Any] = {"markov_rank": 0, "enable_confidence_head": False}
    if isinstance(head, DSparkHead):
        correction = {
            "markov_rank": head.markov.rank, "markov_head_type": head.markov.kind,
            "enable_confidence_head": head.markov.confidence,
            "confidence_head_with_markov": head.markov.confidence_reads_token,
        }  # fmt: skip
    if layout.from_anchor and head.d2t is None:
        # DeepSpec's DFlash heads have this architecture too.
        return {**common, **correction, **places, "architectures": ["Qwen3DSparkModel"]}, with_padding(tensors)

    kind = "dspark" if is_dspark else "dflash"
    config = {
        "architectures": ["DSparkDraftModel" if is_dspark else "DFlashDraftModel"], SPECULATORS: kind,
        "speculators_config": speculators_config(kind, layout.num_drafts, target),
        "transformer_layer_config": layer, "block_size": layout.block_size, "mask_token_id": layout.mask_token_id,
        "aux_hidden_state_layer_ids": list(layout.hidden_layers), "draft_vocab_size": layout.draft_vocab_size,
        "sample_from_anchor": layout.from_anchor, **(correction if is_dspark else {}),
    }  # fmt: skip
    return config, with_padding(tensors) | ({} if head.d2t is None else draft_tensors(head.d2t, target.vocab_size))
