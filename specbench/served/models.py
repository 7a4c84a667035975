"""The servers of a run as its models: started where the file says so, found, and checked against each other."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.core.errors import ConfigError
from specbench.models.loading import load_model
from specbench.results.served import LEARNS
from specbench.running.models import Models
from specbench.running.plan import Cell
from specbench.running.run_folder import RunFolder
from specbench.served.client import Client
from specbench.served.load import measure_load
from specbench.served.server import ServedPair, Server, find_server
from specbench.served.started import StartedServers
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.specs.servers import BASELINE, ServersSpec


@dataclass(frozen=True)
class ServedModels(Models):
    """A target of which only the tokenizer and the configuration are in this process, and the servers by method."""

    servers: Mapping[str, Server]
    spec: ServersSpec
    started: StartedServers

    def log_into(self, folder: Path) -> None:
        self.started.folder = folder

    def measure_load(self, spec: RunSpec, cells: Sequence[Cell], folder: RunFolder, console: Console) -> None:
        if self.spec.load is not None:
            measure_load(spec, cells, folder, console)

    def engine(self, method: MethodSpec) -> str:
        return self.servers[method.name].row_engine

    def pair(self, method: MethodSpec) -> ServedPair:
        own = self.servers[method.name]
        return ServedPair(self.target, server=own, others=tuple(s for s in self.servers.values() if s is not own))

    def learns(self, name: str) -> bool:
        """Returns whether the drafter of a server learns from one request to the next."""
        speculation = self.spec.servers[name].speculation
        return speculation != "none" and speculation.method in self.servers[name].engine.remembers

    @property
    def placement(self) -> None:
        return None

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
    for name in filter(models.learns, servers) if spec.servers.load is not None else ():
        raise ConfigError(
            f"load: the drafter of server '{name}' learns across requests, and windows repeat prompts: leave load out"
        )
    for name in filter(models.learns, servers) if spec.repeats > 1 else ():
        raise ConfigError(
            f"--repeats {spec.repeats}: the drafter of server '{name}' learns across requests, so repeats would be "
            "drafted from memory: give --repeats 1"
        )
    return models
