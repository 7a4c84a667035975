"""Reads checkpoints of draft heads in their authors' layouts, which docs/notes/heads.md lists, without running code
from them."""

import math
import pickle
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import huggingface_hub
import torch
from pydantic import Field
from safetensors import safe_open
from torch import nn

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.checkpoints import check_file, checkpoint_identity, explain_failure, one_line
from specbench.models.loading import hub_problem, is_local, model_source

Tensors = dict[str, torch.Tensor]
Config = Mapping[str, Any]  # a config.json, whose values are checked where they are used
PATTERNS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "*.safetensors", "pytorch_model*.bin")
REMEDY = "restore it from the checkpoint"


def weight_paths(folder: Path) -> list[Path]:
    """Returns the files that match the first possible pattern of `PATTERNS`; none if a folder has no weights."""
    return next(filter(None, (sorted(folder.glob(pattern)) for pattern in PATTERNS)), [])


def weights_of(folder: Path) -> list[Path]:
    """Returns the files of a folder's weights. Raises ConfigError if it has none."""
    if not (paths := weight_paths(folder)):
        raise ConfigError(f"the folder {folder} has no weights (none of {', '.join(PATTERNS)}): {REMEDY}")
    return paths


def stored_tensors(path: Path, wanted: Collection[str] | None = None) -> dict[str, Any]:
    """Returns the `wanted` tensors of a file by name; None: all names, from a .safetensors file without the values.
    Raises ConfigError for a file that cannot be read or that holds anything but tensors."""
    check_file(path, REMEDY)
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as opened:
                names = opened.keys()
                return dict.fromkeys(names) if wanted is None else {name: opened.get_tensor(name) for name in wanted}
        with path.open("rb") as file:
            is_zip = file.read(2) == b"PK"  # files of torch before 1.6 cannot be mapped into memory
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"{path}: refused: it holds more than tensors, and loading it could run code: give a checkpoint with "
            ".safetensors files, or save only the tensors"
        ) from error
    except Exception as error:  # torch raises many classes for broken files
        raise ConfigError(f"{path}: cannot be read: {one_line(error)}: {REMEDY}") from error
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in tensors.items()
    ):
        raise ConfigError(f"{path}: does not hold a mapping of names to tensors: {REMEDY}")
    return tensors if wanted is None else {name: tensors[name] for name in wanted}


def tensor_names(paths: Iterable[Path]) -> dict[str, Path]:
    """Returns the file of each tensor by name. Raises ConfigError for a file that cannot be read, and for a name in two
    files."""
    found: dict[str, Path] = {}
    for path in paths:
        for name in stored_tensors(path):
            if name in found:
                raise ConfigError(f"{path}: holds {name}, which {found[name].name} holds too: remove one of the files")
            found[name] = path
    return found


def read_tensors(names: dict[str, Path]) -> Tensors:
    """Returns the named tensors of files. Raises ConfigError for a file that cannot be read, and for a tensor that has
    no dimensions, is not a plain array in memory, or holds NaN or infinite values."""
    tensors: Tensors = {}
    for path in dict.fromkeys(names.values()):
        for name, tensor in stored_tensors(path, [name for name, holder in names.items() if holder == path]).items():
            problem = None
            if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_complex():
                problem = "is not a plain array of numbers"
            elif tensor.dim() == 0:
                problem = "has no dimensions"
            elif tensor.is_floating_point():
                values = tensor if tensor.element_size() > 1 else tensor.float()  # 8-bit numbers cannot be added
                if not math.isfinite(values.sum(dtype=torch.float64)):  # one number, and no copy of the tensor
                    problem = "holds NaN or infinite values"
            if problem:
                raise ConfigError(f"{path}: tensor {name:.60} {problem}: {REMEDY}")
            tensors[name] = tensor
    return tensors


