"""Mixed experts: the union of uniform routing by simulation, and the routers' own choices of random models."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from specbench.analysis.roofline.experts import (
    Mixture,
    choices_after,
    experts_of,
    recorded_choices,
    union_sizes,
)
from specbench.analysis.roofline.report import RooflineReport, experts_table
from specbench.analysis.roofline.roofline import gguf_work, tokens_of, work_of
from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.gguf.header import read_header
from specbench.models.gguf.model import LlamaLM
from tests.support import tiny

SIZES = {"num_experts_per_tok": 2, "num_hidden_layers": 2}
KINDS = {
    "mixtral": {"num_local_experts": 8, **SIZES},
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 16, **SIZES},
    "olmoe": {"num_experts": 8, **SIZES},
}
IDS = [number * 7 % 251 for number in range(40)]


def mixed(kind: str) -> CausalLM:
    return tiny.causal_lm(kind, **KINDS[kind])


@pytest.mark.parametrize(("number", "per_token", "num_tokens"), [(8, 2, 1), (8, 2, 4), (64, 8, 6), (128, 8, 32)])
def test_the_expected_union_is_that_of_drawn_experts(number: int, per_token: int, num_tokens: int) -> None:
    chance = random.Random(0)
    drawn = [
        len({each for _ in range(num_tokens) for each in chance.sample(range(number), per_token)}) for _ in range(1000)
    ]
    expected = Mixture(number=number, per_token=per_token).expected_union(num_tokens)
    assert expected == pytest.approx(sum(drawn) / len(drawn), rel=0.02)


def test_published_factors_of_one_token() -> None:
    """256 experts of which a token uses 8, and 8 of which it uses 2."""
    for number, per_token, factors in ((256, 8, (1.97, 3.82, 7.18)), (8, 2, (1.75, 2.73, 3.60))):
        mixture = Mixture(number=number, per_token=per_token)
        found = [mixture.expected_union(num_tokens) / per_token for num_tokens in (2, 4, 8)]
        assert found == pytest.approx(factors, abs=0.005)


@pytest.mark.parametrize("kind", KINDS)
def test_choices_are_those_of_the_routers(kind: str) -> None:
    """Beside them the k largest router logits, as transformers reports them for the same tokens."""
    model = mixed(kind)
    choices = choices_after(model, IDS, 10)
    assert choices is not None and choices.shape == (2, 30, 2)
    with torch.inference_mode():
        output = model.model(input_ids=torch.tensor([IDS]), output_router_logits=True)
    for own, logits in zip(choices, output.router_logits, strict=True):
        expected = logits.reshape(len(IDS), -1)[10:].topk(2).indices
        assert torch.equal(own.sort().values, expected.sort().values)
    with recorded_choices(model.model) as found:
        pass
    model.score(IDS[:4], 1)
    assert not found, "passes after the block are not recorded"


def test_unions_are_counted_over_all_runs_of_tokens() -> None:
    choices = torch.tensor([[[0, 1], [0, 1], [2, 3]], [[0, 1], [1, 2], [0, 3]]])
    assert union_sizes(choices, 4, 1) == [2.0, 2.0]
    assert union_sizes(choices, 4, 2) == [(2 + 4) / 2, (3 + 4) / 2]
    assert union_sizes(choices, 4, 3) == [4.0, 4.0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_has_both_unions_and_the_bytes_that_follow(kind: str) -> None:
    model = mixed(kind)
    work = work_of(model)
    bytes_read = {length: work.bytes_read(length, 10) for length in (1, 4, 16)}
    found = experts_of(model, IDS, 10, (1, 4, 16), bytes_read, work.expert_bytes)
    assert found is not None and (found.number, found.per_token, found.num_layers) == (8, 2, 2)
    single, *others = found.unions
    assert (single.expected, single.measured, single.bytes_ratio) == (2.0, 2.0, 1.0)
    for union in others:
        assert union.measured is not None and 2.0 < union.measured <= 8.0
        more = work.expert_bytes * (union.measured - union.expected) / 8
        assert union.bytes_ratio == pytest.approx((bytes_read[union.query_length] + more) / bytes_read[1])
    alike = experts_of(model, [5] * 40, 10, (1, 16), bytes_read, work.expert_bytes)
    last, least = others[-1].measured, alike and alike.unions[-1].measured
    assert last is not None and least is not None and least < last, "equal tokens are routed more alike"


class HeaderOnly(LlamaLM):
    """A GGUF model without llama.cpp."""

    sequence = SimpleNamespace(kind="float16")  # type: ignore[assignment]
    padded_vocab_size = 3

    def __init__(self, header: Any) -> None:
        self.header = header


def test_of_a_gguf_file_the_experts_are_known_and_not_the_choices(tmp_path: Path) -> None:
    """4 experts, of which a token uses one, of 2 × 8 × 16 weights in 16 bits; the others in 32 bits."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "moe.gguf", "qwen2moe")
    for key, value in (("block_count", 1), ("embedding_length", 16), ("expert_count", 4), ("expert_used_count", 1),
                       ("attention.head_count", 2)):  # fmt: skip
        writer.add_uint32(f"qwen2moe.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "c"])
    writer.add_tensor("token_embd.weight", np.zeros((3, 16), dtype=np.float32))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((16, 16), dtype=np.float32))
    for name in ("up", "down"):
        writer.add_tensor(f"blk.0.ffn_{name}_exps.weight", np.zeros((4, 8, 16), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = HeaderOnly(read_header(tmp_path / "moe.gguf"))
    work = gguf_work(model)
    assert (work.expert_weights, work.expert_bytes, work.expert_share) == (2 * 4 * 8 * 16, 2 * 2 * 4 * 8 * 16, 0.25)
    assert work.matmul_weights == 3 * 16 + 16 * 16 and work.weight_bytes == 4 * (3 * 16 + 16 * 16)
    bytes_read = {length: work.bytes_read(length, 10) for length in (1, 4)}
    found = experts_of(model, IDS, 10, (1, 4), bytes_read, work.expert_bytes)
    assert found is not None and found.num_layers is None
    assert [union.measured for union in found.unions] == [None, None]
    assert found.unions[1].expected == pytest.approx(4 * (1 - 0.75**4))
    assert found.unions[1].bytes_ratio == pytest.approx(bytes_read[4] / bytes_read[1])


def test_a_model_without_experts_has_none() -> None:
    model = tiny.causal_lm(num_hidden_layers=1)
    assert Mixture.of(model) is None and experts_of(model, IDS, 10, (1, 4), {1: 1.0, 4: 1.0}, 0) is None


def test_compiled_passes_do_not_tell_their_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.models.static_passes.compile_pass", lambda forward, name: forward)
    model = mixed("mixtral")
    model.make_static()
    found = experts_of(model, IDS, 10, (1, 4), {1: 10.0, 4: 20.0}, 8)
    assert found is not None and found.num_layers is None
    assert [(union.measured, union.bytes_ratio) for union in found.unions] == [(None, 1.0), (None, 2.0)]


def test_a_text_is_read_in_the_place_of_random_tokens() -> None:
    models = [tiny.causal_lm(num_hidden_layers=1)] * 2
    assert tokens_of(models, 5, 0, "abcdefgh")[0] == models[0].encode_prompt("abcde", chat=False)
    assert tokens_of(models, 5, 0, None)[0] != tokens_of(models, 5, 1, None)[0]
    with pytest.raises(ConfigError, match=r"--text: has 3 tokens of tiny-llama, and 5 are read: give a longer text"):
        tokens_of(models, 5, 0, "abc")


def test_the_command_prints_the_experts(specbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TURN_SECONDS", "SINGLE_SECONDS", "ENOUGH_SECONDS"):
        monkeypatch.setattr(f"specbench.analysis.roofline.roofline.{name}", 1e-4)
    target = tiny.save(tmp_path / "target", "mixtral", **KINDS["mixtral"])
    drafter = tiny.save(tmp_path / "drafter", num_hidden_layers=1)
    (tmp_path / "text.txt").write_text("It was a dark and stormy night; the rain fell in torrents. " * 4)
    words = ["roofline", "--target", str(target), "--drafter", str(drafter), "--context", "16", "--repeats", "1"]
    code, out, err = specbench(*words, "--text", "text.txt", "--output", "moe.json")
    assert code == 0, err
    report = RooflineReport.model_validate_json((tmp_path / "moe.json").read_text())
    assert report.text == "text.txt" and report.drafter.experts is None and report.target.experts is not None
    assert [union.query_length for union in report.target.experts.unions] == list(report.verification_cost)
    assert "experts that a pass of the target reads" in out and "tokens of text.txt" in " ".join(out.split())
    console = Console(width=100, force_terminal=False, no_color=True)
    with console.capture() as capture:
        console.print(experts_table(report, "target", report.target.experts))
    assert all(len(line) <= 100 for line in capture.get().splitlines())
