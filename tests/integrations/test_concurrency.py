"""Several requests at once: windows, what is counted of them, and what becomes of a server that fails."""

import io
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from specbench.core.errors import ConfigError
from specbench.integrations.served import concurrency as load
from specbench.integrations.served.models import load_served
from specbench.records.generation import Decoder, encode
from specbench.records.windows import LoadAnswer, LoadWindow, read_windows
from specbench.report.captions import why_unranked
from specbench.report.display import picture_of
from specbench.report.tables import load_tables
from specbench.results.concurrency import (
    SteadySpan,
    break_even,
    goodput,
    load_groups,
    load_of,
    metrics_of,
)
from specbench.results.concurrency import load_row as make_load_row
from specbench.results.leaderboard import load as load_leaderboard
from specbench.results.row import Row, RowLoad, RowServing
from specbench.running.execute import execute
from specbench.running.request import Request
from specbench.specs.catalogue import load_task
from specbench.specs.run import read_servers
from specbench.specs.run_options import RunOptions
from specbench.statistics.bootstrap import Estimate
from specbench.tasks.examples import load_examples
from tests.support.drawn_answers import SHORT, tied
from tests.support.rows import row as make_row
from tests.support.scripted_server import AR, SD, TOKENIZER, Script, servers_file

LEAST = {"concurrency": [2], "windows": 2, "requests": 2}


def run(folder: Path, limit: int = 3, overrides: tuple[str, ...] = (), **keys: Any) -> list[Row]:
    scripts = {"ar": keys.pop("ar", Script("vllm", AR)), "draft": keys.pop("draft", Script("vllm", SD))}
    folder.mkdir(exist_ok=True)
    warm_up = keys.pop("warm_up", None)
    with servers_file(folder, scripts, **keys) as file:
        options = RunOptions(subsets=("en",), limit=limit, overrides=overrides, warm_up=warm_up)
        request = Request(["mgsm"], [], options, "", output=folder / "run", servers=file)
        outcome = execute(request, Console(file=io.StringIO()), load_served)
    assert load_leaderboard(outcome.leaderboard) == list(outcome.rows)
    return [row for row in outcome.rows if row.level]


class Hurried(random.Random):
    """Waits of a rate that is 25 times as high as it says, so that few requests last long enough to be measured."""

    def expovariate(self, lambd: float = 1.0) -> float:
        return super().expovariate(25 * lambd)


@pytest.fixture(scope="module")
def hurried() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specbench.integrations.served.concurrency.random", SimpleNamespace(Random=Hurried))
        yield


@pytest.fixture(scope="module")
def by_rate(hurried, tmp_path_factory) -> tuple[Path, list[Row]]:
    """The folder and the rows of a load of one request and of a rate, with a slow server ar."""
    folder, slow = tmp_path_factory.mktemp("rate"), Script("vllm", AR, delay_seconds=0.002)
    load = {"concurrency": [1], "rate": [2], "windows": 5, "requests": 2}
    return folder / "run", run(folder, limit=1, ar=slow, load=load)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("load")
    run(folder, load={"concurrency": [2, 1], "windows": 5, "requests": 2})
    return folder / "run"


def answer(sent: float, reads: list[tuple[float, int]], passes: int | None, example: int = 0) -> LoadAnswer:
    return LoadAnswer(example, sent, [1] * sum(n for _, n in reads), passes, reads)


def test_each_level_has_a_row_for_each_server(measured, by_rate) -> None:
    by_concurrency = [row for row in load_leaderboard(measured / "leaderboard.json") if row.level]
    for rows, levels in ((by_concurrency, [("concurrency", 1), ("concurrency", 2)]),
                         (by_rate[1], [("concurrency", 1), ("rate", 2)])):  # fmt: skip
        found = [(load_of(row).kind, load_of(row).level, row.method_name) for row in rows]
        assert found == [(*level, name) for level in levels for name in ("ar", "draft")]
        assert [load_of(row).windows * load_of(row).requests for row in rows] == [10, 10, 20, 20]
    emitted = sum(accepted + 1 for _, accepted in SD)
    for row in (*by_concurrency, *by_rate[1]):
        assert load_of(row).windows == 5 and row.n == (3 if row in by_concurrency else 1)
        assert row.verdict == "greedy equal"
        tau, ratio = (row.value(name) for name in ("mean_acceptance_length", "pass_ratio"))
        assert tau == pytest.approx(1.0 if row.method_name == "ar" else emitted / len(SD))
        assert ratio is not None and row.value("speedup_user") == pytest.approx(tau / ratio)
        assert row.metrics["tokens_per_second_user"].low is not None
        for name in ("ttft", "tpot", "itl", "e2e"):
            times = [row.value(f"{name}_{kind}seconds") or 0 for kind in ("", "p90_", "p95_", "p99_")]
            assert times == sorted(times) and times[0] > 0
    assert by_concurrency[0].value("speedup") == 1.0
    titles = [table.title for table in load_tables([*by_concurrency, *by_rate[1][2:]])]
    assert titles == ["mgsm · en · load by concurrency", "mgsm · en · load by rate"]


