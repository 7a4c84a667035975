"""`specbench serve-llama-cpp`."""

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.arguments import path_option
from specbench.core.console import stderr, stdout
from specbench.core.errors import ConfigError
from specbench.core.files import check_output, write_output
from specbench.core.progress import doing


def serve_llama_cpp(
    target: Annotated[Path, typer.Argument(metavar="TARGET.gguf", help="GGUF file of the target.")],
    drafter: Annotated[
        Path | None, path_option(help="GGUF file of the draft model; without it there is no server `draft`.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or hub id of the target's tokenizer; by default the one in its file.")
    ] = None,
    draft_tokens: Annotated[int, typer.Option(min=1, help="Maximum draft tokens per step.")] = 5,
    slots: Annotated[int, typer.Option(min=1, help="Concurrent requests per server, for `load`.")] = 1,
    context: Annotated[int, typer.Option(min=256, help="Context of each slot, in tokens.")] = 4096,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of each server.")] = None,
    gpu_layers: Annotated[
        int | None, typer.Option(min=0, help="Layers to put on a GPU, if the package supports one.")
    ] = None,
    hardware: Annotated[str | None, typer.Option(help="Name of the machine in rows; by default its CPU.")] = None,
    output: Annotated[Path, path_option(help="File to write for `specbench run --servers`.")] = Path("servers.yaml"),
) -> None:
    """Start llama.cpp servers of a GGUF file until Ctrl-C, and write the file that names them.

    ar decodes without speculation, draft with the draft model, ngram with copies of earlier n-grams. They run in this
    process, by xllamacpp (extra `llama-cpp`), so that no engine has to be installed.
    """
    from specbench.integrations.served.llama_cpp import Serving
    from specbench.models.machine import environment

    serving = Serving(target, drafter, draft_tokens, slots, context, threads, gpu_layers)
    serving.check()
    check_output("--output", output)
    if output.exists():
        raise ConfigError(f"--output {output}: exists: name another file, or delete it")
    machine = hardware or str(environment("cpu", "float32", "sdpa")["device"]).rpartition(", ")[0]
    with ExitStack() as stack:
        with doing(f"loading {target.name}"):
            addresses = stack.enter_context(serving.servers())
        write_output("--output", output, serving.file(addresses, tokenizer or str(target), machine))
        for name, address in addresses.items():
            stdout.print(f"{name}: {address}", soft_wrap=True)
        stdout.print(f"measure them: specbench run --task mgsm --servers {output}; Ctrl-C ends them", soft_wrap=True)
        try:
            wait()
        except KeyboardInterrupt:
            stderr.print("ended")


def wait() -> None:
    """Waits until it is interrupted."""
    threading.Event().wait()
