"""The claims of the five papers that these pairs can test, with what came out."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from statistics import NormalDist
from typing import TypeAlias

import numpy as np

from specbench.analysis.fairness.groups import spearman
from specbench.core.table import markdown_table
from specbench.results.metric_format import number, with_interval
from specbench.results.paired import unpaired_difference
from specbench.results.row import Row
from specbench.statistics.bootstrap import Estimate

from .measured import Measured

Judge: TypeAlias = Callable[[Measured], str]

INTRO = """## Claims of the papers

Computed from the rows above. What a claim says is *shown* if the 95 % interval of the change is on its side, *reversed*
if it is on the other, else not separable. Changes within a cell are paired by prompt. "No loss" cannot be shown by so
few prompts, only a loss.
"""
LEVEL = 0.025  # of each side, as of the intervals


@dataclass(frozen=True)
class Claim:
    """`published`: the paper's words and figures. `cells`: those it needs. `judge`: returns what came out. `why`: why
    it may differ."""

    paper: str
    claim: str
    published: str
    cells: tuple[str, ...]
    judge: Judge
    why: str = ""


def direction(found: Estimate, neutral: float = 1.0, rises: str = "shown", falls: str = "reversed") -> str:
    """Returns whether the interval of a change is above or below the value of no change."""
    if found.low is not None and found.low > neutral:
        return rises
    if found.high is not None and found.high < neutral:
        return falls
    return "not separable"


def faster(cell: str, first: str, second: str, rises: str = "shown", falls: str = "reversed") -> Judge:
    """Returns a judge of: the second method is faster than the first one."""

    def judge(found: Measured) -> str:
        change = found.change(cell, first, second, "tokens_per_second")
        return f"**{direction(change, 1, rises, falls)}**: tok/s of {second} ÷ {first} {with_interval(change)}"

    return judge


def slower(cell: str, first: str, second: str) -> Judge:
    return faster(cell, first, second, rises="reversed", falls="shown")


def pays(cell: str, method: str, rises: str = "shown", falls: str = "reversed") -> Judge:
    """Returns a judge of: the method is faster than AR."""

    def judge(found: Measured) -> str:
        row = found.row(cell, method)
        speedup = row.metric("speedup")
        length = number(row.metric("mean_acceptance_length"), 2)
        return f"**{direction(speedup, 1, rises, falls)}**: {with_interval(speedup)}, τ {length}, {row.verdict}"

    return judge


def does_not_pay(cell: str, method: str) -> Judge:
    return pays(cell, method, rises="reversed", falls="shown")


def rates(cell: str, first: str, second: str) -> Judge:
    """Returns a judge of: the second method has a higher acceptance rate."""

    def judge(found: Measured) -> str:
        change = found.change(cell, first, second, "acceptance_rate")
        return f"**{direction(change, 0)}** in {cell}: α of {second} − {first} {with_interval(change, 3, 1, '+')}"

    return judge


def at_once(*judges: Judge) -> Judge:
    return lambda found: "; ".join(judge(found) for judge in judges)


def score(cell: str, first: str, second: str, rises: str, falls: str) -> Judge:
    def judge(found: Measured) -> str:
        change = found.change(cell, first, second, found.row(cell, second).quality or "")
        points = with_interval(change, 1, 100, "+")
        return f"**{direction(change, 0, rises, falls)}**: score of {second} − {first} {points} points"

    return judge


def score_kept(cell: str, first: str, second: str) -> Judge:
    """Returns a judge of: the second method's score is not lower."""
    return score(cell, first, second, rises="shown", falls="reversed")


def score_lost(cell: str, first: str, second: str) -> Judge:
    """Returns a judge of: the second method's score is lower."""
    return score(cell, first, second, rises="reversed", falls="shown")


FAIR = "mgsm-fairness"


def divergences(found: Measured) -> dict[str, Estimate]:
    """Returns the drafter's D by language."""
    report = found.fairness(FAIR)
    groups = report.drafters[0].groups.values() if report is not None else ()
    return {group.subset: group.forced.cross_entropy for group in groups if group.forced is not None}


