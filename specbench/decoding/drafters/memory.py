"""Drafters that copy from a memory of texts: the prompt and the answer so far, earlier answers of the run, or the
answers of another run.

Sources: SuffixDecoding (arXiv:2411.04975), SAM decoding (arXiv:2411.10666), and the drafter `ngram-mod` of llama.cpp.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.core.values import json_digest
from specbench.decoding.drafters import COLD, WARM, WARM_HALF, LookUpDrafter, padded_lengths
from specbench.decoding.drafters.ngram import model_for
from specbench.decoding.drafters.suffix_automaton import ROOT, LongestMatch, SuffixAutomaton
from specbench.decoding.proposal import Draws, Proposal, Verification
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair, ids_digest
from specbench.models.corpus_models import Datastore
from specbench.models.scoring import Output
from specbench.records.records import RECORDS, RecordFile

BASELINE = "ar"
MEMORY = (
    "What is searched besides the answer so far. none: nothing; prompt: its prompt; run: its prompt and all earlier "
    "answers of a task's subset, so that a prompt's speed depends on the prompts before it; a run's folder: its prompt "
    "and AR's answers of that run. A prompt's own earlier answer is always left out."
)
Memory = Annotated[str, Field(min_length=1, description=MEMORY)]
SPLIT = (
    "Which answers of a run's folder are searched. null: those to all other prompts; halves: those to the half of its "
    "prompts, by their digest, that the prompt is not in."
)
Split = Annotated[Literal["halves"] | None, Field(description=SPLIT)]
MAX_ANSWERS = "Maximum number of answers in the memory: the oldest are forgotten; null: all are kept."
MaxAnswers = Annotated[int | None, Field(ge=1, description=MAX_ANSWERS)]


class Answer(NamedTuple):
    """An answer with the digest of its prompt's tokens."""

    prompt: str
    token_ids: Sequence[int]


class MemoryDrafter(LookUpDrafter):
    """A drafter that copies from a memory. This class owns the life of the memory; a subclass owns the data structures,
    one of this prompt's text and one of other prompts' answers:

    - `begin_text`: forgets this prompt's text, of which none is known, and begins to look up in the answers learnt;
    - `read`: adds tokens to this prompt's text;
    - `forget_answers`, `learn`: remove all answers, and add one;
    - `draft`: returns a draft that follows the text read so far.
    """

    def __init__(
        self, models: ModelPair, memory: str, split: str | None = None, max_answers: int | None = None
    ) -> None:
        super().__init__()
        self.eos_token_ids = models.target.eos_token_ids
        self.reads_prompts = memory != "none"
        # Not the flag of all drafters, which a draft length that learns sets, too.
        self.learns_answers = self.learns_over_prompts = memory == "run"
        self.memory_kind = COLD
        self.split, self.max_answers = split, max_answers
        self._answers: list[Answer] = []
        self._is_of_other_run = memory not in ("none", "prompt", "run")
        if self._is_of_other_run:
            self._answers = read_answers(memory, models.target)[-(max_answers or 0) :]
            self.memory_kind = WARM if split is None else WARM_HALF
            # The folder may be anywhere: the answers are what identifies it.
            self.name = f"answers {json_digest([[prompt, list(token_ids)] for prompt, token_ids in self._answers])}"
        elif split is not None:
            raise ConfigError(
                f"drafter.split = '{split}': splits the answers of another run, but drafter.memory = '{memory}': give "
                "the folder of a run as memory, or leave split out"
            )
        self._num_learnt = 0
        self._left_out: str | None = None  # the prompt, or the half of the prompts, whose answers are not learnt
        self._prompt, self._num_prompt = "", 0
        self._ids: list[int] = []  # the sequence itself, which is complete when the next prompt begins
        self._num_read = 0
        self.forget_answers()

    def begin_text(self) -> None:
        raise NotImplementedError

    def read(self, token_ids: Iterable[int]) -> None:
        raise NotImplementedError

    def forget_answers(self) -> None:
        raise NotImplementedError

    def learn(self, token_ids: Sequence[int]) -> None:
        raise NotImplementedError

    def draft(self, num_draft_tokens: int) -> list[int]:
        raise NotImplementedError

    def begin_cell(self) -> None:
        self._ids = []
        if self.learns_answers:
            self.clear_answers()

    def clear_answers(self) -> None:
        """Removes all answers from the memory for good."""
        self._answers, self._num_learnt, self._left_out = [], 0, None
        self.forget_answers()

    def prefill(self, prompt_ids: list[int]) -> None:
        # 1. The answer to the prompt before is known in full only now.
        if self.learns_answers and len(self._ids) > self._num_prompt:
            self._answers.append(Answer(self._prompt, self._ids[self._num_prompt :]))
        is_full = self.max_answers is not None and len(self._answers) > self.max_answers
        if is_full:
            del self._answers[: -(self.max_answers or 0)]
        # 2. All answers are learnt but those to this prompt, or to its half of them. To leave out some that were
        #    learnt, all are learnt anew.
        has_others = self.learns_answers or self._is_of_other_run
        self._prompt = ids_digest(prompt_ids) if has_others else ""
        is_repeat = any(answer.prompt == self._prompt for answer in self._answers)
        self.left_out_own = is_repeat if has_others else None
        left_out = half_of(self._prompt) if self.split is not None else self._prompt if is_repeat else None
        if left_out != self._left_out or is_full:
            self.forget_answers()
            self._left_out, self._num_learnt = left_out, 0
        for answer in self._answers[self._num_learnt :]:
            if left_out != (answer.prompt if self.split is None else half_of(answer.prompt)):
                self.learn(answer.token_ids)
        self._num_learnt = len(self._answers)
        # 3. The prompt itself.
        self.begin_text()
        self._ids = []
        self._num_read = self._num_prompt = len(prompt_ids)
        if self.reads_prompts:
            self.read(prompt_ids)

    def rewind(self, ids: list[int]) -> None:
        self.begin_text()
        self._num_read = 0 if self.reads_prompts else self._num_prompt

    def look_up(self, ids: list[int], num_draft_tokens: int) -> tuple[list[int], list[int] | None]:
        self._ids = ids
        if num_draft_tokens <= 0:
            return [], None
        self.read(ids[self._num_read :])
        self._num_read = len(ids)
        return self.draft_tree(num_draft_tokens)

    def draft_tree(self, num_draft_tokens: int) -> tuple[list[int], list[int] | None]:
        """Returns the tokens of a draft and their parents; None for a chain."""
        return up_to_end(self.draft(num_draft_tokens), self.eos_token_ids), None


