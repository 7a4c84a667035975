"""The engine llama.cpp beside the bare C calls of llama.cpp, on the same cache, in turns, in one process.

`python -m tools.engines.gguf FILE.gguf` prints a line for each of

    pass of n      `llama_decode` of n tokens behind others, and the address of their logits, which are not copied,
                   against a pass of the engine over the same tokens
    token          the same calls for one token after the other, against a token of the decode loop, autoregressive and
                   greedy

with the median and the shortest time of both in milliseconds, and engine ÷ bare: the median of the ratios of turns, and
the ratio of the shortest times. The last line has what a pass and a token take if the calls compute nothing, which is
Python's and torch's part; other programs hardly change it, but it is longer behind a pass, which empties the caches.

`--spins 300000,10000,1000` then measures bare passes in alternating processes, in each of which idle threads of OpenMP
look for work so many times before they sleep (GOMP_SPINCOUNT; 300,000 is its default, some milliseconds). Where the
threads of a pass lack cores of their own, each waits so long at every operation.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from specbench.analysis.roofline.roofline import NUM_TOKENS, generate
from specbench.core.table import markdown_table
from specbench.decoding.drafters import NoDrafter
from specbench.models.causal_lm import CausalLM
from specbench.models.gguf.engine import Context, LlamaSequence
from specbench.models.gguf.options import GgufOptions
from specbench.models.loading import load_model
from specbench.models.meters import HOST

LENGTHS = (1, 6, 16)
CONTEXT = 128
TEXT = Path(__file__).resolve().parents[2] / "README.md"
HEAD = ("", "bare, ms", "shortest", "engine, ms", "shortest", "engine ÷ bare", "of the shortest")
SPIN_TURNS = 5
Pair = tuple[list[float], list[float]]  # the seconds of turns: bare, and by the engine


def context_of(model: CausalLM) -> Context:
    assert isinstance(model.sequence, LlamaSequence)
    return model.sequence.context


class Bare:
    """The C calls of a pass, with arrays that are filled before."""

    def __init__(self, context: Context, tokens: Sequence[int], start: int) -> None:
        self.context, self.api = context, context.api
        self.batch = self.api.llama_batch_init(len(tokens), 0, 1)
        self.batch.n_tokens = len(tokens)
        for place, token in enumerate(tokens):
            self.batch.token[place], self.batch.pos[place] = token, start + place
            self.batch.n_seq_id[place], self.batch.seq_id[place][0], self.batch.logits[place] = 1, 0, 1

    def __call__(self) -> None:
        result = self.api.llama_decode(self.context.handle, self.batch)
        assert result == 0 and self.api.llama_get_logits_ith(self.context.handle, 0)


def run_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


class NoComputing:
    """llama.cpp's interface in which passes over at most `longest` tokens compute nothing; their logits are old ones of
    the last pass."""

    def __init__(self, api: Any, longest: int) -> None:
        self.api, self.longest = api, longest

    def __getattr__(self, name: str) -> Any:
        return getattr(self.api, name)

    def llama_decode(self, handle: Any, batch: Any) -> int:
        if batch.n_tokens <= self.longest:
            return 0
        result: int = self.api.llama_decode(handle, batch)
        return result

    def llama_get_logits_ith(self, handle: Any, place: int) -> Any:
        return self.api.llama_get_logits_ith(handle, -1 if self.longest == 1 else place)


def seconds_of(call: Callable[[], object]) -> float:
    start = HOST.now()
    call()
    return HOST.now() - start


def token_seconds(model: CausalLM, prompt: list[int]) -> tuple[float, list[int]]:
    """Returns the seconds of a token of the decode loop, and the tokens."""
    made = generate(model, NoDrafter(), prompt, 0)
    return made.decode_seconds / (len(made.token_ids) - 1), made.token_ids


def measure(model: CausalLM, ids: list[int], num_turns: int) -> dict[str, Pair]:
    """Returns the seconds of `num_turns` turns. The order of both alternates."""
    context, prompt = context_of(model), ids[:CONTEXT]
    found: dict[str, Pair] = {}

    def add(name: str, turn: int, bare: Callable[[], float], engine: Callable[[], float]) -> None:
        calls = ((0, bare), (1, engine))
        pair = found.setdefault(name, ([], []))
        for place, call in calls if turn % 2 else calls[::-1]:
            model.rollback(CONTEXT)
            model.score(prompt, 1)  # what both find: the prompt in the cache, and its last token read
            pair[place].append(call())
            context.cut(CONTEXT)

    passes = {length: Bare(context, ids[CONTEXT : CONTEXT + length], CONTEXT) for length in LENGTHS}
    _, tokens = token_seconds(model, prompt)
    steps = [Bare(context, [token], CONTEXT + place) for place, token in enumerate(tokens[:-1])]
    for turn in range(num_turns + 1):
        for length in LENGTHS:
            whole = ids[: CONTEXT + length]
            add(
                f"pass of {length}", turn, lambda length=length: seconds_of(passes[length]),  # type: ignore[misc]
                lambda whole=whole, length=length: seconds_of(lambda: model.score(whole, length)),  # type: ignore[misc]
            )  # fmt: skip
        add(
            "token", turn, lambda: seconds_of(lambda: run_all(steps)) / len(steps),
            lambda: token_seconds(model, prompt)[0],
        )  # fmt: skip
        if turn == 0:  # it does not count
            found.clear()
    return found


def own_seconds(model: CausalLM, ids: list[int], num_turns: int) -> dict[str, float]:
    """Returns the shortest seconds of passes and tokens that compute nothing."""
    context, prompt = context_of(model), ids[:CONTEXT]
    api, found = context.api, {}
    try:
        for length in LENGTHS:
            whole = ids[: CONTEXT + length]
            model.rollback(CONTEXT)
            model.score(whole, length)  # whose logits are copied again and again
            context.api = NoComputing(api, length)
            turns = []
            for _ in range(20 * num_turns):
                model.rollback(CONTEXT)
                turns.append(seconds_of(lambda whole=whole, length=length: model.score(whole, length)))  # type: ignore[misc]
            found[f"pass of {length}"], context.api = min(turns), api
        context.api = NoComputing(api, 1)
        found["token"] = min(token_seconds(model, prompt)[0] for _ in range(num_turns))
    finally:
        context.api = api
    return found


def line(name: str, pair: Pair) -> list[str]:
    bare, engine = pair
    ratios = [second / first for first, second in zip(bare, engine, strict=True)]
    times = [f"{1e3 * value:.2f}" for each in pair for value in (median(each), min(each))]
    return [name, *times, f"{median(ratios):.3f}", f"{min(engine) / min(bare):.3f}"]


def in_processes(arguments: Sequence[str], spins: Sequence[str]) -> list[list[str]]:
    """Returns a line for each number of spins: the shortest and the median milliseconds of bare passes."""
    found: dict[str, dict[str, list[float]]] = {spin: {} for spin in spins}
    for _ in range(SPIN_TURNS):
        for spin in spins:
            printed = subprocess.run(
                [sys.executable, "-m", "tools.engines.gguf", *arguments, "--turns", "3", "--json"],
                env={**os.environ, "GOMP_SPINCOUNT": spin}, stdout=subprocess.PIPE, text=True, check=True,
            ).stdout  # fmt: skip
            for name, (bare, _) in json.loads(printed).items():
                found[spin].setdefault(name, []).extend(bare)
    return [
        [spin, *(f"{1e3 * min(turns):.2f} ({1e3 * median(turns):.2f})" for turns in lines.values())]
        for spin, lines in found.items()
    ]


def main() -> None:
    """Measures and prints the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.engines.gguf", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a GGUF file, or another name of a GGUF model")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cache-dtype", choices=("float16", "float32"), default="float16")
    parser.add_argument("--spins", default="", help="numbers of spins, with commas between")
    parser.add_argument("--json", action="store_true", help="print the seconds of all turns")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.threads == 1:
        HOST.leave_out_waits()
    model = load_model(given.model, device="cpu", engine="llama.cpp", gguf=GgufOptions(cache_dtype=given.cache_dtype))
    ids: list[int] = model.tokenizer(TEXT.read_text(encoding="utf-8"))["input_ids"]
    model.sequence.make_room(CONTEXT + NUM_TOKENS + max(LENGTHS))
    with torch.inference_mode():
        found = measure(model, ids, given.turns)
        if given.json:
            print(json.dumps(found))
            return
        print(f"{given.model}, {model.precision}, {model.attention}, {given.threads} threads, {given.turns} turns\n")
        print(markdown_table(HEAD, [line(name, pair) for name, pair in found.items()]))
        own = own_seconds(model, ids, given.turns)
    print("\nof these, if the calls compute nothing: " + ", ".join(f"{k} {1e6 * v:.0f} µs" for k, v in own.items()))
    if given.spins:
        arguments = [given.model, "--threads", str(given.threads), "--cache-dtype", given.cache_dtype]
        names = [f"{name}, bare ms (median)" for name in found]
        print("\n" + markdown_table(("spins", *names), in_processes(arguments, given.spins.split(","))))


if __name__ == "__main__":
    main()
