"""The header of a GGUF file: its metadata and the list of its tensors. Imports neither torch nor transformers.

gguf's own reader makes an array of every token, which takes half a minute for 262,144 of them.
"""

import mmap
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import inf, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specbench.core.errors import ConfigError, nearest

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
# Types of metadata by number, as numpy and struct name them.
NUMBERS = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8", 12: "f8"}
MOST_DIMENSIONS = 4
FETCH = "fetch the file again"
CONVERT = f"{FETCH}, or convert the model again"
FETCH_PARTS = "fetch all parts again, from one place"
EXPERTS = "_exps."  # in the names of tensors that hold the experts of a layer
CONTROL, USER_DEFINED, BYTE = 3, 4, 6  # types of tokens
NORMAL = 1
EMBEDDINGS, OUTPUT = b"token_embd.weight", b"output.weight"
SCALING, OLD_FACTOR = "rope.scaling.", "rope.scale_linear"
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")  # llama.cpp aborts at any other
EPSILONS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")  # of one or the other kind of norm
SAMPLING, TOKENIZER = "general.sampling.", "tokenizer.ggml."
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Control tokens that end a turn, also where the file names no such token: as llama.cpp has them.
TURN_ENDS = frozenset((
    b"<|eot_id|>", b"<|eom_id|>", b"<|im_end|>", b"<|end|>", b"<end_of_turn>", b"<turn|>", b"<|endoftext|>",
    b"<|end_of_text|>", b"<EOT>", b"_<EOT>", b"[EOT]", "<｜end▁of▁sentence｜>".encode(), b"<end_of_utterance>",
    b"<|return|>", b"<|call|>",
))  # fmt: skip
# Special tokens of other names that end a text or a turn. Whether they end answers is up to a model's files.
TEXT_ENDS = frozenset((
    b"</s>", b"<eos>", b"<|eos|>", b"[EOS]", b"<|eot|>", b"<|EOT|>", b"<|eom|>", b"<|end_of_turn|>",
    b"<|END_OF_TURN_TOKEN|>", b"<|endofturn|>",
))  # fmt: skip


def turn_ends(control: Iterable[bytes]) -> frozenset[bytes]:
    """Returns those of TURN_ENDS among control tokens. Where an answer is made of several messages (gpt-oss), <|end|>
    ends each of them, and other tokens the answer."""
    found = TURN_ENDS.intersection(control)
    return found - {b"<|end|>"} if {b"<|return|>", b"<|call|>"} <= found else found


class Truncated(ValueError):
    """The file ends before its header."""


class _Reader:
    """Reads the values of a header one after another. Raises Truncated at the end of the file."""

    def __init__(self, data: "mmap.mmap | bytes", order: str = "<") -> None:
        self.data, self.order, self.position = data, order, 0

    def take(self, num_bytes: int) -> bytes:
        start, self.position = self.position, self.position + num_bytes
        if self.position > len(self.data):
            raise Truncated
        return self.data[start : self.position]

    def number(self, kind: str) -> Any:
        kind = kind if kind == "?" else self.order + kind
        return np.frombuffer(self.take(np.dtype(kind).itemsize), kind)[0].item()

    def numbers(self, kind: str, count: int) -> "np.ndarray[Any, Any]":
        kind = kind if kind == "?" else self.order + kind
        return np.frombuffer(self.take(np.dtype(kind).itemsize * count), kind)

    def string(self) -> bytes:
        return self.take(self._length())

    def strings(self, count: int) -> list[bytes]:
        if 8 * count > len(self.data) - self.position:
            raise Truncated
        return [self.take(self._length()) for _ in range(count)]

    def _length(self) -> int:
        length: int = struct.unpack(f"{self.order}Q", self.take(8))[0]
        return length

    def value(self, kind: int) -> Any:
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind == STRING:
            return self.string().decode("utf-8", "replace")
        if kind != ARRAY:
            raise ValueError(f"metadata of type {kind}")
        element, count = self.number("u4"), self.number("u8")
        if element in NUMBERS:
            return self.numbers(NUMBERS[element], count)
        if element != STRING:
            raise ValueError(f"metadata with an array of type {element}")
        return self.strings(count)


