"""Estimates for every threshold and every shorter draft length from one recorded run, and their errors.

A recorded generation is replayed at another threshold and a shorter draft length.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from statistics import median
from typing import Self

import numpy as np

from specbench.analysis.tuning.shared_runs import Metrics, TrialRun, dumped, shown_metrics
from specbench.core.errors import ConfigError
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.proposal import OUT_OF_VOCABULARY
from specbench.records.columns import Ints, PassTimes, StepCounts, Steps
from specbench.records.generation import Passes
from specbench.records.records import Generation, Record
from specbench.results.answers import BASELINE, Answer, answers_of, speed_columns
from specbench.results.metrics import acceptance, speeds
from specbench.statistics.bootstrap import Estimate, Resampler


@dataclass(frozen=True)
class RecordedStep:
    """One recorded step, which emitted `num_accepted` draft tokens and then `next_token`.

    start: the number of new tokens before the step. own: the greedy target's token at every drafted position and after
    the last one; None if the target samples.
    """

    start: int
    token_ids: Sequence[int]
    divergence: Sequence[float | None]
    own: Sequence[int] | None
    num_accepted: int
    next_token: int | None  # None if the end of the text cut it off


def recorded_steps(generation: Generation) -> list[RecordedStep]:
    """Returns the steps of a recorded generation. Raises KeyError if it was recorded without evidence."""
    evidence = generation.drafted
    tokens = generation.token_ids
    recorded = []
    assert evidence is not None
    start = 1  # the token of the prefill
    own_tokens: Sequence[list[int] | None] = evidence.own or [None] * len(generation.steps)
    columns = (generation.steps, evidence.token_ids, evidence.divergence, own_tokens)
    for step, token_ids, divergence, own_ids in zip(*columns, strict=True):
        end, num_accepted = start + step.emitted, step.accepted
        next_token = tokens[end - 1] if step.emitted > num_accepted else None
        recorded.append(RecordedStep(start, token_ids, divergence, own_ids, num_accepted, next_token))
        start = end
    return recorded


@dataclass(frozen=True)
class RecordedGeneration:
    """One recorded generation. `max_tokens`: the new tokens that limit and context allow; `num_draft_tokens`: the
    recorded draft length; `inclusive`: whether the rule accepts at the threshold; `pauses_after`: the new tokens after
    which the drafter drafts nothing."""

    windows: Sequence[RecordedStep]
    num_tokens: int
    max_tokens: int
    eos_token_ids: frozenset[int]
    num_draft_tokens: int
    inclusive: bool = False
    pauses_after: int = sys.maxsize


def replay(recorded: RecordedGeneration, threshold: float, num_draft_tokens: int) -> list[StepCounts]:
    """Returns the steps of the generation at another setting. They are those of a real run until its text differs from
    the recorded one, or a step drafts where nothing was recorded. Raises ValueError if its drafts are longer than the
    recorded ones."""
    if num_draft_tokens > recorded.num_draft_tokens:
        raise ValueError(f"recorded with {recorded.num_draft_tokens} draft tokens, not {num_draft_tokens}")
    replayer = _Replayer(recorded, threshold)
    steps = []
    while not replayer.ended:
        steps.append(replayer.step(num_draft_tokens))
    return steps


class _Replayer:
    """The state of a replay. `position`: the number of new tokens so far. `window`, `offset`: the recorded step used
    for this position and the index into its draft tokens; always position = window.start + offset."""

    def __init__(self, recorded: RecordedGeneration, threshold: float) -> None:
        self.recorded, self.threshold = recorded, threshold
        self.owners = [index for index, w in enumerate(recorded.windows) for _ in range(w.num_accepted + 1)]
        # Divergences that replace the unknown one after a fully accepted draft, where no draft token is recorded.
        self.after_accepted = [d for w in recorded.windows for d in w.divergence[1 : w.num_accepted + 1]]
        self.ended = recorded.num_tokens <= 1
        self.position = 1
        self.look_up()

    def accepts(self, divergence: float | None) -> bool:
        """Returns whether the rule accepts a divergence; the comparison is in float32, as in the rule."""
        if divergence is None:
            return False
        limit = float(np.float32(self.threshold))
        return divergence <= limit if self.recorded.inclusive else divergence < limit

    def look_up(self) -> None:
        if self.position < self.recorded.num_tokens:
            self.window = self.recorded.windows[self.owners[self.position - 1]]
            self.offset = self.position - self.window.start

    def step(self, num_draft_tokens: int) -> StepCounts:
        start = self.position
        # 1. The drafter proposes tokens up to its own EOS, and never the last one.
        ends = (self.recorded.max_tokens - 1, self.recorded.pauses_after)
        most = max(0, min(num_draft_tokens, *(end - self.position for end in ends)))
        drafted = self.window.token_ids[self.offset : self.offset + most]
        eos = [count for count, token in enumerate(drafted, start=1) if token in self.recorded.eos_token_ids]
        num_drafted = eos[0] if eos else most
        # 2. The rule accepts some of them.
        accepted = 0
        while accepted < num_drafted and not self.ended and self.accept_next():
            accepted += 1
        # 3. The target's own token follows.
        if not self.ended:
            window, offset = self.window, self.offset
            if offset == window.num_accepted:
                self.move(window.next_token, stay=False)
            else:
                own_token = window.own[offset] if window.own is not None and offset < len(window.own) else None
                self.move(own_token, stay=offset < len(window.token_ids) and own_token == window.token_ids[offset])
        num_emitted = self.position - start
        num_verified = accepted + (accepted < num_drafted and num_emitted > accepted)
        return StepCounts(num_drafted, num_verified, accepted, num_emitted)

    def accept_next(self) -> bool:
        """Moves past the next draft token if the rule accepts it."""
        if self.offset >= len(self.window.token_ids) and self.offset > self.window.num_accepted:
            self.look_up()  # the rest of the draft is used up
        window, offset = self.window, self.offset
        if offset >= len(window.token_ids):
            # Nothing drafted here, after a fully accepted draft: decided by the divergence at another such position.
            pool = self.after_accepted
            if pool and not self.accepts(pool[self.position % len(pool)]):
                return False
            self.move(None, stay=False)
            return True
        token = window.token_ids[offset]
        if token == OUT_OF_VOCABULARY or not self.accepts(window.divergence[offset]):
            return False
        self.move(token, stay=offset != window.num_accepted or token != window.next_token)
        return True

    def move(self, token: int | None, stay: bool) -> None:
        """Moves by one token. `stay`: within the drafted tokens of this step, else along the recorded answer."""
        self.position += 1
        self.offset += 1
        self.ended = self.position >= self.recorded.num_tokens or token in self.recorded.eos_token_ids
        if not stay:
            self.look_up()


FEW_PASSES = 5  # the seconds of a length with fewer passes (drafts at the end of a text) are not reliable


@dataclass(frozen=True)
class StepCosts:
    """The seconds of a step by its number of drafted tokens, from 0 (an autoregressive step) to the recorded length.

    They are medians of passes and of the overhead per step, times one factor with which the recorded generations cost
    as much as they took.
    """

    draft_pass: float
    verify: Mapping[int, float]  # by query length: drafted tokens + 1
    overhead: Mapping[int, float]  # by drafted tokens
    factor: float = 1.0

    @classmethod
    def of(cls, records: Sequence[Record], method: str) -> Self:
        """Returns the costs of steps from the records of one method and AR."""
        method_generations, baseline = ([record.methods[name] for record in records] for name in (method, "ar"))
        lengths: dict[int, list[float]] = {}
        for length, seconds in chain.from_iterable(g.passes.target for g in (*method_generations, *baseline)):
            lengths.setdefault(length, []).append(seconds)
        most = max(lengths)
        timed_lengths = {n: s for n, s in lengths.items() if n in (1, most) or len(s) >= FEW_PASSES}

        def overhead(generations: Sequence[Generation]) -> float:
            return median([
                (g.decode_seconds - sum(g.passes.target.seconds) - sum(g.passes.draft.seconds)) / len(g.steps)
                for g in generations if g.steps
            ] or [0.0])  # fmt: skip

        plain = cls(
            draft_pass=median([seconds for g in method_generations for seconds in g.passes.draft.seconds] or [0.0]),
            verify={length: median(timed_lengths[length]) for length in sorted(timed_lengths)},
            overhead={0: overhead(baseline), max(1, most - 1): overhead(method_generations)},
        )
        modelled = sum(
            plain.step_seconds(step.drafted) for generation in method_generations for step in generation.steps
        )
        measured = sum(generation.decode_seconds for generation in method_generations if generation.steps)
        return replace(plain, factor=measured / modelled if modelled else 1.0)

    def step_seconds(self, num_drafted: int) -> float:
        verify, overhead = (
            float(np.interp(place, list(points), list(points.values())))
            for place, points in ((num_drafted + 1, self.verify), (num_drafted, self.overhead))
        )
        return self.factor * (num_drafted * self.draft_pass + verify + overhead)


INCLUSIVE = "js_reference"  # this divergence accepts at the threshold too, as its published code does
ESTIMATED_METRICS = (
    "acceptance_rate", "draft_efficiency", "mean_acceptance_length", "accepted_length", "drafter_share",
    "tokens_per_second", "speedup",
)  # fmt: skip


@dataclass(frozen=True)
class SettingEstimate:
    """The estimate for a setting that was not run. Intervals are over prompts; they say nothing about the estimate's
    error."""

    threshold: float
    num_draft_tokens: int
    metrics: Mapping[str, Estimate]
    generations: Sequence[Generation]  # the replayed steps in the layout of records, with modelled seconds

    def as_json(self) -> dict[str, object]:
        return {
            "threshold": self.threshold, "num_draft_tokens": self.num_draft_tokens, "estimate": True,
            "metrics": dumped(self.metrics, ESTIMATED_METRICS),
        }  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """A measured run with the divergences of all drafted positions. It can be replayed at other settings."""

    records: Sequence[Record]
    generations: Sequence[RecordedGeneration]
    costs: StepCosts
    seed: int

    @classmethod
    def of(cls, measured: TrialRun, method: str) -> Self:
        """Raises ConfigError for a run that was recorded without evidence."""
        spec = measured.method(method)
        subset_runs = {(each.task.name, each.subset): each for each in measured.subset_runs}
        generations = []
        for record in measured.records:
            if record.methods[method].drafted is None:
                raise ConfigError(f"{measured.folder}: its records hold no divergences: choose another --output")
            generation, prompt_tokens = record.methods[method], record.prompt_tokens
            assert prompt_tokens is not None  # of a run of this version
            of_subset = subset_runs[record.task, record.subset]
            decoder = next(decoder for decoder in of_subset.decoders if decoder.method.name == method)
            assert isinstance(decoder, DraftingDecoder)
            room = [of_subset.task.generation.max_new_tokens]
            if of_subset.context_limit is not None:
                room.append(of_subset.context_limit - prompt_tokens)
            generations.append(RecordedGeneration(
                recorded_steps(generation), len(generation.token_ids), min(room), decoder.model.eos_token_ids,
                spec.num_draft_tokens, spec.verification.options["divergence"] == INCLUSIVE,
                decoder.drafter.room(prompt_tokens),
            ))  # fmt: skip
        return cls(measured.records, generations, StepCosts.of(measured.records, method), measured.seed)

    def estimate(self, threshold: float, num_draft_tokens: int) -> SettingEstimate:
        replays = [replay(generation, threshold, num_draft_tokens) for generation in self.generations]
        generations = [  # in the layout of records, with modelled seconds; one token is from the prefill
            Generation(
                token_ids=Ints(range(1 + sum(step.emitted for step in steps))), finish="eos", text="",
                steps=Steps(steps), positions={},
                passes=Passes(target=PassTimes(()), draft=PassTimes(())), ttft_seconds=0.0, draft_prefill_seconds=0.0,
                decode_seconds=sum(self.costs.step_seconds(step.drafted) for step in steps), score=None,
            )
            for steps in replays
        ]  # fmt: skip
        answers = list(map(Answer.of, generations))
        baseline = answers_of(self.records, BASELINE)
        prompts = Resampler.of(baseline, self.seed)
        metrics = {**acceptance(prompts, answers, {}), **speeds(prompts, answers, baseline, is_baseline=False)}
        return SettingEstimate(threshold, num_draft_tokens, metrics, generations)


@dataclass(frozen=True)
class EstimateCheck:
    """An estimate and the real run at its setting. `errors`: estimated ÷ measured − 1."""

    estimate: SettingEstimate
    run: TrialRun
    method: str
    errors: Mapping[str, Estimate]

    @cached_property
    def metrics(self) -> Metrics:
        return self.run.metrics(self.method)

    def as_json(self) -> dict[str, object]:
        return {
            "threshold": self.estimate.threshold, "num_draft_tokens": self.estimate.num_draft_tokens,
            "estimate": False, "folder": str(self.run.folder),
            "metrics": shown_metrics(self.metrics, self.run.quality),
            "estimate_over_measured_minus_1": dumped(self.errors, self.errors),
        }  # fmt: skip


def check_estimate(recording: Recording, estimate: SettingEstimate, run: TrialRun, method: str) -> EstimateCheck:
    """Compares an estimate with a run on the same prompts. Its errors are estimated ÷ measured − 1 for τ and for the
    speed-up, with intervals over prompts.

    Each speed-up is over the AR of its own run, so that a slower machine during one run is not an error of the
    estimate.
    """
    records = {record.key: record.methods for record in run.records}
    real = [records[record.key] for record in recording.records]
    estimated, others = estimate.generations, [each[method] for each in real]
    sides = (
        [estimated, [record.methods["ar"] for record in recording.records]],
        [others, [each["ar"] for each in real]],
    )
    prompts = Resampler.of(list(recording.records), recording.seed)
    lengths = [
        column
        for each in (estimated, others)
        for column in ([g.num_emitted for g in each], [len(g.steps) for g in each])
    ]
    ratios = {
        "mean_acceptance_length": prompts.ratio(*lengths),
        "speedup": prompts.ratio(*(column for side in sides for column in speed_columns(side))),
    }
    errors = {
        name: Estimate(**{end: None if value is None else value - 1 for end, value in ratio})
        for name, ratio in ratios.items()
    }
    return EstimateCheck(estimate, run, method, errors)
