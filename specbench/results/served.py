"""Rows of methods that servers run: their conditions, their own metrics, and the reasons to doubt them."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Literal

from pydantic import PositiveInt

from specbench.core.table import Table, numbers, words
from specbench.results.bootstrap import SHARE, FilePart, Metric, Prompts
from specbench.results.units import counted, number, short
from specbench.running.records import Generation, Record

NOT_TOLD = "none: "  # begins the source of an answer whose acceptance is not known
SLOW_CLIENT = 0.05  # share of an answer's time that is not the server's own
LEARNS = "learns_across_requests"  # key of what a run's folder says of a server


class RowServing(FilePart):
    """The conditions of a served row.

    `acceptance_source`: what the counts of acceptance rest on: steps, histogram, totals or counters of the server;
    "none: …" with the reason where they are null. `caches`: whether the servers told that no prompt was cached.
    `memory`: the rule by which both servers hold memory. `settings`: digest of what the server tells of itself.
    """

    acceptance_source: str
    caches: Literal["verified empty", "not told"]
    memory: str | None
    concurrency: PositiveInt = 1
    settings: str


def is_served(generation: Generation) -> bool:
    """Returns whether a server made an answer."""
    return "acceptance_source" in generation.get("external", {})


def serving_of(records: Sequence[Record], method: str, identity: Mapping[str, Any]) -> RowServing | None:
    """Returns the conditions of a served row; None for a method that ran in this process."""
    if "servers" not in identity:
        return None
    own = [record["methods"][method]["external"] for record in records]
    every = [record["methods"][name]["external"] for record in records for name in (method, "ar")]
    return RowServing(
        acceptance_source=", ".join(dict.fromkeys(counts["acceptance_source"] for counts in own)),
        caches="verified empty" if all(counts["cached_tokens"] == 0 for counts in every) else "not told",
        memory=identity["memory"], settings=identity["code"][method],
    )  # fmt: skip


def served_metrics(prompts: Prompts, own: Sequence[Generation]) -> dict[str, Metric]:
    """Returns the metrics that only served answers have: the time from the request to the last token, and the share of
    the draft tokens that was accepted as the engine counts both, which is no acceptance rate; null where an answer has
    no counts."""
    totals = [generation["external"]["totals"] for generation in own]
    share = Metric()
    if None not in totals:
        share = prompts.ratio([total[2] for total in totals], [total[0] for total in totals], bounds=SHARE)
    whole = median(generation["ttft_seconds"] + generation["decode_seconds"] for generation in own)
    return {"e2e_seconds": Metric(value=whole), "accepted_per_drafted": share}


def served_table(rows: Sequence[Any]) -> Table:
    """Returns a table of one task and subset: times of an answer and the source of the acceptance, a line per
    server."""
    cells = [
        [
            row.method_name,
            *(number(row.metric(name), 1, 1000) for name in ("ttft_seconds", "e2e_seconds")),
            number(row.metric("tpot_seconds"), 2, 1000),
            number(row.metric("accepted_per_drafted"), 3),
            row.served.acceptance_source,
        ]
        for row in rows
    ]
    columns = (
        *words("server", folds=False),
        *numbers("TTFT\nms", "E2E\nms", "TPOT\nms", "accepted\n÷ drafted"),
        *words("acceptance from"),
    )
    first = rows[0].served
    return Table(
        f"{short(rows[0].task)} · {rows[0].subset} · answers of servers",
        columns,
        cells,
        [
            "medians over answers, by the client's clock; TPOT: time after the first read ÷ tokens after it",
            "accepted ÷ drafted: the engine's own count, tokens after the end included; it is not α",
            f"{rows[0].engine}; concurrency {first.concurrency}; memory: {first.memory or 'not stated'}; prompt caches: "
            f"{first.caches}",
        ],
    )


def served_warnings(row: Any, records: Sequence[Record], identity: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the code and the text of each condition of a fair comparison that a served method does not meet."""
    if row.served is None or row.method_name == "ar":
        return
    own, baseline = ([record["methods"][name]["external"] for record in records] for name in (row.method_name, "ar"))
    unknown = [counts["acceptance_source"] for counts in baseline if counts["acceptance_source"].startswith(NOT_TOLD)]
    if unknown:
        yield "baseline_unchecked", f"whether the server 'ar' drafts is not known ({unknown[0].removeprefix(NOT_TOLD)})"
    if all(counts["totals"] is not None and counts["totals"][0] == 0 for counts in own):
        yield "drafts_nothing", f"its server drafted nothing in {counted(len(own), 'answer')}: see the server's log"
    if row.served.caches == "not told":
        yield (
            "caches_unknown",
            "the servers do not tell how many prompt tokens were cached: switch their prefix caches off, and make them "
            "tell (vLLM: --enable-prompt-tokens-details)",
        )
    if row.served.memory is None:
        yield "memory_not_stated", "the file of the servers does not state the rule of their memory: add the key memory"
    yield from _settings(row.method_name, identity["servers"])
    yield from _clocks(records, row.method_name)
    num_different = sum(
        record["methods"]["ar"]["token_ids"] != record["methods"][row.method_name]["token_ids"] for record in records
    )
    if row.sampling.temperature == 0 and num_different:
        yield (
            "answers_differ",
            f"{num_different} of {counted(len(records), 'answer')} are not those of the server 'ar', and a server does "
            "not tell whether its target is undecided there: run both with batch-invariant kernels",
        )


def _settings(method: str, servers: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    own, baseline = servers[method], servers["ar"]
    differing = [
        f"{key} {baseline.get(key)} ≠ {own.get(key)}"
        for key in {**baseline, **own} if key != LEARNS and baseline.get(key) != own.get(key)
    ]  # fmt: skip
    if differing:
        yield "settings_differ", f"the servers differ in more than speculation: {', '.join(differing)}"
    if own.get(LEARNS):
        yield "learns", "its drafter learns across requests, so that the order of the prompts changes its speed"


def _clocks(records: Sequence[Record], method: str) -> Iterator[tuple[str, str]]:
    pairs = [
        (generation["ttft_seconds"] + generation["decode_seconds"], generation["external"]["server_seconds"])
        for record in records for name in (method, "ar") for generation in (record["methods"][name],)
    ]  # fmt: skip
    shares = [(whole - told) / whole for whole, told in pairs if told is not None and whole > 0]
    if shares and median(shares) > SLOW_CLIENT:
        yield (
            "slow_client",
            f"{median(shares):.0%} of an answer's time is not the server's own: the client or the network is the "
            "bottleneck",
        )
