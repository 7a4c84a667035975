"""Measures the engines, on a GPU if there is one, part by part, and prints every figure as soon as it is there.

    python -m tools.bench_gpu    # all parts; a GPU runs the shapes of Qwen2.5-7B and 0.5B, a CPU small ones
    python -m tools.bench_gpu --parts passes,formula --limit-seconds 240

Weights are random: a pass costs what it costs with any. Every part runs in a process of its own, which ends after its
limit of seconds; what was printed until then stays. A copy from device memory to device memory gives the bandwidth
that passes are compared with, bytes read and bytes written counted.
"""

import argparse
import os
import signal
import subprocess
import sys

import torch

from tools.bench_gpu.formula import formula
from tools.bench_gpu.models import PAIRS, say
from tools.bench_gpu.passes import passes
from tools.bench_gpu.runs import greedy_tokens, methods, series

PARTS = {"passes": passes, "formula": formula, "methods": methods, "greedy-tokens": greedy_tokens, "series": series}
ENGINES = ("transformers", "transformers-static", "eager", "graphs", "compiled")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--engines", default=",".join(ENGINES), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--shapes", choices=list(PAIRS), help="default: qwen on a GPU, small on a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit-seconds", type=float, default=300, help="of each part")
    parser.add_argument("--methods", type=lambda text: text.split(","), help="of the parts methods and greedy-tokens")
    parser.add_argument("--prompts", type=int, default=5, help="of the parts formula, methods and greedy-tokens")
    parser.add_argument("--processes", type=int, default=3, help="fresh ones, of the part series")
    parser.add_argument("--here", action="store_true", help="one part in this process, without a limit")
    args = parser.parse_args()
    args.engines = args.engines.split(",")
    args.shapes = args.shapes or ("small" if args.device == "cpu" else "qwen")
    for given, known in ((args.parts.split(","), PARTS), (args.engines, ENGINES)):
        if wrong := [name for name in given if name not in known]:
            parser.error(f"'{wrong[0]}': the choices are {', '.join(known)}")
    if args.device == "cpu":  # has no graphs
        args.engines = [engine for engine in args.engines if engine != "graphs"]
    return args


def main() -> int:
    args = parsed()
    if args.device == "cpu":
        torch.set_num_threads(1)
    if args.here:
        with torch.inference_mode():
            PARTS[args.parts](args)
        return 0
    worst = 0
    for part in args.parts.split(","):
        print(f"## {part}", flush=True)
        command = [sys.executable, "-m", "tools.bench_gpu", *sys.argv[1:], "--parts", part, "--here"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            code = process.wait(args.limit_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the runs that the part has started
            process.wait()
            say(f"{part}: ended after its limit of {args.limit_seconds:.0f} s")
            code = 1
        worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
