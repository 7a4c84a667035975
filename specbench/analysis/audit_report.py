"""The report of an audit: the verdict on each method and its evidence, as JSON, as a table and in paragraphs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from specbench.core import bounded
from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.core.table import Column, Table, numbers, words
from specbench.results.bootstrap import FilePart
from specbench.results.row import Evidence as RowEvidence
from specbench.results.row import Row
from specbench.results.units import NULL
from specbench.results.verdict import FAILS_BELOW, FALSE_ALARM, NUM_LONG_TOKENS, NUM_TOKENS, Greedy, Noise

VerdictName = Literal[
    "lossless", "greedy equal", "near-tie only", "diverged", "lossy by design", "undecided", "not run"
]

Reference = Literal["target", "ar"]


class TokenDeviation(FilePart):
    """The drawn token whose count is farthest from what the target gives it, after a prompt and the tokens drawn."""

    prompt: str
    drawn: str
    token: str
    num_observed: int
    num_expected: float


class DrawStatistics(FilePart):
    """The test of drawn tokens against the target's exact probabilities, or against draws of AR; log p in nats per
    token, with its expectation and standard error, null where the probabilities are not known. `p_by_token` holds the
    p-value of the counts of the first, second, … token; null where too few draws share a prefix."""

    num_tokens: int
    p_value: float
    p_by_token: list[float | None]
    mean_log_p: float | None = None
    expected_log_p: float | None = None
    standard_error: float | None = None

    @property
    def failed(self) -> bool:
        return self.p_value < FAILS_BELOW


class DrawTest(DrawStatistics):
    """The test of a method's draws, of up to `most_tokens` tokens each. Drafted, accepted, recovered and
    bonus tokens are counted over all draws; null for decoders that do not count."""

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
    """A deliberately wrong method in the same test with as many draws: caught, or the draws are too few."""

    name: str
    distribution: DrawTest

    @property
    def caught(self) -> bool:
        return self.distribution.failed


class MethodVerdict(FilePart):
    """The verdict on one method. `reason` explains every verdict but "lossless". `answers`: the test of whole drawn
    answers of a server, by their log-probabilities."""

    method: str
    verdict: VerdictName
    declared_lossless: bool | None  # null: external code that claims nothing
    reason: str | None = None
    greedy: Greedy | None = None
    distribution: DrawTest | None = None
    answers: DrawStatistics | None = None


class AuditFindings(FilePart):
    """The verdicts, and the evidence that all of them share. `reference`: draws are tested against the exact
    probabilities of the target, or against other draws of AR, where a server holds the target. `prompts` names the
    prompts used for draws, up to the cut.
    `long_control`: the control in draws as long as those of methods that draft nothing in the short ones."""

    reference: Reference = "target"
    noise: Noise
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
    """The report of an audit: what was audited, and the findings. `drafters` and `identities` are by method."""

    task: str
    subsets: list[str]
    target: str
    target_revision: str | None
    drafters: dict[str, str]
    identities: dict[str, AuditedIdentity]
    dtype: str
    engine: str
    device: str
    temperature: float
    top_k: int | None
    top_p: float | None
    num_draws: int
    seed: int

    @property
    def as_declared(self) -> bool:
        """Returns whether no method that is declared lossless was found to be lossy."""
        return not any(verdict.verdict == "diverged" and verdict.declared_lossless for verdict in self.verdicts)

    def verdict_of(self, row: Row, place: str | None = None) -> tuple[str, RowEvidence] | None:
        """Returns the verdict on the method and models of a leaderboard row, with its evidence, if they were audited in
        the row's dtype, engine and way of sampling and something was decided. A finding of the row's own outputs stays.
        `place`: the file of the report, which the evidence names."""
        for verdict in self.verdicts:
            found = self.identities.get(verdict.method)
            if found is None or (
                row.method, row.drafter, row.drafter_revision, row.target, row.target_revision, row.dtype, row.engine
            ) != (
                found.method, found.drafter, found.drafter_revision, self.target, self.target_revision, self.dtype,
                found.engine,
            ):  # fmt: skip
                continue
            clean = verdict.verdict in ("lossless", "greedy equal")
            own_finding = row.evidence is None and row.verdict in ("diverged", "near-tie only")
            if verdict.verdict in ("undecided", "not run") or (clean and own_finding) or not self._covers(verdict, row):
                return None
            draws = verdict.distribution
            return verdict.verdict, RowEvidence(
                task=self.task, subsets=tuple(self.subsets),
                num_prompts=verdict.greedy.num_prompts if verdict.greedy else None,
                num_draws=draws.num_draws if draws else None, temperature=self.temperature if draws else None,
                p_value=draws.p_value if draws else None, report=place,
            )  # fmt: skip
        return None

    def _covers(self, verdict: MethodVerdict, row: Row) -> bool:
        """Returns whether an audit says something of a row: its greedy outputs of greedy rows; its draws of all that
        are drawn with the same truncation, at any temperature. The subset does not matter for either."""
        if row.sampling.temperature == 0:
            return verdict.greedy is not None
        return verdict.distribution is not None and (row.sampling.top_k, row.sampling.top_p) == (self.top_k, self.top_p)


def verdict_in_report(path: Path, row: Row) -> tuple[str, RowEvidence] | None:
    """Returns the verdict of an audit's report on a row, with its evidence; None where it has none. Raises ConfigError
    for a file that is not an audit's report."""
    try:
        report = AuditReport.model_validate(bounded.read_json(path, "restore it from a copy"))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise ConfigError(
            f"{path}: {key} = {problem['input']!r:.60}: {problem['msg']}: not the report of an audit"
        ) from error
    return report.verdict_of(row)


