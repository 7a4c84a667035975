"""The claims of the five papers that these pairs can test, with what came out."""

from collections.abc import Callable
from dataclasses import dataclass

from specbench.core.table import markdown_table
from specbench.results.metric_format import number, with_interval
from specbench.results.row import Row
from specbench.statistics.bootstrap import Estimate

from .measured import Measured

INTRO = """## Claims of the papers

Computed from the rows above. A direction counts as shown if the interval of the paired change is on its side.
"""


@dataclass(frozen=True)
class Claim:
    """`published`: the paper's words and figures. `cells`: those it needs. `judge`: returns what came out. `why`: why
    it may differ."""

    paper: str
    claim: str
    published: str
    cells: tuple[str, ...]
    judge: Callable[[Measured], str]
    why: str = ""


def direction(found: Estimate, neutral: float = 1.0, rises: str = "shown", falls: str = "reversed") -> str:
    """Returns whether the interval of a change is above or below the value of no change."""
    if found.low is not None and found.low > neutral:
        return rises
    if found.high is not None and found.high < neutral:
        return falls
    return "not separable"


def faster(cell: str, first: str, second: str) -> Callable[[Measured], str]:
    """Returns a judge of: the second method is faster than the first one."""

    def judge(found: Measured) -> str:
        change = found.change(cell, first, second, "tokens_per_second")
        return f"**{direction(change)}**: tok/s of {second} ÷ {first} {with_interval(change)}"

    return judge


def pays(cell: str, method: str) -> Callable[[Measured], str]:
    """Returns a judge of: the method is faster than AR."""

    def judge(found: Measured) -> str:
        row = found.row(cell, method)
        speedup = row.metric("speedup")
        length = number(row.metric("mean_acceptance_length"), 2)
        return f"**{direction(speedup)}**: {with_interval(speedup)}, τ {length}, {row.verdict}"

    return judge


def rates(cell: str, first: str, second: str) -> Callable[[Measured], str]:
    """Returns a judge of: the second method has a higher acceptance rate."""

    def judge(found: Measured) -> str:
        change = found.change(cell, first, second, "acceptance_rate")
        return f"**{direction(change, 0)}** in {cell}: α of {second} − {first} {with_interval(change, 3, 1, '+')}"

    return judge


def at_once(*judges: Callable[[Measured], str]) -> Callable[[Measured], str]:
    return lambda found: "; ".join(judge(found) for judge in judges)


def score_kept(cell: str, method: str) -> Callable[[Measured], str]:
    """Returns a judge of: the score is about that of SD."""

    def judge(found: Measured) -> str:
        row = found.row(cell, method)
        change = found.change(cell, "sd", method, row.quality or "")
        points = with_interval(change, 1, 100, "+")
        return f"score of {method} − sd {points} points ({direction(change, 0, 'higher', '**lower**')})"

    return judge


def languages_differ(found: Measured) -> str:
    rows = found.by_subset("mgsm-fairness", "sd")
    rates: dict[str, Estimate] = {name: row.metric("acceptance_rate") for name, row in rows.items()}
    known = {name: rate for name, rate in rates.items() if rate.value is not None}
    worst, best = (choose(known, key=lambda name: known[name].value or 0) for choose in (min, max))
    high, low = known[worst].high, known[best].low
    word = "shown" if high is not None and low is not None and high < low else "not separable"
    return f"**{word}**: α from {with_interval(known[worst], 3)} ({worst}) to {with_interval(known[best], 3)} ({best})"


def fitness(found: Measured) -> str:
    report = found.fairness("mgsm-fairness")
    value = report.drafters[0].family.correlations.fitness_and_acceptance_over_prompts if report is not None else None
    if value is None:
        return "no number"
    return f"**{'same sign' if value > 0 else 'reversed'}**: ρ = {value:.2f}"


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


def slower_in(cell: str, method: str, other_cell: str, other_method: str) -> Callable[[Measured], str]:
    """Returns a judge of: the method gains less in the first cell than in the second, which has other prompts."""

    def judge(found: Measured) -> str:
        own, other = found.row(cell, method).metric("speedup"), found.row(other_cell, other_method).metric("speedup")
        apart = own.high is not None and other.low is not None and own.high < other.low
        return f"**{'shown' if apart else 'not separable'}**: {with_interval(own)} beside {with_interval(other)}"

    return judge


def fewer_accepted_but_faster(found: Measured) -> str:
    rate = found.change("low-resource", "sd-4", "ngram-low-resource", "acceptance_rate")
    change = found.change("low-resource", "sd-4", "ngram-low-resource", "tokens_per_second")
    return (
        f"α lower: **{direction(rate, 0, 'reversed', 'shown')}** ({with_interval(rate, 3, 1, '+')}); faster: "
        f"**{direction(change)}** (tok/s ratio {with_interval(change)})"
    )


def along_thresholds(found: Measured) -> str:
    """Speed and accuracy from the lowest to the highest threshold of the reverse KL."""
    rows: list[tuple[float, Row]] = sorted(
        ((float(row.options["verification"]["threshold"]), row) for row in found.run("gsm8k-curve-reverse-kl").rows
         if row.options.get("verification", {}).get("rule") == "fuzzy"), key=lambda pair: pair[0]
    )  # fmt: skip
    (_, first), (_, last) = rows[0], rows[-1]
    speeds, scores = (
        found.change("gsm8k-curve-reverse-kl", first.method_name, last.method_name, metric)
        for metric in ("tokens_per_second", first.quality or "")
    )
    return (
        f"from {rows[0][0]:g} to {rows[-1][0]:g}: tok/s × {with_interval(speeds)} (**{direction(speeds)}**), accuracy "
        f"{with_interval(scores, 1, 100, '+')} points (**{direction(scores, 0, 'reversed', 'shown')}**)"
    )


