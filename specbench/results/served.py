"""Rows of methods that servers run: their conditions, their own metrics, and the reasons to doubt them."""

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

NOT_TOLD = "none: "  # begins the source of an answer whose acceptance is not known
SLOW_CLIENT = 0.05  # share of an answer's time that is not the server's own
BEYOND_CONTROL = 0.01  # p-value below which answers differ more often than those of `ar` from its own
FEW_TURNS = 5  # of fewer, a drift of the machine does not average out
LEARNS = "learns_across_requests"  # keys of what a run's folder says of a server
UNKNOWN_TOKENIZER = "tokenizer_not_checked"
SERVER_FACTS = (LEARNS, UNKNOWN_TOKENIZER)


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
        turns=len({record["part"] for record in records}) if identity["by_turns"] else None,
    )  # fmt: skip


def control_outcomes(records: Sequence[Record]) -> list[bool]:
    """Returns whether each answer that the server `ar` gave twice was the same both times."""
    found = same_again(record["methods"]["ar"] for record in records)
    return [same for same in found if same is not None]


def same_again(baseline: Iterable[Generation]) -> list[bool | None]:
    """Returns for each answer of `ar` whether it gave the same one again; None where it was not asked."""
    return [generation["external"].get("same_again") for generation in baseline]


def served_verdict(again: Sequence[bool], num_answers: int, num_different: int, *, is_told: bool) -> RecordVerdict:
    """Returns the verdict on a server whose answers are not all those of `ar`, and not all of these near-ties: diverged
    if near-ties are told apart (`is_told`) and `ar` never changes an answer, or if they differ more often than the
    answers of `ar` differ from its own (Fisher's exact test, one-sided): fewer differences prove nothing. `again`:
    whether each answer of `ar` that was asked again was the same."""
    if is_told and False not in again:
        return "diverged"
    if not again:
        return "not audited"
    counts = [[num_different, num_answers - num_different], [again.count(False), again.count(True)]]
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
    by_turns = (
        f"; one server at a time, by turns ({first.turns} parts, which intervals of speeds resample)"
        if first.turns
        else ""
    )
    return Table(
        f"{short(rows[0].task)} · {rows[0].subset} · answers of servers",
        columns,
        cells,
        [
            "medians over answers, by the client's clock; TPOT: time after the first read ÷ tokens after it",
            "accepted ÷ drafted: the engine's own count, tokens after the end included; it is not α",
            f"{rows[0].engine}; one request at a time{by_turns}; memory: {first.memory or 'not stated'}; "
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
    again = control_outcomes(records)
    unknown = [source for each in baseline if (source := each["acceptance_source"]).startswith(NOT_TOLD)]
    has_drafted = any(counts["totals"] is None or counts["totals"][0] for counts in own)
    num_different = 0 if row.sampling.temperature else len(differing_records(records, method))
    own_settings, settings = identity["servers"][method], identity["servers"]["ar"]
    differing = [
        f"{each.field} {each.first} ≠ {each.second}"
        for each in differences(settings, own_settings, absent=None) if each.field not in SERVER_FACTS
    ]  # fmt: skip
    waiting, waiting_for = max((share_of_waiting(records, name), name) for name in ("ar", method))
    num_late = {name: sum(is_read_late(record["methods"][name]) for record in records) for name in ("ar", method)}
    found = {
        "baseline_unchecked": unknown
        and f"whether the server 'ar' drafts is not known ({unknown[0].removeprefix(NOT_TOLD)})",
        "tokenizer_unchecked": (settings.get(UNKNOWN_TOKENIZER) or own_settings.get(UNKNOWN_TOKENIZER))
        and "whether the servers serve the model of the tokenizer could not be checked: they have no page that cuts a "
        "text into tokens",
        "idle_unchecked": not all(counts["was_idle"] for counts in (*own, *baseline))
        and "whether the servers were idle could not be checked: they do not tell how many requests run",
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
        "few_turns": (row.served.turns or FEW_TURNS) < FEW_TURNS
        and f"the servers were up by turns, and had {counted(row.served.turns or 0, 'turn')} each, so that a drift of "
        f"the machine is part of the speed-up: set turns to {FEW_TURNS} or more",
        "slow_client": waiting > SLOW_CLIENT
        and f"{waiting:.0%} of the time of the answers of '{waiting_for}' is not the server's own: the client or the "
        "network is the bottleneck",
        "read_late": any(num_late.values())
        and f"answers were read late and at once, in less than half the time in which the server wrote them "
        f"({', '.join(f'{number} of {name!r}' for name, number in num_late.items() if number)}): their speed is the "
        "client's; measure again with nothing else running",
        "answers_differ": num_different
        and row.verdict != "near-tie only"
        and f"{num_different} of {counted(len(records), 'answer')} are not those of the server 'ar', which changed "
        f"{again.count(False)} of {counted(len(again), 'answer')} when it was asked again: run both with "
        "batch-invariant kernels, and specbench audit --servers",
    }
    return tuple(RowWarning.model_validate({"code": code, "text": text}) for code, text in found.items() if text)


def share_of_waiting(records: Sequence[Record], method: str) -> float:
    """Returns the share of the time of a server's answers that is not its own; 0 where it does not tell its own."""
    answers = [record["methods"][method] for record in records]
    pairs = [(each["ttft_seconds"] + each["decode_seconds"], each["external"]["server_seconds"]) for each in answers]
    known = [(whole, told) for whole, told in pairs if told is not None]
    whole = sum(whole for whole, _ in known)
    return (whole - sum(told for _, told in known)) / whole if whole > 0 else 0.0


def is_read_late(answer: Generation) -> bool:
    """Returns whether the client read the tokens after its first read in less than half the time that the server says
    it took to write them: they had waited for it."""
    told, num_first = answer["external"].get("server_decode_seconds"), answer["external"]["num_first_tokens"]
    num_new = len(answer["token_ids"])
    if told is None or num_new < 2:
        return False
    written = told * (num_new - num_first) / (num_new - 1)  # the server's time begins with the first token
    return bool(answer["decode_seconds"] < written / 2)
