"""Folders with arrays and a manifest. A folder is written as a whole, checked when it is opened, and memory-mapped, so
that only the parts in use occupy memory."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import TRAINING_RECORD, replacing, write_atomically, writing
from specbench.core.values import WHOLE, bytes_digest, file_digest, json_digest
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

    @property
    def lengths(self) -> dict[str, int]:
        return {name: info.length for name, info in self.arrays.items()}

    def contradiction(self) -> str | None:
        """Returns a description of fields that contradict each other; None if there are none."""
        raise NotImplementedError

    def mapped(self, folder: Path, name: str) -> Array:
        """Returns an array of the folder, memory-mapped; an empty one if it has no elements or does not exist."""
        info = self.arrays.get(name)
        if info is None or info.length == 0:  # an empty array cannot be mapped
            return np.empty(0, dtype=np.uint8)
        return np.asarray(np.memmap(folder / f"{name}{SUFFIX}", dtype=info.dtype, mode="r"))


AnyManifest = TypeVar("AnyManifest", bound=Manifest)


@dataclass(frozen=True)
class FolderKind(Generic[AnyManifest]):
    """One kind of folder: the name of its model, and the command of `specbench train` that makes it."""

    article: str
    noun: str
    command: str
    manifest_type: type[AnyManifest]

    @property
    def manifest(self) -> str:
        return f"{self.command}.json"

    @property
    def remedy(self) -> str:
        return f"train one with `specbench train {self.command}`"

    def read(self, folder: Path) -> AnyManifest:
        """Returns the validated manifest. Raises ConfigError if it is missing or invalid, or if the files of the arrays
        do not have the stated sizes."""
        path = folder / self.manifest
        if not path.exists():
            raise ConfigError(f"{folder}: no {self.noun} ({self.manifest} is missing): {self.remedy}")
        data = bounded.read_mapping(path, self.remedy)
        version = data.get("format")
        if version != FORMAT:
            raise ConfigError(
                f"{path}: format = {version!r}: this version of specbench reads format {FORMAT}: {self.remedy}"
            )
        manifest = build(self.manifest_type, data, f"{path}: ", remedy=self.remedy)
        if contradiction := manifest.contradiction():
            raise ConfigError(f"{path}: {contradiction}: {self.remedy}")
        for array, info in manifest.arrays.items():
            file, num_bytes = folder / f"{array}{SUFFIX}", info.length * np.dtype(info.dtype).itemsize
            try:
                found = file.stat().st_size
            except OSError as error:
                raise ConfigError(f"{file}: the {self.noun} lacks this file: {self.remedy}") from error
            if found != num_bytes:
                raise ConfigError(f"{file}: {found} bytes where {self.manifest} says {num_bytes}: {self.remedy}")
        return manifest

    def write(self, folder: Path, fields: Mapping[str, object], arrays: Mapping[str, tuple[str, int]]) -> None:
        """Writes the manifest of a folder. `arrays`: element types and lengths by name."""
        listed = {name: {"dtype": dtype, "length": length} for name, (dtype, length) in sorted(arrays.items())}
        content: dict[str, object] = {"format": FORMAT, **fields, "arrays": listed}
        arrays_read = (bytes.fromhex(file_digest(folder / f"{name}{SUFFIX}", WHOLE)) for name in listed)
        content["digest"] = bytes_digest([json.dumps(content, sort_keys=True).encode(), *arrays_read])
        write_atomically(folder / self.manifest, json.dumps(content, indent=2) + "\n")

    def check_replaceable(self, output: Path) -> None:
        """Raises ConfigError for an output folder that holds files of another kind."""
        if not output.is_dir():
            if output.exists() or output.is_symlink():
                raise ConfigError(f"{output}: is a file: give a new folder")
            return
        names = sorted(path.name for path in output.iterdir())
        own = (self.manifest, TRAINING_RECORD)
        foreign = [name for name in names if name not in own and not name.endswith(SUFFIX)]
        if foreign or (names and self.manifest not in names):
            held = (foreign or names)[0]
            raise ConfigError(f"{output}: is not {self.article} {self.noun} (it holds {held}): give a new folder")

    @contextmanager
    def replacing(self, output: Path) -> Iterator[Path]:
        """Yields an empty folder that replaces `output` when the block ends without an error. Raises ConfigError for an
        output that must not be replaced, that another process is replacing, or that cannot be written."""
        self.check_replaceable(output)
        with writing(output, "give another folder"), replacing(output) as folder:
            yield folder


def vocabulary_digest(vocabulary: Mapping[str, int]) -> str:
    """Returns the identity of a tokenizer: 12 hex digits over its tokens and their ids (`get_vocab()`)."""
    pairs = sorted((token_id, token) for token, token_id in vocabulary.items())
    return json_digest(pairs)


class ArrayModel:
    """A model in a folder of its `kind`."""

    kind: ClassVar[FolderKind[Any]]

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.path = folder
        self.vocab_size = manifest.vocab_size
        self.num_tokens = manifest.num_tokens
        self.tokenizer_digest = manifest.tokenizer_digest
        self.digest = manifest.digest

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Returns the memory-mapped model of a folder. Raises ConfigError if the folder is no complete model."""
        folder = Path(path)
        return cls(folder, cls.kind.read(folder))

    @property
    def max_token_id(self) -> int:
        """The largest token id that occurs."""
        raise NotImplementedError