def test_a_level_by_rate_has_ratios_of_latencies_and_no_speed_up(by_rate) -> None:
    _, rows = by_rate
    (_, alone), (_, own) = rows[:2], rows[2:]
    assert alone.value("speedup") is not None
    assert load_of(own).kind == "rate" and own.value("speedup") is None and own.value("tokens_per_second") is not None
    for name in ("tpot_ratio", "e2e_ratio"):
        found = own.metric(name)
        assert found.value is not None and found.low is not None and 0 < found.low <= found.value
    tables = load_tables(rows)
    headings = [[column.heading for column in table.columns] for table in tables]
    assert "speed-up\n95 %" in headings[0] and "E2E ratio\n95 %" not in headings[0]
    assert "speed-up\n95 %" not in headings[1] and {"TPOT ratio\n95 %", "E2E ratio\n95 %"} <= set(headings[1])
    assert any("there is no speed-up in tok/s" in line for line in tables[1].caption)
    assert break_even([own]).value is None


def test_latencies_are_compared_by_the_medians_of_windows() -> None:
    own = [[answer(0, [(1.0, 1), (3.0, 4)], 1), answer(0, [(1.0, 1), (9.0, 4)], 1)], [answer(0, [(2.0, 5)], 1)]]
    plain = [[answer(0, [(1.0, 1), (9.0, 4)], 4)] * 2, [answer(0, [(4.0, 5)], 4)]]
    found = metrics_of(own, plain, None)
    assert found["tpot_ratio"].value == pytest.approx(2.0 / 1.25)  # the second window has no time per token
    assert found["e2e_ratio"].value == pytest.approx((9.0 + 4.0) / (6.0 + 2.0)) and found["speedup"].value is None


def test_percentiles_are_over_answers_and_those_of_gaps_over_tokens() -> None:
    own = [[answer(0, [(float(first), 1), (first + 2.0, 4), (first + 2.5, 2)], 3) for first in range(1, 101)]]
    found = metrics_of(own, own, None)
    assert found["ttft_p90_seconds"].value == pytest.approx(90.1) and found["ttft_p95_seconds"].value == pytest.approx(
        95.05
    )
    assert found["itl_seconds"].value == found["itl_p90_seconds"].value == 0.5  # 400 tokens of .5 s, 200 of .25
    assert found["tpot_p95_seconds"].value == pytest.approx(2.5 / 6) and found["e2e_p90_seconds"].value == (
        pytest.approx(92.6)
    )


def test_goodput_counts_answers_within_all_limits() -> None:
    """Two windows of 5 s: of four answers, one is late, one writes slowly, one came in one read and has no TPOT."""
    answers = [answer(0, [(0.4, 1), (2.4, 4)], 1), answer(0, [(0.6, 1), (2.6, 4)], 1),
               answer(0, [(0.4, 1), (5.0, 4)], 1), answer(1, [(0.4, 5)], 1)]  # fmt: skip
    row = load_row(4, 1.5)
    windows = [LoadWindow("t", "s", "concurrency", 4, number, 4, 0.0, {"draft": answers}) for number in range(2)]
    assert goodput(row, windows, {"ttft": 0.5, "tpot": 0.5}).value == pytest.approx(2 / 5)
    assert goodput(row, windows, {"ttft": 0.5}).value == pytest.approx(3 / 5)
    assert goodput(row, windows, {"e2e": 0.3}).value == 0.0


def test_as_many_requests_are_in_flight_as_the_level_says_and_all_servers_get_the_same(tmp_path, monkeypatch) -> None:
    in_flight, most, lock = [0], [0], threading.Lock()
    generate_under_load = load.ServedDecoder.generate_under_load

    def counted(self: Any, *args: Any, **keys: Any) -> Any:
        with lock:
            in_flight[0] += 1
            most[0] = max(most[0], in_flight[0])
        try:
            return generate_under_load(self, *args, **keys)
        finally:
            with lock:
                in_flight[0] -= 1

    monkeypatch.setattr(load.ServedDecoder, "generate_under_load", counted)
    load_of_3 = {"concurrency": [3], "windows": 2, "requests": 2}
    run(tmp_path, load=load_of_3, draft=Script("vllm", SD, delay_seconds=0.002))
    assert most[0] == 3
    windows = read_windows(tmp_path / "run")
    for window in windows:
        first, second = ([each.example for each in window.methods[name]] for name in ("ar", "draft"))
        assert first == second == [number % 3 for number in range(6)]


