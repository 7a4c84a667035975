"""What was measured and on what, and how its figures are to be read, in words: a line each."""

from specbench.limit.intervals import MIN_ROUNDS
from specbench.limit.report import Described, LimitReport
from specbench.results.drafters import model_name

COMMIT_DIGITS = 10


def conditions(report: LimitReport) -> list[str]:
    """Models, machine and versions, rounds."""
    known = report.environment
    versions = [f"{name} {known['versions'].get(name)}" for name in ("torch", "transformers", "specbench")]
    if commit := known["commit"]:
        versions.append(f"commit {commit[:COMMIT_DIGITS]}{' with changes' if '-dirty-' in commit else ''}")
    intervals = "95 % of resampled rounds" if report.repeats >= MIN_ROUNDS else f"none below {MIN_ROUNDS} rounds"
    return [
        f"target {named(report.target.model)}",
        f"drafter {named(report.drafter.model)}",
        f"on {known['device']}",
        ", ".join(versions),
        f"{report.repeats} rounds, all in turn, seed {report.seed}",
        f"ratios: medians of those in each round; intervals: {intervals}",
    ]


def named(model: Described) -> str:
    buffers = f", buffers of {model.capacity} tokens" if model.capacity else ""
    return f"{model_name(model.name, model.revision)}: {model.dtype}, {model.attention}{buffers}"


def explanations(report: LimitReport) -> list[str]:
    """The warnings; and why a share of a bandwidth bound may be above 1, where one is."""
    target, drafter = report.target, report.drafter
    shares = (
        (target, target.share_of_bound), (drafter, drafter.share_of_bound), (drafter, drafter.share_of_bound_drafting)
    )  # fmt: skip
    lines = [f"warning: {warning.text}" for warning in report.warnings]
    if any(share.value > 1 and model.at(1, report.context).is_by_memory for model, share in shares):
        lines.append("a share above 1: copies also write, a pass only reads (as sums do), or finds it in a cache")
    return lines
