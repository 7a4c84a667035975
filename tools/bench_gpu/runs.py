"""The embedded pair through the command line: speed-ups, greedy tokens, and AR in fresh processes."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.sampling import Sampling
from specbench.results.leaderboard import load
from specbench.results.metric_format import with_interval
from specbench.running.models import load_models
from specbench.running.request import Request, run_spec
from specbench.specs.catalogue import load_method, method_names
from specbench.specs.run_options import RunOptions
from tools.bench_gpu.models import own_engines, say

METRICS = {"tokens_per_second": "tokens/s", "speedup": "speed-up", "acceptance_rate": "acceptance rate"}


@cache
def own_methods() -> list[str]:
    """Returns the methods whose passes are ours, which every engine runs, and that fit the embedded pair. Says which
    ones do not fit."""
    own = [method for method in map(load_method, method_names()) if method.decoder is None]
    request = Request(["mgsm"], [method.name for method in own], RunOptions(device="cpu"), "")
    pair = load_models(run_spec(request)).pair
    fitting = []
    for method in own:
        try:
            build_decoder(method, pair(method), Sampling(0.0))
            fitting.append(method.name)
        except ConfigError as error:
            say(f"{method.name} is left out: {error}")
    return fitting


def specbench(args: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "specbench", *args], capture_output=True, text=True, check=False)


def methods(args: argparse.Namespace) -> None:
    """The embedded pair with every method, by each engine: speed-ups over AR of the same engine. Each method has a run
    of its own, so that its figures are printed before the next one begins."""
    for engine in own_engines(args):
        for method in args.methods or own_methods():
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                said = specbench([
                    "run", "--task", "mgsm", "--subset", "en", "--limit", str(args.prompts), "--device", args.device,
                    "--method", method, "--engine", engine, "--output", folder, "--set",
                    "generation.max_new_tokens=96",
                ])  # fmt: skip
                say(f"{engine} · {method}: exit code {said.returncode} after {time.perf_counter() - start:.0f} s")
                board = Path(folder) / "leaderboard.json"
                if said.returncode or not board.exists():
                    say(said.stderr[-600:])
                    continue
                for row in load(board):
                    found = ", ".join(f"{words} {with_interval(row.metric(name))}" for name, words in METRICS.items())
                    say(f"{engine} · {row.method_name}: {found}, engine {row.engine}, {row.verdict}")


def greedy_tokens(args: argparse.Namespace) -> None:
    """Checks whether methods write AR's greedy outputs in bfloat16, near-ties told apart. Each has its own command."""
    for engine in own_engines(args):
        for method in args.methods or own_methods():
            said = specbench([
                "audit", "--task", "mgsm", "--subset", "en", "--limit", str(args.prompts), "--device", args.device,
                "--dtype", "bfloat16", "--method", method, "--draws", "0", "--engine", engine, "--set",
                "generation.max_new_tokens=64",
            ])  # fmt: skip
            say(f"{engine} · {method}: exit code {said.returncode}")
            for line in (said.stdout or said.stderr[-600:]).splitlines():
                say(f"{engine} · {line}")


def series(args: argparse.Namespace) -> None:
    """AR's seconds per token, answer by answer, in fresh processes."""
    for engine in own_engines(args):
        for number in range(args.processes):
            with tempfile.TemporaryDirectory() as folder:
                said = specbench([
                    "run", "--task", "mgsm", "--subset", "en", "--limit", "16", "--device", args.device, "--method",
                    "ar", "--engine", engine, "--output", folder, "--set", "generation.max_new_tokens=64",
                ])  # fmt: skip
                records = Path(folder) / "records.jsonl"
                if said.returncode or not records.exists():
                    say(said.stderr[-600:])
                    continue
                answers = [json.loads(line)["methods"]["ar"] for line in records.read_text().splitlines()]
            per_token = [1e3 * a["decode_seconds"] / max(1, len(a["token_ids"]) - 1) for a in answers]
            say(f"{engine}, process {number + 1}: ms per token " + " ".join(f"{value:.2f}" for value in per_token))