def run_meetings(folder: Path, *overrides: str, **load: Any) -> tuple[list[Row], str, Script]:
    """Measures meetings of about 110 tokens, by default without a load. Returns the rows with a load, what was said,
    and the server `draft`."""
    folder.mkdir(exist_ok=True)
    draft, said = Script("vllm", SD), io.StringIO()
    keys = {"load": load} if load else {}
    with servers_file(folder, {"ar": Script("vllm", AR), "draft": draft}, **keys) as file:
        options = RunOptions(subsets=("qmsum",), limit=3, warm_up=0.0, overrides=overrides)
        request = Request(["scrolls"], [], options, "", output=folder / "run", servers=file)
        outcome = execute(request, Console(file=said, width=1000), load_served)
    return [row for row in outcome.rows if row.level], said.getvalue(), draft


def prompts_of_meetings(server: Script) -> set[tuple[int, ...]]:
    """The prompts that were sent to a server, without those of warm-ups and checks."""
    data = load_examples(load_task("scrolls"), "qmsum", data="sample", use_sample=True, limit=3)
    beginnings = tuple(example.prompt[:30] for example in data.examples)
    sent = {tuple(request["prompt"]) for request in server.requests}
    return {ids for ids in sent if TOKENIZER.decode(list(ids)).startswith(beginnings)}


def test_prompts_are_cut_to_each_context_and_every_pair_is_a_cell(tmp_path) -> None:
    load = {"concurrency": [2, 1], "context": [90, 64, 700], "windows": 2, "requests": 2}
    rows, said, draft = run_meetings(tmp_path, **load)
    assert [(row.method_name, row.level) for row in rows] == [
        (name, f"concurrency {level}, context {context}")
        for context in (64, 90) for level in (1, 2) for name in ("ar", "draft")
    ]  # fmt: skip
    assert "load.context 700: scrolls/qmsum: no prompt has so many tokens: give contexts of at most 1" in said
    assert all(load_of(row).windows == 2 and row.n == min(3, 2 * load_of(row).requests) for row in rows)
    assert load_leaderboard(tmp_path / "run/leaderboard.json")[-len(rows) :] == rows
    # The windows are resumed, and the rows are computed from them alone.
    windows = (tmp_path / "run/load.jsonl").read_bytes()
    again, _, _ = run_meetings(tmp_path, **load)
    assert (tmp_path / "run/load.jsonl").read_bytes() == windows and again == rows
    # A run with max_prompt_tokens, as at a point of `--sweep context=64,90`, sends the same prompts.
    _, _, uncut = run_meetings(tmp_path / "uncut")
    of_points = set[tuple[int, ...]]()
    for context in (64, 90):
        _, _, server = run_meetings(tmp_path / f"context={context}", f"max_prompt_tokens={context}")
        own = prompts_of_meetings(server)
        assert len(own) == 3 and all(len(ids) in range(context - 4, context + 1) for ids in own)
        of_points |= own
    assert of_points == prompts_of_meetings(draft) - prompts_of_meetings(uncut)


def test_a_load_whose_contexts_have_no_prompts_ends_before_anything_is_measured(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"load\.context 700: scrolls/qmsum: no prompt has so many .* at most 1\d\d$"):
        run_meetings(tmp_path, concurrency=[1], context=[700])
    assert not (tmp_path / "run/load.jsonl").exists()
    with pytest.raises(
        ConfigError, match=r"load\.context 1900: .* context of the models is 2048 tokens, .* at most 1536"
    ):
        run_meetings(tmp_path / "long", concurrency=[1], context=[1900])
    with pytest.raises(ConfigError, match=r"load\.context 90: scrolls/qmsum: max_prompt_tokens = 64 is less"):
        run_meetings(tmp_path / "both", "max_prompt_tokens=64", concurrency=[1], context=[90])
    with pytest.raises(ConfigError, match=r"load\.context 64: mgsm/en: prompts of this task are not cut"):
        run(tmp_path / "sums", load={**LEAST, "context": [64]})


def map_row(level: float, context: int, speedup: float) -> Row:
    load = RowLoad(kind="concurrency", level=level, windows=7, requests=8, context=context)
    served = RowServing(acceptance_source="steps", caches="verified empty", memory="same KV", load=load, settings="0")
    metrics = {"speedup": Estimate(value=speedup, low=speedup * 0.9, high=speedup * 1.1)}
    return make_row(method="draft@1:0", served=served, metrics=metrics, options={})


