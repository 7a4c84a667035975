"""The table of the requirements of a board's pairs: models, GPU memory, draft heads and other parts."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from specbench.core.table import Column, Table, numbers, words
from specbench.models.heads.checkpoints import HEADS
from specbench.publish.measured import PairRows
from specbench.publish.suite_spec import PairSpec
from specbench.results.units import NULL
from specbench.specs.catalogue import load_method
from specbench.specs.method import MethodSpec

GATED = ("meta-llama/", "google/gemma")  # models whose licence a user must accept on their page
SIZE = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)(b|m)(?![a-z0-9])")  # 7b, 8x22b, 68m
BYTES_PER_PARAMETER = 2
CAPTION = (
    "weights: 2 bytes for each parameter, from the sizes in the models' names (≥: one name has no size); caches and "
    "activations need more",
    "*: gated; accept the licence on the model's page, then log in with `hf auth login`",
)


def pairs_table(name: str, found: Sequence[PairRows]) -> Table:
    """Returns a table with a line for each pair of a board. `name`: the board as the user gave it."""
    memory = gpu_gigabytes()
    lines = []
    for each in found:
        pair = each.suite.pairs[each.pair_name]
        share = f"{len(each.measured)} of {len(each.cells)}"
        lines.append([each.pair_name, "\n".join(needed_parts(each)), weights(pair), fits_on_gpu(pair, memory), share])
    columns: list[Column] = [
        *words("pair", "needs"),
        *numbers("weights\nGB"),
        *words("fits on\nthis GPU"),
        *numbers("measured\ncells"),
    ]
    here = "this machine has no GPU" if memory is None else f"this machine's GPU has {memory:.0f} GB"
    caption = [*CAPTION[: 1 + any("*" in line[1] for line in lines)], here]
    caption.append(f"measure a pair: specbench board run {name} --pair PAIR")
    return Table(f"{found[0].suite.name} · what its pairs need", columns, lines, caption)


def gpu_gigabytes() -> float | None:
    """Returns the memory of the first CUDA GPU; None without one."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory / 1e9 if torch.cuda.is_available() else None


def needed_parts(rows: PairRows) -> list[str]:
    """Returns target and drafter, then the draft heads and other parts that the methods need. Gated models have an
    asterisk."""
    pair = rows.suite.pairs[rows.pair_name]
    if pair.is_embedded:
        return ["embedded, nothing is downloaded"]
    if pair.servers is not None:
        return list(filter(None, (pair.target, f"its servers in {pair.servers}")))
    names = [each for each in (pair.target, pair.drafter) if each is not None]
    methods = dict.fromkeys(chain.from_iterable(cell.methods for cell, _ in rows.cells))
    parts = dict.fromkeys(filter(None, (part_of(pair, load_method(name)) for name in methods)))
    return [*(f"{each} *" if each.startswith(GATED) else each for each in names), *parts]


def sizes(pair: PairSpec) -> Iterator[float | None]:
    """Yields the parameters of the models in billions; None for a name without a size."""
    for name in filter(None, (pair.target, pair.drafter)):
        found = SIZE.search(name.lower())
        yield found and int(found[1] or 1) * float(found[2]) / (1 if found[3] == "b" else 1000)


def weights(pair: PairSpec) -> str:
    """Returns the gigabytes of the weights of both models, as far as their names have sizes."""
    known = [size for size in sizes(pair) if size is not None]
    least = "≥ " if None in sizes(pair) else ""
    return f"{least}{sum(known) * BYTES_PER_PARAMETER:.0f}" if known and not pair.is_embedded else NULL


def fits_on_gpu(pair: PairSpec, gigabytes: float | None) -> str:
    """Returns whether the weights fit on a GPU."""
    if pair.is_embedded:
        return "yes"
    known = [size for size in sizes(pair) if size is not None]
    if pair.servers is not None:
        return "unknown"
    if gigabytes is None or sum(known) * BYTES_PER_PARAMETER >= gigabytes:
        return "no"
    return "yes" if known and None not in sizes(pair) else "unknown"


def part_of(pair: PairSpec, method: MethodSpec) -> str | None:
    """Returns the published head for the pair's target, or the requirement that the drafter of a method declares."""
    text = None if method.decoder is not None else method.drafter.needs
    if text is None:
        return None
    kind = str(method.drafter.options.get("head", method.drafter.type))
    if kind not in HEADS:
        return f"{method.name}: {text.partition(' (')[0]}"
    return HEADS[kind].get(str(pair.target), f"{method.name}: a head of this target (none is published)")
