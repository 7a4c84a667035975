"""Loads models by hub id, local folder, `embedded:NAME` or `object:NAME`."""

import logging
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict

import huggingface_hub
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, GenerationConfig

from specbench.core.environment import OBJECT, missing, require
from specbench.core.errors import ConfigError, NeedsCode
from specbench.core.progress import doing
from specbench.models.causal_lm import CausalLM
from specbench.models.checkpoints import (
    CheckpointSampling,
    check_files,
    check_readable,
    check_sizes,
    check_weights,
    checkpoint_identity,
    checkpoint_sampling,
    explain_failure,
    one_line,
    quiet_transformers,
)
from specbench.models.devices import free_memory, is_out_of_memory, too_large_error
from specbench.models.gguf.files import find_gguf, is_gguf
from specbench.models.gguf.header import SAMPLING
from specbench.models.gguf.options import GgufOptions
from specbench.models.objects import object_model
from specbench.models.packed import has_bfloat16_instructions, packs_bfloat16, store_weights
from specbench.models.scoring import same_logits
from specbench.models.sources import TIMEOUT_SECONDS
from specbench.models.sources import is_local as is_local
from specbench.models.sources import model_source as model_source
from specbench.specs.components import DeviceMap, EngineName, Quantize, check_quantized


class HubOptions(TypedDict):
    """The options of transformers' loaders."""

    revision: str | None
    local_files_only: bool
    trust_remote_code: bool


