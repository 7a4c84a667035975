"""Recorded answers → scores with their intervals, beside AR's on the same prompts."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from specbench.results.bootstrap import MIN_PROMPTS, SHARE, Metric, Prompts
from specbench.results.log_ratios import CONFIDENCE, NUM_RESAMPLES
from specbench.results.units import bounds_of
from specbench.running.records import Generation, Record
from specbench.specs.languages import known
from specbench.tasks.judge import JUDGED as JUDGED
from specbench.tasks.sandbox.run import ENDED
from specbench.tasks.scoring.contract import Scorer
from specbench.tasks.scoring.language import language_of

if TYPE_CHECKING:
    from specbench.running.plan import Cell


Array = NDArray[np.float64]


@dataclass(frozen=True)
class CorpusStatistics:
    """The answers of one subset. `own`, `baseline`: sums of statistics [num_prompts, num_statistics] of the method
    and of AR. `score`: returns the corpus score of such sums over prompts."""

    own: Array
    baseline: Array
    score: Callable[[Sequence[float]], float]


def corpus_of(
    name: str,
    scorer: Scorer,
    numbers: NDArray[np.int64],
    own: Sequence[Generation],
    baseline: Sequence[Generation],
) -> CorpusStatistics | None:
    """Returns the statistics of the metric `name` by prompt, of the answers that have them on both sides; None
    without any. `numbers`: the prompt of each answer."""
    sides = [[g.get("statistics", {}).get(name) for g in side] for side in (own, baseline)]
    kept = [place for place, pair in enumerate(zip(*sides, strict=True)) if None not in pair]
    if not kept:
        return None
    summed = [_summed(numbers[kept], np.array([side[place] for place in kept], dtype=np.float64)) for side in sides]
    return CorpusStatistics(summed[0], summed[1], lambda sums: scorer.corpus(name, sums))


def _summed(numbers: NDArray[np.int64], statistics: Array) -> Array:
    """Returns the sums over the answers to each prompt: [num_prompts, num_statistics]."""
    prompts, places = np.unique(numbers, return_inverse=True)
    sums = np.zeros((len(prompts), statistics.shape[1]))
    np.add.at(sums, places, statistics)
    return sums


def corpus_metrics(parts: Sequence[CorpusStatistics], seed: int) -> tuple[Metric, Metric, Metric]:
    """Returns the score of the method, of AR, and their difference; of several subsets the mean of their scores.

    Intervals: the prompts of each subset are resampled, method and AR together, and the scores computed from the new
    sums. There is no interval where a subset has fewer than MIN_PROMPTS prompts.
    """
    if not parts:
        return Metric(), Metric(), Metric()
    own = float(np.mean([part.score(part.own.sum(axis=0).tolist()) for part in parts]))
    baseline = float(np.mean([part.score(part.baseline.sum(axis=0).tolist()) for part in parts]))
    if min(len(part.own) for part in parts) < MIN_PROMPTS:
        return Metric(value=own), Metric(value=baseline), Metric(value=own - baseline)
    generator = np.random.default_rng(seed)
    drawn = [_resampled(part, generator) for part in parts]
    sizes = [len(part.own) for part in parts]
    return (
        _with_interval(own, np.array([side[0] for side in drawn]), sizes),
        _with_interval(baseline, np.array([side[1] for side in drawn]), sizes),
        _with_interval(own - baseline, np.array([side[0] - side[1] for side in drawn]), sizes),
    )


def _resampled(part: CorpusStatistics, generator: np.random.Generator) -> tuple[Array, Array]:
    """Returns the scores of the method and of AR in every resample: [NUM_RESAMPLES] each."""
    num_prompts = len(part.own)
    counts = generator.multinomial(num_prompts, np.full(num_prompts, 1 / num_prompts), size=NUM_RESAMPLES)
    own, baseline = (
        np.array([part.score(sums) for sums in (counts @ statistics).tolist()])
        for statistics in (part.own, part.baseline)
    )
    return own, baseline


def _with_interval(value: float, drawn: Array, sizes: Sequence[int]) -> Metric:
    """Returns the score with its interval. `drawn`: the scores of each subset in every resample [num_subsets,
    NUM_RESAMPLES]; `sizes`: its prompts."""
    confidence = stratified(drawn.var(axis=1), np.array(sizes))
    resampled = drawn.mean(axis=0)
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    if high - low <= 1e-9:
        return Metric(value=value, low=value, high=value)
    return Metric(value=value, low=float(low), high=float(high))


def stratified(variances: Array, sizes: NDArray[np.int64]) -> float:
    """Returns the share of the resamples within the interval of a mean over subsets: `bootstrap.expanded`, with the
    missing n / (n - 1) of each subset's own variance, and Student's t with the degrees of freedom of their sum
    (Welch, Biometrika 34, 1947; Satterthwaite, Biometrics Bulletin 2, 1946). Both arguments are [num_subsets]."""
    total = float(variances.sum())
    if total == 0:
        return CONFIDENCE
    unbiased = variances * sizes / (sizes - 1)
    freedom = unbiased.sum() ** 2 / (unbiased**2 / (sizes - 1)).sum()
    t = stats.t.ppf((1 + CONFIDENCE) / 2, freedom)
    return float(2 * stats.norm.cdf(t * np.sqrt(unbiased.sum() / total)) - 1)


CUTS = ("length", "context")  # the ends that a generation did not choose itself
LANGUAGE = "language_share"
Values = list[float | None]  # [num_records]


@dataclass(frozen=True)
class ScoringSpec:
    """The scorer of a subset's answers, and the language that they should have (ISO 639)."""

    scorer: Scorer | None = None
    language: str | None = None

    @property
    def code(self) -> str | None:
        """The language that can be identified in an answer; None where none is required, or answers are too short."""
        return known(self.language) if self.language and getattr(self.scorer, "in_sentences", True) else None

    @property
    def main(self) -> str | None:
        return self.scorer.names[0] if self.scorer else None


