"""Our two engines beside transformers' own generation on the embedded family, in one process.

    python -m tests.bench_engines

Prints tokens/s of every method, eager, compiled and, where transformers has it, as transformers runs it; what compiling
took; and the share of AR's decode time that is no forward pass. All sides of a method are interleaved per prompt with
the order alternating; a ratio is of Σ tokens ÷ Σ seconds, prefill included, with a paired bootstrap interval.
"""

from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table

from specbench.catalogue import load_method, with_overrides
from specbench.decoding.ledger import StopRules
from specbench.decoding.loop import Generation
from specbench.demo.family import drafter_for
from specbench.models.loading import load_model
from specbench.models.pair import ModelPair
from specbench.running.compose import compose
from specbench.running.models import Models
from specbench.running.reserving import needs
from specbench.specs import MethodSpec
from tests.bench_transformers import GREEDY, Run, embedded_prompts, hugging_face, measure, ours, overhead, ratio, speed

METHODS = ("ar", "sd", "fsd", "ngram", "pld", "slem", "tli", "union", "slrs")
OTHERS = {"pld": "hf-pld", "slem": "hf-slem", "tli": "hf-tli"}  # transformers' own, beside generate and assisted
WANTED = {"ar": "≥ 2.0", "sd": "≥ 2.0"}


def load(methods: Sequence[MethodSpec], engine: str) -> Models:
    """The embedded target, and for every method that drafts with a model the drafter of its bridge."""
    drafters = {
        method.name: drafter_for(method.bridge.type if method.decoder is None else method.decoder.pair_of)
        for method in methods
        if method.needs_drafter
    }
    loaded = {
        name: load_model(f"embedded:{name}", device="cpu", engine=engine) for name in {"target", *drafters.values()}
    }
    return Models(loaded["target"], {method: loaded[name] for method, name in drafters.items()})


def prepare(models: Models, methods: Sequence[MethodSpec], num_tokens: int) -> float:
    """Compile all that the methods need; returns the seconds."""
    seconds = 0.0
    for need in needs(models, methods):
        assert need.model.compiled is not None
        num_own = num_tokens * (6 if need.packs else 2 if need.has_own_tokens else 1)  # slrs drafts with bytes
        num_own = min(num_own, need.model.context_limit or num_own)
        seconds += need.model.compiled.reserve(num_own, sorted(need.lengths), need.packs)
    return seconds


def transformers_own(name: str, eager: Models, max_new_tokens: int, stop: StopRules) -> Run | None:
    if name == "ar":
        return hugging_face(eager.target, max_new_tokens)
    if name == "sd":
        return hugging_face(eager.target, max_new_tokens, eager.drafters["sd"])
    if name not in OTHERS:
        return None
    overrides = ["decoder.options.prune_lm_head=false"] if name == "tli" else []
    _, (method,) = with_overrides([], [load_method(OTHERS[name])], overrides)
    return ours(compose(method, ModelPair(eager.target, eager.drafters.get(name)), GREEDY), stop)


def engines(table: Table, names: Sequence[str] = METHODS, per_language: int = 3, max_new_tokens: int = 96) -> str:
    """A row for each method; returns what compiling took and the overheads of AR."""
    methods = [load_method(name) for name in names]
    eager, compiled = load(methods, "eager"), load(methods, "compiled")
    prompts = embedded_prompts(eager.target, per_language)
    seconds = prepare(compiled, methods, max(map(len, prompts)) + max_new_tokens)
    stop = StopRules(max_new_tokens, eager.target.eos_token_ids)
    kept: dict[str, tuple[list[Generation], list[Generation]]] = {name: ([], []) for name in names}
    for method in methods:
        sides = [
            ours(compose(method, models.pair(method), GREEDY), stop, generations)
            for models, generations in zip((eager, compiled), kept[method.name], strict=True)
        ]
        theirs = transformers_own(method.name, eager, max_new_tokens, stop)
        (slow, fast, *other), num_equal = measure([*sides, *([theirs] if theirs else [])], prompts)
        table.add_row(
            method.name, speed(slow), speed(fast), speed(other[0]) if other else "–", ratio(fast, slow),
            ratio(fast, other[0]) if other else "–", WANTED.get(method.name, ""), f"{num_equal} of {len(prompts)}",
        )  # fmt: skip
    shares = "; ".join(
        f"{name} {overhead(plain[1:])} eager, {overhead(made[1:])} compiled" for name, (plain, made) in kept.items()
    )
    return f"compiled in {seconds:.0f} s; share of the decode time that is no forward pass: {shares}"


def main() -> None:
    torch.set_num_threads(1)
    table = Table(
        "method", "eager tok/s", "compiled tok/s", "transformers tok/s", "compiled ÷ eager", "compiled ÷ transformers",
        "wanted", "equal outputs", title="embedded family, greedy, float32, one thread",
    )  # fmt: skip
    told = engines(table)
    Console(width=160).print(table, told)


if __name__ == "__main__":
    main()
