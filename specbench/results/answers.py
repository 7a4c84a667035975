"""Recorded answers → columns of tokens, passes and seconds, and scores with intervals; paired with AR's answers to the
same prompts."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from specbench.records.columns import PassTimes
from specbench.records.generation import Passes
from specbench.records.records import Generation, Record
from specbench.results.metric_format import bounds_of
from specbench.specs.task import TaskSpec
from specbench.statistics.bootstrap import MIN_PROMPTS, SHARE, Estimate, Resampler, percentiles, stratified_confidence
from specbench.tasks.judge import JUDGED
from specbench.tasks.sandbox.run import ENDED
from specbench.tasks.scoring import Scorer, as_number, identified_language, language_of, make_scorer

Array = NDArray[np.float64]


def with_own_passes(generation: Generation, decodes_with: str) -> Generation:
    """Returns the generation with each pass listed under the model that ran it. The decode loop lists all passes of a
    model that decodes alone under the target. `decodes_with`: the method's; for "random" the record names the model in
    `decoded_by`. Raises ValueError for a record without `decoded_by`."""
    decoder = generation.decoded_by if decodes_with == "random" else decodes_with
    if decoder is None:
        raise ValueError("has no decoded_by, the model that decoded this query")
    if decoder == "target":
        return generation
    passes = Passes(target=PassTimes(()), draft=generation.passes.target)
    return replace(generation, passes=passes, decoded_by="drafter")


def tokens_of_passes(generation: Generation) -> tuple[int, int]:
    """Returns the emitted tokens and the target passes that emitted them; (0, 0) if the passes are unknown. If the
    steps are known, a prefill that emits a token by itself is left out with its token. The prefill of a server always
    emits one."""
    num_passes, num_steps = generation.target_passes, len(generation.steps)
    if not num_passes:
        return 0, 0
    if generation.is_served:
        return generation.num_new_tokens - 1, num_passes - 1
    if generation.is_external and (num_steps == 0 or num_passes == num_steps):
        return generation.num_new_tokens, num_passes
    return generation.num_emitted, num_steps


Sides = Sequence[Sequence[Generation]]  # generations by side, in the same order of prompts
Columns = list[list[float]]  # two columns for each side, [num_generations]


def speed_columns(sides: Sides) -> Columns:
    """Returns tokens and seconds of each side. A generation of one token has no speed, so both columns are 0 for it on
    every side, and all sides cover the same answers."""
    timed = [min(g.num_timed_tokens for g in each) > 0 for each in zip(*sides, strict=True)]
    return [
        [float(value * keep) for value, keep in zip(column, timed, strict=True)]
        for side in sides for column in ([g.num_timed_tokens for g in side], [g.decode_seconds for g in side])
    ]  # fmt: skip


def length_columns(sides: Sides) -> Columns:
    """Returns emitted tokens and target passes of each side. A generation without a pass has no tokens per pass, so
    both columns are 0 for it on every side."""
    counts = [list(map(tokens_of_passes, generations)) for generations in sides]
    known = [min(passes for _, passes in each) > 0 for each in zip(*counts, strict=True)]
    return [
        [float(each[part] * keep) for each, keep in zip(side, known, strict=True)] for side in counts for part in (0, 1)
    ]


def verified_tokens(own: Sequence[Generation]) -> tuple[list[int], list[int]]:
    """Returns the accepted and the verified tokens of each generation. Both are 0 for draft trees, whose number of
    verified tokens depends on the order of siblings. All are 0 if a server reports an answer without its verified
    tokens, since the other answers may then be a biased choice."""
    counts = [(0, 0) if g.is_tree else _verified(g) for g in own]
    is_known = None not in (verified for _, verified in counts)
    return [accepted * is_known for accepted, _ in counts], [(verified or 0) * is_known for _, verified in counts]


def _verified(generation: Generation) -> tuple[int, int | None]:
    if generation.steps:
        return generation.num_accepted, generation.num_verified
    external = generation.external
    if external is None:
        return 0, 0
    drafted, verified, accepted = external.totals or (0, 0, 0)
    accepted, verified = external.kept or (accepted, verified)  # absent from records of earlier versions
    return (accepted, verified) if drafted else (0, 0)


def acceptance_rates(own: Sequence[Generation]) -> list[float | None]:
    """Returns accepted ÷ verified tokens of each generation; None for draft trees, and if none was verified."""
    return [accepted / verified if verified else None for accepted, verified in zip(*verified_tokens(own), strict=True)]


@dataclass(frozen=True)
class CorpusStatistics:
    """The statistics of a corpus score in one subset. `sums`: for each prompt, summed over its answers, [num_sides,
    num_prompts, num_statistics]; the sides are the method and AR. `score`: returns the corpus score of totals."""

    sums: Array
    score: Callable[[Sequence[float]], float]

    @classmethod
    def of(
        cls, name: str, scorer: Scorer, prompts: NDArray[np.int64], sides: Sequence[Sequence[Generation]]
    ) -> "CorpusStatistics | None":
        """Returns the statistics of the metric `name` over the answers that have them on all sides; None if there are
        none. `prompts`: the number of the prompt of each answer."""
        found = [[g.statistics.get(name) for g in side] for side in sides]
        kept = [place for place, pair in enumerate(zip(*found, strict=True)) if None not in pair]
        if not kept:
            return None
        statistics = np.array([[side[place] for place in kept] for side in found], dtype=np.float64)
        own, places = np.unique(prompts[kept], return_inverse=True)
        sums = np.zeros((len(found), len(own), statistics.shape[2]))
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
Values = list[float | None]  # [num_records]


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


def main_metric(scoring: Mapping[str, ScoringSpec], metrics: Collection[str] = ()) -> str | None:
    """Returns the metric of the main score; None if there is none, or if subsets have different ones. For tasks without
    a scorer it is the judge's rating, if `metrics` has it."""
    mains = {each.main for each in scoring.values() if each.main is not None}
    if not mains and JUDGED in metrics:
        return JUDGED
    return mains.pop() if len(mains) == 1 else None


