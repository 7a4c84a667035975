"""Several requests at once: windows, what is counted of them, and what becomes of a server that fails."""

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specbench.core.errors import ConfigError
from specbench.results.execute import execute
from specbench.results.load import (
    LoadRow,
    SteadySpan,
    break_even,
    load_rows,
    load_tables,
    metrics_of,
    read_windows,
)
from specbench.running.request import Request
from specbench.served import load
from specbench.served.models import load_served
from specbench.specs.run_options import RunOptions
from specbench.specs.servers import read_servers
from tests.scripted_server import AR, SD, Script, servers_file


def run(folder: Path, **keys: Any) -> list[LoadRow]:
    scripts = {"ar": keys.pop("ar", Script("vllm", AR)), "draft": keys.pop("draft", Script("vllm", SD))}
    with servers_file(folder, scripts, **keys) as file:
        options = RunOptions(subsets=("en",), limit=3)
        request = Request(["mgsm"], [], options, "", output=folder / "run", servers=file)
        execute(request, Console(file=io.StringIO()), load_served)
    return load_rows(read_windows(folder / "run"))


def answer(sent: float, reads: list[tuple[float, int]], passes: int | None, example: int = 0) -> dict[str, Any]:
    return {"example": example, "sent": sent, "token_ids": [1] * sum(n for _, n in reads), "passes": passes,
            "reads": [list(read) for read in reads]}  # fmt: skip


def test_each_level_has_a_row_for_each_server(tmp_path) -> None:
    rows = run(tmp_path, load={"concurrency": [3, 1], "rate": [20], "windows": 5, "requests": 2})
    assert [(row.kind, row.level, row.method) for row in rows] == [
        (kind, level, name)
        for kind, level in (("concurrency", 1), ("concurrency", 3), ("rate", 20)) for name in ("ar", "draft")
    ]  # fmt: skip
    assert [row.num_answers for row in rows] == [10, 10, 30, 30, 200, 200]
    emitted = sum(accepted + 1 for _, accepted in SD)
    for row in rows:
        assert row.num_windows == 5 and row.num_different == 0
        tau, ratio = (row.value(name) for name in ("mean_acceptance_length", "pass_ratio"))
        assert tau == pytest.approx(1.0 if row.method == "ar" else emitted / len(SD))
        assert ratio is not None and row.value("speedup_user") == pytest.approx(tau / ratio)
        assert row.metrics["tokens_per_second_user"].low is not None
        assert (row.value("ttft_p99_seconds") or 0) >= (row.value("ttft_seconds") or 0) > 0
    assert rows[0].value("speedup") == 1.0
    written = json.loads((tmp_path / "run/load.json").read_text())
    assert written == [row.model_dump(mode="json") for row in rows]
    titles = [table.title for table in load_tables(rows)]
    assert titles == ["mgsm · en · load by concurrency", "mgsm · en · load by rate"]


def test_as_many_requests_are_in_flight_as_the_level_says_and_all_servers_get_the_same(tmp_path, monkeypatch) -> None:
    in_flight, most, lock = [0], [0], threading.Lock()
    under_load = load.ServedDecoder.under_load

    def counted(self: Any, *args: Any, **keys: Any) -> Any:
        with lock:
            in_flight[0] += 1
            most[0] = max(most[0], in_flight[0])
        try:
            return under_load(self, *args, **keys)
        finally:
            with lock:
                in_flight[0] -= 1

    monkeypatch.setattr(load.ServedDecoder, "under_load", counted)
    run(tmp_path, load={"concurrency": [3], "windows": 2}, draft=Script("vllm", SD, delay_seconds=0.002))
    assert most[0] == 3
    windows = read_windows(tmp_path / "run")
    for window in windows:
        first, second = ([each["example"] for each in window["methods"][name]] for name in ("ar", "draft"))
        assert first == second == [number % 3 for number in range(12)]


def test_windows_are_resumed_and_a_failure_is_one_line(tmp_path) -> None:
    keys = {"load": {"concurrency": [2], "windows": 2, "requests": 2}}
    run(tmp_path, **keys)
    file = tmp_path / "run/load.jsonl"
    first, _ = file.read_text().splitlines()
    file.write_text(first + "\n")
    with pytest.raises(ConfigError, match=r"server 'draft' .* reports an error in mid-answer: .*CUDA error") as caught:
        run(tmp_path, draft=Script("vllm", SD, fail_after=2), **keys)
    assert "\n" not in str(caught.value) and file.read_text() == first + "\n"
    assert [row.num_windows for row in run(tmp_path, **keys)] == [2, 2]
    assert file.read_text().splitlines()[0] == first


def test_other_answers_under_load_are_counted(tmp_path) -> None:
    other = Script("vllm", SD, answer=(*Script("vllm").answer[:-2], 7, 0))
    rows = run(tmp_path, draft=other, load={"concurrency": [2], "windows": 2, "requests": 2})
    assert [row.num_different for row in rows] == [0, 8]
    (table,) = load_tables(rows)
    assert "draft at 2: 8 of 8 answers are not those of ar" in table.caption


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


def row(level: float, speedup: float, method: str = "draft") -> LoadRow:
    return LoadRow.model_validate({
        "task": "t", "subset": "s", "method": method, "kind": "concurrency", "level": level, "num_windows": 10,
        "num_answers": 10, "num_different": 0, "metrics": {"speedup": {"value": speedup}},
    })  # fmt: skip


@pytest.mark.parametrize(
    ("points", "level", "line"),
    [
        ([(1, 2.0), (4, 1.5), (16, 0.5)], 8.0, "draft: as fast as ar at 8.0 (interpolated)"),
        ([(1, 2.0), (4, 1.5)], None, "draft: faster than ar at every measured level"),
        ([(1, 0.9), (4, 0.5)], None, "draft: not faster than ar at every measured level"),
    ],
)
def test_the_break_even_level_is_interpolated(points, level, line) -> None:
    rows = [row(*point) for point in points]
    found = break_even(rows)
    assert found == (level if level is None else pytest.approx(level))
    (table,) = load_tables([row(points[0][0], 1.0, "ar"), *rows])
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