EXAMPLE = range(1, 9)  # the tokens of the text on which models are checked
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> torch.device:
    """Returns the device of a name; `auto` is cuda, else mps, else cpu. Raises ConfigError if it is not available."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    kind = name.partition(":")[0]
    if not available.get(kind):
        there = ", ".join(kind for kind, is_there in available.items() if is_there)
        raise ConfigError(f"--device {name}: not available on this machine (available: auto, {there})")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {name}: {str(error).splitlines()[0]}") from error


def load_model(
    name: str, *, revision: str | None = None, dtype: str = "auto", device: str = "auto", weights: bool = True,
    engine: EngineName = "eager", quantize: Quantize = "none", device_map: DeviceMap = "none",
    trust_remote_code: bool = False, gguf: GgufOptions | None = None, pass_width: int | None = None,
) -> CausalLM:  # fmt: skip
    """Returns a model by hub id, local folder, name of a GGUF file (see `gguf.files`), `embedded:NAME` for a model that
    comes with specbench, or `object:NAME` for a model of this process, which stays on its device and in its dtype.

    - `dtype`: auto is the checkpoint's own; on a CPU it is float32, unless `computes_in_bfloat16` says otherwise.
    - `weights`: if False, only configuration and tokenizer are read. The model is then on torch's device `meta` and
      cannot compute, but its vocabulary, context limit, revision and encoded prompts are the real ones.
    - `engine`: graphs or compiled passes are used if the model supports them; otherwise it is eager, and `why_eager`
      holds the reason. auto is graphs on cuda, else eager; for a GGUF file llama.cpp if it is installed.
    - `trust_remote_code`: runs the Python code of a checkpoint whose architecture transformers lacks.
    - `quantize`: loads the weights in 4 or 8 bits: by bitsandbytes on CUDA with eager passes, by torch's own kernels on
      a CPU, where activations are bfloat16, with eager or compiled ones.
    - `device_map`: auto spreads the weights over all devices.
    - `gguf`: how a GGUF file is loaded. `pass_width`: the rows of which every pass is made, see
      `CachedSequence.fix_width`.

    On a CPU, passes in bfloat16 have packed products; see `models.packed`. Objects stay as they are.

    Raises ConfigError in one line for a checkpoint that cannot be loaded or is not a causal language model, and for an
    engine that this machine does not support.
    """
    if name.startswith(OBJECT):
        loaded = object_model(name)
        engine = check_engine(engine, loaded.device.type)
        check_causal(loaded)
        make_passes(loaded, engine)
        return with_width(loaded, pass_width)
    chosen = choose_device(device)
    if is_gguf(name):
        options = gguf or GgufOptions()
        is_cpu = device == "cpu"  # llama.cpp may have a GPU that torch was built without
        loaded = load_gguf_model(name, revision, dtype, chosen, engine, options, weights, trust_remote_code, is_cpu)
        return with_width(loaded, pass_width if weights else None)
    if engine == "llama.cpp":
        raise ConfigError(
            f"--engine llama.cpp: model '{name}' is not a GGUF file: give one (FILE.gguf, or org/repo:Q4_K_M), or take "
            "--engine auto"
        )
    is_cpu = chosen.type == "cpu" and device_map == "none"
    if quantize != "none":
        engine = "eager" if engine == "auto" else engine
        check_quantize(quantize, chosen.type, dtype, device_map, engine)
    engine = check_engine(engine, chosen.type)
    torch_dtype: Any = DTYPES.get(dtype) or ("auto" if chosen.type != "cpu" else None)
    source = model_source(name)
    problem = None if is_local(source) else hub_problem(source, revision)
    hub: HubOptions = {  # without the hub, use the local cache
        "revision": revision, "local_files_only": problem is not None, "trust_remote_code": trust_remote_code,
    }  # fmt: skip
    try:
        with doing(f"loading {name}"):
            if not weights:
                model = build_on_meta(causal_config(source, hub), hub)
                if (generation := read_generation_config(source, revision, problem is not None)) is not None:
                    model.generation_config = generation  # its end tokens
            else:
                if torch_dtype is None:
                    is_16_bit = quantize != "none" or computes_in_bfloat16(source, hub)
                    torch_dtype = torch.bfloat16 if is_16_bit else torch.float32
                if is_cpu:
                    check_room(source, torch_dtype, hub, quantize)
                model = load_network(source, torch_dtype, hub, chosen, quantize, device_map)
                if is_cpu and model.dtype == torch.bfloat16:
                    store_weights(model, quantize)
            tokenizer = AutoTokenizer.from_pretrained(source, **hub)
            loaded = CausalLM(model, tokenizer, name, checkpoint_identity(source, revision), quantize)
    except ConfigError as error:
        raise ConfigError(f"cannot use model '{name}': {error}") from error
    except Exception as error:  # the hub and file formats raise many classes
        files = "config.json, weights and tokenizer"
        raise loading_error(name, "architecture", source, problem, error, files, trust_remote_code) from error
    if weights:
        check_causal(loaded)
        make_passes(loaded, engine)
        with_width(loaded, pass_width)
    return loaded


def with_width(loaded: CausalLM, pass_width: int | None) -> CausalLM:
    """Returns the model, whose passes all have `pass_width` rows from now on, unless it is None."""
    if pass_width is not None:
        loaded.sequence.fix_width(pass_width)
    return loaded


LARGE = 2**28  # parameters; the products of smaller networks read caches


def computes_in_bfloat16(source: str, hub: HubOptions) -> bool:
    """Returns whether a checkpoint of 16-bit weights is computed in them on this CPU: if it has instructions for them,
    and reading the weights dominates a pass. Half the bytes are then read in half the time."""
    if not (packs_bfloat16() and has_bfloat16_instructions()):
        return False
    config = causal_config(source, hub)
    if getattr(config.get_text_config(), "dtype", None) != torch.bfloat16:
        return False
    num_parameters: int = sum(parameter.numel() for parameter in build_on_meta(config, hub).parameters())
    return num_parameters >= LARGE


def load_gguf_model(
    name: str, revision: str | None, dtype: str, device: torch.device, engine: EngineName, options: GgufOptions,
    weights: bool, trust_remote_code: bool, is_cpu: bool,
) -> CausalLM:  # fmt: skip
    """See `load_model`. `is_cpu`: whether the CPU was asked for."""
    from specbench.models.gguf.loading import gguf_engine, load_gguf

    engine = gguf_engine(engine)
    if engine != "llama.cpp":
        engine = check_engine(engine, device.type)
    torch_dtype = DTYPES.get(dtype) or (torch.float32 if device.type == "cpu" else torch.float16)
    load = partial(load_tokenizer, trust_remote_code=trust_remote_code)
    with doing(f"loading {name}"):
        loaded = load_gguf(name, revision, engine, torch_dtype, device, options, load, weights=weights, is_cpu=is_cpu)
    if weights:
        if engine != "llama.cpp" and options.given_by == "name":  # else rows and reports have the engine
            warnings.warn(
                f"model '{name}' is computed in torch, {loaded.precision}: another model than with llama.cpp's kernels",
                UserWarning, stacklevel=2,
            )  # fmt: skip
        if engine in ("eager", "compiled") and device.type == "cpu" and torch_dtype == torch.bfloat16:
            store_weights(loaded.model)
        check_causal(loaded)
        make_passes(loaded, engine)
    return loaded


def load_generation_config(name: str, revision: str | None) -> Any:
    """Returns a model's generation config without loading the model; None if it has none."""
    if name.startswith(OBJECT):
        return object_model(name).model.generation_config
    if is_gguf(name):
        return None  # its ends and its sampling are keys of the file
    source = model_source(name)
    is_offline = not is_local(source) and hub_problem(source, revision) is not None
    try:
        return read_generation_config(source, revision, is_offline)
    except ConfigError as error:
        raise ConfigError(f"model '{name}': {error}") from error


