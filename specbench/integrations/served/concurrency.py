"""Measures servers under load: AR and every method answer the same windows of requests at each level."""

import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter, sleep, time

from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.core.progress import ProgressBar, doing
from specbench.core.values import json_digest
from specbench.decoding.decoder import stream_seed
from specbench.decoding.loop import StopRules
from specbench.integrations.served.decoder import ServedDecoder
from specbench.models.batch_width import BaselineAnswer, near_tie_tolerance
from specbench.models.near_ties import find_differences
from specbench.models.scoring import ScoringModel
from specbench.records.generation import WarmUpRecord
from specbench.records.store import RecordStore
from specbench.records.windows import (
    LoadAnswer,
    LoadKind,
    LoadWindow,
    WindowKey,
    window_file,
)
from specbench.running.events import Events
from specbench.running.plan import Plan, SubsetRun, renderer_within
from specbench.running.prompts import truncate_examples
from specbench.running.warm_up import MAX_BLOCKS_CPU, MAX_SHARE, WarmUp, until_steady, warm_up_ids
from specbench.specs.run import BASELINE, LoadSpec
from specbench.tasks.examples import Example

BringUp = Callable[[str], bool]  # see `ServedModels.bring_up`
WARM_UP_TOKENS = 64  # length of prompt and answer