def test_the_map_tells_which_cells_are_below_1() -> None:
    values = {(1, 512): 2.0, (8, 512): 1.04, (1, 4096): 0.96, (8, 4096): 0.5, (32, 512): 0.4}
    rows = [map_row(*place, speedup) for place, speedup in values.items()]
    *single, table = load_tables(rows)
    assert len(single) == 2 and [table.title for table in single] == [
        f"mgsm · ja · load by concurrency · {context} tokens" for context in (512, 4096)
    ]
    assert [column.heading for column in table.columns] == [
        "requests\nin flight", "512 tokens\n[95 %]", "4096 tokens\n[95 %]"
    ]  # fmt: skip
    assert table.rows == [
        ["1", "2.00 [1.80, 2.20]", "≈0.96 [0.86, 1.06]"], ["8", "≈1.04 [0.94, 1.14]", "↓0.50 [0.45, 0.55]"],
        ["32", "↓0.40 [0.36, 0.44]", "–"],
    ]  # fmt: skip
    assert {"↓ slower than ar: 8 × 4096, 32 × 512", "≈ not separable from ar: 1 × 4096, 8 × 512"} <= {*table.caption}
    assert any(line.startswith("–: not measured") for line in table.caption)
    assert [len(group) for group in load_groups(rows)] == [3, 2]


@pytest.mark.parametrize(("memory", "alone", "loaded"), [("run", "shuffled", "repeat"), ("prompt", "cold", "cold")])
def test_a_drafter_that_learns_is_declared(tmp_path, memory: str, alone: str, loaded: str) -> None:
    """Windows send prompts that the server answered before, so that its drafts may be its own earlier answers."""
    keys = {"load": LEAST, "speculation": {"method": "suffix", "num_draft_tokens": 3}}
    with pytest.raises(ConfigError, match="load: the drafter of server 'draft' learns across requests") as refused:
        run_learning(tmp_path / "undeclared", **keys)
    assert "add memory: run to its speculation" in str(refused.value) and "memory: prompt" in str(refused.value)
    keys["speculation"]["memory"] = memory
    rows = run_learning(tmp_path / "declared", **keys)
    found = {(row.method_name, row.level): row for row in rows}
    assert {row.memory for row in rows if row.method_name == "ar"} == {None}
    one, two = found["draft", ""], found["draft", "concurrency 2"]
    assert (one.memory, two.memory) == (alone, loaded)
    assert two.value("num_own_answers") == (2 if loaded == "repeat" else None)
    assert (why_unranked(one), why_unranked(two) is not None) == (None, loaded == "repeat")
    (table,) = load_tables(rows)
    assert any(
        "draft: not ranked: its drafter remembers its own earlier answers" in line for line in table.caption
    ) == (loaded == "repeat")
    assert ("learns" in {warning.code for warning in one.warnings}) == (memory == "run")


def run_learning(folder: Path, speculation: dict[str, Any], **keys: Any) -> list[Row]:
    """Runs a server `draft` with this speculation; two prompts."""
    folder.mkdir()
    with servers_file(folder, {"ar": Script("vllm", AR), "draft": Script("vllm", SD)}, **keys) as file:
        content = json.loads(file.read_text())
        content["servers"]["draft"]["speculation"] = speculation
        file.write_text(json.dumps(content))
        request = Request(["mgsm"], [], RunOptions(subsets=("en",), limit=2), "", output=folder / "run", servers=file)
        return list(execute(request, Console(file=io.StringIO()), load_served).rows)


def test_windows_are_resumed_and_a_failure_is_one_line(tmp_path) -> None:
    keys = {"load": LEAST, "limit": 1}
    run(tmp_path, **keys)
    file = tmp_path / "run/load.jsonl"
    first, _ = file.read_text().splitlines()
    file.write_text(first + "\n")
    with pytest.raises(
        ConfigError, match=r"server 'draft' .* reports an error in the middle of an answer: .*CUDA error"
    ) as caught:
        run(tmp_path, draft=Script("vllm", SD, fail_after=2), **keys)
    assert "\n" not in str(caught.value) and file.read_text() == first + "\n"
    assert [load_of(row).windows for row in run(tmp_path, **keys)] == [2, 2]
    assert file.read_text().splitlines()[0] == first


OTHER = (*Script("vllm").answer[:-2], 7, 0)


