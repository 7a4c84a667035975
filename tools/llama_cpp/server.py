"""llama.cpp servers inside this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import xllamacpp

from specbench.embedded import member_path
from tools.llama_cpp.convert import write_gguf


@cache
def gguf_file(name: str) -> Path:
    """Returns an embedded model in llama.cpp's format."""
    path = Path(mkdtemp(prefix="gguf-")) / f"{name}.gguf"
    write_gguf(member_path(name), path)
    return path


DRAFT_MODEL = xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
NGRAM = xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE


@contextmanager
def llama_cpp_server(
    drafter: str | None = None, num_draft_tokens: int = 5, synthetic_length: float | None = None, num_slots: int = 1,
    target: Path | None = None,
) -> Iterator[str]:  # fmt: skip
    """Yields the address of a server of `target`, by default the embedded one. `drafter`: an embedded draft model, or
    "ngram"."""
    params = xllamacpp.CommonParams()
    params.model.path = str(target or gguf_file("target"))
    params.n_ctx = 2048 * num_slots
    params.n_parallel = num_slots
    params.port = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = True
    params.verbosity = -1
    if drafter == "ngram":
        params.speculative.types = [NGRAM]
        params.speculative.ngram_simple.size_n = 3
        params.speculative.ngram_simple.size_m = num_draft_tokens
    elif drafter is not None:
        params.speculative.types = [DRAFT_MODEL]
        params.speculative.draft.mparams.path = str(gguf_file(drafter))
        params.speculative.draft.n_max = num_draft_tokens
    if synthetic_length is not None:
        params.speculative.synth_len = synthetic_length
    server = xllamacpp.Server(params)
    try:
        yield server.listening_address
    finally:
        del server