def half_of(prompt_digest: str) -> str:
    """Returns in which half of all prompts one is: "0" or "1"."""
    return str(int(prompt_digest, 16) % 2)


def up_to_end(token_ids: list[int], end_ids: Collection[int]) -> list[int]:
    """Returns the tokens up to and including the first that ends an answer."""
    return next((token_ids[: place + 1] for place, token in enumerate(token_ids) if token in end_ids), token_ids)


def read_answers(memory: str, target: CausalLM) -> list[Answer]:
    """Returns AR's answers of a run, each prompt's first. Raises ConfigError for a file that is not a run's, has no
    answers, or has answers that are of another vocabulary or cannot be told from a prompt's own."""
    path = Path(memory)
    path = path / RECORDS if path.is_dir() else path
    place = f"drafter.memory = '{memory}'"
    if not path.is_file():
        raise ConfigError(f"{place}: there is no {path}: give none, prompt, run, or the folder of a run")
    answers = []
    for record in RecordFile(path).stream():
        if record.turn:
            raise ConfigError(
                f"{place}: has conversations, of which a later turn repeats an earlier answer: give a run of a task "
                "with one turn"
            )
        if record.prompt_ids_digest is None or BASELINE not in record.methods:
            lacking = "the prompt's digest" if record.prompt_ids_digest is None else f"an answer of {BASELINE}"
            raise ConfigError(f"{place}: {record.name} lacks {lacking}: repeat that run with this version")
        token_ids = list(record.methods[BASELINE].token_ids)
        if max(token_ids, default=0) >= target.vocab_size:
            raise ConfigError(
                f"{place}: {record.name} has token {max(token_ids)}, and target '{target.name}' has "
                f"{target.vocab_size}: give a run of a target with the same tokenizer"
            )
        if record.repeat == 0:
            answers.append(Answer(record.prompt_ids_digest, token_ids))
    if not answers:
        raise ConfigError(f"{place}: {path} has no answers: give the folder of a run that has some")
    return answers


