"""What bundles show, as tables and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from specbench.core.table import Column, Table
from specbench.publish.bundle.agreement import JUDGED_BY, OF_MACHINE, Agreement, Answers, Reruns
from specbench.publish.bundle.verify import CheckedBundle, Verification, checklist
from specbench.publish.rules import RULES
from specbench.results.metric_format import NULL, metric_of, number, with_interval
from specbench.statistics.bootstrap import Estimate

WORDS = {True: "yes", False: "no", None: "–"}


def tables(verification: Verification) -> Iterator[Table]:
    """Yields the checklist and the levels of the rows of each bundle, and how runs of one configuration agree."""
    for bundle in verification.bundles:
        findings = [[each.question, WORDS[each.answer], each.found] for each in checklist(bundle, verification)]
        columns = [Column("question", folds=False), Column("", folds=False), Column("found")]
        yield Table(f"{bundle.file.name}: checklist", columns, findings)
        levels = [
            [each.row.task_name, each.row.subset, each.row.shown_method, str(verification.level_of(bundle, each))]
            for each in bundle.rows
        ]
        columns = [Column("task"), Column("subset"), Column("method"), Column("level")]
        yield Table(f"{bundle.file.name}: rows", columns, levels, LEVEL_NOTES)
        places: dict[tuple[str, str, str], list[str]] = {}
        for each in bundle.findings:
            places.setdefault((each.rule, WEIGHTS[each.weight], each.text), []).append(each.place)
        found = [[rule, weight, _first_of(of), text] for (rule, weight, text), of in places.items()]
        columns = [Column("rule"), Column("", folds=False), Column("of"), Column("found")]
        yield Table(f"{bundle.file.name}: rules", columns, found, _rule_notes(bundle))
    if (agreement := agreement_table(verification)) is not None:
        yield agreement


LEVEL_NOTES = [
    "stated: somebody wrote it; recomputed: made again from the records, and equal",
    "signed: who sent the archive, not that its numbers are true; runs: independent measurements of the configuration",
]


def _first_of(places: Sequence[str]) -> str:
    return places[0] + (f" and {len(places) - 1} more" if len(places) > 1 else "")


def _rule_notes(bundle: CheckedBundle) -> list[str]:
    """Returns the rules that found nothing, and what the findings mean."""
    found = {each.rule for each in bundle.findings}
    silent = [rule.name for rule in RULES if rule.name not in found]
    return [*([f"found nothing: {', '.join(silent)}"] if silent else []), RULE_NOTE]


WEIGHTS = {"refused": "refused", "marked": "marked", "unknown": NULL}
RULE_NOTE = (
    "refused: no board ranks it, exit code 2; marked: a reader must know it; –: the archive does not show it; "
    "rows that their records contradict are not looked at"
)


def _groups(verification: Verification) -> list[Reruns]:
    return list({id(each): each for each in verification.reruns.values()}.values())


def _pairs(verification: Verification) -> Iterator[Agreement]:
    for found in _groups(verification):
        yield from found.pairs


def agreement_table(verification: Verification) -> Table | None:
    """Returns how each two runs of a configuration agree; None if there are none."""
    pairs = list(_pairs(verification))
    if not pairs:
        return None
    metrics = [name for name in (*JUDGED_BY, *OF_MACHINE) if any(c.metric == name for p in pairs for c in p.changes)]
    labels = [metric_of(name).label.replace("\n", " ") for name in metrics]
    columns = [
        Column("task"), Column("method"), Column("agree", folds=False), Column("answers"), Column("answers\nof ar"),
        *(Column(label.replace(" ", "\n"), True) for label in labels),
    ]  # fmt: skip
    rows = [
        [
            f"{each.first.row.task_name} {each.first.row.subset}", each.first.row.shown_method, WORDS[each.agrees],
            str(each.answers or "sampled"), str(each.baseline_answers or "sampled"),
            *(_change(each, name) for name in metrics),
        ]
        for each in pairs
    ]  # fmt: skip
    sources = dict.fromkeys(f"{each.first.source} and {each.second.source}" for each in pairs)
    notes = [f"runs: {'; '.join(sources)}", *AGREEMENT_NOTES]
    for found in _groups(verification):
        for name, effect in found.effects.items():
            low, high = effect.prediction
            notes.append(
                f"{found.runs[0].row.place} {name}: {effect.num_runs} runs, mean {with_interval(effect.mean)}, "
                f"σ²_between {effect.variance:.2g} of its log, I² {effect.heterogeneity:.0%}, "
                f"one more run {low:.2f} to {high:.2f}"
            )
        notes += [f"not counted: {reason}" for reason in found.refused]
    return Table("Runs of one configuration", columns, rows, notes, num_keys=2)


AGREEMENT_NOTES = [
    "numbers: second run ÷ first, paired by prompt (E_n; up to 1 the runs agree, ISO 13528); --json has the intervals",
    "tokens/s are the machine's and the day's, and no part of the agreement",
]


def _change(agreement: Agreement, metric: str) -> str:
    found = next((each for each in agreement.changes if each.metric == metric), None)
    if found is None:
        return NULL
    return number(found.ratio, 3) + ("" if found.error is None else f" ({found.error:.2f})")


def as_json(verification: Verification) -> dict[str, Any]:
    """Returns everything that was found as plain values."""
    bundles = [
        {
            "file": bundle.file.name,
            "checklist": [asdict(each) for each in checklist(bundle, verification)],
            "problems": bundle.all_problems(),
            "findings": [each._asdict() for each in bundle.findings],
            "rows": [
                {"row": each.row.place, **verification.level_of(bundle, each).columns()} for each in bundle.rows
            ],
        }
        for bundle in verification.bundles
    ]  # fmt: skip
    agreements = [
        {
            "row": each.first.row.place, "first": each.first.source, "second": each.second.source,
            "agrees": each.agrees, "answers": _counts(each.answers), "answers_ar": _counts(each.baseline_answers),
            "changes": [{"metric": c.metric, **_ends(c.ratio), "normalized_error": c.error} for c in each.changes],
        }
        for each in _pairs(verification)
    ]  # fmt: skip
    effects = [
        {
            "row": found.runs[0].row.place, "metric": name, "num_runs": effect.num_runs, "mean": _ends(effect.mean),
            "variance_between": effect.variance, "heterogeneity": effect.heterogeneity,
            "prediction": list(effect.prediction),
        }
        for found in _groups(verification) for name, effect in found.effects.items()
    ]  # fmt: skip
    refused = [reason for found in _groups(verification) for reason in found.refused]
    rules = {rule.name: rule.words for rule in RULES}
    return {"bundles": bundles, "rules": rules, "agreements": agreements, "effects": effects, "not_counted": refused}


def _counts(answers: Answers | None) -> dict[str, int] | None:
    return None if answers is None else {name: getattr(answers, name) for name in ("compared", "equal", "explained")}


def _ends(estimate: Estimate) -> dict[str, float | None]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}