def signatures(scoring: Mapping[str, ScoringSpec], records: Sequence[Record]) -> dict[str, str]:
    """Returns how each score was computed; if subsets differ, the signatures of all. The number of references in
    sacrebleu's signature is taken from the records."""
    found: dict[str, dict[str, None]] = {}
    for subset, each in scoring.items():
        references = [record.reference for record in records if record.subset == subset]
        counts = {len(reference) if isinstance(reference, list) else 1 for reference in references if reference} or {1}
        num_references = str(*counts) if len(counts) == 1 else "var"
        for name, text in each.scorer.signature.items() if each.scorer else ():
            found.setdefault(name, {})[text.replace("nrefs:1|", f"nrefs:{num_references}|")] = None
    return {name: " & ".join(texts) for name, texts in found.items()}


def quality(
    prompts: Resampler, records: Sequence[Record], own: Sequence[Generation], baseline: Sequence[Generation],
    scoring: Mapping[str, ScoringSpec],
) -> dict[str, Estimate]:  # fmt: skip
    """Returns each score by its name, with `_ar` and `_difference`. Scores are means over the answers with a value on
    both sides; corpus scores and pass@k take all answers together. `num_unscored` counts the answers without a score.
    """
    subsets = [scoring.get(record.subset, ScoringSpec()) for record in records]
    sides = [[_scores(g, each) for g, each in zip(side, subsets, strict=True)] for side in (own, baseline)]
    names = dict.fromkeys(name for each in scoring.values() if each.scorer for name in each.scorer.names)
    names |= dict.fromkeys(name for side in sides for scores in side for name in scores)
    found: dict[str, Estimate] = {}
    for name in names:
        if any(name in g.statistics for g in own):
            numbers = {subset: [i for i, r in enumerate(records) if r.subset == subset] for subset in scoring}
            parts = [
                CorpusStatistics.of(
                    name, each.scorer, prompts.cluster[numbers[subset]],
                    [[side[i] for i in numbers[subset]] for side in (own, baseline)],
                )
                for subset, each in scoring.items() if each.scorer is not None
            ]  # fmt: skip
            three = corpus_metrics([part for part in parts if part is not None], prompts)
            found |= zip((name, f"{name}_ar", f"{name}_difference"), three, strict=True)
        else:
            found |= _means(prompts, name, *(_values(name, records, side, subsets) for side in sides))
    if any(each.code for each in scoring.values()):
        found |= _means(prompts, LANGUAGE, *(_in_language(side, subsets) for side in (own, baseline)))
    truncated = [
        g.truncated_tokens if g.truncated_tokens is not None else record.truncated_tokens
        for g, record in zip(own, records, strict=True)
    ]
    problems = [a.problem or b.problem for a, b in zip(own, baseline, strict=True)]
    num_unjudged = sum(None in (a.get(JUDGED), b.get(JUDGED)) for a, b in zip(*sides, strict=True))
    return {
        **found,
        "num_unscored": Estimate(value=sum(map(bool, problems))) if names else Estimate(),
        **({"num_unjudged": Estimate(value=num_unjudged)} if JUDGED in names else {}),
        **_programs_ended(own, baseline),
        **_reasoning(prompts, own, baseline),
        "share_truncated": prompts.mean([float(num_tokens > 0) for num_tokens in truncated], SHARE),
        **{f"share_cut_by_{end}": prompts.mean([float(g.finish == end) for g in own], SHARE) for end in CUTS},
    }


