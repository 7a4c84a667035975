"""Rows of methods that servers run: their conditions, their own metrics, and the reasons to doubt them."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from specbench.core.table import Table, numbers, words
from specbench.results.bootstrap import SHARE, Metric, Prompts
from specbench.results.conditions import differences
from specbench.results.row import Row, RowServing, RowWarning
from specbench.results.units import counted, number, short, with_interval
from specbench.results.verdict import RecordVerdict, different
from specbench.running.records import Generation, Record

NOT_TOLD = "none: "  # begins the source of an answer whose acceptance is not known
SLOW_CLIENT = 0.05  # share of an answer's time that is not the server's own
BEYOND_CONTROL = 0.01  # p-value below which answers differ more often than those of `ar` from its own
LEARNS = "learns_across_requests"  # key of what a run's folder says of a server


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


def controls(records: Sequence[Record]) -> list[bool]:
    """Returns whether each answer that the server `ar` gave twice was the same both times."""
    found = same_again(record["methods"]["ar"] for record in records)
    return [same for same in found if same is not None]


def same_again(baseline: Iterable[Generation]) -> list[bool | None]:
    """Returns for each answer of `ar` whether it gave the same one again; None where it was not asked."""
    return [generation["external"].get("same_again") for generation in baseline]


def served_verdict(records: Sequence[Record], num_different: int) -> RecordVerdict:
    """Returns the verdict on a server whose answers are not all those of `ar`: diverged if they differ more often than
    the answers of `ar` differ from its own (Fisher's exact test, one-sided). A server does not report whether its
    target is undecided at a difference, so that fewer differences prove nothing."""
    again = controls(records)
    if not again:
        return "not audited"
    counts = [[num_different, len(records) - num_different], [again.count(False), again.count(True)]]
    from scipy import stats  # takes long to import, and runs in this process need nothing of it

    return "diverged" if stats.fisher_exact(counts, alternative="greater").pvalue < BEYOND_CONTROL else "not audited"


def served_metrics(prompts: Prompts, own: Sequence[Generation], baseline: Sequence[Generation]) -> dict[str, Metric]:
    """Returns the metrics that only served answers have: the time from the request to the last token; the share of the
    draft tokens that was accepted as the engine counts both, which is no acceptance rate, null where an answer has no
    counts; and the share of the answers of `ar` that were others when it was asked again."""
    totals = [generation["external"]["totals"] for generation in own]
    share = Metric()
    if None not in totals:
        share = prompts.ratio([total[2] for total in totals], [total[0] for total in totals], bounds=SHARE)
    changed = prompts.mean([None if same is None else float(not same) for same in same_again(baseline)], SHARE)
    whole = median(generation["ttft_seconds"] + generation["decode_seconds"] for generation in own)
    return {"e2e_seconds": Metric(value=whole), "accepted_per_drafted": share, "ar_changed": changed}


def served_table(rows: Sequence[Row]) -> Table:
    """Returns a table of one task and subset: times of an answer and the source of the acceptance, a line per
    server."""
    conditions = [row.served for row in rows if row.served is not None]
    cells = [
        [
            row.method_name,
            *(number(row.metric(name), 1, 1000) for name in ("ttft_seconds", "e2e_seconds")),
            number(row.metric("tpot_seconds"), 2, 1000),
            number(row.metric("accepted_per_drafted"), 3),
            serving.acceptance_source,
        ]
        for row, serving in zip(rows, conditions, strict=True)
    ]
    columns = (
        *words("server", folds=False),
        *numbers("TTFT\nms", "E2E\nms", "TPOT\nms", "accepted\n÷ drafted"),
        *words("acceptance from"),
    )
    first, changed = conditions[0], rows[0].metric("ar_changed")
    share = with_interval(changed, 1, 100)
    return Table(
        f"{short(rows[0].task)} · {rows[0].subset} · answers of servers",
        columns,
        cells,
        [
            "medians over answers, by the client's clock; TPOT: time after the first read ÷ tokens after it",
            "accepted ÷ drafted: the engine's own count, tokens after the end included; it is not α",
            f"{rows[0].engine}; concurrency {first.concurrency}; memory: {first.memory or 'not stated'}; "
            f"prompt caches: {first.caches}",
            *([f"control: asked again, 'ar' changed {share} % of its answers"] if changed.value is not None else []),
        ],
    )


def served_warnings(row: Row, records: Sequence[Record], identity: Mapping[str, Any]) -> tuple[RowWarning, ...]:
    """Returns a warning for each condition of a fair comparison that a served method does not meet."""
    if row.served is None or row.method_name == "ar":
        return ()
    method = row.method_name
    own, baseline = ([record["methods"][name]["external"] for record in records] for name in (method, "ar"))
    again = controls(records)
    unknown = [source for each in baseline if (source := each["acceptance_source"]).startswith(NOT_TOLD)]
    has_drafted = any(counts["totals"] is None or counts["totals"][0] for counts in own)
    num_different = 0 if row.sampling.temperature else len(different(records, method))
    own_settings, settings = identity["servers"][method], identity["servers"]["ar"]
    differing = [
        f"{each.field} {each.first} ≠ {each.second}"
        for each in differences(settings, own_settings, absent=None) if each.field != LEARNS
    ]  # fmt: skip
    waiting = share_of_waiting(records, (method, "ar"))
    found = {
        "baseline_unchecked": unknown
        and f"whether the server 'ar' drafts is not known ({unknown[0].removeprefix(NOT_TOLD)})",
        "drafts_nothing": not has_drafted
        and f"its server drafted nothing in {counted(len(own), 'answer')}: see the server's log",
        "caches_unknown": row.served.caches == "not told"
        and "the servers do not tell how many prompt tokens were cached: switch their prefix caches off, and make them "
        "tell (vLLM: --enable-prompt-tokens-details)",
        "memory_not_stated": row.served.memory is None
        and "the file of the servers does not state the rule of their memory: add the key memory",
        "settings_differ": differing and f"the servers differ in more than speculation: {', '.join(differing)}",
        "learns": own_settings.get(LEARNS)
        and "its drafter learns across requests, so that the order of the prompts changes its speed",
        "slow_client": waiting > SLOW_CLIENT
        and f"{waiting:.0%} of an answer's time is not the server's own: the client or the network is the bottleneck",
        "answers_differ": num_different
        and f"{num_different} of {counted(len(records), 'answer')} are not those of the server 'ar', which changed "
        f"{again.count(False)} of {counted(len(again), 'answer')} when it was asked again, and a "
        "server does not report whether its target is undecided there: run both with batch-invariant kernels",
    }
    return tuple(RowWarning.model_validate({"code": code, "text": text}) for code, text in found.items() if text)


def share_of_waiting(records: Sequence[Record], methods: Sequence[str]) -> float:
    """Returns the median share of an answer's time that is not the server's own; 0 where servers do not tell theirs."""
    answers = [record["methods"][name] for record in records for name in methods]
    pairs = [(each["ttft_seconds"] + each["decode_seconds"], each["external"]["server_seconds"]) for each in answers]
    shares = [(whole - told) / whole for whole, told in pairs if told is not None and whole > 0]
    return float(median(shares)) if shares else 0.0
