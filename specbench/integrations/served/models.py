"""The servers of a run, which take the place of its models: started if the file says so, and checked for each other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specbench.core.completions import ApiKey
from specbench.core.errors import ConfigError
from specbench.core.progress import doing
from specbench.decoding.drafters import SHUFFLED
from specbench.integrations.served.client import Client
from specbench.integrations.served.concurrency import LoadScheduler, prompt_sets
from specbench.integrations.served.decoder import memory_of_server
from specbench.integrations.served.engine import Settings
from specbench.integrations.served.rotation import RotationScheduler
from specbench.integrations.served.server import ServedPair, Server, StartedServers, find_server, served_target
from specbench.models.loading import load_model
from specbench.models.scoring import ScoringModel
from specbench.results.warnings import LEARNS, UNKNOWN_TOKENIZER
from specbench.running.events import Events
from specbench.running.measure import InProcess, Scheduler, schedulers
from specbench.running.models import LoadedModels, set_template_options
from specbench.running.plan import Plan
from specbench.running.prompts import uses_chat
from specbench.specs.method import MethodSpec
from specbench.specs.run import BASELINE, RunSpec, ServersSpec

COUNTING = 2  # version of the counts of served answers; 1 counted tokens after the end if steps are unknown


@dataclass(frozen=True)
class ServedModels(LoadedModels):
    """The servers of a run by method. Only the tokenizer and the configuration of the target are in this process."""

    servers: Mapping[str, Server]
    spec: ServersSpec
    started: StartedServers

    def log_into(self, folder: Path) -> None:
        self.started.folder = folder

    def engine(self, method: MethodSpec) -> str:
        return self.servers[method.name].row_engine

    def pair(self, method: MethodSpec) -> ServedPair:
        own = self.servers[method.name]
        others = tuple(s for s in self.servers.values() if s is not own and self.spec.turns is None)
        return ServedPair(self.target, server=own, others=others)

    def context_limit(self, methods: Sequence[MethodSpec]) -> int | None:
        """Returns the shortest context of the target and the servers, which limits all methods alike, as in process."""
        limits = [server.engine.context(server.settings) for server in self.servers.values()]
        return min(filter(None, (super().context_limit(methods), *limits)), default=None)

    def bring_up(self, name: str) -> bool:
        """Ends the running server and starts this one, if only one may be up at a time. Returns whether it was started
        now. Raises ConfigError if it now reports another configuration."""
        if self.spec.turns is None or self.started.is_up(name):
            return False
        server = find_server(start_servers([name], self.spec, self.started)[0], self.spec)
        if server.digest != self.servers[name].digest:
            raise server.client.error(
                "reports another configuration than when it was first started: start it with fixed settings"
            )
        return True

    def learns(self, name: str) -> bool:
        """Returns whether the drafter of a server learns from one request to the next."""
        speculation = self.spec.servers[name].speculation
        given = {} if speculation == "none" else speculation.model_dump()
        return memory_of_server(self.servers[name].engine, given) == SHUFFLED

    @cached_property
    def scoring(self) -> ScoringModel | None:
        if self.spec.turns is not None:  # the server `ar` has ended
            return None
        return served_target(self.servers[BASELINE], self.target.vocab_size)

    @property
    def placement(self) -> None:
        return None

    def environment(self) -> dict[str, Any]:
        engine = self.servers[BASELINE].row_engine
        return {"device": self.spec.device, "dtype": "as served", "attention": "as served", "engine": engine}

    def identity(self) -> Settings:
        """Returns the configurations that the servers report, and the file's entry about their memory."""
        reported: dict[str, Settings] = {}
        for name, server in self.servers.items():
            reported[name] = {"engine": server.row_engine, **server.settings}
            reported[name] |= {LEARNS: True} if self.learns(name) else {}
            reported[name] |= {} if server.is_tokenizer_known else {UNKNOWN_TOKENIZER: True}
        in_rotation = self.spec.turns is not None
        return {"servers": reported, "memory": self.spec.memory, "by_turns": in_rotation, "counting": COUNTING}


