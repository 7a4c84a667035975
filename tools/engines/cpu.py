"""The ways in which a CPU computes with the weights of one checkpoint, and its peers, beside the machine's bandwidth.

`python -m tools.engines.cpu MODEL --gguf FILE` (a folder or a hub id of a bfloat16 checkpoint, and a GGUF file of the
same model) prints a line for each way. With --write it writes docs/measured/cpu.md.

    transformers    transformers' passes with torch's own products, and the tokens of its own `generate`
    eager           what `--engine eager` does in bfloat16 on a CPU: packed products
    compiled        `--engine compiled`
    int8, int4      `--quantize int8` and `--quantize int4`
    llama.cpp       `--engine llama.cpp` with the GGUF file
    llama.cpp bare  the same calls of llama.cpp without the engine
    openvino        OpenVINO GenAI with the GGUF file, if it is installed
    onnxruntime     ONNX Runtime GenAI with 4-bit weights, made from the checkpoint by its own builder, if it and the
                    packages onnx, onnx-ir and onnxruntime are installed
    frozen          whole passes compiled with torch's freezing, which no engine does; only with `--ways ...,frozen`

A way is timed in turns with copies of as many bytes as a pass reads (1 GB if that is unknown), so that both meet the
same load of the machine.
With --together all ways are loaded at once and take turns with each other too; with 1.5 billion parameters this takes
more than 24 GB of memory. A way that cannot be run is named with the reason. Of each quantity the line has the median
over turns:

    ready     seconds from the files to the first pass, or until all passes are compiled
    token     milliseconds of a token in the decode loop, autoregressive and greedy; of frozen passes, of the pass
    pass      milliseconds of a pass over one token
    GB/s      the bytes that it reads by these seconds
    machine   the GB/s of a copy or a sum, whichever is faster, in the same turn
    moved     the GB that the machine moves in the time of a token, by that rate: these compare between ways that were
              timed in different minutes
    share     GB read ÷ moved
    v(n)      a pass over n tokens ÷ one over a single token
    KL, flips on a text, of the next token's distribution against the first way: the mean Kullback–Leibler divergence,
              and the share of positions whose most probable token differs
"""

import argparse
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import Cache
from transformers.generation.streamers import BaseStreamer

from specbench.analysis.roofline.roofline import NUM_TOKENS, RateBenchmark, work_of
from specbench.core.errors import ConfigError
from specbench.core.table import markdown_table
from specbench.models.causal_lm import CausalLM
from specbench.models.eager import EagerSequence
from specbench.models.kv_cache import StaticLayer, cache_parameter, preallocated_cache
from specbench.models.loading import load_model
from specbench.models.machine import environment
from specbench.models.meters import HOST
from specbench.models.packed import product_rates
from tools.engines.gguf import CONTEXT, LENGTHS, TEXT, Bare, context_of, run_all, seconds_of, token_seconds
from tools.real.models import MODELS

Way = Literal[
    "transformers", "eager", "compiled", "int8", "int4", "llama.cpp", "llama.cpp bare", "openvino", "onnxruntime",
    "frozen",
]  # fmt: skip
WAYS: tuple[Way, ...] = get_args(Way)[:-1]
HEAD = ("way", "ready, s", "GB read", "token, ms", "pass, ms", "GB/s", "machine", "moved", "share", "v(6)", "v(16)",
        "KL", "flips")  # fmt: skip
UNKNOWN_BYTES = 1_000_000_000  # that are moved beside a way whose bytes are unknown
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "measured" / "cpu.md"
NUM_TEXT_TOKENS = 200
TURNS = 9
Passes = dict[int, Callable[[], object]]  # by the number of tokens
Say = Callable[[str], None]


