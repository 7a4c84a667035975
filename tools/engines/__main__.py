"""`python -m tools.engines` measures both engines and transformers' own generation on the embedded family, and
prints a table; `--write` also what compiling takes, the limits of both engines and the speed-up at a prescribed
acceptance rate, and makes docs/measured/engines.md of it all. On two cores that takes 20 minutes: nothing else
should run."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from specbench.results.environment import environment
from tools.engines import compiling, methods

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measured" / "engines.md"
PAIR = ("--target", "embedded:target", "--drafter", "embedded:drafter")
HEAD = """# The two engines, and what the hardware allows

Written by `python -m tools.engines --write` on {device}, float32, torch {torch}, transformers
{transformers}. Nothing here was measured on a GPU: CUDA graphs, and what is wanted of them (AR at 0.75 of the bandwidth
bound, drafting at 0.5 of its own), are untried. `python -m tools.bench_limit` measures that where there is one.

## Engines and methods

The embedded family, greedy, {prompts} prompts in {languages} languages, at most 96 new tokens; tokens/s with prefill;
ratios with 95 % over prompts. transformers' own: `generate`, assisted generation, prompt lookup and universal assisted
generation. Compiled drafters with tokens of their own have room for twice the target's tokens, of bytes for six times.
Equal outputs: the prompts on which all sides of the line emit the same tokens. Overhead: the share of the
decode time that is no forward pass. Wanted: compiled ÷ transformers at least 2.0 for ar and sd, overhead of compiled ar
at most 10 %, equal outputs on every prompt.

"""
SPEEDUPS = """
The speed-up over AR is the smaller the faster AR is: what one engine's methods gain says little about another's.

"""
COMPILING = """
## What compiling takes

ar and sd on the embedded pair, for conversations of {tokens} tokens, in a process of its own: {first:.0f} s at a first
start, {second:.0f} s at a second one, when torch has its compiled code on disk.
"""
LIMITS = """
## `specbench limit`, {engine}

```
{text}
```
"""
SYNTHETIC = """
## Measured and expected speed-up

`python -m tools.bench_limit --small`: models of 16 layers of 256 and 2 of 64 with random weights, compiled, and a
drafter that agrees with the target with probability α. f takes a verifying pass for one single-token pass, as the
formula of arXiv:2211.17192 (theorem 3.8) does; f with v takes it as it is measured. On a CPU a pass over six tokens is
no single pass: there only f with v can be met.

```
{text}
```
"""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return "".join(f"{line}\n" for line in lines)


def speedups(lines: Sequence[methods.Line]) -> list[list[str]]:
    """The speed-up of every method over AR, by engine."""
    plain = lines[0]
    return [
        [line.method, *(methods.ratio(own, other) if own and other else "–" for own, other in (
            (line.eager, plain.eager), (line.compiled, plain.compiled), (line.transformers, plain.transformers)
        ))] for line in lines[1:]
    ]  # fmt: skip


def said(module: str, *words: str) -> str:
    """What a command prints."""
    surroundings = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-m", module, *words], env=surroundings, check=True, stdout=subprocess.PIPE, text=True
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def page(lines: Sequence[methods.Line]) -> Iterator[str]:
    known = environment("cpu", "float32", "sdpa")
    num_prompts = len(lines[0].eager)
    yield HEAD.format(
        device=known["device"], torch=known["versions"]["torch"], transformers=known["versions"]["transformers"],
        prompts=num_prompts, languages=num_prompts // methods.PER_LANGUAGE,
    )  # fmt: skip
    yield table(methods.HEAD, [line.cells() for line in lines])
    yield SPEEDUPS + table(("method ÷ ar", "eager", "compiled", "transformers"), speedups(lines))
    first, second = compiling.starts()
    yield COMPILING.format(tokens=compiling.NUM_TOKENS, first=first, second=second)
    for engine in ("eager", "compiled"):
        yield LIMITS.format(engine=engine, text=said("specbench", "limit", *PAIR, "--engine", engine))
    yield SYNTHETIC.format(text=said("tools.bench_limit", "--small"))


def main(words: Sequence[str]) -> None:
    torch.set_num_threads(1)
    lines = []
    for line in methods.lines():
        lines.append(line)
        print(" | ".join(line.cells()), flush=True)
    if "--write" in words:
        PAGE.write_text("".join(page(lines)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
