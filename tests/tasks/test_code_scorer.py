"""pass@k by execution, on small problems and on HumanEval's own."""

import ast
import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.specs.components import complete_options
from specbench.tasks.sandbox import run as permission
from specbench.tasks.scoring.code import EXECUTION_IS_OFF, build_program, code, pass_at_k, whole_program
from tests.support.read_yaml import read_yaml

HUMANEVAL = Path(__file__).resolve().parents[3] / "shared/data/humaneval/HumanEval.jsonl.gz"
PREFIX = 'def add(a, b):\n    """The sum."""\n'
RIGHT, WRONG = "    return a + b\n", "    return a - b\n"
REFERENCE = {"prefix": PREFIX, "test": "assert add(1, 2) == 3\nassert add(0, 5) == 5", "entry_point": "add"}


@pytest.fixture(autouse=True)
def execution_allowed() -> Iterator[None]:
    permission.allow()
    yield
    permission.allow(False)


def value(answer: str, reference: dict[str, str] = REFERENCE, **options) -> float | None:
    return code(**options)(answer, reference).values["pass@1"]


def test_nothing_runs_until_it_is_allowed():
    permission.allow(False)
    score = code()(RIGHT, REFERENCE)
    assert score.values == {"pass@1": None} and score.problem == EXECUTION_IS_OFF


def test_a_right_and_a_wrong_answer():
    assert value(RIGHT) == 1.0
    assert value(WRONG) == 0.0
    assert value("") == 0.0
    assert value("    return a +") == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        RIGHT,
        f"```python\n{RIGHT}```",
        f"Here it is:\n\n```python\n{PREFIX}{RIGHT}```\nIt adds.",
        f"```\nimport math\n{PREFIX}{RIGHT}\n```",
        f"```py\n{PREFIX}{RIGHT}",
        f"{PREFIX}{RIGHT}",
        "def add(*numbers):\n    return sum(numbers)\n",
    ],
)
@pytest.mark.parametrize("prefix", [PREFIX, "def add(a, b):\n", "import os\n" + PREFIX])
def test_what_the_program_of_an_answer_is(answer, prefix):
    wrong = answer.replace("a + b", "a - b").replace("sum(numbers)", "0")
    assert defined(build_program(answer, prefix, "add", "auto"))(5, 3) == 8
    assert defined(build_program(wrong, prefix, "add", "auto"))(5, 3) != 8


def test_the_extraction_is_that_of_the_options():
    fenced = f"```python\n{RIGHT}```"
    assert value(fenced) == 1.0
    assert value(fenced, extract="raw") == 0.0


def defined(program: str) -> Any:
    """The function of a program, run here."""
    names: dict[str, Any] = {}
    exec(program, names)
    return names["add"]


FUNCTION = PREFIX + RIGHT


FORMS = read_yaml(Path(__file__).parents[1] / "forms" / "code" / "functions.yaml")


def value_of(answer: str, prefix: str) -> Any:
    """What the function of an answer returns for 5 and 3; None if there is no such function, or it fails."""
    try:
        return defined(build_program(answer, prefix, "add", "auto"))(5, 3)
    except Exception:
        return None


@pytest.mark.parametrize(
    ("form", "prefix"),
    [(form, PREFIX) for form in FORMS["continues"]]
    + [(form, prefix) for form in FORMS["anew"] for prefix in (PREFIX, "def add(a, b):\n", "")],
)
def test_which_code_of_an_answer_counts(form: str, prefix: str) -> None:
    """Right where it counts is right, and right only where it does not count is wrong."""
    answer = {**FORMS["continues"], **FORMS["anew"]}[form]
    assert value_of(answer.replace("RIGHT", "a + b").replace("DECOY", "a - b"), prefix) == 8
    assert value_of(answer.replace("RIGHT", "a - b").replace("DECOY", "a + b"), prefix) != 8


@pytest.mark.parametrize("form", FORMS["wrong"])
def test_right_code_that_does_not_count(form: str) -> None:
    assert value_of(FORMS["wrong"][form], PREFIX) != 8


def upstream_program(answer: str) -> str:
    """LiveCodeBench's own extraction: the lines between the last two fences."""
    lines = answer.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else ""


@pytest.mark.parametrize("form", read_yaml(Path(__file__).parents[1] / "forms" / "code" / "programs.yaml"))
def test_a_whole_program_is_the_last_block(form: dict[str, Any]) -> None:
    program = whole_program(form["answer"], "auto").strip()
    assert program == form["program"].strip()
    assert (upstream_program(form["answer"]).strip() == program) == form["upstream"]


