"""Equal total memory: capacities from bytes counted by hand, interpolated values, and what advise makes of them."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from specbench.analysis.advice.advise import advise
from specbench.analysis.advice.memory import (
    GIB,
    Footprint,
    Level,
    MemorySpec,
    SharedMemory,
    at_equal_memory,
    footprint_of,
    throughput,
    value_at,
)
from specbench.analysis.advice.tables import sentences
from specbench.core.errors import ConfigError
from specbench.results.leaderboard import write
from specbench.results.row import Row, RowLoad, RowServing
from specbench.specs.components import build
from specbench.statistics.bootstrap import Estimate
from tests.support import tiny
from tests.support.rows import row

FLOAT = 4
SPEC: dict[str, Any] = {
    "total_gib": 24, "reserved_gib": 1, "tokens": 4096, "target": {"weights_gib": 14, "cache_kib": 128},
    "drafters": {"draft": {"weights_gib": 1, "cache_kib": 32}, "ngram": None},
}  # fmt: skip


def shared(**changes: Any) -> SharedMemory:
    return SharedMemory.of(build(MemorySpec, {**SPEC, **changes}))


def estimate(value: float) -> Estimate:
    return Estimate(value=value, low=value * 0.9, high=value * 1.1)


def load_row(method: str, level: float, speed: float, speedup: float = 1.0, context: int | None = None) -> Row:
    load = RowLoad(kind="concurrency", level=level, windows=7, requests=8, context=context)
    served = RowServing(acceptance_source="steps", caches="verified empty", memory="same GPU", load=load, settings="0")
    metrics = {"tokens_per_second": estimate(speed), "speedup": estimate(speedup)}
    length = 0 if method == "ar" else 5
    return row(
        method=f"{method}@1:0", num_draft_tokens=length, served=served, metrics=metrics, options={}, quality=None
    )


def rows(context: int | None = None) -> list[Row]:
    """AR holds 18 requests of 4,096 tokens, a method with the drafter 12: 9 GiB by 512 MiB, 8 GiB by 640 MiB."""
    speeds = {"ar": {4: 100.0, 12: 240.0, 18: 300.0}, "draft": {4: 180.0, 12: 330.0, 18: 380.0}}
    return [
        load_row(method, level, speed, speed / speeds["ar"][level], context)
        for method, levels in speeds.items() for level, speed in levels.items()
    ]  # fmt: skip


def test_a_memory_holds_as_many_requests_as_caches_fit_beside_the_weights() -> None:
    memory = shared()
    found = {name: memory.capacity(name) for name in ("ar", "draft", "ngram")}
    assert found["ar"].spare_bytes == 9 * GIB and found["ar"].request_bytes == GIB / 2
    assert {name: each.requests for name, each in found.items()} == {"ar": 18, "draft": 12, "ngram": 18}
    small = shared(total_gib=15.5)
    assert (small.capacity("ar").requests, small.capacity("draft").requests) == (1, 0)
    with pytest.raises(ConfigError, match=r"drafters: has no method 'drafft': .*did you mean 'draft'"):
        memory.capacity("drafft")


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mixtral"])
def test_the_bytes_of_a_checkpoint_are_those_of_its_configuration(kind: str, tmp_path: Path) -> None:
    """4 layers with keys and values of 2 heads of 8; half of gemma2's have a window of 8 tokens."""
    changes = {"num_local_experts": 4, "num_experts_per_tok": 2} if kind == "mixtral" else {}
    folder = tiny.save(tmp_path / "model", kind, **changes)
    found = footprint_of(str(folder), "target")
    network = tiny.network(kind, vocab_size=258 if kind != "llama" else 257, **changes)
    expected = sum(weight.nbytes for weight in network.parameters())
    assert found.weight_bytes == pytest.approx(expected, rel=0.01)
    held = 2 * 2 * 8 * FLOAT
    assert found.of_request(100) == (held * (2 * 100 + 2 * 8) if kind == "gemma2" else held * 4 * 100)


def test_a_model_that_cannot_be_read_ends_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"drafters\.draft = 'nowhere/at/all': .*; or give \{weights_gib: …"):
        footprint_of("nowhere/at/all", "drafters.draft")
    assert footprint_of(None, "drafters.ngram") == Footprint(0.0)


def test_values_between_levels_are_computed_and_none_beyond_them() -> None:
    levels = [Level(4, estimate(100.0)), Level(16, estimate(400.0))]
    assert value_at(levels, 16).basis == "measured" and value_at(levels, 16).value == estimate(400.0)
    half = value_at(levels, 8)
    assert half.basis == "computed" and half.value.value == pytest.approx(200.0)
    assert half.value.low == pytest.approx(180.0) and half.value.high == pytest.approx(220.0)
    assert [value_at(levels, beyond).basis for beyond in (2, 17)] == [None, None]
    nothing = [Level(4, Estimate(value=2.0, low=1.0, high=3.0)), Level(16, Estimate(value=0.0, low=0.0, high=0.5))]
    assert value_at(nothing, 8).value.value == pytest.approx(1.0)