Kind = Literal["medusa", "eagle", "eagle3", "peagle", "mtp", "dflash", "dspark", "domino"]
BLOCK_KINDS: dict[Kind, str] = {  # heads that draft blocks → a tensor that only they have
    "domino": "prefix_gru.weight_ih_l0", "dspark": "markov_head.markov_w1.weight",
}  # fmt: skip
CONTEXT_NORM = "hidden_norm.weight"  # of heads that draft blocks; in others the norm of this name is in a layer
OLD_PREFIXES = ("model.", "logit_head.")  # of NeMo Automodel, and of corrections in old files of SpecForge
MEDUSA_PREFIX = "medusa_head."  # prefix of the heads in a whole model, as Medusa-1.0 publishes them
MEDUSA_NAME = re.compile(
    r"\d+\.\d+\.(linear\.)?(weight|bias)|(medusa_heads\.)?(blocks\.\d+\.layers\.|lm_heads?\.|token_map)"
)
EAGLE_LAYER = re.compile(r"(midlayer|layers\.0)\.")
UNSUPPORTED_FORMATS = {
    "dflash2": "DFlash2", "lilicorr": "LiLiCorr", "mtp": "MTP",
}  # fmt: skip
MTP_LAYER = "mtp_layers.0."  # begins the tensors of a layer for multi-token prediction in files of speculators
MASK_STATE = "mask_hidden"  # a tensor that only P-EAGLE has
SPECULATORS = "speculators_model_type"
MAX_PROBLEMS = 4  # problems that one message lists


HeadRevision = Annotated[
    str | None, Field(min_length=1, description="Revision of the hub id: branch, tag or commit.")
]  # an option of drafters


@dataclass(frozen=True)
class HeadCheckpoint:
    """The configuration and the tensors of a head. `revision` is its commit or fingerprint."""

    name: str
    revision: str | None
    config: Config
    tensors: Tensors

    @property
    def kind(self) -> Kind:
        """medusa, eagle (EAGLE-1 and EAGLE-2), eagle3, peagle, mtp, or a head that drafts blocks: dflash, dspark or
        domino. Raises ConfigError if the tensors fit none of them, or if the configuration contradicts the tensors."""
        if any(name.startswith(MTP_LAYER) for name in self.tensors):
            return "mtp"
        if "fc.weight" not in self.tensors:
            return "medusa"
        if CONTEXT_NORM in self.tensors:
            return self._block_kind()
        width = len(self.tensors["fc.weight"])
        query = next(
            (name for name in self.tensors if EAGLE_LAYER.match(name) and name.endswith("q_proj.weight")), None
        )
        if query is None:
            raise self.problem("its tensors do not fit: missing tensor midlayer.self_attn.q_proj.weight")
        num_read = self.tensors[query].shape[-1]
        if num_read not in (width, 2 * width):
            raise self.problem(
                f"{query} reads {num_read} values, expected {width} (EAGLE-1, 2) or {2 * width} (EAGLE-3)"
            )
        kind: Kind = "eagle3" if num_read == 2 * width else "eagle"
        says_eagle3 = "draft_vocab_size" in self.config or any("eagle3" in name for name in self.claims())
        if kind == "eagle" and says_eagle3:
            raise self.problem(f"config.json says EAGLE-3, and {query} reads {width} values: expected {2 * width}")
        if kind == "eagle3" and MASK_STATE in self.tensors:
            return "peagle"
        if any("peagle" in name for name in self.claims()):
            raise self.problem(f"config.json says P-EAGLE, and the file has no tensor {MASK_STATE}")
        return kind

    def _block_kind(self) -> Kind:
        plain: Kind = "dflash"
        kind = next((kind for kind, name in BLOCK_KINDS.items() if name in self.tensors), plain)
        sections = (self.config, self.section("dflash_config"))
        said = [section.get("projector_type") for section in sections]
        said += ["dspark" for section in sections if section.get("markov_rank")]
        for name in filter(None, said):
            if name != kind:
                tensor = BLOCK_KINDS.get(name)
                raise self.problem(
                    f"config.json says {name!r:.40}, and its tensors are those of {kind}"
                    + (f": missing tensor {tensor}" if tensor else "")
                )
        return kind

    def claims(self) -> list[str]:
        """Returns the architectures, the model types and the type of correction in the configuration, in lower case."""
        architectures = self.config.get("architectures")
        names = [*architectures] if isinstance(architectures, list) else []
        names += [self.config.get(SPECULATORS), self.config.get("model_type")]
        names += [section.get("projector_type") for section in (self.config, self.section("dflash_config"))]
        return [str(name).lower() for name in names if name]

    def section(self, key: str) -> Config:
        """Returns a mapping of the configuration, empty if it has none."""
        found = self.config.get(key)
        return found if isinstance(found, Mapping) else {}

    def check_booleans(self, *keys: str) -> None:
        """Raises ConfigError if one of these settings, which may be in a section too, is neither true nor false: any
        other value, such as the text "false", would count as true."""
        sections = ("eagle_config", "dflash_config", "transformer_layer_config")
        for section in (self.config, *map(self.section, sections)):
            for key in keys:
                if section.get(key) is not None and not isinstance(section[key], bool):
                    raise self.problem(f"config.json has {key} {section[key]!r:.40}, expected true or false")

    def check_proposals(self) -> None:
        """Raises ConfigError if a configuration of speculators describes a verification that accepts tokens which the
        target did not choose."""
        methods = self.section("speculators_config").get("proposal_methods")
        for method in methods if isinstance(methods, list) else ():
            for key, harmless in (("verifier_accept_k", 1), ("accept_tolerance", 0)):
                if isinstance(method, Mapping) and method.get(key) not in (None, harmless):
                    raise self.problem(
                        f"config.json has {key} {method[key]!r:.40}, which describes a lossy verification: set it to "
                        f"{harmless}; drafts are verified by the method's own rule"
                    )

    def expect(self, kind: Kind) -> None:
        if self.kind != kind:
            raise self.problem(f"it is a head of kind {self.kind}, not {kind}: use a method of {self.kind}")

    def problem(self, text: str) -> ConfigError:
        """Returns an error that names the key and the checkpoint."""
        return ConfigError(f"drafter.path = '{self.name}': {text}")


