"""A value that does not fit is named with its place, and with what it would have to be, in no library's words."""

import json
from collections.abc import Mapping

import pytest

from specbench.integrations.served.rotation import ServerAnswer
from specbench.records.generation import Decoder, Record
from tests.support.records import whole

WRONG: dict[str, tuple[Mapping[str, object], str]] = {
    "a text for a number": ({"decode_seconds": "x"}, 'decode_seconds = "x": is not a number'),
    "no number": ({"decode_seconds": float("nan")}, "decode_seconds = NaN: is not a number from 0"),
    "a score of none": ({"score": float("nan")}, ": score = nan: is not a finite number"),
    "a text for a score": ({"score": "x"}, 'score = "x": is not true, false, a number or null'),
    "null for a text": ({"text": None}, "text = null: is not a text"),
    "an unknown word": ({"finish": "eoss"}, "finish = \"eoss\": did you mean 'eos'? (choices: context, eos, length"),
    "a word that may be null": ({"decoded_by": "draftr"}, "decoded_by = \"draftr\": did you mean 'drafter'?"),
    "half a token": ({"token_ids": [1, 1.5]}, "token_ids[1] = 1.5: is not an integer from 0"),
    "a token beyond 64 bits": ({"token_ids": [2**70]}, f"token_ids[0] = {2**70}: is not an integer from 0 to"),
    "a negative token": ({"token_ids": [-1]}, "token_ids[0] = -1: is not an integer from 0"),
    "no list": ({"token_ids": "abc"}, 'token_ids = "abc": is not a list'),
    "a step of texts": ({"steps": [[1, 1, 1, 1], ["a", 1, 1, 1]]}, "is not a list of 4 integers: drafted"),
    "a step that is a number": ({"steps": [3]}, "steps[0] = 3: is not a list of 4"),
    "a pass without a time": ({"passes": {"target": [[1, "x"]], "draft": []}}, "passes.target[0] = [1, "),
    "a text for a probability": ({"positions": {"p": [0.5], "q": ["x"]}}, 'positions.q[0] = "x": is not a number or'),
    "one of several scores": ({"scores": {"a": 1, "b.c": "x"}}, 'scores.b.c = "x": is not '),
    "three counts for two": ({"tree_ranks": [[1, 2, 3]]}, "tree_ranks[0] = [1, 2, 3]: is not a list of 2 values"),
    "a negative count": ({"reasoning_tokens": -1}, "reasoning_tokens = -1: is not an integer from 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_of_a_record(name: str) -> None:
    changed, said = WRONG[name]
    line = json.dumps(whole(**changed)).encode()
    with pytest.raises(ValueError) as raised:
        Decoder(Record).decode(line, len(line))
    assert str(raised.value).startswith("methods.sd") and said in str(raised.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"finish": "eoss"}, "answer.finish = \"eoss\": did you mean 'eos'?"),
        ({"scores": {"a": 1, "b": "x"}}, 'answer.scores.b = "x": is not '),
    ],
)
def test_a_wrong_value_deep_in_a_line(changed: Mapping[str, object], said: str) -> None:
    answer = whole(**changed)["methods"]["sd"]
    place = {"task": "a", "subset": "b", "example": 0, "repeat": 0, "turn": 0, "method": "sd"}
    line = json.dumps({**place, "answer": answer}).encode()
    with pytest.raises(ValueError) as raised:
        Decoder(ServerAnswer).decode(line, len(line))
    assert str(raised.value).startswith(said)
