"""Measures the build rate, the memory and the lookup time of the n-gram model, and prints them as JSON.

Counts synthetic documents of Zipf-distributed token ids (vocabulary 32,000) in a process of its own, so that the peak
memory is that of counting alone, then maps the model in a second process and drafts greedily from random contexts.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

VOCAB_SIZE = 32_000
DOCUMENT_TOKENS = 500
LOOKUPS = 20_000


def documents(num_tokens: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Documents in which half of the tokens follow from the one before, as in text, and the others are drawn freely."""
    random = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, VOCAB_SIZE + 1)
    cumulative = np.cumsum(weights / weights.sum())
    for start in range(0, num_tokens, 1_000_000):
        size = min(1_000_000, num_tokens - start)
        free = np.searchsorted(cumulative, random.random(size)).clip(max=VOCAB_SIZE - 1)
        follows = (np.roll(free, 1) * 7919 + random.integers(0, 8, size)) % VOCAB_SIZE
        ids = np.where(random.random(size) < 0.5, free, follows)
        yield from np.split(ids, range(DOCUMENT_TOKENS, size, DOCUMENT_TOKENS))


def peak_megabytes() -> float:
    """The most memory this process ever held. On Linux getrusage would count the process that started it, too."""
    status = Path("/proc/self/status")
    if status.is_file():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)


def measure_build(num_tokens: int, order: int, folder: Path) -> dict[str, Any]:
    from specbench.training.corpus_arrays import build_ngrams

    reading = 0.0

    def timed() -> Iterator[np.ndarray]:
        nonlocal reading
        source = documents(num_tokens)
        while True:
            start = time.perf_counter()
            document = next(source, None)
            reading += time.perf_counter() - start
            if document is None:
                return
            yield document

    start = time.perf_counter()
    model = build_ngrams(timed(), order, VOCAB_SIZE, folder, "none")
    seconds = time.perf_counter() - start - reading
    return {
        "num_tokens": model.num_tokens,
        "num_ngrams": model.num_ngrams,
        "megabytes_on_disk": sum(path.stat().st_size for path in folder.iterdir()) / 2**20,
        "build_tokens_per_second": num_tokens / seconds,
        "build_peak_megabytes": peak_megabytes(),
        "torch_imported": "torch" in sys.modules,
    }


def measure_lookup(num_tokens: int, order: int, folder: Path) -> dict[str, Any]:
    """Microseconds per greedy draft token after contexts of a text that was not counted, and after frequent ones."""
    from specbench.models.corpus_models import NgramModel

    start = time.perf_counter()
    model = NgramModel.load(folder)
    load_seconds = time.perf_counter() - start
    text = [int(token) for document in documents(LOOKUPS, seed=1) for token in document]
    places = range(order, len(text))
    contexts = {
        "of_text": [text[place - order + 1 : place] for place in places],
        "most_frequent": [[0] * (order - 1)] * 1000,
        "never_seen": [[VOCAB_SIZE - 1] * (order - 1)] * 1000,
    }
    result: dict[str, Any] = {"load_milliseconds": 1000 * load_seconds}
    for name, group in contexts.items():
        seconds = []
        for context in group:
            start = time.perf_counter()
            model.best(context)
            seconds.append(time.perf_counter() - start)
        result[f"lookup_microseconds_{name}"] = 1e6 * float(np.median(seconds))
    return {**result, "use_peak_megabytes": peak_megabytes()}


def in_new_process(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure(num_tokens: int, order: int) -> dict[str, Any]:
    """All figures of one order."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "ngram"
        built = in_new_process(measure_build, num_tokens, order, folder)
        return {"order": order, **built, **in_new_process(measure_lookup, num_tokens, order, folder)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.bench_ngram", description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000_000, help="tokens of the synthetic documents")
    parser.add_argument("--order", type=int, default=2, help="tokens of the longest n-gram")
    arguments = parser.parse_args()
    figures = measure(arguments.tokens, arguments.order)
    print(json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in figures.items()}, indent=2))