@pytest.mark.parametrize(("limit", "verdict"), [(3, "not audited"), (6, "diverged")])
def test_prompts_with_other_answers_under_load_are_counted_once(tmp_path, limit, verdict) -> None:
    other = Script("vllm", SD, answer=OTHER)
    rows = run(tmp_path, limit, draft=other, load={"concurrency": [2], "windows": 2, "requests": 6})
    assert [row.verdict for row in rows] == ["greedy equal", verdict]  # 24 answers to three prompts tell little
    (table,) = load_tables(rows)
    text = (
        f"the answers to {limit} of {limit} prompts differ from those of ar, which itself changed its answers to 0 of "
        f"{limit} prompts repeated at this load"
    )
    assert any(line.endswith(text) and "draft at 2" in line for line in table.caption)


def test_a_prompt_has_as_many_chances_to_differ_as_that_of_the_control(tmp_path) -> None:
    """The first answer of a method to a prompt that is repeated has none to stand beside it on the control's side."""
    (row,) = [each for each in run(tmp_path, load=LEAST) if each.method_name == "draft"]
    (window, other) = read_windows(tmp_path / "run")
    for number in range(3):
        window.methods["draft"][number].token_ids = list(OTHER)
    alone = row.model_copy(update={"served": row.served and row.served.model_copy(update={"load": None})})
    found = make_load_row(alone, [window, other], load_of(row))
    assert found.verdict == "not audited" and "answers_differ" in {each.code for each in found.warnings}


@pytest.mark.parametrize(("gap", "verdict"), [(1e-7, "near-tie only"), (1e-3, "diverged")])
def test_near_ties_under_load_are_told_apart(tmp_path, gap, verdict) -> None:
    target, other = tied(gap)
    servers = {"ar": Script("vllm", model=target), "draft": Script("vllm", passes=SD, model=other)}
    rows = run(tmp_path, 2, overrides=SHORT, load=LEAST, **servers)
    assert [row.verdict for row in rows] == ["greedy equal", verdict]
    assert ("answers_differ" in {each.code for each in rows[1].warnings}) == (verdict == "diverged")
    ties = [each.near_tie for window in read_windows(tmp_path / "run") for each in window.methods["draft"]]
    assert ties == [verdict == "near-tie only"] * 8


def test_a_load_is_warmed_up_until_it_is_steady(tmp_path, monkeypatch) -> None:
    """A tenth of the expected time is enough for one block here; more than that gives as many as the rule needs."""
    monkeypatch.setattr("specbench.running.warm_up.is_steady", lambda times: False)
    first, row = run(tmp_path / "short", 1, load=LEAST, warm_up=0.0)
    assert [each.warm_up and (each.warm_up.blocks, each.warm_up.steady) for each in (first, row)] == [(1, None)] * 2
    monkeypatch.setattr("specbench.integrations.served.concurrency.MAX_SHARE", 1e9)
    monkeypatch.setattr("specbench.running.warm_up.is_steady", lambda times: len(times) >= 3)
    steady = run(tmp_path / "steady", 1, load=LEAST)
    assert [row.warm_up and (row.warm_up.blocks, row.warm_up.steady) for row in steady] == [(3, True), (3, True)]
    first, second = read_windows(tmp_path / "steady/run")
    assert set(first.warm_up or ()) == {"ar", "draft"} and second.warm_up == {}
    monkeypatch.setattr("specbench.running.warm_up.is_steady", lambda times: False)
    for module in ("integrations.served.concurrency", "running.warm_up"):
        monkeypatch.setattr(f"specbench.{module}.MAX_BLOCKS_CPU", 9)
    _, row = run(tmp_path / "not", 1, load=LEAST)
    assert row.warm_up is not None and row.warm_up.blocks == 9 and row.warm_up.steady is False
    assert "not_steady" in {each.code for each in row.warnings}


def test_ramp_up_and_drain_are_cut() -> None:
    answers = [answer(0.0, [(1.0, 1), (2.0, 4)], 1), answer(0.5, [(1.0, 1), (3.0, 4)], 1), answer(2.0, [(9.0, 5)], 0)]
    span = SteadySpan.of(answers, 2)
    assert (span.begin, span.end) == (0.5, 3.5)
    assert span.num_tokens(answers) == 5 + 5  # none of the last answer, which ends alone
    assert SteadySpan.of(answers, None) == SteadySpan(0.0, 2.0)


def test_a_speed_up_is_what_speculation_gains_over_what_its_passes_cost() -> None:
    own = [[answer(0, [(1.0, 1), (3.0, 4), (5.0, 4)], 2)] for _ in range(5)]
    plain = [[answer(0, [(1.0, 1), *((1.0 + number, 1) for number in range(1, 9))], 8)] for _ in range(5)]
    found = {name: metric.value for name, metric in metrics_of(own, plain, 1).items()}
    assert found["mean_acceptance_length"] == 4.0 and found["pass_ratio"] == pytest.approx(2.0)
    assert found["speedup_user"] == pytest.approx(2.0)
    assert found["speedup"] == pytest.approx((9 / 5) / (9 / 9)) and found["tpot_seconds"] == pytest.approx(0.5)


