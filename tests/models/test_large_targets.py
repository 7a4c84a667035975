"""Targets that are spread over devices by accelerate, or quantized by bitsandbytes: loading, refusals, rows."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specbench.core.errors import ConfigError
from specbench.models import devices, loading, machine
from specbench.models.causal_lm import CausalLM, split_precision
from specbench.models.loading import bitsandbytes, load_model, load_network
from specbench.results.conditions import conditions_that_differ
from specbench.results.leaderboard import load
from tests.support import tiny

SHORT = ["--task", "mgsm", "--method", "sd", "--subset", "en", "--limit", "1", "--data", "sample",
         "--set", "generation.max_new_tokens=6"]  # fmt: skip
GIB = 2**30


def test_a_spread_target_on_one_device_gives_the_same_run(specbench, tiny_pair: tuple[str, str]) -> None:
    pair = ["--target", tiny_pair[0], "--drafter", tiny_pair[1]]
    for output, words in (("plain", []), ("spread", ["--device-map", "auto"])):
        code, _, err = specbench("run", *SHORT, *pair, "--output", output, *words)
        assert code == 0, err
    first, second = (Path(name, "records.jsonl").read_text(encoding="utf-8") for name in ("plain", "spread"))
    tokens = [[g["token_ids"] for g in json.loads(text)["methods"].values()] for text in (first, second)]
    assert tokens[0] == tokens[1]
    plain, spread = (load(Path(name, "leaderboard.json"))[1] for name in ("plain", "spread"))
    assert spread.request["device_map"] == "auto" and not conditions_that_differ(plain, spread)


def spread_over_disk(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Makes accelerate put two layers of four on the disk, as it does where the memory of all devices is too small."""
    places: dict[str, str] = {
        name: "cpu" for name in ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
    }
    places |= {f"model.layers.{number}": "disk" if number % 2 else "cpu" for number in range(4)}
    original = AutoModelForCausalLM.from_pretrained

    def from_pretrained(source: str, **options: Any) -> Any:
        assert options["device_map"] == "auto"
        return original(source, **{**options, "device_map": places, "offload_folder": str(folder)})

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)


def test_a_target_on_several_devices_computes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(tiny.save(tmp_path / "model"))
    plain = load_model(source, device="cpu")
    spread_over_disk(monkeypatch, tmp_path / "offloaded")
    with pytest.warns(UserWarning, match="parts of '.*' are on disk: every pass waits until they are copied"):
        spread = load_model(source, device_map="auto")
    assert (spread.placement, plain.placement, str(spread.device)) == ("cpu+disk", "cpu", "cpu")
    ids = list(range(1, 30))
    for model in (plain, spread):
        model.reset()
        model.hidden_layers = (1, 3)
    for end in (20, 25, 29):
        first, second = (model.score(ids[:end], 3) for model in (plain, spread))
        torch.testing.assert_close(first.logits, second.logits)
        torch.testing.assert_close(first.hidden, second.hidden)
    tree = ([5, 6, 7], [-1, -1, 0])
    torch.testing.assert_close(*(model.score_tree(ids, *tree, 4).logits for model in (plain, spread)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device-map", "auto", "--engine", "compiled"],
         "--device-map auto: works only with --engine eager, not compiled"),
        (["--quantize", "int8", "--engine", "graphs"],
         "--quantize int8: works only with --engine eager or compiled, not graphs"),
        (["--quantize", "nf4", "--engine", "compiled", "--device", "cpu"],
         "--quantize nf4: needs a CUDA device, and this is cpu: take --quantize int8 or int4"),
        (["--device-map", "auto", "--device", "cpu"], "--device-map auto: selects the target's devices itself: "),
        (["--quantize", "nf4", "--device", "cpu"], "--quantize nf4: needs a CUDA device, and this is cpu: take "),
        (["--quantize", "int4", "--device", "cpu", "--dtype", "float32"], "--quantize int4: computes in bfloat16 on"),
        (["--quantize", "nf5"], "--quantize nf5: did you mean 'nf4'?"),
        (["--device-map", "balanced"], "--device-map balanced: "),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(
    specbench, tiny_pair: tuple[str, str], tmp_path: Path, words: list[str], said: str
) -> None:
    pair = ["--target", tiny_pair[0], "--drafter", tiny_pair[1], "--output", "refused"]
    code, out, err = specbench("run", *SHORT, *pair, *words)
    assert code == 2 and out == "" and err.splitlines()[-1].startswith(f"error: {said}"), err
    assert err.count("error: ") == 1 and not (tmp_path / "refused").exists()


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"^--quantize nf4: needs bitsandbytes: pip install 'specbench-lm\[quant\]'$"):
        bitsandbytes("--quantize nf4")


