"""A server of a run, which is identified and checked before anything is measured, the target behind it, and the servers
that a run starts: their logs, and their processes, which end with the run.
"""

import math
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self, cast

import torch

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.registry import ENGINES
from specbench.core.source import code_revision
from specbench.core.values import json_digest
from specbench.integrations.served import guard
from specbench.integrations.served.client import Client
from specbench.integrations.served.engine import (
    Body,
    Counters,
    Engine,
    LogProbs,
    Settings,
    first_model_name,
    json_mapping,
)
from specbench.models.causal_lm import ModelPair, TextModel
from specbench.models.scoring import Output, ScoringModel
from specbench.specs.run import ServersSpec, StartSpec

# Plain English: the pre-tokenizers of converted models split other texts differently, which is harmless, since prompts
# are sent as ids.
PROBE = "The quick brown fox jumps over the lazy dog. 1234 + 5678 = 6912."
IDLE_SECONDS = 10.0  # time limit for a server to finish requests that were cut off
FALLBACK, CHAT = "openai", "openai-chat"  # engines that accept any server; the second one only if it is named
NUM_AHEAD = 64  # tokens per request
MAX_LOG_PROB = 1e-3  # of a rounded probability of 1
LEAST_LEFT = 1e-12  # minimum probability of all other tokens, since sums are rounded
PAUSE_SECONDS = 0.1  # between two checks whether a server is ready
END_SECONDS = 3 * guard.GRACE_SECONDS
LOG_CHARACTERS = 300  # number of a log's last characters in a message


@dataclass(frozen=True)
class Server:
    """A server that answers. `settings`: the configuration that it reports. `is_tokenizer_known`: whether it has
    tokenized a text for comparison."""

    client: Client
    engine: Engine
    version: str
    settings: Settings
    model: str
    speculates: bool | None
    is_tokenizer_known: bool = True

    @property
    def row_engine(self) -> str:
        return f"served {self.engine.name} {self.version}"

    @property
    def digest(self) -> str:
        code = code_revision([type(self.engine).__module__])  # of a plug-in
        return json_digest({"engine": self.row_engine, **self.settings, **({"code": code} if code else {})})

    def counters(self) -> Counters:
        """Returns the server's counters; without values if it has no metrics page."""
        text = self.client.get(self.engine.metrics_path) if self.engine.metrics_path else None
        with self.client.reading():
            return self.engine.counters(text or "")

    def wait_until_idle(self) -> Counters:
        """Returns the counters when no request runs or waits any more. Raises ConfigError after IDLE_SECONDS."""
        start = time.perf_counter()
        while (found := self.counters()).num_running:
            if time.perf_counter() - start > IDLE_SECONDS:
                raise self.client.error(
                    f"is busy with {found.num_running} requests of other programs, so its times would be wrong: "
                    "measure when nothing else uses it"
                )
            time.sleep(0.02)
        return found

    def check_tokenizer(self, target: TextModel) -> "Server":
        """Returns the server with `is_tokenizer_known`. Raises ConfigError if it cuts a text into other tokens than the
        target's tokenizer."""
        path = self.engine.tokenize_path
        body: Body = {"content": PROBE, "prompt": PROBE, "model": self.model, "add_special_tokens": False}
        text = self.client.get(path, body) if path else None
        with self.client.reading():
            ids = (bounded.json_value(text, strict=False) if text else {}).get("tokens")
        own = target.tokenizer(PROBE, add_special_tokens=False)["input_ids"]
        if ids is not None and ids != own:
            raise self.client.error(
                f"serves another model than the tokenizer '{target.name}' belongs to: it cuts a text into {ids[:6]}…, "
                f"and the tokenizer into {own[:6]}…: correct tokenizer, or start the server with its model"
            )
        return replace(self, is_tokenizer_known=ids is not None)


def find_server(client: Client, spec: ServersSpec) -> Server:
    """Returns a server with its engine. Raises ConfigError if it does not answer or its engine is unknown."""
    names = [*sorted(set(ENGINES.names()) - {FALLBACK, CHAT}), FALLBACK] if spec.engine == "auto" else [spec.engine]
    page = client.get
    for engine in (cast(Engine, ENGINES.get(each)()) for each in names):
        with client.reading():
            version = engine.version(page)
            if version is not None:
                model, settings = spec.model or first_model_name(page), plain(engine.settings(page))
                return Server(client, engine, plain(version), settings, plain(model), engine.speculates(page))
    known = "none of the known engines" if spec.engine == "auto" else f"no server of {spec.engine}"
    hint = "" if client.key else "; a server that asks for a key needs its api_key_env"
    raise client.error(f"is {known}: engine is one of {', '.join(ENGINES.names())}, or auto{hint}")


def plain(told: Any) -> Any:
    """Returns a value that a server reports, as every file can hold it: an infinite number is a text, and half of a
    surrogate pair is a question mark."""
    if isinstance(told, dict):
        return {plain(name): plain(value) for name, value in told.items()}
    if isinstance(told, list):
        return [plain(value) for value in told]
    if isinstance(told, float) and not math.isfinite(told):
        return str(told)
    return told.encode("utf-8", "replace").decode() if isinstance(told, str) else told


@dataclass(frozen=True)
class ServedPair(ModelPair):
    """The target's tokenizer and the server of one method. `others`: the servers that must be idle meanwhile."""

    server: Server | None = None
    others: tuple[Server, ...] = ()