def read_generation_config(source: str, revision: str | None, is_offline: bool) -> Any:
    """Returns the generation config of a folder or hub id; None if it has none. `is_offline`: reads only local files.
    Raises ConfigError for one that transformers refuses."""
    try:
        with quiet_transformers():
            return GenerationConfig.from_pretrained(source, revision=revision or "main", local_files_only=is_offline)
    except Exception as error:  # it checks some values, and fails at others
        if isinstance(error, OSError) and not (Path(source) / "generation_config.json").is_file():
            return None  # it has no such file, or no such revision, which loading the model reports
        raise ConfigError(f"cannot read its generation_config.json ({one_line(error)})") from error


def sampling_of(name: str, revision: str | None) -> tuple[CheckpointSampling | None, str]:
    """Returns the sampling that a model's checkpoint asks for, None if it asks for none, and what then is missing."""
    if is_gguf(name):
        found = gguf_sampling(find_gguf(name, revision).header.sampling)
        return found, f"it has no keys {SAMPLING}* that do"
    config = load_generation_config(name, revision)
    if config is None:
        return None, "there is no generation_config.json"
    return checkpoint_sampling(config), "its generation_config.json names none"


WITHOUT_EFFECT = {"top_k": 0, "top_p": 1, "min_p": 0, "xtc_probability": 0, "penalty_repeat": 1, "mirostat": 0}
PARTS_OF_OTHERS = {  # keys without an effect of their own, by the key that they need
    "xtc_threshold": "xtc_probability", "penalty_last_n": "penalty_repeat", "mirostat_tau": "mirostat",
    "mirostat_eta": "mirostat",
}  # fmt: skip


def gguf_sampling(given: Mapping[str, float]) -> CheckpointSampling | None:
    """Returns the sampling that the keys `general.sampling` of a GGUF file ask for, with the names of llama.cpp; None
    if they ask for none, or for greedy decoding."""
    asked = {name: value for name, value in given.items() if value != WITHOUT_EFFECT.get(name)}
    if not asked or asked.get("temp", 1) <= 0:
        return None
    others = {
        name: value for name, value in asked.items()
        if name not in ("temp", "top_k", "top_p") and PARTS_OF_OTHERS.get(name, name) in asked
    }  # fmt: skip
    top_k = asked.get("top_k")
    return CheckpointSampling(
        temperature=asked.get("temp", 1.0), top_k=None if top_k is None or top_k < 0 else int(top_k),
        top_p=asked.get("top_p"), others=others, source=f"{SAMPLING}*",
    )  # fmt: skip


def model_sampling(name: str, revision: str | None) -> CheckpointSampling:
    """Returns the sampling that a model's checkpoint asks for. Raises ConfigError if it asks for none."""
    found, missing = sampling_of(name, revision)
    if found is None:
        raise ConfigError(
            f"--sampling model: '{name}' asks for no sampling ({missing}): take --sampling task, or give "
            "--set generation.temperature=0.6 --set generation.top_p=0.95"
        )
    return found


NEEDS_CODE = "trust_remote_code"  # in transformers' message


def loading_error(
    name: str, part: Literal["architecture", "tokenizer"], source: str, problem: str | None, error: Exception,
    files: str, trust_remote_code: bool,
) -> ConfigError:  # fmt: skip
    """Returns the error in one line for what transformers raised; see `explain_failure`."""
    if not trust_remote_code and NEEDS_CODE in str(error):
        return NeedsCode(
            f"model '{name}': its {part} is Python code in the checkpoint: read that code, then let it run with "
            "--trust-remote-code"
        )
    what = f"model '{name}'" if part == "architecture" else f"the tokenizer of '{name}'"
    return ConfigError(f"cannot load {what}: {explain_failure(name, source, problem, error, files)}")


def check_engine(engine: EngineName, device: str) -> EngineName:
    """Returns the engine for a device, with auto resolved. Raises ConfigError if this machine does not support it."""
    if engine == "auto":
        return "graphs" if device == "cuda" else "eager"
    if engine == "compiled" or (engine == "graphs" and device != "cuda"):
        from specbench.models.compiling import no_compiler  # its imports take time

        problem = no_compiler(device)
        if engine == "graphs":
            able = "eager" if problem else "compiled, or eager"
            raise ConfigError(f"--engine graphs: {device} has no CUDA graphs: take --engine {able}")
        if problem:
            raise ConfigError(f"--engine compiled: {problem}, or take --engine eager")
    return engine


