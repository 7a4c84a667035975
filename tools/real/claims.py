"""The claims of the five papers that these pairs can test, with what came out."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import permutations
from statistics import NormalDist
from typing import TypeAlias

import numpy as np

from specbench.analysis.fairness.groups import spearman
from specbench.core.table import markdown_table
from specbench.report.captions import MARK, OFTEN, marked_warnings, share_cut
from specbench.results.metric_format import number, with_interval
from specbench.results.paired import unpaired_difference
from specbench.results.row import Row
from specbench.statistics.bootstrap import Estimate

from .cells import ORDERS
from .measured import Measured

Judge: TypeAlias = Callable[[Measured], str]

INTRO = """## Claims of the papers

Computed from the rows above. What a claim says is *shown* if the 95 % interval of the change is on its side, *reversed*
if it is on the other, else not separable. *Order shown*: two ways compare as in the paper, but one is below AR here,
where the papers have gains. Changes within a cell are paired by prompt. "No loss" cannot be shown by so few prompts,
only a loss. *Not comparable* are speeds of answers of which most run on to the limit on new tokens where others, or
AR's, do not; *not judged* are claims for which the numbers of a cell do not mean what the paper's do. † marks speeds
whose rows have this mark above.
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


def doubted(*rows: Row) -> str:
    """Returns the mark of tables if a row has a warning about its speed."""
    return f" {MARK}" * any(marked_warnings(row) for row in rows)


def beside_ar(word: str, gains: Mapping[str, Estimate]) -> tuple[str, str]:
    """Returns the word of a comparison of two gains, and on which side of AR they are. Papers have both above AR, so
    that only their order is shown where one is below. `gains`: the speed-ups by name."""
    places = [direction(gain, 1, "above AR", "below AR").replace("separable", "separable from AR")
              for gain in gains.values()]  # fmt: skip
    told = [f"{name} {number(gain, 2)}" for name, gain in gains.items()]
    if len({*places}) == 1:
        where = f"{' and '.join(told)}, both {places[0]}"
    else:
        where = " and ".join(f"{each} ({place})" for each, place in zip(told, places, strict=True))
    return "order shown" if word == "shown" and "below AR" in places else word, where


def cut_answers(found: Measured, cell: str, *methods: str) -> dict[str, float]:
    """Returns the share of answers of AR and of methods that the limit on new tokens ended."""
    return {name: share_cut(found.row(cell, name)) for name in ("ar", *methods)}


def cut_words(shares: Mapping[str, float]) -> str:
    return f"the limit on new tokens ends {', '.join(f'{100 * each:.0f} % of {name}' for name, each in shares.items())}"


def runs_on(shares: Mapping[str, float]) -> bool:
    """Returns whether most answers of one side run on where those of another, or AR's, end."""
    return max(shares.values()) - min(shares.values()) >= OFTEN


def faster(cell: str, first: str, second: str) -> Judge:
    """Returns a judge of: the second method is faster than the first one."""

    def judge(found: Measured) -> str:
        change = found.change(cell, first, second, "tokens_per_second")
        rows = {name: found.row(cell, name) for name in (first, second)}
        text = f"tok/s of {second} ÷ {first} {with_interval(change)}{doubted(*rows.values())}"
        if runs_on(shares := cut_answers(found, cell, first, second)):
            return f"**not comparable**: {text}, but {cut_words(shares)}"
        word, where = beside_ar(direction(change), {name: row.metric("speedup") for name, row in rows.items()})
        return f"**{word}**: {text}; {where}"

    return judge


def slower(cell: str, first: str, second: str) -> Judge:
    """Returns a judge of: the second method is slower than the first one, which says nothing of gains."""

    def judge(found: Measured) -> str:
        change = found.change(cell, first, second, "tokens_per_second")
        rows = {name: found.row(cell, name) for name in (first, second)}
        word = direction(change, 1, "reversed", "shown")
        _, where = beside_ar(word, {name: row.metric("speedup") for name, row in rows.items()})
        return f"**{word}**: tok/s of {second} ÷ {first} {with_interval(change)}{doubted(*rows.values())}; {where}"

    return judge


