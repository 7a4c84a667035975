"""Equal total memory: capacities from bytes counted by hand, interpolated values, and what advise makes of them."""

import json
import math
import random
from collections.abc import Callable
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
    check_levels,
    footprint_of,
    levels_of,
    throughput,
    value_at,
)
from specbench.analysis.advice.tables import sentences
from specbench.core.errors import ConfigError
from specbench.records.windows import LoadAnswer
from specbench.results.concurrency import load_of, metrics_of
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


def simulated_answers(
    level: int, seconds_of: Callable[[int], float], tokens_of: Callable[[], int], num_requests: int,
    lengths: random.Random,
) -> list[LoadAnswer]:  # fmt: skip
    """The answers of a server that makes a pass for all its requests at once, by a simulated clock. `seconds_of`: a
    pass by its number of requests; `tokens_of`: the tokens of a request's pass. As many requests as the level are in
    flight until none is left."""
    clock, waiting, running, done = 0.0, num_requests, list[dict[str, Any]](), list[LoadAnswer]()
    while waiting or running:
        while waiting and len(running) < level:
            running.append({"sent": clock, "left": lengths.randint(40, 80), "reads": []})
            waiting -= 1
        clock += seconds_of(len(running))
        for each in running:
            number = min(tokens_of(), each["left"])
            each["left"] -= number
            each["reads"].append((clock - each["sent"], number))
        for each in [each for each in running if not each["left"]]:
            num_tokens = sum(number for _, number in each["reads"])
            done.append(LoadAnswer(0, each["sent"], [1] * num_tokens, len(each["reads"]) - 1, each["reads"]))
            running.remove(each)
    return done


def simulated_rows(levels: tuple[int, ...], seconds_of: Callable[[int, int], float]) -> list[Row]:
    """Rows of AR and of a method with 4 tokens in a pass, which emits 1 to 4. `seconds_of`: a pass by its requests and
    by the tokens of each."""
    chance = random.Random(0)
    found = []
    for level in levels:
        windows: dict[str, list[list[LoadAnswer]]] = {"ar": [], "draft": []}
        for _ in range(6):
            for method, width, tokens_of in (("ar", 1, lambda: 1), ("draft", 4, lambda: chance.randint(1, 4))):
                windows[method].append(simulated_answers(
                    level, lambda requests, width=width: seconds_of(requests, width), tokens_of, 5 * level, chance
                ))  # fmt: skip
        for method in windows:
            made = load_row(method, level, 1.0)
            metrics = metrics_of(windows[method], windows["ar"], level)
            found.append(made.model_copy(update={"metrics": metrics}))
    return found


def smooth(requests: int, width: int) -> float:
    """Weights are read in 10 ms, and each token takes a quarter of a millisecond."""
    return 0.010 + 0.00025 * requests * width


def test_interpolated_levels_are_near_measured_ones_where_passes_grow_smoothly() -> None:
    """By a simulated clock: what is interpolated for a level that was measured, too, is within 5 % of it, and a level
    between neighbours is nearer still."""
    measured = simulated_rows((2, 3, 4, 6, 8, 12, 16), smooth)
    checks = check_levels(measured, throughput)
    assert [(each.method, each.level, each.between) for each in checks if each.method == "ar"] == [
        ("ar", 3, (2, 4)), ("ar", 4, (3, 6)), ("ar", 6, (4, 8)), ("ar", 8, (6, 12)), ("ar", 12, (8, 16))
    ]  # fmt: skip
    by_place = {(row.method_name, load_of(row).level): row.value("tokens_per_second") for row in measured}
    for each in checks:
        assert each.measured.value == by_place[each.method, each.level]
        assert each.ratio.value == pytest.approx((each.interpolated.value or 0) / (each.measured.value or 1))
        assert each.ratio.value == pytest.approx(1, abs=0.05)
    few = [row for row in measured if load_of(row).level in (2, 4, 8, 16)]
    asked = value_at(levels_of([row for row in few if row.method_name == "draft"], throughput), 6)
    assert asked.basis == "computed" and asked.value.value == pytest.approx(by_place["draft", 6], rel=0.05)
    (six,) = [each for each in check_levels(few, throughput) if (each.method, each.level) == ("draft", 8)]
    assert abs(math.log((asked.value.value or 1) / (by_place["draft", 6] or 1))) <= abs(math.log(six.ratio.value or 1))


def test_a_jump_between_levels_is_seen_by_the_check(tmp_path: Path, specbench) -> None:
    """A kernel that fits 8 requests takes three times as long for more: the check tells it, and so does the table."""
    rows = simulated_rows((4, 8, 12, 16), lambda requests, width: smooth(requests, width) * (1 if requests <= 8 else 3))
    worst = {each.level: each.ratio for each in check_levels(rows, throughput) if each.method == "ar"}
    assert worst[8].value is not None and worst[8].value < 0.75 and (worst[8].high or 1) < 1
    write(tmp_path / "board.json", rows)
    (tmp_path / "memory.yaml").write_text(yaml.safe_dump({**SPEC, "total_gib": 21}))  # AR holds 12, the method 8 …
    code, out, err = specbench("memory", "memory.yaml", "board.json")
    assert code == 0 and "≈" not in out and "checked:" not in out, err
    (tmp_path / "memory.yaml").write_text(yaml.safe_dump({**SPEC, "total_gib": 22}))  # … and here 14 and 9
    code, out, err = specbench("memory", "memory.yaml", "board.json")
    text = " ".join(out.split())
    assert code == 0 and text.count("≈") == 3, err
    assert "checked: 4 measured levels interpolated from the levels around it; the worst of each server: ar at " in text
    assert f"× {worst[8].value:.2f} [" in text
    code, out, err = specbench("memory", "memory.yaml", "board.json", "--json")
    found = json.loads(out)
    assert [each["level"] for each in found["checks"]] == [8, 12, 8, 12] and found["compared"][0]["ar"]["basis"]
    code, out, _ = specbench("advise", "board.json", "--goal", "throughput", "--memory", "memory.yaml")
    assert code == 0 and "checked: 4 measured levels" in " ".join(out.split())


def test_two_levels_leave_the_interpolation_unchecked(tmp_path: Path, specbench) -> None:
    write(tmp_path / "board.json", [row for row in rows() if load_of(row).level in (4, 18)])
    (tmp_path / "memory.yaml").write_text(yaml.safe_dump({**SPEC, "total_gib": 22}))
    _, out, _ = specbench("memory", "memory.yaml", "board.json")
    assert "the interpolation could not be checked: no server was measured at three levels" in " ".join(out.split())


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
