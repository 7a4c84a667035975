"""The detector of loops: what is one, which of its tokens are in it, and that the short cut misses none."""

import random

import pytest

from specbench.records.loops import MAX_PERIOD, MIN_PERIODS, MIN_TOKENS, count_loop_tokens


def by_definition(ids: list[int]) -> int:
    """Every period at every place."""
    in_loop = set()
    for period in range(1, MAX_PERIOD + 1):
        start = period
        while start < len(ids):
            end = start
            while end < len(ids) and ids[end] == ids[end - period]:
                end += 1
            if end - start + period >= max(MIN_PERIODS * period, MIN_TOKENS):
                in_loop |= set(range(start, end))
            start = max(end, start + 1)
    return len(in_loop)


TEXT = list(range(1000, 1100))  # repeats nothing


@pytest.mark.parametrize(
    ("ids", "num_in_loop"),
    [
        ([], 0),
        (TEXT, 0),
        ([7] * 47, 0),
        ([7] * 48, 47),
        ([*TEXT, *[7] * 48, *TEXT], 47),
        ([1, 2, 3] * 15, 0),
        ([1, 2, 3] * 16, 45),
        (TEXT[:20] * 3, 0),
        (TEXT[:20] * 4, 60),
        ([*TEXT[:20] * 3, *TEXT[:19]], 0),
        (TEXT[:64] * 4, 192),
        (TEXT[:65] * 8, 0),
        ([*[7] * 50, *TEXT, *[1, 2] * 30], 49 + 58),
    ],
)
def test_a_loop_has_four_rounds_and_48_tokens_of_which_the_first_round_is_not_in_it(
    ids: list[int], num_in_loop: int
) -> None:
    assert count_loop_tokens(ids) == num_in_loop == by_definition(ids)


def test_the_short_cut_finds_what_the_definition_finds() -> None:
    draws, num_with_loops = random.Random(0), 0
    for _ in range(300):
        vocab, other = draws.choice([2, 5, 100]), draws.choice([3, 1000])
        block = [draws.randrange(other) for _ in range(draws.randrange(1, 70))]
        looping = (block * 320)[: draws.randrange(30, 320)]
        ids = [*(draws.randrange(vocab) for _ in range(draws.randrange(60))), *looping]
        ids += [draws.randrange(vocab) for _ in range(draws.randrange(60))]
        assert count_loop_tokens(ids) == by_definition(ids), ids
        num_with_loops += count_loop_tokens(ids) > 0
    assert 100 < num_with_loops < 300, "both kinds are tested"
