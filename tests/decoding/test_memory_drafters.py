"""Drafters that copy from a memory: what they draft, how long the memory lasts, and losslessness with a control."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.drafters import memory_of
from specbench.decoding.drafters.memory import (
    MemoryDrafter,
    NgramModDrafter,
    RollingHash,
    SamDrafter,
    SuffixDrafter,
    half_of,
)
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.proposal import PointMass, Proposal, TreeProposal, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.verification import VerificationRule, exact_match, rejection
from specbench.models.causal_lm import ModelPair, ids_digest
from specbench.models.scoring import Output
from specbench.records.records import RecordFile
from specbench.specs.catalogue import load_method, with_overrides
from tests.support.distributions import chi_square_p
from tests.support.records import autoregressive, compared
from tests.support.toys import TableModel, joint

GENERATOR = torch.Generator()
Tree = list[tuple[tuple[int, ...], float]]
NO_OUTPUT = Output(torch.empty(0))
Make = Callable[..., MemoryDrafter]


def pair(eos: Sequence[int] = (), vocab_size: int = 50) -> ModelPair:
    target = SimpleNamespace(eos_token_ids=frozenset(eos), vocab_size=vocab_size, name="toy")
    return ModelPair(target)  # type: ignore[arg-type]


def suffix(memory: str = "prompt", eos: Sequence[int] = (), **options: Any) -> SuffixDrafter:
    return SuffixDrafter(pair(eos), Sampling(), memory=memory, **options)


def sam(memory: str = "prompt", eos: Sequence[int] = (), **options: Any) -> SamDrafter:
    return SamDrafter(pair(eos), Sampling(), memory=memory, **{"min_match": 2, "bias": 1, **options})


def ngram_mod(memory: str = "prompt", eos: Sequence[int] = (), **options: Any) -> NgramModDrafter:
    return NgramModDrafter(pair(eos), Sampling(), memory=memory, **{"ngram": 2, "min_tokens": 1, **options})


ALL: list[Make] = [suffix, sam, ngram_mod]


def answer(made: MemoryDrafter, prompt: Sequence[int], tokens: Sequence[int], count: int = 4) -> list[list[int]]:
    """Lets a drafter see a prompt and its answer, token by token. Returns what it drafts before each next token."""
    made.prefill(list(prompt))
    ids = list(prompt)
    drafts = []
    for token in tokens:
        ids.append(token)
        proposal = made.propose(ids, count, GENERATOR)
        assert len(proposal.token_ids) <= count
        assert isinstance(proposal.probs, PointMass) == bool(proposal.token_ids)
        drafts.append(proposal.token_ids)
    return drafts


# What is drafted.


def occurrences(texts: Sequence[Sequence[int]], wanted: Sequence[int]) -> list[tuple[int, int]]:
    size = len(wanted)
    return [
        (number, end) for number, text in enumerate(texts) for end in range(size, len(text) + 1)
        if list(text[end - size : end]) == list(wanted)
    ]  # fmt: skip


def best_of_tree(
    texts: Sequence[Sequence[int]],
    ids: list[int],
    count: int,
    *,
    depth: int,
    factor: float,
    offset: float,
    floor: float,
) -> tuple[list[int], float]:
    """The draft that suffix decoding describes, by counting substrings: for every match, from the shortest one on."""
    best: tuple[list[int], float] = ([], 0.0)
    for size in range(1, min(len(ids), depth - 1) + 1):
        matched = ids[-size:]
        if not occurrences(texts, matched):
            break
        path: list[int] = []
        probability, score = 1.0, 0.0
        while len(path) < min(count, int(factor * size + offset), depth - size):
            before = len(occurrences(texts, matched + path))
            counts = {token: len(occurrences(texts, [*matched, *path, token])) for token in range(5)}
            token = max(counts, key=lambda token: (counts[token], -token))
            probability *= counts[token] / before
            if not counts[token] or probability < floor:
                break
            path.append(token)
            score += probability
        if path and score >= best[1]:
            best = path, score
    return best


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "options", [{}, {"factor": 2.0, "offset": 1.0}, {"max_depth": 4}, {"min_probability": 0.6}, {"factor": 0.5}]
)
def test_suffix_drafts_what_counting_substrings_gives(seed: int, options: dict[str, Any]) -> None:
    random = Random(seed)
    made = suffix("run", **options)
    values = {"depth": options.get("max_depth", 64), "factor": options.get("factor", 1.0)}
    values |= {"offset": options.get("offset", 0.0), "floor": options.get("min_probability", 0.1)}
    answers: list[list[int]] = []
    for number in range(3):
        prompt, tokens = random.choices(range(3), k=4 + number), random.choices(range(3), k=14)
        for place, drafted in enumerate(answer(made, prompt, tokens), start=1):
            ids = prompt + tokens[:place]
            own, score = best_of_tree([ids], ids, 4, **values)
            other, other_score = best_of_tree(answers, ids, 4, **values)
            assert drafted == (own if score >= other_score else other)
        answers.append(tokens)


def grown(texts: Sequence[Sequence[int]], matched: list[int], count: int, depth: int, floor: float) -> Tree:
    """The nodes of the draft tree after a match, as paths with their relative frequencies, by counting substrings."""
    found: Tree = []
    waiting: list[tuple[float, int, int, tuple[int, ...]]] = []

    def add(path: tuple[int, ...], probability: float, parent: int) -> None:
        before = len(occurrences(texts, [*matched, *path]))
        for token in range(5):
            number = len(occurrences(texts, [*matched, *path, token]))
            if number and probability * number / before >= floor and len(path) < depth:
                waiting.append((-(probability * number / before), parent, token, (*path, token)))

    add((), 1.0, -1)
    while waiting and len(found) < count:
        best = min(waiting)
        waiting.remove(best)
        found.append((best[3], -best[0]))
        add(best[3], -best[0], len(found) - 1)
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", [{}, {"factor": 3.0}, {"max_depth": 4}, {"min_probability": 0.4}, {"offset": 2.0}])
def test_suffix_drafts_the_tree_that_counting_substrings_gives(seed: int, options: dict[str, Any]) -> None:
    random = Random(seed)
    made = suffix("run", tree=True, **options)
    assert made.draws == "fixed" and made.tree_lengths(9) and not suffix().tree_lengths(9)
    depth, factor = options.get("max_depth", 64), options.get("factor", 1.0)
    offset, floor = options.get("offset", 0.0), options.get("min_probability", 0.1)
    answers: list[list[int]] = []

    def best_of(texts: Sequence[Sequence[int]], ids: list[int]) -> tuple[Tree, float]:
        best: tuple[Tree, float] = ([], 0.0)
        for size in range(1, min(len(ids), depth - 1) + 1):
            if not occurrences(texts, ids[-size:]):
                break
            nodes = grown(texts, ids[-size:], min(6, int(factor * size + offset)), depth - size, floor)
            score = sum(probability for _, probability in nodes)
            best = (nodes, score) if nodes and score >= best[1] else best
        return best

    num_branches = 0
    for number in range(3):
        prompt, tokens = random.choices(range(3), k=4 + number), random.choices(range(3), k=14)
        made.prefill(prompt)
        for place in range(1, len(tokens) + 1):
            ids = prompt + tokens[:place]
            proposal = made.propose(ids, 6, GENERATOR)
            own, other = best_of([ids], ids), best_of(answers, ids)
            expected = [path for path, _ in (own if own[1] >= other[1] else other)[0]]
            if not expected:
                assert proposal.token_ids == []
                continue
            assert isinstance(proposal, TreeProposal)
            paths: list[tuple[int, ...]] = []
            for token, parent in zip(proposal.token_ids, proposal.parents, strict=True):
                paths.append((*(paths[parent] if parent >= 0 else ()), token))
            assert paths == expected
            num_branches += len(paths) > len(max(paths, key=len))
        answers.append(tokens)
    assert num_branches or options.get("min_probability")


def test_a_draft_tree_ends_with_the_answer() -> None:
    made = suffix(eos=(9,), tree=True, factor=4.0)
    made.prefill([1, 2, 9, 5, 1, 2, 3, 4, 1])
    proposal = made.propose([1, 2, 9, 5, 1, 2, 3, 4, 1, 2], 6, GENERATOR)
    assert isinstance(proposal, TreeProposal)
    assert proposal.token_ids == [3, 9, 4, 1, 2] and list(proposal.parents) == [-1, -1, 0, 2, 3]


def test_a_longer_match_gives_a_longer_draft() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    drafts = answer(suffix(), text, [1, 2, 3, 4], count=9)
    assert drafts == [[2], [3, 4], [4, 5, 6], [5, 6, 7, 8]]


@pytest.mark.parametrize("seed", range(6))
def test_sam_copies_after_the_first_occurrence_of_the_longest_match(seed: int) -> None:
    random = Random(seed)
    made = sam("run")
    answers: list[list[int]] = []
    for _ in range(3):
        prompt, tokens = random.choices(range(3), k=6), random.choices(range(3), k=20)
        for place, drafted in enumerate(answer(made, prompt, tokens), start=1):
            ids = prompt + tokens[:place]
            # In the text itself: the longest suffix whose first occurrence is followed by four tokens.
            firsts = {size: occurrences([ids], ids[-size:])[0][1] for size in range(1, len(ids))}
            size = max((size for size, end in firsts.items() if len(ids) - end >= 4), default=0)
            expected = ids[firsts[size] :][:4] if size else []
            # In other answers: the longest suffix, which must be longer by more than the bias.
            others = [length for length in range(1, len(ids) + 1) if occurrences(answers, ids[-length:])]
            other = max(others, default=0)
            if other - 1 > size:
                number, end = occurrences(answers, ids[-other:])[0]
                expected = answers[number][end : end + 4]
            assert drafted == (expected if max(size, other - 1) >= 2 else [])
        answers.append(tokens)


def test_sam_searches_a_corpus_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it searches other answers: the longer of both matches counts, and its bias."""
    texts = [[1, 2, 3, 4, 5], [7, 8, 9, 1, 2, 6, 6]]
    store = SimpleNamespace(digest="abc", texts=lambda: iter(texts))
    place = "specbench.decoding.drafters.memory.model_for"
    monkeypatch.setattr(place, lambda target, kind, path, key: (store, f"{key} {path}"))
    made, others = sam("run", corpus="x"), sam("run")
    assert (made.name, made.revision) == ("drafter.corpus x", "abc")
    for text in texts:
        answer(others, [40], text)
        others.prefill([41])
    prompt, tokens = [9, 9], [1, 2, 3, 8, 9, 1, 2, 4]
    assert answer(made, prompt, tokens) == answer(others, prompt, tokens) != answer(sam(), prompt, tokens)
    assert answer(made, [20], [7, 8, 9, 1, 2])[-1] == [6, 6], "a longer match than in the answer"
    assert answer(made, [21], [8, 9, 1, 2])[-1][:1] == [4], "of equally long ones that in an answer counts"