def test_unknown_passes_have_no_decomposition() -> None:
    own = [[answer(0, [(1.0, 1), (3.0, 4)], None)]]
    found = metrics_of(own, [[answer(0, [(1.0, 1), (3.0, 4)], 4)]], 1)
    assert "mean_acceptance_length" not in found and found["speedup"].value == 1.0


def load_row(level: float, speedup: float, method: str = "draft", throughput: float = 10.0) -> Row:
    """Returns a row of a load with as many tokens/s in all, and per user that ÷ the level."""
    load = RowLoad(kind="concurrency", level=level, windows=10, requests=4)
    serving = RowServing(acceptance_source="steps", caches="verified empty", memory="same KV", load=load, settings="0")
    values = {"speedup": speedup, "tokens_per_second": throughput, "tokens_per_second_user": throughput / level}
    metrics = {name: Estimate(value=value, low=0.95 * value, high=1.05 * value) for name, value in values.items()}
    return make_row(method=f"{method}@1:0", task="t@1:0", subset="s", served=serving, metrics=metrics)


@pytest.mark.parametrize(
    ("points", "level", "line"),
    [
        ([(1, 2.0), (4, 1.5), (16, 0.5)], 8.0, "draft: as fast as ar at 8.0 [7.4, 8.5] (interpolated)"),
        ([(1, 2.0), (4, 1.5)], None, "draft: faster than ar at every measured level"),
        ([(1, 0.9), (4, 0.5)], None, "draft: slower than ar at every measured level"),
        ([(1, 2.0), (2, 1.01), (4, 0.99), (16, 0.5)], 8**0.5, "draft: as fast as ar at 2.8 [1.9, 4.4] (interpolated)"),
        ([(1, 1.01), (4, 0.99)], None, "draft: not separable from ar at any measured level"),
        ([(1, 1.2), (4, 0.99)], None, "draft: faster than ar at some levels, not separable from ar at others"),
    ],
)
def test_the_break_even_level_is_interpolated(points, level, line) -> None:
    rows = [load_row(*point) for point in points]
    found = break_even(rows)
    assert found.value == (level if level is None else pytest.approx(level))
    (table,) = load_tables([load_row(points[0][0], 1.0, "ar"), *rows])
    assert line in table.caption


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, r"load: name levels, such as \{concurrency"), ({"concurrency": [0]}, "load.concurrency.0 = 0: .*greater"),
        ({"rate": [1], "windows": 1}, "load.windows = 1: .*greater"),
    ],
)  # fmt: skip
def test_a_wrong_load_is_one_line(tmp_path, value, message) -> None:
    path = tmp_path / "servers.yaml"
    servers = {"ar": {"url": "http://a:1", "speculation": "none"}}
    path.write_text(json.dumps({"tokenizer": "embedded:target", "servers": servers, "load": value}))
    with pytest.raises(ConfigError, match=message):
        read_servers(path)


def test_rows_of_a_load_are_recomputed_from_the_run(measured, specbench) -> None:
    board = measured / "leaderboard.json"
    rows = load_leaderboard(board)
    assert [row.level for row in rows] == ["", "", *["concurrency 1"] * 2, *["concurrency 2"] * 2]
    assert len({row.key for row in rows}) == 6
    code, shown, _ = specbench("leaderboard", "validate", board, "--records")
    assert code == 0 and "6 rows, all recomputed" in shown
    windows = measured / "load.jsonl"
    text = windows.read_text()
    try:
        windows.write_text(text.partition("\n")[2])
        code, _, problem = specbench("leaderboard", "validate", board, "--records")
    finally:
        windows.write_text(text)
    assert code == 2 and "rows.2 (mgsm@4 en ar@1 concurrency 1): " in problem.replace("\n", " ")


def test_each_level_has_a_ranked_table_of_its_own(measured, specbench, tmp_path) -> None:
    board = measured / "leaderboard.json"
    _, shown, _ = specbench("leaderboard", "show", board)
    assert [line.strip() for line in shown.splitlines() if "mgsm@4 · en" in line] == [
        "mgsm@4 · en", "mgsm@4 · en · concurrency 1", "mgsm@4 · en · concurrency 2"
    ]  # fmt: skip
    _, shown, _ = specbench("leaderboard", "show", board, "--filter", "served.load.level=2.0")
    assert "concurrency 2" in shown and "concurrency 1" not in shown
    code, *_ = specbench("leaderboard", "add", measured, "--leaderboard", tmp_path / "all.json")
    assert code == 0 and len(load_leaderboard(tmp_path / "all.json")) == 6


