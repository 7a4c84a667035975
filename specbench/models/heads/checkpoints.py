"""Checkpoints of draft heads in their published layouts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import LlamaConfig

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.checkpoints import identified, one_line
from specbench.models.heads.eagle import EagleHead, EagleLayout
from specbench.models.heads.medusa import MedusaHeads
from specbench.models.loading import is_local, model_source

Tensors = dict[str, torch.Tensor]
REMEDY = "restore it from the checkpoint"


@dataclass(frozen=True)
class HeadCheckpoint:
    """The configuration and the tensors of a folder. `revision` is its commit or fingerprint."""

    name: str
    revision: str | None
    config: Mapping[str, Any]
    tensors: Tensors

    @property
    def kind(self) -> str:
        """medusa, eagle (EAGLE-1 and EAGLE-2) or eagle3."""
        if any(key.endswith(".linear.weight") for key in self.tensors):
            return "medusa"
        return "eagle3" if "midlayer.hidden_norm.weight" in self.tensors else "eagle"

    def expect(self, kind: str) -> None:
        """Raises ConfigError for a head of another kind."""
        if self.kind != kind:
            raise ConfigError(f"drafter.path = '{self.name}': it is a head of kind {self.kind}, not {kind}")


def read_checkpoint(name: str, revision: str | None = None) -> HeadCheckpoint:
    """Returns the checkpoint of a hub id, a folder or embedded:NAME. Raises ConfigError in one line."""
    source = model_source(name)
    folder = Path(source) if is_local(source) else Path(huggingface_hub.snapshot_download(source, revision=revision))
    config = bounded.read_mapping(folder / "config.json", REMEDY, strict=False)
    return HeadCheckpoint(name, identified(source, revision), config, read_tensors(folder))


def read_tensors(folder: Path) -> Tensors:
    """Returns all tensors of the weight files in a folder, without running code from them. Raises ConfigError."""
    tensors: Tensors = {}
    paths = sorted(folder.glob("*.safetensors")) or sorted([*folder.glob("*.bin"), *folder.glob("*.pt")])
    if not paths:
        raise ConfigError(f"{folder}: has no weights (.safetensors, .bin or .pt): {REMEDY}")
    for path in paths:
        try:
            is_safe = path.suffix == ".safetensors"
            tensors |= load_file(path) if is_safe else torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, SafetensorError, RuntimeError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read: {one_line(error)}: {REMEDY}") from error
    return tensors


def assign(head: nn.Module, checkpoint: HeadCheckpoint, shared: tuple[str, ...] = ()) -> None:
    """Loads the tensors into a head. `shared` are the prefixes of parameters that are the target's.

    Raises ConfigError for missing and unknown tensors and for other shapes.
    """
    wanted = {name: value for name, value in head.state_dict().items() if not name.startswith(shared or ("\0",))}
    unknown = sorted(checkpoint.tensors.keys() - wanted)
    missing = sorted(wanted.keys() - checkpoint.tensors)
    problems = [f"unknown tensor {name}" for name in unknown] + [f"missing tensor {name}" for name in missing]
    for name in sorted(wanted.keys() & checkpoint.tensors):
        found, expected = list(checkpoint.tensors[name].shape), list(wanted[name].shape)
        if found != expected:
            problems.append(f"{name} has shape {found}, expected {expected}")
    if problems:
        raise ConfigError(f"drafter.path = '{checkpoint.name}': {'; '.join(problems[:4])}")
    head.load_state_dict(checkpoint.tensors, strict=False)


def placed(head: nn.Module, target: CausalLM) -> None:
    """Moves a head to the device and the dtype of the target, for inference."""
    head.to(device=target.device, dtype=target.model.dtype).eval().requires_grad_(False)


def load_medusa(checkpoint: HeadCheckpoint, target: CausalLM) -> MedusaHeads:
    """Returns Medusa heads for a target."""
    checkpoint.expect("medusa")
    config = target.model.config.get_text_config()
    num_heads = 1 + max(int(name.partition(".")[0]) for name in checkpoint.tensors)
    num_blocks = sum(name.startswith("0.") and name.endswith(".linear.weight") for name in checkpoint.tensors)
    vocab_size = len(checkpoint.tensors[f"0.{num_blocks}.weight"])
    heads = MedusaHeads(num_heads, num_blocks, config.hidden_size, vocab_size)
    assign(heads, checkpoint)
    placed(heads, target)
    return heads


def load_eagle(checkpoint: HeadCheckpoint, target: CausalLM) -> EagleHead:
    """Returns an EAGLE head for a target, with the target's embeddings and output layer where it has none."""
    given = target.model.config.get_text_config()
    generation = 3 if checkpoint.kind == "eagle3" else 1
    num_layers = given.num_hidden_layers
    tensors = dict(checkpoint.tensors)
    config = LlamaConfig(**{key: value for key, value in checkpoint.config.items() if key != "num_hidden_layers"})
    config.num_hidden_layers = 1
    config._attn_implementation = "sdpa"
    layout = EagleLayout(
        generation=generation,
        hidden_layers=(2, num_layers // 2, num_layers - 3) if generation == 3 else (num_layers,),
        target_width=given.hidden_size,
        draft_vocab_size=len(tensors["lm_head.weight"]) if generation == 3 else given.vocab_size,
        has_bias="fc.bias" in tensors,
    )
    embed_tokens = target.model.get_input_embeddings()
    head = EagleHead(config, layout, embed_tokens, None if generation == 3 else target.model.get_output_embeddings())
    tensors.pop("t2d", None)
    offsets = tensors.pop("d2t", None)
    tensors = {name.replace("layers.0.", "midlayer."): value for name, value in tensors.items()}
    shared = ("embed_tokens.",) if generation == 3 else ("embed_tokens.", "lm_head.")
    assign(head, HeadCheckpoint(checkpoint.name, checkpoint.revision, checkpoint.config, tensors), shared)
    placed(head, target)
    if offsets is not None and bool(offsets.any()):
        head.d2t = offsets.to(target.device)
    return head
