"""Folders and hub ids of draft heads: which files are read, which are refused, and which kind a head is of."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from specbench.core.errors import ConfigError
from specbench.models.checkpoints import fingerprint
from specbench.models.heads.checkpoints import read_checkpoint
from tests.support.heads import (
    EAGLE1,
    EAGLE3,
    LAYER,
    SPECFORGE,
    SPECULATORS,
    Tensors,
    eagle1_tensors,
    eagle3_tensors,
    medusa_tensors,
    save_head,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class RunsCode:
    """Its pickle makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    ("config", "tensors", "file", "kind"),
    [
        ({"medusa_num_heads": 2, "medusa_num_layers": 1}, medusa_tensors(), "medusa_lm_head.pt", "medusa"),
        (
            {"medusa_num_layers": 0, "version": "2"},
            medusa_tensors(num_blocks=0),
            "medusa_lm_head.safetensors",
            "medusa",
        ),
        (EAGLE1, eagle1_tensors(), "pytorch_model.bin", "eagle"),
        (LAYER, eagle1_tensors(bias=False, embeddings=False), "model.safetensors", "eagle"),
        (EAGLE3, eagle3_tensors(), "pytorch_model.bin", "eagle3"),
        (LAYER, eagle3_tensors(), "model.safetensors", "eagle3"),
        (SPECFORGE, eagle3_tensors(), "model.safetensors", "eagle3"),
        (SPECULATORS, eagle3_tensors(prefix="layers.0"), "model.safetensors", "eagle3"),
    ],
)
def test_the_tensors_tell_the_kind(
    config: dict[str, Any], tensors: Tensors, file: str, kind: str, tmp_path: Path
) -> None:
    checkpoint = read_checkpoint(str(save_head(tmp_path, config, tensors, file)))
    assert checkpoint.kind == kind
    assert checkpoint.revision == fingerprint(str(tmp_path))
    assert {name: tensor.tolist() for name, tensor in checkpoint.tensors.items()} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }
    other = "eagle" if kind == "medusa" else "medusa"
    with pytest.raises(ConfigError, match=f"of kind {kind}, not {other}: use a method of {kind}"):
        checkpoint.expect(other)  # type: ignore[arg-type]


def test_every_weight_file_changes_the_identity(tmp_path: Path) -> None:
    for file in ("medusa_lm_head.pt", "medusa_lm_head.safetensors"):
        found = {
            read_checkpoint(str(save_head(tmp_path / file, {}, medusa_tensors(seed), file))).revision for seed in (1, 2)
        }
        assert len(found) == 2


