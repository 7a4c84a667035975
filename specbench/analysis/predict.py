"""`specbench predict`: speeds and speed-ups on another machine, from recorded steps and the pass times of that machine.

Every recorded pass gets the time of a pass of its length there; nothing is averaged over steps, and no formula is used.
Shorter draft lengths: see `repartition`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from specbench.analysis.limit_report import MS, LimitReport
from specbench.analysis.repartition import RULES, PlacedStep, RecordedVerdicts, last_token_acceptance, query_lengths
from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.table import Table, numbers, words
from specbench.results.answers import speed_columns, with_own_passes
from specbench.results.bootstrap import Metric, Prompts
from specbench.results.captions import dtype_and_device, model_name
from specbench.results.row import Row
from specbench.results.runs import RecordedRun, RecordedRuns, read_input, rows_of_subsets, run_folder_of
from specbench.results.units import NULL, number, speed, with_interval
from specbench.running.records import EMITTED, Generation, Record, step_sum
from specbench.specs.method import MethodSpec

Seconds = Mapping[int, float]  # by the query length of a pass


@dataclass(frozen=True)
class PassTimes:
    """The seconds of passes on a machine by query length, interpolated linearly. `draft`: None if unknown. `outside`:
    seconds outside passes, per token of AR and per step of a method."""

    target: Seconds
    draft: Seconds | None
    outside: tuple[float, float] = (0.0, 0.0)

    def seconds(self, target: Sequence[int], draft: Sequence[int], outside: float) -> float:
        """Returns the seconds of passes of these query lengths, plus `outside`."""
        return _sum(self.target, target) + _sum(self.draft or {}, draft) + outside


def _sum(times: Seconds, lengths: Sequence[int]) -> float:
    """Returns the seconds of passes of these lengths. Beyond the known lengths, the nearest known one is used."""
    return float(np.interp(lengths, list(times), list(times.values())).sum()) if lengths else 0.0


@dataclass(frozen=True)
class Machine:
    """The pass times of the other machine as the user gives them, in milliseconds or as a report of `specbench
    limit`."""

    target_pass: float | None = None
    draft_pass: float | None = None
    verification_cost: float | None = None
    report: LimitReport | None = None

    def times(self, method: MethodSpec, longest: int) -> PassTimes:
        """Returns the times for a method. `longest`: the query length of its longest target pass. Raises ConfigError if
        the report lacks them."""
        own = None if self.draft_pass is None else {1: self.draft_pass / MS}
        if self.report is None:
            assert self.target_pass is not None
            single = self.target_pass / MS
            longer = {longest: single * (self.verification_cost or 1.0)} if longest > 1 else {}
            return PassTimes({1: single} | longer, own)
        found = self.report
        target, drafter = (
            {point.query_length: point.seconds.median for point in model.points if point.context == found.context}
            for model in (found.target, found.drafter)
        )
        if longest > max(target):
            raise ConfigError(
                f"--limit-report: method '{method.name}' verifies up to {longest} tokens, and the report has passes of "
                f"up to {max(target)}: give --target-pass and --draft-pass"
            )
        outside = (found.target.overhead.median, found.step.overhead.median)
        return PassTimes(target, own or (drafter if method.needs_drafter else None), outside)

    def caption(self) -> list[str]:
        """Returns the lines of a caption about the machine."""
        if self.report is None:
            cost = self.verification_cost or 1.0
            draft = "" if self.draft_pass is None else f", a draft pass {self.draft_pass:g} ms"
            return [
                f"there a target pass takes {self.target_pass:g} ms{draft}; the longest verifying pass costs "
                f"{cost:g} times as much",
                "no time is added between passes",
            ]
        environment, (target, drafter) = self.report.environment, (self.report.target.model, self.report.drafter.model)
        names = " and ".join(model_name(model.name, model.revision) for model in (target, drafter))
        return [
            f"there: {target.dtype} on {environment['device']}, {environment['engine']}, passes of {names} after "
            f"{self.report.context} tokens",
            *([] if self.draft_pass is None else [f"a draft pass takes {self.draft_pass:g} ms there"]),
        ]


def read_limit(path: Path) -> LimitReport:
    """Returns a report that `specbench limit --output` wrote. Raises ConfigError for any other file."""
    remedy = "give a file that `specbench limit --output FILE` wrote"
    content = bounded.read_json(path, remedy)
    try:
        return LimitReport.model_validate(content)
    except ValidationError as error:
        problem: Any = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise ConfigError(f"--limit-report {path}: {key or 'content'}: {problem['msg']}: {remedy}") from error


class Prediction(BaseModel):
    """A method at a draft length on the other machine. `is_recorded`: whether the run had this draft length.
    `known_share`: the share of the needed verdicts that the records have. `measured`: the speed-up of the run."""

    run: str
    task: str
    subset: str
    method: str
    num_draft_tokens: int
    is_recorded: bool
    known_share: float
    mean_acceptance_length: Metric
    tokens_per_second: Metric
    speedup: Metric
    measured: Metric


class PredictReport(BaseModel):
    """Predictions for the other machine. `machine`: its pass times in words. `only_own`: by method, the reason why no
    shorter draft length is predicted."""

    machine: list[str]
    runs: dict[str, str]  # run → where it was measured
    only_own: dict[str, str]
    predictions: list[Prediction]


def predict(runs: Sequence[str], subsets: Sequence[str], machine: Machine) -> PredictReport:
    """Predicts the rows of runs, each given as RUN, RUN:METHOD or FILE:NUMBER of a leaderboard. Raises ConfigError for
    rows without records or recorded steps, and for missing pass times."""
    opened = RecordedRuns()
    report = PredictReport(machine=machine.caption(), runs={}, only_own={}, predictions=[])
    for text in dict.fromkeys(runs):
        given = read_input(text)
        for row in rows_of_subsets(given.rows, subsets):
            place = run_folder_of(row, given.file)
            if place is None or not place.is_dir():
                raise ConfigError(f"'{text}': {row.place} has no records here: give the folder of its run")
            recorded = RecordedRow.of(opened.at(place), row, machine)
            report.runs[text] = dtype_and_device(row)
            report.predictions += recorded.predictions(text)
            if (reason := why_only_own(recorded.method)) is not None:
                report.only_own[recorded.method.name] = reason
    return report


def why_only_own(method: MethodSpec) -> str | None:
    """Returns the reason why a method's records do not give its steps at shorter draft lengths; None if they do."""
    if method.decodes_with != "target" or not method.num_draft_tokens:
        return "a model decodes alone"
    if method.routes is not None:
        return "each of its routes has a draft length of its own"
    if method.drafter.type != "model":
        return f"the drafts of {method.drafter.type} depend on where a step begins"
    if method.bridge.type in ("union", "intersection"):
        return f"bridge {method.bridge.type}: the drafter's own tokens for the text depend on where steps end"
    if method.bridge.type != "shared":
        return f"bridge {method.bridge.type}: its draft tokens are not the target's"
    if method.verification.rule not in RULES:
        own = "; `specbench sweep` estimates them" if method.verification.rule == "fuzzy" else ""
        return f"with rule {method.verification.rule} the text or its acceptance depends on the draft length{own}"
    return None