MAX_DEPTH = "Maximum number of tokens of a match together with its draft."
MAX_LEVELS = 64  # a draft tree grows as its probabilities say
TREE = (
    "true: drafts are trees of the most probable continuations, of up to num_draft_tokens tokens in all; null or "
    "false: they are chains."
)
FACTOR = "Draft tokens per matched token, capped at num_draft_tokens."
OFFSET = "Draft tokens added to those that the match allows."
MIN_PROBABILITY = (
    "Shortest relative frequency, in the memory, of a draft's tokens after the match, at which the draft goes on."
)


LookUp = tuple[tuple[str, ...], str]  # a drawing of a look-up, and what it shows


class AutomatonDrafter(MemoryDrafter):
    """A memory of two suffix automata: one of this prompt's text and one of the answers learnt."""

    def begin_text(self) -> None:
        self._text = SuffixAutomaton()
        self._match = LongestMatch(self._learnt)

    def read(self, token_ids: Iterable[int]) -> None:
        for token in token_ids:
            self._text.append(token)
            self._match.append(token)

    def forget_answers(self) -> None:
        self._learnt = SuffixAutomaton()

    def learn(self, token_ids: Sequence[int]) -> None:
        self._learnt.add_text(token_ids)


COPIED = ("memory  … b c d e f g h …", "text    … x c d e", "draft           f g h")


BRANCHES = (
    "memory  … c d e f g h … c d e f g k … c d e m …", "text    … x c d e", "draft           f g h",
    "                    k", "                m",
)  # fmt: skip


def suffix_drawing(
    *, factor: float, offset: float, min_probability: float, tree: bool | None, **others: object
) -> LookUp:
    allowed = f"{factor:g} · (matched tokens){f' {offset:+g}' if offset else ''}"
    if tree:
        return BRANCHES, (
            "Every suffix of the text that occurs in the memory gives a tree of its continuations, here of c d e, d e "
            f"and e: the most frequent ones, up to {allowed} tokens, whose relative frequency is at least "
            f"{min_probability:g}. The tree with the largest sum of these frequencies is proposed."
        )
    return COPIED, (
        "Every suffix of the text that occurs in the memory gives a draft, here c d e, d e and e: at each token the "
        f"most frequent one, up to {allowed} tokens, while the product of the relative frequencies is at least "
        f"{min_probability:g}. The draft with the largest sum of these products is proposed."
    )


def suffix_levels(*, tree: bool | None, **others: Any) -> int | None:
    return MAX_LEVELS if tree else None


