"""The scores of answers with intervals, paired with AR's answers to the same prompts."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from specbench.results.answers import Answer, Languages
from specbench.results.metric_format import bounds_of
from specbench.specs.task import TaskSpec
from specbench.statistics.bootstrap import MIN_PROMPTS, SHARE, Estimate, Resampler, percentiles, stratified_confidence
from specbench.tasks.judge import JUDGED
from specbench.tasks.sandbox.run import ENDED
from specbench.tasks.scoring import Scorer, as_number, identified_language, make_scorer

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CorpusStatistics:
    """The statistics of a corpus score in one subset. `sums`: for each prompt, summed over its answers, [num_sides,
    num_prompts, num_statistics]; the sides are the method and AR. `score`: returns the corpus score of totals."""

    sums: Array
    score: Callable[[Sequence[float]], float]

    @classmethod
    def of(
        cls, name: str, scorer: Scorer, prompts: NDArray[np.int64], sides: Sequence[Sequence[Sequence[float] | None]]
    ) -> "CorpusStatistics | None":
        """Returns the statistics of the metric `name` over the answers that have them on all sides; None if there are
        none. `prompts`: the number of the prompt of each answer. `sides`: the statistics of each answer."""
        kept = [place for place, pair in enumerate(zip(*sides, strict=True)) if None not in pair]
        if not kept:
            return None
        statistics = np.array([[side[place] for place in kept] for side in sides], dtype=np.float64)
        own, places = np.unique(prompts[kept], return_inverse=True)
        sums = np.zeros((len(sides), len(own), statistics.shape[2]))
        np.add.at(sums.swapaxes(0, 1), places, statistics.swapaxes(0, 1))
        return cls(sums, lambda totals: scorer.corpus(name, totals))

    @property
    def num_prompts(self) -> int:
        return len(self.sums[0])

    def scores(self, sums: Array) -> Array:
        """Returns the score of each side for each of several totals: [num_sides, num_totals, num_statistics] →
        [num_sides, num_totals]."""
        return np.array([[self.score(totals) for totals in side] for side in sums.tolist()])


def corpus_metrics(parts: Sequence[CorpusStatistics], prompts: Resampler) -> tuple[Estimate, Estimate, Estimate]:
    """Returns the score of the method, of AR, and their difference. The score over several subsets is the mean of
    theirs. The bootstrap resamples the prompts of each subset, for the method and AR together, and computes the scores
    from the new sums. There is no interval if a subset has fewer than MIN_PROMPTS prompts."""
    if not parts:
        return Estimate(), Estimate(), Estimate()
    sizes = np.array([part.num_prompts for part in parts])
    if min(sizes) < MIN_PROMPTS:
        sums = [part.sums.sum(axis=1, keepdims=True) for part in parts]
    else:
        sums = prompts.sums([part.sums for part in parts])
    scores = np.array([part.scores(each) for part, each in zip(parts, sums, strict=True)])
    own, baseline = scores[:, 0], scores[:, 1]  # [num_subsets, 1 + num_resamples]
    first, second = np.mean(scores, axis=0)[:, 0].tolist()
    return (
        _with_interval(first, own[:, 1:], sizes),
        _with_interval(second, baseline[:, 1:], sizes),
        _with_interval(first - second, own[:, 1:] - baseline[:, 1:], sizes),
    )


def _with_interval(value: float, drawn: Array, sizes: NDArray[np.int64]) -> Estimate:
    """Returns the score with its interval. `drawn`: the score of each subset in each resample, [num_subsets,
    num_resamples]; without resamples there is no interval. `sizes`: the number of prompts of each subset."""
    if not drawn.size:
        return Estimate(value=value)
    low, high = percentiles(drawn.mean(axis=0), stratified_confidence(drawn.var(axis=1), sizes))
    is_constant = high - low <= 1e-9
    return Estimate(value=value, low=value if is_constant else low, high=value if is_constant else high)


CUTS = ("length", "context")  # reasons to cut an answer before its own end
LANGUAGE = "language_share"
Values = list[float | None]  # [num_answers]


@dataclass(frozen=True)
class ScoringSpec:
    """The scorer of a subset's answers, and their expected language (ISO 639)."""

    scorer: Scorer | None = None
    language: str | None = None

    @classmethod
    def of(cls, task: TaskSpec, identifies_languages: bool) -> Self:
        """Returns the scoring of `task`, a task merged with one of its subsets."""
        return cls(make_scorer(task), task.language if identifies_languages else None)

    @property
    def code(self) -> str | None:
        return identified_language(self.language, self.scorer)

    @property
    def main(self) -> str | None:
        return self.scorer.names[0] if self.scorer else None


