"""Names of GGUF models: a file, a folder with one, or a file on the hub (`org/repo:Q4_K_M`, `org/repo:file.gguf`).
Imports neither torch nor transformers."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from specbench.core.environment import EMBEDDED, OBJECT, require
from specbench.core.errors import ConfigError, nearest
from specbench.core.values import WHOLE, model_digest, text_digest
from specbench.models.gguf.header import Header, joined, read_header
from specbench.models.sources import TIMEOUT_SECONDS

SUFFIX = ".gguf"
SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)")
# Ollama and llama.cpp write the hub before the repository, or leave it out.
ON_HUB = re.compile(r"^(?:https?://)?(?:(?:hf\.co|huggingface\.co)/)?(?P<repo>[\w.-]+/[\w.-]+):(?P<file>[^\\]+)$")
NO_MODELS = ("mmproj", "imatrix")  # files beside a model: of images, and of what quantization measured


@dataclass(frozen=True)
class GgufFile:
    """The files of a GGUF model, the first of which has the metadata. `revision`: the commit on the hub, if any."""

    paths: tuple[Path, ...]
    revision: str | None = None

    @property
    def path(self) -> Path:
        return self.paths[0]

    @property
    def header(self) -> Header:
        """Raises ConfigError for a file that is not whole or no model's, and for parts of different models."""
        return joined([read_header(path) for path in self.paths])

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    @property
    def identity(self) -> str:
        """SHA-256 of the file; of a model in several files, of the list of theirs."""
        digests = [model_digest(path) for path in self.paths]
        return f"sha256-{digests[0] if len(digests) == 1 else text_digest(' '.join(digests), WHOLE)}"


def is_gguf(name: str) -> bool:
    """Returns whether a model's name is one of a GGUF file: by its end, by its form (`org/repo:…`), or because it is a
    folder that has such files and no checkpoint. Reads no file and asks no hub."""
    if name.startswith((EMBEDDED, OBJECT)):
        return False
    if name.lower().endswith(SUFFIX) or _on_hub(name) is not None:
        return True
    folder = Path(name)
    return folder.is_dir() and not (folder / "config.json").exists() and any(folder.glob(f"*{SUFFIX}"))


def _on_hub(name: str) -> tuple[str, str] | None:
    """Returns repository and file or quantization of a name like org/repo:Q4_K_M; None for any other."""
    found = ON_HUB.match(name)
    return (found["repo"], found["file"]) if found and not Path(name).exists() else None


def check_gguf(name: str) -> None:
    """Raises ConfigError for a missing package, and for a local file that is missing or cannot be a model."""
    require("gguf", f"model '{name}'")
    if _on_hub(name) is None:
        local_file(name).header  # noqa: B018


@lru_cache(maxsize=16)
def find_gguf(name: str, revision: str | None = None) -> GgufFile:
    """Returns the files of a model, which are fetched from the hub if need be. Raises ConfigError if there are none or
    several, if a part is missing, and for what cannot be a model."""
    require("gguf", f"model '{name}'")
    on_hub = _on_hub(name)
    found = local_file(name) if on_hub is None else hub_file(*on_hub, revision)
    found.header  # noqa: B018
    return found


def local_file(name: str) -> GgufFile:
    """Returns the files of a local name. Raises ConfigError as `find_gguf` does."""
    path = Path(name).expanduser()
    if path.is_dir():
        names = models_among(each.name for each in path.glob(f"*{SUFFIX}"))
        if len(names) > 1:
            raise ConfigError(f"folder '{name}' has several GGUF models ({listed(names)}): give the file")
        if not names:
            raise ConfigError(f"folder '{name}' has no GGUF file of a language model: give the file")
        path /= names[0]
    if not path.exists():
        others = models_among(each.name for each in path.parent.glob(f"*{SUFFIX}")) if path.parent.is_dir() else []
        beside = f" ({path.parent} has {listed(others)})" if others else ""
        raise ConfigError(f"GGUF file '{name}' does not exist{beside}: check the path, or give org/repo:Q4_K_M")
    if not path.is_file():
        raise ConfigError(f"{name}: cannot be read: it is a pipe or a device, not a file: give a GGUF file")
    parts = [path.parent / each for each in shards_of(path.name)]
    if lacking := [each.name for each in parts if not each.is_file()]:
        raise ConfigError(
            f"GGUF file '{name}' is one of {len(parts)} parts, and {listed(lacking)} "
            f"{'is' if len(lacking) == 1 else 'are'} missing beside it: fetch all parts"
        )
    return GgufFile(tuple(parts))


