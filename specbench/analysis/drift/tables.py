"""A drift report as tables for a terminal of 100 columns."""

from collections.abc import Iterator

from specbench.analysis.drift.drift import NUMBERS, DriftReport, DriftSide
from specbench.core.console import counted
from specbench.core.table import Table, number_columns, text_columns
from specbench.results.metric_format import with_interval


def tables(report: DriftReport) -> Iterator[Table]:
    yield change_table(report)
    if any(group.before for group in report.groups):
        yield agreement_table(report)
    if report.worst:
        yield worst_table(report)


def change_table(report: DriftReport) -> Table:
    names = [name for name in NUMBERS if name in report.groups[0].changes]
    is_of_runs = "acceptance_rate" in names
    rows = []
    for group in report.groups:
        for name in names:
            change = group.changes[name]
            rows.append([
                group.label if name == names[0] else "", label_of(name, is_of_runs), with_interval(change.before),
                with_interval(change.after), with_interval(change.difference, sign="+"),
            ])  # fmt: skip
    whole = report.groups[0]
    positions = " and ".join(f"{number:,}" for number in whole.num_positions if number)
    caption = [
        *(f"{side}: {shown_side(found)}" for side, found in (("before", report.before), ("after", report.after))),
        f"different: {', '.join(report.changed) or 'nothing'}; texts: {report.texts}",
        f"{counted(whole.num_prompts, 'prompt')}, {positions} positions; differences are paired, intervals 95 % over "
        "prompts; nothing is drafted",
    ]
    if report.num_left_out:
        caption.append(f"{counted(report.num_left_out, 'prompt')} of before left out, which after does not have")
    cut = {
        name: side.share_cut_in_reasoning for name, side in (("before", whole.before), ("after", whole.after))
        if side is not None and side.share_cut_in_reasoning is not None and side.share_cut_in_reasoning.value
    }  # fmt: skip
    if cut:
        caption.append(
            "answers that ended inside their reasoning: "
            + ", ".join(f"{name} {with_interval(share, 1, 100)} %" for name, share in cut.items())
            + "; acceptance in the answers proper may differ: raise generation.max_new_tokens"
        )
    if not is_of_runs:
        caption.append(
            "this is acceptance at a random position of given texts, not α of decoding, and not on what the side after "
            "would write; two runs with --before and --after tell both"
        )
    columns = (*text_columns("group", "number"), *number_columns("before", "after", "after − before"))
    return Table("drift of acceptance", columns, rows, caption)


def label_of(name: str, is_of_runs: bool) -> str:
    return NUMBERS[name].label if is_of_runs else "Σ min(p, q) on the references"


def shown_side(side: DriftSide) -> str:
    sampling = f"temperature {side.temperature:g}"
    sampling += "".join(
        f", {name} {value:g}" for name, value in (("top-k", side.top_k), ("top-p", side.top_p)) if value
    )
    return f"{side.target}, {side.precision}, drafter {side.drafter}, {sampling}" + (
        f", {side.run}" if side.run is not None else ""
    )


def agreement_table(report: DriftReport) -> Table:
    rows = []
    for group in report.groups:
        for label, side in (("before", group.before), ("after", group.after)):
            if side is None:
                continue
            rows.append([
                group.label if label == "before" else "", label,
                *(text for name in side.estimated for text in (
                    with_interval(side.decoded[name]), with_interval(side.agreement[name], sign="+"))),
                with_interval(side.bias, sign="+"),
            ])  # fmt: skip
    headings = "α\ndecoded", "computed\n− decoded", "τ\ndecoded", "computed\n− decoded", "one position\n− decoded α"
    columns = (*text_columns("group", "side"), *number_columns(*headings))
    caption = [
        "decoded: counted in the method's own answers; computed: along AR's answers, in the steps that the method "
        "would take",
        "one position: Σ min(p, q) over all positions of AR's answers; steps begin where drafts were rejected, and "
        "judge few of the positions that are hard",
    ]
    return Table("does it agree with decoding?", columns, rows, caption)


def worst_table(report: DriftReport) -> Table:
    rows = [
        [prompt.group, prompt.example, f"{prompt.before:.2f}", f"{prompt.after:.2f}",
         f"{prompt.after - prompt.before:+.2f}"]
        for prompt in report.worst
    ]  # fmt: skip
    number = NUMBERS[report.worst[0].number].label if report.groups[0].before else "Σ min(p, q)"
    columns = (*text_columns("group", "example"), *number_columns("before", "after", "after − before"))
    return Table("prompts that lost most", columns, rows, [number])