def test_levels_are_compared_with_the_same_level(measured, specbench) -> None:
    code, shown, _ = specbench("compare", f"{measured}:ar", f"{measured}:draft", "--json")
    found = json.loads(shown)["compared"]
    assert code == 0 and [each.get("loads") for each in found] == [None, ["concurrency 1"] * 2, ["concurrency 2"] * 2]
    reasons = {change["not_paired_because"] for each in found[1:] for change in each["changes"].values()}
    assert reasons == {"rows of several requests at once rest on windows"}
    code, shown, _ = specbench("compare", f"{measured / 'leaderboard.json'}:3", f"{measured / 'leaderboard.json'}:5")
    assert code == 0 and "draft · concurrency 1 → concurrency 2" in shown and "served.load" in shown


def test_the_site_has_rows_of_a_load(measured, specbench, tmp_path) -> None:
    code, _, problem = specbench("site", measured / "leaderboard.json", "--output", tmp_path / "site")
    assert code == 0, problem
    index = (tmp_path / "site/index.html").read_text()
    assert "concurrency 2" in index and len(list((tmp_path / "site/rows").iterdir())) == 6
    assert any("served.load.level" in page.read_text() for page in (tmp_path / "site/rows").iterdir())


def test_the_picture_has_a_curve_for_each_server_and_marks_the_break_even() -> None:
    pytest.importorskip("matplotlib")
    plain = [load_row(level, 1.0, "ar", throughput) for level, throughput in ((1, 10.0), (4, 30.0), (16, 80.0))]
    own = [load_row(1, 2.0, throughput=20.0), load_row(4, 1.5, throughput=45.0), load_row(16, 0.5, throughput=40.0)]
    (panel,) = picture_of([], load_groups([*plain, *own])).axes
    first, second, cross = (line.get_xydata().tolist() for line in panel.get_lines())
    assert first == [[10.0, 10.0], [7.5, 30.0], [5.0, 80.0]] and second == [[20.0, 20.0], [11.25, 45.0], [2.5, 40.0]]
    ((user, whole),) = cross  # half of the way from 4 to 16 requests, of the logarithms
    assert user == pytest.approx((11.25 * 2.5) ** 0.5) and whole == pytest.approx((45 * 40) ** 0.5)
    assert [text.get_text() for text in panel.get_legend().get_texts()][2] == "draft: as fast as ar at 8.0"


def test_subsets_together_have_a_row_at_each_level(tmp_path) -> None:
    scripts = {"ar": Script("vllm", AR), "draft": Script("vllm", SD)}
    with servers_file(tmp_path, scripts, load=LEAST) as file:
        options = RunOptions(subsets=("en", "de"), limit=2)
        request = Request(["mgsm"], [], options, "", output=tmp_path / "run", servers=file)
        outcome = execute(request, Console(file=io.StringIO()), load_served)
    rows = [row for row in outcome.rows if row.level and row.method_name == "draft"]
    assert [(row.subset, row.n, load_of(row).windows) for row in rows] == [("en", 2, 2), ("de", 2, 2), ("all", 4, 4)]
    assert rows[2].subsets == {"de": 2, "en": 2}
    assert load_leaderboard(outcome.leaderboard) == list(outcome.rows)


def test_levels_compete_in_advice_and_in_the_same_memory(specbench, measured, tmp_path) -> None:
    """AR holds two requests of 1 GiB beside 1 GiB of weights, and the method with its drafter's half GiB one."""
    rows = {(row.method_name, row.level): row for row in load_leaderboard(measured / "leaderboard.json")}
    code, shown, err = specbench("advise", measured, "--goal", "throughput", "--json")
    assert code == 0, err
    ways = json.loads(shown)["ways"]
    assert {(way["method"], way["load"]) for way in ways} == rows.keys()
    sizes = {
        "target": {"weights_gib": 1, "cache_kib": 1024},
        "drafters": {"draft": {"weights_gib": 0.5, "cache_kib": 8}},
    }
    (tmp_path / "memory.yaml").write_text(json.dumps({"total_gib": 3.2, "tokens": 1024, **sizes}))
    slo = ("--slo", "ttft=60")
    code, shown, err = specbench("memory", "memory.yaml", measured, *slo, "--json")
    assert code == 0, err
    (found,) = json.loads(shown)["compared"]
    windows = read_windows(measured)
    for side, name, level in (("ar", "ar", 2), ("own", "draft", 1)):
        own = goodput(rows[name, f"concurrency {level}"], windows, {"ttft": 60.0})
        assert (found[side]["level"], found[side]["basis"]) == (level, "measured")
        assert found[side]["value"] == own.model_dump() and own.value
    code, shown, err = specbench("advise", measured, "--goal", "goodput", *slo, "--memory", "memory.yaml", "--json")
    assert code == 0, err
    ranked = [(way["method"], way["load"]) for way in json.loads(shown)["ways"] if way["why_out"] is None]
    assert {*ranked} == {("ar", "concurrency 1"), ("ar", "concurrency 2"), ("draft", "concurrency 1")}


