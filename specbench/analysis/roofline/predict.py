"""`specbench predict`: speeds and speed-ups on another machine, from recorded steps and the pass times of that machine.

Every recorded pass gets the time of a pass of its length there; nothing is averaged over steps, and no formula is used.

A recorded generation is also divided into the steps of a shorter draft length. Whether a draft token is accepted
depends only on its position in the text: the drafter's token there depends on nothing but the text before it. A shorter
draft length changes only where steps end, so the recorded verdicts give its steps. One kind of position has no verdict:
after a fully accepted draft the target's own token follows, and nothing was drafted there.

A run that recorded the drafter's confidences also gives the steps of draft lengths that vary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from pydantic import BaseModel

from specbench.analysis.draft_lengths import (
    RecordedDrafts,
    RecordedVerdicts,
    candidate_lengths,
    has_same_texts,
    is_recording,
    length_name,
    length_of,
    with_length,
)
from specbench.core.errors import ConfigError
from specbench.core.table import Table, number_columns, text_columns
from specbench.records.columns import PassTimes, StepCounts
from specbench.records.records import Generation, Record
from specbench.report.captions import dtype_and_device
from specbench.results.answers import Answer, speed_columns
from specbench.results.draft_lengths import Costs, costs_of_widths
from specbench.results.metric_format import NULL, number, speed, with_interval
from specbench.results.row import Row
from specbench.results.runs import RecordedRun, RecordedRuns, read_input, rows_of_subsets, run_folder_of
from specbench.specs.method import MethodSpec
from specbench.statistics.bootstrap import Array, Estimate, Resampler


def query_lengths(steps: Sequence[StepCounts], num_passes: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
    """Returns the query lengths of the target's and the draft model's passes. After a fully accepted draft, the next
    draft begins with a pass over two tokens, because the draft model has not read the last draft token. `num_passes`:
    draft passes of each step, if they may be one more than its draft tokens."""
    target, draft, first = [], [], 1
    for place, step in enumerate(steps):
        target.append(step.drafted + 1)
        number = step.drafted if num_passes is None else num_passes[place]
        if number:
            draft += [first, *[1] * (number - 1)]
            first = 2 if step.accepted == number else 1
    return target, draft


def last_token_acceptance(generations: Sequence[Generation], num_draft_tokens: int) -> float:
    """Returns the acceptance rate of the last token of full-length drafts, an estimate for the token after it."""
    full = [step for generation in generations for step in generation.steps if step.verified == num_draft_tokens]
    return sum(step.accepted == num_draft_tokens for step in full) / len(full) if full else 0.5


def with_own_passes(generation: Generation, decodes_with: str) -> Generation:
    """Returns the generation with each pass listed under the model that ran it: the decode loop lists all passes of a
    model that decodes alone under the target."""
    if (generation.decoded_by if decodes_with == "random" else decodes_with) == "target":
        return generation
    passes = replace(generation.passes, target=PassTimes(()), draft=generation.passes.target)
    return replace(generation, passes=passes, decoded_by="drafter")


@dataclass(frozen=True)
class Machine:
    """The pass times of the other machine in milliseconds. `draft_pass`: None if unknown. `verification_cost`: of a
    method's longest target pass, in passes over one token; those between are interpolated. `costs`: of target passes by
    their number of tokens, where it is known of more of them."""

    target_pass: float
    draft_pass: float | None = None
    verification_cost: float = 1.0
    costs: Costs | None = None

    @classmethod
    def of_answers(cls, own: Sequence[Answer], baseline: Sequence[Answer]) -> "Machine":
        """Returns the machine that gave these answers, with AR's mean pass as 1 ms and the mean draft pass."""
        drafts, plain = (
            np.concatenate([getattr(answer, name) for answer in side])
            for side, name in ((own, "draft_passes"), (baseline, "token_passes"))
        )
        draft_pass = float(drafts.mean() / plain.mean()) if len(drafts) and len(plain) else 0.0
        return cls(1.0, draft_pass, costs=costs_of_widths(own, baseline))

    def verify_costs(self, lengths: Sequence[int], longest: int) -> Array:
        """Returns the costs of target passes of these query lengths, in passes over one token. `longest`: of the
        method's longest target pass."""
        if self.costs is not None:
            return self.costs(np.asarray(lengths))
        return np.interp(lengths, [1, max(2, longest)], [1.0, self.verification_cost])

    def seconds(self, target: Sequence[int], draft: Sequence[int], longest: int) -> float:
        """Returns the seconds of passes of these query lengths."""
        costs = self.verify_costs(target, longest)
        return (self.target_pass * float(costs.sum()) + (self.draft_pass or 0.0) * len(draft)) / 1000

    def caption(self) -> list[str]:
        draft = "" if self.draft_pass is None else f", a draft pass {self.draft_pass:g} ms, a look-up nothing"
        return [
            f"there a target pass takes {self.target_pass:g} ms{draft}; the longest verifying pass costs "
            f"{self.verification_cost:g} times as much",
            "no time is added between passes; these times are used for every method: for heads and trees, name "
            "RUN:METHOD and give their own",
        ]


