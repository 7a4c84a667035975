"""The generation state cuts at EOS, stop strings and limits, and counts nothing after the cut."""

import pytest

from specbench.decoding.build import build_decoder
from specbench.decoding.loop import GenerationState, StopRules, WrittenText, text_before_stop
from specbench.decoding.proposal import Proposal, Step, Verification
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.specs.catalogue import load_method
from specbench.specs.components import build
from specbench.specs.task import GenerationSpec
from tests.support import tiny

TEXT = {1: "a", 2: "b", 3: "\n", 4: "\n\n", 5: "", 6: "EN", 7: "D"}


def decode_text(ids: list[int]) -> str:
    return "".join(TEXT.get(i, "x") for i in ids)


def state(**rules: object) -> GenerationState:
    made = GenerationState([9, 9], StopRules(**{"max_new_tokens": 20, **rules}))  # type: ignore[arg-type]
    made.start(1)
    return made


def test_full_acceptance_emits_the_bonus_token() -> None:
    made = state()
    assert made.extend(Proposal([1, 2]), Verification(2, 1)) == Step(2, 2, 2, 3)
    assert made.new_ids == [1, 1, 2, 1]
    made.check(2)


def test_rejection_judges_one_more_than_it_accepts() -> None:
    made = state()
    assert made.extend(Proposal([1, 2, 2]), Verification(1, 1)) == Step(3, 2, 1, 2)


def test_eos_inside_the_accepted_run_drops_the_rest() -> None:
    made = state(eos_token_ids=frozenset({2, 8}))
    assert made.extend(Proposal([1, 8, 1]), Verification(3, 1)) == Step(3, 2, 2, 2)
    assert made.finish == "eos"
    assert made.new_ids == [1, 1, 8]


def test_rejected_token_after_the_cut_is_not_judged() -> None:
    made = state(eos_token_ids=frozenset({2}))
    assert made.extend(Proposal([2, 1]), Verification(1, 1)) == Step(2, 1, 1, 1)


def test_the_text_ends_before_the_first_of_several_stop_strings() -> None:
    assert text_before_stop("a STOP b END c STOP", ("END", "STOP", "nowhere")) == "a "
    assert text_before_stop("a", ("END",)) == "a"


def test_stop_string_straddling_two_accepted_tokens() -> None:
    made = state(stop_strings=("\n\n",), decode_text=decode_text)
    assert made.extend(Proposal([3, 3, 1]), Verification(3, 1)) == Step(3, 2, 2, 2)
    assert made.finish == "stop"
    assert text_before_stop(decode_text(made.new_ids), ("\n\n",)) == "a"


def test_stop_string_straddling_two_steps_and_empty_tokens() -> None:
    made = state(stop_strings=("END",), decode_text=decode_text)
    made.extend(Proposal([6]), Verification(1, 5))
    assert not made.finished
    made.extend(Proposal([7, 1]), Verification(2, 1))
    assert made.finish == "stop"
    assert made.new_ids == [1, 6, 5, 7]


def test_stop_string_in_the_prompt_does_not_count() -> None:
    made = GenerationState([3, 3], StopRules(max_new_tokens=5, stop_strings=("\n\n",), decode_text=decode_text))
    made.start(1)
    assert not made.finished


SPECIAL = "<|im_end|>"


@pytest.fixture(scope="module")
def special_model() -> CausalLM:
    tokenizer = tiny.tokenizer(3)
    tokenizer.add_special_tokens({"additional_special_tokens": [SPECIAL, "<|eot_id|>"]})
    return CausalLM(tiny.network(vocab_size=len(tokenizer)), tokenizer, "m", None)


@pytest.mark.parametrize(
    ("stop", "answer", "finish", "text"),
    [
        (SPECIAL, f"ab{SPECIAL}c", "eos", "ab"),
        ("<|eot_id|>", "ab<|eot_id|>c", "eos", "ab"),
        (f"{SPECIAL}\n", f"a{SPECIAL}b{SPECIAL}\nc", "stop", "ab"),
        (f"{SPECIAL}<|eot_id|>", f"ab{SPECIAL}<|eot_id|>c", "stop", "ab"),
        (f"b{SPECIAL}", f"ab{SPECIAL}c", "stop", "a"),
        ("b\n", f"ab{SPECIAL}\nc", "stop", "a"),  # decoded text has no special token
        (SPECIAL, "abc", None, "abc"),
    ],
)
def test_stop_strings_of_special_tokens(
    special_model: CausalLM, stop: str, answer: str, finish: str | None, text: str
) -> None:
    """Decoding drops them from the text of an answer; `specbench run` and lm-eval have the same rules."""
    generation = build(GenerationSpec, {"max_new_tokens": 20, "stop": [stop]})
    rules = build_decoder(load_method("ar"), ModelPair(special_model), Sampling()).stop_rules(generation, None)
    made = GenerationState([1], rules)
    for token in special_model.encode_prompt(answer, chat=False):
        if not made.finished:
            made.start(token)
    assert (made.finish, WrittenText.of(rules, [1], made.new_ids).text) == (finish, text)


def test_a_special_token_that_is_spelt_ends_an_answer_too(special_model: CausalLM) -> None:
    generation = build(GenerationSpec, {"max_new_tokens": 40, "stop": [SPECIAL]})
    rules = build_decoder(load_method("ar"), ModelPair(special_model), Sampling()).stop_rules(generation, None)
    made = GenerationState([1], rules)
    for character in f"ab{SPECIAL}c":
        if not made.finished:
            made.start(special_model.vocabulary[character])
    assert (made.finish, WrittenText.of(rules, [1], made.new_ids).text) == ("stop", "ab")


def test_length_and_context_limits() -> None:
    made = state(max_new_tokens=3)
    assert made.num_remaining == 2
    assert made.extend(Proposal([1, 1]), Verification(2, 1)) == Step(2, 2, 2, 2)
    assert made.finish == "length"
    close = state(max_new_tokens=30, context_limit=4)
    close.extend(Proposal([]), Verification(0, 1))
    assert close.finish == "context"


def test_one_token_generation() -> None:
    made = state(max_new_tokens=1)
    assert made.finish == "length"
    made.check(0)


def test_check_catches_a_wrong_count() -> None:
    made = state()
    made.extend(Proposal([1]), Verification(1, 1))
    made.steps[0] = Step(1, 1, 1, 1)
    with pytest.raises(AssertionError):
        made.check(1)