@pytest.mark.parametrize("seed", range(6))
def test_ngram_mod_chains_the_tokens_that_last_followed(seed: int) -> None:
    random = Random(seed)
    made = ngram_mod("run", ngram=2, min_tokens=2)
    learnt: dict[tuple[int, ...], int] = {}
    for _ in range(3):
        prompt, tokens = random.choices(range(4), k=6), random.choices(range(4), k=20)
        for place, drafted in enumerate(answer(made, prompt, tokens), start=1):
            ids = prompt + tokens[:place]
            table = learnt | {tuple(ids[end - 2 : end]): ids[end] for end in range(2, len(ids))}
            chain: list[int] = []
            while len(chain) < 4 and (key := tuple((ids + chain)[-2:])) in table:
                chain.append(table[key])
            assert drafted == (chain if len(chain) >= 2 else [])
        learnt |= {tuple(tokens[end - 2 : end]): tokens[end] for end in range(2, len(tokens))}


def test_a_short_draft_is_dropped_unless_no_more_may_be_drafted() -> None:
    text = [1, 2, 3, 4, 5, 6, 1]
    assert answer(ngram_mod(min_tokens=3), text, [2], count=2) == [[3, 4]]
    assert answer(ngram_mod(min_tokens=9), [1, 2, 3, 9, 8, 1], [2], count=9) != [[]]  # it runs in a circle
    assert answer(ngram_mod(min_tokens=9), [7, 1, 2, 3, 4, 1], [2], count=12) == [[3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2]]
    made = ngram_mod("run", min_tokens=4)
    answer(made, [9], [1, 2, 3, 4])
    assert answer(made, [8, 1], [2], count=9) == [[]] and made._learnt  # 3 and 4 only