class Prediction(BaseModel):
    """A method at a draft length on the other machine. `draft_length`: one that varies, in words. `is_recorded`:
    whether the run had this draft length. `known_share`: the share of the needed verdicts that the records have.
    `measured`: the speed-up of the run."""

    run: str
    task: str
    subset: str
    method: str
    num_draft_tokens: int
    draft_length: str | None = None
    is_recorded: bool
    known_share: float
    mean_acceptance_length: Estimate
    tokens_per_second: Estimate
    speedup: Estimate
    measured: Estimate


class PredictReport(BaseModel):
    """Predictions for the other machine. `machine`: its pass times in words. `only_own`: the methods without shorter
    draft lengths."""

    machine: list[str]
    runs: dict[str, str]  # run → where it was measured
    only_own: list[str]
    predictions: list[Prediction]


def predict(runs: Sequence[str], subsets: Sequence[str], machine: Machine) -> PredictReport:
    """Predicts the rows of runs, each given as RUN, RUN:METHOD or FILE:NUMBER of a leaderboard. Raises ConfigError for
    rows without records or recorded steps, and for missing pass times."""
    opened = RecordedRuns()
    report = PredictReport(machine=machine.caption(), runs={}, only_own=[], predictions=[])
    for text in dict.fromkeys(runs):
        given = read_input(text)
        for row in rows_of_subsets(given.rows, subsets):
            place = run_folder_of(row, given.file)
            if place is None or not place.is_dir():
                raise ConfigError(f"'{text}': {row.place} has no records here: give the folder of its run")
            recorded = RecordedRow.of(opened.at(place), row, machine)
            report.runs[text] = dtype_and_device(row)
            report.predictions += recorded.predictions(text)
            if not has_shorter_drafts(recorded.method) and recorded.method.name not in report.only_own:
                report.only_own.append(recorded.method.name)
    return report


def has_shorter_drafts(method: MethodSpec) -> bool:
    """Returns whether a method's records give its steps at shorter draft lengths: its drafts depend only on the text
    before them, and neither the text nor its acceptance depends on where steps begin and end."""
    return has_same_texts(method) and (method.draft_length is None or is_recording(method))


Replayed = Array  # the steps and the seconds of each generation on the other machine, [2, num_records]


