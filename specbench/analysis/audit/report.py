"""The report of an audit: the verdict on each method and its evidence, as JSON, as a table and in paragraphs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from specbench.core import bounded
from specbench.core.console import counted
from specbench.core.table import RULE, Column, Table, number_columns, text_columns
from specbench.models.batch_width import BatchWidth, Noise, WidthChange
from specbench.models.near_ties import Greedy
from specbench.report.captions import width_of_passes
from specbench.results.metric_format import NULL
from specbench.results.row import Evidence as RowEvidence
from specbench.results.row import Row
from specbench.results.verdict import FAILS_BELOW, FALSE_ALARM, NUM_LONG_TOKENS, NUM_TOKENS
from specbench.specs.components import build
from specbench.statistics.bootstrap import FilePart

VerdictName = Literal[
    "lossless", "greedy equal", "near-tie only", "width only", "diverged", "lossy by design", "undecided", "not run"
]

Reference = Literal["target", "ar"]


class TokenDeviation(FilePart):
    """The drawn token whose count is farthest from its expectation. `drawn`: the tokens between the prompt and it."""

    prompt: str
    drawn: str
    token: str
    num_observed: int
    num_expected: float


class SampleStatistics(FilePart):
    """The test of drawn tokens against the target's exact probabilities, or against samples of AR. `p_by_token`: the
    p-values of the counts of the first, second, … token; null if too few samples share a prefix. The mean log p (nats
    per token), its expectation and its standard error are null if the probabilities are not known."""

    num_tokens: int
    p_value: float
    p_by_token: list[float | None]
    mean_log_p: float | None = None
    expected_log_p: float | None = None
    standard_error: float | None = None

    @property
    def failed(self) -> bool:
        return self.p_value < FAILS_BELOW


class SampleTest(SampleStatistics):
    """The test of a method's samples of up to `most_tokens` tokens each. Drafted, accepted, recovered and bonus tokens
    are counted over all samples; null for decoders that do not count them."""

    num_draws: int
    most_tokens: int = NUM_TOKENS
    num_drafted: int | None = None
    num_accepted: int | None = None
    num_recovered: int | None = None
    num_bonus: int | None = None
    example: TokenDeviation | None = None

    @property
    def is_long(self) -> bool:
        return self.most_tokens > NUM_TOKENS


class ControlTest(FilePart):
    """The same test of a deliberately wrong method, with as many samples. If it is not caught, the samples are too
    few."""

    name: str
    distribution: SampleTest

    @property
    def caught(self) -> bool:
        return self.distribution.failed


class MethodVerdict(FilePart):
    """The verdict on one method. `reason`: explains every verdict except "lossless". `answers`: the test of a server's
    whole drawn answers, by their log-probabilities."""

    method: str
    verdict: VerdictName
    declared_lossless: bool | None  # null: external code that claims nothing
    reason: str | None = None
    greedy: Greedy | None = None
    distribution: SampleTest | None = None
    answers: SampleStatistics | None = None


class AuditFindings(FilePart):
    """The verdicts, and the evidence that they share. `reference`: samples are tested against the exact probabilities
    of the target, or, if a server holds the target, against other samples of AR. `prompts`: the names of the prompts of
    the samples, and the ends of their texts. `long_control`: the control with long samples, if a method drafted nothing
    in short samples. `batch_width`: null unless --batch-width asks for it."""

    reference: Reference = "target"
    noise: Noise
    batch_width: BatchWidth | None = None
    prompts: list[str]
    control: ControlTest | None
    long_control: ControlTest | None = None
    verdicts: list[MethodVerdict]


class AuditedIdentity(BaseModel):
    """An audited method as its leaderboard rows identify it."""

    method: str  # name@version:digest
    drafter: str | None
    drafter_revision: str | None
    engine: str


class AuditReport(AuditFindings):
    """The report of an audit: what was audited, and the findings. `drafters`, `identities`: by method."""

    task: str
    subsets: list[str]
    target: str
    target_revision: str | None
    drafters: dict[str, str]
    identities: dict[str, AuditedIdentity]
    dtype: str
    engine: str
    attention: str | None = None  # null: not recorded, by an earlier version
    pass_width: int | None = None
    device: str
    temperature: float
    top_k: int | None
    top_p: float | None
    num_draws: int
    seed: int

    @property
    def as_declared(self) -> bool:
        return not any(verdict.verdict == "diverged" and verdict.declared_lossless for verdict in self.verdicts)

    def verdict_of(self, row: Row, place: str | None = None) -> tuple[str, RowEvidence] | None:
        """Returns the verdict on a leaderboard row with its evidence; None if the audit decides nothing about it.

        The row's method and models must have been audited in its dtype, attention and engine and with its kind of
        sampling. A difference in the row's own outputs outweighs a clean verdict. `place`: the file of the report, for
        the evidence.
        """
        for verdict in self.verdicts:
            found = self.identities.get(verdict.method)
            if found is None or (
                row.method, row.drafter, row.drafter_revision, row.target, row.target_revision, row.dtype, row.engine,
                row.pass_width,
            ) != (
                found.method, found.drafter, found.drafter_revision, self.target, self.target_revision, self.dtype,
                found.engine, self.pass_width,
            ):  # fmt: skip
                continue
            if self.attention is not None and row.attention != self.attention:  # llama.cpp's holds the type of K and V
                continue
            # Greedy outputs are evidence for greedy rows; samples for sampled rows with the same truncation, at any
            # temperature and of any subset.
            samples = verdict.distribution
            covers = verdict.greedy is not None
            if row.sampling.temperature != 0:
                truncation = (row.sampling.top_k, row.sampling.top_p)
                covers = samples is not None and truncation == (self.top_k, self.top_p)
            clean = verdict.verdict in ("lossless", "greedy equal")
            own_finding = row.evidence is None and row.verdict in ("diverged", "near-tie only", "width only")
            if verdict.verdict in ("undecided", "not run") or (clean and own_finding) or not covers:
                return None
            return verdict.verdict, RowEvidence(
                task=self.task, subsets=tuple(self.subsets),
                num_prompts=verdict.greedy.num_prompts if verdict.greedy else None,
                num_draws=samples.num_draws if samples else None, temperature=self.temperature if samples else None,
                p_value=samples.p_value if samples else None, report=place,
            )  # fmt: skip
        return None


def verdict_in_report(path: Path, row: Row) -> tuple[str, RowEvidence] | None:
    """Returns the verdict in an audit's report on a row, with its evidence; None if there is none. Raises ConfigError
    for a file that is not an audit's report."""
    content = bounded.read_json(path, "restore it from a copy")
    return build(AuditReport, content, f"{path}: ", remedy="not the report of an audit").verdict_of(row)