@dataclass
class Line:
    """One way. Of turns: the seconds of a token, those of a pass by its tokens, and the bytes that the machine moves in
    a second."""

    way: str
    ready: float
    num_bytes: float | None
    divergence: float | None = None
    flips: float | None = None
    token: list[float] = field(default_factory=list)
    passes: dict[int, list[float]] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)

    def cells(self) -> list[str]:
        single, num_bytes = self.passes.get(1), self.num_bytes
        moved = [token * rate for token, rate in zip(self.token, self.rates, strict=True)]
        return [
            self.way, f"{self.ready:.1f}", or_dash(num_bytes, lambda size: f"{size / 1e9:.2f}"),
            f"{1e3 * median(self.token):.1f}", or_dash(single, lambda turns: f"{1e3 * median(turns):.1f}"),
            or_dash(num_bytes and single and num_bytes / median(single), lambda rate: f"{rate / 1e9:.1f}"),
            f"{median(self.rates) / 1e9:.1f}", f"{median(moved) / 1e9:.2f}",
            or_dash(num_bytes, lambda size: f"{size / median(moved):.2f}"),
            *(f"{quotient(self.passes[n], single):.2f}" if single else "–" for n in LENGTHS[1:]),
            or_dash(self.divergence, lambda value: f"{value:.4f}"), or_dash(self.flips, lambda value: f"{value:.1%}"),
        ]  # fmt: skip


def or_dash(value: Any, text: Callable[[Any], str]) -> str:
    return "–" if value is None or value == [] else text(value)


def quotient(above: Sequence[float], below: Sequence[float]) -> float:
    """Returns the median of the ratios of turns."""
    return median(first / second for first, second in zip(above, below, strict=True))


@dataclass
class Side:
    """What is measured of a way.

    token: returns the seconds of a token of an autoregressive generation; None if it has passes alone
    begin: makes the passes ready after a generation
    model: by which the distributions are compared; None if the way shows none
    """

    passes: Passes
    token: Callable[[], float] | None
    num_bytes: float | None
    begin: Callable[[], object] = lambda: None
    model: CausalLM | None = None


@dataclass(frozen=True)
class Given:
    """What the ways read: a checkpoint, a GGUF file of the same model, and the ids of a text."""

    name: str
    gguf: str | None
    ids: list[int]

    @property
    def gguf_file(self) -> str:
        if self.gguf is None:
            raise ConfigError("no GGUF file is given: take --gguf FILE")
        return self.gguf


def passes_of(model: CausalLM, ids: list[int]) -> Passes:
    """Returns passes over the tokens after the first CONTEXT of `ids`, which are cached."""

    def read(length: int) -> None:
        model.score(ids[: CONTEXT + length], length)
        model.rollback(CONTEXT)

    return {length: lambda length=length: read(length) for length in LENGTHS}  # type: ignore[misc]


def side_of(model: CausalLM, ids: list[int], token: Callable[[], float] | None = None) -> Side:
    room = max(len(ids), CONTEXT + NUM_TOKENS, CONTEXT + max(LENGTHS))
    if model.static is None:
        model.sequence.make_room(room)
    else:
        model.static.reserve(room, LENGTHS)

    def begin() -> None:
        model.reset()
        model.score(ids[:CONTEXT], 1)

    def alone() -> float:
        return token_seconds(model, ids[:CONTEXT])[0]

    return Side(passes_of(model, ids), token or alone, work_of(model).bytes_read(1, CONTEXT), begin, model)