@schedulers.register
def served_schedulers(models: ServedModels, plan: Plan, events: Events) -> list[Scheduler]:
    """Returns what measures servers: the trials with one request at a time, then the load."""
    turns, load = models.spec.turns, models.spec.load
    found: list[Scheduler] = [InProcess() if turns is None else RotationScheduler(turns, models.bring_up)]
    if load is not None:
        prompts = prompt_sets(plan, load, events)
        found.append(LoadScheduler(load, prompts, turns is not None, models.bring_up, models.scoring))
    return found


def start_servers(names: Sequence[str], spec: ServersSpec, started: StartedServers) -> list[Client]:
    """Starts those servers that the file starts, and returns the addresses of all when they are ready. With `turns`,
    the running server is ended first."""
    if spec.turns is not None:
        started.end_all()
    clients = []
    for name in names:
        variable = spec.servers[name].api_key_env
        key = None if variable is None else ApiKey.from_environment(f"servers.{name}.api_key_env", variable)
        clients.append(Client(name, spec.servers[name].url, spec.timeout_seconds, key))
    starts = [(client, start) for client in clients if (start := spec.servers[client.name].start) is not None]
    for client, start in starts:
        started.start(client, start)
    for client, start in starts:
        with doing(f"waiting for server '{client.name}' to start"):
            started.wait(client, start)
    return clients


@contextmanager
def serving() -> Iterator[Callable[[RunSpec], "ServedModels"]]:
    """Yields a function that returns the servers of a run. At the end of the block, the servers that it started end."""
    with StartedServers() as started:
        yield lambda spec: load_served(spec, started)


def load_served(spec: RunSpec, started: StartedServers | None = None) -> ServedModels:
    """Returns the servers of a run. Raises ConfigError for one that does not fit the tokenizer or the others."""
    assert spec.servers is not None
    started = started or StartedServers()
    servers = dict[str, Server]()
    # 1. The tokenizer here, and every server once it is ready: all at once, or with `turns` one after the other.
    target = load_model(spec.target, device="cpu", weights=False)
    set_template_options(target, spec.chat, spec.chat_template_args, spec.chosen_date)
    names = [method.name for method in spec.methods]
    for group in [names] if spec.servers.turns is None else [[name] for name in names]:
        for client in start_servers(group, spec.servers, started):
            servers[client.name] = find_server(client, spec.servers).check_tokenizer(target)

    # 2. They must be comparable.
    engines = {name: each.engine.name for name, each in servers.items()}
    if len(set(engines.values())) > 1:
        shown = ", ".join(f"{name} {engine}" for name, engine in engines.items())
        raise ConfigError(f"servers of several engines ({shown}): AR and its methods must run on one engine")
    if any(server.engine.sends_text for server in servers.values()) and uses_chat(target, spec.chat):
        raise ConfigError(
            f"--chat {spec.chat}: servers of engine {next(iter(engines.values()))} put prompts into their own chat "
            "template: give --chat never, so that prompts are not in one already"
        )
    for name, server in servers.items():
        if server.speculates is not None and server.speculates == (name == BASELINE):
            how = "with speculation, but it is the baseline" if name == BASELINE else "without speculation"
            raise server.client.error(f"was started {how}: start it again, or correct its url")

    # 3. A drafter that learns must not see a prompt twice, unless this is declared, so that such rows are not ranked.
    models = ServedModels(target, {}, servers, spec.servers, started)
    for name in filter(models.learns, servers):
        learns = f"the drafter of server '{name}' learns across requests"
        speculation = spec.servers.servers[name].speculation
        is_declared = speculation != "none" and speculation.memory is not None
        if spec.servers.load is not None and not is_declared:
            raise ConfigError(
                f"load: {learns}, and windows repeat prompts: add memory: run to its speculation, and these rows are "
                "not ranked; or memory: prompt, if it was started so that it forgets each request"
            )
        if spec.repeats > 1:
            raise ConfigError(
                f"--repeats {spec.repeats}: {learns}, so repeats would be drafted from memory: give --repeats 1"
            )
    return models