@DRAFTERS.register("suffix", looks_up=True, drawing=suffix_drawing, tree_shape=suffix_levels)
class SuffixDrafter(AutomatonDrafter):
    """Drafts the most frequent continuation of a suffix of the text, in the text itself or in earlier answers; the
    longer the match, the longer the draft (arXiv:2411.04975). Needs no model."""

    # Of all matches it takes the draft with the largest expected number of accepted tokens, if relative frequencies in
    # the memory were chances; of equal ones that of the longer match, and of this text rather than of other answers.

    def __init__(
        self,
        models: ModelPair,
        sampling: Sampling,
        *,
        memory: Memory = "prompt",
        max_depth: Annotated[int, Field(ge=2, le=1024, description=MAX_DEPTH)] = 64,
        factor: Annotated[float, Field(ge=0, le=64, description=FACTOR)] = 1.0,
        offset: Annotated[float, Field(ge=-64, le=64, description=OFFSET)] = 0.0,
        min_probability: Annotated[float, Field(ge=0, le=1, description=MIN_PROBABILITY)] = 0.1,
        tree: Annotated[bool | None, Field(description=TREE)] = None,
        split: Split = None,
        max_answers: MaxAnswers = None,
    ) -> None:
        self.max_depth, self.factor, self.offset, self.min_probability = max_depth, factor, offset, min_probability
        self.draws: Draws | None = "fixed" if tree else None
        super().__init__(models, memory, split, max_answers)

    def tree_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        return padded_lengths(num_draft_tokens) if self.draws else ()

    def draft_tree(self, num_draft_tokens: int) -> tuple[list[int], list[int] | None]:
        if self.draws is None:
            return super().draft_tree(num_draft_tokens)
        text, match = self._text, self._match
        tree, score = self._best_tree(text, text.last, text.lengths[text.last], num_draft_tokens)
        other, other_score = self._best_tree(self._learnt, match.state, match.length, num_draft_tokens)
        chosen = tree if score >= other_score else other
        places = {node.number: place for place, node in enumerate(chosen)}
        return [node.token for node in chosen], [places.get(node.parent, -1) for node in chosen]

    def _best_tree(
        self, automaton: SuffixAutomaton, state: int, length: int, num_draft_tokens: int
    ) -> tuple[list["Node"], float]:
        """Returns the best draft tree after the suffixes of a match, and its score."""
        best: list[Node] = []
        best_score = 0.0
        for suffix_state, shortest, longest in automaton.suffixes(state, length):
            deepest = min(longest, self.max_depth - 1)
            most = min(num_draft_tokens, self._limit(deepest))
            if shortest > deepest or most <= best_score:  # a token adds 1 at most
                continue
            # The tree of a match is the beginning of one order of nodes, without those that are too deep for it.
            nodes: list[Node] = []
            num_shallow = 0
            for node in self._grow(automaton, suffix_state, self.max_depth - shortest):
                nodes.append(node)
                num_shallow += node.depth <= self.max_depth - deepest
                if num_shallow == most:
                    break
            depth = max((node.depth for node in nodes), default=0)
            for matched in range(deepest, shortest - 1, -1):
                limit = min(num_draft_tokens, self._limit(matched))
                kept = list(islice((n for n in nodes if n.depth <= self.max_depth - matched), max(0, limit)))
                if (score := sum(node.probability for node in kept)) > best_score:
                    best, best_score = kept, score
                if depth <= self.max_depth - matched:  # a shorter match has the same nodes, and fewer of them
                    break
        return best, best_score

    def _grow(self, automaton: SuffixAutomaton, state: int, depth: int) -> Iterator["Node"]:
        """Yields the continuations of a state by their relative frequency, parents first, ties in the order of their
        parents, then to the smallest id. None follows the end of an answer."""
        counts = automaton.counts
        heap: list[tuple[float, int, int, int, int]] = []  # −probability, parent, token, state, depth

        def push(state: int, probability: float, parent: int, depth: int) -> None:
            for token, child in automaton.children[state].items():
                chance = probability * counts[child] / counts[state]
                if chance >= self.min_probability:
                    heapq.heappush(heap, (-chance, parent, token, child, depth))

        push(state, 1.0, -1, 1)
        number = 0
        while heap:
            negative, parent, token, child, level = heapq.heappop(heap)
            yield Node(number, token, parent, level, -negative)
            if level < depth and token not in self.eos_token_ids:
                push(child, -negative, number, level + 1)
            number += 1

    def draft(self, num_draft_tokens: int) -> list[int]:
        text, match = self._text, self._match
        # The whole text, which is not a match of itself, has no continuation, and so no draft.
        draft, score = self._best(text, text.last, text.lengths[text.last], num_draft_tokens)
        other_draft, other_score = self._best(self._learnt, match.state, match.length, num_draft_tokens)
        return draft if score >= other_score else other_draft

    def _best(
        self, automaton: SuffixAutomaton, state: int, length: int, num_draft_tokens: int
    ) -> tuple[list[int], float]:
        """Returns the best draft after the suffixes of a match, and its score."""
        best: list[int] = []
        best_score = 0.0
        for suffix_state, shortest, longest in automaton.suffixes(state, length):
            deepest = min(longest, self.max_depth - 1)
            most = min(num_draft_tokens, self._limit(deepest), self.max_depth - shortest)
            if shortest > deepest or most <= best_score:  # a token adds 1 at most
                continue
            path, scores = self._follow(automaton, suffix_state, most)
            for matched in range(deepest, shortest - 1, -1):
                limit = min(len(path), self._limit(matched), self.max_depth - matched)
                if limit > 0 and scores[limit - 1] > best_score:
                    best, best_score = path[:limit], scores[limit - 1]
        return best, best_score

    def _limit(self, num_matched: int) -> int:
        return int(self.factor * num_matched + self.offset + 1e-6)

    def _follow(self, automaton: SuffixAutomaton, state: int, num_tokens: int) -> tuple[list[int], list[float]]:
        """Returns the most frequent continuation of a state, ties to the smallest id, and for each of its tokens the
        score of the draft that ends there: the sum of all tokens' relative frequencies after the state."""
        path: list[int] = []
        scores: list[float] = []
        counts = automaton.counts
        probability, score = 1.0, 0.0
        while len(path) < num_tokens and (children := automaton.children[state]):
            token = min(children, key=lambda token: (-counts[children[token]], token))
            probability *= counts[children[token]] / counts[state]
            if probability < self.min_probability:
                break
            state, score = children[token], score + probability
            path.append(token)
            scores.append(score)
        return path, scores