def scoring_by_subset(cells: "Sequence[Cell]") -> dict[str, ScoringSpec]:
    """Returns the scoring of the cells of a task, by subset."""
    return {cell.subset: ScoringSpec(cell.scorer, cell.task.language) for cell in cells}


def main_metric(asked: Mapping[str, ScoringSpec], metrics: Collection[str] = ()) -> str | None:
    """Returns the metric that stands for quality; None without one, or where subsets have different ones. A judge's
    rating, if it is among the `metrics`, stands for tasks without a scorer."""
    mains = {each.main for each in asked.values() if each.main is not None}
    if not mains and JUDGED in metrics:
        return JUDGED
    return mains.pop() if len(mains) == 1 else None


def signatures(asked: Mapping[str, ScoringSpec], records: Sequence[Record]) -> dict[str, str]:
    """Returns how each metric was computed; where subsets differ, all the ways. sacrebleu's signature holds the
    number of references, which is that of the records."""
    found: dict[str, dict[str, None]] = {}
    for subset, each in asked.items():
        references = [record.get("reference") for record in records if record["subset"] == subset]
        counts = {len(reference) if isinstance(reference, list) else 1 for reference in references if reference} or {1}
        num_references = str(*counts) if len(counts) == 1 else "var"
        for name, text in each.scorer.signature.items() if each.scorer else ():
            found.setdefault(name, {})[text.replace("nrefs:1|", f"nrefs:{num_references}|")] = None
    return {name: " & ".join(texts) for name, texts in found.items()}


def quality(
    prompts: Prompts,
    records: Sequence[Record],
    own: Sequence[Generation],
    baseline: Sequence[Generation],
    asked: Mapping[str, ScoringSpec],
) -> dict[str, Metric]:
    """Returns each score by its name, with `_ar` and `_difference`: means over the answers that have a value on both
    sides; corpus scores and pass@k are of all answers together. `num_unscored` counts the answers without a score."""
    subsets = [asked.get(record["subset"], ScoringSpec()) for record in records]
    sides = [[_scores(g, each) for g, each in zip(side, subsets, strict=True)] for side in (own, baseline)]
    names = dict.fromkeys(name for each in asked.values() if each.scorer for name in each.scorer.names)
    names |= dict.fromkeys(name for side in sides for scores in side for name in scores)
    found: dict[str, Metric] = {}
    for name in names:
        if any(name in g.get("statistics", {}) for g in own):
            parts = [
                corpus_of(name, each.scorer, prompts.cluster[n], [own[i] for i in n], [baseline[i] for i in n])
                for each, n in _by_subset(records, asked)
                if each.scorer is not None
            ]
            three = corpus_metrics([part for part in parts if part is not None], prompts.seed)
            found |= zip((name, f"{name}_ar", f"{name}_difference"), three, strict=True)
        else:
            found |= _means(prompts, name, *(_values(name, records, side, subsets) for side in sides))
    if any(each.code for each in asked.values()):
        found |= _means(prompts, LANGUAGE, *(_in_language(side, subsets) for side in (own, baseline)))
    truncated = [
        g["truncated_tokens"] if "truncated_tokens" in g else record.get("truncated_tokens", 0)
        for g, record in zip(own, records, strict=True)
    ]
    problems = ["problem" in a or "problem" in b for a, b in zip(own, baseline, strict=True)]
    return {
        **found,
        "num_unscored": Metric(value=sum(problems)) if names else Metric(),
        **({"num_unjudged": Metric(value=_num_unjudged(*sides))} if JUDGED in names else {}),
        **_programs_ended(own, baseline),
        "share_truncated": prompts.mean([float(num_tokens > 0) for num_tokens in truncated], SHARE),
        **{f"share_cut_by_{end}": prompts.mean([float(g["finish"] == end) for g in own], SHARE) for end in CUTS},
    }


