"""The configuration of a run: RunSpec, and ServersSpec (the keys of a servers file, which names the servers of
`specbench run --servers`)."""

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import ENGINES
from specbench.specs.components import (
    QUANTIZED_BY,
    SERVED,
    CacheDtype,
    Chat,
    DecoderSpec,
    DeviceMap,
    Dtype,
    EngineName,
    Name,
    PromptChecks,
    Quantize,
    Spec,
    Text,
    build,
)
from specbench.specs.method import MethodSpec
from specbench.specs.task import TaskSpec
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
    memory: Literal["prompt", "run"] | None = None
    """What the drafter remembers of other requests. prompt: nothing; run: earlier answers; null: as is usual for the
    method (`suffix` of vLLM, `ngram-mod` of llama.cpp and SGLang's n-grams remember)."""


class StartSpec(Spec):
    """How a run starts a server. The run stops the server when it ends."""

    command: Annotated[tuple[Text, ...], Field(min_length=1)]
    """The program and its arguments, such as [llama-server, -m, target.gguf, --port, "8001"]."""
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(default_factory=dict)
    """Environment variables that the server gets besides those of the run."""
    health: Annotated[str, Field(pattern=r"^/[!-~]*$")] = "/health"
    """Page that returns status 200 once the server is ready."""
    timeout_seconds: Annotated[float, Field(gt=0, le=7200)] = 600.0
    """Time limit until the server is ready."""


