"""The ways in which a CPU computes with the weights of one checkpoint, and its peers; see tools.engines.cpu."""

import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import Cache
from transformers.generation.streamers import BaseStreamer

from specbench.analysis.roofline.roofline import NUM_TOKENS, work_of
from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.eager import EagerSequence
from specbench.models.kv_cache import StaticLayer, cache_parameter, preallocated_cache
from specbench.models.loading import load_model, make_passes
from specbench.models.meters import HOST
from specbench.specs.components import Quantize
from tools.engines.gguf import CONTEXT, LENGTHS, Bare, context_of, run_all, seconds_of, token_seconds

Passes = dict[int, Callable[[], object]]  # by the number of tokens


@dataclass
class Side:
    """What is measured of a way.

    token: returns the seconds of a token of an autoregressive generation; None if it has passes alone
    begin: makes the passes ready after a generation
    model: by which the distributions are compared; None if the way shows none
    ready: the seconds from the files until the passes can be timed
    """

    passes: Passes
    token: Callable[[], float] | None
    num_bytes: float | None
    begin: Callable[[], object] = lambda: None
    model: CausalLM | None = None
    ready: float = 0.0

    def make_ready(self, began: float) -> "Side":
        """Runs each pass once, and keeps the seconds since `began`."""
        self.begin()
        for call in self.passes.values():
            call()
        self.ready = time.perf_counter() - began
        return self


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
        model.score(ids[:CONTEXT], 1)  # what a generation left behind them is dropped

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


def transformers_sides(given: Given, ways: Sequence[str]) -> Iterator[tuple[str, Side]]:
    began = time.perf_counter()
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

    yield "transformers", side_of(model, given.ids, token).make_ready(began)


def engine_sides(given: Given, ways: Sequence[str], quantize: Quantize) -> Iterator[tuple[str, Side]]:
    """Eager passes, and compiled ones with the same weights, whose seconds include those of loading."""
    began = time.perf_counter()
    eager = load_model(given.name, device="cpu", dtype="bfloat16", quantize=quantize)
    loading = time.perf_counter() - began
    name: str = "eager" if quantize == "none" else quantize
    if name in ways:
        yield name, side_of(eager, given.ids).make_ready(began)
    name = "compiled" if quantize == "none" else f"{quantize} compiled"
    if name in ways:
        began = time.perf_counter() - loading
        model = CausalLM(eager.model, eager.tokenizer, eager.name, eager.revision, quantize)
        make_passes(model, "compiled")
        if model.why_eager is not None:
            raise ConfigError(model.why_eager)
        yield name, side_of(model, given.ids).make_ready(began)


def llama_cpp_sides(given: Given, ways: Sequence[str]) -> Iterator[tuple[str, Side]]:
    """The engine, and the calls of tools.engines.gguf on the same context, with arrays that are filled before."""
    began = time.perf_counter()
    model, ids = load_model(given.gguf_file, device="cpu", engine="llama.cpp"), given.ids
    side = side_of(model, ids).make_ready(began)
    if "llama.cpp" in ways:
        yield "llama.cpp", side
    if "llama.cpp bare" not in ways:
        return
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

    passes: Passes = {length: lambda length=length: read(length) for length in LENGTHS}  # type: ignore[misc]
    yield "llama.cpp bare", Side(passes, token, side.num_bytes, side.begin, ready=side.ready)


def openvino_sides(given: Given, ways: Sequence[str]) -> Iterator[tuple[str, Side]]:
    """OpenVINO has no passes that can be called alone. What its tokens read is unknown: it packs the weights anew."""
    try:
        genai: Any = importlib.import_module("openvino_genai")
    except ModuleNotFoundError as error:
        raise ConfigError("openvino_genai is not installed: pip install openvino-genai") from error
    began = time.perf_counter()
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

    yield "openvino", Side({}, token, None).make_ready(began)


def onnxruntime_sides(given: Given, ways: Sequence[str]) -> Iterator[tuple[str, Side]]:
    """As OpenVINO's, but with weights in 4 bits that ONNX Runtime's own builder makes of the checkpoint."""
    if not Path(given.name).is_dir():
        raise ConfigError(f"its builder reads a folder, and '{given.name}' is none")
    try:
        genai: Any = importlib.import_module("onnxruntime_genai")
    except ImportError as error:
        raise ConfigError(f"{error}: pip install onnxruntime-genai onnxruntime onnx onnx-ir") from error
    began = time.perf_counter()
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

    yield "onnxruntime", Side({}, token, None).make_ready(began)


def frozen_sides(given: Given, ways: Sequence[str]) -> Iterator[tuple[str, Side]]:
    """Compiles whole passes over static buffers, in which the weights are constants that the compiler packs."""
    began = time.perf_counter()
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
    yield "frozen", Side(made, None, work_of(model).bytes_read(1, CONTEXT)).make_ready(began)


@dataclass(frozen=True)
class Family:
    """Ways of which the first and the others read the same weights.

    sides: loads the ways that are asked for, and yields each with its name
    checkpoint, gguf: the memory that they hold, in sizes of the checkpoint in bfloat16 and of the GGUF file
    while_loading: what they hold besides while they are loaded, in sizes of the checkpoint
    """

    ways: tuple[str, ...]
    sides: Callable[[Given, Sequence[str]], Iterator[tuple[str, Side]]]
    checkpoint: float = 0.0
    gguf: float = 0.0
    while_loading: float = 0.2


FAMILIES = (
    Family(("transformers",), transformers_sides, checkpoint=1.1),
    Family(("eager", "compiled"), partial(engine_sides, quantize="none"), checkpoint=1.3),
    Family(("int8", "int8 compiled"), partial(engine_sides, quantize="int8"), checkpoint=0.8, while_loading=1.0),
    Family(("int4", "int4 compiled"), partial(engine_sides, quantize="int4"), checkpoint=0.6, while_loading=1.0),
    Family(("llama.cpp", "llama.cpp bare"), llama_cpp_sides, gguf=1.2),
    Family(("openvino",), openvino_sides, gguf=2.0, while_loading=1.0),
    Family(("onnxruntime",), onnxruntime_sides, checkpoint=0.5, while_loading=2.5),
    Family(("frozen",), frozen_sides, checkpoint=2.3),
)
WAYS = tuple(way for family in FAMILIES[:-1] for way in family.ways)  # frozen passes are no engine's
