"""What a row says of contexts: where answers end, where a drafter pauses, and how long a head's texts may be."""

from specbench.results.answers import answers_of
from specbench.results.rows import Measurement, context_of
from specbench.specs.catalogue import load_method
from tests.support.records import compared, generation

STEPS = [[2, 2, 1, 2]] * 5  # and the first token: 11 tokens


def measured(**lengths: dict[str, int]) -> Measurement:
    return Measurement(command="", repeats=1, chat=False, subsets=(), **lengths)


def test_tokens_beyond_what_a_head_was_made_for_are_counted() -> None:
    """Of the prompts of 4, 25 and 60 tokens, the answers' 0, 6 and 11 last tokens come after 30 tokens."""
    records = [
        compared(number, generation(STEPS), generation(STEPS), prompt_tokens=length)
        for number, length in enumerate((4, 25, 60))
    ]
    own, baseline = answers_of(records, "m"), answers_of(records, "ar")
    method = load_method("eagle3")
    found = context_of(measured(trained_lengths={"eagle3": 30, "another": 5}), own, baseline, method)
    assert found is not None and (found.trained, found.share_beyond) == (30, 17 / 33)
    assert (found.pauses_at, found.share_paused, found.model) == (None, None, None)
    within = context_of(measured(trained_lengths={"eagle3": 71}), own, baseline, method)
    assert within is not None and within.share_beyond == 0
    assert context_of(measured(trained_lengths={"another": 5}), own, baseline, method) is None
    both = context_of(measured(trained_lengths={"eagle3": 30}, pauses={"eagle3": 30}), own, baseline, method)
    assert both is not None and both.share_paused == both.share_beyond == 17 / 33
