"""A trie over the byte strings of a vocabulary."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from specbench.decoding.proposal import FOREIGN


class Node(NamedTuple):
    """The strings that begin with the same `depth` bytes: positions [start, end) among all, sorted.

    `passed` is the position of the longest string on the way here, this node included; FOREIGN where there is none.
    """

    start: int
    end: int
    depth: int
    passed: int


class Trie:
    """Strings and their token ids in the order of the strings. A node is a range, its children are found by binary
    search: no memory beyond the sorted strings. Tokens may share a string."""

    def __init__(self, tokens: Iterable[tuple[bytes, int]]) -> None:
        ordered = sorted(tokens)
        self.strings = [written for written, _ in ordered]
        self.token_ids = [token for _, token in ordered]
        self.depth = max(map(len, self.strings), default=0)
        self.root = Node(0, len(ordered), 0, FOREIGN)

    def child(self, node: Node, byte: int) -> Node:
        """One byte further down; an empty range where no string goes on like that."""
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
        """The bytes that go on from a node, in order, with the nodes they lead to."""
        position = node.start + self.num_ending(node)
        while position < node.end:
            byte = self.strings[position][node.depth]
            child = self.child(node, byte)
            yield byte, child
            position = child.end

    def num_ending(self, node: Node) -> int:
        """How many strings end at a node: those at the beginning of its range."""
        position = node.start
        while position < node.end and len(self.strings[position]) == node.depth:
            position += 1
        return position - node.start

    def text(self, node: Node) -> bytes:
        """What all strings of a node begin with."""
        return self.strings[node.start][: node.depth]

    def goes_on(self, node: Node) -> bool:
        """Whether longer strings begin with what the node stands for."""
        return node.start < node.end and len(self.strings[node.end - 1]) > node.depth

    def walk(self, node: Node, written: bytes) -> tuple[Node, bool]:
        """The last node on the way of `written`, and whether all of it was read before the way left the trie."""
        for byte in written:
            child = self.child(node, byte)
            if child.start == child.end:
                return node, False
            node = child
        return node, True
