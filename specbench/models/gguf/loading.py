"""Loads the model of a GGUF file: with llama.cpp's passes, or in torch with its weights dequantized by transformers."""

from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from specbench.core.environment import is_installed, require
from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.checkpoints import one_line, quiet_transformers
from specbench.models.devices import check_memory, is_out_of_memory
from specbench.models.gguf.dequantized import (
    OtherModel,
    check_tensors,
    file_config,
    is_readable,
    missing_weights,
    unplaced,
)
from specbench.models.gguf.engine import ALL_LAYERS, ENGINE, PACKAGE, CannotOpen, LlamaNetwork, library
from specbench.models.gguf.files import GgufFile, find_gguf
from specbench.models.gguf.model import DequantizedLM, GgufLM, LlamaLM
from specbench.models.gguf.options import GgufOptions
from specbench.models.gguf.tokenizer import Tokenize, check_tokenizer, load_gguf_tokenizer
from specbench.specs.components import EngineName

NEEDED = {"gpt2": "merges", "llama": "scores"}  # by tokenizer.ggml.model
LoadTokenizer = Callable[[str], Any]  # by hub id or folder


def gguf_engine(engine: EngineName) -> EngineName:
    """Returns the engine of a GGUF model: for auto llama.cpp if it is installed, else eager. Raises ConfigError if
    llama.cpp is asked for and missing."""
    if engine == "auto":
        return ENGINE if is_installed(PACKAGE) else "eager"
    if engine == ENGINE:
        library()
    return engine


def load_gguf(
    name: str, revision: str | None, engine: EngineName, dtype: Any, device: torch.device, options: GgufOptions,
    load_tokenizer: LoadTokenizer, *, weights: bool = True, is_cpu: bool = False,
) -> CausalLM:  # fmt: skip
    """Returns a GGUF model. `engine`: see `gguf_engine`; any but llama.cpp gives a model in torch, of `dtype` and on
    `device`. `load_tokenizer`: loads that of `options`. `weights`: if False, only the header and the tokenizer are
    read. `is_cpu`: keeps llama.cpp off a GPU, unless `options` say otherwise."""
    file = find_gguf(name, revision)
    try:
        check_tokenizer_kind(file, options)
        wanted = options.tokenizer
        tokenizer = load_gguf_tokenizer(file, options) if wanted is None else load_tokenizer(wanted)
    except ConfigError:
        if engine == ENGINE:  # it may not know the file's tokenizer either, so that another one would not do
            open_network(file, 0, options, only_vocabulary=True)
        raise
    if not weights:
        if engine == ENGINE and options.given_by == "options":  # what it cannot open would not be measured
            tokenize: Tokenize | str | None = tokenize_by(open_network(file, 0, options, only_vocabulary=True))
        else:
            tokenize = own_tokenize(file)
        check_tokenizer(tokenizer, file, options, tokenize)
        return GgufLM(file.header, tokenizer, name, file.identity, options)
    if engine != ENGINE:
        check_tokenizer(tokenizer, file, options, own_tokenize(file))
        network: Any = load_dequantized(file, dtype, device, options)
        return DequantizedLM(network, file.header, tokenizer, name, file.identity)
    check_memory(file.num_bytes, f"{file.path}: its weights take", "take a smaller quantization")
    network = open_network(file, layers_on_gpu(is_cpu, options.gpu_layers), options)
    check_tokenizer(tokenizer, file, options, tokenize_by(network))
    return LlamaLM(network, file.header, tokenizer, name, file.identity, options)


def checked_tokenizer(name: str, revision: str | None) -> Any:
    """Returns the tokenizer of a GGUF file."""
    file, options = find_gguf(name, revision), GgufOptions()
    check_tokenizer_kind(file, options)
    tokenizer = load_gguf_tokenizer(file, options)
    check_tokenizer(tokenizer, file, options, own_tokenize(file))
    return tokenizer


def tokenize_by(network: LlamaNetwork) -> Tokenize:
    return lambda text, adds: network.tokenize(text, add_special=adds, parse_special=False)


def own_tokenize(file: GgufFile) -> Tokenize | str | None:
    """Returns llama.cpp's tokenizer of a file whose weights it does not read, or why it has none; None without
    llama.cpp."""
    if not is_installed(PACKAGE):
        return None
    try:
        return tokenize_by(LlamaNetwork(file.path, only_vocabulary=True))
    except CannotOpen as error:
        return error.reason
    except ConfigError:  # it does not load
        return None


def open_network(
    file: GgufFile, num_layers_on_gpu: int, options: GgufOptions, *, only_vocabulary: bool = False
) -> LlamaNetwork:
    """Returns a file that llama.cpp has opened. Raises ConfigError if it cannot, which names the other engines only
    where they can."""
    try:
        return LlamaNetwork(file.path, num_layers_on_gpu, only_vocabulary=only_vocabulary)
    except CannotOpen as error:
        if "tensor" in error.reason or not is_readable(file):
            raise
        other = options.other_engine("eager")
        if "tokenizer" in error.reason and options.tokenizer is None and options.given_by != "name":
            other += f" and the tokenizer of the original model with {options.tokenizer_option}"
        raise ConfigError(f"{error}, or {other}") from error