class TensorPlace(NamedTuple):
    """Where a tensor is: the file, its first byte, its type, and its sizes, that of a row first."""

    path: Path
    start: int
    kind: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Header:
    """The header of a GGUF file. `values`: the metadata; strings of arrays are bytes. `types`: the number of weights by
    the type of their tensor. `num_bytes`: of the tensors."""

    path: Path
    values: dict[str, Any]
    types: dict[int, int]
    num_bytes: int
    table_sizes: dict[bytes, int]  # bytes of the embeddings and of the output layer, as far as they are tensors
    tensors: dict[str, "TensorPlace"] = field(default_factory=dict)

    @property
    def table_bytes(self) -> int:
        """Bytes of the embeddings, of which a token reads one row, if the output layer is another tensor."""
        return self.table_sizes[EMBEDDINGS] if len(self.table_sizes) == 2 else 0

    @cached_property
    def expert_size(self) -> tuple[int, int]:
        """The number of weights in mixed experts, and their bytes."""
        sizes = _block_sizes()
        number = num_bytes = 0
        for name, place in self.tensors.items():
            if EXPERTS in name:
                per_block, block_bytes = sizes[place.kind]
                number += prod(place.sizes)
                num_bytes += prod(place.sizes) // per_block * block_bytes
        return number, num_bytes

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture", ""))

    def of_architecture(self, key: str) -> Any:
        """Returns a value whose key begins with the architecture; None if the file lacks it."""
        return self.values.get(f"{self.architecture}.{key}")

    def of_tokenizer(self, key: str) -> Any:
        return self.values.get(f"{TOKENIZER}{key}")

    @property
    def context_length(self) -> int | None:
        return self.of_architecture("context_length") or None

    @property
    def tokens(self) -> list[bytes]:
        found: list[bytes] = self.of_tokenizer("tokens")
        return found

    @cached_property
    def token_types(self) -> list[int]:
        found = self.of_tokenizer("token_type")
        return [NORMAL] * len(self.tokens) if found is None else [int(each) for each in found]

    @cached_property
    def end_tokens(self) -> dict[str, list[int]]:
        """The tokens that end an answer, by what says so: a key of the file, or the token's own text."""
        keys = {key: self.of_tokenizer(key) for key in ENDS}
        named = {f"tokenizer.ggml.{key}": [int(index)] for key, index in keys.items() if index is not None}
        control = [
            (index, token) for index, (token, kind) in enumerate(zip(self.tokens, self.token_types, strict=False))
            if kind == CONTROL
        ]  # fmt: skip
        marks = turn_ends(token for _, token in control)
        by_text = [index for index, token in control if token in marks]
        return {**named, "the text of a control token": by_text}

    @property
    def ids_beyond(self) -> dict[str, int]:
        """The keys of tokens, such as bos_token_id, whose value is no token of the file, and that value."""
        ids = {key.removeprefix(TOKENIZER): value for key, value in self.values.items() if key.startswith(TOKENIZER)}
        return {
            key: value for key, value in ids.items()
            if key.endswith("_token_id") and not 0 <= value < len(self.tokens)
        }  # fmt: skip

    @property
    def end_ids(self) -> frozenset[int]:
        return frozenset(index for ids in self.end_tokens.values() for index in ids)

    @property
    def sampling(self) -> dict[str, float]:
        """The sampling that the file asks for, by the keys of `general.sampling`; empty if it names none."""
        found = {key: value for key, value in self.values.items() if key.startswith(SAMPLING)}
        return {
            key.removeprefix(SAMPLING): float(f"{value:.6g}")  # they are stored with 24 bits
            for key, value in found.items() if isinstance(value, int | float)
        }  # fmt: skip

    @cached_property
    def precision(self) -> str:
        """The name of the file's mixture of types, such as Q4_K_M; without one, the type of most weights."""
        import gguf

        kind: Any = self.values.get("general.file_type")
        try:
            return gguf.LlamaFileType(kind).name.removeprefix("MOSTLY_").removeprefix("ALL_")
        except ValueError:  # none, or newer than the package
            return gguf.GGMLQuantizationType(max(self.types, key=lambda each: self.types[each])).name