@dataclass(frozen=True)
class Replayed:
    """The generations of a row at a draft length on the other machine: the steps and seconds of each."""

    num_steps: Sequence[float]
    seconds: Sequence[float]

    def blend(self, other: "Replayed", share: float) -> "Replayed":
        """Returns the weighted means of these values and those of `other`, which have the weight `share`."""
        pairs = ((self.num_steps, other.num_steps), (self.seconds, other.seconds))
        return Replayed(*([(1 - share) * a + share * b for a, b in zip(*pair, strict=True)] for pair in pairs))


@dataclass(frozen=True)
class RecordedRow:
    """A row with its records, and the pass times of the other machine. `own`: the generations of its method, with the
    passes of each model."""

    row: Row
    method: MethodSpec
    records: Sequence[Record]
    own: Sequence[Generation]
    times: PassTimes
    max_new_tokens: Mapping[str, int]  # by subset

    @classmethod
    def of(cls, run: RecordedRun, row: Row, machine: Machine) -> "RecordedRow":
        """Raises ConfigError for an external decoder, and if pass times of the method are missing."""
        method, records, task = run.method_spec_of(row), run.records_of_row(row), run.task_of(row)
        if method.decoder is not None:
            raise ConfigError(f"{run.path}: method '{method.name}' is an external decoder, whose passes are unknown")
        own = [with_own_passes(record["methods"][method.name], method.decodes_with) for record in records]
        longest = max((length for g in own for length, _ in g["passes"]["target"]), default=1)
        times = machine.times(method, longest)
        if times.draft is None and any(g["passes"]["draft"] for g in own):
            drafter = method.drafter.type
            problem = f"the report has no draft passes of {drafter}" if machine.report else "it makes draft passes"
            raise ConfigError(f"method '{method.name}': {problem}: give --draft-pass MS (0 if they cost nothing)")
        tokens = {name: task.subset(name).generation.max_new_tokens for name in {r["subset"] for r in records}}
        return cls(row, method, records, own, times, tokens)

    def predictions(self, run: str) -> list[Prediction]:
        """Returns a prediction for each draft length that the records allow, the recorded one last."""
        length = self.method.most_draft_tokens
        shorter = range(1, length) if why_only_own(self.method) is None else ()
        return [
            *(self._at(number, run) for number in shorter),
            self._prediction(run, length, 1.0, *[self._recorded()] * 3),
        ]

    def _recorded(self) -> Replayed:
        """Returns the recorded passes at the times of the other machine."""
        return Replayed(
            [len(g["steps"]) for g in self.own], [self._seconds(g, self.times.outside[1]) for g in self.own]
        )

    def _seconds(self, generation: Generation, outside: float) -> float:
        target, draft = ([length for length, _ in generation["passes"][name]] for name in ("target", "draft"))
        return self.times.seconds(target, draft, outside * len(generation["steps"]))

    def _at(self, num_draft_tokens: int, run: str) -> Prediction:
        """Returns the prediction for a shorter draft length. If verdicts are missing, its values lie between those with
        no and with full acceptance at these positions, and its interval covers both."""
        verdicts = [
            RecordedVerdicts.of(g, self.method.num_draft_tokens, self.max_new_tokens[record["subset"]])
            for g, record in zip(self.own, self.records, strict=True)
        ]  # fmt: skip
        made = {unknown: [each.steps(num_draft_tokens, unknown) for each in verdicts] for unknown in (False, True)}
        slow, fast = (self._replayed([steps for steps, _ in made[unknown]]) for unknown in (False, True))
        num_needed = sum(step.num_judged for steps, _ in made[True] for step in steps)
        num_missing = sum(missing for _, missing in made[True])
        share = last_token_acceptance(self.own, self.method.num_draft_tokens)
        known = 1 - num_missing / num_needed if num_needed else 1.0
        return self._prediction(run, num_draft_tokens, known, slow, slow.blend(fast, share), fast)

    def _replayed(self, generations: Sequence[Sequence[PlacedStep]]) -> Replayed:
        outside = self.times.outside[1]
        return Replayed(
            [len(steps) for steps in generations],
            [self.times.seconds(*query_lengths(steps), outside * len(steps)) for steps in generations],
        )

    def _prediction(
        self, run: str, num_draft_tokens: int, known: float, slow: Replayed, likely: Replayed, fast: Replayed
    ) -> Prediction:
        prompts = Prompts.of(list(self.records), self.row.seed)
        baseline = [record["methods"]["ar"] for record in self.records]
        alone = [_timed(g, self._seconds(g, self.times.outside[0])) for g in baseline]
        emitted = [step_sum(g, EMITTED) for g in self.own]

        def reach(metric_of: Callable[[Replayed], Metric]) -> Metric:
            """Returns the likely value; its interval covers the intervals of the slow and of the fast steps."""
            low, value, high = map(metric_of, (slow, likely, fast))
            is_known = low.low is not None and high.high is not None
            return Metric(value=value.value, low=low.low if is_known else None, high=high.high if is_known else None)

        def columns(replayed: Replayed) -> list[list[float]]:
            return speed_columns([list(map(_timed, self.own, replayed.seconds)), alone])

        return Prediction(
            run=run, task=self.row.task_name, subset=self.row.subset, method=self.method.name,
            num_draft_tokens=num_draft_tokens, known_share=known,
            is_recorded=num_draft_tokens == self.method.most_draft_tokens,
            mean_acceptance_length=reach(lambda replayed: prompts.ratio(emitted, replayed.num_steps)),
            tokens_per_second=reach(lambda replayed: prompts.ratio(*columns(replayed)[:2])),
            speedup=reach(lambda replayed: prompts.ratio(*columns(replayed))),
            measured=self.row.metric("speedup"),
        )  # fmt: skip