@dataclass(frozen=True)
class RecordedRow:
    """A row with its records. `own`: the generations of its method, with the passes of each model; the records list the
    time of a look-up as a draft pass, which it is not. `longest`: the query length of its longest target pass."""

    row: Row
    method: MethodSpec
    records: Sequence[Record]
    own: Sequence[Generation]
    longest: int
    machine: Machine
    max_new_tokens: Mapping[str, int]  # by subset

    @classmethod
    def of(cls, run: RecordedRun, row: Row, machine: Machine) -> "RecordedRow":
        """Raises ConfigError for an external decoder, and if the time of the method's draft passes is missing."""
        method = run.method_spec_of(row)
        records = run.records_of_row(row)
        task = run.task_of(row)
        if method.decoder is not None:
            raise ConfigError(f"{run.path}: method '{method.name}' is an external decoder, whose passes are unknown")
        looks_up: dict[str | None, bool] = {None: method.drafter.features.looks_up}
        looks_up |= {name: method.route(name).drafter.features.looks_up for name in method.routes or ()}
        generations = [with_own_passes(record.methods[method.name], method.decodes_with) for record in records]
        generations = [
            replace(g, passes=replace(g.passes, draft=PassTimes(()))) if looks_up[g.route] else g for g in generations
        ]
        if machine.draft_pass is None and any(g.passes.draft for g in generations):
            raise ConfigError(
                f"method '{method.name}': it makes draft passes: give --draft-pass MS (0 if they cost nothing)"
            )
        longest = max((length for g in generations for length in g.passes.target.query_lengths), default=1)
        tokens = {name: task.subset(name).generation.max_new_tokens for name in {r.subset for r in records}}
        return cls(row, method, records, generations, longest, machine, tokens)

    def predictions(self, run: str) -> list[Prediction]:
        length = self.method.most_draft_tokens
        shorter_drafts = []
        lengths = range(1, length) if has_shorter_drafts(self.method) else ()
        verdicts = [
            RecordedVerdicts.of(g, self.method.num_draft_tokens, self.max_new_tokens[record.subset])
            for g, record in zip(self.own, self.records, strict=True)
        ] if lengths else []  # fmt: skip
        for shorter in lengths:
            # If verdicts are missing, the values lie between those with no and with full acceptance at these positions,
            # and the interval covers both.
            both = [[each.steps(shorter, unknown) for each in verdicts] for unknown in (False, True)]
            slow, fast = (self._replayed([query_lengths(steps) for steps, _ in each]) for each in both)
            num_needed = sum(step.verified for steps, _ in both[True] for step in steps)
            num_missing = sum(missing for _, missing in both[True])
            known = 1 - num_missing / num_needed if num_needed else 1.0
            shorter_drafts.append(self._between(run, shorter, known, slow, fast))
        if is_recording(self.method):
            shorter_drafts += self._other_lengths(run)
        recorded = np.array([[len(g.steps), self._seconds(g)] for g in self.own]).T
        return [*shorter_drafts, self._prediction(run, length, 1.0, recorded, recorded, recorded)]

    def _other_lengths(self, run: str) -> list[Prediction]:
        """Returns the predictions of draft lengths that vary."""
        machine, most = self.machine, self.method.num_draft_tokens
        drafts = [
            RecordedDrafts.of(g, most, self.max_new_tokens[record.subset])
            for g, record in zip(self.own, self.records, strict=True)
        ]
        draft_cost = (machine.draft_pass or 0.0) / machine.target_pass
        verify_costs = machine.verify_costs(range(1, most + 2), self.longest)
        found = []
        for option in candidate_lengths(draft_cost, verify_costs.tolist()):
            length = length_of(with_length(self.method, option, most))
            both = [[each.replay(length, most, unknown) for each in drafts] for unknown in (False, True)]
            slow, fast = (self._replayed([query_lengths(r.steps, r.num_passes) for r in each]) for each in both)
            known = 1 - sum(r.num_missing for r in both[True]) / max(1, sum(r.num_verdicts for r in both[True]))
            prediction = self._between(run, most, known, slow, fast)
            found.append(prediction.model_copy(update={"draft_length": length_name(option), "is_recorded": False}))
        return found

    def _replayed(self, passes: Sequence[tuple[list[int], list[int]]]) -> Replayed:
        rows = [[len(target), self.machine.seconds(target, draft, self.longest)] for target, draft in passes]
        return np.array(rows).T

    def _between(self, run: str, num_draft_tokens: int, known: float, slow: Replayed, fast: Replayed) -> Prediction:
        share = last_token_acceptance(self.own, self.method.num_draft_tokens)
        return self._prediction(run, num_draft_tokens, known, slow, (1 - share) * slow + share * fast, fast)

    def _seconds(self, generation: Generation) -> float:
        passes = generation.passes
        return self.machine.seconds(passes.target.query_lengths, passes.draft.query_lengths, self.longest)

    def _prediction(
        self, run: str, num_draft_tokens: int, known: float, slow: Replayed, likely: Replayed, fast: Replayed
    ) -> Prediction:
        prompts = Resampler.of(list(self.records), self.row.seed)
        alone = [replace(g, decode_seconds=self._seconds(g)) for g in (r.methods["ar"] for r in self.records)]
        emitted = [g.num_emitted for g in self.own]

        def reach(metric_of: Callable[[Replayed], Estimate]) -> Estimate:
            low, value, high = map(metric_of, (slow, likely, fast))
            is_known = low.low is not None and high.high is not None
            return Estimate(value=value.value, low=low.low if is_known else None, high=high.high if is_known else None)

        def columns(replayed: Replayed) -> list[list[float]]:
            timed = zip(self.own, replayed[1], strict=True)
            return speed_columns([[replace(g, decode_seconds=float(seconds)) for g, seconds in timed], alone])

        return Prediction(
            run=run, task=self.row.task_name, subset=self.row.subset, method=self.method.name,
            num_draft_tokens=num_draft_tokens, known_share=known,
            is_recorded=num_draft_tokens == self.method.most_draft_tokens,
            mean_acceptance_length=reach(lambda replayed: prompts.ratio(emitted, replayed[0])),
            tokens_per_second=reach(lambda replayed: prompts.ratio(*columns(replayed)[:2])),
            speedup=reach(lambda replayed: prompts.ratio(*columns(replayed))),
            measured=self.row.metric("speedup"),
        )  # fmt: skip


def length_of_prediction(each: Prediction) -> str:
    most = str(each.num_draft_tokens)
    return most if each.draft_length is None else f"{each.draft_length}, ≤ {most}"


def table(report: PredictReport) -> Table:
    rows: list[Sequence[str]] = []
    for run in report.runs:
        rows += [[run]] if len(report.runs) > 1 else []
        rows += [
            [f"{each.task}/{each.subset}", each.method, length_of_prediction(each),
             number(each.mean_acceptance_length, 2), speed(each.tokens_per_second), with_interval(each.speedup),
             f"{each.known_share:.0%}", with_interval(each.measured) if each.is_recorded else NULL]
            for each in report.predictions if each.run == run
        ]  # fmt: skip
    caption = [
        *report.machine,
        *(f"here{f', {run}' if len(report.runs) > 1 else ''}: {where}" for run, where in report.runs.items()),
        "known: share of the verdicts on draft tokens that the records hold",
        "intervals are over prompts; if verdicts are missing, they cover all cases from none to all accepted",
        *([f"no shorter draft lengths of {', '.join(report.only_own)}: their drafts, or the text, depend on the draft "
           "length"] if report.only_own else []),
    ]  # fmt: skip
    heads = number_columns("γ", "τ", "tok/s", "speed-up\nthere [95 %]", "known", "measured\nhere [95 %]")
    columns = (*text_columns("task", "method", folds=False), *heads)
    return Table("predicted from recorded steps", columns, rows, caption, num_keys=2)
