"""Speed-ups at prescribed acceptance rates, compared with the formula's."""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import fmean, median
from typing import Any

from specbench.results.metric_format import with_interval
from specbench.results.metrics import expected_speedup
from specbench.running.capture_plan import num_compilations
from tools.bench_gpu.models import (
    CONTEXT,
    NUM_DRAFT_TOKENS,
    NUM_TOKENS,
    PAIRS,
    VOCABULARY,
    decode_ids,
    ids_of,
    own_engines,
    random_model,
    say,
    with_engine,
)  # fmt: skip
from tools.bench_transformers import ratio

RATES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
NUM_PROMPT_TOKENS, NUM_NEW_TOKENS = 96, 96


def formula(args: argparse.Namespace) -> None:
    """Measured speed-ups of prescribed acceptance beside the expected ones, in a loop that alternates with AR."""
    from specbench.decoding.drafters.synthetic import SyntheticDrafter
    from specbench.decoding.sampling import Sampling
    from specbench.models.causal_lm import ModelPair

    target, drafter = (random_model(shape, VOCABULARY[args.shapes], args.device) for shape in PAIRS[args.shapes])
    for engine in own_engines(args):
        models = [with_engine(model, engine) for model in (target, drafter)]
        start = time.perf_counter()
        for model, lengths in zip(models, ((1, NUM_DRAFT_TOKENS + 1), (1, 2)), strict=True):
            if model.static is not None:  # buffers as in the part `passes`, so that torch's cache on disk is read
                model.static.reserve(CONTEXT + NUM_TOKENS, lengths)
        models[1].reserve_draft(NUM_DRAFT_TOKENS, Sampling(0.0))
        say(f"{engine}: both models are ready in {time.perf_counter() - start:.1f} s")
        prompts = [ids_of(target, NUM_PROMPT_TOKENS, seed) for seed in range(args.prompts + 1)]  # the first warms up
        num_compiled = num_compilations()
        for alpha in RATES:
            synthetic = SyntheticDrafter(ModelPair(*models), Sampling(0.0), acceptance=alpha)
            pairs = [generate_both(models[0], synthetic, ids, number) for number, ids in enumerate(prompts)]
            say(f"{engine}: " + formula_line(alpha, pairs[1:]))
        assert num_compilations() == num_compiled, "passes were compiled while others were measured"


def generate_both(target: Any, synthetic: Any, ids: list[int], number: int) -> dict[str, Any]:
    """Returns the generations of AR and of the prescribed drafter on a prompt, the former first if `number` is odd."""
    from specbench.decoding.drafters import NoDrafter
    from specbench.decoding.verification import rejection

    speculate = partial(
        decode_ids, target, synthetic, ids, NUM_NEW_TOKENS, NUM_DRAFT_TOKENS, rejection, seed=number
    )  # fmt: skip

    def rehearsed() -> Any:
        synthetic.rehearse(speculate)
        return speculate()

    plain = partial(decode_ids, target, NoDrafter(), ids, NUM_NEW_TOKENS, 0, rejection)
    sides: dict[str, Callable[[], Any]] = {"ar": plain, "sd": rehearsed}
    return {name: sides[name]() for name in (("ar", "sd") if number % 2 else ("sd", "ar"))}


def formula_line(alpha: float, pairs: list[dict[str, Any]]) -> str:
    """Returns a line with the speed-up of all pairs and its ratios to f at the prescribed acceptance rate. f takes the
    draft cost of medians; f with v takes both costs of means, since a speed-up is of sums of seconds."""
    plain, drafted = ([pair[name] for pair in pairs] for name in ("ar", "sd"))
    steps = [step for each in drafted for step in each.steps]
    found_alpha = sum(step.num_accepted for step in steps) / sum(step.num_verified for step in steps)
    singles = [seconds for each in plain for _, seconds in each.target_passes]
    drafts = [seconds for each in drafted for _, seconds in each.draft_passes]
    full = [s for each in drafted for length, s in each.target_passes if length == NUM_DRAFT_TOKENS + 1]
    cost, verifying = median(drafts) / median(singles), fmean(full) / fmean(singles)
    found = ratio(*([(len(each.token_ids) - 1, each.decode_seconds) for each in side] for side in (drafted, plain)))
    assert found.value is not None
    share = found.value / expected_speedup(alpha, NUM_DRAFT_TOKENS, cost)
    with_v = found.value / expected_speedup(alpha, NUM_DRAFT_TOKENS, fmean(drafts) / fmean(singles), verifying)
    return (
        f"α {alpha} (found {found_alpha:.3f}): speed-up {with_interval(found)}, ÷ f {share:.3f}, ÷ f with v "
        f"{with_v:.3f}; c {cost:.3f}, v {verifying:.3f}"
    )
