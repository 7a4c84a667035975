"""Several requests at once: windows of AR and of every method by turns, at each level of load."""

import math
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter, sleep, time
from typing import Any

from rich.console import Console

from specbench.core.digests import json_digest
from specbench.core.progress import ProgressBar
from specbench.decoding.decoder import stream_seed
from specbench.decoding.generation_state import StopRules
from specbench.results.load import LOAD_RECORDS, read_windows
from specbench.running.plan import Cell
from specbench.running.prompts import prompt_ids
from specbench.running.records import RecordFile
from specbench.running.run_folder import RunFolder
from specbench.running.warm_up import text_ids
from specbench.served.decoder import ServedDecoder
from specbench.served.turns import BringUp
from specbench.specs.run import RunSpec

RESULTS = ("measured_at", "methods")  # of a window; all else identifies it
WARM_UP_TOKENS = 64  # prompt and answer


@dataclass(frozen=True)
class LoadRequest:
    """A prompt of a window, and the time at which it is sent at the earliest, in seconds after the window begins."""

    example: int
    ids: list[int]
    stop: StopRules
    seed: int
    at: float = 0.0


@dataclass(frozen=True)
class Window:
    """One window of a cell: all servers answer its requests in turn, in the same order."""

    cell: Cell
    kind: str
    level: float
    number: int
    num_requests: int

    @property
    def key(self) -> dict[str, Any]:
        """What identifies the window in the file of windows."""
        return {
            "task": self.cell.task.name, "subset": self.cell.subset, "kind": self.kind, "level": self.level,
            "window": self.number, "requests": self.num_requests,
        }  # fmt: skip

    @property
    def num_workers(self) -> int:
        """The most requests in flight."""
        return int(self.level) if self.kind == "concurrency" else self.num_requests

    def requests(self, decoder: ServedDecoder, spec: RunSpec) -> list[LoadRequest]:
        """Returns the requests: the next prompts of the cell, from its beginning again after its end, the same and at
        the same times for all servers."""
        examples, found, at = self.cell.data.examples, [], 0.0
        gaps = random.Random(json_digest(self.key))
        stop = decoder.stop_rules(self.cell.task.generation, self.cell.context_limit)
        for number in range(self.num_requests):
            example = examples[(self.number * self.num_requests + number) % len(examples)]
            names = self.cell.task.name, self.cell.subset, example.index, self.number, decoder.method.name
            ids = prompt_ids(decoder.model, example, spec.chat)
            found.append(LoadRequest(example.index, ids, stop, stream_seed(spec.seed, *names), at))
            at += gaps.expovariate(self.level) if self.kind == "rate" else 0.0
        return found

    def warm_up(self, decoder: ServedDecoder) -> None:
        """Sends as many requests at once as the level has, with a text that is not measured."""
        length = min(WARM_UP_TOKENS, self.cell.context_limit or WARM_UP_TOKENS)
        stop = StopRules(length // 2, context_limit=self.cell.context_limit)
        request = LoadRequest(-1, text_ids(decoder.model, length), stop, 0)
        answers(decoder, [request] * self.num_workers, self.num_workers, check=False)


def answers(
    decoder: ServedDecoder, requests: Sequence[LoadRequest], num_workers: int, *, check: bool = True
) -> list[dict[str, Any]]:
    """Returns the answers to requests of which at most `num_workers` are in flight, each with the seconds at which it
    was `sent`. Raises ConfigError for the first one that fails; no further one is sent then."""
    start = perf_counter()

    def ask(request: LoadRequest) -> dict[str, Any]:
        sleep(max(0.0, start + request.at - perf_counter()))
        sent = perf_counter() - start
        answer = decoder.under_load(request.ids, request.stop, request.seed, check=check)
        return {"example": request.example, "sent": round(sent, 6), **answer}

    executor = ThreadPoolExecutor(num_workers)
    try:
        return list(executor.map(ask, requests))
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def windows_of(cells: Sequence[Cell], spec: RunSpec) -> Iterator[Window]:
    """Yields the windows of a run, level by level."""
    assert spec.servers is not None and spec.servers.load is not None
    load = spec.servers.load
    for cell in cells:
        for kind, level in load.levels:
            for number in range(load.windows):
                yield Window(cell, kind, level, number, math.ceil(load.requests * max(1.0, level)))


def measure_load(spec: RunSpec, cells: Sequence[Cell], folder: RunFolder, bring_up: BringUp, console: Console) -> None:
    """Measures the windows that the run's folder does not hold yet. The order of the servers is reversed from one
    window to the next."""
    file, plan = RecordFile(folder.path / LOAD_RECORDS), list(windows_of(cells, spec))
    done = [{name: value for name, value in each.items() if name not in RESULTS} for each in read_windows(folder.path)]
    warm: dict[str, Any] = {}  # by server: where it was last warmed up
    with ProgressBar(console, "load", len(plan)) as progress:
        for number, window in enumerate(plan):
            if window.key not in done:
                answers = measure(window, spec, bring_up, warm)
                file.append({**window.key, "measured_at": round(time(), 3), "methods": answers})
            progress.update(f"{window.kind} {window.level:g} · window {window.number + 1}", number + 1)


def measure(window: Window, spec: RunSpec, bring_up: BringUp, warm: dict[str, Any]) -> dict[str, Any]:
    """Returns the answers of every server to the requests of a window. A server that was just started, or last had
    another load, is warmed up."""
    found, level = {}, (window.cell, window.kind, window.level)
    decoders = [each for each in window.cell.decoders if isinstance(each, ServedDecoder)]
    for decoder in decoders if window.number % 2 == 0 else reversed(decoders):
        name = decoder.method.name
        if bring_up(name) or warm.get(name) != level:
            window.warm_up(decoder)
            warm[name] = level
        for server in (decoder.server, *decoder.others):
            server.wait_until_idle()
        found[name] = answers(decoder, window.requests(decoder, spec), window.num_workers)
    return {decoder.method.name: found[decoder.method.name] for decoder in decoders}