@pytest.mark.parametrize("seed", range(3))
def test_the_rolling_hash_is_that_of_the_last_tokens_alone(seed: int) -> None:
    random = Random(seed)
    rolling = RollingHash(3)
    text = random.choices(range(100_000), k=40)
    for place, token in enumerate(text, start=1):
        rolling.append(token)
        alone = RollingHash(3)
        for each in text[max(0, place - 3) : place]:
            alone.append(each)
        assert rolling.value == alone.value == rolling.copy().value
        assert (rolling.value is None) == (place < 3)


def observe(made: MemoryDrafter, num_accepted: int) -> None:
    made.observe(Proposal([1, 2, 3, 4], PointMass([1, 2, 3, 4])), NO_OUTPUT, Verification(num_accepted, 0))


@pytest.mark.parametrize(("accepted", "forgets"), [([0] * 5, True), ([0] * 4 + [1] + [0] * 4, False), ([1] * 9, False)])
def test_ngram_mod_forgets_other_answers_after_bad_drafts(accepted: list[int], forgets: bool) -> None:
    made = ngram_mod("run")
    answer(made, [9, 9], [1, 2, 3, 4, 5])
    answer(made, [8, 8], [1])
    for number in accepted:
        observe(made, number)
    assert (answer_on(made, [8, 8, 1, 2]) == []) == forgets
    assert bool(answer(made, [7, 7], [1, 2])[1]) != forgets  # for the run, too