def head_revision(name: str, revision: str | None = None) -> str | None:
    """Returns the `revision` of a head's checkpoint without reading its tensors."""
    return checkpoint_identity(model_source(name), revision)


def read_checkpoint(name: str, revision: str | None = None) -> HeadCheckpoint:
    """Returns the checkpoint of a hub id, a folder or embedded:NAME.

    Raises ConfigError in one line for a checkpoint that cannot be read, is not a head, or has an unsupported layout.
    """
    try:
        source = model_source(name)
        local = is_local(source)
        if revision is not None and (local or source != name):
            raise ConfigError("is not on the hub: leave out drafter.revision")
        folder = Path(source) if local else download_head(source, revision)
        config = bounded.read_mapping(folder / "config.json", REMEDY, strict=False)
        tensors = head_tensors(folder, config)
    except ConfigError as error:
        raise ConfigError(f"drafter.path = '{name}': {error}") from error
    return HeadCheckpoint(name, checkpoint_identity(source, revision), config, tensors)


def download_head(name: str, revision: str | None) -> Path:
    """Returns the folder of a hub id, with its configuration and the files of its first weight format. Uses the local
    cache if the hub cannot be reached. Raises ConfigError if loading fails."""
    problem = hub_problem(name, revision)
    try:
        for pattern in PATTERNS:
            wanted = ["config.json", pattern]
            is_offline = problem is not None
            folder = Path(
                huggingface_hub.snapshot_download(
                    name, revision=revision, allow_patterns=wanted, local_files_only=is_offline
                )
            )
            if weight_paths(folder):
                break
    except Exception as error:  # the hub raises many classes
        cause = explain_failure(name, name, problem, error, "config.json and weights")
        raise ConfigError(f"cannot load the head: {cause}") from error
    return folder


def head_tensors(folder: Path, config: Config) -> Tensors:
    """Returns the tensors of the heads in a folder, which may hold a whole model with Medusa heads. Raises ConfigError
    if there are none, and for tensors that belong to no head, or to a head with an unsupported layout."""
    names = tensor_names(weights_of(folder))
    if of_heads := {name: path for name, path in names.items() if name.startswith(MEDUSA_PREFIX)}:
        return {name.removeprefix(MEDUSA_PREFIX): tensor for name, tensor in read_tensors(of_heads).items()}
    if config.get(SPECULATORS) == "mtp" and names and all(name.startswith(MTP_LAYER) for name in names):
        return read_tensors(names)
    words = HeadCheckpoint("", None, config, {}).claims()
    found = next((title for word, title in UNSUPPORTED_FORMATS.items() if any(word in claim for claim in words)), None)
    if found is None and any(name.startswith(("mtp.", "model.mtp.")) or ".eh_proj." in name for name in names):
        found = "MTP"
    if found is not None:
        raise ConfigError(
            f"it is in the format {found}, which is not supported: give a head of Medusa, EAGLE, DFlash, DSpark or "
            "Domino"
        )
    short = {short_name(name): name for name in names}
    if {CONTEXT_NORM, "fc.weight"} <= short.keys() and len(short) == len(names):
        tensors = read_tensors(names)
        return {name: tensors[long] for name, long in short.items()}
    is_eagle = "fc.weight" in names and any(map(EAGLE_LAYER.match, names))
    if not names or not (is_eagle or all(map(MEDUSA_NAME.match, names))):
        found = ", ".join(f"{name:.60}" for name in sorted(names)[:MAX_PROBLEMS])
        raise ConfigError(
            f"it is not a draft head: it has {f'the tensors {found}, …' if names else 'no tensors'}; expected "
            "fc.weight and midlayer.* or layers.0.* (EAGLE, and with hidden_norm.weight DFlash), or "
            "HEAD.BLOCK.linear.weight (Medusa)"
        )
    return read_tensors(names)