def japanese_beside_english(found: Measured) -> str:
    """D is higher in Japanese, and α lower."""
    by_language, rows = divergences(found), found.by_subset(FAIR, "sd")
    if not {"en", "ja"} <= by_language.keys():
        return "no number"
    misfit = unpaired_difference(by_language["en"], by_language["ja"])
    rate = unpaired_difference(*(rows[name].metric("acceptance_rate") for name in ("en", "ja")))
    return (
        f"D: **{direction(misfit, 0)}** (ja − en {with_interval(misfit, 2, 1, '+')} nats); "
        f"α: **{direction(rate, 0, 'reversed', 'shown')}** ({with_interval(rate, 3, 1, '+')})"
    )


def gains_fall_with_divergence(found: Measured) -> str:
    """Over the languages, D has a negative rank correlation with the speed-up. The sample is of languages, so that the
    test is of their orders."""
    rows = found.by_subset(FAIR, "sd")
    pairs = [(misfit.value, rows[name].value("speedup")) for name, misfit in divergences(found).items()]
    known = [(misfit, gain) for misfit, gain in pairs if misfit is not None and gain is not None]
    misfits, gains = [misfit for misfit, _ in known], [gain for _, gain in known]
    if len(set(misfits)) < 2 or len(set(gains)) < 2:
        return "no number"
    orders = spearman(np.array(misfits), np.array([*permutations(gains)]))
    own = float(orders[0])
    below, above = (float(np.mean(share)) for share in (orders <= own + 1e-9, orders >= own - 1e-9))
    word = "shown" if below <= LEVEL else "reversed" if above <= LEVEL else "not separable"
    share = min(1.0, 2 * min(below, above))
    return f"**{word}**: ρ of D with the speed-up {own:.2f} over {len(known)} languages (p = {share:.2g}, all orders)"


def fitness_over_prompts(found: Measured) -> str:
    """Fitness and teacher-forced α have a positive rank correlation over prompts; the interval is that of Bonett and
    Wright (Psychometrika 65, 2000)."""
    report = found.fairness(FAIR)
    value = report.drafters[0].family.correlations.fitness_and_acceptance_over_prompts if report is not None else None
    if report is None or value is None or report.num_prompts < 5 or abs(value) >= 1:
        return "no number"
    half = NormalDist().inv_cdf(1 - LEVEL) * math.sqrt((1 + value**2 / 2) / (report.num_prompts - 3))
    low, high = (math.tanh(math.atanh(value) + end) for end in (-half, half))
    estimate = Estimate(value=value, low=low, high=high)
    return f"**{direction(estimate, 0)}**: ρ = {with_interval(estimate)} over {report.num_prompts} prompts"


def corrected(found: Measured) -> str:
    report = found.fairness("mgsm-scdf")
    if report is None or report.comparison is None:
        return "no number"
    family = report.comparison.family
    shown = []
    for key, words in (("acceptance_rate.variance", "variance of α"), ("unfairness", "𝒰")):
        if key in family:
            change = family[key]
            shown.append(
                f"{words} {with_interval(change.percent, 0, 1, '+')} % "
                f"(**{direction(change.difference, 0, 'reversed', 'shown')}**)"
            )
    return "; ".join(shown) or "no number"


def fewer_accepted_but_faster(found: Measured) -> str:
    rate = found.change("low-resource", "sd-4", "ngram-low-resource", "acceptance_rate")
    change = found.change("low-resource", "sd-4", "ngram-low-resource", "tokens_per_second")
    return (
        f"α lower: **{direction(rate, 0, 'reversed', 'shown')}** ({with_interval(rate, 3, 1, '+')}); faster: "
        f"**{direction(change)}** (tok/s ratio {with_interval(change)})"
    )