VERDICT_MEANINGS = (
    "lossless: greedy outputs and samples passed. greedy equal: the greedy outputs are AR's, token by token; "
    "it cannot sample. near-tie only: outputs differ from AR's only where two tokens are nearly "
    "tied. width only: each output is the target's by the method's own passes, but the target itself depends on the "
    "width of a pass, the number of tokens that it reads: no fault of the method. diverged: outputs or samples are not "
    "the target's (rule: an emitted token is not the argmax of the method's own pass; state: that pass gave other "
    "logits than the target gives after the same text; unknown: its passes are not known, or nothing shows that the "
    "target reads draft trees rightly). "
    "lossy by design: its rule does not claim to be lossless. "
    "undecided: no difference was found, but this audit was too weak to find one; the method's line says why."
)
COLUMNS: tuple[Column, ...] = (
    *text_columns("method"), *text_columns("verdict", folds=False),
    *number_columns("greedy\n= AR", "near-\nties", "differs\nat token", "samples\np-value", "log p sampled\n− expected",
             "accepted/recovered\n/bonus tokens"),
)  # fmt: skip
DRAW_TESTS = {
    "target": "drafts are both accepted and rejected often, and are tested against the target's exact probabilities; "
    "log p in nats per token",
    "ar": "many next tokens are possible, and are tested against as many other samples of the server 'ar', whose own "
    "line in the table is a control that must pass",
}  # fmt: skip
ANSWER_SCORERS = {"target": "the target in this process", "ar": "the server 'ar'"}


