"""Loading models: local folders, and one clear error for each way it can fail."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specbench.core.errors import ConfigError
from specbench.models.checkpoints import fingerprint
from specbench.models.loading import check_causal, choose_device, load_model, load_tokenizer
from tests.support import tiny


def test_local_folder(tmp_path: Path) -> None:
    model = load_model(str(tiny.save(tmp_path)), device="cpu")
    assert model.dtype == "float32"
    assert model.revision == fingerprint(str(tmp_path))
    assert model.score([1, 2, 3], 1).logits.shape == (1, 257)


@pytest.mark.parametrize("revision", [None, "v1", "0123456789abcdef0123456789abcdef01234567"])
def test_a_hub_model_is_identified_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revision: str | None
) -> None:
    """In the layout of the hub's cache folder, without the hub."""
    commit, repo = "0123456789abcdef0123456789abcdef01234567", tmp_path / "models--org--tiny"
    tiny.save(repo / "snapshots" / commit, num_hidden_layers=1)
    (repo / "refs").mkdir()
    for name in ("main", "v1"):
        (repo / "refs" / name).write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert load_model("org/tiny", revision=revision, device="cpu").revision == commit
    assert load_model("org/tiny", revision=revision, weights=False).revision == commit


def test_without_weights_a_model_knows_its_tokens_and_computes_nothing(tmp_path: Path) -> None:
    """Also the end tokens that only its generation config has."""
    tiny.save(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    whole = load_model(str(tmp_path), device="cpu")
    bare = load_model(str(tmp_path), weights=False)
    for name in ("name", "revision", "vocabulary", "vocab_size", "context_limit", "eos_token_ids"):
        assert getattr(bare, name) == getattr(whole, name)
    assert {3, 4} < bare.eos_token_ids
    assert bare.encode_prompt("word", chat=False) == whole.encode_prompt("word", chat=False)
    assert {parameter.device.type for parameter in bare.model.parameters()} == {"meta"}


def test_dtype_is_chosen(tmp_path: Path) -> None:
    assert load_model(str(tiny.save(tmp_path)), device="cpu", dtype="bfloat16").dtype == "bfloat16"


def test_fingerprint_follows_the_weights(tmp_path: Path) -> None:
    made = [fingerprint(str(tiny.save(tmp_path / name, seed=seed))) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    assert made[0] == made[1] != made[2]


def test_fingerprint_follows_every_byte(tmp_path: Path) -> None:
    weights = tiny.save(tmp_path, num_extra=4000, hidden_size=256) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    assert len(content) > 3_000_000
    before = fingerprint(str(tmp_path))
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert fingerprint(str(tmp_path)) != before


def test_incomplete_checkpoint(tmp_path: Path) -> None:
    weights = tiny.save(tmp_path) / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks 1 tensors.*layers\.1\.mlp\.down_proj"):
        load_model(str(tmp_path), device="cpu")


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    weights = tiny.save(tmp_path) / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="not finite"):
        load_model(str(tmp_path), device="cpu")


def test_encoder_is_no_causal_model(tmp_path: Path) -> None:
    network = tiny.network("bert", is_decoder=False)
    network.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="it is an encoder; specbench measures causal"):
        load_model(str(tmp_path), device="cpu")


def test_a_model_that_looks_ahead_is_refused() -> None:
    model = tiny.causal_lm()
    check_causal(model)
    for layer in model.model.model.layers:
        layer.self_attn.is_causal = False
    model.model.config.is_causal = False
    with pytest.raises(ConfigError, match="not a causal language model"):
        check_causal(model)


def test_a_check_that_is_out_of_memory_says_so_instead_of_refusing_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.causal_lm()

    def forward(*args: object, **kwargs: object) -> None:
        raise torch.AcceleratorError("CUDA error: out of memory")

    monkeypatch.setattr(model.model, "forward", forward)
    with pytest.raises(torch.AcceleratorError, match="out of memory"):
        check_causal(model)


def test_missing_folder_and_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_model(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load_model(str(tmp_path))


def test_broken_weights(tmp_path: Path) -> None:
    (tiny.save(tmp_path) / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ConfigError, match=r"cannot load model.*model\.safetensors is broken or not whole \("):
        load_model(str(tmp_path), device="cpu")


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    for path in tiny.save(tmp_path).glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ConfigError, match=r"it has no tokenizer \(none of tokenizer\.json, .*vocab\.txt\) \(give"):
        load_model(str(tmp_path), device="cpu")
    with pytest.raises(ConfigError, match=r"it has no tokenizer \(none of tokenizer\.json, "):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is not valid JSON"):
        load_model(str(tmp_path), device="cpu")


def test_a_folder_that_is_not_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks like a hub id may be meant as a folder: both are said."""

    def refuse(name: str, **options: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.model_info", refuse)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf" / "target").mkdir(parents=True)
    for load in (load_model, load_tokenizer):
        with pytest.raises(ConfigError, match=r"no folder 'hf/nothere' here \(hf holds target\), and the hub .* route"):
            load("hf/nothere")
        with pytest.raises(ConfigError, match=r"': there is no folder 'nothere' here, and the hub .* route"):
            load("nothere")


@pytest.mark.parametrize("error", [ConnectionError("no route"), TimeoutError("timed out"), OSError("Name unknown")])
def test_hub_out_of_reach_is_asked_once(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    asked = []

    def refuse(name: str, **options: object) -> None:
        asked.append(name)
        raise error

    monkeypatch.setattr("huggingface_hub.model_info", refuse)
    with pytest.raises(ConfigError, match=rf"cannot load model 'nobody/nothing'.*{error}.*local folder"):
        load_model("nobody/nothing")
    assert asked == ["nobody/nothing"]


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