def answer_on(made: MemoryDrafter, ids: list[int]) -> list[int]:
    return made.propose(ids, 4, GENERATOR).token_ids


def test_ngram_mod_forgets_other_answers_where_its_table_fills() -> None:
    made = ngram_mod("run", num_slots=32)
    answer(made, [9, 9], [1, 2, 3, 4, 5])
    assert answer(made, [8, 8], [1, 2])[1] == [3, 4, 5]
    answer(made, [8, 8], [1, 2, *range(10, 30)])
    assert answer(made, [6, 6], [4, 5]) == [[], []]


@pytest.mark.parametrize("make", ALL)
def test_a_draft_ends_with_the_answer(make: Make) -> None:
    text = [1, 2, 3, 9, 5, 6, 7, 8, 1, 2]
    assert answer(make(eos=(9,)), text, [3])[0] == [9]
    assert len(answer(make(), text, [3])[0]) > 1


@pytest.mark.parametrize("make", ALL)
def test_nothing_is_drafted_where_nothing_may_be(make: Make) -> None:
    made = make()
    made.prefill([1, 2, 3, 1, 2])
    assert made.propose([1, 2, 3, 1, 2, 3], 0, GENERATOR).token_ids == []
    assert made.propose([1, 2, 3, 1, 2, 3, 1], 2, GENERATOR).token_ids == answer(make(), [1, 2, 3, 1, 2, 3], [1], 2)[0]


# How long the memory lasts.

PROMPTS = [[1, 2, 3, 4, 5, 1, 2], [6, 7, 8, 6, 7, 8], [9, 5, 1, 2, 9]]
ANSWERS = [[3, 4, 1, 2, 3, 4, 5], [1, 2, 3, 4, 8, 6, 7], [3, 4, 8, 6, 7, 8, 1, 2]]


def alone(make: Make, memory: str = "prompt") -> list[list[list[int]]]:
    return [answer(make(memory), *case) for case in zip(PROMPTS, ANSWERS, strict=True)]


