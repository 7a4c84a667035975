"""MATH-500, MBPP and LiveCodeBench: their layouts, their prompts, and answers right and wrong, which are run."""

import base64
import json
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from specbench.core.errors import ConfigError
from specbench.specs.catalogue import load_task
from specbench.tasks.examples import Example, TaskData, load_examples
from specbench.tasks.readers import livecodebench
from specbench.tasks.sandbox import run as permission
from specbench.tasks.scoring import make_scorer


def load(task: str, data: str | Path, subset: str = "default") -> TaskData:
    return load_examples(load_task(task), subset, data=str(data), use_sample=False, limit=None)


@pytest.fixture
def allowed() -> Iterator[None]:
    permission.allow()
    yield
    permission.allow(False)


def value(task: str, example: Example, answer: str, subset: str = "default") -> float | None:
    scorer = make_scorer(load_task(task).subset(subset))
    assert scorer is not None and example.reference is not None
    return next(iter(scorer(answer, example.reference).values.values()))


def rows(task: str) -> list[dict[str, Any]]:
    path = Path(str(load_task(task).sample_of(load_task(task).subset_names[0])))
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_solutions_of_the_sample_of_math500_are_right() -> None:
    examples = load("math500", "sample").examples
    assert len(examples) == 12
    for example, row in zip(examples, rows("math500"), strict=True):
        assert value("math500", example, row["solution"]) == 1.0
        assert value("math500", example, "It is \\boxed{-1}.") == 0.0


def test_the_layout_of_math500(tmp_path: Path) -> None:
    row = {
        "problem": "1+1?",
        "solution": "2",
        "answer": "2",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "test/a/1.json",
    }
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    [example] = load("math500", tmp_path).examples
    assert (example.id, example.reference) == ("test/a/1.json", "2")
    assert example.prompt == "1+1?\nPlease reason step by step, and put your final answer within \\boxed{}."


def mbpp_row(number: int, **changes: Any) -> dict[str, Any]:
    name = f"add_{number}"
    return {
        "task_id": number, "text": f"Write a function to add {number}.",
        "code": f"def helper():\r\n  pass\r\ndef {name}(x):\r\n  return x + {number}",
        "test_list": [f"assert {name}(1) == {1 + number}", f"assert {name}(0) == {number}"], "test_setup_code": "",
        "challenge_test_list": [], **changes,
    }  # fmt: skip


def test_the_layout_of_mbpp(tmp_path: Path, allowed: None) -> None:
    (tmp_path / "full").mkdir()
    for split, numbers in (("prompt", (1, 2, 3, 4, 5)), ("test", (11, 12))):
        table = datasets.Dataset.from_list([mbpp_row(number) for number in numbers])
        table.to_parquet(tmp_path / "full" / f"{split}-00000-of-00001.parquet")
    data = load("mbpp", tmp_path)
    first = data.examples[0]
    assert [example.id for example in data.examples] == ["11", "12"] and data.fewshot.num == 3
    asked = [line for line in first.prompt.splitlines() if "here is your task" in line]
    assert ["add 2" in asked[0], "add 3" in asked[1], "add 4" in asked[2], "add 11" in asked[3]] == [True] * 4
    assert first.prompt.endswith("assert add_11(1) == 12\nassert add_11(0) == 11\n[BEGIN]\n")
    assert value("mbpp", first, "def add_11(x):\n    return x + 11\n") == 1.0
    assert value("mbpp", first, "```python\ndef add_11(x):\n    return x + 11\n```") == 1.0
    assert value("mbpp", first, "def add_11(x):\n    return x\n") == 0.0


