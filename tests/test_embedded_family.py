"""Every lossless method on the embedded family, greedy, float32: the tokens of AR, on prompts of every language."""

import pytest

from specbench.decoding.ledger import StopRules
from specbench.decoding.loop import Generation
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.models.loading import load_model
from specbench.running.compose import compose
from specbench.specs.catalogue import load_method
from specbench.specs.run import embedded_drafter

MAX_NEW_TOKENS = 32
OF_ANOTHER_VOCABULARY = ("slem", "tli")
OWN_DRAFTERS = {"slem": "drafter-bpe", "tli": "drafter-bpe", "slrs": "drafter-bytes"}
LOSSLESS = ("sd", "tli", "union", "slem", "slrs", "ngram", "pld")


def generate(method: str, models: ModelPair, prompt: list[int]) -> Generation:
    decoder = compose(load_method(method), models, Sampling(0.0))
    return decoder.generate(prompt, StopRules(MAX_NEW_TOKENS, models.target.eos_token_ids), seed=0)


@pytest.fixture(scope="module")
def expected(
    embedded_pair: ModelPair, embedded_prompts: dict[str, list[list[int]]]
) -> list[tuple[list[int], list[int]]]:
    """A prompt of each language, not the same one of all, with AR's tokens."""
    prompts = [prompts[number % 3] for number, prompts in enumerate(embedded_prompts.values())]
    return [(prompt, generate("ar", embedded_pair, prompt).token_ids) for prompt in prompts]


@pytest.mark.parametrize("method", LOSSLESS)
def test_greedy_output_is_that_of_the_target(
    method: str, embedded_pair: ModelPair, expected: list[tuple[list[int], list[int]]]
) -> None:
    """Bridges lose little: most text that a drafter of another vocabulary writes is what the target would have
    written."""
    spec = load_method(method)
    assert spec.lossless
    drafter = load_model(embedded_drafter(spec.bridge.type), device="cpu") if spec.needs_drafter else None
    models = ModelPair(embedded_pair.target, drafter)
    steps = []
    for prompt, token_ids in expected:
        generation = generate(method, models, prompt)
        assert generation.token_ids == token_ids
        steps += generation.steps
    num_accepted = sum(step.num_accepted for step in steps)
    assert len(expected) == 11
    assert num_accepted > 0.1 * sum(len(token_ids) for _, token_ids in expected)
    if method in OWN_DRAFTERS:
        assert embedded_drafter(spec.bridge.type) == f"embedded:{OWN_DRAFTERS[method]}"
        assert num_accepted > 0.6 * sum(step.num_judged for step in steps)


@pytest.mark.parametrize(
    ("method", "drafter"),
    [("tli", "drafter-bytes"), ("union", "drafter-bytes"), ("slem", "drafter-bytes"), ("slrs", "drafter-bpe")],
)
def test_a_drafter_made_for_another_bridge_changes_nothing(
    method: str, drafter: str, embedded_pair: ModelPair, expected: list[tuple[list[int], list[int]]]
) -> None:
    """A prompt of every other language."""
    assert f"embedded:{drafter}" != embedded_drafter(load_method(method).bridge.type)
    models = ModelPair(embedded_pair.target, load_model(f"embedded:{drafter}", device="cpu"))
    prompts = expected[::2]
    assert len(prompts) == 6
    steps = []
    for prompt, token_ids in prompts:
        generation = generate(method, models, prompt)
        assert generation.token_ids == token_ids
        steps += generation.steps
    floor = 0.6 if method == "slrs" else 0.0
    assert sum(step.num_accepted for step in steps) > floor * sum(step.num_judged for step in steps)


@pytest.mark.parametrize("method", OF_ANOTHER_VOCABULARY)
def test_the_draft_cache_is_never_rebuilt(
    method: str, embedded_pair: ModelPair, expected: list[tuple[list[int], list[int]]]
) -> None:
    """After the prefill a draft pass reads what was emitted and the tail that its tokenizer cuts anew: a few tokens."""
    drafter = load_model("embedded:drafter-bpe", device="cpu")
    for prompt, _ in expected[::2]:
        lengths = [
            length for length, _ in generate(method, ModelPair(embedded_pair.target, drafter), prompt).draft_passes
        ]
        assert max(lengths) < 24 < len(prompt)
        assert sum(lengths) < 3 * len(lengths)
