"""Prompts beyond the sliding window of Gemma 3: draft tokens are read and dropped while its layers forget the begin."""

import pytest

from specbench.models.causal_lm import CausalLM, ModelPair
from tests.support.loops import SometimesWrong
from tests.support.public_models import Answered, answered, check_equal, generate, outputs_of

pytestmark = pytest.mark.real

NUM_TOKENS = 24
LINE = "{0}. The capital of country {0} is city {0}, which lies on river {0}.\n"
BEYOND, ACROSS = 23, 21  # lines: more tokens than the window, and so few less that the answer crosses its edge


@pytest.fixture(scope="module")
def known(gemma: CausalLM) -> Answered:
    texts = ["".join(LINE.format(number) for number in range(1, last + 1)) for last in (BEYOND, ACROSS)]
    return answered(gemma, [(text, False) for text in texts], NUM_TOKENS, max_width=2)


def test_the_prompts_are_beyond_the_window_and_across_its_edge(known: Answered) -> None:
    window = known.target.model.config.sliding_window
    beyond, across = (len(each.prompt_ids) for each in known.answers)
    assert beyond > window + NUM_TOKENS and across < window < across + NUM_TOKENS
    assert known.num_tokens == 2 * NUM_TOKENS


def test_ar_writes_what_generate_writes(known: Answered) -> None:
    for answer in known.answers:
        assert generate(known.target.model, answer.prompt_ids, NUM_TOKENS) == answer.token_ids


@pytest.mark.parametrize("method", ["sd", "pld"])
def test_drafts_are_kept_and_rolled_back(method: str, known: Answered, gemma: CausalLM) -> None:
    """With the target's twin as a drafter, which is wrong at every third place, and with copies of the prompt."""
    drafter = SometimesWrong(gemma.model, gemma.tokenizer, "twin", None) if method == "sd" else None
    found = outputs_of(method, ModelPair(gemma, drafter), known)
    check_equal(found, known, num_near_ties=1)
    assert found.num_verified - found.num_accepted >= 3  # rolled back