@pytest.mark.parametrize(("quantize", "bits"), [("nf4", 4), ("int8", 8)])
def test_the_weights_are_quantized_while_they_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantize: Any, bits: int
) -> None:
    """Up to transformers' own call: quantizing needs a GPU."""
    source = str(tiny.save(tmp_path / "model"))
    calls = []

    def from_pretrained(source: str, **options: Any) -> Any:
        calls.append(options)
        return tiny.network(), {"missing_keys": []}

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    device = torch.device("cuda:0")
    load_network(source, torch.bfloat16, {}, device, quantize, "none")
    [options] = calls
    config = options["quantization_config"]
    assert (config.load_in_4bit, config.load_in_8bit) == (bits == 4, bits == 8)
    assert (config.bnb_4bit_quant_type, config.bnb_4bit_compute_dtype) == ("nf4", torch.bfloat16)
    assert options["device_map"] == {"": device} and options["dtype"] is torch.bfloat16
    load_network(source, "auto", {}, device, quantize, "auto")
    assert calls[1]["device_map"] == "auto" and calls[1]["dtype"] is torch.float32  # of the checkpoint


def test_rows_of_other_weights_do_not_compare(tiny_pair: tuple[str, str], specbench) -> None:
    model = tiny.causal_lm()
    quantized = CausalLM(model.model, model.tokenizer, "tiny", None, "nf4")
    assert (model.precision, quantized.precision, quantized.dtype) == ("float32", "nf4 (float32)", "float32")
    assert split_precision("nf4 (float32)") == ("float32", "nf4") and split_precision("float32") == ("float32", "none")
    code, _, err = specbench("run", *SHORT, "--target", tiny_pair[0], "--drafter", tiny_pair[1], "--output", "plain")
    assert code == 0, err
    row = load(Path("plain", "leaderboard.json"))[1]
    other = row.model_copy(update={"dtype": quantized.precision})
    assert [each.field for each in conditions_that_differ(row, other)] == ["dtype"]


def test_devices_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"cuda:0": "NVIDIA H100", "cuda:1": "NVIDIA H100", "cpu": "Some CPU, 1 thread"}
    monkeypatch.setattr(machine, "_device_name", names.__getitem__)
    found = machine.environment("cuda:0+cuda:1+cpu+disk", "bfloat16", "sdpa")["device"]
    assert found == "2 × NVIDIA H100 + Some CPU, 1 thread + disk"
    assert machine.environment("cuda:1", "bfloat16", "sdpa")["device"] == "NVIDIA H100"


@pytest.mark.parametrize(("device_map", "where"), [("none", "cuda:0"), ("auto", "all devices")])
def test_memory_that_weights_need_is_said_beside_what_is_free(
    monkeypatch: pytest.MonkeyPatch, device_map: str, where: str
) -> None:
    """Seven billion weights in float32, which take no memory here."""
    network = torch.nn.Linear(7 * 2**15, 2**15, bias=False, device="meta")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3.0 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    text = str(devices.too_large_error(network, torch.device("cuda:0"), "int8", device_map))
    free = "12.00" if device_map == "auto" else "3.00"
    assert text.startswith(f"out of memory on {where}: its weights need 28.00 GiB before they are quantized, ")
    assert f"and {free} GiB are free: " in text


