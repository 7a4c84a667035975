"""An audit for a terminal of 100 columns: a table, the meaning of its words, and a paragraph per divergence."""

from collections.abc import Iterator

from specbench.analysis.audit_distribution import NUM_TOKENS
from specbench.analysis.audit_report import AuditReport, MethodVerdict
from specbench.core.table import Column, Table, numbers, words
from specbench.results.units import NULL
from specbench.results.verdict import FALSE_ALARM

WORDS = (
    "lossless: no difference was found. near-tie only: its output differs from AR's only where the target itself is "
    "undecided within its rounding. greedy equal: no difference, and it cannot sample. diverged: its output is not the "
    "target's. lossy by design: its rule claims nothing. undecided: nothing was found, but this audit could not have "
    "found it."
)
COLUMNS: tuple[Column, ...] = (
    *words("method"), *words("verdict", folds=False),
    *numbers("greedy\n= AR", "near-\nties", "differs\nat token", "draws\np-value", "log p drawn\n− expected",
             "accepted/recovered\n/bonus tokens"),
)  # fmt: skip


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
    return [
        *row,
        p_value(draws.p_value),
        f"{draws.mean_log_p - draws.expected_log_p:+.3f} ± {draws.standard_error:.3f}",
        "/".join(str(count) for count in counts) if draws.num_drafted else NULL,
    ]


def caption(audit: AuditReport) -> list[str]:
    """Returns the lines below the table: the noise of the target, the draws and the control, and the words."""
    noise, control = audit.noise, audit.control
    lines = [
        f"greedy, {audit.dtype} on {audit.device}, {audit.engine}: {noise.num_prompts} prompts, "
        f"{noise.num_positions} tokens. "
        f"AR against itself with other query lengths: another token at {noise.num_changed} of {noise.num_prompts} "
        f"prompts, gaps between logits change by up to {noise.max_gap_change:.2g}. A near-tie is a gap ≤ "
        f"{noise.tolerance:.2g}. The token at which a method differs is the median over prompts."
    ]
    if control is not None:
        lines.append(
            f"draws: {audit.num_draws} of up to {NUM_TOKENS} tokens at temperature {audit.temperature:g} from "
            f"{len(audit.prompts)} prompts, tested against the target's exact probabilities; log p in nats per token. "
            f"They reach the first {NUM_TOKENS - 2} draft positions and as many steps of a text: only the greedy "
            "comparison shows an error that begins later. "
            f"A correct method fails with probability ≤ {FALSE_ALARM:g}. The control ({control.name}) was "
            f"{'caught' if control.caught else 'NOT caught'}, p = {p_value(control.distribution.p_value)}."
        )
    return [*lines, WORDS]


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
