"""Windows of concurrent requests → throughput, latencies and speed-ups by level of load."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median

import numpy as np

from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.records.windows import LOAD_RECORDS, LoadAnswer, LoadWindow
from specbench.results.latency import quantiles, token_gaps
from specbench.results.row import ALL, REPEAT, SHUFFLED, Row, RowLoad, RowWarmUp, RowWarning
from specbench.results.verdict import served_verdict
from specbench.results.warnings import unsteady_start
from specbench.statistics.bootstrap import SHARE, Estimate, Resampler

BASELINE = "ar"
# warnings that hold at any load
SERVER_WARNINGS = (
    "baseline_unchecked", "caches_unknown", "memory_not_stated", "settings_differ", "tokenizer_unchecked",
    "idle_unchecked",
)  # fmt: skip


@dataclass(frozen=True)
class SteadySpan:
    """The part of a window under full load, without ramp-up and drain."""

    begin: float
    end: float

    @classmethod
    def of(cls, answers: Sequence[LoadAnswer], num_in_flight: int | None) -> "SteadySpan":
        """Returns the time in which `num_in_flight` requests were in flight; for None, the time from the first request
        to the last."""
        sent = sorted(answer.sent for answer in answers)
        if num_in_flight is None:
            return cls(sent[0], sent[-1])
        done = sorted(answer.sent + answer.last_seconds for answer in answers)
        return cls(sent[num_in_flight - 1], done[len(done) - num_in_flight])

    def num_tokens(self, answers: Sequence[LoadAnswer]) -> int:
        times = [(answer.sent + seconds, num) for answer in answers for seconds, num in answer.reads]
        return sum(num for time, num in times if self.begin < time <= self.end)


def load_rows(rows: Sequence[Row], windows: Sequence[LoadWindow]) -> list[Row]:
    """Returns a row for each level, subset and server, and one over all subsets of a task. `rows`: the rows of the same
    run with one request at a time."""
    subsets: dict[tuple[str, RowLoad], set[str]] = {}
    for w in windows:
        load = RowLoad(kind=w.kind, level=w.level, windows=1, requests=w.requests, context=w.context)
        subsets.setdefault((w.task, load), {ALL}).add(w.subset)
    found = []
    for (task, load), names in subsets.items():
        own = [row for row in rows if row.task_name == task and row.subset in names and not row.level]
        found += [load_row(row, windows, load) for row in own]
    return found


def windows_of(row: Row, windows: Sequence[LoadWindow], load: RowLoad) -> list[LoadWindow]:
    """Returns the windows of a row's task and subset at a level of load."""
    place = (row.task_name, load.kind, load.level, load.requests, load.context)
    return [
        w for w in windows
        if (w.task, w.kind, w.level, w.requests, w.context) == place and row.subset in (ALL, w.subset)
    ]  # fmt: skip


def load_row(row: Row, windows: Sequence[LoadWindow], load: RowLoad) -> Row:
    """Returns the row of a server at a level of load, with the number of windows that the run has. `row`: the row of
    the same server, task and subset with one request at a time. Raises ConfigError if the run has no such windows."""
    own = windows_of(row, windows, load)
    if not own or row.served is None or row.method_name not in own[0].methods:
        raise ConfigError(f"{LOAD_RECORDS}: has no windows of {row.place} at {load}: repeat the run's command")
    answers, plain = ([window.methods[name] for window in own] for name in (row.method_name, BASELINE))
    verdict, warnings = _equality(row, own)
    warm_up = None  # a window may not record it
    warm_ups = [window.warm_up for window in own if window.warm_up is not None]
    starts, plain_starts = (
        [[warm_up[name]] for warm_up in warm_ups if name in warm_up] for name in (row.method_name, BASELINE)
    )
    if len(warm_ups) == len(own) and starts:
        warm_up = RowWarmUp.of(starts)
    examples = {(window.subset, answer.example) for window in own for answer in window.methods[BASELINE]}
    subsets = Counter(subset for subset, _ in sorted(examples))
    load = load.model_copy(update={"windows": len(own)})
    metrics = metrics_of(answers, plain, int(load.level) if load.kind == "concurrency" else None)
    memory = row.memory
    if memory in (SHUFFLED, REPEAT):  # each prompt was answered before, with one request at a time
        memory, metrics["num_own_answers"] = REPEAT, Estimate(value=len(examples))
    found = row.model_copy(
        update={
            "served": row.served.model_copy(update={"load": load}), "quality": None, "signatures": {},
            "n": len(examples), "subsets": dict(subsets) if row.subset == ALL else {}, "repeats": 1,
            "created": datetime.fromtimestamp(own[-1].measured_at, UTC).isoformat(timespec="seconds"),
            "accepted_tokens_per_step": None, "warm_up": warm_up, "verdict": verdict, "divergence": None,
            "differences": None,
            "memory": memory, "metrics": metrics,
        }
    )  # fmt: skip
    if text := unsteady_start(found, RowWarmUp.of(plain_starts) if plain_starts else None):
        warnings.append(RowWarning(code="not_steady", text=text))
    return found.model_copy(update={"warnings": tuple(warnings)})