class Times(BaseStreamer):
    """The times at which `generate` writes its tokens."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.seconds.append(HOST.now())

    def end(self) -> None:
        pass


def plain_model(name: str) -> CausalLM:
    """Returns a checkpoint whose passes are transformers', with torch's own products and attention."""
    network = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16).eval()
    model = CausalLM(network, AutoTokenizer.from_pretrained(name), name, None)
    assert isinstance(model.sequence, EagerSequence)
    model.sequence.groups_heads = False
    return model


def transformers_side(given: Given) -> Side:
    model = plain_model(given.name)
    prompt = torch.tensor([given.ids[:CONTEXT]])

    def token() -> float:
        times = Times()
        model.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), min_new_tokens=NUM_TOKENS, max_new_tokens=NUM_TOKENS,
            do_sample=False, streamer=times, pad_token_id=0,
        )  # fmt: skip
        _, first, *others = times.seconds  # the prompt comes first
        return (others[-1] - first) / len(others)

    return side_of(model, given.ids, token)


def loaded_side(given: Given, **options: Any) -> Side:
    return side_of(load_model(given.name, device="cpu", dtype="bfloat16", **options), given.ids)


def llama_cpp_side(given: Given) -> Side:
    return side_of(load_model(given.gguf_file, device="cpu", engine="llama.cpp"), given.ids)


def bare_side(given: Given) -> Side:
    """The calls of tools.engines.gguf, with arrays that are filled before."""
    side = llama_cpp_side(given)
    model, ids = side.model, given.ids
    assert model is not None
    side.begin()
    context = context_of(model)
    batches = {length: Bare(context, ids[CONTEXT : CONTEXT + length], CONTEXT) for length in LENGTHS}
    steps = [Bare(context, [ids[CONTEXT + place]], CONTEXT + place) for place in range(NUM_TOKENS)]

    def read(length: int) -> None:
        batches[length]()
        context.cut(CONTEXT)

    def token() -> float:
        seconds = seconds_of(lambda: run_all(steps))
        context.cut(CONTEXT)
        return seconds / len(steps)

    side.passes = {length: lambda length=length: read(length) for length in LENGTHS}  # type: ignore[misc]
    side.token, side.model = token, None  # its distributions are the engine's
    return side


def openvino_side(given: Given) -> Side:
    """OpenVINO has no passes that can be called alone. What its tokens read is unknown: it packs the weights anew."""
    try:
        genai: Any = importlib.import_module("openvino_genai")
    except ModuleNotFoundError as error:
        raise ConfigError("openvino_genai is not installed: pip install openvino-genai") from error
    try:
        pipeline = genai.LLMPipeline(given.gguf_file, "CPU", INFERENCE_NUM_THREADS=torch.get_num_threads())
    except RuntimeError as error:
        raise ConfigError(f"OpenVINO GenAI cannot load it: {str(error).strip().splitlines()[-1]}") from error
    tensor: Any = importlib.import_module("openvino").Tensor
    prompt = tensor(torch.tensor([given.ids[:CONTEXT]]).numpy())
    inputs = genai.TokenizedInputs(prompt, tensor(torch.ones(1, CONTEXT, dtype=torch.int64).numpy()))
    config = genai.GenerationConfig(max_new_tokens=NUM_TOKENS, do_sample=False, ignore_eos=True)

    def token() -> float:
        made = pipeline.generate(inputs, config)
        assert made.perf_metrics.get_num_generated_tokens() == NUM_TOKENS
        return float(made.perf_metrics.get_tpot().mean) / 1e3

    return Side({}, token, None)


def onnxruntime_side(given: Given) -> Side:
    """As OpenVINO's, but with weights in 4 bits that ONNX Runtime's own builder makes of the checkpoint."""
    if not Path(given.name).is_dir():
        raise ConfigError(f"its builder reads a folder, and '{given.name}' is none")
    try:
        genai: Any = importlib.import_module("onnxruntime_genai")
    except ImportError as error:
        raise ConfigError(f"{error}: pip install onnxruntime-genai onnxruntime onnx onnx-ir") from error
    folder = tempfile.TemporaryDirectory()
    words = f"-i {given.name} -o {folder.name} -p int4 -e cpu -c {folder.name}".split()
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", *words]
    made = subprocess.run(builder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if made.returncode:
        raise ConfigError(f"its builder does not convert the checkpoint: {made.stderr.strip().splitlines()[-1]}")
    config = genai.Config(folder.name)
    threads = {"intra_op_num_threads": torch.get_num_threads()}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
    model = genai.Model(config)

    def token() -> float:
        assert folder  # it lives as long as the model
        options = genai.GeneratorParams(model)
        length = CONTEXT + NUM_TOKENS
        options.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = genai.Generator(model, options)
        generator.append_tokens(given.ids[:CONTEXT])
        generator.generate_next_token()

        def others() -> None:
            for _ in range(NUM_TOKENS - 1):
                generator.generate_next_token()

        return seconds_of(others) / (NUM_TOKENS - 1)

    return Side({}, token, None)


def frozen_side(given: Given) -> Side:
    """Compiles whole passes over static buffers, in which the weights are constants that the compiler packs."""
    model = plain_model(given.name)
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
        forward(torch.tensor([given.ids[:1]]))  # allocates the buffers
        for length in LENGTHS:
            tokens = torch.tensor([given.ids[CONTEXT : CONTEXT + length]])
            compiled = torch.compile(lambda tokens: forward(tokens), fullgraph=True, dynamic=False)
            compiled(tokens)
            made[length] = lambda compiled=compiled, tokens=tokens: compiled(tokens)  # type: ignore[misc]
    return Side(made, None, work_of(model).bytes_read(1, CONTEXT))


SIDES: dict[str, Callable[[Given], Side]] = {
    "transformers": transformers_side,
    "eager": loaded_side,
    "compiled": lambda given: loaded_side(given, engine="compiled"),
    "int8": lambda given: loaded_side(given, quantize="int8"),
    "int4": lambda given: loaded_side(given, quantize="int4"),
    "llama.cpp": llama_cpp_side,
    "llama.cpp bare": bare_side,
    "openvino": openvino_side,
    "onnxruntime": onnxruntime_side,
    "frozen": frozen_side,
}


def log_probs(model: CausalLM, ids: list[int]) -> torch.Tensor:
    """Returns the log-probabilities after each token of a text: [num_tokens, vocab_size]."""
    model.reset()
    found = model.score(ids, len(ids)).logits.float().log_softmax(-1)
    model.reset()
    return found


@dataclass
class Measured:
    """The lines of the ways, the rates of their products by shape, and why others could not be run."""

    lines: list[Line] = field(default_factory=list)
    products: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    expected: torch.Tensor | None = None  # of the first way

    def measure(self, given: Given, ways: Sequence[str], num_turns: int, say: Say) -> None:
        """Adds ways that are loaded at once, and takes turns with them."""
        sides = [self.prepared(given, way, say) for way in ways]
        ready = [each for each in sides if each is not None]
        for turn in range(-1, num_turns):  # the first one does not count
            for line, side, benchmark in ready:
                say(f"{line.way}: turn {turn + 1} of {num_turns}")
                self.take_turn(line, side, benchmark, counts=turn >= 0)
        for line, side, _ in ready:
            self.lines.append(line)
            say(" | ".join(line.cells()))
            for rate in (
                product_rates(side.model.model) if side.model and line.way not in ("compiled", "llama.cpp") else ()
            ):
                self.products.append(
                    f"{line.way}: {rate.number} × {rate.in_features} → {rate.out_features} ({rate.kind}), "
                    f"{rate.num_bytes / 1e6:.0f} MB: {rate.bytes_per_second / 1e9:.1f} GB/s"
                )

    def prepared(self, given: Given, way: str, say: Say) -> tuple[Line, Side, RateBenchmark] | None:
        say(f"{way}: loading")
        began = time.perf_counter()
        try:
            side = SIDES[way](given)
        except ConfigError as error:
            self.left_out.append(f"{way}: {error}")
            return None
        side.begin()
        for call in side.passes.values():
            call()
        line = Line(way, time.perf_counter() - began, side.num_bytes)
        if side.model is not None:
            found = log_probs(side.model, given.ids)
            self.expected = found if self.expected is None else self.expected
            shared = min(found.shape[-1], self.expected.shape[-1])  # GGUF files may leave out padding
            expected, found = (each[:, :shared] for each in (self.expected, found))
            line.divergence = float((expected.exp() * (expected - found)).sum(-1).mean())
            line.flips = float((expected.argmax(-1) != found.argmax(-1)).double().mean())
        num_bytes = UNKNOWN_BYTES if side.num_bytes is None else int(side.num_bytes)
        return line, side, RateBenchmark(torch.device("cpu"), torch.bfloat16, num_bytes)

    def take_turn(self, line: Line, side: Side, benchmark: RateBenchmark, *, counts: bool) -> None:
        side.begin()
        seconds = {length: seconds_of(call) for length, call in side.passes.items()}
        rate = benchmark.rates().bytes_per_second
        token = seconds[1] if side.token is None else side.token()
        if counts:
            for length, value in seconds.items():
                line.passes.setdefault(length, []).append(value)
            line.rates.append(rate)
            line.token.append(token)


def measured(given: Given, ways: Sequence[str], num_turns: int, say: Say, together: bool = False) -> Measured:
    found = Measured()
    for group in [ways] if together else [[way] for way in ways]:
        found.measure(given, group, num_turns, say)
        gc.collect()
    return found


PAGE_HEAD = """# Ways to compute on a CPU

