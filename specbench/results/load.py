"""Windows of several requests at once → throughput, latencies and speed-ups by level of load."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from specbench.core.files import write_atomically
from specbench.core.table import RULE, Table, numbers, words
from specbench.results.bootstrap import FilePart, Metric, Prompts
from specbench.results.units import NULL, counted, interval, number, speed
from specbench.running.records import RecordFile

LOAD_RECORDS, LOAD_ROWS = "load.jsonl", "load.json"  # files of a run's folder
BASELINE = "ar"
LoadAnswer = Mapping[str, Any]


class LoadRow(FilePart):
    """One server at one level of load. `level`: requests in flight, or per second. `num_different`: greedy answers that
    are not those of `ar` in the same window. `metrics`: seconds, tokens/s and ratios; intervals resample windows."""

    task: str
    subset: str
    method: str
    kind: str
    level: float
    num_windows: int
    num_answers: int
    num_different: int
    metrics: dict[str, Metric]

    def metric(self, name: str) -> Metric:
        """Returns a metric; without a value where the row has none of this name."""
        return self.metrics.get(name, Metric())

    def value(self, name: str) -> float | None:
        """Returns the value of a metric; None where the row has none."""
        return self.metric(name).value


def read_windows(folder: Path) -> list[dict[str, Any]]:
    """Returns the windows of a run; none if it measured no load."""
    return RecordFile(folder / LOAD_RECORDS).read() if (folder / LOAD_RECORDS).exists() else []


@dataclass(frozen=True)
class SteadySpan:
    """The part of a window in which the load was whole: the ramp-up and the drain are cut off."""

    begin: float
    end: float

    @classmethod
    def of(cls, answers: Sequence[LoadAnswer], num_in_flight: int | None) -> "SteadySpan":
        """Returns the time while `num_in_flight` requests were in flight; None: between the first and last request."""
        sent = sorted(answer["sent"] for answer in answers)
        if num_in_flight is None:
            return cls(sent[0], sent[-1])
        done = sorted(answer["sent"] + answer["reads"][-1][0] for answer in answers)
        return cls(sent[num_in_flight - 1], done[len(done) - num_in_flight])

    def num_tokens(self, answers: Sequence[LoadAnswer]) -> int:
        """Returns the number of tokens that arrived within it."""
        times = [(answer["sent"] + seconds, num) for answer in answers for seconds, num in answer["reads"]]
        return sum(num for time, num in times if self.begin < time <= self.end)


def load_rows(windows: Sequence[Mapping[str, Any]]) -> list[LoadRow]:
    """Returns a row for each task, subset, level and server."""
    places = dict.fromkeys((w["task"], w["subset"], w["kind"], w["level"], w["requests"]) for w in windows)
    rows = []
    for task, subset, kind, level, requests in places:
        place = (task, subset, kind, level, requests)
        own = [w for w in windows if (w["task"], w["subset"], w["kind"], w["level"], w["requests"]) == place]
        rows += [
            LoadRow(
                task=task, subset=subset, method=method, kind=kind, level=level, num_windows=len(own),
                num_answers=sum(len(window["methods"][method]) for window in own),
                num_different=sum(
                    first["token_ids"] != second["token_ids"] for window in own
                    for first, second in zip(window["methods"][BASELINE], window["methods"][method], strict=True)
                ),
                metrics=metrics_of(
                    [window["methods"][method] for window in own], [window["methods"][BASELINE] for window in own],
                    int(level) if kind == "concurrency" else None,
                ),
            )
            for method in own[0]["methods"]
        ]  # fmt: skip
    return rows


def metrics_of(
    own: Sequence[Sequence[LoadAnswer]], baseline: Sequence[Sequence[LoadAnswer]], num_in_flight: int | None
) -> dict[str, Metric]:
    """Returns the metrics of the answers of a server, given by window, beside those of `ar` in the same windows.

    speedup_user = mean_acceptance_length ÷ pass_ratio, if the first read of each answer has one token.
    """
    prompts = Prompts(np.arange(len(own), dtype=np.int64), seed=0)
    throughput = [column for side in (own, baseline) for column in _throughput(side, num_in_flight)]
    user = [
        _sums(side, part) for side in (own, baseline) for part in (_timed_tokens, _decode_seconds)
    ]  # fmt: skip
    is_known = all(answer["passes"] is not None for window in own for answer in window)
    passes = _sums(own, lambda answer: answer["passes"]) if is_known else None
    plain = _sums(baseline, lambda answer: answer["passes"])
    found = {
        "tokens_per_second": prompts.ratio(*throughput[:2]), "tokens_per_second_ar": prompts.ratio(*throughput[2:]),
        "speedup": prompts.ratio(*throughput), "tokens_per_second_user": prompts.ratio(*user[:2]),
        "speedup_user": prompts.ratio(*user), **_latencies(own),
    }  # fmt: skip
    if passes is not None:
        found["mean_acceptance_length"] = prompts.ratio(user[0], passes)
        found["pass_ratio"] = prompts.ratio(user[1], passes, user[3], plain)
    return found


def _throughput(windows: Sequence[Sequence[LoadAnswer]], num_in_flight: int | None) -> tuple[list[float], list[float]]:
    spans = [SteadySpan.of(answers, num_in_flight) for answers in windows]
    tokens = [float(span.num_tokens(answers)) for span, answers in zip(spans, windows, strict=True)]
    return tokens, [span.end - span.begin for span in spans]


def _sums(windows: Sequence[Sequence[LoadAnswer]], part: Callable[[LoadAnswer], float]) -> list[float]:
    return [float(sum(map(part, answers))) for answers in windows]


def _timed_tokens(answer: LoadAnswer) -> int:
    return sum(num for _, num in answer["reads"][1:])


def _decode_seconds(answer: LoadAnswer) -> float:
    return float(answer["reads"][-1][0] - answer["reads"][0][0])


def _latencies(windows: Sequence[Sequence[LoadAnswer]]) -> dict[str, Metric]:
    answers = [answer for window in windows for answer in window]
    times = {
        "ttft": [answer["reads"][0][0] for answer in answers],
        "tpot": [_decode_seconds(each) / num for each in answers if (num := _timed_tokens(each))],
    }
    return {
        f"{name}_{kind}": Metric(value=float(np.quantile(values, share)) if values else None)
        for name, values in times.items() for kind, share in (("seconds", 0.5), ("p99_seconds", 0.99))
    }  # fmt: skip


def break_even(rows: Sequence[LoadRow]) -> float | None:
    """Returns the lowest level at which a method's throughput is no longer above AR's, by interpolation over the
    logarithm of the level; None if it is on one side of 1 at every level."""
    points = sorted((row.level, value) for row in rows if (value := row.metric("speedup").value) is not None)
    for (low, above), (high, below) in pairwise(points):
        if above > 1 >= below:
            share = (above - 1) / (above - below)
            return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return None


def write_rows(folder: Path) -> None:
    """Writes the rows of a run's windows beside these."""
    rows = [row.model_dump(mode="json") for row in load_rows(read_windows(folder))]
    write_atomically(folder / LOAD_ROWS, json.dumps(rows, ensure_ascii=False, indent=1) + "\n")


