"""Compares specbench's decode loop with transformers' own in one process, on a CPU.

The table has the ratios of tokens/s of AR ÷ generate, SD ÷ assisted generation, and of string matching, token
intersection and prompt lookup ÷ transformers' own, and the number of equal outputs. All sides are interleaved per
prompt in alternating order. A ratio is of Σ tokens ÷ Σ seconds, prefill included on both sides, with a paired
bootstrap interval.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

import numpy as np
import torch
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.core.table import Table, number_columns, text_columns
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import Decoder
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.loading import load_model
from specbench.results.metric_format import with_interval
from specbench.specs.catalogue import load_method, load_task, with_overrides
from specbench.statistics.bootstrap import Estimate, Resampler
from specbench.tasks.examples import load_examples
from tests.support import tiny

GAMMA = 5
GREEDY = Sampling(0.0)
Timed = tuple[int, float]
Run = Callable[[list[int]], tuple[list[int], float]]


def hugging_face(model: CausalLM, max_new_tokens: int, assistant: CausalLM | None = None) -> Run:
    """transformers' generate, or its assisted generation with a fixed draft length and no confidence threshold."""
    options = {
        "max_new_tokens": max_new_tokens,
        "do_sample": False,
        "eos_token_id": sorted(model.eos_token_ids) or None,
        "pad_token_id": 0,
    }

    def run(ids: list[int]) -> tuple[list[int], float]:
        if assistant is not None:  # its state lives on the assistant and moves between calls
            config = assistant.model.generation_config
            config.num_assistant_tokens = GAMMA
            config.num_assistant_tokens_schedule = "constant"
            config.assistant_confidence_threshold = 0
        extra = {"assistant_model": assistant.model} if assistant else {}
        start = time.perf_counter()
        output = model.model.generate(torch.tensor([ids]), **options, **extra)
        return output[0, len(ids) :].tolist(), time.perf_counter() - start

    return run


def ours(decoder: Decoder, stop: StopRules, kept: list[GenerationOutput] | None = None) -> Run:
    def run(ids: list[int]) -> tuple[list[int], float]:
        start = time.perf_counter()
        generation = decoder.generate(ids, stop, seed=0)
        seconds = time.perf_counter() - start
        if kept is not None:
            kept.append(generation)
        return generation.token_ids, seconds

    return run


def measure(runs: Sequence[Run], prompts: Sequence[list[int]]) -> tuple[list[list[Timed]], int]:
    """(tokens, seconds) per run and prompt after one unmeasured round, and on how many prompts all outputs agree."""
    for run in runs:
        run(prompts[-1])
    timed: list[list[Timed]] = [[] for _ in runs]
    num_equal = 0
    for number, prompt in enumerate(prompts):
        outputs = {}
        for index in range(len(runs)) if number % 2 == 0 else reversed(range(len(runs))):
            outputs[index], seconds = runs[index](prompt)
            timed[index].append((len(outputs[index]), seconds))
        num_equal += all(output == outputs[0] for output in outputs.values())
    return timed, num_equal


def ratio(own: Sequence[Timed], other: Sequence[Timed]) -> Estimate:
    """Returns the ratio of two speeds on the same prompts."""
    columns = [np.array(column, dtype=float) for timed in (own, other) for column in zip(*timed, strict=True)]
    return Resampler(np.arange(len(own)), seed=0).ratio(*columns)


def speeds(name: str, wanted: str, own: Sequence[Timed], other: Sequence[Timed]) -> list[str]:
    """Returns a row of the table."""
    return [name, wanted, with_interval(ratio(own, other)), speed(own), speed(other)]


def speed(timed: Sequence[Timed]) -> str:
    return f"{sum(n for n, _ in timed) / sum(t for _, t in timed):.1f}"


def overhead(generations: Sequence[GenerationOutput]) -> str:
    """Share of the decode time outside of forward passes."""
    decode = sum(g.decode_seconds for g in generations)
    passes = sum(seconds for g in generations for _, seconds in [*g.target_passes, *g.draft_passes])
    return f"{100 * (1 - passes / decode):.1f} %"


def embedded_prompts(target: CausalLM, num_per_language: int) -> list[list[int]]:
    """Bundled prompts, the languages in turn."""
    task = load_task("mgsm")
    by_language = [
        [target.encode_prompt(example.prompt, chat=False) for example in
         load_examples(task, subset, data="sample", use_sample=True, limit=num_per_language).examples]
        for subset in task.subset_names
    ]  # fmt: skip
    return [ids for row in zip_longest(*by_language) for ids in row if ids is not None]