def along_thresholds(cell: str) -> Judge:
    """Returns a judge of: the highest threshold is faster than the lowest, and less accurate."""

    def judge(found: Measured) -> str:
        rows: list[tuple[float, Row]] = sorted(
            ((float(row.options["verification"]["threshold"]), row) for row in found.run(cell).rows
             if row.options.get("verification", {}).get("rule") == "fuzzy"), key=lambda pair: pair[0]
        )  # fmt: skip
        (lowest, first), (highest, last) = rows[0], rows[-1]
        speeds, scores = (
            found.change(cell, first.method_name, last.method_name, metric)
            for metric in ("tokens_per_second", first.quality or "")
        )
        return (
            f"from {lowest:g} to {highest:g}: tok/s × {with_interval(speeds)} (**{direction(speeds)}**), accuracy "
            f"{with_interval(scores, 1, 100, '+')} points (**{direction(scores, 0, 'reversed', 'shown')}**)"
        )

    return judge


CURVES = ("gsm8k-curve-js", "gsm8k-curve-reverse-kl", "gsm8k-curve-tv")
MOST_LOST = 0.05


def js_is_best(found: Measured) -> str:
    """At its fastest threshold that loses at most MOST_LOST, JS gains more than the others at theirs."""
    fastest: dict[str, Row] = {}
    for cell in CURVES:
        rows = [row for row in found.run(cell).rows if not row.is_baseline]
        losses = [(row, row.value(f"{row.quality}_difference")) for row in rows]
        kept = [row for row, loss in losses if loss is not None and loss >= -MOST_LOST]
        if kept:
            fastest[cell] = max(kept, key=lambda row: row.value("speedup") or 0)
    js, *others = CURVES
    if js not in fastest:
        return "**reversed**: no threshold of JS loses so little"
    words = []
    for cell in others:
        name = cell.removeprefix("gsm8k-curve-")
        if cell not in fastest:
            words.append(f"**shown** beside {name}, of which no threshold loses so little")
            continue
        change = found.between((cell, fastest[cell].method_name), (js, fastest[js].method_name), "speedup")
        words.append(f"**{direction(change)}** beside {name}: speed-up of JS ÷ {name} {with_interval(change)}")
    return "; ".join(words)


