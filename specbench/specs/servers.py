"""ServersSpec: the keys of a servers file, which names the servers of `specbench run --servers`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from specbench.core.errors import ConfigError
from specbench.core.registry import ENGINES
from specbench.specs.components import Name, Spec, Text, build
from specbench.specs.method import DecoderSpec, MethodSpec
from specbench.specs.yaml_files import read

BASELINE = "ar"


class SpeculationSpec(Spec):
    """The speculation that a server was started with. The run checks the draft length."""

    method: Text
    """Name of the method in the engine, such as draft_model, ngram or eagle3."""
    num_draft_tokens: Annotated[int, Field(ge=1, le=64)]
    """Maximum number of draft tokens per step."""
    model: Text | None = None
    """Draft model or head."""


class StartSpec(Spec):
    """How a run starts a server. The run stops the server when it ends."""

    command: Annotated[tuple[Text, ...], Field(min_length=1)]
    """The program and its arguments, such as [llama-server, -m, target.gguf, --port, "8001"]."""
    environment: dict[Text, str] = Field(default_factory=dict)
    """Environment variables that the server gets besides those of the run."""
    health: Text = "/health"
    """Page that returns status 200 once the server is ready."""
    timeout_seconds: Annotated[float, Field(gt=0, le=7200)] = 600.0
    """Time limit until the server is ready."""


class LoadSpec(Spec):
    """Loads under which all servers are measured, after the run at concurrency 1."""

    concurrency: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = ()
    """Numbers of requests in flight, such as [1, 4, 16]. When a request ends, the next one is sent."""
    rate: tuple[Annotated[float, Field(gt=0, le=1000)], ...] = ()
    """Requests per second, such as [2, 8], sent at random times (Poisson)."""
    windows: Annotated[int, Field(ge=2, le=1000)] = 10
    """Windows of each server at each level. Intervals resample the windows."""
    requests: Annotated[int, Field(ge=2, le=1000)] = 4
    """Requests of a window, times the number in flight or the rate."""

    @model_validator(mode="after")
    def _check_levels(self) -> "LoadSpec":
        if not self.levels:
            raise ConfigError("load: name levels, such as {concurrency: [1, 4, 16]} or {rate: [2, 8]}")
        return self

    @property
    def levels(self) -> tuple[tuple[Literal["concurrency", "rate"], float], ...]:
        """The kind and the value of each level, the lowest first."""
        return (
            *(("concurrency", value) for value in sorted(set(self.concurrency))),
            *(("rate", value) for value in sorted(set(self.rate))),
        )  # fmt: skip


class ServerSpec(Spec):
    """One server. It must be running already unless it has `start`."""

    start: StartSpec | None = None
    """How the run starts it; absent for a server that is already running."""
    url: Text
    """Address, such as http://127.0.0.1:8001."""
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Environment variable with the API key; absent for a server without keys."""
    speculation: Literal["none"] | SpeculationSpec
    """none, or {method: draft_model, num_draft_tokens: 5}."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError("write an address such as http://127.0.0.1:8001")
        return url.rstrip("/")


class ServersSpec(Spec):
    """Servers of one engine for one target: `ar` without speculation, and one for each method."""

    tokenizer: Text
    """The target's folder or hub id. Its tokenizer encodes the prompts."""
    engine: Text = "auto"
    """auto, or the name of the engine."""
    model: Text | None = None
    """Name of the model in requests; by default the first model of the server."""
    hardware: Text | None = None
    """The machine of the servers, which is the device in rows."""
    memory: Literal["same KV", "same GPU"] | None = None
    """same KV: all servers have the same KV-cache size in tokens; same GPU: each server, with its drafter, has the same
    share of a GPU."""
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 120.0
    """Time limit of one request."""
    turns: Annotated[int, Field(ge=2, le=1000)] | None = None
    """Number of parts of the run, if only one server can be up at a time. In each part the servers are started,
    measured and stopped one after another. When absent, all are up at once."""
    load: LoadSpec | None = None
    """Loads under which the servers are also measured."""
    servers: Annotated[dict[Name, ServerSpec], Field(min_length=1)]
    """Servers by name. A server has the name of its method."""

    @field_validator("engine")
    @classmethod
    def _check_engine(cls, engine: str) -> str:
        if engine != "auto":
            ENGINES.get(engine)
        return engine

    @model_validator(mode="after")
    def _check_servers(self) -> "ServersSpec":
        baseline = self.servers.get(BASELINE)
        if baseline is None:
            raise ConfigError(
                f"servers: there is no server '{BASELINE}': give this name to the server without speculation, since "
                "all others are compared with it"
            )
        if baseline.speculation != "none":
            raise ConfigError(f"servers.{BASELINE}.speculation: write none: all others are compared with this server")
        for name, server in self.servers.items():
            if self.turns is not None and server.start is None:
                raise ConfigError(
                    f"servers.{name}.start: is missing, but with turns the run starts and stops each server: add start"
                )
            same = [other for other, spec in self.servers.items() if spec.url == server.url and other != name]
            if same and self.turns is None:
                raise ConfigError(
                    f"servers.{name}.url = '{server.url}': '{same[0]}' has this address too: start two servers"
                )
            if name != BASELINE and server.speculation == "none":
                raise ConfigError(
                    f"servers.{name}.speculation = 'none': only '{BASELINE}' decodes without speculation: write "
                    "{method: …, num_draft_tokens: …}"
                )
        return self

    @property
    def device(self) -> str:
        """The device name in rows."""
        return self.hardware or "servers on a machine that is not named"

    def methods(self, names: Sequence[str] = ()) -> list[MethodSpec]:
        """Returns the methods of the baseline and of the named servers, by default all, with the baseline first."""
        selected = set(names) - {BASELINE} or set(self.servers)
        ordered = sorted(self.servers, key=lambda name: name != BASELINE)
        return [_method(name, self.servers[name]) for name in ordered if name in {BASELINE, *selected}]


def _method(name: str, server: ServerSpec) -> MethodSpec:
    speculation = server.speculation
    options: dict[str, Any] = (
        {} if speculation == "none" else speculation.model_dump(include={"method", "model"}, exclude_none=True)
    )
    data = {
        "name": name, "version": 1, "title": f"served, {options.get('method', 'without speculation')}",
        "decoder": DecoderSpec(type="served", entry="server", options=options),
        "num_draft_tokens": 0 if speculation == "none" else speculation.num_draft_tokens,
    }  # fmt: skip
    return build(MethodSpec, data)


def read_servers(path: Path) -> ServersSpec:
    """Returns the spec of a servers file. Raises ConfigError that names the file, the key and the problem."""
    return build(ServersSpec, read(path), prefix=f"{path}: ")