def test_long_answers_are_read_in_time() -> None:
    """Names that lack each other, errors in every statement and open quotes: each is read at most once per part."""
    chain = "\n".join(f"v{number} = v{number + 1}" for number in range(1200))
    for answer in (
        f"def add(a, b): return v0\n```\n```python\n{chain}\n```", 'def add(): """\n' * 2000,
        "def add(): pass\nIt is.\n" * 2000, "```\ndef add(): return g\nIt is.\ndef g(): x y\n```\n" * 800,
    ):  # fmt: skip
        assert value_of(answer, PREFIX) != 8


@pytest.mark.parametrize(
    "answer",
    [
        f"```bash\npip install add\n```\nThen:\n```python\n{FUNCTION}```\n",
        f"Usage:\n```python\nprint(add(1, 2))\n```\nIn full:\n```python\n{FUNCTION}```\n",
        f"```python\n{FUNCTION}```\nUsage:\n```python\n{'print(add(1, 2))' * 9}\n```\n",
        "1. Here:\n   ```python\n" + FUNCTION.replace("def", "   def").replace("    ", "       ") + "   ```\n",
        f"```PYTHON title=add.py\n{FUNCTION}```",
        f"```python\n{FUNCTION}```\n".replace("\n", "\r\n"),
        f"~~~python\n{FUNCTION}~~~\nIt adds.",
        f"````markdown\n```\n````\n```\n{FUNCTION}```",
        f"Here it is:\n\n{FUNCTION}\nIt adds two numbers.\n\nYou can import it.",
    ],
)
def test_the_block_with_the_function_is_the_program(answer):
    for extract in ("auto", "fenced")[: 1 + ("``" in answer or "~~" in answer)]:
        program = build_program(answer, PREFIX, "add", extract).replace("\r\n", "\n")
        assert [line.strip() for line in program.strip().splitlines()[-3:]] == [
            line.strip() for line in FUNCTION.splitlines()
        ]
        assert defined(program)(1, 2) == 3


def test_a_block_that_continues_the_prompt_is_the_longest_of_python():
    answer = f"```text\n{'3 ' * 99}\n```\nFor add(1, 2):\n```python\n{RIGHT}```\n```\n3\n```\n"
    assert build_program(answer, PREFIX, "add", "auto") == PREFIX + RIGHT


def test_what_ended_a_program_is_told():
    """A right program that a limit ended is not a silent zero."""
    loud = code()(f"    print('x' * 2**21)\n{RIGHT}", REFERENCE)
    assert loud.values == {"pass@1": 0.0}
    assert loud.outcome == {"status": "printed too much", "reason": "more than 1024 KiB"}
    slow = code(timeout_seconds=0.2)(f"    while True: pass\n{RIGHT}", REFERENCE)
    assert slow.outcome == {"status": "timed out", "reason": "ran longer than 0.2 seconds"}


def test_raw_answers_continue_the_prompt_whatever_they_hold():
    fenced = f"```python\n{RIGHT}```"
    assert build_program(fenced, PREFIX, "add", "raw") == PREFIX + fenced
    assert build_program(PREFIX + RIGHT, PREFIX, "add", "raw") == PREFIX + PREFIX + RIGHT
    assert build_program(fenced, PREFIX, "add", "fenced") == PREFIX + RIGHT


def test_an_entry_point_may_be_left_out():
    for prefix in (PREFIX, ""):
        reference = {"prefix": prefix, "test": REFERENCE["test"]}
        right, wrong = (answer if prefix else f"def add(a, b):\n{answer}" for answer in (RIGHT, WRONG))
        assert (value(right, reference), value(wrong, reference)) == (1.0, 0.0)
    assert value("", {"test": REFERENCE["test"]}) == 0.0


def test_a_prefix_that_raises_gives_no_value():
    score = code()(RIGHT, {**REFERENCE, "prefix": "import nowhere_to_be_found\n" + PREFIX})
    assert score.values == {"pass@1": None} and "the prefix raised ModuleNotFoundError" in (score.problem or "")


def test_helpers_of_the_prompt_are_its_own_in_the_tests():
    """As HumanEval/32 does: its tests call `poly` of the prompt; an answer cannot make that always right."""
    prefix = "def double(a):\n    return 2 * a\n\ndef half(a):\n"
    reference = {"prefix": prefix, "test": "assert double(half(4)) == 4", "entry_point": "half"}
    assert value("    return a // 2\n", reference) == 1.0
    assert value("    return 0\n\ndef double(a):\n    return 4\n", reference) == 0.0


