"""A suffix automaton: every substring of some texts, with the number of its occurrences and the first of them."""

from collections.abc import Iterator, Sequence

END = -1  # stands between two texts; no token has this id
ROOT = 0  # the state of the empty substring


class SuffixAutomaton:
    """All substrings of some texts of token ids, in at most two states per token.

    A state stands for the substrings that end at the same places: the longest of them has `lengths[state]` tokens, and
    the others are its suffixes, down to one token more than `lengths[links[state]]`. `counts`: the number of these
    places. `first_ends`: the index in `tokens` behind the first of them. `last`: the state of the newest text, whole.

    The counts are those of a tree of suffixes (arXiv:2411.04975), without its bound on the depth.
    """

    # A token is added in amortized constant time, except for its count, which rises in the states of all suffixes of
    # the text that occur at different places: few, but as many as tokens in a text of one repeated token.

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.children: list[dict[int, int]] = [{}]
        self.links = [-1]
        self.lengths = [0]
        self.counts = [0]
        self.first_ends = [0]
        self.last = ROOT

    def add_text(self, token_ids: Sequence[int]) -> None:
        """Adds a text of its own: no substring crosses the border of two texts."""
        if self.tokens:
            self.tokens.append(END)
        self.last = ROOT
        for token in token_ids:
            self.append(token)

    def append(self, token: int) -> None:
        """Adds a token to the newest text."""
        self.tokens.append(token)
        children, links, lengths = self.children, self.links, self.lengths
        above = self.last
        known = children[above].get(token)
        if known is not None:  # an earlier text begins with the same tokens
            state = known if lengths[known] == lengths[above] + 1 else self._split(above, token)
        else:
            state = self._new(lengths[above] + 1, {}, ROOT, 0, len(self.tokens))
            while above >= 0 and token not in children[above]:
                children[above][token] = state
                above = links[above]
            if above >= 0:
                known = children[above][token]
                links[state] = known if lengths[known] == lengths[above] + 1 else self._split(above, token)
        self.last = state
        while state > ROOT:
            self.counts[state] += 1
            state = links[state]

    def _new(self, length: int, children: dict[int, int], link: int, count: int, first_end: int) -> int:
        self.lengths.append(length)
        self.children.append(children)
        self.links.append(link)
        self.counts.append(count)
        self.first_ends.append(first_end)
        return len(self.lengths) - 1

    def _split(self, above: int, token: int) -> int:
        """Returns a new state for the shorter substrings of a child, which the new token makes more frequent than the
        longer ones: those of up to `lengths[above]` + 1 tokens."""
        old = self.children[above][token]
        new = self._new(
            self.lengths[above] + 1, dict(self.children[old]), self.links[old], self.counts[old], self.first_ends[old]
        )
        self.links[old] = new
        while above >= 0 and self.children[above].get(token) == old:
            self.children[above][token] = new
            above = self.links[above]
        return new

    def suffixes(self, state: int, length: int) -> Iterator[tuple[int, int, int]]:
        """Yields all suffixes of a substring, which is that of `length` tokens in `state`, the longest first: those of
        one state together, as (state, length of the shortest, length of the longest)."""
        while state > ROOT:
            state_above = self.links[state]
            yield state, self.lengths[state_above] + 1, length
            state, length = state_above, self.lengths[state_above]

    def continuation(self, state: int, num_tokens: int) -> list[int]:
        """Returns up to `num_tokens` tokens that followed the first occurrence of a state's substrings in its text."""
        first = self.first_ends[state]
        following = self.tokens[first : first + num_tokens]
        return following[: following.index(END)] if END in following else following


class LongestMatch:
    """The longest suffix of a growing text that occurs in an automaton, which does not change meanwhile: the one of
    `length` tokens in `state`."""

    def __init__(self, automaton: SuffixAutomaton) -> None:
        self.automaton = automaton
        self.state, self.length = ROOT, 0

    def append(self, token: int) -> None:
        """Adds a token to the text, in amortized constant time."""
        children, links, lengths = self.automaton.children, self.automaton.links, self.automaton.lengths
        while self.state > ROOT and token not in children[self.state]:
            self.state = links[self.state]
            self.length = lengths[self.state]
        found = children[self.state].get(token)
        if found is not None:
            self.state, self.length = found, self.length + 1