class Node(NamedTuple):
    """A node of a draft tree: its place in the order of growth, its token, the number of its parent (−1: none), its
    level, and its relative frequency after the match."""

    number: int
    token: int
    parent: int
    depth: int
    probability: float


SAM_MIN_MATCH = "Shortest match; otherwise nothing is drafted."
SAM_BIAS = "By how many tokens a match in other answers or in the corpus must be longer than one in this text."
CORPUS = (
    "Folder of a datastore, as `specbench train retrieval` writes it, whose texts are searched too; embedded: the one "
    "of the embedded target; null: none."
)


def sam_drawing(*, min_match: int, bias: int, corpus: str | None, **others: object) -> LookUp:
    others_are = "other answers or the corpus" if corpus else "other answers"
    return COPIED, (
        "The longest suffix of the text that occurs earlier, here c d e, is continued as after its first occurrence. "
        f"It has at least {min_match} tokens, and {bias} more if it occurs in {others_are} only."
    )


@DRAFTERS.register("sam", looks_up=True, drawing=sam_drawing)
class SamDrafter(AutomatonDrafter):
    """Drafts what followed the first occurrence of the longest suffix of the text that occurs earlier, in the text
    itself or in other answers (arXiv:2411.10666). Needs no model. Where the published code falls back on a draft tree,
    nothing is drafted."""

    def __init__(
        self,
        models: ModelPair,
        sampling: Sampling,
        *,
        memory: Memory = "prompt",
        min_match: Annotated[int, Field(ge=1, le=64, description=SAM_MIN_MATCH)] = 5,
        bias: Annotated[int, Field(ge=0, le=64, description=SAM_BIAS)] = 5,
        split: Split = None,
        corpus: Annotated[str | None, Field(min_length=1, description=CORPUS)] = None,
        max_answers: MaxAnswers = None,
    ) -> None:
        self.min_match, self.bias = min_match, bias
        self._corpus: SuffixAutomaton | None = None
        super().__init__(models, memory, split, max_answers)
        if corpus is not None:
            path = None if corpus == "embedded" else corpus
            datastore, name = model_for(models.target, Datastore, path, "drafter.corpus")
            self._corpus = SuffixAutomaton()
            for text in datastore.texts():
                self._corpus.add_text(text)
            self.name = f"{name} and {self.name}" if self.name else name
            self.revision = datastore.digest

    def begin_text(self) -> None:
        super().begin_text()
        self._corpus_match = None if self._corpus is None else LongestMatch(self._corpus)

    def read(self, token_ids: Iterable[int]) -> None:
        new = list(token_ids)
        super().read(new)
        if self._corpus_match is not None:
            for token in new:
                self._corpus_match.append(token)

    def draft(self, num_draft_tokens: int) -> list[int]:
        text, match = self._text, self._match
        if self._corpus_match is not None and self._corpus_match.length > match.length:
            match = self._corpus_match
        # The link of the whole text is its longest suffix that occurs at another place, too. A first occurrence near
        # the end is followed by fewer tokens than may be drafted; a shorter suffix may have an earlier one.
        state = max(ROOT, text.links[text.last])
        while state > ROOT and len(text.tokens) - text.first_ends[state] < num_draft_tokens:
            state = text.links[state]
        length, other_length = text.lengths[state], match.length - self.bias
        if max(length, other_length) < self.min_match:
            return []
        if length >= other_length:
            return text.continuation(state, num_draft_tokens)
        return match.automaton.continuation(match.state, num_draft_tokens)


MULTIPLIER, MODULUS = 6364136223846793005, 1 << 64  # of the linear congruential generator that llama.cpp hashes with
MAX_OCCUPANCY = 0.25
LOW_ACCEPTANCE, MAX_LOW = 0.25, 5  # share of accepted tokens; consecutive drafts below it
NGRAM = "Number of tokens that are hashed: the next token is looked up by their hash."
MIN_TOKENS = "Shortest draft: a shorter one is dropped, unless num_draft_tokens or the answer's end allow no more."
NUM_SLOTS = "Size of the table. Texts whose hashes share a slot overwrite each other."


