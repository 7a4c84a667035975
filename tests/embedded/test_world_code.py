"""The short functions of the synthetic world: they run, their checks tell right from wrong, their examples are true."""

import doctest
import random
from functools import cache

import pytest

from tools.world import WORLDS
from tools.world import code as world_code
from tools.world.code import variants
from tools.world.rows import tables

NUM_ROWS = 80


@cache
def drawn(held_out, seed):
    return random.Random(seed), []


def rows(held_out, seed=1, number=NUM_ROWS):
    """The first rows of a stream that all tests read."""
    generator, found = drawn(held_out, seed)
    while len(found) < number:
        found.append(world_code.humaneval_draw("default", held_out, generator))
    return found[:number]


def passes(row, body):
    """Whether the checks of a row accept the function with this body."""
    space = {}
    exec(row["prompt"] + body + row["test"], space)
    try:
        space["check"](space[row["entry_point"]])
    except (AssertionError, ArithmeticError, TypeError, ValueError):
        return False
    return True


@pytest.mark.parametrize("held_out", [True, False])
def test_every_body_passes_its_checks_and_no_empty_one_does(held_out):
    for row in rows(held_out):
        assert passes(row, row["canonical_solution"]), row["prompt"]
        assert row["canonical_solution"] == row["_completion"] + "\n"
        for empty in ("    pass\n", "    return 0\n", "    return []\n", "    return ''\n"):
            assert not passes(row, empty), row["prompt"]


def test_a_function_with_another_parameter_or_a_step_less_fails():
    generator, num_tried = random.Random(2), 0
    for function in (world_code.random_function(generator) for _ in range(NUM_ROWS)):
        if row := world_code.function_row(function, generator):
            others = variants(function, tables("code")["letters"])
            assert not any(passes(row, other.body + "\n") for other in others), row["prompt"]
            num_tried += len(others)
    assert num_tried > NUM_ROWS


def test_the_examples_in_the_instructions_are_true():
    for row in rows(True):
        space = {}
        exec(row["prompt"] + row["_completion"], space)
        (test,) = doctest.DocTestFinder().find(space[row["entry_point"]], globs=space)
        assert len(test.examples) in (1, 2)
        runner = doctest.DocTestRunner(verbose=False)
        assert runner.run(test).failed == 0, row["prompt"]


def test_the_form_is_that_of_humaneval():
    for row in rows(True):
        assert row["prompt"].startswith(f"def {row['entry_point']}(")
        assert row["prompt"].endswith('\n    """\n')
        lines = row["_completion"].split("\n")
        assert 1 <= len(lines) <= 3
        assert all(line.startswith("    ") and not line.startswith("     ") for line in lines)
        assert lines[-1].startswith("    return ")


def test_no_function_is_both_trained_on_and_held_out():
    trained = {row["_key"] for row in rows(False, number=200)}
    held_out = {row["_key"] for row in rows(True, number=200)}
    assert not trained & held_out
    assert len(held_out) > 150


def test_a_name_says_all_that_a_function_does():
    bodies = {}
    for row in rows(False, number=200) + rows(True, number=200):
        assert bodies.setdefault(row["_key"], row["_completion"]) == row["_completion"]


def test_every_operation_of_held_out_functions_is_seen_in_training():
    generator = random.Random(6)
    functions = [world_code.random_function(generator) for _ in range(4000)]
    kinds = {
        held: {
            (f.variable, one.name)
            for f in functions
            if world_code.is_held_out_function(f) == held
            for one in f.operations
        }
        for held in (True, False)
    }
    assert kinds[True] <= kinds[False]
    assert 0.05 < sum(map(world_code.is_held_out_function, functions)) / len(functions) < 0.25


def test_functions_without_a_parameter_are_never_held_out():
    generator = random.Random(7)
    drawn = [world_code.random_function(generator) for _ in range(3000)]
    plain = [function for function in drawn if not any(one.values for one in function.operations)]
    assert plain
    assert not any(map(world_code.is_held_out_function, plain))


def test_the_same_generator_gives_the_same_rows():
    same = random.Random(1)
    assert rows(True, number=10) == [world_code.humaneval_draw("default", True, same) for _ in range(10)]
    assert rows(True, number=10) != rows(True, seed=9, number=10)


def test_the_texts_are_the_task_s_prompt_and_the_body():
    row = rows(True)[0]
    assert WORLDS["humaneval"].example(row) == (row["prompt"], row["_completion"])