def _equality(row: Row, windows: Sequence[LoadWindow]) -> tuple[str, list[RowWarning]]:
    """Returns the verdict on greedy answers, and the warnings about servers and differing answers. A prompt counts
    once, however many windows repeat it. The control is `ar`: its later answers to a prompt are compared with its first
    one. The later answers of a method are compared with the same first answer, so that a prompt can differ equally
    often on both sides."""
    warnings = [each for each in row.warnings if each.code in SERVER_WARNINGS]
    if row.sampling.temperature or row.method_name == BASELINE:
        return row.verdict if row.method_name == BASELINE else "not audited", warnings
    prompts: dict[tuple[str, int], list[tuple[LoadAnswer, LoadAnswer]]] = {}
    for window in windows:
        for pair in zip(*(window.methods[name] for name in (row.method_name, BASELINE)), strict=True):
            prompts.setdefault((window.subset, pair[1].example), []).append(pair)
    differing = [
        wrong for pairs in prompts.values()
        if (wrong := [own for own, plain in pairs if own.token_ids != plain.token_ids])
    ]  # fmt: skip
    ties = [[own.near_tie for own in wrong] for wrong in differing]  # None: unknown
    if not differing or all(map(all, ties)):
        return "near-tie only" if differing else "greedy equal", warnings
    first = {place: pairs[0][1].token_ids for place, pairs in prompts.items()}
    repeated = {place: pairs[1:] for place, pairs in prompts.items() if len(pairs) > 1}
    again = [all(plain.token_ids == first[place] for _, plain in pairs) for place, pairs in repeated.items()]
    num_later = sum(
        any(own.token_ids != first[place] for own, _ in repeated.get(place, pairs)) for place, pairs in prompts.items()
    )
    text = (
        f"the answers to {len(differing)} of {counted(len(prompts), 'prompt')} differ from those of ar, which itself "
        f"changed its answers to {again.count(False)} of {counted(len(again), 'prompt')} repeated at this load"
    )
    warnings.append(RowWarning(code="answers_differ", text=text))
    knows_ties = not any(None in each for each in ties)
    return served_verdict(again, len(prompts), num_later, knows_ties=knows_ties), warnings