def build_on_meta(config: Any, hub: HubOptions) -> Any:
    """Returns the network of a configuration without weights, on torch's device `meta`."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=hub.get("trust_remote_code", False))


def causal_config(source: str, hub: HubOptions) -> Any:
    """Returns the configuration. Raises ConfigError for an unreadable file, implausible sizes, and a checkpoint that
    is not a causal language model."""
    check_readable(source)
    config = AutoConfig.from_pretrained(source, **hub)
    check_sizes(config)
    if config.is_encoder_decoder or getattr(config, "is_decoder", None) is False:
        kind = "encoder-decoder" if config.is_encoder_decoder else "encoder"
        raise ConfigError(f"it is an {kind}; specbench measures causal language models")
    return config


def load_weights(source: str, dtype: Any, hub: HubOptions, **options: Any) -> Any:
    """Returns the network with its weights. `options` are passed on to transformers.

    Raises ConfigError if the checkpoint is not a causal language model, lacks tensors, or is too small for its
    configuration.
    """
    config = causal_config(source, hub)
    check_weights(source, config, build_on_meta(config, hub))
    with quiet_transformers():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, output_loading_info=True, **hub, **options
        )
    model, info = loaded
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ConfigError(
            f"its checkpoint lacks {len(missing)} tensors of a causal language model, such as {missing[0]}: "
            "they would be random; give a complete checkpoint"
        )
    return model


def check_quantize(
    quantize: Quantize, device: str, dtype: str, device_map: DeviceMap, engine: EngineName
) -> None:  # fmt: skip
    """Raises ConfigError unless a device of this type computes with such weights."""
    check_quantized(quantize, device, dtype, device_map, engine)
    if device != "cpu":
        bitsandbytes(f"--quantize {quantize}")


def bitsandbytes(option: str) -> Any:
    """Returns the library for 4-bit and 8-bit weights and optimizers. Raises ConfigError, which begins with `option`,
    if it is missing or does not load."""
    require("bitsandbytes", option)
    try:
        import bitsandbytes
    except Exception as error:  # its import searches for the driver's libraries
        reason = f"the installed bitsandbytes does not load ({error})"
        raise ConfigError(f"{option}: {reason}: {missing('bitsandbytes')}") from error
    return bitsandbytes


def load_network(
    source: str, dtype: Any, hub: HubOptions, device: torch.device, quantize: Quantize = "none",
    device_map: DeviceMap = "none",
) -> Any:  # fmt: skip
    """Returns a network on its device, or quantized, or spread over devices while it is loaded. Warns if a part of it
    is not on an accelerator. Raises ConfigError as `load_weights` does, and if there is too little memory."""
    options: dict[str, object] = {}
    uses_library = quantize != "none" and device.type != "cpu"  # on a CPU, `store_weights` quantizes
    if uses_library or device_map != "none":
        require("accelerate", "--device-map auto" if quantize == "none" else f"--quantize {quantize}")
        if dtype == "auto":
            dtype = getattr(causal_config(source, hub), "dtype", None) or torch.bfloat16
        options["device_map"] = {"": device} if device_map == "none" else "auto"
    if uses_library:
        is_nf4 = quantize == "nf4"
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=is_nf4, load_in_8bit=not is_nf4, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
        )
        # It warns of a cast in every product of every pass.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    network: Any = None
    try:
        network = load_weights(source, dtype, hub, **options)
        if not options:
            network = network.to(device)
    except Exception as error:  # torch and accelerate raise several classes
        if not is_out_of_memory(error):
            raise
        if network is None:
            network = build_on_meta(causal_config(source, hub), hub)
            network = network if dtype == "auto" else network.to(dtype)
        raise too_large_error(network, device, quantize, device_map) from error
    places = {str(place) for place in getattr(network, "hf_device_map", {}).values()}
    if offloaded := " and ".join(sorted(places & {"cpu", "disk"} - {device.type})):
        message = f"--device-map auto: parts of '{source}' are on {offloaded}: every pass waits until they are copied"
        warnings.warn(message, UserWarning, stacklevel=2)
    return network.eval()


WIDENING = 4  # ratio of the bytes of weights in float32 to those of a file in 8 bits


def check_room(source: str, dtype: Any, hub: HubOptions, quantize: Quantize) -> None:
    """Raises ConfigError if a network does not fit into main memory. Linux would grant it, and end the process when
    memory runs out."""
    free = free_memory()
    files = [file for file in Path(source).glob("*") if file.suffix in (".safetensors", ".bin")]
    if free is None or (files and WIDENING * sum(file.stat().st_size for file in files) <= free):
        return
    network = build_on_meta(causal_config(source, hub), hub).to(dtype)
    if sum(tensor.nbytes for tensor in [*network.parameters(), *network.buffers()]) > free:
        raise too_large_error(network, torch.device("cpu"), quantize, free=free)


@torch.inference_mode()
def check_causal(model: CausalLM) -> None:
    """Raises ConfigError if logits are not finite, or depend on later tokens or on earlier contents of the cache."""
    ids = [token % model.vocab_size for token in EXAMPLE]
    try:
        score = model.sequence.score
        whole = score(ids, 8).logits
        model.reset()
        pieces = torch.cat([score(ids[:end], num_logits).logits for end, num_logits in ((4, 4), (5, 1), (8, 3))])
        model.reset()
    except Exception as error:  # networks fail in many ways with a cache that they were not written for
        cause = error.__cause__ or error
        if (isinstance(error, ConfigError) and cause is error) or is_out_of_memory(cause):
            raise
        reason = " ".join(str(cause).split())[:200]
        raise ConfigError(
            f"model '{model.name}' fails when it reads a text in several passes ({type(cause).__name__}: {reason}); "
            "choose another model, or another --device or --dtype"
        ) from error
    if not bool(torch.isfinite(whole).all()):
        raise ConfigError(
            f"model '{model.name}' gives values that are not finite in {model.dtype}: try another --dtype"
        )
    if not same_logits(whole, pieces, rounds=model.rounds):
        raise ConfigError(
            f"model '{model.name}' is not a causal language model that can use a cache: its output depends on later "
            "tokens, or on earlier contents of the cache; choose another model"
        )


@torch.inference_mode()
def make_passes(model: CausalLM, engine: EngineName = "compiled") -> None:
    """Switches a model to the recorded or compiled passes of an engine. If it does not support them, or gives different
    logits with static buffers, it stays eager, and `why_eager` holds the reason."""
    if engine not in ("graphs", "compiled"):
        return
    from specbench.models.agreement import agree, example_ids, rounding_at_random
    from specbench.models.compiling import CannotCompile

    ids = example_ids(len(EXAMPLE), model.vocab_size)
    eager = model.sequence
    whole = model.score(ids, len(ids)).logits
    model.reset()
    with rounding_at_random(model.model, 0):
        rounded = model.score(ids, len(ids)).logits
    model.reset()
    try:
        model.make_static(engine)
        assert model.static is not None
        if not agree(model.static.eager_logits(ids), [whole, rounded], rounds=model.rounds):
            raise CannotCompile(model.name, "with static buffers of keys and values it gives other logits", engine)
        model.static.check()
        model.reset()
    except Exception as error:  # networks fail in many ways with a cache that they were not written for
        if is_out_of_memory(error):
            raise
        model.sequence = eager
        model.why_eager = (
            error.reason if isinstance(error, CannotCompile) else f"with static buffers: {one_line(error)}"
        )


def hub_problem(name: str, revision: str | None) -> str | None:
    """Returns in one line why the hub does not provide a model; None if it does. Sends one request with a timeout of
    TIMEOUT_SECONDS."""
    try:
        huggingface_hub.model_info(name, revision=revision, timeout=TIMEOUT_SECONDS)
    except Exception as error:  # several libraries raise many classes: offline, unknown, gated, a proxy
        return f"the hub does not provide it: {type(error).__name__}: {one_line(error)}"
    return None


def load_tokenizer(name: str, revision: str | None = None, *, trust_remote_code: bool = False) -> Any:
    """Returns the tokenizer of a model by hub id, local folder or `embedded:NAME`. `trust_remote_code`: runs the Python
    code of a checkpoint whose tokenizer transformers lacks.

    Raises ConfigError for a tokenizer that cannot be loaded.
    """
    if is_gguf(name):
        from specbench.models.gguf.loading import checked_tokenizer

        return checked_tokenizer(name, revision)
    source = model_source(name)
    local = is_local(source, needs_config=False)
    for manifest, kind in (("ngram.json", "an n-gram folder"), ("retrieval.json", "a datastore")):
        if local and (Path(source) / manifest).is_file():
            raise ConfigError(f"'{name}' is {kind}: it drafts the tokens of its target and has no tokenizer of its own")
    check_files(source)
    problem = None if local else hub_problem(source, revision)
    try:  # without the hub, use the local cache
        return AutoTokenizer.from_pretrained(
            source, revision=revision, local_files_only=local or problem is not None,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
    except Exception as error:  # the hub and file formats raise many classes
        raise loading_error(name, "tokenizer", source, problem, error, "tokenizer.json", trust_remote_code) from error