def languages_of(tasks: Sequence[TaskSpec], identifies_languages: bool) -> Languages:
    """Returns the code that answers are tested for, by task and subset."""
    return {
        task.name: {name: ScoringSpec.of(task.subset(name), identifies_languages).code for name in task.subset_names}
        for task in tasks
    }


def main_metric(scoring: Mapping[str, ScoringSpec], metrics: Collection[str] = ()) -> str | None:
    """Returns the metric of the main score; None if there is none, or if subsets have different ones. For tasks without
    a scorer it is the judge's rating, if `metrics` has it."""
    mains = {each.main for each in scoring.values() if each.main is not None}
    if not mains and JUDGED in metrics:
        return JUDGED
    return mains.pop() if len(mains) == 1 else None


def signatures(scoring: Mapping[str, ScoringSpec], own: Sequence[Answer]) -> dict[str, str]:
    """Returns how each score was computed; if subsets differ, the signatures of all. The number of references in
    sacrebleu's signature is taken from the records."""
    found: dict[str, dict[str, None]] = {}
    pairs = {(a.subset, a.num_references) for a in own if a.num_references}
    for subset, each in scoring.items():
        counts = {number for of, number in pairs if of == subset} or {1}
        num_references = str(*counts) if len(counts) == 1 else "var"
        for name, text in each.scorer.signature.items() if each.scorer else ():
            found.setdefault(name, {})[text.replace("nrefs:1|", f"nrefs:{num_references}|")] = None
    return {name: " & ".join(texts) for name, texts in found.items()}


def quality(
    prompts: Resampler, own: Sequence[Answer], baseline: Sequence[Answer], scoring: Mapping[str, ScoringSpec]
) -> dict[str, Estimate]:
    """Returns each score by its name, with `_ar` and `_difference`. Scores are means over the answers with a value on
    both sides; corpus scores and pass@k take all answers together. `num_unscored` counts the answers without a score.
    """
    subsets = [scoring.get(a.subset, ScoringSpec()) for a in own]
    sides = [[_scores(a, each) for a, each in zip(side, subsets, strict=True)] for side in (own, baseline)]
    names = dict.fromkeys(name for each in scoring.values() if each.scorer for name in each.scorer.names)
    names |= dict.fromkeys(name for side in sides for scores in side for name in scores)
    found: dict[str, Estimate] = {}
    for name in names:
        if any(name in a.statistics for a in own):
            numbers = {subset: [i for i, a in enumerate(own) if a.subset == subset] for subset in scoring}
            parts = [
                CorpusStatistics.of(
                    name, each.scorer, prompts.cluster[numbers[subset]],
                    [[side[i].statistics.get(name) for i in numbers[subset]] for side in (own, baseline)],
                )
                for subset, each in scoring.items() if each.scorer is not None
            ]  # fmt: skip
            three = corpus_metrics([part for part in parts if part is not None], prompts)
            found |= zip((name, f"{name}_ar", f"{name}_difference"), three, strict=True)
        else:
            found |= _means(prompts, name, *(_values(name, own, side, subsets) for side in sides))
    if any(each.code for each in scoring.values()):
        languages = ([a.in_language for a in side] for side in (own, baseline))
        found |= _means(prompts, LANGUAGE, *languages)
    problems = [bool(a.problem or b.problem) for a, b in zip(own, baseline, strict=True)]
    num_unjudged = sum(None in (a.get(JUDGED), b.get(JUDGED)) for a, b in zip(*sides, strict=True))
    return {
        **found,
        "num_unscored": Estimate(value=sum(problems)) if names else Estimate(),
        **({"num_unjudged": Estimate(value=num_unjudged)} if JUDGED in names else {}),
        **_programs_ended(own, baseline),
        **_reasoning(prompts, own, baseline),
        "share_truncated": prompts.mean([float(a.truncated_tokens > 0) for a in own], SHARE),
        **{f"share_cut_by_{end}": prompts.mean([float(a.finish == end) for a in own], SHARE) for end in CUTS},
    }


