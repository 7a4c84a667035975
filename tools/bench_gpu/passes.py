"""The cost of passes and drafts by engine, compared with the bandwidth of a copy."""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from specbench.models.machine import environment
from specbench.models.scoring import PassShape
from tools.bench_gpu.models import (
    CONTEXT,
    NUM_DRAFT_TOKENS,
    NUM_TOKENS,
    PAIRS,
    VOCABULARY,
    bytes_per_token,
    decode_ids,
    ids_of,
    random_model,
    say,
    with_engine,
)  # fmt: skip

TARGET_LENGTHS, DRAFTER_LENGTHS = (1, NUM_DRAFT_TOKENS + 1, 16), (1, 2, NUM_DRAFT_TOKENS + 1)
TREES, PROMPTS = (26, 64), (60, 250, 300)  # nodes of draft trees, tokens of prompts


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(run: Callable[[], Any], number: int = 20) -> float:
    """The median seconds of a call, after three that are not counted."""
    found = []
    for each in range(number + 3):
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
        if each >= 3:
            found.append(time.perf_counter() - start)
    return median(found)


def copy_rate(device: str) -> float:
    """Bytes read and written per second by a copy."""
    size = 2**31 if device != "cpu" else 2**27
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), 10)


def ar_seconds(model: Any, ids: list[int]) -> float:
    """Seconds per token of autoregressive decoding in our loop."""
    from specbench.decoding.drafters import NoDrafter
    from specbench.decoding.verification import rejection

    found = [decode_ids(model, NoDrafter(), ids, NUM_TOKENS, 0, rejection).decode_seconds for _ in range(4)]
    return float(median(found[1:])) / (NUM_TOKENS - 1)


def transformers_seconds(model: Any, ids: list[int], **options: Any) -> tuple[float, float]:
    """Seconds per token of transformers' `generate`, and those of the first call."""
    given = torch.tensor([ids], device=model.device)
    mask = torch.ones_like(given)

    def generate(number: int) -> float:
        synchronize()
        start = time.perf_counter()
        model.model.generate(
            given, attention_mask=mask, max_new_tokens=number, min_new_tokens=number, do_sample=False, pad_token_id=0,
            **options,
        )  # fmt: skip
        synchronize()
        return time.perf_counter() - start

    first = generate(NUM_TOKENS)
    generate(NUM_TOKENS)
    return (median(generate(NUM_TOKENS) for _ in range(3)) - median(generate(2) for _ in range(3))) / (
        NUM_TOKENS - 2
    ), first


def pass_seconds(model: Any, ids: list[int], length: int) -> float:
    """Seconds on the device of a pass over `length` tokens that ends a context of CONTEXT tokens."""
    model.score(ids[:CONTEXT], 1)
    model.passes.clear()
    for _ in range(23):
        model.sequence.rollback(CONTEXT - length)
        model.score(ids[:CONTEXT], length)
    model.passes.clock.now()
    return float(median(seconds for _, seconds in model.passes.read()[3:]))


def tree_seconds(model: Any, ids: list[int], nodes: int) -> float:
    """Seconds on the device of a pass over a draft tree in which every node has two children."""
    parents = [(node - 1) // 2 if node else -1 for node in range(nodes)]
    model.score(ids[:CONTEXT], 1)
    model.passes.clear()
    for _ in range(23):
        model.sequence.rollback(CONTEXT)
        model.score_tree(ids[:CONTEXT], list(range(nodes)), parents, nodes)
    model.passes.clock.now()
    return float(median(seconds for _, seconds in model.passes.read()[3:]))


def prompt_seconds(model: Any, number: int) -> float:
    """Seconds from a prompt of `number` tokens to its logits."""
    ids = ids_of(model, number)

    def read() -> None:
        model.reset()
        model.score(ids, 1)

    return seconds_of(read)


def show(name: str, model: Any, seconds: float, rate: float, text: str = "") -> None:
    share = bytes_per_token(model) / rate / seconds
    say(f"{model.name} · {name}: {seconds * 1e3:.3f} ms per token, {share:.3f} of the copy's bandwidth{text}")


def passes(args: argparse.Namespace) -> None:
    """The table of engines: per token, per pass, and what it takes to make the passes."""
    rate = copy_rate(args.device)
    say(f"{environment(args.device, 'float32', 'sdpa')['device']}: a copy moves {rate / 1e9:.1f} GB/s")
    for shape in dict.fromkeys(PAIRS[args.shapes]):
        model = random_model(shape, VOCABULARY[args.shapes], args.device)
        ids = ids_of(model, CONTEXT)
        say(f"{model.name}: {bytes_per_token(model) / 1e6:.1f} MB, bound {bytes_per_token(model) / rate * 1e3:.3f} ms")
        for engine in args.engines:
            if engine.startswith("transformers"):
                options = {"cache_implementation": "static"} if engine.endswith("static") else {}
                seconds, first = transformers_seconds(model, ids, **options)
                show(engine, model, seconds, rate, f", first call {first:.1f} s")
                continue
            engine_passes(with_engine(model, engine), ids, rate, shape == PAIRS[args.shapes][1])


def engine_passes(model: Any, ids: list[int], rate: float, drafts: bool) -> None:
    """The lines of one engine of ours."""
    from specbench.decoding.sampling import Sampling

    made = ""
    lengths = DRAFTER_LENGTHS if drafts else TARGET_LENGTHS
    if model.static is not None:
        shapes = [] if drafts else [PassShape(nodes, "tree") for nodes in TREES]
        number, seconds = model.static.reserve(CONTEXT + NUM_TOKENS, lengths, shapes=shapes)
        made = f", {number} passes made in {seconds:.1f} s"
    show(model.engine, model, ar_seconds(model, ids), rate, made)
    base = pass_seconds(model, ids, 1)
    for length in lengths:
        seconds = pass_seconds(model, ids, length)
        say(f"{model.name} · {model.engine}: pass of {length}: {seconds * 1e3:.3f} ms, {seconds / base:.3f} of one")
    for nodes in () if drafts else TREES:
        seconds = tree_seconds(model, ids, nodes)
        say(f"{model.name} · {model.engine}: tree of {nodes}: {seconds * 1e3:.3f} ms, {seconds / base:.3f} of one")
    for number in PROMPTS:
        seconds = prompt_seconds(model, number)
        say(f"{model.name} · {model.engine}: prompt of {number}: {seconds * 1e3:.3f} ms")
    for sampling in (Sampling(0.0), Sampling(1.0, top_p=0.9)) if drafts else ():
        name = "greedy" if sampling.greedy else "sampled"
        number, made_in = model.reserve_draft(NUM_DRAFT_TOKENS, sampling)
        seconds = draft_seconds(model, ids, sampling) / NUM_DRAFT_TOKENS
        share = bytes_per_token(model) / rate / seconds
        say(f"{model.name} · {model.engine}: drafting, {name}: {seconds * 1e3:.3f} ms a token, {share:.3f} of the "
            f"copy's bandwidth; {number} graphs in {made_in:.1f} s")  # fmt: skip


def draft_seconds(model: Any, ids: list[int], sampling: Any) -> float:
    """Seconds of one draft of NUM_DRAFT_TOKENS tokens."""
    from specbench.decoding.drafters import ModelDrafter

    drafter = ModelDrafter(model, sampling)
    drafter.prefill(ids[:-1])
    generator = torch.Generator(device=model.device).manual_seed(0)

    def run() -> None:
        drafter._last = None
        model.sequence.rollback(CONTEXT - 1)
        with torch.inference_mode():
            drafter.propose(ids, NUM_DRAFT_TOKENS, generator)

    return seconds_of(run)