def test_a_broken_test_gives_no_value():
    score = code()(RIGHT, {**REFERENCE, "test": "assert subtract(1, 2) == 3"})
    assert score.values == {"pass@1": None}
    assert score.problem is not None and "NameError" in score.problem


def test_an_entry_point_that_the_prompt_does_not_define_gives_no_value():
    score = code()(
        "    return a + b\n", {"prefix": "def plus(a, b):\n", "test": "", "entry_point": "add"} | {"test": "add"}
    )
    assert score.values == {"pass@1": None}
    assert score.problem == "the row's prompt defines other functions than its entry_point 'add'"
    assert value(RIGHT, {**REFERENCE, "prefix": "Add two numbers.", "entry_point": "add"}) is not None


def test_a_test_may_print_more_than_a_program():
    assert value(RIGHT, {**REFERENCE, "test": "print('x' * 2**21)\nassert add(1, 2) == 3"}) == 1.0


def test_an_empty_reference_gives_no_value():
    score = code()(RIGHT, {"prefix": "", "test": ""})
    assert score.values == {"pass@1": None} and score.problem == "the row has no reference"


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("assert True", "not a mapping"),
        ({"tests": "assert True"}, "did you mean 'test'"),
        ({"prefix": "x = 1"}, "no 'test'"),
    ],
)
def test_references_of_another_shape_are_refused(reference, says):
    with pytest.raises(ConfigError, match=says):
        code()(RIGHT, reference)


def test_options_are_checked():
    for seconds in (0.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=f"timeout_seconds = {seconds}"):
            code(timeout_seconds=seconds)
    with pytest.raises(ConfigError, match="extract"):
        complete_options(SCORERS, "code", {"extract": "fence"})
    assert complete_options(SCORERS, "code", {"k": [1, 10]})["k"] == (1, 10)


def test_pass_at_k_is_the_share_of_draws_with_a_correct_one():
    for num_samples, num_correct, k in [(5, 2, 1), (5, 2, 3), (6, 1, 4), (4, 0, 2), (4, 4, 2), (5, 3, 3)]:
        draws = list(combinations([True] * num_correct + [False] * (num_samples - num_correct), k))
        assert pass_at_k(num_samples, num_correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_at_k(2, 1, 3) is None
    scorer = code(k=(1, 2))
    assert scorer.names == ("pass@1", "pass@2")
    assert scorer.of_samples("pass@2", [1.0, 0.0, 0.0]) == pytest.approx(2 / 3)


@pytest.mark.slow
@pytest.mark.skipif(not HUMANEVAL.is_file(), reason="HumanEval's file is not there")
def test_canonical_solutions_of_humaneval_pass():
    """Of every second problem, as a continuation or as a whole function by turns, and of every eighth an answer that is
    wrong."""
    problems = [json.loads(line) for line in gzip.decompress(HUMANEVAL.read_bytes()).splitlines()]
    assert len(problems) == 164

    def judged(number: int) -> dict[str, float | None]:
        problem = problems[number]
        test = f"{problem['test']}\ncheck({problem['entry_point']})"
        reference = {"prefix": problem["prompt"], "test": test, "entry_point": problem["entry_point"]}
        answers = {"right": (problem["canonical_solution"], fenced(problem))[number // 2 % 2]}
        answers |= {"wrong": "    return None\n"} if number % 8 == 0 else {}
        return {kind: value(answer, reference) for kind, answer in answers.items()}

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(judged, range(0, 164, 2)))
    assert [each["right"] for each in found] == [1.0] * 82
    assert [each["wrong"] for each in found[::4]] == [0.0] * 21


@pytest.mark.skipif(not HUMANEVAL.is_file(), reason="HumanEval's file is not there")
def test_humaneval_s_functions_are_the_same_written_out_or_continued():
    for line in gzip.decompress(HUMANEVAL.read_bytes()).splitlines():
        problem = json.loads(line)
        name, prompt = problem["entry_point"], problem["prompt"]
        programs = [
            build_program(each, prompt, name, "auto") for each in (problem["canonical_solution"], fenced(problem))
        ]
        functions = [
            [ast.dump(node) for node in ast.parse(program).body if isinstance(node, ast.FunctionDef)]
            for program in programs
        ]
        assert functions[0] == functions[1][-len(functions[0]) :], problem["task_id"]
        assert name in functions[0][-1]


def fenced(problem: dict[str, str]) -> str:
    return f"```python\n{problem['prompt']}{problem['canonical_solution']}```"
