"""Checkpoints whose configuration, weights or tokenizer lie: each is refused before much is allocated, and none runs
code."""

import json
import shutil
import struct
from pathlib import Path

import pytest

from specbench.core.errors import ConfigError
from specbench.models.loading import load_model
from tests.attacks.bounds import within_bounds

SIZES, WEIGHTS, LOAD = "it must be a whole number from 1 to", "restore config.json", "cannot load model"
CONFIGS = {  # changes to config.json → what the error tells
    "no positions": ({"max_position_embeddings": 0}, SIZES),
    "positions without an end": ({"max_position_embeddings": 10**12}, SIZES),
    "a million layers": ({"num_hidden_layers": 1_000_000}, SIZES),
    "layers that are not there": ({"num_hidden_layers": 20}, WEIGHTS),
    "no layers": ({"num_hidden_layers": 0}, SIZES),
    "negative layers": ({"num_hidden_layers": -1}, SIZES),
    "true layers": ({"num_hidden_layers": True}, "expected int"),
    "layers as text": ({"num_hidden_layers": "2"}, "expected int"),
    "half a layer": ({"num_hidden_layers": 2.5}, "expected int"),
    "no vocabulary": ({"vocab_size": 0}, SIZES),
    "a negative vocabulary": ({"vocab_size": -1}, SIZES),
    "a billion tokens": ({"vocab_size": 10**9}, SIZES),
    "a million tokens": ({"vocab_size": 10**6}, WEIGHTS),
    "wide": ({"hidden_size": 100_000}, WEIGHTS),
    "beyond 64 bits": ({"hidden_size": 10**30}, SIZES),
    "wide between": ({"intermediate_size": 10**7}, WEIGHTS),
    "wide heads": ({"head_dim": 100_000}, WEIGHTS),
    "negative heads": ({"head_dim": -8}, SIZES),
    "no heads": ({"num_attention_heads": 0}, LOAD),
    "no heads of keys": ({"num_key_value_heads": 0}, SIZES),
    "a list for a number": ({"hidden_size": [32]}, "expected int"),
    "an unknown kind": ({"model_type": "evil"}, LOAD),
    "a list of kinds": ({"model_type": ["llama"]}, LOAD),
    "an unknown activation": ({"hidden_act": "x"}, LOAD),
    "an unknown type": ({"dtype": "x"}, LOAD),
    "a text for a small number": ({"rms_norm_eps": "x"}, LOAD),
    "an end token that is a text": ({"eos_token_id": "x"}, "eos_token_id"),
    "an end token below zero": ({"eos_token_id": [1, -5]}, "eos_token_id = [1, -5]: -5 is not an id"),
    "a fraction of an end token": ({"eos_token_id": 1.5}, "eos_token_id"),
    "positions beyond mathematics": ({"rope_parameters": {"rope_type": "yarn", "factor": -1, "rope_theta": 0}}, LOAD),
}
FILES = {  # file, content → what the error tells
    "a deep configuration": ("config.json", b'{"a":' * 1_000_000, "exceeds 64 levels"),
    "a configuration of one number": ("config.json", b'{"vocab_size": ' + b"9" * 1_000_000 + b"}", "a number of 1,000"),
    "a configuration with a key twice": ("config.json", b'{"vocab_size": 1, "vocab_size": 2}', "duplicate key 'vocab_"),
    "a configuration that is a list": ("config.json", b"[]", "is not a mapping"),
    "no configuration": ("config.json", b"", "not valid JSON"),
    "a header of an exabyte": ("model.safetensors", struct.pack("<Q", 2**60), "model.safetensors is broken"),
    "a header beyond the file": ("model.safetensors", struct.pack("<Q", 10**6) + b"{}", "model.safetensors is broken"),
    "a deep header": (
        "model.safetensors", struct.pack("<Q", 500_000) + b'{"a":' * 100_000, "model.safetensors is broken",
    ),
    "a tensor of an exabyte": (
        "model.safetensors",
        struct.pack("<Q", 80) + b'{"a":{"dtype":"F32","shape":[1073741824,268435456],"data_offsets":[0,8]}}'.ljust(80)
        + b"\0" * 8, "model.safetensors is broken",
    ),
    "weights of another model": (
        "model.safetensors",
        struct.pack("<Q", 64) + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'.ljust(64) + b"\0" * 8,
        WEIGHTS,
    ),
    "no weights": ("model.safetensors", b"", "model.safetensors is broken"),
    "end tokens of a generation that are texts": (
        "generation_config.json", b'{"eos_token_id": ["x"]}', "generation_config.json: eos_token_id = ['x']: 'x' is no",
    ),
    "half a generation config": (
        "generation_config.json", b'{"eos_token_id": [3, ', "generation_config.json, line 1: not valid JSON",
    ),
    "a deep tokenizer": ("tokenizer.json", b'{"a":' * 1_000_000, "tokenizer.json is not valid JSON"),
    "half a tokenizer": ("tokenizer.json", b'{"version": "1.0", "model": {"type": "BPE", "vocab": {', "tokenizer.json"),
    "a tokenizer without a model": ("tokenizer.json", b'{"version": "1.0"}', LOAD),
    "deep settings of a tokenizer": ("tokenizer_config.json", b'{"a":' * 1_000_000, "tokenizer_config.json is not"),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _imported(tiny_pair) -> None:
    """What a sound one imports is none of the attack's time."""
    load_model(tiny_pair[0])


@pytest.fixture
def checkpoint(tiny_pair, tmp_path) -> Path:
    """A copy of a sound one, to be broken."""
    return Path(shutil.copytree(tiny_pair[0], tmp_path / "model"))


def refused(checkpoint: Path, told: str) -> None:
    with within_bounds(), pytest.raises(ConfigError) as raised:
        load_model(str(checkpoint))
    assert told in str(raised.value) and "\n" not in str(raised.value)


def changed(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_refused(checkpoint, name):
    changes, told = CONFIGS[name]
    changed(checkpoint / "config.json", **changes)
    refused(checkpoint, told)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_refused(checkpoint, name):
    file, content, told = FILES[name]
    (checkpoint / file).write_bytes(content)
    refused(checkpoint, told)


@pytest.mark.parametrize("name", ["no positions", "a million layers", "a billion tokens", "beyond 64 bits"])
def test_it_is_refused_without_weights_too(checkpoint, name):
    changes, told = CONFIGS[name]
    changed(checkpoint / "config.json", **changes)
    with within_bounds(), pytest.raises(ConfigError, match=told):
        load_model(str(checkpoint), weights=False)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_in_a_checkpoint_is_not_run(checkpoint, file):
    code = f"import pathlib\npathlib.Path({str(checkpoint / 'owned')!r}).touch()\n"
    (checkpoint / "evil.py").write_text(code)
    classes = {name: "evil.Evil" for name in ("AutoConfig", "AutoModelForCausalLM")} | {
        "AutoTokenizer": ["evil.Evil"] * 2
    }
    changed(checkpoint / file, auto_map=classes)
    with within_bounds():
        load_model(str(checkpoint))
    assert not (checkpoint / "owned").exists()


def test_a_pickle_of_weights_runs_nothing(checkpoint):
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return Path.touch, (checkpoint / "owned",)

    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Evil()}) * 9999)
    with within_bounds(), pytest.raises(ConfigError):
        load_model(str(checkpoint))
    assert not (checkpoint / "owned").exists()


@pytest.mark.parametrize("character", ["e", "1"])
def test_a_token_that_the_model_does_not_have_is_one_line(specbench, checkpoint, character):
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"][character] += 5000
    (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer))
    code, _, err = specbench("run", "--task", "mgsm", "--method", "ar", "--target", str(checkpoint), "--data", "sample")
    assert code == 2 and "makes token 5" in err.splitlines()[-1] and "Traceback" not in err


@pytest.mark.parametrize("number", [10**12, -1])
def test_a_number_that_no_token_has_is_one_line(checkpoint, number):
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["e"] = number
    (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused(checkpoint, LOAD)