def shards_of(name: str) -> list[str]:
    """Returns the names of all parts of a split model; the name alone if it is not split."""
    found = SHARD.search(name)
    if found is None:
        return [name]
    number = int(found[2])
    return [f"{name[: found.start()]}-{index:05d}-of-{number:05d}{SUFFIX}" for index in range(1, number + 1)]


def models_among(names: Iterable[str]) -> list[str]:
    """Returns the names of language models, of split ones only their first part."""
    return sorted(
        name for name in names
        if name.lower().endswith(SUFFIX) and name == shards_of(name)[0]
        and not any(word in PurePosixPath(name).name.lower() for word in NO_MODELS)
    )  # fmt: skip


def listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def hub_file(repo: str, wanted: str, revision: str | None) -> GgufFile:
    """Returns the files of `repo` that `wanted` names: a file, or a quantization such as Q4_K_M. Without the hub, the
    local cache is used."""
    import huggingface_hub

    where = f"model '{repo}:{wanted}'"
    problem = None
    try:
        info = huggingface_hub.model_info(repo, revision=revision, timeout=TIMEOUT_SECONDS)
        names = [each.rfilename for each in info.siblings or ()]
    except Exception as error:  # several libraries raise many classes: offline, unknown, gated, a proxy
        kind, reason = type(error).__name__, " ".join(str(error).split())[:200]
        problem = f"the hub does not provide it: {kind}: {reason}"
        if kind == "OfflineModeIsEnabled":
            problem = "HF_HUB_OFFLINE is set, so the hub is not asked"
        names = cached_names(repo, revision)
    models = models_among(names)
    if not models:
        nothing = f"{problem}, and the local cache has no GGUF file of it"
        cause = nothing if problem else "the repository has no GGUF files"
        raise ConfigError(
            f"cannot load {where}: {cause}{unknown_type(wanted)}: give a GGUF file, or a repository that this machine "
            "can reach"
        )
    first = one_of(models, wanted, where, f"{problem}, and the local cache of {repo}" if problem else "the repository")
    try:
        paths = [
            Path(huggingface_hub.hf_hub_download(repo, name, revision=revision, local_files_only=problem is not None))
            for name in shards_of(first)
        ]
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"cannot load {where}: {first}: {reason}: fetch it when the hub can be reached") from error
    return GgufFile(tuple(paths), revision)


def cached_names(repo: str, revision: str | None) -> list[str]:
    """Returns the names of a repository's files in the local cache."""
    import huggingface_hub

    try:
        folder = Path(huggingface_hub.snapshot_download(repo, revision=revision, local_files_only=True))
    except Exception:  # nothing is cached
        return []
    return [path.relative_to(folder).as_posix() for path in folder.rglob(f"*{SUFFIX}")]


def one_of(models: Sequence[str], wanted: str, where: str, place: str = "the repository") -> str:
    """Returns the model that is wanted by its file's name, or by the quantization in it. Raises ConfigError unless it
    is exactly one. `place`: has the models."""
    if wanted.lower().endswith(SUFFIX):
        chosen = [name for name in models if wanted in (name, PurePosixPath(name).name) or wanted in shards_of(name)]
    else:
        tag = re.compile(rf"(^|[-._/]){re.escape(wanted)}($|[-./])", re.IGNORECASE)
        chosen = [name for name in models if tag.search(SHARD.sub("", name).removesuffix(SUFFIX))]
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        raise ConfigError(f"{where}: {place} has no such file{unknown_type(wanted)}: {nearest(wanted, models)}")
    raise ConfigError(
        f"{where}: several files have this name ({listed(chosen)}): name the file, as in org/repo:file.gguf"
    )


def unknown_type(wanted: str) -> str:
    """Returns the part of a sentence that says that no file is quantized so: what looks like a type of weights and is
    none of llama.cpp's, such as Q9_K. Publishers append to the types, as in Q4_K_XL. Empty for others."""
    import gguf

    names = (*gguf.LlamaFileType.__members__, *gguf.GGMLQuantizationType.__members__)
    types = {name.removeprefix("MOSTLY_") for name in names}
    word = wanted.upper()
    is_known = any(word == each or word.startswith(f"{each}_") for each in types)
    if is_known or not re.fullmatch(r"(I?Q|TQ|B?F)\d\w*", word):
        return ""
    return f" ({wanted} is no type of llama.cpp, as Q4_K_M and Q8_0 are)"
