"""A real pair of one vocabulary, in the dtype in which people run it: Qwen2.5-Coder 1.5B with the 0.5B in bfloat16.

Rounding is coarse there, so that the width of a pass may decide between two tokens; each difference is of this kind.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.models.loading import load_model
from tests.support.public_models import Answered, Outputs, answered, generate, outputs_of

pytestmark = pytest.mark.real

NUM_TOKENS = 24
QUESTIONS = [
    ("Say hello in one short sentence.", True),
    ("def fibonacci(n):\n    if n < 2:\n        return n\n    return", False),
]
LENGTHS = ["sd-confidence", "sd-roc", "sd-adaedl", "sd-svip", "sd-heuristic", "sd-costs"]
WITHOUT_A_DRAFTER = {  # with what lets them find something in short texts
    "pld": [], "lookahead": [], "token-recycling": [], "jacobi": [], "suffix": [],
    "sam": ["drafter.min_match=1", "num_draft_tokens=4"],
    "ngram-mod": ["drafter.ngram=1", "drafter.min_tokens=1", "num_draft_tokens=4"],
    "self-quantized": [], "self-skip": ["drafter.share=0.15"], "self-skip-swift": ["drafter.tried_on=8"],
    "self-window": ["drafter.sink=2", "drafter.window=8"],
}  # fmt: skip


@pytest.fixture(scope="module")
def pair(real_models: Path) -> Iterator[ModelPair]:
    target, drafter = (
        load_model(str(real_models / name), device="cpu", dtype="bfloat16")
        for name in ("qwen-coder-1.5b", "qwen-coder-0.5b")
    )
    yield ModelPair(target, drafter)


@pytest.fixture(scope="module")
def known(pair: ModelPair) -> Answered:
    return answered(pair.target, QUESTIONS, NUM_TOKENS)


def test_ar_writes_what_generate_writes(known: Answered) -> None:
    """The same network in the same dtype, its products and passes of one token: the same tokens, bit for bit."""
    ends = sorted(known.target.eos_token_ids)
    for answer in known.answers:
        assert generate(known.target.model, answer.prompt_ids, NUM_TOKENS, eos_token_id=ends) == answer.token_ids
    assert known.finishes[0] == "eos" and known.num_tokens > NUM_TOKENS


def check_differences(found: Outputs, known: Answered) -> None:
    assert {each.kind for each in found.differences} <= {"near-tie", "width"}
    num_equal = sum(
        output.token_ids == answer.token_ids for output, answer in zip(found.outputs, known.answers, strict=True)
    )
    assert num_equal == len(known.answers) - len(found.differences) >= 1
    assert found.num_tokens > NUM_TOKENS


@pytest.mark.parametrize("method", ["sd", "sd-block", "sd-tree", "sd-paths", "cascade", *LENGTHS])
def test_a_lossless_method_differs_by_the_width_of_a_pass_alone(method: str, known: Answered, pair: ModelPair) -> None:
    found = outputs_of(method, pair, known)
    check_differences(found, known)
    assert found.num_accepted > 0.4 * found.num_verified > 0


@pytest.mark.parametrize("method", WITHOUT_A_DRAFTER)
def test_a_method_without_a_drafter_differs_by_the_width_of_a_pass_alone(
    method: str, known: Answered, pair: ModelPair
) -> None:
    found = outputs_of(method, ModelPair(pair.target, None), known, WITHOUT_A_DRAFTER[method])
    check_differences(found, known)
    assert found.num_drafted > 0


def test_sampled_answers_are_those_of_their_seed(known: Answered, pair: ModelPair) -> None:
    """At temperature 1 the random stream decides, and nothing that an earlier answer left behind."""
    first, second = (outputs_of("sd", pair, known, sampling=Sampling(1.0)) for _ in range(2))
    assert [each.token_ids for each in first.outputs] == [each.token_ids for each in second.outputs]
    assert [each.steps for each in first.outputs] == [each.steps for each in second.outputs]
    assert 0 < first.num_accepted < first.num_verified
    assert [each.token_ids for each in first.outputs] != [each.token_ids for each in known.answers]
