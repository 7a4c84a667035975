"""Rows of methods that servers run: their conditions, metrics, table and warnings."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from specbench.core.console import counted
from specbench.core.table import Table, numbers, words
from specbench.results.bootstrap import SHARE, Metric, Prompts
from specbench.results.conditions import differences
from specbench.results.row import Row, RowServing, RowWarning
from specbench.results.units import number, short, with_interval
from specbench.results.verdict import RecordVerdict, differing_records
from specbench.running.records import Generation, Record

UNKNOWN_SOURCE = "none: "  # begins the source of acceptance counts that are not known
SLOW_CLIENT = 0.05  # a larger share of an answer's time outside the server gives a warning
BEYOND_CONTROL = 0.01  # below this p-value, answers differ more often than repeated answers of `ar`
FEW_TURNS = 5  # with fewer turns, a drift of the machine does not average out
LEARNS = "learns_across_requests"  # keys of a server's entry in run.json
UNKNOWN_TOKENIZER = "tokenizer_not_checked"
SERVER_FACTS = (LEARNS, UNKNOWN_TOKENIZER)


def is_served(generation: Generation) -> bool:
    """Returns whether a server made an answer."""
    return "acceptance_source" in generation.get("external", {})


def serving_of(records: Sequence[Record], method: str, identity: Mapping[str, Any]) -> RowServing | None:
    """Returns the serving conditions of a row; None for a method that ran in this process."""
    if "servers" not in identity:
        return None
    own = [record["methods"][method]["external"] for record in records]
    every = [record["methods"][name]["external"] for record in records for name in (method, "ar")]
    return RowServing(
        acceptance_source=", ".join(dict.fromkeys(counts["acceptance_source"] for counts in own)),
        caches="verified empty" if all(counts["cached_tokens"] == 0 for counts in every) else "not told",
        memory=identity["memory"], settings=identity["code"][method],
        turns=len({record["part"] for record in records}) if identity["by_turns"] else None,
    )  # fmt: skip


def control_outcomes(records: Sequence[Record]) -> list[bool]:
    """Returns for each answer that the server `ar` gave twice whether it was the same both times."""
    found = same_again(record["methods"]["ar"] for record in records)
    return [same for same in found if same is not None]


def same_again(baseline: Iterable[Generation]) -> list[bool | None]:
    """Returns for each answer of `ar` whether `ar` repeated it; None if it was not asked again."""
    return [generation["external"].get("same_again") for generation in baseline]


def served_verdict(again: Sequence[bool], num_answers: int, num_different: int, *, knows_ties: bool) -> RecordVerdict:
    """Returns the verdict on a server with answers that differ from those of `ar` by more than near-ties.

    The verdict is diverged if near-ties are known (`knows_ties`) and `ar` never changes an answer, or if the answers
    differ more often than repeated answers of `ar` do (Fisher's exact test, one-sided). Fewer differences prove
    nothing. `again`: for each repeated answer of `ar`, whether it was the same.
    """
    if knows_ties and False not in again:
        return "diverged"
    if not again:
        return "not audited"
    counts = [[num_different, num_answers - num_different], [again.count(False), again.count(True)]]
    from scipy import stats  # slow to import, and needed for servers only

    return "diverged" if stats.fisher_exact(counts, alternative="greater").pvalue < BEYOND_CONTROL else "not audited"


def served_metrics(prompts: Prompts, own: Sequence[Generation], baseline: Sequence[Generation]) -> dict[str, Metric]:
    """Returns the metrics that only served answers have: the time from the request to the last token, accepted ÷
    drafted tokens by the engine's counts (null if an answer has none), and the share of repeated answers of `ar` that
    changed.
    """
    totals = [generation["external"]["totals"] for generation in own]
    share = Metric()
    if None not in totals:
        share = prompts.ratio([total[2] for total in totals], [total[0] for total in totals], bounds=SHARE)
    changed = prompts.mean([None if same is None else float(not same) for same in same_again(baseline)], SHARE)
    whole = median(generation["ttft_seconds"] + generation["decode_seconds"] for generation in own)
    return {"e2e_seconds": Metric(value=whole), "accepted_per_drafted": share, "ar_changed": changed}


def served_table(rows: Sequence[Row]) -> Table:
    """Returns a table of one task and subset: times of an answer and the source of acceptance, one line per server."""
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
    by_turns = (
        f"; one server at a time, in turns ({first.turns} parts, which intervals of speeds resample)"
        if first.turns
        else ""
    )
    return Table(
        f"{short(rows[0].task)} · {rows[0].subset} · answers of servers",
        columns,
        cells,
        [
            "medians over answers, by the client's clock; TPOT: time after the first read ÷ tokens after it",
            "accepted ÷ drafted: by the engine's counts, which include tokens after the end; it is not α",
            f"{rows[0].engine}; one request at a time{by_turns}; memory: {first.memory or 'not stated'}; "
            f"prompt caches: {first.caches}",
            *([f"control: asked again, 'ar' changed {share} % of its answers"] if changed.value is not None else []),
        ],
    )


def served_warnings(row: Row, records: Sequence[Record], identity: Mapping[str, Any]) -> tuple[RowWarning, ...]:
    """Returns a warning for each condition of a fair comparison that a server does not meet."""
    if row.served is None or row.method_name == "ar":
        return ()
    method = row.method_name
    own, baseline = ([record["methods"][name]["external"] for record in records] for name in (method, "ar"))
    again = control_outcomes(records)
    unknown = [source for each in baseline if (source := each["acceptance_source"]).startswith(UNKNOWN_SOURCE)]
    has_drafted = any(counts["totals"] is None or counts["totals"][0] for counts in own)
    num_different = 0 if row.sampling.temperature else len(differing_records(records, method))
    own_settings, settings = identity["servers"][method], identity["servers"]["ar"]
    changed = [each for each in differences(settings, own_settings, absent=None) if each.field not in SERVER_FACTS]
    differing = ", ".join(f"{each.field} {each.first} ≠ {each.second}" for each in changed)
    waiting, waiting_for = max((share_of_waiting(records, name), name) for name in ("ar", method))
    num_late = {name: sum(is_read_late(record["methods"][name]) for record in records) for name in ("ar", method)}
    found = {
        "baseline_unchecked": unknown
        and f"it is unknown whether the server 'ar' drafts ({unknown[0].removeprefix(UNKNOWN_SOURCE)})",
        "tokenizer_unchecked": (settings.get(UNKNOWN_TOKENIZER) or own_settings.get(UNKNOWN_TOKENIZER))
        and "it could not be checked whether the servers serve the model of the tokenizer: they have no endpoint that "
        "tokenizes a text",
        "idle_unchecked": not all(counts["was_idle"] for counts in (*own, *baseline))
        and "it could not be checked whether the servers were idle: they do not report how many requests run",
        "drafts_nothing": not has_drafted
        and f"its server drafted nothing in {counted(len(own), 'answer')}: see the server's log",
        "caches_unknown": row.served.caches == "not told"
        and "the servers do not report how many prompt tokens were cached: switch their prefix caches off, and make "
        "them report it (vLLM: --enable-prompt-tokens-details)",
        "memory_not_stated": row.served.memory is None
        and "the file of the servers does not say how they reserve memory: add the key memory",
        "settings_differ": differing and f"the servers differ in more than speculation: {differing}",
        "learns": own_settings.get(LEARNS)
        and "its drafter learns across requests, so its speed depends on the order of the prompts",
        "few_turns": (row.served.turns or FEW_TURNS) < FEW_TURNS
        and f"the servers took turns, but had only {counted(row.served.turns or 0, 'turn')} each, so a drift of the "
        f"machine may be part of the speed-up: set turns to {FEW_TURNS} or more",
        "slow_client": waiting > SLOW_CLIENT
        and f"{waiting:.0%} of the time of the answers of '{waiting_for}' is spent outside the server: the client or "
        "the network is the bottleneck",
        "read_late": any(num_late.values())
        and f"answers were read late, in less than half the time in which the server wrote them "
        f"({', '.join(f'{number} of {name!r}' for name, number in num_late.items() if number)}), so their speed is "
        "that of the client: measure again with nothing else running",
        "answers_differ": num_different
        and row.verdict != "near-tie only"
        and f"{num_different} of {counted(len(records), 'answer')} differ from those of the server 'ar', which itself "
        f"changed {again.count(False)} of {counted(len(again), 'answer')} when asked again: run both with "
        "batch-invariant kernels, and run specbench audit --servers",
    }
    return tuple(RowWarning.model_validate({"code": code, "text": text}) for code, text in found.items() if text)


def share_of_waiting(records: Sequence[Record], method: str) -> float:
    """Returns the share of the time of a server's answers that is spent outside the server; 0 if it does not report its
    time."""
    answers = [record["methods"][method] for record in records]
    pairs = [(each["ttft_seconds"] + each["decode_seconds"], each["external"]["server_seconds"]) for each in answers]
    known = [(whole, reported) for whole, reported in pairs if reported is not None]
    whole = sum(whole for whole, _ in known)
    return (whole - sum(reported for _, reported in known)) / whole if whole > 0 else 0.0


def is_read_late(answer: Generation) -> bool:
    """Returns whether the client read the tokens after its first read in less than half the time in which the server
    reports to have written them, so that they waited for the client."""
    reported, num_first = answer["external"].get("server_decode_seconds"), answer["external"]["num_first_tokens"]
    num_new = len(answer["token_ids"])
    if reported is None or num_new < 2:
        return False
    written = reported * (num_new - num_first) / (num_new - 1)  # the server's time begins with the first token
    return bool(answer["decode_seconds"] < written / 2)