def together(made: MemoryDrafter) -> list[list[list[int]]]:
    return [answer(made, *case) for case in zip(PROMPTS, ANSWERS, strict=True)]


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("memory", ["none", "prompt"])
def test_a_prompt_alone_is_drafted_as_after_others(make: Make, memory: str) -> None:
    made = make(memory)
    assert not made.learns_over_prompts
    assert together(made) == alone(make, memory)


@pytest.mark.parametrize("make", ALL)
def test_control_a_memory_that_crosses_prompts_is_caught(make: Make) -> None:
    """With a memory for the run, the same comparison fails."""
    made = make("run")
    assert made.learns_over_prompts
    assert together(made) != alone(make)


@pytest.mark.parametrize("make", ALL)
def test_without_memory_the_prompt_is_not_searched(make: Make) -> None:
    prompt, tokens = [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 9, 4, 9, 9, 1, 2, 3]
    assert answer(make("none"), prompt, tokens) == answer(make("none"), [7], tokens)
    assert answer(make("none"), prompt, tokens) != answer(make(), prompt, tokens)
    assert answer(make("none"), prompt, tokens)[-1] != []  # the answer repeats itself


@pytest.mark.parametrize("make", ALL)
def test_a_run_remembers_whole_answers_until_the_next_cell(make: Make) -> None:
    made = make("run")
    answer(made, [20, 21], [1, 2, 3, 4, 5])
    made._ids.append(6)  # the last tokens are emitted after the last proposal
    assert answer(made, [22, 23], [1, 2, 3, 4, 5])[-1][:1] == [6]
    made.begin_cell()
    assert answer(made, [24], [1, 2, 3, 4]) == answer(make(), [24], [1, 2, 3, 4])


@pytest.mark.parametrize("make", ALL)
def test_a_prompts_own_answer_is_left_out(make: Make) -> None:
    """A prompt that comes again is drafted as if it were new, and a prompt after it from all answers."""
    made, other = make("run"), make("run")
    together(made)
    for case in list(zip(PROMPTS, ANSWERS, strict=True))[1:]:
        answer(other, *case)
    assert answer(made, PROMPTS[0], ANSWERS[0]) == answer(other, PROMPTS[0], ANSWERS[0])
    others = make("run")
    together(others)
    answer(others, [30], ANSWERS[0])  # as the second answer to the first prompt
    assert answer(made, [20], ANSWERS[2]) == answer(others, [20], ANSWERS[2])


def write_run(folder: Path, prompts: Sequence[Sequence[int]], answers: Sequence[list[int]], **changes: Any) -> str:
    file = RecordFile(folder / "records.jsonl")
    for number, (prompt, tokens) in enumerate(zip(prompts, answers, strict=True)):
        fields = {"prompt_ids_digest": ids_digest(prompt), **changes}
        file.append(compared(number, autoregressive(len(tokens), token_ids=tokens), **fields))
    return str(folder)


@pytest.mark.parametrize("make", ALL)
def test_a_memory_of_another_run_leaves_out_the_prompts_own_answer(make: Make, tmp_path: Path) -> None:
    """And learns nothing: prompts are drafted alike in any order, each from the answers to all others."""
    folder = write_run(tmp_path, PROMPTS, ANSWERS)
    made = make(folder)
    assert not made.learns_over_prompts and memory_of(made) == "warm" and (made.name or "").startswith("answers ")
    drafts = together(made)
    made.begin_cell()
    for number in (2, 0, 1, 0):
        assert answer(made, PROMPTS[number], ANSWERS[number]) == drafts[number]
        assert made.left_out_own
        others = make("run")
        for other in {0, 1, 2} - {number}:
            answer(others, [40 + other], ANSWERS[other])
        assert answer(others, PROMPTS[number], ANSWERS[number]) == drafts[number]
    assert drafts != alone(make)
    assert make(str(tmp_path / "records.jsonl")).name == made.name