@dataclass(frozen=True)
class LoadRequest:
    """A prompt of a window. `at`: the earliest time at which it is sent, in seconds after the window begins."""

    example: int
    ids: list[int]
    stop: StopRules
    seed: int
    at: float = 0.0


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a subset that windows send. `context`: the tokens to which they were cut; None: they are as long
    as the servers can read."""

    subset_run: SubsetRun
    context: int | None
    examples: Sequence[Example]


def prompt_sets(plan: Plan, load: LoadSpec, events: Events) -> list[PromptSet]:
    """Returns the prompts of every subset at every context of a load, and says which contexts have none. Raises
    ConfigError if no context has any."""
    found, problems = list[PromptSet](), list[str]()
    for run in plan.subset_runs:
        if not load.context:
            found.append(PromptSet(run, None, run.data.examples))
            continue
        with doing(f"{run.task.name}/{run.subset}: cutting prompts to {counted(len(load.context), 'context')}"):
            for context in sorted(set(load.context)):
                try:
                    found.append(PromptSet(run, context, examples_of_context(run, context)))
                except ConfigError as error:
                    problems.append(f"load.context {context}: {run.task.name}/{run.subset}: {error}")
    for line in problems if found else ():
        events.say(f"{line}: not measured")
    if problems and not found:
        raise ConfigError(problems[0])
    return found


def examples_of_context(run: SubsetRun, context: int) -> Sequence[Example]:
    """Returns the examples of a subset with prompts of `context` tokens of the target, cut as the task key
    max_prompt_tokens cuts them; prompts that are shorter are left out. Raises ConfigError if there are none."""
    target, most = run.models.target, run.task.max_prompt_tokens
    if run.task.truncation is None:
        raise ConfigError("prompts of this task are not cut: take a task of long documents, such as scrolls")
    if most is not None and context > most:
        raise ConfigError(f"max_prompt_tokens = {most} is less: remove one of them")
    renderer = renderer_within(run, context)
    lengths = [len(renderer.render(target, (example.prompt,)).packed_ids) for example in run.uncut]
    whole = tuple(each for each, length in zip(run.uncut, lengths, strict=True) if length >= context)
    if not whole:
        raise ConfigError(f"no prompt has so many tokens: give contexts of at most {max(lengths)}")
    return truncate_examples(replace(run.data, examples=whole), target, renderer).examples


@dataclass(frozen=True)
class PlannedWindow:
    """One window of a subset: the servers answer the same requests one after the other."""

    prompts: PromptSet
    kind: LoadKind
    level: float
    number: int
    num_requests: int

    @property
    def subset_run(self) -> SubsetRun:
        return self.prompts.subset_run

    @property
    def load(self) -> "Load":
        return self.subset_run, self.kind, self.level, self.prompts.context

    @property
    def key(self) -> WindowKey:
        run, context = self.subset_run, self.prompts.context
        return run.task.name, run.subset, self.kind, self.level, self.number, self.num_requests, context

    @property
    def place(self) -> str:
        """Level and context, as messages name them."""
        context = self.prompts.context
        return f"{self.kind} {self.level:g}" + ("" if context is None else f", {context} tokens")

    @property
    def decoders(self) -> list[ServedDecoder]:
        """The decoders of the servers; the first is `ar`."""
        return [each for each in self.subset_run.decoders if isinstance(each, ServedDecoder)]

    @property
    def num_in_flight(self) -> int:
        return int(self.level) if self.kind == "concurrency" else self.num_requests

    def requests(self, decoder: ServedDecoder, seed: int) -> list[LoadRequest]:
        """Returns the next prompts of the subset, which starts again after its last one. All servers get the same
        prompts at the same times."""
        run, examples = self.subset_run, self.prompts.examples
        planned = []
        at = 0.0
        names = ("task", "subset", "kind", "level", "window", "requests", "context")
        own = {name: value for name, value in zip(names, self.key, strict=True) if value is not None}
        gaps = random.Random(json_digest(own))
        stop = decoder.stop_rules(run.task.generation, run.context_limit)
        for number in range(self.num_requests):
            example = examples[(self.number * self.num_requests + number) % len(examples)]
            place = run.task.name, run.subset, example.index, self.number, decoder.method.name
            ids = run.renderer.render(decoder.model, (example.prompt,)).ids
            planned.append(LoadRequest(example.index, ids, stop, stream_seed(seed, *place), at))
            at += gaps.expovariate(self.level) if self.kind == "rate" else 0.0
        return planned


Load = tuple[SubsetRun, LoadKind, float, int | None]  # what a server was warmed up for: the last one is the context


@dataclass
class LoadScheduler:
    """Measures the windows of a run's subsets at every level of load, with each set of prompts.

    `in_rotation`: whether only one server is up at a time. `bring_up`: makes sure that a server is up. `scoring`: the
    target, to detect near-ties; None if it gives no log-probabilities.
    """

    load: LoadSpec
    prompts: Sequence[PromptSet]
    in_rotation: bool
    bring_up: BringUp
    scoring: ScoringModel | None
    _warm_for: dict[str, Load] = field(default_factory=dict)  # load of each last warm-up
    _tolerances: dict[tuple[int, str], float] = field(default_factory=dict)  # of near-ties, by subset and server

    def measure(self, plan: Plan, recorded: RecordStore, events: Events) -> None:
        """Measures the windows that the run's folder does not hold yet."""
        load = self.load
        spec = plan.spec
        file = window_file(plan.folder.path)
        windows = [
            PlannedWindow(own, kind, level, number, math.ceil(load.requests * max(1.0, level)))
            for own in self.prompts for kind, level in load.levels for number in range(load.windows)
        ]  # fmt: skip
        num_warm_ups = len(windows) * len(spec.methods) // (1 if self.in_rotation else load.windows)
        seconds = None if spec.warm_up is None else spec.warm_up / max(1, num_warm_ups)
        done = {window.key for window in file.read()}
        with ProgressBar(events.console, "load", len(windows)) as progress:
            for number, window in enumerate(windows):
                if window.key not in done:
                    file.append(self._measure_window(window, spec.seed, seconds))
                progress.update(f"{window.place} · window {window.number + 1}", number + 1)

    def _measure_window(self, window: PlannedWindow, seed: int, seconds: float | None) -> LoadWindow:
        """`seconds`: the time for the warm-up of one server, by default a share of the expected time."""
        load = window.load
        answers_by_method: dict[str, list[LoadAnswer]] = {}
        warm_ups: dict[str, WarmUpRecord] = {}
        # 1. The order is reversed from one window to the next, so that a drift of the machine affects all alike.
        order = window.decoders if window.number % 2 == 0 else window.decoders[::-1]
        for decoder in order:
            name = decoder.method.name
            # 2. A server is warmed up if it was just started or last had another load; all at once, if all are up.
            if self.bring_up(name) or self._warm_for.get(name) != load:
                cold = [each for each in order if self._warm_for.get(each.method.name) != load]
                cold = [decoder] if self.in_rotation else cold
                warm_ups |= warm_up(window, cold, 1 if self.in_rotation else self.load.windows, seconds)
                self._warm_for |= {each.method.name: load for each in cold}
            # 3. Its own requests, and those of its last warm-up, must not meet those of others.
            for server in (decoder.server, *decoder.others):
                server.wait_until_idle()
            with doing(f"{name} answers {window.num_requests} requests at {window.place}"):
                answers_by_method[name] = answers(decoder, window.requests(decoder, seed), window.num_in_flight)
        measured_at = round(time(), 3)
        methods = {decoder.method.name: answers_by_method[decoder.method.name] for decoder in window.decoders}
        if self.scoring is not None and window.subset_run.task.generation.temperature == 0:
            self._mark_near_ties(window, seed, methods, self.scoring)
        return LoadWindow(*window.key[:6], measured_at, methods, warm_ups, window.prompts.context)

    def _mark_near_ties(
        self, window: PlannedWindow, seed: int, methods: dict[str, list[LoadAnswer]], scoring: ScoringModel
    ) -> None:
        """Sets `near_tie` of each answer that differs from AR's: whether the first difference is a near-tie of the
        target. The tolerance is measured on the first answers that differ."""
        requests = window.requests(window.decoders[0], seed)
        for decoder in window.decoders[1:]:
            name = decoder.method.name
            plain = methods[BASELINE]
            others = [
                (own, BaselineAnswer("", request.ids, answer.token_ids))
                for request, own, answer in zip(requests, methods[name], plain, strict=True)
                if own.token_ids != answer.token_ids
            ]
            place = id(window.subset_run), name
            if others and place not in self._tolerances:
                expected = [answer for _, answer in others]
                tolerance = near_tie_tolerance(scoring, expected, decoder.method.most_draft_tokens + 1)
                self._tolerances[place] = tolerance
            for own, answer in others:
                (difference,) = find_differences(scoring, [answer], [own.token_ids], self._tolerances[place])
                own.near_tie = difference.is_explained