def test_the_sanitized_layout_of_mbpp(tmp_path: Path, allowed: None) -> None:
    row = mbpp_row(11, test_imports=["import math"], test_list=["assert math.isclose(add_11(0), 11)"])
    row["prompt"] = row.pop("text")
    del row["test_setup_code"], row["challenge_test_list"]
    (tmp_path / "mbpp.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "mbpp_prompt.jsonl").write_text("".join(json.dumps(mbpp_row(n)) + "\n" for n in (2, 3, 4)))
    [example] = load("mbpp", tmp_path).examples
    assert value("mbpp", example, "def add_11(x):\n    return x + 11") == 1.0


def test_the_programs_of_the_sample_of_mbpp_pass(allowed: None) -> None:
    for example, row in list(zip(load("mbpp", "sample").examples, rows("mbpp"), strict=True))[:4]:
        assert value("mbpp", example, row["code"]) == 1.0


def test_tests_that_name_no_function_of_the_program_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mbpp.jsonl").write_text(json.dumps(mbpp_row(11, test_list=["assert True"])) + "\n")
    (tmp_path / "mbpp_prompt.jsonl").write_text("".join(json.dumps(mbpp_row(n)) + "\n" for n in (2, 3, 4)))
    with pytest.raises(ConfigError, match="names no function of column 'code'"):
        load("mbpp", tmp_path)


ADD = """Here it is.
```python
import sys
def main():
    numbers = list(map(int, sys.stdin.read().split()))
    print(sum(numbers[1:]))
if __name__ == '__main__':
    main()
```"""
READS_LINES = "```python\nn = int(input())\nprint(f'{sum(map(int, input().split())):.2f}')\nexit()\n```"
METHOD = """```python
class Solution:
    def pair(self, nums: List[int], target: int) -> List[int]:
        return (max(nums), target)
```"""


def packed(cases: list[dict[str, str]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def contest_row(
    kind: str, public: list[tuple[str, str]], private: list[tuple[str, str]], **changes: Any
) -> dict[str, Any]:
    shown, hidden = ([{"input": i, "output": o, "testtype": kind} for i, o in cases] for cases in (public, private))
    return {
        "question_title": "T", "question_content": "Add.", "platform": "atcoder", "question_id": "abc1_a",
        "contest_id": "abc1", "contest_date": "2025-02-01T00:00:00", "starter_code": "", "difficulty": "easy",
        "public_test_cases": json.dumps(shown), "private_test_cases": packed(hidden), "metadata": "{}", **changes,
    }  # fmt: skip


def test_a_contest_program_that_reads_its_input(tmp_path: Path, allowed: None) -> None:
    row = contest_row("stdin", [("2\n3 4\n", "7\n")], [("1\n5\n", "5"), ("3\n1 1 1\n", "3\n")])
    (tmp_path / "test6.jsonl").write_text(json.dumps(row) + "\n")
    [example] = load("livecodebench", tmp_path, "v6").examples
    assert example.id == "abc1_a" and "reads the input from stdin" in example.prompt
    for answer in (ADD, READS_LINES):  # 7.00 is 7
        assert value("livecodebench", example, answer, "v6") == 1.0
    for wrong in ("```python\nprint(7)\n```", "no program", "```python\nprint(input())\n```"):
        assert value("livecodebench", example, wrong, "v6") == 0.0


def test_a_contest_program_that_completes_a_class(tmp_path: Path, allowed: None) -> None:
    starter = "class Solution:\n    def pair(self, nums: List[int], target: int) -> List[int]:\n        "
    row = contest_row(
        "functional", [("[1, 2]\n9", "[2, 9]")], [("[5]\n0", "[5, 0]")], starter_code=starter,
        metadata='{"func_name": "pair"}',
    )  # fmt: skip
    (tmp_path / "test6.jsonl").write_text(json.dumps(row) + "\n")
    [example] = load("livecodebench", tmp_path, "v6").examples
    assert starter in example.prompt
    assert value("livecodebench", example, METHOD, "v6") == 1.0
    assert value("livecodebench", example, METHOD.replace("max", "min"), "v6") == 0.0


def test_the_sample_of_livecodebench_can_be_solved(allowed: None) -> None:
    first = load("livecodebench", "sample", "v6").examples[0]
    days = "rests = ''.join('0' if a == '0' else ' ' for a in input().split()).split()"
    answer = f"```python\ninput()\n{days}\nprint(max(map(len, rests), default=0))\n```"
    assert value("livecodebench", first, answer, "v6") == 1.0


class Opens:
    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("/tmp/x", "w")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (base64.b64encode(zlib.compress(pickle.dumps(Opens()))).decode(), "only texts are read"),
        ("bm90IHppcHBlZA==", "cannot be unpacked"), ("?", "cannot be unpacked"),
    ],
)  # fmt: skip
def test_private_tests_of_another_form_are_refused(content: str, expected: str) -> None:
    row = contest_row("stdin", [("1", "1")], []) | {"private_test_cases": content}
    with pytest.raises(ConfigError, match=expected):
        livecodebench(row)


def test_a_row_without_tests_is_refused() -> None:
    with pytest.raises(ConfigError, match="hold no tests"):
        livecodebench(contest_row("stdin", [], []))
