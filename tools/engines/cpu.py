"""The ways in which a CPU computes with the weights of a bfloat16 checkpoint, beside the machine's bandwidth.

`python -m tools.engines.cpu MODEL` (a folder or a hub id) loads the model once for each way and prints a line for it:

    plain     torch's own products and attention, as transformers runs them
    packed    what `--engine eager` does in bfloat16 on a CPU
    int8      `--quantize int8`
    int4      `--quantize int4`
    frozen    whole passes compiled with torch's freezing, which no engine does; only with `--ways ...,frozen`

A way is timed in turns with copies of as many bytes as a pass reads, so that both meet the same load of the machine. Of
each quantity the line has the median over turns:

    ready     seconds from the files to the first pass, or until all passes are compiled
    token     milliseconds of a token in the decode loop, autoregressive and greedy; of frozen passes, of the pass
    pass      milliseconds of a pass over one token
    GB/s      the bytes that it reads by these seconds
    share     the seconds of copying as many bytes ÷ those of a token
    v(n)      a pass over n tokens ÷ one over a single token
    KL, flips on a text, of the next token's distribution against plain: the mean Kullback–Leibler divergence, and the
              share of positions whose most probable token differs
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from transformers.cache_utils import Cache

from specbench.analysis.roofline.roofline import RateBenchmark, generate, work_of
from specbench.core.table import markdown_table
from specbench.decoding.drafters import NoDrafter
from specbench.models.causal_lm import CausalLM
from specbench.models.eager import EagerSequence
from specbench.models.kv_cache import StaticLayer, cache_parameter, preallocated_cache
from specbench.models.loading import load_model
from specbench.models.meters import HOST
from specbench.models.packed import product_rates, stored_layers

Way = Literal["plain", "packed", "int8", "int4", "frozen"]
WAYS: tuple[Way, ...] = ("plain", "packed", "int8", "int4")
HEAD = ("way", "ready, s", "GB read", "token, ms", "pass, ms", "GB/s", "share", "v(6)", "v(16)", "KL", "flips")
LENGTHS = (1, 6, 16)
CONTEXT = 128
TEXT = Path(__file__).resolve().parents[2] / "README.md"
NUM_TEXT_TOKENS = 200
Passes = dict[int, Callable[[], object]]  # by the number of tokens


@dataclass
class Line:
    """One way. The seconds of turns: of a token, of a pass by its tokens, and of copying as many bytes as it reads."""

    way: str
    ready: float
    num_bytes: float
    divergence: float | None = None
    flips: float | None = None
    token: list[float] = field(default_factory=list)
    passes: dict[int, list[float]] = field(default_factory=dict)
    copies: list[float] = field(default_factory=list)

    def cells(self) -> list[str]:
        single = self.passes[1]
        return [
            self.way, f"{self.ready:.1f}", f"{self.num_bytes / 1e9:.2f}", f"{1e3 * median(self.token):.1f}",
            f"{1e3 * median(single):.1f}", f"{self.num_bytes / median(single) / 1e9:.1f}",
            f"{quotient(self.copies, self.token):.2f}",
            *(f"{quotient(self.passes[length], single):.2f}" for length in LENGTHS[1:]),
            "–" if self.divergence is None else f"{self.divergence:.4f}",
            "–" if self.flips is None else f"{self.flips:.1%}",
        ]  # fmt: skip


def quotient(above: Sequence[float], below: Sequence[float]) -> float:
    """Returns the median of the ratios of turns."""
    return median(first / second for first, second in zip(above, below, strict=True))


def load(name: str, way: Way) -> CausalLM:
    quantize: Any = way if way in ("int8", "int4") else "none"
    model = load_model(name, device="cpu", dtype="bfloat16", quantize=quantize)
    if way in ("plain", "frozen"):
        for layer in stored_layers(model.model):
            layer.restore()
        assert isinstance(model.sequence, EagerSequence)
        model.sequence.groups_heads = False
    return model


def eager_passes(model: CausalLM, ids: list[int]) -> Passes:
    """Returns passes over the tokens after the first CONTEXT of `ids`."""
    model.reset()
    model.score(ids[:CONTEXT], 1)

    def read(length: int) -> None:
        model.score(ids[: CONTEXT + length], length)
        model.rollback(CONTEXT)

    return {length: lambda length=length: read(length) for length in LENGTHS}  # type: ignore[misc]


def frozen_passes(model: CausalLM, ids: list[int]) -> Passes:
    """Compiles whole passes over static buffers, in which the weights are constants that the compiler packs."""
    network = model.model
    start = torch.tensor(CONTEXT)
    layers = [
        StaticLayer(bool(getattr(layer, "is_sliding", False)), CONTEXT + max(LENGTHS), start, None)
        for layer in preallocated_cache(network.config, model.name).layers
    ]
    named = {cache_parameter(network.forward): Cache(layers=[*layers]), "use_cache": True}

    def forward(tokens: torch.Tensor) -> torch.Tensor:
        places = start + torch.arange(tokens.shape[1])
        logits: torch.Tensor = network(input_ids=tokens, position_ids=places[None], **named).logits
        return logits

    made: Passes = {}
    with torch._inductor.config.patch(freezing=True):  # it counts while the weights are traced
        forward(torch.tensor([ids[:1]]))  # allocates the buffers
        for length in LENGTHS:
            tokens = torch.tensor([ids[CONTEXT : CONTEXT + length]])
            compiled = torch.compile(lambda tokens: forward(tokens), fullgraph=True, dynamic=False)
            compiled(tokens)
            made[length] = lambda compiled=compiled, tokens=tokens: compiled(tokens)  # type: ignore[misc]
    return made


def log_probs(model: CausalLM, ids: list[int]) -> torch.Tensor:
    """Returns the log-probabilities after each token of a text: [num_tokens, vocab_size]."""
    model.reset()
    found = model.score(ids, len(ids)).logits.float().log_softmax(-1)
    model.reset()
    return found


def measured(
    name: str, ways: Sequence[Way], num_turns: int, say: Callable[[str], None]
) -> Iterator[tuple[Line, list[str]]]:
    """Yields the line of each way, and a line for each shape of its products."""
    expected: torch.Tensor | None = None
    for way in ways:
        say(f"{way}: loading")
        began = time.perf_counter()
        model = load(name, way)
        text: list[int] = model.tokenizer(TEXT.read_text(encoding="utf-8"))["input_ids"][:NUM_TEXT_TOKENS]
        work = work_of(model)
        if way == "frozen":
            passes = frozen_passes(model, text)
        else:
            model.score(text[:1], 1)
        line = Line(way, time.perf_counter() - began, work.bytes_read(1, CONTEXT))
        if way != "frozen":
            found = log_probs(model, text)
            expected = found if expected is None else expected
            line.divergence = float((expected.exp() * (expected - found)).sum(-1).mean())
            line.flips = float((expected.argmax(-1) != found.argmax(-1)).double().mean())
            passes = eager_passes(model, text)
        benchmark = RateBenchmark(model.device, model.model.dtype, int(line.num_bytes))
        for turn in range(-1, num_turns):  # the first one does not count
            say(f"{way}: turn {turn + 1} of {num_turns}")
            seconds = {length: seconds_of(call) for length, call in passes.items()}
            copying = line.num_bytes / benchmark.rates().bytes_per_second
            alone = None if way == "frozen" else generate(model, NoDrafter(), text[:CONTEXT], 0)
            if turn < 0:
                continue
            for length, value in seconds.items():
                line.passes.setdefault(length, []).append(value)
            line.copies.append(copying)
            line.token.append(seconds[1] if alone is None else alone.decode_seconds / (len(alone.token_ids) - 1))
            if way != "frozen":
                passes = eager_passes(model, text)  # the generation has replaced the cached text
        rates = [] if way == "frozen" else product_rates(model.model)
        yield (
            line,
            [
                f"{way}: {rate.number} × {rate.in_features} → {rate.out_features} ({rate.kind}), "
                f"{rate.num_bytes / 1e6:.0f} MB: {rate.bytes_per_second / 1e9:.1f} GB/s"
                for rate in rates
            ],
        )
        del model, passes, benchmark
        gc.collect()


def seconds_of(call: Callable[[], object]) -> float:
    start = HOST.now()
    call()
    return HOST.now() - start


def main() -> None:
    """Measures each way and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.engines.cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="folder or hub id")
    parser.add_argument("--ways", default=",".join(WAYS), help="plain comes first, as the others are compared with it")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.threads == 1:
        HOST.leave_out_waits()
    lines, details = [], []
    with torch.no_grad():
        for line, products in measured(given.model, given.ways.split(","), given.turns, lambda text: None):
            lines.append(line.cells())
            details += products
            print(" | ".join(lines[-1]), flush=True)
    print("\n" + markdown_table(HEAD, lines))
    print("\n".join(details))


if __name__ == "__main__":
    main()
