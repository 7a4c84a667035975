"""llama.cpp servers inside this process, by xllamacpp, so that nobody needs a binary: `specbench serve-llama-cpp`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from specbench.core.environment import require
from specbench.core.errors import ConfigError
from specbench.models.gguf.files import local_file

NGRAM_SIZE = 3  # tokens that `ngram` looks up


@dataclass(frozen=True)
class Serving:
    """A target as a GGUF file, and how it is served. `context`: tokens of each slot. `gpu_layers`: None leaves it to
    llama.cpp."""

    target: Path
    drafter: Path | None = None
    num_draft_tokens: int = 5
    num_slots: int = 1
    context: int = 2048
    threads: int | None = None
    gpu_layers: int | None = None

    def check(self) -> None:
        """Raises ConfigError if xllamacpp is missing, or a file is not a whole GGUF model."""
        require("xllamacpp", "specbench serve-llama-cpp")
        for file in (self.target, *([self.drafter] if self.drafter is not None else [])):
            if not file.is_file():
                raise ConfigError(f"{file}: there is no such file: give a GGUF file")
            local_file(str(file)).header  # noqa: B018

    @property
    def speculation(self) -> dict[str, Any]:
        """The servers by name, as a servers file has their speculation."""
        drafted = {} if self.drafter is None else {
            "draft": {"method": "draft_model", "num_draft_tokens": self.num_draft_tokens, "model": self.drafter.stem}
        }  # fmt: skip
        return {"ar": "none", **drafted, "ngram": {"method": "ngram-simple", "num_draft_tokens": self.num_draft_tokens}}

    @contextmanager
    def servers(self, ports: Mapping[str, int] = {}) -> Iterator[dict[str, str]]:
        """Yields the addresses of a server without speculation, one with the drafter and one that copies, by name.
        `ports`: by name; 0, the default, takes a free one."""
        with ExitStack() as stack:
            yield {name: stack.enter_context(self.server(name, port=ports.get(name, 0))) for name in self.speculation}

    @contextmanager
    def server(
        self, name: str, port: int = 0, synthetic_length: float | None = None, synthetic_rates: Sequence[float] = ()
    ) -> Iterator[str]:
        """Yields the address of one server, which is up until the block ends. `synthetic_length`: tokens per step that
        llama.cpp is told to accept, whatever is drafted. `synthetic_rates`: in its place, of each draft position the
        share of steps that accept it and all before it."""
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(self.target)
        params.n_ctx = self.context * self.num_slots
        params.n_parallel = self.num_slots
        params.port = port
        if self.threads is not None:
            params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self.threads
        if self.gpu_layers is not None:
            params.n_gpu_layers = self.gpu_layers
        params.endpoint_metrics = True
        params.verbosity = -1
        kinds = xllamacpp.common_speculative_type
        if name == "ngram":
            params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            params.speculative.ngram_simple.size_n = NGRAM_SIZE
            params.speculative.ngram_simple.size_m = self.num_draft_tokens
        elif name == "draft":
            params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
            params.speculative.draft.mparams.path = str(self.drafter)
            params.speculative.draft.n_max = self.num_draft_tokens
        if synthetic_length is not None:
            params.speculative.synth_len = synthetic_length
        params.speculative.synth_rates = list(synthetic_rates)
        try:
            server = xllamacpp.Server(params)
        except RuntimeError as error:  # it does not say why
            drafter = f", with drafter {self.drafter}" if name == "draft" else ""
            raise ConfigError(
                f"{self.target}: llama.cpp does not start the server '{name}'{drafter} ({error}): take another file, "
                "such as one of an architecture and a tokenizer that it knows, or free memory"
            ) from error
        try:
            yield str(server.listening_address)
        finally:
            del server

    def file(self, addresses: Mapping[str, str], tokenizer: str, hardware: str, **more: Any) -> str:
        """Returns the content of a servers file: YAML to be read and changed by hand."""
        servers = {name: {"url": url, "speculation": self.speculation[name]} for name, url in addresses.items()}
        content = {"tokenizer": tokenizer, "hardware": hardware, "memory": "same KV", "servers": servers, **more}
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None, width=math.inf)