STRINGS = "smollm2-gemma-strings-t1"
SMALL = "one small pair of coder models on a CPU, 30 prompts, short answers"
CLAIMS = (
    Claim("2510.02128", "The drafter's D is higher in Japanese than in English, and α lower",
          "D 0.47 and 1.08, α 62.5 % and 54.5 %", (FAIR,), japanese_beside_english,
          "8 prompts a language; other texts"),
    Claim("2510.02128", "Languages that a drafter fits worse gain less: the higher D, the lower the speed-up",
          "figure 2b, no figure of ρ", (FAIR,), gains_fall_with_divergence,
          "six languages; a coder model that writes English often"),
    Claim("2510.02128", "α follows the fitness of the drafter over the prompts of MGSM", "ρ = 0.44", (FAIR,),
          fitness_over_prompts, "another pair; α of both models on the target's own answers"),
    Claim("2510.02128", "s-CDF lowers the spread of α over languages, and 𝒰", "variance −20 %, 𝒰 −12 %",
          ("mgsm-scdf",), corrected, "a shorter training; other languages"),
    Claim("2605.30580", "A small drafter does not pay in low-resource languages (less than in English is not tested: "
          "no cell has English at this sampling)", "expected 1.02 × in translation", ("low-resource",),
          does_not_pay("low-resource", "sd-4"), "measured, not expected; three languages of eleven"),
    Claim("2605.30580", "An n-gram drafter has a lower α and is yet faster", "α 0.24 beside 0.40, 1.30 × beside 1.02 ×",
          ("low-resource",), fewer_accepted_but_faster, "some 1,100 sentences for three languages, in one model"),
    Claim("2502.20704", "At a low threshold FSD is faster than SD and loses no accuracy (GSM8K)",
          "17.4 → 21.4 tok/s, accuracy 95.1 → 94.7 (Qwen2.5)", ("gsm8k-chains",),
          at_once(faster("gsm8k-chains", "sd", "fsd-low"), score_kept("gsm8k-chains", "sd", "fsd-low")),
          "α of this pair is high already; thresholds of the embedded pair"),
    Claim("2502.20704", "At a high threshold FSD is faster than at a low one and less accurate (GSM8K)",
          "21.4 → 22.0 tok/s, accuracy 94.7 → 94.0 (Qwen2.5)", ("gsm8k-chains",),
          at_once(faster("gsm8k-chains", "fsd-low", "fsd-high"), score_lost("gsm8k-chains", "fsd-low", "fsd-high")),
          SMALL),
    Claim("2502.20704", "At a low threshold FSD is faster than SD and loses no accuracy (HumanEval)",
          "15.2 → 17.1 tok/s, 82.1 → 81.9 (Qwen2.5)", ("humaneval-chains",),
          at_once(faster("humaneval-chains", "sd", "fsd-low"), score_kept("humaneval-chains", "sd", "fsd-low")), SMALL),
    Claim("2502.20704", "From the lowest to the highest threshold FSD gets faster and less accurate (JS, GSM8K)",
          "a curve (figure 2)", (CURVES[0],), along_thresholds(CURVES[0]),
          "30 prompts: a few points of accuracy are not separable"),
    Claim("2502.20704", "The same of the reverse KL", "figure 5, no figures", (CURVES[1],), along_thresholds(CURVES[1]),
          "30 prompts: a few points of accuracy are not separable"),
    Claim("2502.20704", "JS gains more than KL and TV where each loses at most 5 points (of KL the reverse one; "
          "thresholds chosen after the fact)", "figure 5, no figures", CURVES, js_is_best,
          "few thresholds of each, 30 prompts"),
    Claim("2406.16758", "Speculation with a general drafter gains more than prompt lookup in translation from German",
          "1.19 × beside 1.13 × (WMT16)", ("wmt-chains",), faster("wmt-chains", "pld", "sd"),
          "WMT22; a drafter of the target's own family"),
    Claim("2406.16758", "Lookahead does not pay in translation from German",
          "1.03 × (WMT16; 0.96 to 1.03 in five pairs)", ("wmt-chains",), does_not_pay("wmt-chains", "lookahead"),
          "a CPU, on which a pass over 60 tokens costs more than one over a token"),
    Claim("2502.05202", "A drafter of another vocabulary speeds up greedy decoding by SLEM", "up to 2.8 ×",
          ("gsm8k-vocabulary",), pays("gsm8k-vocabulary", "slem"),
          "the drafter has 135M parameters and another training"),
    Claim("2502.05202", "TLI speeds up decoding, too (greedy: no cell at temperature 1 has a drafter that is faster "
          "than its target)", "up to 1.7 × at temperature 1", ("gsm8k-vocabulary",), pays("gsm8k-vocabulary", "tli"),
          "greedy; the drafter has 135M parameters and another training"),
    Claim("2502.05202", "TLI accepts at least as much as the union of vocabularies (theorem 4.1)", "α(TLI) ≥ α(union)",
          ("smollm2-gemma-mgsm-t1", "gemma-smollm2-mgsm-t1"),
          at_once(rates("smollm2-gemma-mgsm-t1", "union", "tli"), rates("gemma-smollm2-mgsm-t1", "union", "tli")),
          "the theorem is of one position with the same prefix; whole answers are drawn apart"),
    Claim("2502.05202", "String-level rejection accepts more than exact match of strings, and costs more (section 3)",
          "no figures", (STRINGS,), at_once(rates(STRINGS, "slem-1", "slrs"), slower(STRINGS, "slem-1", "slrs")),
          "both draft a token a step; theorem 3.1 is of a drafter that equals the target"),
)  # fmt: skip
UNTESTED = (
    "Not tested here: tables of 7B targets and larger, specialized drafters for translation (arXiv:2406.16758), "
    "distilled drafters (arXiv:2605.30580).\n"
)


def claims_part(found: Measured) -> str:
    """A line for each claim."""
    lines = []
    for claim in CLAIMS:
        out = claim.judge(found) if found.has(*claim.cells) else "not measured yet"
        lines.append([f"arXiv:{claim.paper}", claim.claim, claim.published, out, claim.why])
    heads = ["paper", "claim", "published", "here", "why it may differ"]
    return f"{INTRO}\n{markdown_table(heads, lines)}\n\n{UNTESTED}"