def metrics_of(
    own: Sequence[Sequence[LoadAnswer]], baseline: Sequence[Sequence[LoadAnswer]], num_in_flight: int | None
) -> dict[str, Estimate]:
    """Returns the metrics of a server and of `ar` from their answers in the same windows. speedup_user =
    mean_acceptance_length ÷ pass_ratio, if the first read of each answer has one token. A level by rate
    (`num_in_flight` is None) has no speedup: below saturation, both servers write as fast as requests come."""
    prompts = Resampler(np.arange(len(own), dtype=np.int64), seed=0)
    throughput: list[list[float]] = []
    for side in (own, baseline):
        spans = [SteadySpan.of(answers, num_in_flight) for answers in side]
        throughput.append([float(span.num_tokens(answers)) for span, answers in zip(spans, side, strict=True)])
        throughput.append([span.end - span.begin for span in spans])
    user = [
        [float(sum(_timed(answer)[part] for answer in answers)) for answers in side]
        for side in (own, baseline) for part in (0, 1)
    ]  # fmt: skip
    is_known = all(answer.passes is not None for window in own for answer in window)
    passes, plain = (_sums(side, lambda answer: answer.passes or 0) for side in (own, baseline))
    found = {
        "tokens_per_second": prompts.ratio(*throughput[:2]), "tokens_per_second_ar": prompts.ratio(*throughput[2:]),
        "speedup": Estimate() if num_in_flight is None else prompts.ratio(*throughput),
        "tokens_per_second_user": prompts.ratio(*user[:2]), "speedup_user": prompts.ratio(*user), **_latencies(own),
        "tpot_ratio": _median_ratio(prompts, own, baseline, _tpot),
        "e2e_ratio": _median_ratio(prompts, own, baseline, lambda answer: answer.last_seconds),
    }  # fmt: skip
    found |= _reasoning(prompts, own)
    if is_known:
        # the prefill makes the first token
        after_first = _sums(own, lambda answer: sum(num for _, num in answer.reads) - 1)
        found["mean_acceptance_length"] = prompts.ratio(after_first, passes)
        found["pass_ratio"] = prompts.ratio(user[1], passes, user[3], plain)
    return found


def _reasoning(prompts: Resampler, windows: Sequence[Sequence[LoadAnswer]]) -> dict[str, Estimate]:
    """Returns what rows say of reasoning (`results.scores`), if any answer reasons."""
    reasoning = _sums(windows, lambda answer: answer.reasoning_tokens)
    if not any(reasoning):
        return {}
    new, number = _sums(windows, lambda answer: len(answer.token_ids)), _sums(windows, lambda answer: 1)
    return {
        "reasoning_tokens": prompts.ratio(reasoning, number),
        "answer_tokens": prompts.ratio([a - b for a, b in zip(new, reasoning, strict=True)], number),
        "reasoning_share": prompts.ratio(reasoning, new, bounds=SHARE),
        "share_cut_in_reasoning": prompts.ratio(
            _sums(windows, lambda answer: not answer.reasoning_closed), number, bounds=SHARE
        ),
    }


def _sums(windows: Sequence[Sequence[LoadAnswer]], part: Callable[[LoadAnswer], float]) -> list[float]:
    return [float(sum(map(part, answers))) for answers in windows]


def _timed(answer: LoadAnswer) -> tuple[int, float]:
    """Returns the tokens after the first read, and the seconds in which they came."""
    return sum(num for _, num in answer.reads[1:]), float(answer.last_seconds - answer.first_seconds)


def _tpot(answer: LoadAnswer) -> float | None:
    num_tokens, seconds = _timed(answer)
    return seconds / num_tokens if num_tokens else None


def _median_ratio(
    prompts: Resampler, own: Sequence[Sequence[LoadAnswer]], baseline: Sequence[Sequence[LoadAnswer]],
    part: Callable[[LoadAnswer], float | None],
) -> Estimate:  # fmt: skip
    """Returns the sum over windows of the medians of `ar` ÷ the same sum of a server. Windows without a value on either
    side are left out."""
    kept = []
    for window, plain in zip(own, baseline, strict=True):
        values = [[value for value in map(part, answers) if value is not None] for answers in (plain, window)]
        if all(values):
            kept.append([median(side) for side in values])
    return replace(prompts, cluster=np.arange(len(kept))).ratio(*zip(*kept, strict=True)) if kept else Estimate()


Limits = Mapping[str, float]  # seconds, by ttft, tpot and e2e
LIMITS = ("ttft", "tpot", "e2e")


def goodput(row: Row, windows: Sequence[LoadWindow], limits: Limits) -> Estimate:
    """Returns answers within all limits per second of the windows of a row with a load, from the first request of a
    window to its last token. As in vLLM's benchmark, an answer that came in one read has no time per token, and keeps
    that limit. The interval resamples windows."""
    own = [window.methods[row.method_name] for window in windows_of(row, windows, load_of(row))]
    seconds = [max(each.sent + each.last_seconds for each in w) - min(each.sent for each in w) for w in own]
    good = _sums(own, lambda answer: float(is_within(answer, limits)))
    return Resampler(np.arange(len(own), dtype=np.int64), seed=0).ratio(good, seconds)