def report_parts(audit: AuditReport) -> "list[Table | str]":
    """Returns what is printed: the verdicts, if methods were audited, and how the target depends on the width of a
    pass."""
    width = [] if audit.batch_width is None else [width_table(audit)]
    return [*([audit_table(audit)] if audit.verdicts else []), *paragraphs(audit), *width]


def audit_table(audit: AuditReport) -> Table:
    title = f"audit · {audit.task} · {audit.target}"
    return Table(title, COLUMNS, [cells(verdict) for verdict in audit.verdicts], caption(audit))


WIDTH_COLUMNS: tuple[Column, ...] = (
    *text_columns("after", "rows of", folds=False),
    *number_columns("equal", "median\nΔ", "largest\nΔ", "largest\nΔgap", "flips", "TV", "same\nas", "v(n)"),
)  # fmt: skip
ROWS_OF = {
    "chain": "pass of {}", "after": "1 after pass of {}", "tree": "tree of {}", "after tree": "1 after path of tree",
    "kept": "passes of {}, kept", "prompt": "answer in one pass", "fresh tree": "tree of {}, fresh",
}  # fmt: skip


def width_table(report: AuditReport) -> Table:
    """Returns the table of a target's dependence on the width of its passes."""
    width = report.batch_width
    assert width is not None
    rows: list[Sequence[str]] = []
    for prefix, lengths in width.prefixes.items():
        rows += [RULE] if rows else []
        rows += [width_cells(each, lengths) for each in width.changes if each.prefix == prefix]
    engine = f"{report.engine}{width_of_passes(report.pass_width)}"
    title = f"batch width · {report.target} · {report.dtype} · {engine}"
    return Table(title, WIDTH_COLUMNS, rows, list(width_caption(report, width)))


def width_cells(each: WidthChange, lengths: tuple[int, int]) -> list[str]:
    flips = f"{len(each.flip_gaps)}/{each.num_positions}"
    return [
        f"{lengths[0]}–{lengths[1]}", ROWS_OF[each.compared].format(each.width), f"{each.share_equal:.0%}",
        *(f"{value:.2g}" for value in (each.median_change, each.max_change, each.max_gap_change)),
        flips if not each.flip_gaps else f"{flips} ({each.flip_gaps[0]:.1g})",
        NULL if each.total_variation is None else f"{each.total_variation:.1g}",
        NULL if each.same_as is None else str(each.same_as), NULL if each.cost is None else f"{each.cost:.2f}",
    ]  # fmt: skip