def load_tables(rows: Sequence[LoadRow]) -> list[Table]:
    """Returns a table for each task, subset and kind of load."""
    places = dict.fromkeys((row.task, row.subset, row.kind) for row in rows)
    return [_table([row for row in rows if (row.task, row.subset, row.kind) == place]) for place in places]


def _table(rows: Sequence[LoadRow]) -> Table:
    lines: list[Sequence[str]] = []
    for row in rows:
        if row.method == BASELINE and lines:
            lines.append(RULE)
        lines.append(_cells(row))
    first = rows[0]
    unit = "in flight" if first.kind == "concurrency" else "per s"
    columns = (
        *numbers(f"requests\n{unit}"), *words("server", folds=False),
        *numbers(
            "tok/s\nin all", "speed-up\n95 %", "tok/s\nper user", "τ", "pass ÷\nAR's", "TTFT ms\nmedian", "p99",
            "TPOT ms\nmedian", "p99",
        ),
    )  # fmt: skip
    caption = [
        f"{counted(first.num_windows, 'window')} of each server at each level, by turns; intervals resample windows",
        "tok/s in all: while the load is whole, without ramp-up and drain; latencies: of all answers",
        "per user, speed-up = τ ÷ (pass ÷ AR's): what speculation gains ÷ what its passes cost at this load",
        *filter(None, (_break_even_line([row for row in rows if row.method == name]) for name in _methods(rows))),
        *filter(None, map(_difference_line, rows)),
    ]
    return Table(f"{first.task} · {first.subset} · load by {first.kind}", columns, lines, caption, num_keys=2)


def _methods(rows: Sequence[LoadRow]) -> list[str]:
    return [name for name in dict.fromkeys(row.method for row in rows) if name != BASELINE]


def _cells(row: LoadRow) -> list[str]:
    is_baseline = row.method == BASELINE
    speedup = row.metric("speedup")
    return [
        f"{row.level:g}", row.method, speed(row.metric("tokens_per_second")),
        NULL if is_baseline else f"{number(speedup, 2)} {interval(speedup)}".rstrip(),
        speed(row.metric("tokens_per_second_user")),
        *(NULL if is_baseline else number(row.metric(name), 2) for name in ("mean_acceptance_length", "pass_ratio")),
        *(number(row.metric(f"ttft_{kind}"), 0, 1000) for kind in ("seconds", "p99_seconds")),
        *(number(row.metric(f"tpot_{kind}"), 2, 1000) for kind in ("seconds", "p99_seconds")),
    ]  # fmt: skip


def _break_even_line(rows: Sequence[LoadRow]) -> str:
    if len(rows) < 2:
        return ""
    level, values = break_even(rows), [row.metric("speedup").value or 0.0 for row in rows]
    if level is not None:
        return f"{rows[0].method}: as fast as ar at {level:.1f} (interpolated)"
    where = "faster than" if min(values) > 1 else "not faster than" if max(values) <= 1 else "not steadily above"
    return f"{rows[0].method}: {where} ar at every measured level"


def _difference_line(row: LoadRow) -> str:
    if not row.num_different:
        return ""
    answers = counted(row.num_answers, "answer")
    return f"{row.method} at {row.level:g}: {row.num_different} of {answers} are not those of ar"
