"""Measures how near decoding and drafting come to the bounds of the hardware, on random models of published shapes.

    python -m tools.bench_limit                 Qwen2.5-7B and 0.5B in bfloat16, on a GPU
    python -m tools.bench_limit --small         16 layers of 256 and 2 of 64 in float32, on a CPU

Prints the tables of `specbench limit`, then for each α the measured speed-up of the method `synthetic` beside the
expected one, f(α, γ, c). AR and all rates are interleaved per prompt in alternating order. The engine is the compiled
one unless --engine eager is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, Qwen2Config

from specbench.analysis.limit import LimitOptions, limits_of
from specbench.analysis.limit_report import Costs, LimitReport, tables
from specbench.decoding.decoder import Decoder
from specbench.decoding.loop import Generation, StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.loading import DTYPES, choose_device
from specbench.results import bootstrap
from specbench.results.metrics import expected_speedup
from specbench.running.compose import compose
from specbench.running.requirements import num_compilations
from specbench.specs.catalogue import load_method, with_overrides
from specbench.specs.components import build
from tests import tiny

GREEDY = Sampling(0.0)
RATES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
VOCABULARY = 151_936
# As published: hidden size, MLP, layers, heads, heads of keys and values, rows of the tables, tied.
SHAPES = {
    "7B": (3584, 18944, 28, 28, 4, 152_064, False),
    "0.5B": (896, 4864, 24, 14, 2, VOCABULARY, True),
    "16 × 256": (256, 688, 16, 8, 4, 1024, True),
    "2 × 64": (64, 176, 2, 4, 2, 1024, True),
}


@dataclass(frozen=True)
class Setting:
    context: int
    num_tokens: int
    num_prompts: int
    num_draft_tokens: int
    rates: Sequence[float] = RATES


def random_model(shape: str, dtype: str, device: str, engine: str = "eager", seed: int = 0) -> CausalLM:
    """A model with random weights, made where it is used, and a tokenizer that only counts its tokens."""
    hidden, mlp, layers, heads, kv_heads, rows, tied = SHAPES[shape]
    config = Qwen2Config(
        vocab_size=rows, hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers, tie_word_embeddings=tied,
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=8192, eos_token_id=None,
        bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    with torch.device(choose_device(device)):
        network = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval()
    made = CausalLM(network, tiny.tokenizer(num_extra=min(rows, VOCABULARY) - 257), f"random {shape}", None)
    if engine == "compiled":
        made.make_static()
    return made


def measure(models: ModelPair, setting: Setting) -> dict[float | None, list[Generation]]:
    """The generations of AR (None) and of `synthetic` at every rate, on random prompts, after one unmeasured."""
    base = [load_method("ar"), load_method("synthetic")]
    decoders: dict[float | None, Decoder] = {None: compose(base[0], models, GREEDY)}
    for rate in setting.rates:
        overrides = [f"drafter.acceptance={rate}", f"num_draft_tokens={setting.num_draft_tokens}"]
        decoders[rate] = compose(with_overrides([], base[1:], overrides)[1][0], models, GREEDY)
    found: dict[float | None, list[Generation]] = {rate: [] for rate in decoders}
    chance = torch.Generator().manual_seed(0)
    num_compiled = num_compilations()
    for number in range(-1, setting.num_prompts):
        ids = torch.randint(0, models.target.vocab_size, (setting.context,), generator=chance).tolist()
        for key in list(decoders)[:: 1 if number % 2 == 0 else -1]:
            generation = decoders[key].generate(ids, StopRules(setting.num_tokens), seed=number + 1)
            if number >= 0:
                found[key].append(generation)
    assert num_compilations() == num_compiled, "passes were compiled while others were measured"
    return found


@dataclass(frozen=True)
class Measured:
    """Costs in single-token target passes: c by medians, as a run has it; both of draft and verifying passes by means,
    which is what a sum of seconds is made of."""

    cost_ratio: float
    means: Costs[float]

    @classmethod
    def of(cls, found: dict[float | None, list[Generation]], num_draft_tokens: int) -> "Measured":
        plain = [seconds for each in found[None] for _, seconds in each.target_passes]
        drafting = [each for rate, made in found.items() if rate is not None for each in made]
        drafted = [seconds for each in drafting for _, seconds in each.draft_passes]
        longest = num_draft_tokens + 1
        verified = [seconds for each in drafting for length, seconds in each.target_passes if length == longest]
        verification = {1: 1.0, longest: mean(verified) / mean(plain)}
        return cls(median(drafted) / median(plain), Costs(mean(drafted) / mean(plain), verification))


COLUMNS = ("α", "α measured", "τ", "expected", "speed-up [95 %]", "f(α,γ,c)", "÷ f", "f with v", "÷ f with v")


def rates_table(found: dict[float | None, list[Generation]], setting: Setting) -> Table:
    """A line per rate. f takes verification for one single-token pass; f with v takes it as measured here."""
    gamma = setting.num_draft_tokens
    costs = Measured.of(found, gamma)
    v = costs.means.verification(gamma + 1)
    told = f"c = {costs.cost_ratio:.3f}, v = {v:.3f} single passes; wanted: ÷ f from 0.9 to 1.1"
    table = Table(title=f"synthetic, γ = {gamma}: {told}")
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for rate in setting.rates:
        steps = [step for each in found[rate] for step in each.steps]
        judged, accepted, emitted = (
            sum(getattr(step, f"num_{what}") for step in steps) for what in ("judged", "accepted", "emitted")
        )
        speedup, text = speedup_of(found[rate], found[None])
        tokens, formula = (expected_speedup(rate, gamma, cost) for cost in (0.0, costs.cost_ratio))
        real = costs.means.speedup(rate, gamma)
        table.add_row(
            f"{rate:g}", f"{accepted / judged:.3f}", f"{emitted / len(steps):.2f}", f"{tokens:.2f}", text,
            f"{formula:.2f}", f"{speedup / formula:.2f}", f"{real:.2f}", f"{speedup / real:.2f}",
        )  # fmt: skip
    return table


def speedup_of(own: Sequence[Generation], plain: Sequence[Generation]) -> tuple[float, str]:
    """Returns the speed-up over AR, and its text with the interval."""
    columns = [
        np.array(values, dtype=float)
        for side in (own, plain)
        for values in ([len(each.token_ids) - 1 for each in side], [each.decode_seconds for each in side])
    ]
    low, high = bootstrap.interval(columns, seed=0)
    value = bootstrap.ratio(columns)
    assert value is not None
    return value, f"{value:.2f}" if low is None or high is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def bounds_table(report: LimitReport) -> Table:
    """Returns the wanted and the measured shares of the engine: AR by the decode loop, drafting within speculative
    decoding."""
    environment, target, drafter = report.environment, report.target, report.drafter
    title = f"{environment['engine']}, {target.model.dtype} on {environment['device']}"
    table = Table("bound ÷ measured", "wanted", "measured [95 %]", title=title)
    table.add_row("AR", "≥ 0.75", target.share_of_bound.text)
    table.add_row("drafting", "≥ 0.5", drafter.share_of_bound_drafting.text)
    table.add_row("the drafter alone", "", drafter.share_of_bound.text)
    for name, model in (("target", target), ("drafter", drafter)):
        point = model.at(1, report.context)
        table.add_row(f"forward pass, {name}", "", f"{point.bound_seconds / point.seconds.median:.2f}")
    return table


def main(
    small: Annotated[bool, typer.Option("--small", help="Small shapes in float32 on the CPU.")] = False,
    device: str = "auto",
    engine: str = "compiled",
    context: int = 256,
    num_tokens: int = 128,
    num_prompts: int = 16,
    num_draft_tokens: int = 5,
    repeats: int = 9,
    threads: int = 1,
) -> None:
    """Measure how near decoding and drafting come to the bounds of the hardware, on models with random weights."""
    torch.set_num_threads(threads)
    shapes = ("16 × 256", "2 × 64") if small else ("7B", "0.5B")
    dtype, device = ("float32", "cpu") if small else ("bfloat16", device)
    target, drafter = (random_model(shape, dtype, device, engine, seed) for seed, shape in enumerate(shapes))
    console = Console(width=120)
    words = {"target": target.name, "drafter": drafter.name, "dtype": dtype, "device": device, "engine": engine}
    report = limits_of(target, drafter, build(LimitOptions, {**words, "context": context, "repeats": repeats}))
    for table in [*tables(report), bounds_table(report)]:
        console.print(table)
    setting = Setting(context, num_tokens, num_prompts, num_draft_tokens)
    for model in (target, drafter):
        if model.static is not None:
            model.static.reserve(context + num_tokens + num_draft_tokens + 1, (1, 2, num_draft_tokens + 1))
    console.print(rates_table(measure(ModelPair(target, drafter), setting), setting))


if __name__ == "__main__":
    typer.run(main)