def width_caption(report: AuditReport, width: BatchWidth) -> Iterator[str]:
    noise = width.noise()
    answers = (
        f"AR's answers to {counted(width.num_prompts, 'prompt')} of {report.task} {', '.join(report.subsets)}; "
        f"{report.dtype} on {report.device}, {report.engine}"
    )
    if report.reference == "ar":
        yield (
            "The line compares log-probabilities that the server 'ar' reports for the most probable tokens: after "
            f"tokens that it wrote itself, and after the same text as a prompt, along {answers}. It chooses the widths "
            "of its passes itself, so that nothing is known of the others. Δ is the change of a log-probability, Δgap "
            "that of a gap between the highest and one of the next nine, TV the mean total variation."
        )
    else:
        yield (
            f"Each line compares rows of logits with those of passes over one token, along {answers}. A pass of n "
            "tokens, or a tree, follows the same cached tokens as those passes, and is then dropped; “kept” passes "
            "follow each other, as in decoding; a “fresh” tree follows a text that was read anew. Δ is the change of "
            "a logit, Δgap that of a gap between the highest logit and one of the next nine, TV the mean total "
            "variation at temperature 1."
        )
    yield (
        "after: cached tokens; equal: rows that are equal bit for bit; flips: rows with another argmax (and the "
        "largest gap there); same as: the smallest width with the same rows; v(n): the fastest pass in fastest passes "
        "over one token"
    )
    if report.pass_width is not None:
        cost = "" if width.padding_cost is None else (
            f"; a pass over one token then takes {width.padding_cost:.2f} times as long"
        )  # fmt: skip
        yield f"every pass is made of {counted(report.pass_width, 'row')} (--pass-width){cost}"
    if width.repeated is not None:
        same = {True: "the same rows", False: "OTHER ROWS"}
        rolled_back = "the same rows" if width.rolled_back else f"other rows (by up to {width.rollback_change:.2g})"
        yield (
            f"a pass that is repeated gives {same[width.repeated]}; after wrong draft tokens were read and dropped it "
            f"gives {rolled_back}"
        )
    if widths := width.wrong_widths:
        worst = max(each.shift or 0.0 for each in width.changes if each.compared == "kept")
        yield (
            f"PASSES OF {', '.join(map(str, widths))} TOKENS AFTER CACHED ONES ARE WRONG: one row in fifty or more is "
            f"{worst:.2g} standard deviations of its logits from single passes and from one pass over the text, and "
            f"rounding explains {width.max_shift:.2g}. They are left out of what follows"
        )
    if trees := [each for each in width.changes if each.compared == "fresh tree"]:
        yield {
            True: "draft trees are read rightly: wrong siblings do not change the rows of the right tokens, which are "
            "near those of other passes",
            False: "PASSES OVER DRAFT TREES ARE WRONG: rows of the right tokens are "
            f"{max(each.shift or 0.0 for each in trees):.2g} standard deviations of their logits from other passes",
            None: "whether draft trees are read rightly is not known: wrong siblings change gaps between logits in "
            f"rows of the right tokens by up to {width.sibling_change or 0.0:.2g}",
        }[width.trust(trees[0].width).trees]
    if width.is_independent:
        yield "the target does not depend on the width of a pass: greedy outputs of a lossless method equal AR's"
        return
    change = f"gaps between logits change by up to {noise.max_gap_change:.2g}"
    if width.methods_are_equal:
        yield (
            "passes as methods make them do not depend on their width: greedy outputs of a lossless method equal AR's. "
            f"Only one pass over a whole answer rounds otherwise: {change}"
        )
        return
    kept = "" if noise.kept_tolerance is None else f" ({noise.kept_tolerance:.2g} without passes over a whole answer)"
    yield (
        f"the target depends on the width of a pass: {change}. So a lossless method may write another token than AR "
        f"where two are nearly tied; AR itself would, read in these passes, on {width.num_changed} of "
        f"{counted(width.num_prompts, 'prompt')}. Twice that change, {noise.tolerance:.2g}{kept}, is what the width "
        "explains of a difference from AR"
    )


def cells(verdict: MethodVerdict) -> list[str]:
    greedy, samples = verdict.greedy, verdict.distribution
    compared, drawn = [NULL] * 3, [NULL] * 3
    if greedy is not None:
        position = NULL if greedy.median_position is None else f"{greedy.median_position:g}"
        compared = [f"{greedy.num_equal}/{greedy.num_prompts}", str(greedy.num_near_ties), position]
    if samples is not None:
        counts = (samples.num_accepted, samples.num_recovered, samples.num_bonus)
        shown = "/".join(NULL if count is None else str(count) for count in counts)
        drawn = [p_value(samples.p_value), log_p_of(samples), shown if samples.num_drafted else NULL]
    return [verdict.method, verdict.verdict, *compared, *drawn]


def log_p_of(samples: SampleStatistics) -> str:
    if samples.mean_log_p is None or samples.expected_log_p is None:
        return NULL
    return f"{samples.mean_log_p - samples.expected_log_p:+.3f} ± {samples.standard_error:.3f}"