def is_within(answer: LoadAnswer, limits: Limits) -> bool:
    times = {"ttft": answer.first_seconds, "tpot": _tpot(answer) or 0.0, "e2e": answer.last_seconds}
    return all(times[name] <= limit for name, limit in limits.items())


def _latencies(windows: Sequence[Sequence[LoadAnswer]]) -> dict[str, Estimate]:
    """Returns quantiles over the answers; those of ITL are over the tokens of all answers."""
    answers = [answer for window in windows for answer in window]
    times = {
        "ttft": [answer.first_seconds for answer in answers],
        "tpot": [seconds for each in answers if (seconds := _tpot(each)) is not None],
        "itl": [gap for answer in answers for gap in token_gaps(answer.reads)],
        "e2e": [answer.last_seconds for answer in answers],
    }
    if any(answer.reasoning_tokens for answer in answers):
        times["ttfa"] = [answer.answer_seconds for answer in answers if answer.answer_seconds is not None]
    return quantiles(times)


def break_even(rows: Sequence[Row]) -> Estimate:
    """Returns the lowest level at which a method's throughput falls to AR's, interpolated over the logarithm of the
    level; empty unless the method is faster at one level and slower at a higher one, each by its interval. The interval
    holds the levels at which the intervals of the speed-ups contain 1, interpolated alike."""
    ordered = sorted(rows, key=lambda row: load_of(row).level)
    outcomes = [is_faster(row) for row in ordered]
    if True not in outcomes or False not in outcomes[outcomes.index(True) :]:
        return Estimate()
    levels = [load_of(row).level for row in ordered]
    speedups = [row.metric("speedup") for row in ordered]
    low, value, high = (
        _crossing(levels, [getattr(speedup, end) for speedup in speedups]) for end in ("low", "value", "high")
    )
    return Estimate(value=value) if low is None or high is None else Estimate(value=value, low=low, high=high)


def _crossing(levels: Sequence[float], values: Sequence[float | None]) -> float | None:
    """Returns the first level at which values fall to 1; None if they never go from above to below."""
    points = [(level, value) for level, value in zip(levels, values, strict=True) if value is not None]
    for (low, above), (high, below) in pairwise(points):
        if above > 1 >= below:
            share = (above - 1) / (above - below)
            return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return None


def is_faster(row: Row) -> bool | None:
    """Returns whether a method has more throughput than AR; None if the interval of its speed-up contains 1."""
    found = row.metric("speedup")
    if found.low is None or found.high is None or found.low <= 1 <= found.high:
        return None
    return found.low > 1


def load_groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns the rows with a load by task, subset, kind of load and context, lowest level first."""
    groups: dict[tuple[str, str, str, int | None], list[Row]] = {}
    for row in rows:
        if row.level:
            groups.setdefault((row.task_name, row.subset, load_of(row).kind, load_of(row).context), []).append(row)
    return [sorted(group, key=lambda row: load_of(row).level) for group in groups.values()]


@dataclass(frozen=True)
class LoadMap:
    """The rows of one method by concurrency and context. `cells`: by both; cells that were not measured are absent."""

    task: str
    subset: str
    method: str
    cells: Mapping[tuple[float, int], Row]

    @property
    def levels(self) -> list[float]:
        return sorted({level for level, _ in self.cells})

    @property
    def contexts(self) -> list[int]:
        return sorted({context for _, context in self.cells})


def load_maps(rows: Sequence[Row]) -> list[LoadMap]:
    """Returns a map for each task, subset and method that was measured by concurrency at given contexts."""
    maps: dict[tuple[str, str, str], dict[tuple[float, int], Row]] = {}
    for row in rows:
        load = row.served.load if row.served is not None else None
        if load is not None and load.kind == "concurrency" and load.context is not None and not row.is_baseline:
            maps.setdefault(row.names, {})[load.level, load.context] = row
    return [LoadMap(*place, cells) for place, cells in maps.items()]


def load_of(row: Row) -> RowLoad:
    assert row.served is not None and row.served.load is not None
    return row.served.load


def rows_by_server(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns the rows of each server, the baseline's first."""
    names = sorted(dict.fromkeys(row.method_name for row in rows), key=lambda name: name != BASELINE)
    return [[row for row in rows if row.method_name == name] for name in names]
