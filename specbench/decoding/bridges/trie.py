"""A trie over the byte strings of a vocabulary."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.decoding.proposal import OUT_OF_VOCABULARY


class Node(NamedTuple):
    """A node of a trie: the strings with the same first `depth` bytes, at positions [start, end) of the sorted strings.

    `passed`: the position of the longest string that is a prefix of the node's text or equal to it; OUT_OF_VOCABULARY
    if there is none.
    """

    start: int
    end: int
    depth: int
    passed: int


class Trie:
    """A trie of sorted strings and their token ids. Several tokens may have the same string.

    A node is a range of the sorted strings, and its children are found by binary search, so the trie needs no other
    memory.
    """

    def __init__(self, tokens: Iterable[tuple[bytes, int]]) -> None:
        ordered = sorted(tokens)
        self.strings = [written for written, _ in ordered]
        self.token_ids = [token for _, token in ordered]
        self.depth = max(map(len, self.strings), default=0)
        self.root = Node(0, len(ordered), 0, OUT_OF_VOCABULARY)

    def child(self, node: Node, byte: int) -> Node:
        """Returns the child for a byte; its range is empty if no string continues with this byte."""
        if node.start == node.end:
            return node
        prefix = self.text(node)
        start = bisect_left(self.strings, prefix + bytes((byte,)), node.start, node.end)
        end = node.end
        if byte < 255:
            end = bisect_left(self.strings, prefix + bytes((byte + 1,)), start, node.end)
        depth = node.depth + 1
        is_string = start < end and len(self.strings[start]) == depth
        return Node(start, end, depth, start if is_string else node.passed)

    def children(self, node: Node) -> Iterator[tuple[int, Node]]:
        """Yields (byte, child) for each byte that continues a node, in order."""
        position = node.start + self.num_ending(node)
        while position < node.end:
            byte = self.strings[position][node.depth]
            child = self.child(node, byte)
            yield byte, child
            position = child.end

    def num_ending(self, node: Node) -> int:
        """Returns the number of strings that end at a node, which are the first in its range."""
        position = node.start
        while position < node.end and len(self.strings[position]) == node.depth:
            position += 1
        return position - node.start

    def text(self, node: Node) -> bytes:
        """Returns the common prefix of a node's strings: their first `depth` bytes."""
        return self.strings[node.start][: node.depth]

    def has_continuation(self, node: Node) -> bool:
        return node.start < node.end and len(self.strings[node.end - 1]) > node.depth

    def walk(self, node: Node, written: bytes) -> tuple[Node, bool]:
        """Follows `written` from `node`. Returns the last node inside the trie, and whether all bytes were followed."""
        for byte in written:
            child = self.child(node, byte)
            if child.start == child.end:
                return node, False
            node = child
        return node, True


MAX_REMEMBERED = 1 << 13


class Moves(NamedTuple):
    """The moves of the draft tokens from a node that may result in a given target token.

    The tokens in the ranges [start, end) of `Crossing.order` determine it: they leave the trie, or end at a node
    without children. For a token that ends at a node with children, `onward` holds its position in the order and that
    node.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    onward: list[tuple[int, Node]]


class Crossing:
    """The tries of both vocabularies, and the moves of the draft tokens through the target's trie.

    `order` holds the draft tokens with bytes, sorted by their bytes, then all other draft tokens, which end the text.
    """

    def __init__(
        self, target_tokens: Iterable[tuple[bytes, int]], draft_tokens: Iterable[tuple[bytes, int]], draft_size: int
    ) -> None:
        self.target = Trie(target_tokens)
        self.draft = Trie(draft_tokens)
        self.position_of = {token: position for position, token in enumerate(self.target.token_ids)}
        self.written = dict(zip(self.draft.token_ids, self.draft.strings, strict=True))
        ending = [token for token in range(draft_size) if token not in self.written]
        self.order = np.array(self.draft.token_ids + ending, dtype=np.int64)
        self.byte_by_byte = self.draft.depth == 1
        self.moves = lru_cache(MAX_REMEMBERED)(self._moves)

    def _moves(self, node: Node, goal: int) -> Moves:
        """`goal`: a position in the target's trie, or OUT_OF_VOCABULARY."""
        ranges: list[tuple[int, int, int]] = [(self.draft.root.end, len(self.order), node.passed)]
        onward: list[tuple[int, Node]] = []
        pending = [(node, self.draft.root)]
        while pending:
            here, drafts = pending.pop()
            start = drafts.start + self.draft.num_ending(drafts)
            if self.target.has_continuation(here):
                onward += [(position, here) for position in range(drafts.start, start)]
            else:
                ranges.append((drafts.start, start, here.passed))
            branches = self.target.children(here)
            if here.passed != goal:  # only one child is on the path to the goal
                byte = self.target.strings[goal][here.depth]
                branches = iter([(byte, self.target.child(here, byte))])
            for byte, child in branches:
                below = self.draft.child(drafts, byte)
                ranges.append((start, below.start, here.passed))
                start = below.end
                may_lead = child.passed == goal or child.start <= goal < child.end
                if below.start < below.end and may_lead:
                    pending.append((child, below))
            ranges.append((start, drafts.end, here.passed))
        decided = [(start, end) for start, end, outcome in ranges if start < end and outcome == goal]
        columns = np.array(decided, dtype=np.int64).reshape(-1, 2)
        return Moves(columns[:, 0], columns[:, 1], onward)