def caption(audit: AuditReport) -> list[str]:
    noise, control = audit.noise, audit.control
    lines = [
        f"greedy: {counted(noise.num_prompts, 'prompt')} of {audit.task} {', '.join(audit.subsets)} (--limit of each "
        f"subset), {counted(noise.num_positions, 'token')}; {audit.dtype} on {audit.device}, {audit.engine}. "
        f"AR against itself with other query lengths: another token on {noise.num_changed} of {noise.num_prompts}; "
        f"gaps between logits change by up to {noise.max_gap_change:.2g}. A near-tie is a gap of at most "
        f"{noise.tolerance:.2g}. “differs at token” is a median over prompts."
    ]
    if control is not None:
        lines.append(
            f"samples: {audit.num_draws} of each method (--draws), of up to {NUM_TOKENS} tokens at temperature "
            f"{audit.temperature:g}. They continue {counted(len(audit.prompts), 'beginning')} of these prompts with "
            f"AR's answers, cut where {DRAW_TESTS[audit.reference]}. "
            f"They reach the first {NUM_TOKENS - 2} draft positions and as many steps of a text: only the greedy "
            "comparison shows an error that begins later. "
            f"A correct method fails with probability ≤ {FALSE_ALARM:g}. The control ({control.name}) was "
            f"{control_result(control)}.{lossy_summary(audit)}"
        )
    if audit.long_control is not None:
        names = [each.method for each in audit.verdicts if each.distribution and each.distribution.is_long]
        lines.append(
            f"{', '.join(names)} had no drafts in these samples and were sampled again, with up to {NUM_LONG_TOKENS} "
            f"tokens: the control was {control_result(audit.long_control)} in samples of this length."
        )
    if whole := [f"{each.method} {log_p_of(each.answers)}" for each in audit.verdicts if each.answers is not None]:
        lines.append(
            "whole answers: a sample of each server to each of the first prompts; log p − expected, in nats per token, "
            f"by the log-probabilities of {ANSWER_SCORERS[audit.reference]}: {', '.join(whole)}"
        )
    return [*lines, VERDICT_MEANINGS]


def control_result(control: ControlTest) -> str:
    result = "rejected" if control.caught else "NOT rejected: the test lacks power"
    return f"{result}, {p_text(control.distribution.p_value)}"


def lossy_summary(audit: AuditReport) -> str:
    tests = [each.distribution for each in audit.verdicts if each.verdict == "lossy by design" and each.distribution]
    if not tests:
        return ""
    num_failed = sum(test.failed for test in tests)
    return f" {num_failed} of {counted(len(tests), 'lossy method')} failed the sampling test, as expected."


def paragraphs(audit: AuditReport) -> Iterator[str]:
    """Yields a paragraph about each method that is not simply lossless, or whose verdict has a reason."""
    for verdict in audit.verdicts:
        parts = [part for part in (verdict.reason, *evidence(verdict)) if part]
        if parts:
            name = "" if verdict.verdict == "lossless" else f" – {verdict.verdict}"
            yield f"{verdict.method}{name}: {'. '.join(parts)}."


def evidence(verdict: MethodVerdict) -> Iterator[str]:
    """Yields the first difference between greedy outputs, and the test of the samples if it failed."""
    difference = verdict.greedy.example if verdict.greedy else None
    if difference is not None:
        tokens = (difference.ar_token, difference.method_token)
        own, other = ("nothing (it had ended)" if token is None else repr(token) for token in tokens)
        gap = "" if difference.gap is None else f", logit gap {difference.gap:.3g}"
        if difference.kind is not None and difference.kind != "unknown":
            gap += f", {difference.kind}"
        yield f"Prompt {difference.prompt}, new token {difference.position}: AR wrote {own}, it wrote {other}{gap}"
    samples = verdict.distribution
    if samples is not None and samples.failed:
        by_token = ", ".join(NULL if p is None else p_value(p) for p in samples.p_by_token)
        yield f"Samples: {p_text(samples.p_value)}; p of the counts of the 1st, 2nd, … token: {by_token}"
        if samples.example is not None:
            found = samples.example
            yield (
                f"After {found.prompt!r} + {found.drawn!r}: {found.num_observed} times {found.token!r} where "
                f"{found.num_expected:.1f} are expected"
            )


SMALLEST_P = 1e-9  # that reports print


def p_text(value: float) -> str:
    """Returns a p-value with its relation: "p = 0.03" or "p < 1e-9"."""
    return f"p {'= ' * (value >= SMALLEST_P)}{p_value(value)}"


def p_value(value: float) -> str:
    return "< 1e-9" if value < SMALLEST_P else f"{value:.2g}"