def test_a_level_by_rate_is_ranked_by_no_speed_up(specbench, by_rate) -> None:
    folder, _ = by_rate
    board = folder / "leaderboard.json"
    of_rate = ("--filter", "served.load.kind=rate")
    _, shown, _ = specbench("leaderboard", "show", board, *of_rate, "--format", "markdown")
    (line,) = [each for each in shown.splitlines() if each.startswith("|") and "draft" in each]
    rank, *_, speedup, _, _ = (cell.strip() for cell in line.strip("|").split("|"))
    assert rank == "" and speedup.startswith("–")
    _, shown, _ = specbench("leaderboard", "show", board, *of_rate, "--sort", "e2e_ratio")
    assert "ranked by e2e_ratio" in " ".join(shown.split())
    code, shown, _ = specbench("compare", f"{folder}:ar", f"{folder}:draft", "--json")
    *_, found = json.loads(shown)["compared"]
    assert code == 0 and "speedup" not in found["changes"] and "e2e_ratio" in found["changes"]


@pytest.mark.parametrize(
    "warm_up", [{}, {"warm_up": {}}, {"warm_up": {"ar": {"blocks": 1, "seconds": 0.5, "steady": None}}}]
)
def test_a_stored_window_keeps_its_bytes(warm_up) -> None:
    """Files of earlier versions lack the warm-up, and only answers that differ have `near_tie`."""
    same = {"example": 0, "sent": 0.0, "token_ids": [1, 2], "passes": 1, "reads": [[0.1, 1], [0.2, 1]]}
    other = {
        "example": 0,
        "sent": 1.2e-05,
        "token_ids": [3, 2],
        "passes": None,
        "reads": [[1e-05, 2]],
        "near_tie": False,
    }
    place = {"task": "mgsm", "subset": "en", "kind": "concurrency", "level": 2.0, "window": 0, "requests": 1}
    window = {**place, "measured_at": 1.5, "methods": {"ar": [same], "draft": [other]}, **warm_up}
    line = json.dumps(window, separators=(",", ":")).encode()
    assert encode(Decoder(LoadWindow).decode(line, 10**6)) == line


def test_the_first_answer_tokens_have_percentiles_where_answers_reason() -> None:
    """Of four answers one ended inside its reasoning: it has reasoning tokens, and no first token of its answer."""
    times = [(0.1, 0.5), (0.2, 0.7), (0.1, 0.9), (0.3, None)]
    own = [
        [
            LoadAnswer(place, 0.0, [1] * 10, 9, [(first, 1), (1.0, 9)], answer_seconds=proper,
                       reasoning_tokens=10 if proper is None else 4, reasoning_closed=proper is not None)
            for place, (first, proper) in enumerate(times)
        ]
    ] * 2  # fmt: skip
    found = metrics_of(own, own, 2)
    assert found["ttfa_seconds"].value == 0.7 and found["ttfa_p99_seconds"].value == 0.9
    assert found["reasoning_tokens"].value == 5.5 and found["answer_tokens"].value == 4.5
    assert found["reasoning_share"].value == 0.55 and found["share_cut_in_reasoning"].value == 0.25
    plain = [[LoadAnswer(0, 0.0, [1, 2], 1, [(0.1, 1), (0.2, 1)], answer_seconds=0.1)] * 2] * 2
    assert not {"ttfa_seconds", "reasoning_tokens"} & metrics_of(plain, plain, 2).keys()


def test_a_load_of_chat_completions_says_when_answers_begin(tmp_path: Path) -> None:
    script = {"reasoning": (5, 6, 7), "pause_seconds": 0.03}
    rows = run(
        tmp_path / "chat", ar=Script("openai", AR, **script), draft=Script("openai", SD, **script),
        engine="openai-chat", load=LEAST,
    )  # fmt: skip
    for row in rows:
        first, proper, late = (row.value(name) for name in ("ttft_seconds", "ttfa_seconds", "ttfa_p95_seconds"))
        assert first is not None and proper is not None and late is not None and first + 0.02 < proper <= late
    (table,) = load_tables(rows)
    assert [column.heading for column in table.columns][-2:] == ["TTFA ms\nmedian", "p99"]
