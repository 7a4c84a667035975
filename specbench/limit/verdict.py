"""What a report says in one sentence, and what a reader must know before it is trusted."""

from specbench.limit.intervals import MIN_ROUNDS
from specbench.limit.report import LimitReport, Ratio
from specbench.results.row import Warning
from specbench.results.warnings import WIDE

TOO_WIDE = 2.0  # end ÷ start of an interval that leaves a figure undecided


def verdict(report: LimitReport) -> str:
    """How near AR and drafting are to their bounds, and what verifying and drafting cost, with intervals."""
    ar, own = (model.at(1, report.context).bound_name for model in (report.target, report.drafter))
    length = report.step.num_draft_tokens + 1
    share, drafting = report.target.share_of_bound, report.drafter.share_of_bound_drafting
    verifying = report.verification_cost[length]
    clauses = (
        clause(f"AR runs at {{}} of the {ar}", f"AR's share of the {ar}", share),
        clause(f"drafting runs at {{}} of its {own}", f"drafting's share of its {own}", drafting),
        clause(
            f"verification of {length} tokens costs {{}} single passes",
            f"what verifying {length} tokens costs",
            verifying,
        ),
        clause("a draft pass costs {}", "what a draft pass costs", report.cost_ratio),
    )
    few = "" if report.repeats >= MIN_ROUNDS else f" (no intervals below {MIN_ROUNDS} rounds)"
    return "{}, {}; {}, {}{}.".format(*clauses, few)


def clause(said: str, subject: str, ratio: Ratio) -> str:
    """What is said of a figure with its interval; of one whose interval is too wide, that nothing can be."""
    if ratio.width <= TOO_WIDE:
        return said.format(ratio.text)
    return f"{subject} is undecided (rounds differ too much: {ratio.span})"


def warnings(report: LimitReport) -> list[Warning]:
    """Of every figure of the verdict whose interval is wide."""
    length = report.step.num_draft_tokens + 1
    figures = {
        "AR's share of its bound": report.target.share_of_bound,
        "drafting's share of its bound": report.drafter.share_of_bound_drafting,
        f"what verifying {length} tokens costs": report.verification_cost[length],
        "what a draft pass costs": report.cost_ratio,
    }
    return [
        Warning(code="wide_interval", text=(
            f"the interval of {name} is wide, {ratio.span} (× {ratio.width:.2f}): measure with nothing beside it, "
            "or give more --repeats"
        ))
        for name, ratio in figures.items()
        if ratio.width > WIDE
    ]  # fmt: skip
