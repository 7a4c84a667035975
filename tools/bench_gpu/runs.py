"""The embedded pair through the command line: speed-ups, verdicts, and AR in fresh processes."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.bench_gpu.models import own_engines, say


def own_methods() -> list[str]:
    """The methods whose passes are ours, which every engine runs."""
    from specbench.specs.catalogue import load_method, method_names

    return [name for name in method_names() if load_method(name).decoder is None]


def specbench(args: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "specbench", *args], capture_output=True, text=True, check=False)


def methods(args: argparse.Namespace) -> None:
    """The embedded pair with every method, by each engine: speed-ups over AR of the same engine."""
    for engine in own_engines(args):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            said = specbench([
                "run", "--task", "mgsm", "--subset", "en", "--limit", str(args.prompts), "--device", args.device,
                "--method", ",".join(args.methods or own_methods()), "--engine", engine, "--output", folder,
                "--set", "generation.max_new_tokens=96",
            ])  # fmt: skip
            say(f"{engine}: exit code {said.returncode} after {time.perf_counter() - start:.0f} s")
            board = Path(folder) / "leaderboard.json"
            if said.returncode or not board.exists():
                say(said.stderr[-600:])
                continue
            for row in json.loads(board.read_text())["rows"]:
                found = {name: row["metrics"].get(name) for name in ("tokens_per_second", "speedup", "acceptance_rate")}
                say(f"{engine} · {row['method'].partition('@')[0]}: {found}, engine {row['engine']}, {row['verdict']}")


def verdicts(args: argparse.Namespace) -> None:
    """Checks whether methods write AR's greedy outputs in bfloat16, near-ties told apart."""
    for engine in own_engines(args):
        said = specbench([
            "audit", "--task", "mgsm", "--subset", "en", "--limit", str(args.prompts), "--device", args.device,
            "--dtype", "bfloat16", "--method", ",".join(args.methods or ["sd", "pld", "slem", "tli"]), "--draws", "0",
            "--engine", engine, "--set", "generation.max_new_tokens=64",
        ])  # fmt: skip
        say(f"{engine}: exit code {said.returncode}")
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
