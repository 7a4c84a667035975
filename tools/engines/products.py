"""The share of a compiled pass that its matrix products take, on a CPU, with one thread.

`python -m tools.engines.products` times passes of the embedded target over one token and over several, and the bare
products with the same weights, in the order of the layers:

    compiled      as a compiled pass computes them
    library       by torch.nn.functional.linear
    transposed    by torch.mm with a transposed copy of the weights, which no engine keeps
    calls         library, of no rows: what the calls themselves take
    attention     no product with weights, but the library's attention over the buffers of the pass

All are called in turn, in alternating order; the seconds in which the thread waits for a CPU are left out. Each line
has the median and the shortest time in milliseconds, and the ratio to one token: the median of the pairs of each turn,
with the interval of resampled turns.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from specbench.analysis.roofline.roofline import TimedPasses
from specbench.models.causal_lm import CausalLM
from specbench.models.compiling import PASS_OPTIONS
from specbench.models.loading import load_model
from specbench.models.meters import HOST

LENGTHS = (1, 2, 4, 6)
CONTEXT = 256
CAPACITY = 384
NUM_CALLS, NUM_RESAMPLES = 4, 2000
Seconds = dict[tuple[str, int], list[float]]  # of each turn, by what is called and by the number of tokens


Call = Callable[[], list[torch.Tensor]]


def products(network: nn.Module, num_tokens: int) -> Call:
    """Returns a call that computes the products of a pass over so many tokens, with random inputs."""
    weights = [module.weight for module in network.modules() if isinstance(module, nn.Linear)]
    inputs = [torch.randn(num_tokens, weight.shape[1]) for weight in weights]
    return lambda: [functional.linear(each, weight) for each, weight in zip(inputs, weights, strict=True)]


def transposed_products(network: nn.Module, num_tokens: int) -> Call:
    """Returns the same with a copy of each weight whose rows are the inputs."""
    weights = [module.weight.detach().T.contiguous() for module in network.modules() if isinstance(module, nn.Linear)]
    inputs = [torch.randn(num_tokens, len(weight)) for weight in weights]
    return lambda: [torch.mm(each, weight) for each, weight in zip(inputs, weights, strict=True)]


def attention(network: nn.Module, num_tokens: int) -> Call:
    """Returns a call that computes the attention of every layer over CAPACITY cached tokens."""
    config: Any = network.config
    shape = (1, config.num_key_value_heads, CAPACITY, config.head_dim)
    cached = [torch.randn(2, *shape) for _ in range(config.num_hidden_layers)]
    query = torch.randn(1, config.num_attention_heads, num_tokens, config.head_dim)
    mask = (torch.arange(CAPACITY) < CONTEXT).expand(1, 1, num_tokens, CAPACITY)
    attend = partial(functional.scaled_dot_product_attention, attn_mask=mask, enable_gqa=True)
    return lambda: [attend(query, keys, values) for keys, values in cached]


def compiled_products(network: nn.Module, num_tokens: int) -> Call:
    """Returns `products`, compiled with the options of a compiled pass, and without torch's checks of the inputs."""
    found: list[Call] = []

    def backend(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx  # which takes two seconds

        function: Any = compile_fx(graph, examples, config_patches=PASS_OPTIONS)

        def run(*inputs: Any) -> Any:
            found.append(lambda: function(*inputs))
            return found[-1]()

        return run

    torch.compile(products(network, num_tokens), fullgraph=True, dynamic=False, backend=backend)()
    return found[-1]


KINDS = {"compiled": compiled_products, "library": products, "transposed": transposed_products}
MADE = {**KINDS, "attention": attention}


def seconds_of(call: Call) -> float:
    """Returns the mean seconds of some calls that follow one another."""
    start = HOST.now()
    for _ in range(NUM_CALLS):
        call()
    return (HOST.now() - start) / NUM_CALLS


def measure(model: CausalLM, lengths: Sequence[int], num_turns: int) -> Seconds:
    """Returns the seconds of passes and of their products, after a turn that does not count."""
    model.reset()
    passes = TimedPasses(model, list(range(3, 3 + CONTEXT + max(lengths))), CONTEXT, lengths)
    calls = {("calls", 0): products(model.model, 0)}
    calls |= {(name, length): make(model.model, length) for name, make in MADE.items() for length in lengths}
    found: Seconds = {}
    for turn in range(-1, num_turns):
        backwards = turn % 2 == 1
        passes.seconds = {length: [] for length in lengths}
        passes.run_turn(1, backwards=backwards)
        seconds = {("pass", length): passes.means()[length] for length in lengths}
        for key in list(calls)[:: -1 if backwards else 1]:
            seconds[key] = seconds_of(calls[key])
        for key, value in seconds.items() if turn >= 0 else ():
            found.setdefault(key, []).append(value)
    return found


def lines(found: Seconds) -> list[str]:
    """Returns a line for each call."""
    rng = np.random.default_rng(0)
    made = []
    for (name, length), seconds in sorted(found.items()):
        text = f"{name:10} {length} tokens: {1e3 * median(seconds):.3f} ms, at least {1e3 * min(seconds):.3f}"
        if length > 1:
            ratios = np.array(seconds) / np.array(found[name, 1])
            low, high = np.quantile(np.median(rng.choice(ratios, (NUM_RESAMPLES, len(ratios))), axis=1), (0.025, 0.975))
            text += f", {np.median(ratios):.2f} [{low:.2f}, {high:.2f}] of one"
        made.append(text)
    return made


def main() -> None:
    """Measures the embedded target and prints a line for each call."""
    parser = argparse.ArgumentParser(prog="python -m tools.engines.products", description=__doc__)
    parser.add_argument("--turns", type=int, default=200)
    num_turns = parser.parse_args().turns
    torch.set_num_threads(1)
    HOST.leave_out_waits()
    model = load_model("embedded:target", device="cpu", engine="compiled")
    assert model.static is not None
    model.static.reserve(CAPACITY, LENGTHS, progress=print)
    with torch.inference_mode():
        print("\n".join(lines(measure(model, LENGTHS, num_turns))))


if __name__ == "__main__":
    main()