def _scores(answer: Answer, scoring: ScoringSpec) -> Mapping[str, float | None]:
    """Returns the scores of one answer by metric. A record without `scores` has a single `score`."""
    if answer.scores:
        return answer.scores
    return {} if answer.score is None else {scoring.main or "accuracy": answer.score}


def _values(
    name: str, own: Sequence[Answer], scores: Sequence[Mapping[str, float | None]], scoring: Sequence[ScoringSpec]
) -> Values:
    """Returns the value of each answer. A value over all answers to a prompt (pass@k) belongs to the first of them."""
    values: Values = [None] * len(own)
    answers: dict[tuple[object, ...], list[int]] = {}
    for number, answer in enumerate(own):
        scorer = scoring[number].scorer
        if scorer is not None and name in scorer.names and scorer.combines_samples:
            answers.setdefault((*answer.key[:3], answer.turn), []).append(number)
        else:
            values[number] = scores[number].get(name)
    for numbers in answers.values():
        each = scoring[numbers[0]]
        judged = [value for number in numbers if (value := scores[number].get(each.main or "")) is not None]
        values[numbers[0]] = as_number(each.scorer.of_samples(name, judged))  # type: ignore[union-attr]
    return values


def _programs_ended(own: Sequence[Answer], baseline: Sequence[Answer]) -> dict[str, Estimate]:
    """Returns the number of programs of either side that a limit ended, if programs were run. They count as wrong, but
    may be right."""
    ends = [{answer.status for answer in pair} for pair in zip(own, baseline, strict=True)]
    num_ended = sum(not end.isdisjoint(ENDED) for end in ends)
    return {"num_programs_ended": Estimate(value=num_ended)} if any(end - {None} for end in ends) else {}


def _reasoning(
    prompts: Resampler, own: Sequence[Answer], baseline: Sequence[Answer]
) -> dict[str, Estimate]:  # fmt: skip
    """Returns the tokens of reasoning and of the answer proper, the share of the first, and the share of answers that
    ended inside their reasoning, if any answer reasons."""
    sides = {"": own, "_ar": baseline}
    if not any(g.reasoning_tokens for side in sides.values() for g in side):
        return {}
    shares = {
        f"reasoning_share{end}": prompts.ratio(
            [g.reasoning_tokens for g in side], [g.num_new_tokens for g in side], bounds=SHARE
        )
        for end, side in sides.items()
    }
    numbers = {
        name: prompts.mean(values)
        for end, side in sides.items()
        for name, values in (
            (f"reasoning_tokens{end}", [float(g.reasoning_tokens) for g in side]),
            (f"answer_tokens{end}", [float(g.num_new_tokens - g.reasoning_tokens) for g in side]),
        )
    }
    unclosed = {
        f"share_cut_in_reasoning{end}": prompts.mean([float(not g.reasoning_closed) for g in side], SHARE)
        for end, side in sides.items()
    }
    return numbers | shares | unclosed


def _means(prompts: Resampler, name: str, own: Values, baseline: Values) -> dict[str, Estimate]:
    both = [pair if None not in pair else (None, None) for pair in zip(own, baseline, strict=True)]
    changes = [None if a is None or b is None else a - b for a, b in both]
    bounds = bounds_of(name)
    change_bounds = None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])
    return {
        name: prompts.mean([a for a, _ in both], bounds),
        f"{name}_ar": prompts.mean([b for _, b in both], bounds),
        f"{name}_difference": prompts.mean(changes, change_bounds),
    }