def _scores(generation: Generation, scoring: ScoringSpec) -> Mapping[str, float | None]:
    """Returns the scores of one answer by metric. A record without `scores` has a single `score`."""
    if generation.scores:
        return generation.scores
    return {} if generation.score is None else {scoring.main or "accuracy": generation.score}


def _values(
    name: str, records: Sequence[Record], scores: Sequence[Mapping[str, float | None]], scoring: Sequence[ScoringSpec]
) -> Values:
    """Returns the value of each record. A value over all answers to a prompt (pass@k) belongs to the first of them."""
    values: Values = [None] * len(records)
    answers: dict[tuple[object, ...], list[int]] = {}
    for number, record in enumerate(records):
        scorer = scoring[number].scorer
        if scorer is not None and name in scorer.names and scorer.combines_samples:
            key = (record.task, record.subset, record.example, record.turn)
            answers.setdefault(key, []).append(number)
        else:
            values[number] = scores[number].get(name)
    for numbers in answers.values():
        each = scoring[numbers[0]]
        judged = [value for number in numbers if (value := scores[number].get(each.main or "")) is not None]
        values[numbers[0]] = as_number(each.scorer.of_samples(name, judged))  # type: ignore[union-attr]
    return values


def _programs_ended(own: Sequence[Generation], baseline: Sequence[Generation]) -> dict[str, Estimate]:
    """Returns the number of programs of either side that a limit ended, if programs were run. They count as wrong, but
    may be right."""
    ends = [{g.outcome.get("status") for g in pair} for pair in zip(own, baseline, strict=True)]
    num_ended = sum(not end.isdisjoint(ENDED) for end in ends)
    return {"num_programs_ended": Estimate(value=num_ended)} if any(end - {None} for end in ends) else {}


def _reasoning(
    prompts: Resampler, own: Sequence[Generation], baseline: Sequence[Generation]
) -> dict[str, Estimate]:  # fmt: skip
    """Returns the shares of tokens that were reasoning and of answers that ended inside it, if any answer reasons."""
    sides = {"": own, "_ar": baseline}
    if not any(g.reasoning_tokens for side in sides.values() for g in side):
        return {}
    shares = {
        f"reasoning_share{end}": prompts.ratio(
            [g.reasoning_tokens for g in side], [g.num_new_tokens for g in side], bounds=SHARE
        )
        for end, side in sides.items()
    }
    unclosed = {
        f"share_cut_in_reasoning{end}": prompts.mean([float(not g.reasoning_closed) for g in side], SHARE)
        for end, side in sides.items()
    }
    return shares | unclosed


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


def _in_language(generations: Sequence[Generation], scoring: Sequence[ScoringSpec]) -> Values:
    """Returns 1 for an answer in the language of its subset, 0 for any other answer, even one without words; None if
    lingua does not know the language of the subset."""
    return [
        None if each.code is None else _is_in_language(g.answer, each.code)
        for g, each in zip(generations, scoring, strict=True)
    ]


@lru_cache(maxsize=2**15)  # AR's answer is in the rows of all methods, and every answer in the row over all subsets
def _is_in_language(text: str, code: str) -> float:
    return float(language_of(text, code) == code)