def read_header(path: Path) -> Header:
    """Returns the header of a GGUF file. Raises ConfigError for a file that is none, has another byte order or
    version or weights of an unknown type, is not whole, or lacks what every model has."""
    stat = path.stat()
    return _read(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _read(path: Path, size: int, changed: int) -> Header:
    """See `read_header`. `size`, `changed`: of the file, since it is read once as long as it does not change."""

    def wrong(problem: str, remedy: str = FETCH) -> ConfigError:
        return ConfigError(f"{path}: {problem}: {remedy}")

    if size < 24:
        raise wrong(f"has {size} bytes, which is not a GGUF file")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != MAGIC:
            pointer = data[:40].startswith(b"version https://git-lfs")
            raise wrong(
                "is a pointer of Git LFS, not the file" if pointer else "is not a GGUF file (it begins otherwise)"
            )
        reader = _Reader(data)
        reader.position = 4
        version = reader.number("u4")
        if version not in VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
                raise wrong("is a big-endian file", "take one for little-endian machines")
            raise wrong(f"has version {version} of GGUF, and this reads {VERSIONS[0]} and {VERSIONS[1]}", "convert it")
        try:
            return _checked(_parsed(path, reader))
        except Truncated:
            raise wrong(f"is truncated: its header goes beyond its {size:,} bytes") from None
        except (ValueError, MemoryError, OverflowError) as error:
            raise wrong(f"cannot be read ({error})") from error


def _parsed(path: Path, reader: _Reader) -> Header:
    num_tensors, num_values = reader.number("u8"), reader.number("u8")
    if max(num_tensors, num_values) > len(reader.data):
        raise Truncated
    values: dict[str, Any] = {}
    for _ in range(num_values):
        key = reader.string().decode("utf-8", "replace")
        values[key] = reader.value(reader.number("u4"))
    sizes = _block_sizes()
    types: dict[int, int] = {}
    num_bytes = end = 0
    last = b""  # the tensor that ends last
    tables: dict[bytes, int] = {}
    tensors: dict[str, TensorPlace] = {}
    for _ in range(num_tensors):
        name = reader.string()
        num_dimensions = reader.number("u4")
        if num_dimensions > MOST_DIMENSIONS:
            raise ValueError(f"tensor '{written(name)}' has {num_dimensions} dimensions")
        sizes_of_tensor = tuple(int(each) for each in reader.numbers("u8", num_dimensions))
        num_weights = prod(sizes_of_tensor)
        kind, offset = reader.number("u4"), reader.number("u8")
        if kind not in sizes:  # so its bytes are not known, nor whether the file has them all
            raise ConfigError(
                f"{path}: tensor '{written(name)}' has type {kind}, which the package gguf does not know: fetch the "
                "file again, or install a newer gguf; a file of an old type must be converted again"
            )
        tensors[written(name)] = TensorPlace(path, offset, kind, sizes_of_tensor)
        types[kind] = types.get(kind, 0) + num_weights
        per_block, block_bytes = sizes[kind]
        tensor_bytes = num_weights // per_block * block_bytes
        num_bytes += tensor_bytes
        if name in (EMBEDDINGS, OUTPUT):
            tables[name] = tensor_bytes
        if offset + tensor_bytes > end:
            end, last = offset + tensor_bytes, name
    alignment = values.get("general.alignment", 32)
    if not is_whole(alignment) or alignment < 1 or alignment.bit_count() != 1:
        raise ConfigError(f"{path}: general.alignment = {alignment!r}, which is not a power of two: {FETCH}")
    start = -(-reader.position // alignment) * alignment
    if num_tensors and start + end > len(reader.data):
        raise ConfigError(
            f"{path}: is truncated: its tensors end at byte {start + end:,} with '{written(last)}', and it has "
            f"{len(reader.data):,} bytes: {FETCH}"
        )
    tensors = {name: place._replace(start=start + place.start) for name, place in tensors.items()}
    return Header(path, values, types, num_bytes, tables, tensors)


def written(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _block_sizes() -> dict[int, tuple[int, int]]:
    """Returns weights and bytes of a block of each type."""
    import gguf

    return {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}


def joined(parts: Sequence[Header]) -> Header:
    """Returns the header of a model in one or several files, in the order of their names; the first has the metadata.
    Raises ConfigError for parts that do not belong together."""
    first = parts[0]
    _check_parts(parts)
    if not any(part.tensors for part in parts):
        raise ConfigError(f"{first.path}: it has no tensors: it is the vocabulary of a model: give the model's file")
    for part in parts:
        _check_rows(part, len(first.tokens))
    if len(parts) == 1:
        return first
    types: Counter[int] = Counter()
    for part in parts:
        types.update(part.types)
    tables = {name: size for part in parts for name, size in part.table_sizes.items()}
    return replace(
        first, types=dict(types), num_bytes=sum(part.num_bytes for part in parts), table_sizes=tables,
        tensors={name: place for part in parts for name, place in part.tensors.items()},
    )  # fmt: skip


def _check_parts(parts: Sequence[Header]) -> None:
    """Raises ConfigError for a part whose place or number of parts is another than its file's name says, and for parts
    that do not have all tensors of the model once."""
    number = len(parts)
    if number == 1 and parts[0].values.get("split.count") in (None, 0, 1):
        return
    for place, part in enumerate(parts):
        said = (part.values.get("split.no"), part.values.get("split.count"))
        if said != (place, number):
            of_name = f"part {place + 1} of {number}" if number > 1 else "none"
            raise ConfigError(
                f"{part.path}: split.no = {said[0]} (the first is 0), split.count = {said[1]}, and its name says "
                f"{of_name}: fetch all parts again, with their names (…-00001-of-0000N.gguf)"
            )
    counts = Counter(name for part in parts for name in part.tensors)
    if twice := [name for name, count in counts.items() if count > 1]:
        owners = [part.path.name for part in parts if twice[0] in part.tensors]
        raise ConfigError(
            f"{parts[0].path}: tensor '{twice[0]}' is in {' and in '.join(owners[:2])}, which are of different models "
            f"or quantizations: {FETCH_PARTS}"
        )
    for part in parts:
        if (total := part.values.get("split.tensors.count")) != len(counts):
            raise ConfigError(
                f"{part.path}: split.tensors.count = {total}, and the {number} parts have {len(counts)} tensors, so "
                f"they are not of one model: {FETCH_PARTS}"
            )


def _check_rows(part: Header, num_tokens: int) -> None:
    """Raises ConfigError if the embeddings or the output layer have more or fewer rows than the model has tokens;
    llama.cpp opens neither."""
    for name in (written(EMBEDDINGS), written(OUTPUT)):
        if (place := part.tensors.get(name)) is not None and place.sizes[1:] != (num_tokens,):
            found = " x ".join(f"{size:,}" for size in place.sizes[1:]) or "no"
            raise ConfigError(
                f"{part.path}: tensor '{name}' has {found} rows, and tokenizer.ggml.tokens has {num_tokens:,} tokens: "
                f"{CONVERT}"
            )


def _checked(header: Header) -> Header:
    """Returns a header. Raises ConfigError if it lacks what a language model has, in its first file if it has
    several."""
    path = header.path
    if header.values.get("split.no") not in (None, 0):
        return header
    if not header.architecture:
        raise ConfigError(f"{path}: general.architecture is missing: {CONVERT}")
    if header.values.get("general.type", "model") != "model" or header.architecture == "clip":
        kind = header.values.get("general.type", header.architecture)
        raise ConfigError(f"{path}: general.type = '{kind}': give the file of the language model")
    _check_tokens(header)
    for key, least in (
        ("block_count", 1), ("context_length", 0), ("embedding_length", 0), (f"{SCALING}original_context_length", 0),
    ):  # fmt: skip
        value = header.of_architecture(key)
        if (value is None and least) or (value is not None and not (is_whole(value) and value >= least)):
            raise _wrong(header, f"{header.architecture}.{key}", f"a number of at least {least} is needed")
    kind = header.of_architecture(f"{SCALING}type")
    if kind is not None and kind not in ROPE_SCALINGS:
        raise _wrong(header, f"{header.architecture}.{SCALING}type", nearest(str(kind), ROPE_SCALINGS))
    for key in (f"{SCALING}factor", OLD_FACTOR, "rope.freq_base", *EPSILONS):
        if (factor := header.of_architecture(key)) is not None and not (
            isinstance(factor, float) and 0 <= factor < inf
        ):
            raise _wrong(header, f"{header.architecture}.{key}", "a number of at least 0 is needed")
    return header


def _check_tokens(header: Header) -> None:
    """Raises ConfigError for tokens that are no strings, for types and scores that are not one for each token, and for
    the number of a token that is none, or that ends answers and does not exist. llama.cpp takes a default in place of
    the others that do not exist: see `check_tokenizer_kind`."""
    tokens = header.of_tokenizer("tokens")
    if tokens is None or (isinstance(tokens, list) and not tokens):
        raise ConfigError(
            f"{header.path}: tokenizer.ggml.tokens is missing: it holds no language model's tokens: take another"
        )
    if not isinstance(tokens, list):
        raise _wrong(header, "tokenizer.ggml.tokens", "a list of strings is needed")
    for key, kinds, needed in (("token_type", "iu", "whole numbers"), ("scores", "iuf", "numbers")):
        found = header.of_tokenizer(key)
        if found is None:
            continue
        if not isinstance(found, np.ndarray) or found.dtype.kind not in kinds:
            raise _wrong(header, f"tokenizer.ggml.{key}", f"a list of {needed} is needed")
        if len(found) != len(tokens):
            raise ConfigError(
                f"{header.path}: tokenizer.ggml.{key} has {len(found):,} values, and tokenizer.ggml.tokens has "
                f"{len(tokens):,} tokens: {CONVERT}"
            )
    for key, value in header.values.items():
        if key.startswith(TOKENIZER) and key.endswith("_token_id") and not is_whole(value):
            raise _wrong(header, key, "the number of a token is needed")
    for key in ENDS:
        if key in header.ids_beyond:
            raise _wrong(header, f"tokenizer.ggml.{key}", f"the last token is {len(tokens) - 1:,}")


def _wrong(header: Header, key: str, problem: str) -> ConfigError:
    value = header.values.get(key)
    found = f"{key} is missing" if value is None else f"{key} = {value!r:.60}".replace("\n", " ")
    return ConfigError(f"{header.path}: {found}: {problem}: {CONVERT}")