def short_name(name: str) -> str:
    """Returns the name of a tensor of a head that drafts blocks without what some programs write before it."""
    for prefix in OLD_PREFIXES:
        name = name.removeprefix(prefix)
    return name


def medusa_heads_of_target(target: CausalLM) -> HeadCheckpoint | None:
    """Returns the Medusa heads in the target's own checkpoint, as Medusa-1.0 publishes them; None if it has none."""
    try:
        source = model_source(target.name)
        folder = Path(source) if is_local(source) else cached_folder(source, target.revision)
        if not any(name.startswith(MEDUSA_PREFIX) for name in tensor_names(weight_paths(folder))):
            return None
    except (ConfigError, OSError, ValueError):  # the target is not a checkpoint on this machine
        return None
    config = bounded.read_mapping(folder / "config.json", REMEDY, strict=False)
    return HeadCheckpoint(target.name, target.revision, config, head_tensors(folder, config))


def cached_folder(name: str, revision: str | None) -> Path:
    return Path(huggingface_hub.snapshot_download(name, revision=revision, local_files_only=True))


class HeadModule(nn.Module):
    """A head whose passes run on the device and in the dtype of a weight of its own; others may be the target's."""

    @property
    def own_weight(self) -> torch.Tensor:
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        return self.own_weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.own_weight.dtype


def assign(head: nn.Module, checkpoint: HeadCheckpoint, tensors: Tensors, shared: tuple[str, ...] = ()) -> None:
    """Assigns tensors to a head on torch's device `meta`. `shared`: the prefixes of parameters that are the target's.

    Raises ConfigError for missing and unknown tensors, wrong shapes, and values that are not floating-point numbers.
    """
    wanted = {name: value for name, value in head.state_dict().items() if not name.startswith(shared or ("\0",))}
    problems = [f"unknown tensor {name:.60}" for name in sorted(tensors.keys() - wanted)]
    problems += [f"missing tensor {name} {list(wanted[name].shape)}" for name in sorted(wanted.keys() - tensors)]
    for name in sorted(wanted.keys() & tensors):
        found, expected = list(tensors[name].shape), list(wanted[name].shape)
        if found != expected:
            problems.append(f"{name} has shape {found}, expected {expected}")
        elif not tensors[name].is_floating_point():
            dtype = str(tensors[name].dtype).removeprefix("torch.")
            problems.append(f"{name} has type {dtype}, expected floating-point numbers")
    if problems:
        more = f"; … ({len(problems)} problems in all)" if len(problems) > MAX_PROBLEMS else ""
        raise checkpoint.problem(f"its tensors do not fit: {'; '.join(problems[:MAX_PROBLEMS])}{more}")
    head.load_state_dict(tensors, strict=False, assign=True)


def check_vocabulary(checkpoint: HeadCheckpoint, sizes: Iterable[int | None], target: CausalLM) -> None:
    """Raises ConfigError if one of the sizes of the head's vocabulary is not the target's, with or without the padding
    of the target's embeddings. None: unknown."""
    for size in sizes:
        if size not in (None, target.vocab_size, target.padded_vocab_size):
            raise checkpoint.problem(
                f"its vocabulary has {size} tokens, and that of target '{target.name}' has {target.vocab_size}: it is "
                "a head of another target"
            )


def check_width(checkpoint: HeadCheckpoint, width: int, target: CausalLM) -> None:
    """Raises ConfigError if a head reads hidden states of another width than the target's."""
    if width != (expected := target.model.config.get_text_config().hidden_size):
        raise checkpoint.problem(
            f"it reads hidden states of {width} values, and those of target '{target.name}' have {expected}: it is a "
            "head of another target"
        )


def place(head: nn.Module, target: CausalLM) -> None:
    """Moves a head to the target's device and its parameters to the target's dtype, for inference. Buffers, such as the
    frequencies of rotary embeddings, keep their dtype."""
    head.to(target.device).eval().requires_grad_(False)
    for parameter in head.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(target.model.dtype)