WORDS = (
    "lossless: greedy outputs and draws passed. greedy equal: the greedy outputs are AR's, token by token; the "
    "method cannot sample. near-tie only: outputs differ from AR's only where two tokens are nearly tied. diverged: "
    "outputs or draws are not the target's. lossy by design: its rule does not claim to be lossless. undecided: no "
    "difference was found, but this audit was too weak to find one; the method's line says why."
)
COLUMNS: tuple[Column, ...] = (
    *words("method"), *words("verdict", folds=False),
    *numbers("greedy\n= AR", "near-\nties", "differs\nat token", "draws\np-value", "log p drawn\n− expected",
             "accepted/recovered\n/bonus tokens"),
)  # fmt: skip
TESTED = {
    "target": "drafts are both accepted and rejected often, and are tested against the target's exact probabilities; "
    "log p in nats per token",
    "ar": "much is undecided, and are tested against as many other draws of the server 'ar', which is in the table "
    "itself as a control that passes",
}  # fmt: skip
OF_ANSWERS = {"target": "the target in this process", "ar": "the server 'ar'"}


def audit_table(audit: AuditReport) -> Table:
    """Returns a table with a line per method."""
    title = f"audit · {audit.task} · {audit.target}"
    return Table(title, COLUMNS, [cells(verdict) for verdict in audit.verdicts], caption(audit))


def cells(verdict: MethodVerdict) -> list[str]:
    """Returns the line of a method."""
    greedy, draws = verdict.greedy, verdict.distribution
    row = [verdict.method, verdict.verdict]
    if greedy is None:
        row += [NULL] * 3
    else:
        position = NULL if greedy.median_position is None else f"{greedy.median_position:g}"
        row += [f"{greedy.num_equal}/{greedy.num_prompts}", str(greedy.num_near_ties), position]
    if draws is None:
        return [*row, *[NULL] * 3]
    counts = (draws.num_accepted, draws.num_recovered, draws.num_bonus)
    shown = "/".join(NULL if count is None else str(count) for count in counts)
    return [*row, p_value(draws.p_value), log_p_of(draws), shown if draws.num_drafted else NULL]


def log_p_of(draws: DrawStatistics) -> str:
    """Returns log p − its expectation, with the standard error."""
    if draws.mean_log_p is None or draws.expected_log_p is None:
        return NULL
    return f"{draws.mean_log_p - draws.expected_log_p:+.3f} ± {draws.standard_error:.3f}"