class ServedTarget(ScoringModel):
    """Scores sequences by requests to a server without speculation.

    A row of logits holds the log-probabilities of the most probable tokens; all other tokens share the remaining
    probability equally. A row after a token that the server itself wrote since `reset` comes from its pass over that
    token; every other row comes from a pass over the whole sequence.
    """

    chooses_width = True

    def __init__(self, server: Server, vocab_size: int) -> None:
        self.server, self.vocab_size = server, vocab_size
        self._read: dict[tuple[int, ...], LogProbs] = {}  # after a whole sequence
        self._written: dict[tuple[int, ...], LogProbs] = {}  # along the server's own tokens since `reset`

    def reset(self) -> None:
        self._written.clear()

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        if num_logits == 1:
            if tuple(ids) not in self._written:
                following = ids
                for row in self._request_rows(ids, NUM_AHEAD, 1):
                    self._written[tuple(following)] = row
                    following = [*following, max(row, key=row.__getitem__)]
            return Output(self._logits(self._written[tuple(ids)])[None])
        rows = []
        for end in range(len(ids) - num_logits + 1, len(ids) + 1):
            begin = tuple(ids[:end])
            if begin not in self._read:
                self._read[begin] = self._request_rows(list(begin), 1)[0]
            rows.append(self._logits(self._read[begin]))
        return Output(torch.stack(rows))

    def _request_rows(self, ids: list[int], *num_tokens: int) -> list[LogProbs]:
        """Returns the rows of the first request that the server accepts: near the end of its context it refuses those
        for many tokens. Raises ConfigError if it accepts none."""
        for number in num_tokens:
            if rows := log_probs(self.server, ids, number):
                return rows
        raise self.server.client.error("no longer gives log-probabilities: see the server's log")

    def _logits(self, row: LogProbs) -> torch.Tensor:
        values = torch.tensor(list(row.values()), dtype=torch.float64)
        left = max(1.0 - float(values.exp().sum()), LEAST_LEFT) / max(1, self.vocab_size - len(row))
        logits = torch.full((self.vocab_size,), min(math.log(left), float(values.min())))
        with self.server.client.reading():  # a token that the target does not have
            logits[list(row)] = values.float()
        return logits


def log_probs(server: Server, ids: list[int], num_tokens: int) -> list[LogProbs]:
    """Returns the log-probabilities of the most probable tokens after a sequence and after each of the greedy tokens
    that follow. Returns an empty list if the engine does not report them, or not the real ones: llama.cpp reports 0 and
    no alternatives for draft tokens."""
    body = server.engine.scoring_request(ids, num_tokens, server.model)
    answer = json_mapping(lambda path: server.client.get(path, body), server.engine.path) if body else {}
    with server.client.reading():
        rows = server.engine.log_probs(answer) if answer else []
    wrong = next((value for row in rows for value in row.values() if not -math.inf < value < MAX_LOG_PROB), None)
    if wrong is not None:
        raise server.client.error(
            f"reports a log-probability of {wrong:g}: start it so that it reports those of its model, before top-k and "
            "top-p (vLLM: --logprobs-mode raw_logprobs)"
        )
    is_real = all(len(row) > 1 and any(row.values()) for row in rows)
    return rows if is_real else []


def served_target(server: Server, vocab_size: int) -> ServedTarget | None:
    """Returns the target of a server; None if the server reports no real log-probabilities."""
    return ServedTarget(server, vocab_size) if log_probs(server, [0, 0], 2) else None


class StartedServers:
    """Starts servers, and ends them when the block ends. A guard process ends each of them in whatever way this process
    ends.

    `folder`: the run's folder, to which the logs are moved in the end; None while it is unknown.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._guards: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_all()
        if self._logs is not None and self.folder is not None and self.folder.is_dir():
            for log in self._logs.iterdir():
                with log.open("rb") as source, (self.folder / log.name).open("ab") as file:
                    shutil.copyfileobj(source, file)
            shutil.rmtree(self._logs, ignore_errors=True)

    def is_up(self, name: str) -> bool:
        return name in self._guards

    def end_all(self) -> None:
        for process in self._guards.values():
            if process.stdin is not None:
                process.stdin.close()
        for process in self._guards.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
        self._guards.clear()

    def start(self, client: Client, spec: StartSpec) -> None:
        """Starts a server; `wait` returns when it is ready. Raises ConfigError if its address is already in use."""
        if client.is_reachable():
            raise client.error("answers already, although the file has its start: end it, or leave start out")
        with self._log(client.name).open("a+b") as log:
            self._guards[client.name] = subprocess.Popen(
                [sys.executable, guard.__file__, *spec.command], stdin=subprocess.PIPE, stdout=log, stderr=log,
                env={**os.environ, **spec.environment}, start_new_session=True,
            )  # fmt: skip

    def wait(self, client: Client, spec: StartSpec) -> None:
        """Returns when a server is ready. Raises ConfigError, with the end of its log, if it ends or takes too long."""
        deadline = time.monotonic() + spec.timeout_seconds
        while (left := deadline - time.monotonic()) > 0:
            attempt = replace(client, timeout_seconds=min(max(PAUSE_SECONDS, left), client.timeout_seconds))
            with suppress(ConfigError):
                if attempt.get(spec.health) is not None:
                    return
            code = self._guards[client.name].poll()
            if code is not None:
                raise client.error(f"ended with exit code {code} before it was ready: {self._end_of_log(client.name)}")
            time.sleep(PAUSE_SECONDS)
        raise client.error(
            f"is not ready after {spec.timeout_seconds:g} s: set start.timeout_seconds higher, or correct its url or "
            f"start.health ({spec.health}): {self._end_of_log(client.name)}"
        )

    def _log(self, name: str) -> Path:
        self._logs = self._logs or Path(mkdtemp(prefix="specbench-servers-"))
        return self._logs / f"server-{name}.log"

    def _end_of_log(self, name: str) -> str:
        log = self._log(name)
        text = " ".join(log.read_text("utf-8", "replace").split())
        return f"{log} ends with: …{text[-LOG_CHARACTERS:]}" if text else f"{log} is empty"
