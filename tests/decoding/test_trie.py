"""The trie of byte strings against plain string comparison."""

import random

import pytest

from specbench.decoding.bridges.trie import Node, Trie
from specbench.decoding.proposal import OUT_OF_VOCABULARY


def random_strings(seed: int) -> list[bytes]:
    """Short strings over a few bytes, the lowest and the highest among them."""
    source = random.Random(seed)
    return sorted({bytes(source.choices([0, 97, 254, 255], k=source.randint(1, 5))) for _ in range(40)})


def prefixes(strings: list[bytes]) -> set[bytes]:
    return {written[:end] for written in strings for end in range(len(written) + 1)}


def place(trie: Trie, written: bytes) -> Node:
    node, inside = trie.walk(trie.root, written)
    assert inside
    return node


@pytest.mark.parametrize("seed", range(10))
def test_nodes_are_the_beginnings_of_strings(seed: int) -> None:
    strings = random_strings(seed)
    trie = Trie((written, 10 + i) for i, written in enumerate(strings))
    for prefix in prefixes(strings):
        node = place(trie, prefix)
        below = [written for written in strings if written.startswith(prefix)]
        passed = [written for written in strings if prefix.startswith(written)]
        assert trie.strings[node.start : node.end] == below
        assert node.passed == (strings.index(max(passed, key=len)) if passed else OUT_OF_VOCABULARY)
        assert trie.has_continuation(node) == any(written != prefix for written in below)
        assert trie.num_ending(node) == strings.count(prefix)
        following = {written[len(prefix)]: None for written in below if written != prefix}
        children = dict(trie.children(node))
        assert list(children) == sorted(following)
        assert all(children[byte] == place(trie, prefix + bytes([byte])) for byte in children)


@pytest.mark.parametrize("seed", range(10))
def test_walk_stops_where_no_string_goes_on(seed: int) -> None:
    strings = random_strings(seed)
    trie = Trie((written, i) for i, written in enumerate(strings))
    source = random.Random(-seed)
    for _ in range(200):
        written = bytes(source.choices([0, 1, 97, 254, 255], k=source.randint(1, 7)))
        node, inside = trie.walk(trie.root, written)
        longest = max((prefix for prefix in prefixes(strings) if written.startswith(prefix)), key=len)
        assert (trie.text(node), inside) == (longest, longest == written)


def test_tokens_may_share_a_string() -> None:
    trie = Trie([(b"ab", 7), (b"a", 5), (b"a", 3)])
    assert (trie.strings, trie.token_ids) == ([b"a", b"a", b"ab"], [3, 5, 7])
    node = trie.child(trie.root, ord("a"))
    assert (trie.num_ending(node), trie.has_continuation(node)) == (2, True)
    assert trie.num_ending(trie.child(node, ord("b"))) == 1


def test_an_empty_vocabulary_has_an_empty_trie() -> None:
    trie = Trie([])
    assert not trie.has_continuation(trie.root)
    assert trie.walk(trie.root, b"a") == (trie.root, False)
