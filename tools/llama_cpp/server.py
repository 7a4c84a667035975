"""llama.cpp servers of the embedded models."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from specbench.embedded import member_path
from specbench.integrations.served.llama_cpp import Serving
from tools.llama_cpp.convert import write_gguf


@cache
def gguf_file(name: str) -> Path:
    """Returns an embedded model in llama.cpp's format."""
    path = Path(mkdtemp(prefix="gguf-")) / f"{name}.gguf"
    write_gguf(member_path(name), path)
    return path


def embedded_serving(num_draft_tokens: int = 5, num_slots: int = 1) -> Serving:
    """Returns the embedded pair, served with one thread."""
    return Serving(gguf_file("target"), gguf_file("drafter"), num_draft_tokens, num_slots, threads=1)


@contextmanager
def llama_cpp_server(
    name: str = "ar", num_draft_tokens: int = 5, synthetic_length: float | None = None, num_slots: int = 1,
    target: Path | None = None,
) -> Iterator[str]:  # fmt: skip
    """Yields the address of a server of `target`, by default the embedded one. `name`: ar, draft or ngram."""
    serving = embedded_serving(num_draft_tokens, num_slots) if target is None else Serving(target, threads=1)
    with serving.server(name, synthetic_length=synthetic_length) as address:
        yield address
