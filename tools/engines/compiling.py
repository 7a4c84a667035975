"""The time of compiling at a first start and at a second one, when torch has its compiled code on disk.

`python -m tools.engines.compiling` compiles what speculative decoding needs of the embedded pair and prints the
seconds: the whole of it in a process of its own, as a run begins.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

from specbench.running.capture_plan import allocate_and_capture_for
from specbench.specs.catalogue import load_method

NUM_TOKENS = 300
CACHE = "TORCHINDUCTOR_CACHE_DIR"


def starts() -> list[float]:
    """The seconds of a first and of a second start, with a folder for torch's cache that begins empty."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tools.engines.compiling"]
        surroundings = {**os.environ, CACHE: folder}
        return [
            float(subprocess.run(command, env=surroundings, check=True, stdout=subprocess.PIPE, text=True).stdout)
            for _ in range(2)
        ]


def main() -> None:
    """Compiles, and prints the seconds."""
    argparse.ArgumentParser(
        prog="python -m tools.engines.compiling", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()  # fmt: skip
    import torch

    from tools.engines.methods import load

    torch.set_num_threads(1)
    methods = [load_method(name) for name in ("ar", "sd")]
    models = load(methods, "compiled")
    started = time.perf_counter()
    allocate_and_capture_for(models, methods, NUM_TOKENS, progress=lambda line: None)
    print(time.perf_counter() - started)


if __name__ == "__main__":
    main()
