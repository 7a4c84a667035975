"""Measures servers under load and in turns.

Under load, AR and every method answer windows of requests in turn at each level. In turns, for servers of which only
one can be up at a time, each part of a run is measured with one server after the other, in the order A B, B A, A B, …
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from time import perf_counter, sleep, time
from typing import Any

from rich.console import Console

from specbench.core.progress import ProgressBar, doing
from specbench.core.reasoning import answer_of
from specbench.core.values import json_digest
from specbench.decoding.decoder import Decoder, stream_seed
from specbench.decoding.loop import StopRules
from specbench.integrations.served.decoder import ServedDecoder
from specbench.models.scoring import ScoringModel
from specbench.records.folder import RunFolder
from specbench.records.records import Generation, Key, LineFile, Record, record_key
from specbench.results.concurrency import BASELINE, LOAD_RECORDS, read_windows
from specbench.results.verdict import BaselineAnswer, find_differences, near_tie_tolerance
from specbench.running.events import Events
from specbench.running.measure import check_recorded, measure_method, record_of
from specbench.running.plan import SubsetRun, Trial
from specbench.running.warm_up import (
    MAX_BLOCKS_CPU,
    MAX_SHARE,
    Budget,
    WarmUp,
    doing_warm_up,
    forget_warm_up,
    longest_conversation,
    until_steady,
    warm_up,
    warm_up_ids,
)
from specbench.specs.run import RunSpec

Answers = dict[str, list[dict[str, Any]]]  # by server
BringUp = Callable[[str], bool]  # see `ServedModels.bring_up`
RESULTS = ("measured_at", "methods", "warm_up")  # keys of a window's results; all other keys identify it
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
class Window:
    """One window of a cell: the servers answer the same requests one after the other."""

    cell: SubsetRun
    kind: str
    level: float
    number: int
    num_requests: int

    @property
    def key(self) -> dict[str, Any]:
        """The keys that identify the window in the file of windows."""
        return {
            "task": self.cell.task.name, "subset": self.cell.subset, "kind": self.kind, "level": self.level,
            "window": self.number, "requests": self.num_requests,
        }  # fmt: skip

    @property
    def decoders(self) -> list[ServedDecoder]:
        """The decoders of the servers; the first is `ar`."""
        return [each for each in self.cell.decoders if isinstance(each, ServedDecoder)]

    @property
    def num_workers(self) -> int:
        """The maximum number of requests in flight."""
        return int(self.level) if self.kind == "concurrency" else self.num_requests

    def requests(self, decoder: ServedDecoder, spec: RunSpec) -> list[LoadRequest]:
        """Returns the requests: the next prompts of the cell, which starts again after its last one. All servers get
        the same prompts at the same times."""
        examples, found, at = self.cell.data.examples, [], 0.0
        gaps = random.Random(json_digest(self.key))
        stop = decoder.stop_rules(self.cell.task.generation, self.cell.context_limit)
        for number in range(self.num_requests):
            example = examples[(self.number * self.num_requests + number) % len(examples)]
            names = self.cell.task.name, self.cell.subset, example.index, self.number, decoder.method.name
            ids = self.cell.renderer.render(decoder.model, (example.prompt,)).ids
            found.append(LoadRequest(example.index, ids, stop, stream_seed(spec.seed, *names), at))
            at += gaps.expovariate(self.level) if self.kind == "rate" else 0.0
        return found

    def warm_up(
        self, decoders: Sequence[ServedDecoder], num_windows: int, seconds: float | None
    ) -> dict[str, dict[str, Any]]:
        """Sends requests with a text that is not measured, as many at once as at this level, to one server after the
        other in rounds, until the speed of each is steady or the time is spent. Returns the warm-ups by server.

        `seconds`: the time for each server, by default a share of the expected time of the windows to be measured next,
        of which there are `num_windows`.
        """
        length = min(WARM_UP_TOKENS, self.cell.context_limit or WARM_UP_TOKENS)
        stop = StopRules(length // 2, context_limit=self.cell.context_limit)
        planned = num_windows * self.num_requests * self.cell.task.generation.max_new_tokens
        histories: list[list[tuple[float, float]]] = [[] for _ in decoders]

        def left() -> float:
            spent = sum(took for blocks in histories for _, took in blocks)
            per_token = sum(min(each for each, _ in blocks) for blocks in histories)
            return (MAX_SHARE * planned * per_token if seconds is None else seconds * len(decoders)) - spent

        def decode(decoder: ServedDecoder, blocks: Sequence[Any]) -> float:
            tell(f"warming up {decoder.method.name} at {self.kind} {self.level:g}, block {len(blocks) + 1}")
            request = LoadRequest(-1, warm_up_ids(decoder.model, length, stop.max_new_tokens), stop, 0)
            start = perf_counter()
            found = answers(decoder, [request] * self.num_workers, self.num_workers, check=False)
            return (perf_counter() - start) / max(1, sum(len(answer["token_ids"]) for answer in found))

        decodes = [partial(decode, *each) for each in zip(decoders, histories, strict=True)]
        with doing("warming up") as tell:
            most = MAX_BLOCKS_CPU if seconds is None else math.inf
            number, verdicts = until_steady(decodes, histories, most, left)
        return {
            decoder.method.name: WarmUp(number, sum(took for _, took in blocks), steady).as_record().as_json()
            for decoder, blocks, steady in zip(decoders, histories, verdicts, strict=True)
        }


def answers(
    decoder: ServedDecoder, requests: Sequence[LoadRequest], num_workers: int, *, check: bool = True
) -> list[dict[str, Any]]:
    """Sends requests, at most `num_workers` at once. Returns the answers, each with the time in seconds at which its
    request was `sent`. Raises ConfigError for the first request that fails, and sends no others then."""
    start = perf_counter()

    def ask(request: LoadRequest) -> dict[str, Any]:
        sleep(max(0.0, start + request.at - perf_counter()))
        sent = perf_counter() - start
        answer = decoder.generate_under_load(request.ids, request.stop, request.seed, check=check)
        return {"example": request.example, "sent": round(sent, 6), **answer}

    executor = ThreadPoolExecutor(num_workers)
    try:
        return list(executor.map(ask, requests))
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def measure_load(
    spec: RunSpec, cells: Sequence[SubsetRun], folder: RunFolder, bring_up: BringUp, scoring: ScoringModel | None,
    console: Console,
) -> None:  # fmt: skip
    """Measures the windows that the run's folder does not hold yet. The order of the servers is reversed from one
    window to the next. `scoring`: the target, to detect near-ties; None if it gives no log-probabilities."""
    assert spec.servers is not None and spec.servers.load is not None
    file, load = LineFile[dict[str, Any]](folder.path / LOAD_RECORDS, dict[str, Any]), spec.servers.load
    plan = [
        Window(cell, kind, level, number, math.ceil(load.requests * max(1.0, level)))
        for cell in cells for kind, level in load.levels for number in range(load.windows)
    ]  # fmt: skip
    tolerances: dict[Any, float] = {}
    done = [{name: value for name, value in each.items() if name not in RESULTS} for each in read_windows(folder.path)]
    warm: dict[str, Any] = {}  # by server: the cell and the level for which it was last warmed up
    num_warm_ups = (
        max(1, len(plan) * len(plan[0].decoders) // (1 if spec.servers.turns else load.windows)) if plan else 1
    )
    seconds = None if spec.warm_up is None else spec.warm_up / num_warm_ups
    with ProgressBar(console, "load", len(plan)) as progress:
        for number, window in enumerate(plan):
            if window.key not in done:
                methods, warm_ups = measure(window, spec, bring_up, warm, seconds)
                measured_at = round(time(), 3)
                if scoring is not None and window.cell.task.generation.temperature == 0:
                    add_near_ties(window, spec, methods, scoring, tolerances)
                file.append({**window.key, "measured_at": measured_at, "methods": methods, "warm_up": warm_ups})
            progress.update(f"{window.kind} {window.level:g} · window {window.number + 1}", number + 1)


def measure(
    window: Window, spec: RunSpec, bring_up: BringUp, warm: dict[str, Any], seconds: float | None = None
) -> tuple[Answers, dict[str, Any]]:
    """Returns every server's answers to the requests of a window, and the warm-ups by server. A server is warmed up if
    it was just started or last had another load; all at once, if all are up. `seconds`: the time for the warm-up of one
    server, by default a share."""
    assert spec.servers is not None and spec.servers.load is not None
    found: Answers = {}
    warm_ups: dict[str, Any] = {}
    level = (window.cell, window.kind, window.level)
    by_turns = spec.servers.turns is not None
    num_windows = 1 if by_turns else spec.servers.load.windows
    order = window.decoders if window.number % 2 == 0 else window.decoders[::-1]
    for decoder in order:
        name = decoder.method.name
        if bring_up(name) or warm.get(name) != level:
            cold = [decoder] if by_turns else [each for each in order if warm.get(each.method.name) != level]
            warm_ups |= window.warm_up(cold, num_windows, seconds)
            warm |= dict.fromkeys((each.method.name for each in cold), level)
        for server in (decoder.server, *decoder.others):
            server.wait_until_idle()
        with doing(f"{name} answers {window.num_requests} requests at {window.kind} {window.level:g}"):
            found[name] = answers(decoder, window.requests(decoder, spec), window.num_workers)
    return {decoder.method.name: found[decoder.method.name] for decoder in window.decoders}, warm_ups


def add_near_ties(
    window: Window, spec: RunSpec, methods: Answers, scoring: ScoringModel, tolerances: dict[Any, float]
) -> None:
    """Adds `near_tie` to each answer that differs from AR's: whether the first difference is a near-tie of the target.
    `tolerances`: by cell and server; a missing one is measured on the answers that differ."""
    requests = window.requests(window.decoders[0], spec)
    for decoder in window.decoders[1:]:
        name, plain = decoder.method.name, methods[BASELINE]
        others = [
            (own, BaselineAnswer("", request.ids, answer["token_ids"]))
            for request, own, answer in zip(requests, methods[name], plain, strict=True)
            if own["token_ids"] != answer["token_ids"]
        ]
        place = id(window.cell), name
        if others and place not in tolerances:
            answers = [answer for _, answer in others]
            tolerances[place] = near_tie_tolerance(scoring, answers, decoder.method.most_draft_tokens + 1)
        for own, answer in others:
            (found,) = find_differences(scoring, [answer], [own["token_ids"]], tolerances[place])
            own["near_tie"] = found.near_tie


PLACE = ("task", "subset", "example", "repeat", "turn")  # the names of a block key's elements
TURNS = "turns.jsonl"  # in a run's folder: the answers of single servers, until the part is complete


def split_plan(plan: Sequence[Trial], number: int) -> Iterator[list[Trial]]:
    """Yields the blocks in at most `number` parts of about equal size, with all turns of a conversation in one."""
    examples = [list(group) for _, group in groupby(plan, lambda block: block.key[:4])]
    number = min(number, len(examples))
    for part in range(number):
        own = examples[part * len(examples) // number : (part + 1) * len(examples) // number]
        yield [block for blocks in own for block in blocks]


def measure_in_turns(
    spec: RunSpec, plan: Sequence[Trial], folder: RunFolder, done: dict[Key, Record], bring_up: BringUp,
    events: Events,
) -> None:  # fmt: skip
    """Measures the blocks that are not in `done`, and adds their records. Each answer is written to disk at once."""
    assert spec.servers is not None and spec.servers.turns is not None
    check_recorded(plan, done, folder)
    before = frozenset(done)
    file = LineFile[dict[str, Any]](folder.path / TURNS, dict[str, Any])
    lines = file.read()
    answers = {(record_key(line), line["method"]): Generation.of(line["answer"]) for line in lines}
    num_servers = len(plan[0].order) if plan else 0
    with events.trials(plan):
        for number, part in enumerate(split_plan(plan, spec.servers.turns)):
            order = part[0].cell.decoders if number % 2 == 0 else part[0].cell.decoders[::-1]
            names = [decoder.method.name for decoder in order]
            for name in names:
                missing = [block for block in part if block.key not in done and (block.key, name) not in answers]
                warm_ups = _warm_up(missing, name, spec, bring_up, num_servers * spec.servers.turns) if missing else {}
                for block in missing:
                    texts = [answer_of(answers[key, name]) for key in block.earlier_keys]
                    answer = measure_method(block, _decoder(block.cell.decoders, name), spec, texts)
                    answer.warm_up = warm_ups[id(block.cell)].as_record()
                    answers[block.key, name] = answer
                    file.append(
                        {**dict(zip(PLACE, block.key, strict=True)), "method": name, "answer": answer.as_json()}
                    )
            for block in part:
                if block.key not in done:
                    measured = {name: answers[block.key, name] for name in names}
                    earlier = [done[key] for key in block.earlier_keys]
                    record = record_of(block, measured, earlier, part=number)
                    folder.records.append(record)
                    done[block.key] = record
                events.trial_recorded(block, done[block.key], is_new=block.key not in before)


def _warm_up(
    blocks: Sequence[Trial], name: str, spec: RunSpec, bring_up: BringUp, num_warm_ups: int
) -> dict[int, WarmUp]:
    """Brings a server up and warms it up for the cells of blocks. Returns the warm-ups by id of the cell.
    `num_warm_ups`: those of the whole run, which share the time of --warm-up."""
    is_new, found = bring_up(name), {}
    seconds = None if spec.warm_up is None else spec.warm_up / num_warm_ups
    budget = Budget(seconds, sum(block.cell.task.generation.max_new_tokens for block in blocks))
    for cell in {id(block.cell): block.cell for block in blocks}.values():
        decoder = _decoder(cell.decoders, name)
        if is_new:
            forget_warm_up(decoder)
        length = longest_conversation(cell, decoder.model)
        num_new = cell.task.generation.max_new_tokens
        with doing_warm_up(cell) as tell:
            warmed = warm_up([(decoder, length)], cell.context_limit, num_new, budget, tell)
        found[id(cell)] = warmed[name]
    return found


def _decoder(decoders: Sequence[Decoder], name: str) -> Decoder:
    return next(decoder for decoder in decoders if decoder.method.name == name)
