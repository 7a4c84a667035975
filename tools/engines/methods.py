"""Our two engines beside transformers' own generation on the embedded family, in one process.

All sides of a method are interleaved per prompt, the order alternating; a ratio is of Σ tokens ÷ Σ seconds, prefill
included, with a paired bootstrap interval.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench.decoding.build import build_decoder
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.models.causal_lm import ModelPair
from specbench.models.loading import load_model
from specbench.results.metric_format import with_interval
from specbench.running.capture_plan import CompileRequirements, compile_requirements, num_compilations
from specbench.running.models import LoadedModels
from specbench.specs.catalogue import load_method, with_overrides
from specbench.specs.components import EngineName
from specbench.specs.method import MethodSpec
from specbench.specs.run import embedded_drafter
from tools.bench_transformers import (
    GREEDY,
    Run,
    Timed,
    embedded_prompts,
    hugging_face,
    measure,
    ours,
    overhead,
    ratio,
    speed,
)  # fmt: skip

PER_LANGUAGE = 3
METHODS = ("ar", "sd", "fsd", "ngram", "pld", "slem", "tli", "union", "slrs")
OTHERS = {"pld": "hf-pld", "slem": "hf-slem", "tli": "hf-tli"}  # transformers' own, beside generate and assisted


@dataclass(frozen=True)
class Line:
    """One method: what each side made of each prompt in how long, transformers' None where it has no such method; how
    many prompts had the same tokens on all sides; the share of the decode time outside of forward passes, by engine."""

    method: str
    eager: list[Timed]
    compiled: list[Timed]
    transformers: list[Timed] | None
    num_equal: int
    overheads: tuple[str, str]

    def cells(self) -> list[str]:
        theirs = self.transformers
        return [
            self.method, speed(self.eager), speed(self.compiled), speed(theirs) if theirs else "–",
            with_interval(ratio(self.compiled, self.eager)),
            with_interval(ratio(self.compiled, theirs)) if theirs else "–",
            f"{self.num_equal} of {len(self.eager)}", *self.overheads,
        ]  # fmt: skip


HEAD = (
    "method", "eager tok/s", "compiled tok/s", "transformers tok/s", "compiled ÷ eager", "compiled ÷ transformers",
    "equal outputs", "overhead, eager", "overhead, compiled",
)  # fmt: skip


def load(methods: Sequence[MethodSpec], engine: EngineName) -> LoadedModels:
    """The embedded target, and for every method that drafts with a model the drafter of its bridge."""
    drafters = {
        method.name: embedded_drafter(
            method.bridge.type if method.decoder is None else method.decoder.bridge_type
        ).removeprefix("embedded:")
        for method in methods
        if method.needs_drafter
    }
    loaded = {
        name: load_model(f"embedded:{name}", device="cpu", engine=engine) for name in {"target", *drafters.values()}
    }
    return LoadedModels(loaded["target"], {method: loaded[name] for method, name in drafters.items()})


def reserve(need: CompileRequirements, num_tokens: int) -> None:
    """Compiles all passes that methods need of a model, for conversations of `num_tokens` tokens of the target."""
    model = need.model
    num_own = num_tokens * (6 if need.packs else 2 if need.has_own_tokens else 1)  # slrs drafts with bytes
    assert model.static is not None
    model.static.reserve(min(num_own, model.context_limit or num_own), sorted(need.lengths), need.packs, progress=print)


def transformers_own(name: str, eager: LoadedModels, max_new_tokens: int, stop: StopRules) -> Run | None:
    if name == "ar":
        return hugging_face(eager.target, max_new_tokens)
    if name == "sd":
        return hugging_face(eager.target, max_new_tokens, eager.drafters["sd"])
    if name not in OTHERS:
        return None
    overrides = ["decoder.options.prune_lm_head=false"] if name == "tli" else []
    _, (method,) = with_overrides([], [load_method(OTHERS[name])], overrides)
    return ours(build_decoder(method, ModelPair(eager.target, eager.drafters.get(name)), GREEDY), stop)


def lines(names: Sequence[str] = METHODS, per_language: int = PER_LANGUAGE, max_new_tokens: int = 96) -> Iterator[Line]:
    """A line for each method, as it is measured."""
    methods = [load_method(name) for name in names]
    eager, compiled = load(methods, "eager"), load(methods, "compiled")
    prompts = embedded_prompts(eager.target, per_language)
    longest = max(map(len, prompts)) + max_new_tokens
    for need in compile_requirements(compiled, methods):
        reserve(need, longest)
    num_compiled = num_compilations()
    stop = StopRules(max_new_tokens, eager.target.eos_token_ids)
    for method in methods:
        plain: list[GenerationOutput] = []
        made: list[GenerationOutput] = []
        sides = [
            ours(build_decoder(method, models.pair(method), GREEDY), stop, kept)
            for models, kept in ((eager, plain), (compiled, made))
        ]
        theirs = transformers_own(method.name, eager, max_new_tokens, stop)
        timed, num_equal = measure([*sides, *([theirs] if theirs else [])], prompts)
        assert num_compilations() == num_compiled, f"passes were compiled while {method.name} was measured"
        yield Line(
            method.name, timed[0], timed[1], timed[2] if theirs else None, num_equal,
            (overhead(plain[1:]), overhead(made[1:])),
        )  # fmt: skip
