"""Windows of several requests at once → throughput, latencies and speed-ups by level of load."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.core.table import RULE, Table, numbers, words
from specbench.results.bootstrap import Metric, Prompts
from specbench.results.row import ALL, Row, RowLoad, RowWarning
from specbench.results.served import served_verdict
from specbench.results.tables import speedup_cell, warning_lines
from specbench.results.units import NULL, number, speed
from specbench.running.records import RecordFile

LOAD_RECORDS = "load.jsonl"  # in a run's folder
BASELINE = "ar"
# warnings that hold at any load
OF_SERVERS = ("baseline_unchecked", "caches_unknown", "memory_not_stated", "settings_differ")
LoadAnswer = Mapping[str, Any]
Window = Mapping[str, Any]


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


def load_rows(rows: Sequence[Row], windows: Sequence[Window]) -> list[Row]:
    """Returns a row for each level, subset and server, and one over all subsets of a task. `rows`: those of the same
    run, of one request at a time."""
    loads = dict.fromkeys((w["task"], w["kind"], w["level"], w["requests"]) for w in windows)
    subsets = {(w["task"], w["subset"]) for w in windows} | {(w["task"], ALL) for w in windows}
    found = []
    for task, kind, level, requests in loads:
        load = RowLoad(kind=kind, level=level, windows=1, requests=requests)
        own = [row for row in rows if row.task_name == task and (task, row.subset) in subsets and not row.level]
        found += [load_row(row, windows, load) for row in own]
    return found


def load_row(row: Row, windows: Sequence[Window], load: RowLoad) -> Row:
    """Returns the row of a server at a level; its `windows` are those that there are. `row`: of the same server, task
    and subset, of one request at a time. Raises ConfigError if there are no such windows."""
    place = (row.task_name, load.kind, load.level, load.requests)
    own = [
        w for w in windows
        if (w["task"], w["kind"], w["level"], w["requests"]) == place and row.subset in (ALL, w["subset"])
    ]  # fmt: skip
    if not own or row.served is None or row.method_name not in own[0]["methods"]:
        raise ConfigError(f"{LOAD_RECORDS}: has no windows of {row.place} at {load}: repeat the run's command")
    answers, plain = ([window["methods"][name] for window in own] for name in (row.method_name, BASELINE))
    verdict, warnings = _equality(row, own)
    examples = {(window["subset"], answer["example"]) for window in own for answer in window["methods"][BASELINE]}
    subsets = Counter(subset for subset, _ in sorted(examples))
    load = load.model_copy(update={"windows": len(own)})
    return row.model_copy(
        update={
            "served": row.served.model_copy(update={"load": load}), "quality": None, "signatures": {},
            "n": len(examples), "subsets": dict(subsets) if row.subset == ALL else {}, "repeats": 1,
            "created": datetime.fromtimestamp(own[-1]["measured_at"], UTC).isoformat(timespec="seconds"),
            "accepted_tokens_per_step": None, "warm_up": None, "verdict": verdict, "warnings": warnings,
            "metrics": metrics_of(answers, plain, int(load.level) if load.kind == "concurrency" else None),
        }
    )  # fmt: skip


def _equality(row: Row, windows: Sequence[Window]) -> tuple[str, tuple[RowWarning, ...]]:
    """Returns the verdict on greedy answers, and the warnings: those of the servers, and that answers differ. The
    control is `ar` itself: its answers to a prompt that several windows repeat."""
    warnings = [each for each in row.warnings if each.code in OF_SERVERS]
    if row.sampling.temperature or row.method_name == BASELINE:
        return row.verdict if row.method_name == BASELINE else "not audited", tuple(warnings)
    first: dict[tuple[str, int], list[int]] = {}
    same, again = list[bool](), list[bool]()
    for window in windows:
        plain = window["methods"][BASELINE]
        for mine, other in zip(window["methods"][row.method_name], plain, strict=True):
            same.append(mine["token_ids"] == other["token_ids"])
        for answer in plain:
            place = window["subset"], answer["example"]
            if place in first:
                again.append(first[place] == answer["token_ids"])
            first.setdefault(place, answer["token_ids"])
    if all(same):
        return "greedy equal", tuple(warnings)
    text = (
        f"{same.count(False)} of {counted(len(same), 'answer')} are not those of ar, which changed "
        f"{again.count(False)} of {counted(len(again), 'answer')} to the same prompt at this load"
    )
    warnings.append(RowWarning(code="answers_differ", text=text))
    return served_verdict(again, len(same), same.count(False)), tuple(warnings)


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
        # the first token is of the prefill
        after_first = _sums(own, lambda answer: sum(num for _, num in answer["reads"]) - 1)
        found["mean_acceptance_length"] = prompts.ratio(after_first, passes)
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


def break_even(rows: Sequence[Row]) -> float | None:
    """Returns the lowest level at which a method's throughput is no longer above AR's, by interpolation over the
    logarithm of the level; None if it is on one side of 1 at every level."""
    points = sorted((load_of(row).level, value) for row in rows if (value := row.value("speedup")) is not None)
    for (low, above), (high, below) in pairwise(points):
        if above > 1 >= below:
            share = (above - 1) / (above - below)
            return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return None


def load_tables(rows: Sequence[Row]) -> list[Table]:
    """Returns a table for each task, subset and kind of load."""
    return [_table(group) for group in load_groups(rows)]


def load_groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns the rows of several requests at once by task, subset and kind of load, the lowest level first."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.level:
            groups.setdefault((row.task_name, row.subset, load_of(row).kind), []).append(row)
    return [sorted(group, key=lambda row: load_of(row).level) for group in groups.values()]


def load_of(row: Row) -> RowLoad:
    """Returns the load of a row that has one."""
    assert row.served is not None and row.served.load is not None
    return row.served.load


def _table(rows: Sequence[Row]) -> Table:
    lines: list[Sequence[str]] = []
    for row in rows:
        if row.method_name == BASELINE and lines:
            lines.append(RULE)
        lines.append(_cells(row))
    first, load = rows[0], load_of(rows[0])
    unit = "in flight" if load.kind == "concurrency" else "per s"
    columns = (
        *numbers(f"requests\n{unit}"), *words("server", folds=False),
        *numbers(
            "tok/s\nin all", "speed-up\n95 %", "tok/s\nper user", "τ", "pass ÷\nAR's", "TTFT ms\nmedian", "p99",
            "TPOT ms\nmedian", "p99",
        ),
    )  # fmt: skip
    caption = [
        f"{counted(load.windows, 'window')} of each server at each level, by turns; intervals resample windows",
        "tok/s in all: while the load is whole, without ramp-up and drain; latencies: of all answers",
        "per user, speed-up = τ ÷ (pass ÷ AR's): what speculation gains ÷ what its passes cost at this load",
        *filter(None, (_break_even_line(own) for own in by_method(rows)[1:])),
        *warning_lines(rows, [f"{row.method_name} at {load_of(row).level:g}" for row in rows]),
    ]
    return Table(f"{first.task_name} · {first.subset} · load by {load.kind}", columns, lines, caption, num_keys=2)


def by_method(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns the rows of each server, the baseline's first."""
    names = sorted(dict.fromkeys(row.method_name for row in rows), key=lambda name: name != BASELINE)
    return [[row for row in rows if row.method_name == name] for name in names]