@pytest.mark.parametrize("make", ALL)
def test_halves_of_another_run_are_disjoint(make: Make, tmp_path: Path) -> None:
    """A prompt is drafted from the answers to the half that it is not in, whether the run had it or not."""
    made = make(write_run(tmp_path, PROMPTS, ANSWERS), split="halves")
    assert memory_of(made) == "warm half"
    halves = [half_of(ids_digest(prompt)) for prompt in [*PROMPTS, [3, 3]]]
    assert set(halves[:3]) == {"0", "1"}
    for number in (2, 3, 0, 1, 0):
        prompt, tokens = [*PROMPTS, [3, 3]][number], [*ANSWERS, ANSWERS[1]][number]
        others = make("run")
        for other in range(3):
            if halves[other] != halves[number]:
                answer(others, [40 + other], ANSWERS[other])
        assert answer(made, prompt, tokens) == answer(others, prompt, tokens)
        assert made.left_out_own == (number < 3)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("memory", ["none", "prompt", "run"])
def test_only_another_run_has_halves(make: Make, memory: str) -> None:
    with pytest.raises(ConfigError, match=r"drafter\.split = 'halves': splits the answers of another run"):
        make(memory, split="halves")


@pytest.mark.parametrize("make", ALL)
def test_the_oldest_answers_are_forgotten(make: Make, tmp_path: Path) -> None:
    """As if they had never been learnt."""
    made, others = make("run", max_answers=2), make("run")
    together(made)
    for number in (1, 2):
        answer(others, PROMPTS[number], ANSWERS[number])
    for prompt in ([30], [31]):
        assert answer(made, prompt, ANSWERS[0]) == answer(others, prompt, ANSWERS[0])
        others.begin_cell()
        answer(others, PROMPTS[2], ANSWERS[2])
        answer(others, [30], ANSWERS[0])
    folder = make(write_run(tmp_path, PROMPTS, ANSWERS), max_answers=1)
    newest = make("run")
    answer(newest, PROMPTS[2], ANSWERS[2])
    assert answer(folder, [30], ANSWERS[0]) == answer(newest, [30], ANSWERS[0])


@pytest.mark.parametrize("make", ALL)
def test_own_answers_that_were_left_out_are_told(make: Make) -> None:
    made, cold = make("run"), make()
    told = []
    for prompt in (PROMPTS[0], PROMPTS[1], PROMPTS[0]):
        for each in (made, cold):
            answer(each, prompt, [1, 2, 3])
        told.append((made.left_out_own, cold.left_out_own))
    assert told == [(False, None), (False, None), (True, None)]
    assert (memory_of(made), memory_of(cold)) == ("shuffled", "cold")


def test_a_memory_forgotten_for_bad_drafts_is_that_of_one_prompt(tmp_path: Path) -> None:
    made = ngram_mod(write_run(tmp_path, [[9]], [[1, 2, 3, 4, 5]]))
    assert answer(made, [8], [1, 2])[1] == [3, 4, 5]
    for _ in range(5):
        observe(made, 0)
    assert answer_on(made, [8, 1, 2, 3]) == []
    assert answer(made, [8], [1, 2])[1] == [3, 4, 5]