class LoadSpec(Spec):
    """Loads under which all servers are measured, after the run at concurrency 1."""

    concurrency: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = ()
    """Numbers of requests in flight, such as [1, 4, 16]. When a request ends, the next one is sent."""
    rate: tuple[Annotated[float, Field(ge=0.001, le=1000)], ...] = ()
    """Requests per second, such as [2, 8], sent at random times (Poisson)."""
    context: tuple[Annotated[int, Field(ge=16, le=2**24)], ...] = ()
    """Tokens of each prompt, such as [1024, 4096]: every level is measured at each. Longer prompts are cut as by the
    task key max_prompt_tokens, shorter ones are left out. When absent, prompts are as long as they are."""
    windows: Annotated[int, Field(ge=2, le=1000)] = 10
    """Windows of each server at each level. Intervals resample the windows."""
    requests: Annotated[int, Field(ge=2, le=1000)] = 4
    """Requests of a window, times the number in flight or the rate."""

    def check(self) -> None:
        if not self.levels:
            raise ConfigError("load: name levels, such as {concurrency: [1, 4, 16]} or {rate: [2, 8]}")

    @property
    def levels(self) -> tuple[tuple[Literal["concurrency", "rate"], float], ...]:
        """The kind and the value of each level, the lowest first."""
        at_once: list[tuple[Literal["concurrency", "rate"], float]]
        at_once = [("concurrency", value) for value in sorted(set(self.concurrency))]
        return (*at_once, *(("rate", value) for value in sorted(set(self.rate))))


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
        problem = "write an address such as http://127.0.0.1:8001"
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            (parts.hostname or "").encode("idna")
        except ValueError as error:  # a port or a name that no address can have
            raise ValueError(problem) from error
        if not is_address or parts.query or "@" in parts.netloc or not re.fullmatch(r"[!-~]*", parts.path):
            raise ValueError(problem)
        return url.rstrip("/")

    def as_method(self, name: str) -> MethodSpec:
        """Returns the method that the server is measured as."""
        given = {} if self.speculation == "none" else self.speculation.model_dump(exclude_none=True)
        length = given.pop("num_draft_tokens", 0)
        title = f"served, {given.get('method', 'without speculation')}"
        decoder = DecoderSpec(type=SERVED, entry="server", options=given)
        data = {"name": name, "version": 1, "title": title, "decoder": decoder, "num_draft_tokens": length}
        return build(MethodSpec, data)


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

    def check(self) -> None:
        if self.engine != "auto":
            ENGINES.get(self.engine)
        baseline = self.servers.get(BASELINE)
        if baseline is None:
            raise ConfigError(
                f"servers: there is no server '{BASELINE}': name the non-speculative baseline server '{BASELINE}'"
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

    @property
    def device(self) -> str:
        """The device name in rows."""
        return self.hardware or "servers on a machine that is not named"

    def methods(self, names: Sequence[str] = ()) -> list[MethodSpec]:
        """Returns the methods of the baseline and of the named servers, by default all, with the baseline first."""
        selected = {BASELINE, *(set(names) - {BASELINE} or self.servers)}
        ordered = sorted(self.servers, key=lambda name: name != BASELINE)
        return [self.servers[name].as_method(name) for name in ordered if name in selected]


def is_servers(path: Path) -> bool:
    """Returns whether a YAML file names servers. Raises ConfigError for a file that cannot be read."""
    return "servers" in read(path)


def read_servers(path: Path) -> ServersSpec:
    """Returns the spec of a servers file. Raises ConfigError that names the file, the key and the problem."""
    return build(ServersSpec, read(path), prefix=f"{path}: ")


class RunSpec(Spec):
    """The configuration of a run: all methods on every subset of every task, with one model pair."""

    tasks: Annotated[tuple[TaskSpec, ...], Field(min_length=1)]
    methods: Annotated[tuple[MethodSpec, ...], Field(min_length=1)]
    servers: ServersSpec | None = None  # None: the methods run in this process
    target: Text
    drafter: Text | None = None
    target_revision: str | None = None
    drafter_revision: str | None = None
    dtype: Dtype = "auto"
    device: Text = "auto"
    quantize: Quantize = "none"
    device_map: DeviceMap = "none"
    engine: EngineName = "auto"
    pass_width: Annotated[int, Field(ge=1)] | None = None  # rows of every pass of the target; None: its tokens
    tokenizer: Text | None = None  # of a GGUF target; None: its own
    drafter_tokenizer: Text | None = None  # of a GGUF drafter
    gpu_layers: Annotated[int, Field(ge=0)] | None = None
    cache_dtype: CacheDtype = "float16"
    chat: Chat = "auto"
    chat_template_args: dict[str, Any] = Field(default_factory=dict)
    template_date: str | None = None  # "today" or YYYY-MM-DD; None: TEMPLATE_DATE, and that of a resumed run
    system_instruction: str | None = None  # None: the task's system prompt; "": none
    prompt_checks: PromptChecks = "refuse"
    trust_remote_code: bool = False
    data: Text | None = None  # "hub", "sample", a folder or a file; None: the default
    subsets: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    subsets_per_task: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    limit: Annotated[int | float, Field(gt=0)] | None = None  # below 1: a share
    repeats: Annotated[int, Field(ge=1)] = 1
    warm_up: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None  # seconds; None: a share of the run

    @field_validator("subsets")
    @classmethod
    def _each_once(cls, subsets: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return subsets and tuple(dict.fromkeys(subsets))

    @field_validator("template_date")
    @classmethod
    def _check_date(cls, text: str | None) -> str | None:
        if text not in (None, "today"):
            try:
                return date.fromisoformat(text).isoformat()
            except ValueError as error:
                raise ValueError("write today, or a date such as 2024-07-26") from error
        return text

    @property
    def chosen_date(self) -> date | None:
        """The date that chat templates print; None: the default."""
        if self.template_date == "today":
            return date.today()
        return None if self.template_date is None else date.fromisoformat(self.template_date)

    @property
    def changes_target(self) -> dict[str, str]:
        """Returns the options that change how the target is loaded, for which not all engines work."""
        options = {"--quantize": self.quantize, "--device-map": self.device_map}
        return {option: value for option, value in options.items() if value != "none"}

    def check(self) -> None:
        for option, value in self.changes_target.items():
            engines = QUANTIZED_BY if option == "--quantize" else ("eager",)
            if self.engine not in ("auto", *engines):
                raise ConfigError(
                    f"{option} {value}: works only with --engine {' or '.join(engines)}, not {self.engine}"
                )
        if self.device_map != "none" and self.device != "auto":
            raise ConfigError(
                f"--device-map {self.device_map}: selects the target's devices itself: remove --device {self.device}"
            )
        if self.pass_width is not None and self.engine in ("graphs", "compiled"):
            raise ConfigError(
                f"--pass-width {self.pass_width}: --engine {self.engine} has passes of fixed lengths of its own: take "
                "--engine eager"
            )
        if self.pass_width is not None and self.device_map != "none":
            raise ConfigError(
                f"--pass-width {self.pass_width}: was tried on a CPU only: leave out --device-map {self.device_map}"
            )
        self._check_names()

    def _check_names(self) -> None:
        for kind, names in (("task", [t.name for t in self.tasks]), ("method", [m.name for m in self.methods])):
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise ConfigError(f"{kind}s: '{twice[0]}' is given twice: give it once")
        drafting = [part for method in self.methods for part in method.parts if part.needs_drafter]
        if part := next((part for part in drafting if self.drafter_of(part) is None), None):
            other = f" trained for '{self.target}' ({part.checkpoint} is not)" if part.checkpoint else ""
            raise ConfigError(f"drafter: method '{part.name}' needs a drafter model{other}: give one with --drafter")
        own_drafters = {part.name: name for part in drafting if (name := own_drafter(part, self.target))}
        if self.drafter is not None and drafting and len(own_drafters) == len(drafting):
            name, checkpoint = next(iter(own_drafters.items()))
            raise ConfigError(
                f"drafter = '{self.drafter}': method '{name}' names its own drafter, {checkpoint}: remove --drafter, "
                f"or give --set {checkpoint_key(name)}={self.drafter}"
            )
        subset_names = {name for task in self.tasks for name in task.subset_names}
        for name in self.subsets or ():
            if name not in subset_names:
                tasks = ", ".join(f"'{task.name}'" for task in self.tasks)
                raise ConfigError(f"subsets: task {tasks} has no subset '{name}': {nearest(name, subset_names)}")

    def drafter_of(self, part: MethodSpec) -> str | None:
        """Returns the draft model of a method without routes, or of one route; None if there is none. It is the one
        that the method names, else the run's, else, for the embedded target, the embedded drafter that fits the
        bridge."""
        name = own_drafter(part, self.target) or self.drafter
        if name is not None or self.target != EMBEDDED + "target":
            return name
        return embedded_drafter(part.decoder.bridge_type if part.decoder else part.bridge.type)

    @property
    def uses_sample(self) -> bool:
        """Returns whether the rows are the bundled ones, which are the default for embedded models."""
        return self.data == "sample" or (self.data is None and self.target.startswith(EMBEDDED))

    def left_out(self) -> dict[str, list[str]]:
        """Returns the subsets of each task that a run on bundled samples skips because they have none."""
        if not self.uses_sample or self.subsets is not None:
            return {}
        without = {task.name: [n for n in task.subset_names if not task.sample_of(n)] for task in self.tasks}
        return {task.name: without[task.name] for task in self.tasks if task.has_sample and without[task.name]}

    def task_subsets(self) -> list[tuple[TaskSpec, str]]:
        """Returns the (task, subset) pairs in the order in which they run. Of each task it takes the first
        `subsets_per_task` requested subsets, by default of all subsets with data."""
        pairs: list[tuple[TaskSpec, str]] = []
        absent = self.left_out()
        for task in self.tasks:
            names = [name for name in self.subsets or () if name in task.subset_names]
            if self.subsets is None or not task.subsets:
                names = [name for name in task.subset_names if name not in absent.get(task.name, [])]
            pairs += [(task, name) for name in names[: self.subsets_per_task]]
        return pairs


def own_drafter(part: MethodSpec, target: str) -> str | None:
    """Returns the draft model that a method (or a route) names, or None. An embedded drafter counts only for the
    embedded target. For other targets the user must give a drafter."""
    name = part.checkpoint
    if name is None or (name.startswith(EMBEDDED) and target != EMBEDDED + "target"):
        return None
    return name


def checkpoint_key(name: str) -> str:
    """Returns the key of the checkpoint of a method, or of a route that is named METHOD/LANGUAGE."""
    route = name.partition("/")[2]
    return f"routes.{route}.drafter.checkpoint" if route else "drafter.checkpoint"


# By bridge, for bridges between two vocabularies.
EMBEDDED_DRAFTERS = {**dict.fromkeys(("intersection", "union", "retokenize"), "drafter-bpe"), "string": "drafter-bytes"}


def embedded_drafter(bridge: str) -> str:
    """Returns the default embedded drafter of the embedded target for a bridge."""
    return EMBEDDED + EMBEDDED_DRAFTERS.get(bridge, "drafter")
