"""Loading models: local folders, and one clear error for each way it can fail."""

from pathlib import Path

import pytest
import torch

from specbench.errors import ConfigError
from specbench.models.loading import choose_device, fingerprint, load_model
from tests import tiny


def test_local_folder(tmp_path: Path) -> None:
    model = load_model(str(tiny.save(tmp_path)), device="cpu")
    assert model.dtype == "float32"
    assert model.revision == fingerprint(tmp_path)
    assert model.score([1, 2, 3], 1).shape == (1, 257)


def test_dtype_is_chosen(tmp_path: Path) -> None:
    assert load_model(str(tiny.save(tmp_path)), device="cpu", dtype="bfloat16").dtype == "bfloat16"


def test_fingerprint_follows_the_weights(tmp_path: Path) -> None:
    first = fingerprint(tiny.save(tmp_path / "a", seed=0))
    assert first == fingerprint(tiny.save(tmp_path / "b", seed=0))
    assert first != fingerprint(tiny.save(tmp_path / "c", seed=1))


def test_missing_folder_and_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_model(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load_model(str(tmp_path))


def test_broken_weights(tmp_path: Path) -> None:
    (tiny.save(tmp_path) / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ConfigError, match="cannot load model"):
        load_model(str(tmp_path), device="cpu")


def test_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"cannot load model 'nobody/nothing'.*local folder"):
        load_model("nobody/nothing")


def test_encoder_decoder_is_refused(tmp_path: Path) -> None:
    from transformers import T5Config

    T5Config().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="encoder-decoder"):
        load_model(str(tmp_path))


def test_devices() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    for name in ("nonsense", "cuda:99"):
        with pytest.raises(ConfigError, match=f"--device {name}"):
            choose_device(name)