def test_ar_stands_at_its_larger_concurrency() -> None:
    """At the same 12 requests the method is 1.375 times as fast, in the same memory 1.1 times."""
    (found,) = at_equal_memory(shared(), rows(), throughput)
    assert (found.ar.level, found.own.level) == (18, 12)
    assert (found.ar.basis, found.own.basis) == ("measured", "measured")
    assert found.ratio.value == pytest.approx(1.1) and found.speedup.value == pytest.approx(1.375)
    assert found.ratio.low is not None and found.ratio.low < 1 < (found.ratio.high or 0), "not separable"
    (more,) = at_equal_memory(shared(total_gib=22), rows(), throughput)
    assert (more.ar.level, more.ar.basis, more.own.level, more.own.basis) == (14, "computed", 9, "computed")
    share = math.log(14 / 12) / math.log(18 / 12)
    assert more.ar.value.value == pytest.approx(240 ** (1 - share) * 300**share)
    (beyond,) = at_equal_memory(shared(total_gib=80), rows(), throughput)
    assert beyond.ar.basis is None and beyond.ratio == Estimate() == beyond.speedup


def test_advise_ranks_ways_at_what_the_memory_holds(tmp_path: Path) -> None:
    board = tmp_path / "board.json"
    write(board, rows())
    free = advise([str(board)], "throughput")
    assert (free.ways[0].method, free.ways[0].load) == ("draft", "concurrency 18")
    found = advise([str(board)], "throughput", memory=shared())
    assert [(way.method, way.load, way.basis) for way in found.ranked] == [
        ("draft", "concurrency 12", "measured"), ("ar", "concurrency 18", "measured"),
        ("ar", "concurrency 12", "measured"), ("draft", "concurrency 4", "measured"),
        ("ar", "concurrency 4", "measured"),
    ]  # fmt: skip
    (out,) = [way for way in found.ways if way.why_out is not None]
    assert out.why_out == "24 GiB hold 12 of its requests of 4096 tokens, not 18"
    less = advise([str(board)], "throughput", memory=shared(total_gib=22))
    best = less.ways[0]
    assert (best.method, best.load, best.basis) == ("draft", "concurrency 9", "computed") and not best.paired
    assert f"draft, γ 5, {best.precision}" in next(sentences(less)) and "(computed)" in next(sentences(less))


def test_loads_of_several_contexts_are_not_ranked_together(tmp_path: Path) -> None:
    board = tmp_path / "board.json"
    write(board, [*rows(512), *rows(4096)])
    with pytest.raises(ConfigError, match=r"several contexts \(512, 4096\): choose one with --context"):
        advise([str(board)], "throughput")
    with pytest.raises(ConfigError, match="--context 1024: the choices are 512, 4096"):
        advise([str(board)], "throughput", context=1024)
    found = advise([str(board)], "throughput", context=4096, memory=shared())
    assert {way.load.partition(", ")[2] for way in found.ways} == {"context 4096"}
    with pytest.raises(ConfigError, match="--memory: has no effect with --goal latency"):
        advise([str(board)], "latency", memory=shared())


def test_the_command_prints_capacities_and_the_comparison(specbench, tmp_path: Path) -> None:
    file, board = tmp_path / "memory.yaml", tmp_path / "board.json"
    file.write_text(yaml.safe_dump(SPEC))
    write(board, rows())
    assert SharedMemory.read(file).spec.tokens == 4096
    code, out, err = specbench("memory", "memory.yaml", "board.json")
    assert code == 0, err
    text = " ".join(out.split())
    assert (
        "18 → 12" in text
        and "300.0 → 330.0" in text
        and "1.10 [" in text
        and "measured" in text
        and max(map(len, out.splitlines())) <= 100
    )
    file.write_text(yaml.safe_dump({**SPEC, "total_gib": 80}))
    _, out, _ = specbench("memory", "memory.yaml", "board.json")
    assert "ar was not measured up to 130 requests at once" in " ".join(out.split())
    assert "to measure it: load: {concurrency: [102, 130]}" in " ".join(out.split())


@pytest.mark.parametrize(
    ("changes", "words", "said"),
    [
        ({"tokens": 0}, (), "memory.yaml: tokens"),
        ({"drafter": {}}, (), "memory.yaml: drafter"),
        ({}, ("nothing.json",), "'nothing.json': no such folder or file"),
        ({}, ("--slo", "ttft=1"), "--slo: applies to runs under load: give a RUN"),
    ],
)
def test_mistakes_are_one_line(specbench, tmp_path: Path, changes: Any, words: Any, said: str) -> None:
    (tmp_path / "memory.yaml").write_text(yaml.safe_dump({**SPEC, **changes}))
    code, out, err = specbench("memory", "memory.yaml", *words)
    assert code == 2 and out == "" and said in err and len(err.splitlines()) == 1
