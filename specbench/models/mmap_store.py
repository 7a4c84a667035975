"""Folders with arrays and a manifest. A folder is written as a whole, checked when it is opened, and memory-mapped, so
that only the parts in use occupy memory."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import TRAINING_RECORD, replacing, write_atomically, writing
from specbench.core.values import bytes_digest, json_digest
from specbench.specs.components import build

Array = NDArray[Any]
FORMAT = 1
SUFFIX = ".bin"
Count = Annotated[int, Field(ge=1)]


class ArrayInfo(BaseModel):
    """The element type of an array, such as "<u4", and its number of elements."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: Annotated[str, Field(pattern=r"^(\|u1|<u[248])$")]
    length: Annotated[int, Field(ge=0)]


class Manifest(BaseModel):
    """The content of a manifest. `digest`: a hash of all other fields and the bytes of all arrays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    vocab_size: Count
    num_tokens: Count
    tokenizer_digest: str
    arrays: dict[str, ArrayInfo]
    digest: str

    def expected_lengths(self) -> dict[str, int]:
        """Returns the length that each array must have by the other fields."""
        raise NotImplementedError

    def mapped(self, folder: Path, name: str) -> Array:
        """Returns an array of the folder, memory-mapped; an empty one if it has no elements or does not exist."""
        info = self.arrays.get(name)
        if info is None or info.length == 0:  # an empty array cannot be mapped
            return np.empty(0, dtype=np.uint8)
        return np.asarray(np.memmap(folder / f"{name}{SUFFIX}", dtype=info.dtype, mode="r"))


def vocabulary_digest(vocabulary: Mapping[str, int]) -> str:
    """Returns the identity of a tokenizer: 12 hex digits over its tokens and their ids (`get_vocab()`)."""
    pairs = sorted((token_id, token) for token, token_id in vocabulary.items())
    return json_digest(pairs)


class ArrayModel:
    """A model in a folder. Subclasses give its name, the command of `specbench train` that makes it, and the type of
    its manifest."""

    noun: ClassVar[str]
    command: ClassVar[str]
    manifest_type: ClassVar[type[Manifest]]

    def __init__(self, folder: Path, manifest: Any) -> None:
        self.path = folder
        self.vocab_size: int = manifest.vocab_size
        self.num_tokens: int = manifest.num_tokens
        self.tokenizer_digest: str = manifest.tokenizer_digest
        self.digest: str = manifest.digest

    @property
    def max_token_id(self) -> int:
        """The largest token id that occurs."""
        raise NotImplementedError

    @classmethod
    def manifest_name(cls) -> str:
        return f"{cls.command}.json"

    @classmethod
    def remedy(cls) -> str:
        return f"train one with `specbench train {cls.command}`"

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Returns the memory-mapped model of a folder. Raises ConfigError if its manifest is missing or invalid, or if
        the files of the arrays do not have the stated sizes."""
        folder = Path(path)
        remedy = cls.remedy()
        file = folder / cls.manifest_name()
        if not file.exists():
            raise ConfigError(f"{folder}: no {cls.noun} ({file.name} is missing): {remedy}")
        data = bounded.read_mapping(file, remedy)
        version = data.get("format")
        if version != FORMAT:
            raise ConfigError(
                f"{file}: format = {version!r}: this version of specbench reads format {FORMAT}: {remedy}"
            )
        manifest = build(cls.manifest_type, data, f"{file}: ", remedy=remedy)
        if {name: info.length for name, info in manifest.arrays.items()} != manifest.expected_lengths():
            raise ConfigError(f"{file}: arrays: their lengths contradict the other fields: {remedy}")
        for name, info in manifest.arrays.items():
            array = folder / f"{name}{SUFFIX}"
            num_bytes = info.length * np.dtype(info.dtype).itemsize
            try:
                found = array.stat().st_size
            except OSError as error:
                raise ConfigError(f"{array}: the {cls.noun} lacks this file: {remedy}") from error
            if found != num_bytes:
                raise ConfigError(f"{array}: {found} bytes where {file.name} says {num_bytes}: {remedy}")
        return cls(folder, manifest)

    @classmethod
    def write(cls, folder: Path, fields: Mapping[str, object], arrays: Mapping[str, Array]) -> None:
        """Writes arrays of unsigned integers by name, and the manifest with the other fields of its type."""
        listed = {name: {"dtype": arrays[name].dtype.str, "length": len(arrays[name])} for name in sorted(arrays)}
        content: dict[str, object] = {"format": FORMAT, **fields, "arrays": listed}
        parts = [json.dumps(content, sort_keys=True).encode()]
        for name in listed:
            arrays[name].tofile(folder / f"{name}{SUFFIX}")
            parts.append(sha256(arrays[name].tobytes()).digest())
        content["digest"] = bytes_digest(parts)
        write_atomically(folder / cls.manifest_name(), json.dumps(content, indent=2) + "\n")

    @classmethod
    def check_replaceable(cls, output: Path) -> None:
        """Raises ConfigError for an output folder that holds files of another kind."""
        if not output.is_dir():
            if output.exists() or output.is_symlink():
                raise ConfigError(f"{output}: is a file: give a new folder")
            return
        names = sorted(path.name for path in output.iterdir())
        manifest = cls.manifest_name()
        own = (manifest, TRAINING_RECORD)
        foreign = [name for name in names if name not in own and not name.endswith(SUFFIX)]
        if foreign or (names and manifest not in names):
            held = (foreign or names)[0]
            raise ConfigError(f"{output}: holds {held} but no {cls.noun}: give a new folder")

    @classmethod
    @contextmanager
    def replacing(cls, output: Path) -> Iterator[Path]:
        """Yields an empty folder that replaces `output` when the block ends without an error. Raises ConfigError for an
        output that must not be replaced, that another process is replacing, or that cannot be written."""
        cls.check_replaceable(output)
        with writing(output, "give another folder"), replacing(output) as folder:
            yield folder