def divergences_differ(found: Measured) -> str:
    """The greatest speed-up of each divergence whose accuracy is at most 5 points below AR's."""
    words = []
    for name in ("js", "reverse-kl", "tv"):
        rows = [row for row in found.run(f"gsm8k-curve-{name}").rows if not row.is_baseline]
        kept = [row for row in rows if (row.value(f"{row.quality}_difference") or 0) >= -0.05]
        best = max(kept, key=lambda row: row.value("speedup") or 0, default=None)
        words.append(f"{name} {with_interval(best.metric('speedup')) if best else 'none'}")
    return "greatest speed-up at a loss of at most 5 points: " + ", ".join(words)


STRINGS = "smollm2-gemma-strings-t1"
SMALL = "one small pair of coder models on a CPU, 30 prompts, short answers"
CLAIMS = (
    Claim("2510.02128", "Languages that a drafter fits worse gain less", "α 62.5 % in English, 54.5 % in Japanese",
          ("mgsm-fairness",), languages_differ, "8 prompts a language; a coder model that writes English often"),
    Claim("2510.02128", "α follows the fitness of the drafter over the prompts of MGSM", "ρ = 0.44",
          ("mgsm-fairness",), fitness, "48 prompts; another pair"),
    Claim("2510.02128", "s-CDF lowers the spread of α over languages, and 𝒰", "variance −20 %, 𝒰 −12 %",
          ("mgsm-scdf",), corrected, "a shorter training; other languages"),
    Claim("2605.30580", "A small drafter hardly pays in low-resource languages", "expected 1.02 × in translation",
          ("low-resource", "gsm8k-chains"), slower_in("low-resource", "sd-4", "gsm8k-chains", "sd"),
          "measured, not expected; beside GSM8K in English, whose sampling is greedy"),
    Claim("2605.30580", "An n-gram drafter has a lower α and is yet faster", "α 0.24 beside 0.40, 1.30 × beside 1.02 ×",
          ("low-resource",), fewer_accepted_but_faster, "some 1,100 sentences for three languages, in one model"),
    Claim("2502.20704", "FSD is faster than SD at a low threshold and keeps its accuracy (GSM8K)",
          "17.4 → 21.4 tok/s, accuracy 95.1 → 94.7 (Qwen2.5)", ("gsm8k-chains",),
          at_once(faster("gsm8k-chains", "sd", "fsd-low"), score_kept("gsm8k-chains", "fsd-low")),
          "α of this pair is high already; thresholds of the embedded pair"),
    Claim("2502.20704", "At a high threshold FSD gains more and loses a little (GSM8K)",
          "17.4 → 22.0 tok/s, accuracy 95.1 → 94.0 (Qwen2.5)", ("gsm8k-chains",),
          at_once(faster("gsm8k-chains", "sd", "fsd-high"), score_kept("gsm8k-chains", "fsd-high")), SMALL),
    Claim("2502.20704", "The same on HumanEval", "15.2 → 17.1 tok/s, 82.1 → 81.9 (Qwen2.5, Low)", ("humaneval-chains",),
          at_once(faster("humaneval-chains", "sd", "fsd-low"), score_kept("humaneval-chains", "fsd-low")), SMALL),
    Claim("2502.20704", "The threshold trades accuracy for speed", "a curve (figure 2)", ("gsm8k-curve-reverse-kl",),
          along_thresholds, "30 prompts: a few points of accuracy are not separable"),
    Claim("2502.20704", "The divergence matters, and JS is the best", "JS loses less than KL and TV (figure 5)",
          ("gsm8k-curve-js", "gsm8k-curve-reverse-kl", "gsm8k-curve-tv"), divergences_differ,
          "few thresholds of each; the differences are within the intervals of 30 prompts"),
    Claim("2406.16758", "Speculation with a general drafter gains more than prompt lookup in translation",
          "1.19 × beside 1.13 × (German to English)", ("wmt-chains",),
          faster("wmt-chains", "pld", "sd"), "short sentences; a drafter of the target's own family"),
    Claim("2406.16758", "Lookahead gains nothing in translation", "1.03 × (German to English)", ("wmt-chains",),
          pays("wmt-chains", "lookahead"), "a CPU, on which a pass over 60 tokens costs more than one over a token"),
    Claim("2502.05202", "A drafter of another vocabulary speeds up greedy decoding by SLEM", "up to 2.8 ×",
          ("gsm8k-vocabulary",), pays("gsm8k-vocabulary", "slem"),
          "the drafter has 135M parameters and another training"),
    Claim("2502.05202", "TLI speeds up decoding too", "up to 1.7 × at temperature 1", ("gsm8k-vocabulary",),
          pays("gsm8k-vocabulary", "tli"), "greedy here"),
    Claim("2502.05202", "TLI accepts at least as much as the union of vocabularies (theorem 4.1)", "α(TLI) ≥ α(union)",
          ("smollm2-gemma-mgsm-t1", "gemma-smollm2-mgsm-t1"),
          at_once(rates("smollm2-gemma-mgsm-t1", "union", "tli"), rates("gemma-smollm2-mgsm-t1", "union", "tli")),
          "the theorem is of one position with the same prefix; whole answers are drawn apart"),
    Claim("2502.05202", "String-level rejection accepts more than exact match (theorem 3.2), and costs more",
          "no figures", (STRINGS,),
          at_once(rates(STRINGS, "slem", "slrs"), faster(STRINGS, "slem", "slrs")),
          "slrs drafts one token a step, slem five, whose later ones are accepted less"),
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
