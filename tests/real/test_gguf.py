"""GGUF files beside the folders with the same weights, and llama.cpp in this process beside llama.cpp's server.

The engine's other tests of public models are in tests/models/test_llama_cpp_engine.py.
"""

import json
from math import log
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch

from specbench.decoding.loop import StopRules
from specbench.models.gguf.cache_size import cache_bytes
from specbench.models.gguf.header import read_header
from specbench.models.gguf.same_weights import has_same_weights
from specbench.models.loading import load_model
from specbench.models.near_ties import find_differences
from tests.support.gguf_files import needs_llama_cpp
from tests.support.loops import autoregressive
from tests.support.public_models import answered

needs_llama_cpp()
pytestmark = pytest.mark.real

TEXT = (
    "The capital of France is Paris, and the capital of Italy is Rome. 日本の首都は東京です。 "
    "def add(a, b):\n    return a + b\n\n# 1, 2, 3, 4"
)
NUM_TOKENS = 32
NUM_GREEDY = 12
QUESTIONS = [
    ("Name three primary colors, separated by commas.", True),
    ("1, 2, 3, 4, 5, 6,", False),
    ("日本の首都は東京です。フランスの首都はパリです。イタリアの", False),
    ("def fibonacci(n):\n    if n < 2:", False),
]
NEAR_TIE = 0.3  # between logits: two builds of llama.cpp compute with other kernels, in 8-bit activations


def path_of(models: Path, name: str) -> Path:
    """Skips a test without this file and its folder."""
    path = models / f"{name}.gguf"
    if not path.is_file() or not (models / name).is_dir():
        pytest.skip(f"{path} or its folder is missing")
    return path


@pytest.mark.parametrize("name", ["gemma3-270m", "qwen-coder-0.5b", "qwen-coder-1.5b"])
def test_greedy_tokens_are_the_most_probable_of_the_folder(name: str, real_models: Path) -> None:
    """Up to what llama.cpp's 8-bit activations change. Tokens of the next position are not."""
    ours = load_model(str(path_of(real_models, name)), device="cpu", engine="llama.cpp")
    theirs = load_model(str(real_models / name), device="cpu", dtype="bfloat16")
    ids = ours.encode_prompt(QUESTIONS[3][0], chat=False)
    written = autoregressive(ours, ids, StopRules(NUM_GREEDY, frozenset())).token_ids
    rows = theirs.score([*ids, *written[:-1]], NUM_GREEDY).logits.float()
    ranks = [int((row > row[token]).sum()) for row, token in zip(rows, written, strict=True)]
    assert max(ranks) <= 3 and ranks.count(0) >= NUM_GREEDY - 2, ranks
    shifted = [int((row > row[token]).sum()) for row, token in zip(rows[:-1], written[1:], strict=True)]
    assert max(shifted) > 3 and shifted.count(0) < NUM_GREEDY / 2, "the test has no power"


@pytest.mark.parametrize("name", ["gemma3-270m", "qwen-coder-0.5b", "qwen-coder-1.5b"])
def test_a_cache_is_as_large_as_its_header_says(name: str, real_models: Path) -> None:
    """As llama.cpp writes its keys and values, in layers with a sliding window too (Gemma 3)."""
    path = path_of(real_models, name)
    model = load_model(str(path), device="cpu", engine="llama.cpp")
    sizes = []
    for length in (10, 40):
        model.reset()
        model.score(list(range(100, 100 + length)), 1)
        sizes.append(len(model.sequence.context.state()))  # type: ignore[attr-defined]
    expected = cache_bytes(read_header(path), 30, "float16")
    assert 0 <= sizes[1] - sizes[0] - expected <= 0.02 * expected


