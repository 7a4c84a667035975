"""A server of a run. It is identified and checked before anything is measured."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter, sleep
from typing import Any, cast

from specbench.core import bounded
from specbench.core.digests import json_digest
from specbench.core.registry import ENGINES
from specbench.models.causal_lm import ModelPair, TextModel
from specbench.served.client import Client
from specbench.served.engine import Counters, Engine, first_model_name
from specbench.specs.servers import ServersSpec

# Plain English: the pre-tokenizers of converted models split other texts differently, which is harmless, since prompts
# are sent as ids.
PROBE = "The quick brown fox jumps over the lazy dog. 1234 + 5678 = 6912."
IDLE_SECONDS = 10.0  # time limit for a server to finish requests that were cut off
FALLBACK = "openai"  # the engine that accepts any server


@dataclass(frozen=True)
class Server:
    """A server that answers. `settings`: the configuration that it reports. `is_tokenizer_known`: whether it has
    tokenized a text for comparison."""

    client: Client
    engine: Engine
    version: str
    settings: Mapping[str, Any]
    model: str
    speculates: bool | None
    is_tokenizer_known: bool = True

    @property
    def row_engine(self) -> str:
        """The engine's name in rows."""
        return f"served {self.engine.name} {self.version}"

    @property
    def digest(self) -> str:
        """12 hex digits over the engine and the settings."""
        return json_digest({"engine": self.row_engine, **self.settings})

    def counters(self) -> Counters:
        """Returns the server's counters; without values if it has no metrics page."""
        text = self.client.get(self.engine.metrics_path) if self.engine.metrics_path else None
        with self.client.reading():
            return self.engine.counters(text or "")

    def wait_until_idle(self) -> Counters:
        """Returns the counters when no request runs or waits any more. Raises ConfigError after IDLE_SECONDS."""
        start = perf_counter()
        while (found := self.counters()).num_running:
            if perf_counter() - start > IDLE_SECONDS:
                raise self.client.error(
                    f"is busy with {found.num_running} requests of other programs, so its times would be wrong: "
                    "measure when nothing else uses it"
                )
            sleep(0.02)
        return found

    def check_tokenizer(self, target: TextModel) -> "Server":
        """Returns the server with `is_tokenizer_known`. Raises ConfigError if it cuts a text into other tokens than the
        target's tokenizer."""
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
        return replace(self, is_tokenizer_known=ids is not None)


def find_server(client: Client, spec: ServersSpec) -> Server:
    """Returns a server with its engine. Raises ConfigError if it does not answer or its engine is unknown."""
    names = [*sorted(set(ENGINES.names()) - {FALLBACK}), FALLBACK] if spec.engine == "auto" else [spec.engine]
    page = client.get
    for engine in (cast(Engine, ENGINES.get(each)()) for each in names):
        with client.reading():
            version = engine.version(page)
            if version is not None:
                model = spec.model or first_model_name(page)
                return Server(client, engine, version, engine.settings(page), model, engine.speculates(page))
    known = "none of the known engines" if spec.engine == "auto" else f"no server of {spec.engine}"
    hint = "" if client.key else "; a server that asks for a key needs its api_key_env"
    raise client.error(f"is {known}: engine is one of {', '.join(ENGINES.names())}, or auto{hint}")


@dataclass(frozen=True)
class ServedPair(ModelPair):
    """The target's tokenizer and the server of one method. `others`: the servers that must be idle meanwhile."""

    server: Server | None = None
    others: tuple[Server, ...] = ()