def or_llama_cpp(remedy: str, file: GgufFile, options: GgufOptions) -> str:
    """Returns a remedy with the advice to compute by llama.cpp, unless that is installed and cannot open the file."""
    if options.given_by != "name" and is_installed(PACKAGE):
        try:
            LlamaNetwork(file.path, repacks=False)
        except ConfigError:
            return remedy
    return f"{remedy}, or {options.other_engine(ENGINE)}"


def layers_on_gpu(is_cpu: bool, wanted: int | None) -> int:
    """Returns the number of layers that a GPU computes. Raises ConfigError if llama.cpp was built without one."""
    able = bool(library().llama_supports_gpu_offload())
    if wanted and not able:
        raise ConfigError(f"--gpu-layers {wanted}: this llama-cpp-python was built without a GPU: leave it out")
    if wanted is not None:
        return wanted
    return ALL_LAYERS if able and not is_cpu else 0


def load_dequantized(file: GgufFile, dtype: Any, device: torch.device, options: GgufOptions) -> Any:
    """Returns the network of a file in torch, with its weights dequantized. Raises ConfigError for an architecture or a
    type of weights that transformers lacks, and if there is too little memory."""
    require("accelerate", f"GGUF file '{file.path}' without llama.cpp")
    if device.type == "cpu":
        num_bytes = sum(file.header.types.values()) * dtype.itemsize
        what = f"{file.path}: its weights, dequantized to {str(dtype).removeprefix('torch.')}, take"
        check_memory(num_bytes, what, f"take a smaller one, or {options.other_engine(ENGINE)}")
    header = file.header
    try:
        # The bar of dequantizing is shown whatever transformers' verbosity.
        with quiet_transformers(), redirect_stderr(StringIO()), TemporaryDirectory(prefix="gguf-") as folder:
            path = file.path if len(file.paths) == 1 else one_file(file, Path(folder), options)
            config = file_config(path, header)
            check_tensors(config, header)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(path.parent), gguf_file=path.name, config=config, dtype=dtype, output_loading_info=True
            )
        network: Any = loaded[0].to(device).eval()
        if lacking := sorted(loaded[1]["missing_keys"]):
            raise OtherModel(missing_weights(lacking, network))
        if without := sorted(loaded[1]["unexpected_keys"]):
            raise OtherModel(unplaced(without, network))
    except ConfigError:
        raise
    except Exception as error:  # of many classes
        if is_out_of_memory(error):
            remedy = or_llama_cpp("free memory", file, options)
            raise ConfigError(
                f"{file.path}: out of memory on {device} while its weights are dequantized: {remedy}"
            ) from error
        reason = one_line(error)
        key = f" general.architecture = '{header.architecture}':" if "architecture" in reason else ""
        problem = reason if isinstance(error, OtherModel) else f"{key} transformers cannot load it ({reason})".strip()
        remedy = or_llama_cpp("take another file", file, options)
        raise ConfigError(f"{file.path}: {problem}: {remedy}") from error
    return network


def one_file(file: GgufFile, folder: Path, options: GgufOptions) -> Path:
    """Writes a model in several files into one, which transformers needs. Returns its path. Raises ConfigError if the
    disk has too little room."""
    import gguf

    if (free := disk_usage(folder).free) < file.num_bytes:
        raise ConfigError(
            f"{file.path}: without llama.cpp its {len(file.paths)} parts are joined in {folder.parent}, which takes "
            f"{file.num_bytes / 2**30:.2f} GiB, and {free / 2**30:.2f} GiB are free there: name another folder with "
            f"TMPDIR, or {options.other_engine(ENGINE)}"
        )

    path = folder / "joined.gguf"
    readers = [gguf.GGUFReader(part) for part in file.paths]
    writer = gguf.GGUFWriter(path, file.header.architecture)
    for key, field in readers[0].fields.items():
        if not key.startswith(("GGUF.", "split.")) and key != "general.architecture":
            kind, *elements = field.types
            writer.add_key_value(key, field.contents(), kind, elements[-1] if elements else None)
    for tensor in (tensor for reader in readers for tensor in reader.tensors):
        writer.add_tensor(tensor.name, tensor.data, raw_shape=tensor.data.shape, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def check_tokenizer_kind(file: GgufFile, options: GgufOptions) -> None:
    """Raises ConfigError if the tokenizer in a file is to be used and lacks a part, or names a token that is none."""
    if options.tokenizer is not None:
        return
    header = file.header
    kind = header.of_tokenizer("model")
    lacking = "model" if not kind else NEEDED.get(str(kind))
    if lacking is not None and (not kind or header.of_tokenizer(lacking) is None):
        raise ConfigError(f"{file.path}: tokenizer.ggml.{lacking} is missing: {options.other_tokenizer}")
    for key, value in header.ids_beyond.items():
        raise ConfigError(
            f"{file.path}: tokenizer.ggml.{key} = {value}: the last token is {len(header.tokens) - 1:,}: "
            f"{options.other_tokenizer}"
        )