@pytest.mark.parametrize("name", ["gemma3-270m", "qwen-coder-0.5b"])
def test_a_file_gives_nearly_the_logits_of_its_folder(name: str, real_models: Path) -> None:
    """llama.cpp rounds activations to 8 bits; rows of a neighbouring position are far away."""
    ours = load_model(str(real_models / f"{name}.gguf"), device="cpu", engine="llama.cpp")
    theirs = load_model(str(real_models / name), device="cpu", dtype="bfloat16")
    ids = theirs.encode_prompt(TEXT, chat=False)
    assert len(ids) > 30
    found, expected = (torch.log_softmax(each.score(ids, len(ids)).logits.float(), -1) for each in (ours, theirs))
    assert found.shape == expected.shape

    def divergence(other: torch.Tensor) -> torch.Tensor:
        return (expected.exp() * (expected - other)).sum(-1)

    assert divergence(found).median() < 0.05 and divergence(found).mean() < 0.15
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() > 0.8
    assert divergence(found.roll(1, 0)).median() > 1


def answer_of_server(address: str, prompt_ids: list[int]) -> dict[str, Any]:
    body = {
        "prompt": prompt_ids, "n_predict": NUM_TOKENS, "temperature": 0.0, "repeat_penalty": 1.0, "cache_prompt": False,
        "return_tokens": True,
    }  # fmt: skip
    request = Request(f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=600) as response:
        found: dict[str, Any] = json.load(response)
    return found


@pytest.mark.parametrize(
    ("name", "most"),
    [("smollm2-135m", 1), ("qwen-coder-0.5b", 2)],  # Q4_1, and Q4_K_M, whose rows depend on the width of a pass
)
def test_llama_cpp_in_this_process_writes_what_its_server_writes(name: str, most: int, real_models: Path) -> None:
    """The same file and prompts: the same tokens and the same ends, up to near-ties. Another token in a place that is
    no tie is told apart."""
    pytest.importorskip("xllamacpp", reason="no server: pip install 'specbench-lm[llama-cpp]'")
    from tools.llama_cpp.server import llama_cpp_server

    path = real_models / f"{name}.gguf"
    model = load_model(str(path), device="cpu", engine="llama.cpp")
    known = answered(model, QUESTIONS, NUM_TOKENS)
    tolerance = max(NEAR_TIE, known.tolerance)
    outputs = []
    with llama_cpp_server(target=path) as address:
        for own, finish in zip(known.answers, known.finishes, strict=True):
            served = answer_of_server(address, own.prompt_ids)
            outputs.append(served["tokens"])
            assert served["tokens_evaluated"] == len(own.prompt_ids)
            if own.token_ids[: len(served["tokens"])] == served["tokens"]:
                assert (served["stop_type"], finish) in {("eos", "eos"), ("limit", "length")}
                if finish == "eos" and served["tokens"][-1] not in model.eos_token_ids:
                    outputs[-1].append(own.token_ids[-1])  # the server leaves the end token out
    assert sum(map(len, outputs)) > 3 * NUM_TOKENS and "eos" in known.finishes
    found = find_differences(model, known.answers, outputs, tolerance)
    assert len(found) <= most and all(each.near_tie and each.gap is not None for each in found), found
    # With the second most probable token where the first is four times as probable, it would fail.
    own = known.answers[1]
    rows = model.score([*own.prompt_ids, *own.token_ids[:-1]], len(own.token_ids)).logits
    gaps, seconds = rows.topk(2).values.diff().abs()[:, 0], rows.topk(2).indices[:, 1]
    place = int(gaps.argmax())
    wrong = [*own.token_ids[:place], int(seconds[place]), *own.token_ids[place + 1 :]]
    (other,) = find_differences(model, [own], [wrong], tolerance)
    assert gaps[place] > log(4) and not other.near_tie and other.position == place


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m", "qwen-coder-0.5b"])
def test_a_folder_has_the_weights_of_the_file_that_it_was_dequantized_from(name: str, real_models: Path) -> None:
    """As a run tells before it draws drafts from the file. Other files of the same sizes have other weights."""
    loaded = load_model(str(real_models / name), device="cpu", dtype="float32")
    file = load_model(str(real_models / f"{name}.gguf"), weights=False)
    assert has_same_weights(loaded, file)
    loaded.model.get_input_embeddings().weight.data[:8] *= 1.05
    assert not has_same_weights(loaded, file)
