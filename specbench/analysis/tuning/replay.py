"""Estimates for every threshold and every shorter draft length from one recorded run, and their errors.

A recorded generation is replayed at another threshold and a shorter draft length.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple, Self

import numpy as np

from specbench.analysis.tuning.shared_runs import Metrics, TrialRun, dumped, shown_metrics
from specbench.core.errors import ConfigError
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.proposal import OUT_OF_VOCABULARY
from specbench.records.columns import Ints, PassTimes, Steps
from specbench.records.generation import Passes
from specbench.records.records import Generation, Record
from specbench.results.answers import BASELINE, Answer, answers_of
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
    evidence, tokens, made = generation.drafted, generation.token_ids, []
    assert evidence is not None
    start = 1  # the token of the prefill
    own: Sequence[list[int] | None] = evidence.own or [None] * len(generation.steps)
    columns = (generation.steps, evidence.token_ids, evidence.divergence, own)
    for step, token_ids, divergence, own_ids in zip(*columns, strict=True):
        end, num_accepted = start + step.emitted, step.accepted
        next_token = tokens[end - 1] if step.emitted > num_accepted else None
        made.append(RecordedStep(start, token_ids, divergence, own_ids, num_accepted, next_token))
        start = end
    return made


@dataclass(frozen=True)
class RecordedGeneration:
    """One recorded generation. `max_tokens`: the new tokens that limit and context allow; `num_draft_tokens`: the
    recorded draft length; `greedy_target`, `greedy_drafts`: unless both are greedy, another decision changes the random
    stream, and no later step is exact; `inclusive`: whether the rule accepts at the threshold; `pauses_after`: the new
    tokens after which the drafter drafts nothing."""

    windows: Sequence[RecordedStep]
    num_tokens: int
    max_tokens: int
    eos_token_ids: frozenset[int]
    num_draft_tokens: int
    greedy_target: bool
    greedy_drafts: bool
    inclusive: bool = False
    pauses_after: int = sys.maxsize


class ReplayedStep(NamedTuple):
    """The counts of a step in the order of records. `exact`: whether a real run makes exactly this step."""

    num_drafted: int
    num_judged: int
    num_accepted: int
    num_emitted: int
    exact: bool


def replay(recorded: RecordedGeneration, threshold: float, num_draft_tokens: int) -> list[ReplayedStep]:
    """Returns the steps of the generation at another setting. Raises ValueError if its drafts are longer than the
    recorded ones."""
    if num_draft_tokens > recorded.num_draft_tokens:
        raise ValueError(f"recorded with {recorded.num_draft_tokens} draft tokens, not {num_draft_tokens}")
    replayer = _Replayer(recorded, threshold, num_draft_tokens)
    steps = []
    while not replayer.ended:
        steps.append(replayer.step())
    return steps


class _Replayer:
    """The state of a replay. `position`: the number of new tokens so far. `window`, `offset`: the recorded step that
    stands for this position and the index into its draft tokens; always position = window.start + offset."""

    def __init__(self, recorded: RecordedGeneration, threshold: float, num_draft_tokens: int) -> None:
        self.recorded, self.threshold, self.num_draft_tokens = recorded, threshold, num_draft_tokens
        self.owners = [index for index, w in enumerate(recorded.windows) for _ in range(w.num_accepted + 1)]
        # Divergences that replace the unknown one after a fully accepted draft, where no draft token is recorded.
        self.after_accepted = [d for w in recorded.windows for d in w.divergence[1 : w.num_accepted + 1]]
        self.is_reproducible = recorded.greedy_target and recorded.greedy_drafts
        self.exact = recorded.greedy_drafts or num_draft_tokens == recorded.num_draft_tokens
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

    def step(self) -> ReplayedStep:
        start, begins_as_recorded, recorded_step = self.position, self.offset == 0, self.window
        # 1. The drafter proposes tokens up to its own EOS, and never the last one.
        ends = (self.recorded.max_tokens - 1, self.recorded.pauses_after)
        most = max(0, min(self.num_draft_tokens, *(end - self.position for end in ends)))
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
                own = window.own[offset] if window.own is not None and offset < len(window.own) else None
                follows_draft = offset < len(window.token_ids) and own == window.token_ids[offset]
                self.exact &= follows_draft
                self.move(own, stay=follows_draft)
        num_emitted = self.position - start
        if not self.is_reproducible and not (begins_as_recorded and accepted == recorded_step.num_accepted):
            self.exact = False
        num_judged = accepted + (accepted < num_drafted and num_emitted > accepted)
        return ReplayedStep(num_drafted, num_judged, accepted, num_emitted, self.exact)

    def accept_next(self) -> bool:
        """Moves past the next draft token if the rule accepts it."""
        if self.offset >= len(self.window.token_ids) and self.offset > self.window.num_accepted:
            self.look_up()  # the rest of the draft is used up
        window, offset = self.window, self.offset
        if offset >= len(window.token_ids):
            # Nothing was drafted here, after a fully accepted draft: judged by the divergence at another such position.
            self.exact = False
            pool = self.after_accepted
            if pool and not self.accepts(pool[self.position % len(pool)]):
                return False
            self.move(None, stay=False)
            return True
        token = window.token_ids[offset]
        if token == OUT_OF_VOCABULARY or not self.accepts(window.divergence[offset]):
            return False
        same_text = offset < window.num_accepted or (offset == window.num_accepted and token == window.next_token)
        self.exact &= same_text
        self.move(token, stay=offset != window.num_accepted or not same_text)
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
        own = [record.methods[method] for record in records]
        baseline = [record.methods["ar"] for record in records]
        lengths: dict[int, list[float]] = {}
        for length, seconds in _passes([*own, *baseline], "target"):
            lengths.setdefault(length, []).append(seconds)
        most = max(lengths)
        known = {n: s for n, s in lengths.items() if n in (1, most) or len(s) >= FEW_PASSES}
        draft = [seconds for _, seconds in _passes(own, "draft")]
        plain = cls(
            draft_pass=median(draft) if draft else 0.0,
            verify={length: median(known[length]) for length in sorted(known)},
            overhead={0: _overhead(baseline), max(1, most - 1): _overhead(own)},
        )
        modelled = sum(plain.step_seconds(step.drafted) for generation in own for step in generation.steps)
        measured = sum(generation.decode_seconds for generation in own if generation.steps)
        return replace(plain, factor=measured / modelled if modelled else 1.0)

    def step_seconds(self, num_drafted: int) -> float:
        verify, overhead = (
            float(np.interp(place, list(points), list(points.values())))
            for place, points in ((num_drafted + 1, self.verify), (num_drafted, self.overhead))
        )
        return self.factor * (num_drafted * self.draft_pass + verify + overhead)


def _passes(generations: Sequence[Generation], model: str) -> list[Any]:
    return [each for generation in generations for each in getattr(generation.passes, model)]


def _overhead(generations: Sequence[Generation]) -> float:
    shares = [
        (g.decode_seconds - sum(s for _, s in [*g.passes.target, *g.passes.draft])) / len(g.steps)
        for g in generations if g.steps
    ]  # fmt: skip
    return median(shares) if shares else 0.0


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
    replays: Sequence[Sequence[ReplayedStep]]  # by record
    generations: Sequence[Generation]  # the same steps in the layout of records, with modelled seconds

    @property
    def num_steps(self) -> int:
        return sum(map(len, self.replays))

    @property
    def num_exact(self) -> int:
        return sum(step.exact for steps in self.replays for step in steps)

    def as_json(self) -> dict[str, object]:
        return {
            "threshold": self.threshold, "num_draft_tokens": self.num_draft_tokens, "estimate": True,
            "num_steps": self.num_steps, "num_exact_steps": self.num_exact,
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
            drafts = decoder.drafter.sampling or decoder.sampling
            generations.append(RecordedGeneration(
                recorded_steps(generation), len(generation.token_ids), min(room), decoder.model.eos_token_ids,
                spec.num_draft_tokens, decoder.sampling.greedy, drafts.greedy,
                spec.verification.options["divergence"] == INCLUSIVE, decoder.drafter.room(prompt_tokens),
            ))  # fmt: skip
        return cls(measured.records, generations, StepCosts.of(measured.records, method), measured.seed)

    def estimate(self, threshold: float, num_draft_tokens: int) -> SettingEstimate:
        replays = [replay(generation, threshold, num_draft_tokens) for generation in self.generations]
        own = [  # in the layout of records, with modelled seconds; one token is from the prefill
            Generation(
                token_ids=Ints(range(1 + sum(step.num_emitted for step in steps))), finish="eos", text="",
                steps=Steps([step[:-1] for step in steps]), positions={},
                passes=Passes(target=PassTimes(()), draft=PassTimes(())), ttft_seconds=0.0, draft_prefill_seconds=0.0,
                decode_seconds=sum(self.costs.step_seconds(step.num_drafted) for step in steps), score=None,
            )
            for steps in replays
        ]  # fmt: skip
        answers, baseline = list(map(Answer.of, own)), answers_of(self.records, BASELINE)
        prompts = Resampler.of(baseline, self.seed)
        metrics = {**acceptance(prompts, answers, {}), **speeds(prompts, answers, baseline, is_baseline=False)}
        return SettingEstimate(threshold, num_draft_tokens, metrics, replays, own)


@dataclass(frozen=True)
class EstimateCheck:
    """An estimate and the real run at its setting. `num_confirmed`: how many of the exact steps are in that run."""

    estimate: SettingEstimate
    run: TrialRun
    method: str
    errors: Mapping[str, Estimate]
    num_confirmed: int

    @cached_property
    def metrics(self) -> Metrics:
        return self.run.metrics(self.method)

    def as_json(self) -> dict[str, object]:
        return {
            "threshold": self.estimate.threshold, "num_draft_tokens": self.estimate.num_draft_tokens,
            "estimate": False, "folder": str(self.run.folder),
            "num_exact_steps": self.estimate.num_exact, "num_exact_steps_confirmed": self.num_confirmed,
            "metrics": shown_metrics(self.metrics, self.run.quality),
            "estimate_over_measured_minus_1": dumped(self.errors, self.errors),
        }  # fmt: skip


def check_estimate(recording: Recording, estimate: SettingEstimate, run: TrialRun, method: str) -> EstimateCheck:
    """Compares an estimate with a run on the same prompts. Its errors are estimated ÷ measured − 1 for τ and for the
    speed-up, with intervals over prompts.

    Each speed-up is over the AR of its own run, so that a slower machine during one run is not an error of the
    estimate.
    """
    by_key = {record.key: record.methods[method] for record in run.records}
    replayed, real = estimate.generations, [by_key[record.key] for record in recording.records]
    # AR's seconds per token while recording ÷ those in the real run, without an interval.
    busier = _ar_seconds(recording.records) / _ar_seconds(run.records)
    prompts = Resampler.of(list(recording.records), recording.seed)
    emitted, real_emitted = ([g.num_emitted for g in each] for each in (replayed, real))
    num_steps, real_num_steps = ([len(g.steps) for g in each] for each in (replayed, real))
    seconds, real_seconds = [g.decode_seconds / busier for g in replayed], [g.decode_seconds for g in real]
    ratios = {
        "mean_acceptance_length": prompts.ratio(emitted, num_steps, real_emitted, real_num_steps),
        "speedup": prompts.ratio(emitted, seconds, real_emitted, real_seconds),
    }
    errors = {
        name: Estimate(**{end: None if value is None else value - 1 for end, value in ratio})
        for name, ratio in ratios.items()
    }
    num_confirmed = sum(count_confirmed(steps, g) for steps, g in zip(estimate.replays, real, strict=True))
    return EstimateCheck(estimate, run, method, errors, num_confirmed)


def count_confirmed(steps: Sequence[ReplayedStep], generation: Generation) -> int:
    """Returns how many of the exact steps occurred in the real generation.

    All of them occur, unless a model's output depends on the length of its passes, or a draft on where its step began.
    """
    pairs = zip(steps, generation.steps, strict=False)
    return sum(step.exact and list(step[1:-1]) == list(real[1:]) for step, real in pairs)


def _ar_seconds(records: Sequence[Record]) -> float:
    generations = [record.methods["ar"] for record in records]
    num_tokens = sum(g.num_emitted for g in generations)
    return sum(float(g.decode_seconds) for g in generations) / num_tokens if num_tokens else 1.0