`{command}` wrote this page on {device} with {threads}, torch {torch} and transformers {transformers}, commit
{commit}. The load of the machine was {load:.1f} on {cores} cores when it ended; a busy machine is slower than these
ways are.
[Large models on a CPU](../notes/cpu.md) says what each way does.

- transformers: its passes in bfloat16 with torch's own products, and the tokens of its own `generate`.
- eager, compiled, int8, int4: `--engine` and `--quantize`. llama.cpp: `--engine llama.cpp` with the GGUF file beside
  the checkpoint; bare: the same calls of llama.cpp alone. openvino: OpenVINO GenAI with this file. onnxruntime: ONNX
  Runtime GenAI with 4-bit weights that its builder makes of the checkpoint, which `ready` includes.
- token: ms of a token, autoregressive and greedy, after {context} cached ones. pass: ms of a pass over one token.
- machine: GB/s of copying or summing as many bytes as a token reads, whichever is faster, in the same turn; beside a
  program whose bytes are unknown, 1 GB. moved: the GB that the machine moves by this rate in the time of a token.
  Memory is shared with other machines and gives more at some minutes than at others: compare ways by *moved*. share:
  GB read ÷ moved. v(n): a pass over n tokens ÷ one over a single token. All are medians over {turns} turns{order}.
- ready: seconds until the passes can be timed. KL, flips: of the next token against the first line, on {text} tokens.
{weights}"""


def weights_of(models: Sequence[str]) -> str:
    """Returns the line on weights that are not the hub's."""
    sources = {model.folder: model.source for model in MODELS}
    known = [f"`{name}` is {sources[name]}" for name in (Path(model).name for model in models) if name in sources]
    return f"- Weights: {'; '.join(known)}. So no figure here is of quality.\n" if known else ""