def pays(cell: str, method: str, subset: str | None = None) -> Judge:
    """Returns a judge of: the method is faster than AR."""

    def judge(found: Measured) -> str:
        row = found.row(cell, method, subset)
        speedup = row.metric("speedup")
        length = number(row.metric("mean_acceptance_length"), 2)
        return f"**{direction(speedup)}**: {with_interval(speedup)} × AR{doubted(row)}, τ {length}, {row.verdict}"

    return judge


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
        if max((shares := cut_answers(found, cell, first, second)).values()) >= OFTEN:
            return f"**not judged**: score of {second} − {first} {points} points, but {cut_words(shares)}"
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


def over_languages(what: str, pairs: Iterable[tuple[float | None, float | None]], rises: str, falls: str) -> str:
    """Returns the rank correlation of two numbers of each language, with its direction. The sample is of languages, so
    that the test is of their orders. `what`: the two numbers in words."""
    known = [(one, other) for one, other in pairs if one is not None and other is not None]
    ones, others = [one for one, _ in known], [other for _, other in known]
    if len(set(ones)) < 2 or len(set(others)) < 2:
        return "no number"
    orders = spearman(np.array(ones), np.array([*permutations(others)]))
    own = float(orders[0])
    below, above = (float(np.mean(share)) for share in (orders <= own + 1e-9, orders >= own - 1e-9))
    word = falls if below <= LEVEL else rises if above <= LEVEL else "not separable"
    share = min(1.0, 2 * min(below, above))
    return f"**{word}**: ρ of {what} {own:.2f} over {len(known)} languages (p = {share:.2g}, all orders)"


def gains_fall_with_divergence(found: Measured) -> str:
    """Over the languages, D has a negative rank correlation with the speed-up."""
    rows = found.by_subset(FAIR, "sd")
    pairs = [(misfit.value, rows[name].value("speedup")) for name, misfit in divergences(found).items()]
    if not pairs:
        return "no number"
    gains = [gain for _, gain in pairs if gain is not None]
    ends = f"; speed-ups from {min(gains):.2f} to {max(gains):.2f}"
    return over_languages("D with the speed-up", pairs, "reversed", "shown") + doubted(*rows.values()) + ends


def fitness_over_prompts(found: Measured) -> str:
    """Fitness and the α of decoding have a positive rank correlation over prompts; the interval is that of Bonett and
    Wright (Psychometrika 65, 2000). A report of an earlier version has no α of decoding for each prompt, but its rows
    have it for each language. Its teacher-forced α is of the same passes as the fitness, and shows nothing."""
    report = found.fairness(FAIR)
    if report is None:
        return "no number"
    drafter = report.drafters[0]
    value = drafter.family.correlations.fitness_and_measured_over_prompts
    if value is not None and report.num_prompts >= 5 and abs(value) < 1:
        half = NormalDist().inv_cdf(1 - LEVEL) * math.sqrt((1 + value**2 / 2) / (report.num_prompts - 3))
        low, high = (math.tanh(math.atanh(value) + end) for end in (-half, half))
        estimate = Estimate(value=value, low=low, high=high)
        return f"**{direction(estimate, 0)}**: ρ = {with_interval(estimate)} over {report.num_prompts} prompts"
    rows = found.by_subset(FAIR, "sd")
    pairs = [
        (None if misfit is None else 1 - misfit, rows[group.subset].value("acceptance_rate"))
        for group in drafter.groups.values()
        if (misfit := group.forced.draft_misfit.value if group.forced is not None else None) is not None
    ]
    return (
        "over prompts **not judged**: the report has no α of decoding by prompt, and that of the same passes as the "
        f"fitness (ρ = {number_of(drafter.family.correlations.fitness_and_acceptance_over_prompts)}) shows nothing; "
        "over languages " + over_languages("the fitness with the decoded α", pairs, "shown", "reversed")
    )