def _scores(generation: Generation, asked: ScoringSpec) -> Mapping[str, float | None]:
    """Returns the scores of one answer by metric. A record without `scores` has one score."""
    if "scores" in generation:
        scores: Mapping[str, float | None] = generation["scores"]
        return scores
    return {} if generation["score"] is None else {asked.main or "accuracy": generation["score"]}


def _values(
    name: str, records: Sequence[Record], scores: Sequence[Mapping[str, float | None]], asked: Sequence[ScoringSpec]
) -> Values:
    """Returns the value of each record. A value of all answers to a prompt (pass@k) belongs to the first of them."""
    values: Values = [None] * len(records)
    answers: dict[tuple[object, ...], list[int]] = {}
    for number, record in enumerate(records):
        if not _is_of_samples(asked[number], name):
            values[number] = scores[number].get(name)
        else:
            key = (record["task"], record["subset"], record["example"], record.get("turn", 0))
            answers.setdefault(key, []).append(number)
    for numbers in answers.values():
        each = asked[numbers[0]]
        judged = [value for number in numbers if (value := scores[number].get(each.main or "")) is not None]
        values[numbers[0]] = each.scorer.of_samples(name, judged)  # type: ignore[union-attr]
    return values


def _num_unjudged(own: Sequence[Mapping[str, float | None]], baseline: Sequence[Mapping[str, float | None]]) -> int:
    return sum(None in (a.get(JUDGED), b.get(JUDGED)) for a, b in zip(own, baseline, strict=True))


def _programs_ended(own: Sequence[Generation], baseline: Sequence[Generation]) -> dict[str, Metric]:
    """Returns how many programs of either side a limit ended, where programs were run: they count as wrong, and may
    be right."""
    ends = [{g.get("outcome", {}).get("status") for g in pair} for pair in zip(own, baseline, strict=True)]
    num_ended = sum(not end.isdisjoint(ENDED) for end in ends)
    return {"num_programs_ended": Metric(value=num_ended)} if any(end - {None} for end in ends) else {}


def _is_of_samples(asked: ScoringSpec, name: str) -> bool:
    """Returns whether a metric is one of all answers to a prompt, such as pass@k."""
    return asked.scorer is not None and name in asked.scorer.names and hasattr(asked.scorer, "of_samples")


def _means(prompts: Prompts, name: str, own: Values, baseline: Values) -> dict[str, Metric]:
    both = [pair if None not in pair else (None, None) for pair in zip(own, baseline, strict=True)]
    bounds = bounds_of(name)
    apart = None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])
    return {
        name: prompts.mean([a for a, _ in both], bounds),
        f"{name}_ar": prompts.mean([b for _, b in both], bounds),
        f"{name}_difference": prompts.mean([None if a is None or b is None else a - b for a, b in both], apart),
    }


def _by_subset(records: Sequence[Record], asked: Mapping[str, ScoringSpec]) -> list[tuple[ScoringSpec, list[int]]]:
    """Returns the scoring of each subset, and the numbers of its records."""
    return [
        (each, [number for number, record in enumerate(records) if record["subset"] == subset])
        for subset, each in asked.items()
    ]


def _in_language(generations: Sequence[Generation], asked: Sequence[ScoringSpec]) -> Values:
    """1 for an answer in the language of its subset, 0 for any other (also one without words); None where there is none
    that lingua knows."""
    return [
        None if each.code is None else float(language_of(g["text"], each.code) == each.code)
        for g, each in zip(generations, asked, strict=True)
    ]