class RollingHash:
    """The hash of the last `size` tokens of a growing text, updated in constant time; None if it is shorter."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._out = pow(MULTIPLIER, size, MODULUS)
        self._hash = 0
        self._tokens: list[int] = []

    @property
    def value(self) -> int | None:
        return self._hash if len(self._tokens) >= self.size else None

    def append(self, token: int) -> None:
        dropped = self._tokens[-self.size] if len(self._tokens) >= self.size else 0
        self._hash = (self._hash * MULTIPLIER + token - dropped * self._out) % MODULUS
        self._tokens.append(token)

    def copy(self) -> "RollingHash":
        copy = RollingHash(self.size)
        copy._hash, copy._tokens = self._hash, self._tokens[-self.size :]
        return copy


def ngram_mod_drawing(*, ngram: int, min_tokens: int, **others: object) -> LookUp:
    return ("text    … a b c d", "draft           e", "                  f", "                    …"), (
        f"The hash of the last {ngram} tokens is looked up in a table, which holds the token that last followed a text "
        "of this hash, here e; then that of the last tokens with e, and so on, until a hash is unknown. A draft of "
        f"fewer than {min_tokens} tokens is dropped."
    )


@DRAFTERS.register("ngram_mod", looks_up=True, drawing=ngram_mod_drawing)
class NgramModDrafter(MemoryDrafter):
    """Drafts, token by token, the one that last followed the same tokens, found in a table by their rolling hash
    (`ngram-mod` of llama.cpp). Needs no model. After five drafts in a row of which less than a quarter was accepted,
    and where a quarter of the table is used, other answers are forgotten."""

    # As in llama.cpp, what a table forgets because of low acceptance stays forgotten for the run. Of a memory from
    # another run only the current prompt forgets, since the next one must not depend on it.

    def __init__(
        self,
        models: ModelPair,
        sampling: Sampling,
        *,
        memory: Memory = "prompt",
        ngram: Annotated[int, Field(ge=1, le=256, description=NGRAM)] = 24,
        min_tokens: Annotated[int, Field(ge=1, le=64, description=MIN_TOKENS)] = 48,
        num_slots: Annotated[int, Field(ge=2, le=2**32, description=NUM_SLOTS)] = 1 << 22,
        split: Split = None,
        max_answers: MaxAnswers = None,
    ) -> None:
        self.ngram, self.min_tokens, self.num_slots = ngram, min_tokens, num_slots
        super().__init__(models, memory, split, max_answers)

    def begin_text(self) -> None:
        self._text: dict[int, int] = {}
        self._hash = RollingHash(self.ngram)
        self._consulted = self._learnt
        self._num_low = 0

    def read(self, token_ids: Iterable[int]) -> None:
        self._index(self._text, self._hash, token_ids)
        if len(self._text) + len(self._consulted) > MAX_OCCUPANCY * self.num_slots:
            self._forget()

    def forget_answers(self) -> None:
        self._learnt: dict[int, int] = {}

    def learn(self, token_ids: Sequence[int]) -> None:
        self._index(self._learnt, RollingHash(self.ngram), token_ids)

    def _index(self, table: dict[int, int], rolling: RollingHash, token_ids: Iterable[int]) -> None:
        for token in token_ids:
            if (value := rolling.value) is not None:
                table[value % self.num_slots] = token
            rolling.append(token)

    def _forget(self) -> None:
        self._consulted, self._num_low = {}, 0
        if self.learns_answers:
            self.clear_answers()

    def draft(self, num_draft_tokens: int) -> list[int]:
        rolling = self._hash.copy()
        path: list[int] = []
        while len(path) < num_draft_tokens and (value := rolling.value) is not None:
            slot = value % self.num_slots
            token = self._text.get(slot, self._consulted.get(slot))
            if token is None:
                break
            path.append(token)
            rolling.append(token)
        return path if len(path) >= min(self.min_tokens, num_draft_tokens) else []

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        if not proposal.token_ids:
            return
        is_low = verification.num_accepted < LOW_ACCEPTANCE * len(proposal.token_ids)
        self._num_low = self._num_low + 1 if is_low else 0
        if self._num_low >= MAX_LOW:
            self._forget()
