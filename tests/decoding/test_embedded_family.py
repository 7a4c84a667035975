"""Every lossless method on the embedded family, greedy, float32: the tokens of AR, on prompts of every language."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest

from specbench.decoding.build import build_decoder
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.models.loading import load_model
from specbench.specs.catalogue import load_method
from specbench.specs.run import embedded_drafter

MAX_NEW_TOKENS = 32
FEWER = 20  # new tokens, enough of all methods but those that copy from the text so far
NEVER_REBUILD = ("slem", "tli")  # the cache of a drafter of another vocabulary
OWN_DRAFTERS = {"slem": "drafter-bpe", "tli": "drafter-bpe", "slrs": "drafter-bytes"}
LOSSLESS = (
    "sd", "tli", "union", "slem", "slrs", "ngram", "pld", "rest", "cascade", "self-quantized", "self-skip",
    "self-skip-swift", "self-window",
)  # fmt: skip


Expected = Callable[[int], tuple[list[int], list[int]]]
FEW = range(1)  # languages, by their numbers: those of the fast tests
ALL = range(11)


def generate(method: str, models: ModelPair, prompt: list[int], num_tokens: int = FEWER) -> GenerationOutput:
    decoder = build_decoder(load_method(method), models, Sampling(0.0))
    return decoder.generate(prompt, StopRules(num_tokens, models.target.eos_token_ids), seed=0)


@pytest.fixture(scope="module")
def expected(embedded_pair: ModelPair, embedded_prompts: dict[str, list[list[int]]]) -> Expected:
    """A prompt of a language, not the same one of all, with AR's tokens."""
    prompts = [prompts[number % 3] for number, prompts in enumerate(embedded_prompts.values())]
    assert len(prompts) == len(ALL)

    @cache
    def of_language(number: int) -> tuple[list[int], list[int]]:
        return prompts[number], generate("ar", embedded_pair, prompts[number], MAX_NEW_TOKENS).token_ids

    return of_language


def with_languages(cases: Sequence[tuple[str, ...]], whole: Sequence[str] = ()) -> list[Any]:
    """Cases with few languages and, beside the fast tests, with more, from another one on in each case, so that all
    cases together meet every language. Methods in `whole` take every third language, the others every fifth."""
    few = [pytest.param(*case, FEW, id=f"{'-'.join(case)}-few") for case in cases]
    many = [
        pytest.param(
            *case,
            ALL[number % 3 :: 3] if case[0] in whole else ALL[number % 5 :: 5],
            id=f"{'-'.join(case)}-many",
            marks=pytest.mark.slow,
        )
        for number, case in enumerate(cases)
    ]
    return [*few, *many]


@pytest.mark.parametrize(
    ("method", "languages"),
    [
        *with_languages([(name,) for name in LOSSLESS], whole=tuple(OWN_DRAFTERS)),
        pytest.param("tli", ALL, id="tli-all", marks=pytest.mark.slow),
    ],
)
def test_greedy_output_is_that_of_the_target(
    method: str, languages: Sequence[int], embedded_pair: ModelPair, expected: Expected
) -> None:
    """Bridges lose little: most text that a drafter of another vocabulary writes is what the target would have
    written. After the prefill a draft pass reads what was emitted and the tail that its tokenizer cuts anew: a few
    tokens."""
    spec = load_method(method)
    assert spec.lossless
    drafter = load_model(embedded_drafter(spec.bridge.type), device="cpu") if spec.needs_drafter else None
    models = ModelPair(embedded_pair.target, drafter)
    steps = []
    num_tokens = MAX_NEW_TOKENS if method == "pld" else FEWER
    for prompt, token_ids in map(expected, languages):
        generation = generate(method, models, prompt, num_tokens)
        assert generation.token_ids == token_ids[:num_tokens]
        steps += generation.steps
        if method in NEVER_REBUILD:
            lengths = [length for length, _ in generation.draft_passes]
            assert max(lengths) < 24 < len(prompt) and sum(lengths) < 3 * len(lengths)
    num_accepted = sum(step.num_accepted for step in steps)
    assert num_accepted > 0.1 * sum(len(expected(number)[1][:num_tokens]) for number in languages)
    if method in OWN_DRAFTERS:
        assert embedded_drafter(spec.bridge.type) == f"embedded:{OWN_DRAFTERS[method]}"
        floor = 0.6 if languages == ALL else 0.5  # a few prompts are too few to say more
        assert num_accepted > floor * sum(step.num_verified for step in steps)


@pytest.mark.parametrize(
    ("method", "drafter", "languages"),
    with_languages(
        [("tli", "drafter-bytes"), ("union", "drafter-bytes"), ("slem", "drafter-bytes"), ("slrs", "drafter-bpe")]
    ),
)
def test_a_drafter_made_for_another_bridge_changes_nothing(
    method: str, drafter: str, languages: Sequence[int], embedded_pair: ModelPair, expected: Expected
) -> None:
    assert f"embedded:{drafter}" != embedded_drafter(load_method(method).bridge.type)
    models = ModelPair(embedded_pair.target, load_model(f"embedded:{drafter}", device="cpu"))
    steps = []
    for prompt, token_ids in map(expected, languages):
        generation = generate(method, models, prompt)
        assert generation.token_ids == token_ids[:FEWER]
        steps += generation.steps
    floor = 0.6 if method == "slrs" else 0.0
    assert sum(step.num_accepted for step in steps) > floor * sum(step.num_verified for step in steps)
