"""Vocabulary: what tokens write, texts from tokens, tokens from texts; on tokenizers of every kind."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from specbench.models.vocabulary import Vocabulary
from tests.support import tokenizers_made_here as made

ALL: dict[str, Callable[[], Any]] = made.ALL | {"slow_bytes": ByT5Tokenizer}
EXACT: dict[str, Callable[[], Any]] = made.EXACT | {"slow_bytes": ByT5Tokenizer}
INEXACT = made.INEXACT
SPECIALS = ("<|end|>", "<|begin|>", "<|start|>", "</s>", "<s>", "<unk>", "[SEP]", "[CLS]", "<pad>", "[PAD]")
# ▁ itself and characters that are not text are beyond what SentencePiece can keep apart.
anything = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="▁\U0010ffff"), max_size=30)
snippets = st.sampled_from(
    [*SPECIALS, " ", "  ", "\n\n", "    ", "é", "🧑‍🌾", "กำ", "egg", " day", "<think>", "12", "ジャ", "e\u0301"]
)
texts = st.lists(st.one_of(snippets, anything), max_size=6).map("".join)


@cache
def vocabulary(name: str) -> Vocabulary:
    return Vocabulary(ALL[name]())


@cache
def tokenizers(name: str) -> Any:
    return ALL[name]()


@cache
def special_ids(name: str) -> frozenset[int]:
    tokenizer = ALL[name]()
    return frozenset(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def each(names: Iterable[str]) -> Iterator[tuple[str, Vocabulary]]:
    """The vocabularies that read a drawn text, which takes longer to draw than to read; a failure tells the name."""
    for name in names:
        note(name)
        yield name, vocabulary(name)


@settings(max_examples=35, deadline=None)
@given(text=texts)
def test_a_text_comes_back_from_its_tokens_and_from_their_bytes(text: str) -> None:
    for _, known in each(EXACT):
        ids = known.encode(text)
        assert known.text(ids) == (text, 0)
        assert known.to_bytes(ids).removeprefix(b" " if known.dummy_prefix and text else b"") == text.encode()


@settings(max_examples=20, deadline=None)
@given(text=texts)
def test_every_prefix_of_tokens_has_the_whole_characters_that_it_writes(text: str) -> None:
    for _, known in each(EXACT):
        ids = known.encode(text)
        for end in range(len(ids) + 1):
            start, num_tail_tokens = known.text(ids[:end])
            kept = ids[: end - num_tail_tokens]
            assert text.startswith(start)
            assert known.text(kept) == (start, 0)
            if num_tail_tokens:  # at the first of them a character begins that the last of them does not end
                with pytest.raises(UnicodeDecodeError, match="unexpected end of data"):
                    known.to_bytes(ids[:end]).decode()


@settings(max_examples=35, deadline=None)
@given(before=texts, text=texts)
def test_tokens_behind_a_text_are_those_of_the_whole_or_nothing(before: str, text: str) -> None:
    for _, known in each(ALL):
        behind = known.encode_after(before, text)
        alone, whole = known.encode(before), known.encode(before + text)
        assert behind == known.encode_after(before, text)
        if behind is None:
            assert whole[: len(alone)] != alone
        else:
            assert alone + behind == whole


@settings(max_examples=35, deadline=None)
@given(text=texts)
def test_no_text_spells_a_special_token(text: str) -> None:
    for name, known in each(ALL):
        assert not special_ids(name) & set(known.encode(text))


@pytest.mark.parametrize("name", ALL)
def test_the_tokenizer_itself_is_left_as_it_is(name: str) -> None:
    tokenizer = ALL[name]()
    prompts = [*made.TEXTS, *(f"a {special} b" for special in SPECIALS)]
    before = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    known = Vocabulary(tokenizer)
    for prompt in prompts:
        known.encode_after("a", prompt)
        known.text(known.encode(prompt))
    assert known.bos_ids == before[0][: len(known.bos_ids)]
    assert [tokenizer(prompt)["input_ids"] for prompt in prompts] == before


@settings(max_examples=20, deadline=None)
@given(numbers=st.lists(st.integers(0, 2**16), min_size=1, max_size=8))
def test_decoding_says_the_same(numbers: list[int]) -> None:
    for name, known in each(made.ALL):
        plain = [index for index in range(known.size) if known.plain[index]]
        ids = known.encode("a") + [plain[number % len(plain)] for number in numbers]
        text, num_tail_tokens = known.text(ids)
        if not num_tail_tokens and "\ufffd" not in text:
            said = tokenizers(name).decode(ids, skip_special_tokens=True)
            assert said == (text.removesuffix(" ") if name == "end_of_word" else text)


def written(name: str, token: str) -> bytes | None:
    tokenizer = ALL[name]()
    return vocabulary(name).token_bytes[tokenizer.convert_tokens_to_ids(token)]


def test_tokens_write_their_bytes_inside_a_running_text() -> None:
    assert written("byte_bpe", "Ġday") == b" day"
    assert written("byte_bpe", "Ã") == b"\xc3"
    assert written("sentencepiece", "▁day") == b" day"
    assert written("sentencepiece", "<0xE0>") == b"\xe0"
    assert written("unigram", "▁a") == b" a"
    assert written("wordpiece", "eggs") == b" eggs"
    assert written("wordpiece", "##a") == b"a"
    assert written("end_of_word", "day</w>") == b"day "
    assert written("byte_bpe_with_added", "<think>") == b"<think>"
    assert written("byte_bpe_with_added", "garçon naïf") == "garçon naïf".encode()
    assert written("byte_bpe_with_added", "<|start|>") is None
    assert written("gemma_like", "▁▁▁▁") == b"    "


@pytest.mark.parametrize("name", ALL)
def test_only_plain_tokens_cross(name: str) -> None:
    tokenizer, known = ALL[name](), vocabulary(name)
    assert known.size == len(known.token_bytes) == len(known.plain) == max(tokenizer.get_vocab().values()) + 1
    for index in tokenizer.all_special_ids:
        assert known.token_bytes[index] is None and not known.plain[index]
    for index, token in tokenizer.added_tokens_decoder.items():
        assert not known.plain[index] or str(token).replace("▁", " ").isspace()
    assert all(known.plain[index] and known.token_bytes[index] == key for key, index in known.id_of.items())
    assert set(known.id_of) == {known.token_bytes[index] for index in range(known.size) if known.plain[index]}


def test_runs_of_blanks_in_the_vocabulary_are_plain_although_listed_as_added() -> None:
    known = vocabulary("gemma_like")
    assert known.encode("a\n\nb")[1] == known.id_of[b"\n\n"]
    assert b"<unused0>" not in known.id_of


@pytest.mark.parametrize("name", ("sentencepiece", "sentencepiece_without_prefix", "gemma_like"))
def test_of_several_ids_with_the_same_bytes_the_tokenizers_own_is_taken(name: str) -> None:
    known = vocabulary(name)
    twice = {b for i, b in enumerate(known.token_bytes) if b and known.plain[i] and known.id_of[b] != i}
    assert twice
    for index in {index for text in made.TEXTS for index in known.encode("a" + text)[1:]}:
        if known.plain[index]:
            assert known.id_of[known.token_bytes[index] or b""] == index


def test_what_stands_before_every_text() -> None:
    assert vocabulary("byte_bpe_with_bos").bos_ids == [0]
    assert vocabulary("sentencepiece").bos_ids == [1]
    assert vocabulary("wordpiece").bos_ids == [1]  # and not what it puts behind the text
    assert vocabulary("byte_bpe").bos_ids == vocabulary("slow_bytes").bos_ids == []
    assert vocabulary("sentencepiece").text([1, *vocabulary("sentencepiece").encode("a day")]) == ("a day", 0)


def test_an_incomplete_character_stays_out_of_the_text_with_all_of_its_tokens() -> None:
    known = vocabulary("bytes_only")
    ids = known.encode("a🦆")
    assert [known.text(ids[:end]) for end in range(1, 6)] == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("a🦆", 0)]
    end = known.size - 1
    assert known.text([*ids[:3], end]) == ("a", 3)  # a special token behind it writes nothing
    assert known.text([ids[1], ids[0]]) == ("\ufffda", 0)  # one that can no longer become whole is not waited for


def test_a_token_that_ends_a_character_and_begins_another_goes_with_the_one_before_it() -> None:
    known = Vocabulary(made.bytes_only())
    ids = [known.id_of[bytes([byte])] for byte in b"a\xf0\x9f\xa6"]
    known.token_bytes.append(b"\x86\xf0")
    assert known.text([*ids, known.size]) == ("a", 4)


def test_a_token_that_straddles_is_refused() -> None:
    known = vocabulary("byte_bpe")
    assert known.encode_after("She eats e", "ggs") is None
    assert known.encode_after("She eats", " eggs") == known.encode(" eggs")
    assert known.encode_after("", " eggs") == known.encode(" eggs")
    assert known.encode_after("She eats", "") == []


def test_a_special_piece_of_a_unigram_model_is_not_read() -> None:
    tokenizer: PreTrainedTokenizerFast = made.unigram()
    end = tokenizer.convert_tokens_to_ids(made.END)
    told = tokenizer.backend_tokenizer
    told.encode_special_tokens = True
    assert end in told.encode("a </s> b", add_special_tokens=False).ids  # why its vocabulary is changed in the copy
    assert end not in Vocabulary(tokenizer).encode("a </s> b")
