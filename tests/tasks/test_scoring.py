"""What scorers of plug-ins return: any kind of number is kept as a number, and what is none is reported in one line."""

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.records.records import RecordFile
from specbench.running.measure import score_fields
from specbench.tasks.scoring import PerAnswer, Score, Scorer, explained, judged
from tests.support.records import generation, record


def scorer(value: Any, statistics: Any = None) -> Scorer:
    class Mine(Scorer):
        names = ("right", "also")

        def __call__(self, text: str, reference: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return Score({"right": value}, {} if statistics is None else {"also": statistics})

    return Mine()


NUMBERS = {
    "a bool": (True, 1.0), "an int": (3, 3.0), "a NumPy bool": (np.bool_(False), 0.0),
    "a NumPy number": (np.float32(0.5), 0.5), "a NumPy integer": (np.int64(2), 2.0),
    "an array without dimensions": (np.array(0.25), 0.25), "a tensor": (torch.tensor(0.75), 0.75),
    "a fraction": (Fraction(1, 4), 0.25), "a decimal": (Decimal("0.5"), 0.5), "nothing": (None, None),
    "NaN": (float("nan"), None), "infinity": (np.float64("inf"), None), "an integer beyond floats": (10**400, None),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_of_any_kind_is_written_and_read(name: str, tmp_path: Path) -> None:
    value, expected = NUMBERS[name]
    fields = score_fields(scorer(value), "text", "reference")
    assert (fields["score"], fields["scores"]) == (expected, {"right": expected})
    assert type(fields["score"]) in (float, type(None)) and ("problem" in fields) == (expected is None)
    file = RecordFile(tmp_path / "records.jsonl")
    file.append(record({"ar": generation(**fields)}))
    (read,) = file.read()
    assert (read.methods["ar"].score, read.methods["ar"].scores) == (expected, {"right": expected})
    json.dumps(fields, allow_nan=False)


def test_statistics_are_numbers_too() -> None:
    fields = score_fields(scorer(1, (np.int64(3), True)), "text", "reference")
    assert json.dumps(fields["statistics"]) == '{"also": [3.0, 1.0]}'
    assert "statistics" not in score_fields(scorer(1, [float("nan"), 1]), "text", "reference")


WRONG = {
    "a text": (lambda: scorer("high"), "scorer of 'right, also': returned 'high' (str): return a number, or None"),
    "a digit": (lambda: scorer("1"), "returned '1' (str)"),
    "bytes": (lambda: scorer(b"1"), "(bytes)"),
    "an array": (lambda: scorer(np.array([1.0])), "returned array([1.]) (ndarray)"),
    "a list": (lambda: scorer([1.0]), "returned [1.0] (list)"),
    "a complex number": (lambda: scorer(1j), "returned 1j (complex)"),
    "statistics in a text": (lambda: scorer(1, "12"), "returned '1' (str)"),
    "statistics that are one number": (lambda: scorer(1, 2), "'int' object is not iterable"),
    "an exception": (lambda: scorer(ValueError("no such luck")), "raised ValueError: no such luck (test_scoring.py"),
    "a number without a score": (lambda: PerAnswer(("right",), lambda *_: 0.5), "returned 0.5: return a Score"),
    "another metric": (lambda: PerAnswer(("right",), lambda *_: {"wrong": 1}), "returned no value of 'right'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_number_is_told_before_anything_is_measured(name: str) -> None:
    make: Callable[[], Scorer]
    make, message = WRONG[name]
    for call in (lambda: make().check_reference("reference"), lambda: judged(make(), "text", "reference")):
        with pytest.raises(ConfigError) as caught:
            call()
        assert message in str(caught.value) and "\n" not in str(caught.value)
        assert name != "an exception" or isinstance(caught.value.__cause__, ValueError)


PROGRAM = {"test": "check(f)", "entry_point": "f"}
LETTERS: dict[str, str] = {"answer": "B", "A": "a bird", "B": "a fish"}
READ: list[tuple[dict[str, Any], str, Any, str | None]] = [
    ({"type": "number"}, "4 bags * 23 = 92.\n\nThe answer is 92.", "128", "read 92"),
    ({"type": "number"}, "I do not know.", "128", "no number found"),
    ({"type": "choice"}, "The answer is (B).", "A", "read B"),
    ({"type": "choice"}, "I do not know.", "A", "no letter found"),
    ({"type": "choice"}, "It is a fish.", LETTERS, "no letter found: read the text of B"),
    ({"type": "boxed"}, r"So \boxed{\frac{1}{2}}.", "1", r'read "\frac{1}{2}"'),
    ({"type": "boxed"}, "The answer is 7.", "1", r'no \boxed{}: read "7"'),
    ({"type": "boxed"}, "I do not know.", "1", r"no \boxed{}: no answer found"),
    ({"type": "exact_match"}, "The\nEnd", "start", 'read "end"'),
    ({"type": "exact_match", "labels": ["yes", "no"]}, "Perhaps", "yes", "no label found"),
    ({"type": "f1"}, "word " * 99, "word", f'read "{"word " * 15}…"'),
    ({"type": "contained"}, "Paris it is", ["Paris", "Rome"], 'found: "paris", not found: "rome"'),
    ({"type": "rouge"}, "a b", "a c d e",
     "the longest common sequence of words is 50.0 % of the answer and 25.0 % of the reference"),
    ({"type": "bleu"}, "a b", "a c d", "2 tokens, reference 3; in the reference too: 1-grams 50.0 %"),
    ({"type": "text"}, "go on " * 20, "", "it ends in a loop"),
    ({"type": "text"}, "Once upon a time.", "", None),
    ({"type": "code"}, "def f(): pass", PROGRAM, None),
]  # fmt: skip


@pytest.mark.parametrize(("options", "answer", "reference", "expected"), READ)
def test_a_scorer_says_what_it_read(options: dict[str, Any], answer: str, reference: Any, expected: str | None) -> None:
    made = SCORERS.get(options["type"])(**{name: value for name, value in options.items() if name != "type"})
    found = made.explain(answer, reference)
    assert found == expected if expected is None else found.startswith(expected)


def test_a_mistake_in_what_a_plug_in_says_is_one_line() -> None:
    made = PerAnswer(("right",), lambda text, reference: {"right": 1}, read=lambda text, reference: text[9])
    with pytest.raises(ConfigError, match=r"^scorer of 'right' raised IndexError: [^\n]*$"):
        explained(made, "short", "reference")
    assert explained(replace(made, read=None), "short", "reference") is None
