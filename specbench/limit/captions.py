"""What was measured and on what, and how its figures are to be read, in words: a line each."""

from specbench.limit.intervals import MIN_ROUNDS
from specbench.limit.report import Described, LimitReport, Ratio
from specbench.results.drafters import model_name
from specbench.results.warnings import WIDE

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
        f"{report.repeats} rounds, all in turn, seed {report.seed}; intervals of ratios: {intervals}",
    ]


def named(model: Described) -> str:
    buffers = f", buffers of {model.capacity} tokens" if model.capacity else ""
    return f"{model_name(model.name, model.revision)}: {model.dtype}, {model.attention}{buffers}"


def explanations(report: LimitReport) -> list[str]:
    """Why a share may be above 1, where one is; how wide intervals are, where one of those that the verdict rests on
    is too wide."""
    target, drafter = report.target, report.drafter
    shares = [target.share_of_bound, drafter.share_of_bound, drafter.share_of_bound_drafting]
    lines = []
    if any(share.value > 1 for share in shares):
        lines.append("a share above 1: copies also write, a pass only reads (as sums do), or finds it in a cache")
    verified = report.verification_cost[report.step.num_draft_tokens + 1]
    widest = max(width(ratio) for ratio in (*shares, verified, report.cost_ratio))
    if widest > WIDE:
        lines.append(f"intervals up to × {widest:.2f} wide: is the machine at other work? or give more --repeats")
    return lines


def width(ratio: Ratio) -> float:
    return ratio.high / ratio.low if ratio.low and ratio.high else 1.0