def page(given: argparse.Namespace, parts: Sequence[tuple[Given, Measured]]) -> Iterator[str]:
    known = environment("cpu", "bfloat16", "sdpa")
    names = " ".join(Path(model).name for model in given.models)
    names += f" --turns {given.turns}" if given.turns != TURNS else ""
    names += f" --ways '{given.ways}'" if given.ways != ",".join(WAYS) else ""
    names += " --together" if given.together else ""
    files = f" --gguf {' '.join(Path(file).name for file in given.gguf)}" if given.gguf else ""
    yield PAGE_HEAD.format(
        command=f"python -m tools.engines.cpu {names}{files} --write", device=known["device"].partition(",")[0],
        threads=f"{given.threads} thread{'s' if given.threads > 1 else ''}", torch=known["versions"]["torch"],
        transformers=known["versions"]["transformers"], commit=(known["commit"] or "unknown")[:7], context=CONTEXT,
        load=os.getloadavg()[0], cores=os.cpu_count(),
        turns=given.turns, text=NUM_TEXT_TOKENS, weights=weights_of(given.models),
        order=", in which all ways alternate" if given.together else ", one way after another",
    )  # fmt: skip
    for model, found in parts:
        yield f"\n## {Path(model.name).name}\n\n" + markdown_table(HEAD, [line.cells() for line in found.lines]) + "\n"
        if found.left_out:
            yield "\nNot run:\n\n" + "".join(f"- {text}\n" for text in found.left_out)
        yield "\nThe products of one token:\n\n```\n" + "\n".join(found.products) + "\n```\n"


def main() -> None:
    """Measures each way and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.engines.cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="folders or hub ids")
    parser.add_argument(
        "--gguf", nargs="*", default=[], metavar="FILE", help="GGUF files of the models, in their order"
    )
    parser.add_argument("--ways", default=",".join(WAYS), help="the others are compared with the first")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--together", action="store_true", help="load all ways of a model at once")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    given = parser.parse_args()
    ways = given.ways.split(",")
    for way in ways:
        if way not in SIDES:
            parser.error(f"no way is named {way!r}: there are {', '.join(SIDES)}")
    if len(given.gguf) > len(given.models):
        parser.error("more GGUF files than models")
    torch.set_num_threads(given.threads)
    if given.threads == 1:
        HOST.leave_out_waits()
    parts = []
    for place, name in enumerate(given.models):
        tokenizer = AutoTokenizer.from_pretrained(name)
        ids: list[int] = tokenizer(TEXT.read_text(encoding="utf-8"))["input_ids"][:NUM_TEXT_TOKENS]
        model = Given(name, given.gguf[place] if place < len(given.gguf) else None, ids)
        with torch.no_grad():
            found = measured(model, ways, given.turns, partial(print, file=sys.stderr, flush=True), given.together)
        parts.append((model, found))
        print(f"\n{name}\n" + markdown_table(HEAD, [line.cells() for line in found.lines]))
        print("\n".join((*(f"not run: {text}" for text in found.left_out), *found.products)), flush=True)
        if given.write:
            PAGE.write_text("".join(page(given, parts)), encoding="utf-8")


if __name__ == "__main__":
    main()
