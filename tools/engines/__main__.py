"""Measures both engines and transformers' own generation on the embedded family, and prints a table.

With --write it also measures how long compiling takes, the limits of both engines and the speed-up at a prescribed
acceptance rate, and writes docs/measured/engines.md. This takes about an hour on one core, and nothing else should
run beside it.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from specbench.core.table import markdown_table
from specbench.models.machine import environment
from specbench.results.metric_format import with_interval
from tools.bench_transformers import ratio
from tools.engines import compiling, methods

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measured" / "engines.md"
PAIR = ("--target", "embedded:target", "--drafter", "embedded:drafter")
HEAD = """# The engines on a CPU, and what the hardware allows

`python -m tools.engines --write` wrote this page on {device}, in float32, with torch {torch} and transformers
{transformers}. It measures a CPU. On a GPU, `python -m tools.bench_gpu` compares AR and drafting with the bounds
of the hardware: see [the engines on a GPU](gpu.md).

The figures are of commit {commit}. [Compiled passes](../notes/compiling.md) describes how passes are compiled.

## Engines and methods

Models are the embedded family, decoding is greedy, on {prompts} prompts in {languages} languages with at most 96 new
tokens. Tokens/s include prefill; ratios have 95 % intervals over prompts.

- transformers: its own `generate`, assisted generation, prompt lookup and universal assisted generation.
- Equal outputs: the prompts on which all sides of the line emit the same tokens.
- Overhead: the share of the decode time that is not a forward pass.
- Compiled drafters with tokens of their own have room for twice the target's tokens, those of bytes for six times.
- Wanted: compiled ÷ transformers at least 2.0 for ar and sd, overhead of compiled ar at most 10 %, equal outputs on
  every prompt.

"""
SPEEDUPS = """
The faster AR is, the smaller is the speed-up over it, so speed-ups of one engine say little about another.

"""
COMPILING = """
## What compiling takes

Compiling ar and sd on the embedded pair, for conversations of {tokens} tokens, took {first:.0f} s at a first
start, and {second:.0f} s at a second one, when torch had its compiled code on disk. All decoder layers of a pass call
the compiled code of one layer.
"""
LIMITS = """
## `specbench roofline`, {engine}

```
{text}
```
"""
BENCH = "--parts passes,formula --engines transformers,eager,compiled --device cpu --prompts 8 --limit-seconds 3600"
RANDOM = """
## Random weights, and the formula

`python -m tools.bench_gpu {words}`
is the script that measures [engines on a GPU](gpu.md). Here its target has 6 layers of 384 and its drafter 2 layers of
128, in float32. In the part `formula` the drafter agrees with the target with probability α. f counts a verifying pass
as one single-token pass, like the formula of arXiv:2211.17192 (theorem 3.8); f with v counts it as measured. On a CPU a
pass over six tokens costs more than a single-token pass, so there only f with v can be reached.

```
{text}
```
"""


def speedups(lines: Sequence[methods.Line]) -> list[list[str]]:
    """The speed-up of every method over AR, by engine."""
    plain = lines[0]
    return [
        [line.method, *(with_interval(ratio(own, other)) if own and other else "–" for own, other in (
            (line.eager, plain.eager), (line.compiled, plain.compiled), (line.transformers, plain.transformers)
        ))] for line in lines[1:]
    ]  # fmt: skip


def said(module: str, *words: str) -> str:
    """Returns the output of a command."""
    surroundings = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-m", module, *words], env=surroundings, check=True, stdout=subprocess.PIPE, text=True
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def page(lines: Sequence[methods.Line]) -> Iterator[str]:
    known = environment("cpu", "float32", "sdpa")
    num_prompts = len(lines[0].eager)
    yield HEAD.format(
        device=known["device"], commit=(known["commit"] or "unknown")[:7], torch=known["versions"]["torch"],
        transformers=known["versions"]["transformers"],
        prompts=num_prompts, languages=num_prompts // methods.PER_LANGUAGE,
    )  # fmt: skip
    yield markdown_table(methods.HEAD, [line.cells() for line in lines]) + "\n"
    yield SPEEDUPS + markdown_table(("method ÷ ar", "eager", "compiled", "transformers"), speedups(lines)) + "\n"
    first, second = compiling.starts()
    yield COMPILING.format(tokens=compiling.NUM_TOKENS, first=first, second=second)
    for engine in ("eager", "compiled"):
        yield LIMITS.format(engine=engine, text=said("specbench", "roofline", *PAIR, "--engine", engine))
    yield RANDOM.format(words=BENCH, text=said("tools.bench_gpu", *BENCH.split()))


def main() -> None:
    """Prints the table of engines and methods, and writes the page if asked to."""
    parser = argparse.ArgumentParser(prog="python -m tools.engines", description=__doc__)
    parser.add_argument("--write", action="store_true", help="measure everything and write the page")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    for line in methods.lines():
        lines.append(line)
        print(" | ".join(line.cells()), flush=True)
    if asked.write:
        PAGE.write_text("".join(page(lines)), encoding="utf-8")


if __name__ == "__main__":
    main()