def _timed(generation: Generation, seconds: float) -> Generation:
    return {**generation, "decode_seconds": seconds}


def table(report: PredictReport) -> Table:
    """Returns the predictions, a line for each row and draft length; several runs have headings."""
    rows: list[Sequence[str]] = []
    for run in report.runs:
        rows += [[run]] if len(report.runs) > 1 else []
        rows += [_cells(each) for each in report.predictions if each.run == run]
    caption = [
        *report.machine,
        *(f"here{f', {run}' if len(report.runs) > 1 else ''}: {where}" for run, where in report.runs.items()),
        "known: share of the verdicts on draft tokens that the records hold",
        "intervals are over prompts; if verdicts are missing, they cover all cases from none to all accepted",
        *(f"{name}: no shorter draft lengths: {reason}" for name, reason in report.only_own.items()),
    ]
    heads = numbers("γ", "τ", "tok/s", "speed-up\nthere [95 %]", "known", "measured\nhere [95 %]")
    columns = (*words("task", "method", folds=False), *heads)
    return Table("predicted from recorded steps", columns, rows, caption, num_keys=2)


def _cells(found: Prediction) -> list[str]:
    return [
        f"{found.task}/{found.subset}", found.method, str(found.num_draft_tokens),
        number(found.mean_acceptance_length, 2), speed(found.tokens_per_second), with_interval(found.speedup),
        f"{found.known_share:.0%}", with_interval(found.measured) if found.is_recorded else NULL,
    ]  # fmt: skip