def caption(audit: AuditReport) -> list[str]:
    """Returns the lines below the table: the noise of the target, the draws and the control, and the words."""
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
            f"draws: {audit.num_draws} of each method (--draws), of up to {NUM_TOKENS} tokens at temperature "
            f"{audit.temperature:g}. They continue {counted(len(audit.prompts), 'beginning')} of these prompts with "
            f"AR's answers, cut where {TESTED[audit.reference]}. "
            f"They reach the first {NUM_TOKENS - 2} draft positions and as many steps of a text: only the greedy "
            "comparison shows an error that begins later. "
            f"A correct method fails with probability ≤ {FALSE_ALARM:g}. The control ({control.name}) was "
            f"{found_words(control)}.{lossy_words(audit)}"
        )
    if audit.long_control is not None:
        names = [each.method for each in audit.verdicts if each.distribution and each.distribution.is_long]
        lines.append(
            f"{', '.join(names)} drafted nothing in these draws and drew anew, up to {NUM_LONG_TOKENS} tokens; the "
            f"control was {found_words(audit.long_control)} in draws of this length."
        )
    if whole := [f"{each.method} {log_p_of(each.answers)}" for each in audit.verdicts if each.answers is not None]:
        lines.append(
            "whole answers: a sample of each server to each of the first prompts; log p − expected, in nats per token, "
            f"by the log-probabilities of {OF_ANSWERS[audit.reference]}: {', '.join(whole)}"
        )
    return [*lines, WORDS]


def found_words(control: ControlTest) -> str:
    """Returns whether the control was caught, with its p-value."""
    return f"{'caught' if control.caught else 'NOT caught'}, p = {p_value(control.distribution.p_value)}"


def lossy_words(audit: AuditReport) -> str:
    """Returns how many of the methods that are lossy by design fail the test of draws; empty without such methods."""
    tests = [each.distribution for each in audit.verdicts if each.verdict == "lossy by design" and each.distribution]
    num_found = sum(test.failed for test in tests)
    return (
        f" Of {counted(len(tests), 'method')} lossy by design that drew, {num_found} failed the test." if tests else ""
    )


def paragraphs(audit: AuditReport) -> Iterator[str]:
    """Yields a paragraph about each method that is not simply lossless, or whose verdict has a reason."""
    for verdict in audit.verdicts:
        parts = [part for part in (verdict.reason, *evidence(verdict)) if part]
        if verdict.verdict != "lossless" and parts:
            yield f"{verdict.method} – {verdict.verdict}: {'. '.join(parts)}."
        elif parts:
            yield f"{verdict.method}: {'. '.join(parts)}."


def evidence(verdict: MethodVerdict) -> Iterator[str]:
    """Yields the first difference of greedy outputs, and the draws where their test failed."""
    found = verdict.greedy.example if verdict.greedy else None
    if found is not None:
        tokens = (found.ar_token, found.method_token)
        own, other = ("nothing (it had ended)" if token is None else repr(token) for token in tokens)
        gap = "" if found.gap is None else f", logit gap {found.gap:.3g}"
        yield f"Prompt {found.prompt}, new token {found.position}: AR wrote {own}, it wrote {other}{gap}"
    draws = verdict.distribution
    if draws is not None and draws.failed:
        by_token = ", ".join(NULL if p is None else p_value(p) for p in draws.p_by_token)
        yield f"Draws: p = {p_value(draws.p_value)}; counts of the 1st, 2nd, … token: p = {by_token}"
        if draws.example is not None:
            one = draws.example
            yield (
                f"After {one.prompt!r} + {one.drawn!r}: {one.num_observed} times {one.token!r} where "
                f"{one.num_expected:.1f} are expected"
            )


def p_value(value: float) -> str:
    """Returns a p-value as it is shown."""
    return "< 1e-9" if value < 1e-9 else f"{value:.2g}"