def _cells(row: Row) -> list[str]:
    is_baseline = row.method_name == BASELINE
    return [
        f"{load_of(row).level:g}", row.method_name, speed(row.metric("tokens_per_second")),
        NULL if is_baseline else speedup_cell(row),
        speed(row.metric("tokens_per_second_user")),
        *(NULL if is_baseline else number(row.metric(name), 2) for name in ("mean_acceptance_length", "pass_ratio")),
        *(number(row.metric(f"ttft_{kind}"), 0, 1000) for kind in ("seconds", "p99_seconds")),
        *(number(row.metric(f"tpot_{kind}"), 2, 1000) for kind in ("seconds", "p99_seconds")),
    ]  # fmt: skip


def _break_even_line(rows: Sequence[Row]) -> str:
    if len(rows) < 2:
        return ""
    if load_of(rows[0]).kind == "rate":
        return ""  # below saturation both servers write what arrives
    level, values = break_even(rows), [row.value("speedup") or 0.0 for row in rows]
    if level is not None:
        return f"{rows[0].method_name}: as fast as ar at {level:.1f} (interpolated)"
    where = "faster than" if min(values) > 1 else "not faster than" if max(values) <= 1 else "not steadily above"
    return f"{rows[0].method_name}: {where} ar at every measured level"
