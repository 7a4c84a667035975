"""The models of a training: the frozen target, and the drafter with its trained weights or adapters."""

from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from specbench.decoding.bridges import VocabularyMismatch
from specbench.decoding.bridges.shared import shared
from specbench.decoding.drafters.none import NoDrafter
from specbench.decoding.sampling import Sampling
from specbench.demo.family import source_of
from specbench.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.loading import choose_device, load_model
from specbench.models.pair import ModelPair
from specbench.models.revisions import identified
from specbench.running.compose import stream_seed
from specbench.training.optimizers import bitsandbytes
from specbench.training.spec import TrainSpec


def make_accelerator(spec: TrainSpec) -> Accelerator:
    """The device and the mixed precision of a training; under `accelerate launch` one of several processes.

    Raises ConfigError for a device that is not there, or on which nothing is trained in 4 bits.
    """
    device = choose_device(spec.device)
    if spec.quantize == "nf4" and device.type != "cuda":
        raise ConfigError(
            f"quantize = 'nf4': needs a GPU with CUDA, and this training is on {device.type}: train with quantize=none"
        )
    return Accelerator(cpu=device.type == "cpu", mixed_precision="bf16" if dtype_of(spec) == "bfloat16" else "no")


def dtype_of(spec: TrainSpec) -> str:
    """The precision that is computed in: float32 or bfloat16; `auto` follows the device."""
    if spec.dtype != "auto":
        return spec.dtype
    return "float32" if choose_device(spec.device).type == "cpu" else "bfloat16"


def device_of(spec: TrainSpec, accelerator: Accelerator) -> str:
    """The device of this process: the one asked for, and of several processes the one that is its own."""
    return str(accelerator.device) if accelerator.num_processes > 1 else str(choose_device(spec.device))


def load_target(spec: TrainSpec, device: str) -> CausalLM:
    """The frozen target; without its weights where nothing is computed with them."""
    if not computes_target(spec):
        return load_model(spec.target, revision=spec.target_revision, device=device, weights=False)
    if spec.quantize == "nf4":
        return in_four_bits(spec.target, spec.target_revision, device)
    target = load_model(spec.target, revision=spec.target_revision, dtype=dtype_of(spec), device=device)
    target.model.requires_grad_(False)
    return target


def computes_target(spec: TrainSpec) -> bool:
    """Whether the target continues or scores texts. Plain texts are learnt without it, and a server stands in its
    place: then only its tokens are of need."""
    given = spec.finetune
    return given is None or (given.stage != "pretrain" and given.server.base_url is None)


def load_drafter(spec: TrainSpec, device: str) -> CausalLM:
    """The drafter as it is before the training, in float32 unless it is quantised."""
    if spec.quantize == "nf4":
        return in_four_bits(spec.drafter, spec.drafter_revision, device)
    return load_model(spec.drafter, revision=spec.drafter_revision, dtype="float32", device=device)


def in_four_bits(name: str, revision: str | None, device: str) -> CausalLM:
    """A model in 4-bit NF4 with bfloat16 computation (arXiv:2305.14314). Raises ConfigError without bitsandbytes or
    for a model that cannot be loaded so."""
    bitsandbytes()
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )  # fmt: skip
    source = source_of(name)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source, revision=revision, quantization_config=config, device_map={"": device}
        )
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
    except Exception as error:  # whatever a checkpoint, its remote or the quantisation may raise
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"cannot load model '{name}' with quantize = 'nf4': {reason}: try quantize=none") from error
    return CausalLM(model, tokenizer, name, identified(source, revision))


def check_fit(target: CausalLM, drafter: CausalLM) -> None:
    """Training compares both models token by token. Raises ConfigError where they do not share a vocabulary."""
    try:
        shared(ModelPair(target, drafter), Sampling(), lambda model: NoDrafter())
    except VocabularyMismatch as error:
        raise ConfigError(f"--drafter: {error}: choose a drafter of the target's family") from error


def trainable(model: nn.Module, spec: TrainSpec) -> nn.Module:
    """The network with the parameters that are trained set to require gradients: all, or those of its adapters."""
    if spec.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]
    if spec.lora is None:
        return model.requires_grad_(True)
    from peft import LoraConfig, TaskType, get_peft_model

    torch.manual_seed(stream_seed(spec.seed, "lora"))
    config = LoraConfig(
        r=spec.lora.rank, lora_alpha=spec.lora.alpha, lora_dropout=spec.lora.dropout,
        target_modules="all-linear", task_type=TaskType.CAUSAL_LM,
    )  # fmt: skip
    adapted: nn.Module = get_peft_model(model, config)
    return adapted


def merged(model: nn.Module, spec: TrainSpec) -> nn.Module:
    """The plain network, adapters added into its weights."""
    if spec.gradient_checkpointing:
        model.gradient_checkpointing_disable()  # type: ignore[operator]
    if spec.lora is None:
        return model
    whole: nn.Module = model.merge_and_unload()  # type: ignore[operator]
    return whole


def stored_dtype(model: Any, revision: str | None) -> torch.dtype:
    """The precision in which the checkpoint that a network comes from is stored; it is trained in float32."""
    config = AutoConfig.from_pretrained(model.config._name_or_path, revision=revision)
    return config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