@pytest.mark.parametrize(
    ("tokens", "changes", "expected"),
    [
        ([1], {"turn": 1}, "has conversations, of which a later turn repeats an earlier answer"),
        ([1], {"prompt_ids_digest": None}, "lacks the prompt's digest: repeat that run"),
        ([70], {}, "has token 70, and target 'toy' has 50: give a run of a target with the same tokenizer"),
    ],
)
def test_a_run_that_cannot_be_a_memory(
    tokens: list[int], changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    folder = write_run(tmp_path, [[9]], [tokens], **changes)
    with pytest.raises(ConfigError) as error:
        suffix(folder)
    assert f"drafter.memory = '{folder}': " in str(error.value) and expected in str(error.value)


def test_a_memory_that_is_missing_or_empty(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"drafter.memory = 'cell': there is no cell: give none, prompt, run, or"):
        suffix("cell")
    (tmp_path / "records.jsonl").touch()
    with pytest.raises(ConfigError, match="has no answers: give the folder of a run that has some"):
        suffix(str(tmp_path))


# Losslessness.

NUM_DRAWS = 450
TEXTS = ([0, 1, 2, 0, 1, 3, 0, 1], [3, 0, 1, 2, 2, 0, 1])  # the second one only fills the memory


def sequences(target: TableModel, made: MemoryDrafter, rule: VerificationRule, seed: int) -> Counter[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    counts: Counter[tuple[int, ...]] = Counter()
    num_drafted = 0
    for number in range(2 * NUM_DRAWS):
        if number % 40 == 0:
            made.begin_cell()
        generation = decode(
            target, made, rule, TEXTS[number % 2], num_draft_tokens=2, sampling=Sampling(1.0),
            stop=StopRules(max_new_tokens=4), generator=generator,
        )  # fmt: skip
        if number % 2 == 0:
            counts[tuple(generation.token_ids[:3])] += 1
            num_drafted += sum(step.num_drafted for step in generation.steps)
    assert num_drafted > NUM_DRAWS
    return counts


def for_table(make: Make, memory: str) -> MemoryDrafter:
    return make(memory, **{"min_match": 1, "bias": 0} if make is sam else {"ngram": 1} if make is ngram_mod else {})


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize(("memory", "rule"), [("prompt", exact_match), ("run", rejection)])
def test_decoding_is_lossless(make: Make, memory: str, rule: VerificationRule) -> None:
    target = TableModel(4, 5)
    counts = sequences(target, for_table(make, memory), rule, 3)
    assert chi_square_p(counts, joint(target, TEXTS[0], 3)) > 1e-3


def trusting(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
    """Takes the first draft token as it is."""
    return Verification(min(1, proposal.num_drafted), target.draw(min(1, proposal.num_drafted), generator))


@pytest.mark.parametrize("memory", ["prompt", "run"])
def test_decoding_with_trees_is_lossless(memory: str) -> None:
    target = TableModel(4, 5)
    made = suffix(memory, tree=True, factor=2.0, min_probability=0.0)
    counts = sequences(target, made, exact_match, 3)
    assert chi_square_p(counts, joint(target, TEXTS[0], 3)) > 1e-3


@pytest.mark.parametrize("make", ALL)
def test_control_taking_drafts_as_they_are_is_caught(make: Make) -> None:
    target = TableModel(4, 5)
    counts = sequences(target, for_table(make, "run"), trusting, 3)
    assert chi_square_p(counts, joint(target, TEXTS[0], 3)) < 1e-6


SHORTER = {
    "suffix": ["drafter.factor=2"],
    "sam": ["drafter.min_match=1", "drafter.bias=0", "num_draft_tokens=4"],
    "ngram-mod": ["drafter.ngram=1", "drafter.min_tokens=1", "num_draft_tokens=4"],
}


def decoder(method: str, models: ModelPair, sampling: Sampling, memory: str) -> DraftingDecoder:
    pairs = [*SHORTER[method], f"drafter.memory={memory}"]
    (spec,) = with_overrides([], [load_method(method)], pairs)[1]
    assert spec.lossless
    made = build_decoder(spec, models, sampling)
    assert isinstance(made, DraftingDecoder)
    return made


@pytest.fixture(scope="module")
def greedy_answers(embedded_pair: ModelPair, embedded_prompts: dict[str, list[list[int]]]) -> list[list[int]]:
    """What the embedded target writes after the first three English prompts."""
    baseline = build_decoder(load_method("ar"), embedded_pair, Sampling(0.0))
    stop = StopRules(20, embedded_pair.target.eos_token_ids)
    return [baseline.generate(prompt, stop, seed=0).token_ids for prompt in embedded_prompts["en"][:3]]


@pytest.mark.parametrize(
    ("method", "pairs"),
    [
        ("suffix", ["drafter.tree=true", "drafter.memory=run", "drafter.factor=2"]),
        ("sam", ["drafter.corpus=embedded", "drafter.min_match=2", "drafter.bias=0", "num_draft_tokens=4"]),
    ],
)
def test_greedy_output_with_trees_or_a_corpus_is_that_of_the_target(
    method: str, pairs: list[str], embedded_pair: ModelPair, embedded_prompts: dict[str, list[list[int]]],
    greedy_answers: list[list[int]],
) -> None:  # fmt: skip
    (spec,) = with_overrides([], [load_method(method)], pairs)[1]
    made = build_decoder(spec, embedded_pair, Sampling(0.0))
    stop = StopRules(20, embedded_pair.target.eos_token_ids)
    generations = [made.generate(prompt, stop, seed=0) for prompt in embedded_prompts["en"][:3]]
    assert [each.token_ids for each in generations] == greedy_answers
    steps = [step for each in generations for step in each.steps]
    assert sum(step.num_accepted for step in steps) > 0
    assert any(step.num_nodes is not None for step in steps) == (method == "suffix")


@pytest.mark.parametrize("memory", ["none", "prompt", "run"])
@pytest.mark.parametrize("method", SHORTER)
def test_greedy_output_is_that_of_the_target(
    method: str, memory: str, embedded_pair: ModelPair, embedded_prompts: dict[str, list[list[int]]],
    greedy_answers: list[list[int]],
) -> None:  # fmt: skip
    made = decoder(method, embedded_pair, Sampling(0.0), memory)
    stop = StopRules(20, embedded_pair.target.eos_token_ids)
    first, *others = embedded_prompts["en"][:3]
    generations = [made.generate(prompt, stop, seed=0) for prompt in (first, *others, first)]
    assert [each.token_ids for each in generations] == [*greedy_answers, greedy_answers[0]]
    num_accepted = sum(step.num_accepted for each in generations for step in each.steps)
    assert num_accepted > 0 or memory == "none"  # these answers repeat nothing of their own


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0), pytest.param(Sampling(1.0, None, 0.8), marks=pytest.mark.slow)], ids=["T=1", "top-p"]
)
@pytest.mark.parametrize("method", SHORTER)
def test_draws_follow_the_target_on_the_embedded_model(
    method: str, sampling: Sampling, embedded_pair: ModelPair, embedded_prompts: dict[str, list[list[int]]]
) -> None:
    """The first two tokens after a prompt that holds its own end and a likely answer. Every tenth answer is that to
    another prompt, which the memory keeps."""
    stop = StopRules(3, embedded_pair.target.eos_token_ids)
    question, other = (prompt[-12:] for prompt in embedded_prompts["en"][:2])
    likely = build_decoder(load_method("ar"), embedded_pair, Sampling(0.0)).generate(question, StopRules(8), seed=0)
    prompt = question + likely.token_ids + question
    made = decoder(method, embedded_pair, sampling, "run")
    expected = joint_of(embedded_pair, prompt, sampling)
    counts: Counter[tuple[int, ...]] = Counter()
    num_drafted = 0
    with embedded_pair.target.reading_prompts_once():  # as in an audit
        for seed in range(200):
            if seed % 10 == 0:
                made.drafter.begin_cell()
                made.generate(other, stop, seed=seed)
            generation = made.generate(prompt, stop, seed=seed)
            drawn = tuple(generation.token_ids[:2])
            counts[drawn if drawn in expected else ()] += 1
            num_drafted += sum(step.num_drafted for step in generation.steps[:1])
    assert num_drafted > 50
    assert chi_square_p(counts, expected) > 1e-3


@torch.inference_mode()
def joint_of(models: ModelPair, prompt: list[int], sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The distribution of the first two tokens, and the mass of all rare ones under ()."""
    target = models.target

    def after(ids: list[int]) -> dict[int, float]:
        target.reset()
        probs = Distributions(target.score(ids, 1).logits, sampling).probs[0]
        return {int(token): float(probs[token]) for token in probs.nonzero()[:, 0]}

    masses = {
        (first, second): mass * other
        for first, mass in after(prompt).items() if mass > 0.01
        for second, other in (after([*prompt, first]).items() if first not in target.eos_token_ids else ())
        if mass * other > 0.005
    }  # fmt: skip
    return {**masses, (): 1.0 - sum(masses.values())}