def embedded(num_prompts_per_language: int = 6, max_new_tokens: int = 128) -> Iterator[list[str]]:
    models = ModelPair(load_model("embedded:target", device="cpu"), load_model("embedded:drafter", device="cpu"))
    target, drafter = models.target, models.drafter
    assert drafter is not None
    prompts = embedded_prompts(target, num_prompts_per_language)
    stop = StopRules(max_new_tokens, target.eos_token_ids)
    plain: list[GenerationOutput] = []
    drafted: list[GenerationOutput] = []
    runs = [
        ours(build_decoder(load_method("ar"), models, GREEDY), stop, plain),
        hugging_face(target, max_new_tokens),
        ours(build_decoder(load_method("sd"), models, GREEDY), stop, drafted),
        hugging_face(target, max_new_tokens, drafter),
    ]
    (ar, generate, sd, assisted), num_equal = measure(runs, prompts)
    yield speeds("embedded pair: AR ÷ generate", "≥ 1.0", ar, generate)
    yield speeds(f"embedded pair: SD ÷ assisted generation, {GAMMA} draft tokens", "≥ 1.15", sd, assisted)
    yield speeds(f"embedded pair: SD ÷ AR, {GAMMA} draft tokens", "≥ 1.8", sd, ar)
    shares = f"{overhead(plain[1:])}, {overhead(drafted[1:])}"
    yield ["embedded pair: overhead of AR, of SD", "≤ 5 %, ≤ 10 %", shares, "", ""]
    yield ["embedded pair: prompts with equal outputs of all four", "", f"{num_equal} of {len(prompts)}", "", ""]


PAIRS = {
    "string matching": ("slem", "hf-slem", []),
    "token intersection, output layer not pruned": ("tli", "hf-tli", ["decoder.options.prune_lm_head=false"]),
    "prompt lookup, as it is shipped": ("pld", "hf-pld", []),
    "prompt lookup, matches and drafts as long as theirs": (
        "pld",
        "hf-pld",
        ["drafter.max_match=2", "drafter.tokens_per_match=null"],
    ),
}


def bridges(num_prompts_per_language: int = 6, max_new_tokens: int = 128) -> Iterator[list[str]]:
    """The embedded target with a drafter of another vocabulary, and with none."""
    models = ModelPair(load_model("embedded:target", device="cpu"), load_model("embedded:drafter-bpe", device="cpu"))
    prompts = embedded_prompts(models.target, num_prompts_per_language)
    stop = StopRules(max_new_tokens, models.target.eos_token_ids)
    plain = ours(build_decoder(load_method("ar"), models, GREEDY), stop)
    for name, (own, other, overrides) in PAIRS.items():
        _, methods = with_overrides([], [load_method(own), load_method(other)], overrides)
        assert methods[0].num_draft_tokens == methods[1].num_draft_tokens
        runs = [plain, *(ours(build_decoder(method, models, GREEDY), stop) for method in methods)]
        (_, mine, theirs), num_equal = measure(runs, prompts)
        title = f"embedded pair: {own} ÷ {other} ({name}), {methods[0].num_draft_tokens} draft tokens"
        yield speeds(title, "≥ 1.15", mine, theirs)
        yield ["  prompts with AR's output from both", "", f"{num_equal} of {len(prompts)}", "", ""]


def long_context(context: int = 4096, num_prompts: int = 5) -> list[str]:
    config = LlamaConfig(
        vocab_size=1024, hidden_size=512, intermediate_size=1024, num_hidden_layers=12, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=8192, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = CausalLM(LlamaForCausalLM(config).eval(), tiny.tokenizer(num_extra=767), "random 12×512", None)
    seeds = [torch.Generator().manual_seed(seed) for seed in range(num_prompts)]
    prompts = [torch.randint(0, 1024, (context,), generator=seed).tolist() for seed in seeds]
    num_tokens = 32
    plain = ours(build_decoder(load_method("ar"), ModelPair(model), GREEDY), StopRules(num_tokens))
    one = ours(build_decoder(load_method("ar"), ModelPair(model), GREEDY), StopRules(1))
    (ar, generate, ar_first, generate_first), _ = measure(
        [plain, hugging_face(model, num_tokens), one, hugging_face(model, 1)], prompts
    )
    # The prefill of the context is the same work on both sides: what is compared is the time after it.
    own = [(n - 1, t - first) for (n, t), (_, first) in zip(ar, ar_first, strict=True)]
    other = [(n - 1, t - first) for (n, t), (_, first) in zip(generate, generate_first, strict=True)]
    return speeds(f"context {context}, 12 × 512, random: AR ÷ generate", "≥ 1.2", own, other)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench_transformers", description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    torch.set_num_threads(parser.parse_args().threads)
    columns = [*text_columns("comparison", "wanted"), *number_columns("ratio [95 %]", "tok/s", "tok/s of\nthe other")]
    rows = [*embedded(), *bridges(), long_context()]
    Console(width=140).print(Table("specbench ÷ transformers", columns, rows))


if __name__ == "__main__":
    main()