def number_of(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def accuracy_and_gain_coincide(found: Measured) -> str:
    """Over the languages, AR's accuracy has positive rank correlations with α and the speed-up."""
    baseline, rows = found.by_subset(FAIR, "ar"), found.by_subset(FAIR, "sd")
    ar = found.row(FAIR, "ar")
    if (share := share_cut(ar)) >= OFTEN:
        return f"**not judged**: the limit on new tokens ends {share * ar.n:.0f} of AR's {ar.n} answers"
    return "; ".join(
        over_languages(f"accuracy with {words}", [
            (each.value(each.quality or ""), rows[name].value(metric)) for name, each in baseline.items()
        ], "shown", "reversed")
        for metric, words in (("acceptance_rate", "α"), ("speedup", "the speed-up"))
    )  # fmt: skip


def english_is_fastest(found: Measured) -> str:
    """English gains more than the best of the others, and Japanese less than the worst of the others."""
    rows = found.by_subset(FAIR, "sd")
    gains = {name: row.metric("speedup") for name, row in rows.items()}
    by_gain = sorted(gains, key=lambda name: gains[name].value or 0.0)
    best = next(name for name in reversed(by_gain) if name != "en")
    worst = next(name for name in by_gain if name != "ja")
    parts = []
    for name, other, place, rises, falls in (("en", best, "English the fastest", "shown", "reversed"),
                                             ("ja", worst, "Japanese the slowest", "reversed", "shown")):  # fmt: skip
        change = unpaired_difference(gains[other], gains[name])
        word, where = beside_ar(direction(change, 0, rises, falls), {each: gains[each] for each in (name, other)})
        parts.append(f"{place}: **{word}** ({name} − {other} {with_interval(change, 2, 1, '+')}; {where})")
    return "; ".join(parts) + doubted(*rows.values())


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
    if not shown:
        return "no number"
    rate = found.change("mgsm-scdf", "sd-untrained", "scdf-trained", "acceptance_rate")
    way = direction(rate, 0, "higher", "lower")
    return "; ".join([*shown, f"α of all languages together {with_interval(rate, 3, 1, '+')} ({way})"])


def fewer_accepted_but_faster(found: Measured) -> str:
    rate = found.change("low-resource", "sd-4", "ngram-low-resource", "acceptance_rate")
    return (
        f"α lower: **{direction(rate, 0, 'reversed', 'shown')}** ({with_interval(rate, 3, 1, '+')}); faster: "
        f"{faster('low-resource', 'sd-4', 'ngram-low-resource')(found)}"
    )


def along_thresholds(cell: str) -> Judge:
    """Returns a judge of: the highest threshold is faster than the lowest, and less accurate."""

    def judge(found: Measured) -> str:
        rows: list[tuple[float, Row]] = sorted(
            ((float(row.options["verification"]["threshold"]), row) for row in found.run(cell).rows
             if row.options.get("verification", {}).get("rule") == "fuzzy"), key=lambda pair: pair[0]
        )  # fmt: skip
        first, last = rows[0][1].method_name, rows[-1][1].method_name
        return at_once(faster(cell, first, last), score_lost(cell, first, last))(found)

    return judge


def fuzzy_follows_rejection(found: Measured) -> str:
    """The benchmark on which SD accepts more is the one on which FSD accepts more."""
    cells = ("gsm8k-chains", "humaneval-chains")
    changes = {
        method: unpaired_difference(*(found.row(cell, method).metric("acceptance_rate") for cell in cells))
        for method in ("sd", "fsd-low")
    }
    ways = {direction(change, 0, "HumanEval", "GSM8K") for change in changes.values()}
    word = "not separable" if "not separable" in ways else "shown" if len(ways) == 1 else "reversed"
    told = ", ".join(f"{method} {with_interval(change, 3, 1, '+')}" for method, change in changes.items())
    both = f"; both accept more on {ways.pop()}, in the paper on GSM8K" if word == "shown" else ""
    return f"**{word}**: α on HumanEval − α on GSM8K: {told}{both}"


def divergence_beats_chance(found: Measured) -> str:
    """FSD has a higher score than the acceptance at random that accepts most of those that accept no more than FSD."""
    cell = "gsm8k-random"
    fuzzy = found.row(cell, "fsd-low")
    rivals = [row for row in found.run(cell).rows if row.method_name.startswith("random-accept")]
    rates = {row.method_name: row.value("acceptance_rate") or 0.0 for row in rivals}
    no_more = {name: rate for name, rate in rates.items() if rate <= (fuzzy.value("acceptance_rate") or 0.0)}
    if not no_more:
        return "**not judged**: each acceptance at random accepts more than FSD"
    rival = max(no_more, key=lambda name: no_more[name])
    return f"{score_kept(cell, rival, 'fsd-low')(found)}; α {rates[rival]:.3f} of {rival}"


def level_pays(cell: str) -> Judge:
    """Returns a judge of: FSD at the low threshold is faster than SD, and its score is not lower."""
    return at_once(faster(cell, "sd", "fsd-low"), score_kept(cell, "sd", "fsd-low"))


HOT = "mgsm-t1.5"


def least_at_high_temperature(found: Measured) -> str:
    """α is lower at temperature 1.5 than at lower and higher ones."""
    parts = []
    for other in ("mgsm-t0.5", "mgsm-t2"):
        change = found.between((other, "sd"), (HOT, "sd"), "acceptance_rate")
        word = direction(change, 0, "reversed", "shown")
        parts.append(f"**{word}** beside {other}: α of {HOT} − {other} {with_interval(change, 3, 1, '+')}")
    return "; ".join(parts)


def slowest_language_accepts_less(found: Measured) -> str:
    """The language with the lowest α lies below English."""
    rates = {name: row.metric("acceptance_rate") for name, row in found.by_subset("mcot-sampled", "sd").items()}
    english = rates.pop("en")
    worst = min(rates, key=lambda name: rates[name].value or 0)
    change = unpaired_difference(english, rates[worst])
    share = 100 * (rates[worst].value or 0) / (english.value or 1) - 100
    return (
        f"**{direction(change, 0, 'reversed', 'shown')}**: α of {worst} − en {with_interval(change, 3, 1, '+')}, "
        f"{share:+.0f} %"
    )


def bigrams_accept_most(found: Measured) -> str:
    others = [f"ngram-low-resource{order}" for order in ORDERS]
    return at_once(*(rates("low-resource-orders", other, "ngram-low-resource") for other in others))(found)


def translation_gains_least(found: Measured) -> str:
    """Speculative decoding gains less in translation than in conversations and in mathematics."""
    rows = found.by_subset("spec-bench-chains", "sd")
    parts = []
    for other in ("mt_bench", "math_reasoning"):
        gains = {name: rows[name].metric("speedup") for name in ("translation", other)}
        change = unpaired_difference(gains[other], gains["translation"])
        word, where = beside_ar(direction(change, 0, "reversed", "shown"), gains)
        parts.append(f"**{word}** beside {other}: translation − {other} {with_interval(change, 2, 1, '+')}; {where}")
    return "; ".join(parts)


def longer(cell: str, first: str, second: str) -> Judge:
    """Returns a judge of: the second method has more tokens per target pass."""

    def judge(found: Measured) -> str:
        change = found.change(cell, first, second, "mean_acceptance_length")
        return f"**{direction(change)}**: τ of {second} ÷ {first} {with_interval(change)}"

    return judge


CURVES = ("gsm8k-curve-js", "gsm8k-curve-reverse-kl", "gsm8k-curve-tv")
MOST_LOST = 0.05


def js_is_best(found: Measured) -> str:
    """At its fastest threshold that loses at most MOST_LOST, and whose answers do not run on, JS gains more than the
    others at theirs."""
    fastest: dict[str, Row] = {}
    for cell in CURVES:
        rows = [row for row in found.run(cell).rows
                if not row.is_baseline and not runs_on(cut_answers(found, cell, row.method_name))]  # fmt: skip
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
        gains = {row.method_name: row.metric("speedup") for row in (fastest[js], fastest[cell])}
        word, where = beside_ar(direction(change), gains)
        words.append(f"**{word}** beside {name}: speed-up of JS ÷ {name} {with_interval(change)}; {where}")
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
    Claim("2510.02128", "α follows the fitness of the drafter over the prompts of MGSM (figure 2a)", "ρ = 0.44",
          (FAIR,), fitness_over_prompts, "another pair; the fitness is that on the target's own answers"),
    Claim("2510.02128", "Languages of low accuracy have a low α and a low speed-up (figures 1 and 4)",
          "no figure of ρ; Japanese has the lowest of both", (FAIR,), accuracy_and_gain_coincide,
          "answers of at most 128 tokens"),
    Claim("2510.02128", "English gains most, Japanese least (figures 1 and 10)",
          "Japanese with each of five drafters, English with half of them", (FAIR,), english_is_fastest,
          "another pair; six languages; the others are chosen after the fact"),
    Claim("2510.02128", "s-CDF lowers the spread of α over languages, and 𝒰", "variance −20 %, 𝒰 −12 %",
          ("mgsm-scdf",), corrected,
          "a much smaller training, at the paper's learning rate; other languages"),
    Claim("2510.02128", "α is far lower in the slowest language of MCoT (figure 5)", "up to 65 % lower",
          ("mcot-sampled",), slowest_language_accepts_less, "four languages, one drafter"),
    Claim("2510.02128", "α has a minimum near temperature 1.5 (figure 7; that α · BLEU is flat is not tested)",
          "no figure of the depth", ("mgsm-t0.5", HOT, "mgsm-t2"), least_at_high_temperature,
          "mathematics, not translation; answers of 64 tokens at most"),
    Claim("2605.30580", "Bigrams have the highest α of all n (section 3.3)", "no figures", ("low-resource-orders",),
          bigrams_accept_most, "some 1,000 sentences for three languages, in one model"),
    Claim("2605.30580", "A small drafter is faster than AR in low-resource languages, if by little (less than in "
          "English is not tested: no cell has English at this sampling)", "expected 1.02 × in translation",
          ("low-resource",), pays("low-resource", "sd-4"), "measured, not expected; three languages of eleven"),
    Claim("2605.30580", "An n-gram drafter has a lower α and is yet faster", "α 0.24 beside 0.40, 1.30 × beside 1.02 ×",
          ("low-resource",), fewer_accepted_but_faster, "some 1,000 sentences for three languages, in one model"),
    Claim("2502.20704", "At a low threshold FSD is faster than SD and loses no accuracy (GSM8K)",
          "17.4 → 21.4 tok/s, accuracy 95.1 → 94.7 (Qwen2.5)", ("gsm8k-chains",),
          level_pays("gsm8k-chains"),
          "α of this pair is high already; thresholds of the embedded pair; greedy, the paper's are sampled"),
    Claim("2502.20704", "At a high threshold FSD is faster than at a low one and less accurate (GSM8K)",
          "21.4 → 22.0 tok/s, accuracy 94.7 → 94.0 (Qwen2.5)", ("gsm8k-chains",),
          at_once(faster("gsm8k-chains", "fsd-low", "fsd-high"), score_lost("gsm8k-chains", "fsd-low", "fsd-high")),
          SMALL),
    Claim("2502.20704", "At a low threshold FSD is faster than SD and loses no accuracy (HumanEval)",
          "15.2 → 17.1 tok/s, 82.1 → 81.9 (Qwen2.5)", ("humaneval-chains",),
          level_pays("humaneval-chains"), SMALL),
    Claim("2502.20704", "A threshold carries over to another dataset: the one of GSM8K keeps SD's accuracy on "
          "HumanEval, too, and is faster (table 3)", "−0.4 points and +3.4 tok/s beside −0.2 and +2.9 (Qwen2.5)",
          ("gsm8k-chains", "humaneval-chains"),
          at_once(*(judge(cell, "sd", "fsd-low") for cell in ("gsm8k-chains", "humaneval-chains")
                    for judge in (score_kept, faster))), SMALL),
    Claim("2502.20704", "FSD accepts more on the benchmarks on which SD does (section 6.1)",
          "accepted lengths of SD 6.6 and 3.7, of FSD (low) 8.2 and 4.3 on GSM8K and HumanEval (Qwen2.5)",
          ("gsm8k-chains", "humaneval-chains"), fuzzy_follows_rejection,
          "two benchmarks, not paired; one threshold, which does not have SD's accuracy on both"),
    Claim("2502.20704", "The divergence chooses better than chance: FSD has a higher accuracy than acceptance at "
          "random that accepts no more (appendix E)", "figure 6, CommonsenseQA, no figures", ("gsm8k-random",),
          divergence_beats_chance, "GSM8K; 30 prompts"),
    Claim("2502.20704", "From the lowest to the highest threshold FSD gets faster and less accurate (JS, GSM8K)",
          "a curve (figure 2)", (CURVES[0],), along_thresholds(CURVES[0]),
          "30 prompts: a few points of accuracy are not separable"),
    Claim("2502.20704", "The same of the reverse KL", "figure 5, no figures", (CURVES[1],), along_thresholds(CURVES[1]),
          "30 prompts: a few points of accuracy are not separable"),
    Claim("2502.20704", "JS gains more than KL and TV where each loses at most 5 points (of KL the reverse one; "
          "thresholds chosen after the fact)", "figure 5, no figures", CURVES, js_is_best,
          "few thresholds of each, 30 prompts"),
    Claim("2502.20704", "At a low threshold FSD is faster than SD and loses no accuracy, sampled (GSM8K)",
          "17.4 → 21.4 tok/s, accuracy 95.1 → 94.7 (Qwen2.5)", ("gsm8k-sampled",), level_pays("gsm8k-sampled"), SMALL),
    Claim("2502.20704", "At a low threshold FSD is faster than SD and loses no accuracy (CommonsenseQA)",
          "14.0 → 16.1 tok/s, 86.8 → 86.6 (Qwen2.5)", ("csqa-levels",), level_pays("csqa-levels"), SMALL),
    Claim("2502.20704", "At a low threshold FSD is faster than SD and loses no accuracy (MMLU)",
          "16.0 → 18.0 tok/s, 82.2 → 82.0 (Qwen2.5)", ("mmlu-levels",), level_pays("mmlu-levels"),
          "answers of one letter, without a reason; one subject; greedy"),
    Claim("2502.20704", "FSD has a higher accuracy than queries divided at random between the two models, at the same "
          "speed (figure 2)", "a line between both models", ("gsm8k-allocation",),
          at_once(faster("gsm8k-allocation", "random-allocation", "fsd-low"),
                  score_kept("gsm8k-allocation", "random-allocation", "fsd-low")),
          "half of the queries go to each model, so that the speeds are not equal"),
    Claim("2406.16758", "A general drafter and lookahead are faster than AR in translation from German at temperature "
          "1, if by little", "1.07 × and 1.03 × (WMT16)", ("wmt-sampled",),
          at_once(pays("wmt-sampled", "sd"), pays("wmt-sampled", "lookahead")),
          "WMT22; a drafter of the target's own family"),
    Claim("2406.16758", "Speculation with a general drafter gains more than prompt lookup in translation from German",
          "1.19 × beside 1.13 × (WMT16)", ("wmt-chains",), faster("wmt-chains", "pld", "sd"),
          "WMT22; a drafter of the target's own family"),
    Claim("2406.16758", "Lookahead is faster than AR in translation from German, if by little",
          "1.03 × (WMT16; 0.96 to 1.03 in five pairs)", ("wmt-chains",), pays("wmt-chains", "lookahead"),
          "a CPU, on which a pass over 60 tokens costs more than one over a token"),
    Claim("2406.16758", "A drafter model accepts more than lookahead, and lookahead more than prompt lookup, in "
          "translation from German (table 5)", "τ 1.47, 1.23 and 1.15 (WMT16)", ("wmt-chains",),
          at_once(longer("wmt-chains", "lookahead", "sd"), longer("wmt-chains", "pld", "lookahead")),
          "WMT22; a drafter of the target's own family"),
    Claim("2406.16758", "The speed-up of a general drafter differs by task, and is lowest in translation (figure 3)",
          "no figures; MT-Bench and GSM8K beside WMT16", ("spec-bench-chains",), translation_gains_least,
          "five prompts of each group of Spec-Bench"),
    Claim("2502.05202", "A drafter of another vocabulary speeds up greedy decoding by SLEM", "up to 2.8 ×",
          ("gsm8k-vocabulary",), pays("gsm8k-vocabulary", "slem"),
          "the drafter has 135M parameters and another training"),
    Claim("2502.05202", "SLEM speeds up programs (table 1)", "1.14 to 2.79 × (HumanEval; 0.69 × with a larger drafter)",
          ("humaneval-vocabulary",), pays("humaneval-vocabulary", "slem"),
          "the drafter has 135M parameters and another training"),
    Claim("2502.05202", "SLEM speeds up summaries (table 1)", "0.73 to 2.1 × (CNN/DailyMail)",
          ("spec-bench-vocabulary",), pays("spec-bench-vocabulary", "slem", subset="summarization"),
          "five prompts; the drafter has 135M parameters and another training"),
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
LARGE = "needs a target of 7B or more"
UNTESTED = (
    ("2510.02128", "α falls with the rank of a language in the drafter's own texts (figure 6)",
     "the report was made with --samples 0: the rank needs thousands of texts of the drafter (the paper has 100,000)"),
    ("2510.02128", "More Japanese in the training lowers 𝒰 (figure 8); s-CDF takes English as the best language in "
     "93 % of batches (figure 9)", "no cell trains with several mixtures; a training's log is not archived"),
    ("2605.30580", "n-grams (1.39 ×) beat the small drafter (1.09 ×) in stories, too (figure 4)",
     "no cell has the task `story`"),
    ("2605.30580", "chrF of a language does not go with α (r = 0.17, figure 9)",
     "three languages have six orders: no correlation could be told from chance"),
    ("2605.30580", "Distillation on a task raises α there (0.60) and does not carry over to stories; on general text "
     "it does little",
     "no cell has a distilled drafter; [trained drafters](drafters.md) has those of the embedded family"),
    ("2605.30580", "Larger drafters accept more (figure 8)", "the pair has one size of drafter"),
    ("2502.20704", "The best draft length differs by dataset (table 1)",
     "these cells draft 5 tokens; [other lengths](drafting.md) have a page of their own"),
    ("2502.20704", "The divergence of the pair is lower on GSM8K and HumanEval than on the other two (figure 3)",
     "rows have α, and no mean divergence"),
    ("2406.16758", "Drafters that are pretrained and finetuned for a language gain most, with more data, and from the "
     "language of the input (figures 1, 4, 5 and 8; tables 1, 3, 6 and 7)",
     "no cell has a drafter trained for translation"),
    ("2406.16758", "French, Russian and Chinese (table 1)",
     "no rows; Japanese has only short sentences of Tatoeba"),
    ("2406.16758", "Medusa and EAGLE in translation (table 1); judgements by GPT-4o (figures 6 and 7); other GPUs "
     "(figure 2)", LARGE + ", whose heads are published, a judge, or GPUs"),
    ("2502.05202", "The terms of ψ grow exponentially with the length of a token (appendix C)",
     "a count over a vocabulary, not a measurement of a pair"),
    ("2502.05202", "Which vocabularies overlap, and which tokenizers are injective (appendices E and F)",
     "no measurement of a pair: `specbench vocab` counts it"),
    ("2502.05202", "SLEM and TLI on long contexts (SCROLLS), and with targets of 7B and more (tables 1, 2, 6 and 7)",
     LARGE + ", or prompts of thousands of tokens"),
)  # fmt: skip


def claims_part(found: Measured) -> str:
    """A line for each claim."""
    lines = []
    for claim in CLAIMS:
        out = claim.judge(found) if found.has(*claim.cells) else "not measured yet"
        lines.append([f"arXiv:{claim.paper}", claim.claim, claim.published, out, claim.why])
    heads = ["paper", "claim", "published", "here", "why it may differ"]
    others = [[f"arXiv:{paper}", claim, reason] for paper, claim, reason in UNTESTED]
    return (
        f"{INTRO}\n{markdown_table(heads, lines)}\n\nNot tested:\n\n"
        f"{markdown_table(['paper', 'claim', 'not tested, because'], others)}\n"
    )