def answers(
    decoder: ServedDecoder, requests: Sequence[LoadRequest], num_in_flight: int, *, check: bool = True
) -> list[LoadAnswer]:
    """Sends requests, at most `num_in_flight` at once, and returns the answers. Raises ConfigError for the first
    request that fails, and sends no others then. `check`: whether a cached prompt is an error."""
    start = perf_counter()

    def ask(request: LoadRequest) -> LoadAnswer:
        sleep(max(0.0, start + request.at - perf_counter()))
        sent = perf_counter() - start
        answer = decoder.generate_under_load(request.ids, request.stop, request.seed, check=check)
        return LoadAnswer(request.example, round(sent, 6), **answer)

    executor = ThreadPoolExecutor(num_in_flight)
    try:
        return list(executor.map(ask, requests))
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def warm_up(
    window: PlannedWindow, decoders: Sequence[ServedDecoder], num_windows: int, seconds: float | None
) -> dict[str, WarmUpRecord]:
    """Sends requests with a text that is not measured, as many at once as at this level, to one server after the other
    in rounds, until the speed of each is steady or the time is spent. Returns the warm-ups by server.

    `seconds`: the time for each server, by default a share of the expected time of the next `num_windows` windows.
    """
    run = window.subset_run
    length = min(WARM_UP_TOKENS, run.context_limit or WARM_UP_TOKENS)
    stop = StopRules(length // 2, context_limit=run.context_limit)
    length = max(length, window.prompts.context or 0)
    planned = num_windows * window.num_requests * run.task.generation.max_new_tokens
    histories: list[list[tuple[float, float]]] = [[] for _ in decoders]

    def left() -> float:
        spent = sum(took for blocks in histories for _, took in blocks)
        per_token = sum(min(each for each, _ in blocks) for blocks in histories)
        return (MAX_SHARE * planned * per_token if seconds is None else seconds * len(decoders)) - spent

    def decode(decoder: ServedDecoder, blocks: Sequence[object]) -> float:
        tell(f"warming up {decoder.method.name} at {window.place}, block {len(blocks) + 1}")
        request = LoadRequest(-1, warm_up_ids(decoder.model, length, stop.max_new_tokens), stop, 0)
        start = perf_counter()
        found = answers(decoder, [request] * window.num_in_flight, window.num_in_flight, check=False)
        return (perf_counter() - start) / max(1, sum(len(answer.token_ids) for answer in found))

    decodes = [partial(decode, *each) for each in zip(decoders, histories, strict=True)]
    with doing("warming up") as tell:
        number, verdicts = until_steady(decodes, histories, MAX_BLOCKS_CPU if seconds is None else math.inf, left)
    return {
        decoder.method.name: WarmUp(number, sum(took for _, took in blocks), steady).as_record()
        for decoder, blocks, steady in zip(decoders, histories, verdicts, strict=True)
    }
