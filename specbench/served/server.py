"""The servers of a run: found, identified and checked before anything is measured."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, cast

from specbench.core import bounded
from specbench.core.digests import json_digest
from specbench.core.errors import ConfigError
from specbench.core.registry import ENGINES
from specbench.models.causal_lm import ModelPair
from specbench.models.loading import load_model
from specbench.models.text_model import TextModel
from specbench.results.served import LEARNS
from specbench.running.models import Models
from specbench.served.client import Client
from specbench.served.engine import Counters, Engine, model_of
from specbench.served.started import StartedServers
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.specs.servers import BASELINE, ServersSpec

PROBE = "The quick brown fox jumps over the lazy dog. 1234 + 5678 = 6912."  # plain English: other texts are cut in
# several ways by the pre-tokenizers of converted models, and prompts are sent as ids
IDLE_SECONDS = 10.0  # that a server may take to finish what was cut off
LAST = "openai"  # it takes any server


@dataclass(frozen=True)
class Server:
    """A server that answers, its engine with the version, and what it tells of its configuration."""

    client: Client
    engine: Engine
    version: str
    settings: Mapping[str, Any]
    model: str
    speculates: bool | None

    @property
    def row_engine(self) -> str:
        """The engine as rows name it."""
        return f"served {self.engine.name} {self.version}"

    @property
    def digest(self) -> str:
        """12 hex digits of what the server tells of itself."""
        return json_digest({"engine": self.row_engine, **self.settings})

    def counters(self) -> Counters:
        """Returns the server's counters; without values if it has no page of metrics."""
        text = self.client.get(self.engine.metrics_path) if self.engine.metrics_path else None
        with self.client.reading():
            return self.engine.counters(text or "")

    def wait_until_idle(self) -> Counters:
        """Returns the counters once no request runs or waits. Raises ConfigError if that takes long."""
        start = perf_counter()
        while (found := self.counters()).num_running:
            if perf_counter() - start > IDLE_SECONDS:
                raise self.client.error(
                    f"is busy with {found.num_running} requests that are not of this run, so that no time of it "
                    "counts: measure when nothing else uses it"
                )
            sleep(0.02)
        return found

    def check_tokenizer(self, target: TextModel) -> None:
        """Raises ConfigError if the server cuts a text into other tokens than the target's tokenizer."""
        path = self.engine.tokenize_path
        body = {"content": PROBE, "prompt": PROBE, "model": self.model, "add_special_tokens": False}
        text = self.client.post(path, body) if path else None
        with self.client.reading():
            ids = (bounded.json_value(text, strict=False) if text else {}).get("tokens")
        own = target.tokenizer(PROBE, add_special_tokens=False)["input_ids"]
        if ids is not None and ids != own:
            raise self.client.error(
                f"serves another model than the tokenizer '{target.name}' belongs to: it cuts a text into {ids[:6]}…, "
                f"and the tokenizer into {own[:6]}…: correct tokenizer, or start the server with its model"
            )


def find_server(client: Client, spec: ServersSpec) -> Server:
    """Returns a server with its engine. Raises ConfigError if it does not answer, or is of no known engine."""
    names = [*sorted(set(ENGINES.names()) - {LAST}), LAST] if spec.engine == "auto" else [spec.engine]
    page = client.get
    for engine in (cast(Engine, ENGINES.get(each)()) for each in names):
        with client.reading():
            version = engine.version(page)
            if version is not None:
                model = spec.model or model_of(page)
                return Server(client, engine, version, engine.settings(page), model, engine.speculates(page))
    known = "none of the known engines" if spec.engine == "auto" else f"no server of {spec.engine}"
    raise client.error(f"is {known}: engine is one of {', '.join(ENGINES.names())}, or auto")


@dataclass(frozen=True)
class ServedPair(ModelPair):
    """The target's tokenizer with the server of one method, and all servers of the run."""

    server: Server | None = None
    others: tuple[Server, ...] = ()


@dataclass(frozen=True)
class ServedModels(Models):
    """A target of which only the tokenizer and the configuration are in this process, and the servers by method."""

    servers: Mapping[str, Server]
    spec: ServersSpec
    started: StartedServers

    def log_into(self, folder: Path) -> None:
        self.started.folder = folder

    def engine(self, method: MethodSpec) -> str:
        return self.servers[method.name].row_engine

    def pair(self, method: MethodSpec) -> ServedPair:
        own = self.servers[method.name]
        return ServedPair(self.target, server=own, others=tuple(s for s in self.servers.values() if s is not own))

    def learns(self, name: str) -> bool:
        """Returns whether the drafter of a server learns from one request to the next."""
        speculation = self.spec.servers[name].speculation
        return speculation != "none" and speculation.method in self.servers[name].engine.remembers

    def environment(self) -> dict[str, str]:
        """Returns the conditions of the servers: the first server's, which is AR's."""
        return {
            "device": self.spec.device, "dtype": "as served",
            "attention": "as served", "engine": self.servers[BASELINE].row_engine,
        }  # fmt: skip

    def identity(self) -> dict[str, Any]:
        """Returns what the servers tell of themselves, and what the file says of their memory."""
        told = {name: {"engine": each.row_engine, **each.settings} for name, each in self.servers.items()}
        for name in filter(self.learns, told):
            told[name][LEARNS] = True
        return {"servers": told, "memory": self.spec.memory}


def find_servers(spec: ServersSpec, names: Iterable[str], started: StartedServers) -> dict[str, Server]:
    """Returns servers by name, after those that have `start` are ready."""
    clients = {name: Client(name, spec.servers[name].url, spec.timeout_seconds) for name in names}
    starts = {name: start for name in clients if (start := spec.servers[name].start) is not None}
    for name, start in starts.items():
        started.start(clients[name], start)
    for name, start in starts.items():
        started.wait(clients[name], start)
    return {name: find_server(client, spec) for name, client in clients.items()}


@contextmanager
def serving() -> Iterator[Callable[[RunSpec], "ServedModels"]]:
    """Yields a function that returns the servers of a run. Those that it starts end with the block."""
    with StartedServers() as started:
        yield lambda spec: load_served(spec, started)


def load_served(spec: RunSpec, started: StartedServers | None = None) -> ServedModels:
    """Returns the servers of a run; `started` keeps those that are started. Raises ConfigError for a server that does
    not fit the tokenizer or the others."""
    assert spec.servers is not None
    started = started or StartedServers()
    target = load_model(spec.target, device="cpu", weights=False)
    servers = find_servers(spec.servers, [method.name for method in spec.methods], started)
    engines = {name: each.engine.name for name, each in servers.items()}
    if len(set(engines.values())) > 1:
        shown = ", ".join(f"{name} {engine}" for name, engine in engines.items())
        raise ConfigError(f"servers of several engines ({shown}): AR and its methods are servers of one engine")
    for name, server in servers.items():
        server.check_tokenizer(target)
        if server.speculates is not None and server.speculates == (name == BASELINE):
            how = "with speculation, but all others are compared with it" if name == BASELINE else "without speculation"
            raise server.client.error(f"was started {how}: start it again, or correct its url")
    models = ServedModels(target, {}, servers, spec.servers, started)
    for name in filter(models.learns, servers) if spec.repeats > 1 else ():
        raise ConfigError(
            f"--repeats {spec.repeats}: the drafter of server '{name}' learns across requests, so that it knows the "
            "answers from the second repeat on: give --repeats 1"
        )
    return models
