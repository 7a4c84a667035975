"""The suffix automaton against a search through all texts."""

from collections.abc import Sequence
from random import Random

import pytest

from specbench.decoding.drafters.suffix_automaton import END, ROOT, LongestMatch, SuffixAutomaton


def ends(texts: Sequence[Sequence[int]], wanted: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the places behind all occurrences of a substring, as (text, index in the text)."""
    size = len(wanted)
    return [
        (number, end)
        for number, text in enumerate(texts)
        for end in range(size, len(text) + 1)
        if list(text[end - size : end]) == list(wanted)
    ]


def state_of(automaton: SuffixAutomaton, wanted: Sequence[int]) -> int | None:
    state: int | None = ROOT
    for token in wanted:
        state = None if state is None else automaton.children[state].get(token)
    return state


def substrings(texts: Sequence[Sequence[int]]) -> set[tuple[int, ...]]:
    return {
        tuple(text[start:end])
        for text in texts
        for start in range(len(text))
        for end in range(start + 1, len(text) + 1)
    }


def random_texts(seed: int) -> list[list[int]]:
    """Texts of few different tokens, of which some begin with the same tokens, contain others or are repeated."""
    random = Random(seed)
    texts = [random.choices(range(random.randint(1, 3)), k=random.randint(0, 14)) for _ in range(4)]
    return [*texts, texts[0][:5] + texts[1], texts[2], [0] * 7]


@pytest.mark.parametrize("seed", range(12))
def test_counts_and_first_occurrences_are_those_of_a_search(seed: int) -> None:
    texts = random_texts(seed)
    automaton = SuffixAutomaton()
    for text in texts:
        automaton.add_text(text)
    known = substrings(texts)
    for wanted in known:
        state, found = state_of(automaton, wanted), ends(texts, wanted)
        assert state is not None
        assert automaton.counts[state] == len(found)
        number, end = found[0]
        assert automaton.continuation(state, 4) == texts[number][end : end + 4]
        assert automaton.lengths[automaton.links[state]] < len(wanted) <= automaton.lengths[state]
        followers = {token for token in range(3) if (*wanted, token) in known}
        assert automaton.children[state].keys() == followers
    assert len(automaton.lengths) <= max(2, 2 * sum(map(len, texts)))
    assert automaton.tokens.count(END) <= len(texts) - 1
    random = Random(seed)
    for _ in range(50):
        wanted = tuple(random.choices(range(4), k=random.randint(1, 6)))
        assert (state_of(automaton, wanted) is None) == (wanted not in known)


@pytest.mark.parametrize("seed", range(6))
def test_a_growing_text_has_its_suffixes_at_every_token(seed: int) -> None:
    """All suffixes of the text so far, with the number of their occurrences, and none twice."""
    earlier = random_texts(seed)[:3]
    automaton = SuffixAutomaton()
    for text in earlier:
        automaton.add_text(text)
    automaton.add_text([])
    growing: list[int] = []
    for token in Random(seed).choices(range(3), k=25):
        growing.append(token)
        automaton.append(token)
        lengths: list[int] = []
        for state, shortest, longest in automaton.suffixes(automaton.last, len(growing)):
            for length in range(longest, shortest - 1, -1):
                lengths.append(length)
                assert automaton.counts[state] == len(ends([*earlier, growing], growing[-length:]))
        assert lengths == list(range(len(growing), 0, -1))


@pytest.mark.parametrize("seed", range(6))
def test_the_longest_match_is_that_of_a_search_for_every_prefix(seed: int) -> None:
    texts = random_texts(seed)
    automaton = SuffixAutomaton()
    for text in texts:
        automaton.add_text(text)
    known = substrings(texts)
    match = LongestMatch(automaton)
    growing: list[int] = []
    for token in Random(seed + 100).choices(range(4), k=60):  # token 3 is in no text
        growing.append(token)
        match.append(token)
        longest = next(size for size in range(len(growing), -1, -1) if not size or tuple(growing[-size:]) in known)
        assert match.length == longest
        assert match.state == (state_of(automaton, growing[len(growing) - longest :]) if longest else ROOT)


def test_nothing_continues_beyond_the_end_of_a_text() -> None:
    automaton = SuffixAutomaton()
    automaton.add_text([1, 2])
    automaton.add_text([3, 4, 5])
    last = state_of(automaton, [2])
    assert last is not None and automaton.continuation(last, 5) == []
    assert state_of(automaton, [2, 3]) is None
    first = state_of(automaton, [3])
    assert first is not None and automaton.continuation(first, 5) == [4, 5]