@pytest.mark.parametrize(
    ("place", "dtype", "given", "options"),
    [
        ("cuda:0", torch.float32, ("none", "none"),
         "--dtype bfloat16, --quantize int8, --quantize nf4 or --device-map auto"),
        ("cuda:0", torch.bfloat16, ("int8", "none"), "--quantize nf4 or --device-map auto"),
        ("cuda:0", torch.float16, ("nf4", "none"), "--device-map auto"),
        ("cuda:0", torch.bfloat16, ("nf4", "auto"), ""),
        ("cpu", torch.float32, ("none", "none"), "--dtype bfloat16"),
        ("cpu", torch.bfloat16, ("none", "none"), ""),
    ],
)  # fmt: skip
def test_only_options_that_are_not_given_and_help_are_proposed(
    monkeypatch: pytest.MonkeyPatch, place: str, dtype: torch.dtype, given: tuple[str, str], options: str
) -> None:
    network = torch.nn.Linear(8, 8, device="meta", dtype=dtype)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    text = str(devices.too_large_error(network, torch.device(place), *given))
    remedy = f", or load a target with {options}" if options else ""
    assert text.endswith(f": free memory, or take a smaller model{remedy}")


def test_a_quantized_target_that_is_too_large_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(tiny.save(tmp_path / "model"))

    def from_pretrained(source: str, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    monkeypatch.setattr(loading, "check_quantize", lambda *given: None)
    with pytest.raises(ConfigError, match=r"^cannot use model '.*': out of memory on cpu: its weights need 0\.00 GiB"):
        load_model(source, device="cpu", quantize="nf4")


def test_what_a_process_holds_is_said() -> None:
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 512.00 MiB "
        "is free. Including non-PyTorch memory, this process has 78.00 GiB memory in use."
    )
    error.add_note("in a pass of model 'm' over 6 tokens")
    assert devices.memory_message(error) == (
        "out of memory (in a pass of model 'm' over 6 tokens, 2.00 GiB were requested, 512.00 MiB were free, this "
        "process held 78.00 GiB)"
    )


def test_a_cache_that_does_not_fit_says_how_many_tokens_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layers with two heads of eight numbers take 512 bytes a token, also before all have buffers."""
    for name, size in (("mem_get_info", (2**20, 2**30)), ("memory_reserved", 3 * 2**20), ("memory_allocated", 2**20)):
        monkeypatch.setattr(torch.cuda, name, lambda device, size=size: size)
    layers = [SimpleNamespace(keys=torch.zeros(1, 2, 1024, 8), values=torch.zeros(1, 2, 1024, 8)) for _ in range(2)]
    layers += [SimpleNamespace(keys=None, values=None) for _ in range(2)]
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 KiB.")
    with pytest.raises(torch.OutOfMemoryError), devices.noting_memory("in x", layers, torch.device("cuda:0")):
        raise error
    num_tokens = int((3 * 2**20 + 2 * 2**16 * 2) / 512 / 1.1)
    assert devices.memory_message(error) == (
        "out of memory (in x; a token takes 0.5 KiB of its cache, so that prompt and answer of about "
        f"{num_tokens} tokens would fit, 64.00 KiB were requested)"
    )
    assert devices.cache_room(layers[2:], torch.device("cuda:0")) == ""
    with pytest.raises(ValueError, match=r"^x$") as caught, devices.noting_memory("in x", layers, torch.device("cpu")):
        raise ValueError("x")
    assert not hasattr(caught.value, "__notes__")


def test_a_model_larger_than_the_free_memory_is_refused_before_it_is_loaded(
    specbench: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux would end the process without a line."""
    monkeypatch.setattr("specbench.models.loading.free_memory", lambda: 2**20)
    code, _, said = specbench("run", "--task", "mgsm", "--subset", "en", "--method", "pld", "--output", "here")
    assert code == 2 and not Path("here/records.jsonl").exists()
    assert "out of memory on cpu: its weights need " in said and " GiB, and 0.00 GiB are free: free memory, or" in said
    assert "'embedded:target'" in said and len(said.strip().splitlines()) == 1


def test_free_memory_is_a_part_of_the_machine() -> None:
    free = devices.free_memory()
    assert free is None or 2**20 < free < 2**50


def test_an_eager_pass_without_memory_names_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model("embedded:drafter", device="cpu")
    model.score([1, 2, 3], 1)

    def full(**given: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

    monkeypatch.setattr(model.model, "forward", full)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        model.score([1, 2, 3, 4, 5], 1)
    assert devices.memory_message(caught.value) == (
        "out of memory (in a pass of model 'embedded:drafter' over 2 tokens; a token takes 0.5 KiB of its cache, "
        "1.00 GiB were requested)"
    )
