"""Windows of concurrent requests to servers: one JSON line each in the file load.jsonl of a run's folder."""

from pathlib import Path
from typing import Literal

import msgspec

from specbench.records.generation import Stored, WarmUpRecord
from specbench.records.records import LineFile

LOAD_RECORDS = "load.jsonl"
LoadKind = Literal["concurrency", "rate"]
# task, subset, kind, level, window, requests, context
WindowKey = tuple[str, str, LoadKind, float, int, int, int | None]


class LoadAnswer(Stored, omit_defaults=True):
    """One answer of a window.

    `sent`: seconds from the window's begin to the request. `passes`: target passes after the prefill; None unless the
    answer itself reports them. `reads`: (seconds since the request, new tokens) of each read. `near_tie`: whether its
    first difference from AR's answer is a near-tie; None for no difference, or if that is unknown. `answer_seconds`:
    of the first read with text of the answer proper, behind its reasoning; None if it has none, and in files of
    earlier versions. `reasoning_tokens`, `reasoning_closed`: as in `Generation`.
    """

    example: int
    sent: float
    token_ids: list[int]
    passes: int | None
    reads: list[tuple[float, int]]
    near_tie: bool | None = None
    answer_seconds: float | None = None
    reasoning_tokens: int = 0
    reasoning_closed: bool = True

    @property
    def first_seconds(self) -> float:
        return self.reads[0][0]

    @property
    def last_seconds(self) -> float:
        return self.reads[-1][0]


class LoadWindow(Stored, omit_defaults=True):
    """The answers of all servers to the same requests, at one level of load.

    `kind`: concurrency or rate. `window`: its number at this level. `requests`: how many it has. `warm_up`: by server,
    those that were warmed up just before; None in files of earlier versions. `context`: the tokens to which prompts
    were cut; None: prompts are as long as they are.
    """

    task: str
    subset: str
    kind: LoadKind
    level: float
    window: int
    requests: int
    measured_at: float
    methods: dict[str, list[LoadAnswer]]
    warm_up: dict[str, WarmUpRecord] | None = None
    context: int | None = None

    @property
    def key(self) -> WindowKey:
        return self.task, self.subset, self.kind, self.level, self.window, self.requests, self.context

    def as_json(self) -> dict[str, object]:
        found: dict[str, object] = msgspec.to_builtins(self)
        return found


def window_file(folder: Path) -> LineFile[LoadWindow]:
    """Returns the file of the windows of a run; it is absent if the run measured no load."""
    return LineFile[LoadWindow](folder / LOAD_RECORDS, LoadWindow)


def read_windows(folder: Path) -> list[LoadWindow]:
    """Returns the windows of a run. Raises ConfigError for a line that is not a window."""
    return window_file(folder).read()