def test_shards_are_joined(tmp_path: Path) -> None:
    tensors = eagle3_tensors()
    save_head(tmp_path, EAGLE3, {}, "model-00001-of-00002.safetensors")
    save_file({name: tensors[name] for name in sorted(tensors)[:5]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({name: tensors[name] for name in sorted(tensors)[5:]}, tmp_path / "model-00002-of-00002.safetensors")
    assert read_checkpoint(str(tmp_path)).tensors.keys() == tensors.keys()
    save_file({"fc.weight": tensors["fc.weight"]}, tmp_path / "other.safetensors")
    with pytest.raises(
        ConfigError, match=r"other\.safetensors: holds fc\.weight, which model-00001-of-00002\.safetensors holds too"
    ):
        read_checkpoint(str(tmp_path))


def test_safetensors_go_before_pickles(tmp_path: Path) -> None:
    """A folder may have both, and other files of a training."""
    save_head(tmp_path, EAGLE3, eagle3_tensors())
    for name in ("pytorch_model.bin", "training_state.pt", "optimizer.bin"):
        torch.save(RunsCode(tmp_path / "made"), tmp_path / name)
    assert read_checkpoint(str(tmp_path)).kind == "eagle3"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("file", ["pytorch_model.bin", "medusa_lm_head.pt"])
@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickle_that_would_run_code_is_refused(file: str, is_zip: bool, tmp_path: Path) -> None:
    folder, made = save_head(tmp_path / "head", EAGLE1, {}, file), tmp_path / "made"
    content = {**eagle1_tensors(), "extra": RunsCode(made)}
    torch.save(content, folder / file, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(
        ConfigError, match=rf"{file}: refused: it holds more than tensors.*\.safetensors files"
    ) as error:
        read_checkpoint(str(folder))
    assert "\n" not in str(error.value) and not made.exists()


def test_files_of_old_versions_of_torch_are_read(tmp_path: Path) -> None:
    folder = save_head(tmp_path, EAGLE1, {}, "pytorch_model.bin")
    torch.save(eagle1_tensors(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert read_checkpoint(str(folder)).tensors.keys() == eagle1_tensors().keys()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("pytorch_model.bin", b"not a pickle", "pytorch_model.bin: "),
        ("pytorch_model.bin", b"PK\3\4 broken", "pytorch_model.bin: cannot be read: "),
        ("model.safetensors", b"", "model.safetensors: cannot be read: .*: restore it from the checkpoint"),
        ("model.safetensors", struct.pack("<Q", 2**60), "model.safetensors: cannot be read: "),
        ("weights.pth", b"", r"has no weights \(none of medusa_lm_head.safetensors, .*, pytorch_model\*.bin\)"),
        ("config.json", b"[]", "config.json: is not a mapping"),
    ],
)
def test_files_that_cannot_be_read(file: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^drafter\.path = '{tmp_path}': .*{message}") as error:
        read_checkpoint(str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [[torch.zeros(1)], {"state": {"fc.weight": torch.zeros(1)}}])
def test_pickles_of_something_else(content: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin: does not hold a mapping of names to tensors"):
        read_checkpoint(str(tmp_path))


LAYERS = {
    "layers.0.mlp.up_proj.weight": torch.zeros(2, 2),
    "fc.weight": torch.zeros(2, 2),
    "hidden_norm.weight": torch.ones(2),
}


@pytest.mark.parametrize(
    ("config", "tensors", "title"),
    [
        ({"architectures": ["DFlash2DraftModel"]}, LAYERS, "DFlash2"),
        ({"dflash_config": {"projector_type": "lilicorr"}}, LAYERS, "LiLiCorr"),
        ({"speculators_model_type": "mtp"}, {"mtp.fc.weight": torch.zeros(2, 4)}, "MTP"),
        ({"model_type": "qwen3_next"}, {"mtp.fc.weight": torch.zeros(2, 4), "mtp.norm.weight": torch.ones(2)}, "MTP"),
        ({"model_type": "deepseek_v3"}, {"model.layers.61.eh_proj.weight": torch.zeros(2, 4)}, "MTP"),
    ],
)  # fmt: skip
def test_other_formats_are_recognized(config: dict[str, Any], tensors: Tensors, title: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=f"in the format {title}, which is not supported: give a head of Medusa, EAGLE, "
    ):
        read_checkpoint(str(save_head(tmp_path, config, tensors)))


def test_a_whole_model_is_no_head(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": torch.zeros(2, 2), "lm_head.weight": torch.zeros(2, 2)}
    with pytest.raises(
        ConfigError, match=r"not a draft head: it has the tensors lm_head.weight, model.embed_tokens.weight"
    ):
        read_checkpoint(str(save_head(tmp_path, LAYER, tensors)))


class Hub:
    """Answers as huggingface_hub does, from a folder, and notes what is asked for."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception | None = None) -> None:
        self.folder, self.problem = folder, problem
        self.asked: list[tuple[Any, ...]] = []
        monkeypatch.setattr("huggingface_hub.model_info", self.model_info)
        monkeypatch.setattr("huggingface_hub.snapshot_download", self.snapshot_download)

    def model_info(self, name: str, **options: Any) -> None:
        if self.problem is not None:
            raise self.problem

    def snapshot_download(self, name: str, **options: Any) -> str:
        self.asked.append((name, options["revision"], tuple(options["allow_patterns"]), options["local_files_only"]))
        return str(self.folder)


def test_hub_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the configuration and the weights are downloaded, safetensors before pickles."""
    monkeypatch.chdir(tmp_path)
    hub = Hub(save_head(tmp_path / "eagle1", EAGLE1, eagle1_tensors(), "pytorch_model.bin"), monkeypatch)
    checkpoint = read_checkpoint("org/head", "v1")
    assert (checkpoint.name, checkpoint.kind) == ("org/head", "eagle")
    assert hub.asked[0] == ("org/head", "v1", ("config.json", "medusa_lm_head.safetensors"), False)
    hub.folder = save_head(tmp_path / "medusa", {}, medusa_tensors(), "medusa_lm_head.safetensors")
    hub.asked.clear()
    assert read_checkpoint("org/head").kind == "medusa"
    assert len(hub.asked) == 1


def test_without_the_hub_the_local_cache_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    repo = tmp_path / "hub" / "models--org--head"
    save_head(repo / "snapshots" / COMMIT, EAGLE3, eagle3_tensors())
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def refuse(name: str, **options: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.model_info", refuse)
    checkpoint = read_checkpoint("org/head")
    assert (checkpoint.kind, checkpoint.revision) == ("eagle3", COMMIT)
    with pytest.raises(ConfigError, match=r"^drafter\.path = 'org/other': cannot load the head: .*no route") as error:
        read_checkpoint("org/other")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        ("./nothere", None, r"model folder './nothere' does not exist"),
        ("empty", None, "model folder 'empty' has no config.json"),
        ("run", None, "'run' is the folder of a run, not of a model: `specbench report run` shows it"),
        ("./one.gguf:Q8_0", None, "'./one.gguf:Q8_0': ./one.gguf is one file: leave out ':Q8_0'"),
        ("head", "v1", "is not on the hub: leave out drafter.revision"),
        ("embedded:target", "v1", "is not on the hub: leave out drafter.revision"),
    ],
)
def test_names_that_are_refused(
    name: str, revision: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "run"):
        (tmp_path / folder).mkdir()
    for file in ("run/run.json", "one.gguf"):
        (tmp_path / file).touch()
    save_head(tmp_path / "head", EAGLE3, eagle3_tensors())
    with pytest.raises(ConfigError, match=rf"^drafter\.path = '{name}': {message}"):
        read_checkpoint(name, revision)


def test_the_configuration_is_json(tmp_path: Path) -> None:
    save_head(tmp_path, EAGLE3, eagle3_tensors())
    (tmp_path / "config.json").write_text(json.dumps(EAGLE3)[:-1])
    with pytest.raises(ConfigError, match=r"config\.json, line 1: not valid JSON"):
        read_checkpoint(str(tmp_path))
