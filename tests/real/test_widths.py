"""Which widths of passes change the logits of a public GGUF file, along its own answer."""

from pathlib import Path

import pytest

from specbench.decoding.loop import StopRules
from specbench.models.batch_width import BaselineAnswer, measure_batch_width
from specbench.models.loading import load_model
from tests.support.gguf_files import needs_llama_cpp
from tests.support.loops import autoregressive

needs_llama_cpp()
pytestmark = pytest.mark.real

NUM_TOKENS = 24
FACTS = "The capital of France is Paris, and the capital of Italy is"


@pytest.mark.parametrize(("name", "is_equal"), [("smollm2-135m", True), ("gemma3-270m", False)])
def test_widths_of_passes(name: str, is_equal: bool, real_models: Path) -> None:
    """The kept passes of the Q4_1 file give the rows of single ones; those of the Q4_K_M file do not."""
    model = load_model(str(real_models / f"{name}.gguf"), device="cpu", engine="llama.cpp")
    ids = model.encode_prompt(FACTS, chat=False)
    answer = BaselineAnswer("facts", ids, autoregressive(model, ids, StopRules(NUM_TOKENS, frozenset())).token_ids)
    found = measure_batch_width(model, [answer], 6, whole=True)
    kept = {each.width: each for each in found.changes if each.compared == "kept" and each.prefix == "short"}
    assert set(kept) == {2, 3, 4, 5, 6} and found.repeated and not found.wrong_widths
    assert (min(each.share_equal for each in kept.values()) == 1.0) is is_equal
    assert (kept[6].max_change == 0.0) is is_equal
