"""The bytes of each token of a vocabulary, and plain-text encoding, for bridges between vocabularies."""

import codecs
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

Decode = Callable[[list[str]], str]
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # SentencePiece's spelling of a single-byte token
MANY = 5000  # maximum number of tokens that a search tries


BYTE_ALPHABET = {character: byte for byte, character in bytes_to_unicode().items()}  # of byte-level tokenizers


def byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_ALPHABET[character] for character in token])
    except KeyError:  # the decoder writes such tokens unchanged
        return token.encode()


def decode_between_anchors(
    tokens: dict[int, Any], decode: Decode, bytes_are_spelt: bool
) -> Iterable[tuple[int, bytes | None]]:
    """Yields each id with the bytes that its token adds when it is decoded between two anchor tokens; None if decoding
    does not show them."""
    # An anchor is a token that decodes to the same text after any token. One that also decodes to this text at the
    # beginning is preferred, because it does not mark a word boundary.
    anchor, head, tail = "", "", ""
    for token in islice((token for token in tokens.values() if isinstance(token, str)), MANY):
        first, pair, three = (decode([token] * count) for count in (1, 2, 3))
        later = pair.removeprefix(first)
        is_anchor = first.isalpha() and pair == first + later and three == pair + later
        if is_anchor and (not anchor or first == later):
            anchor, head, tail = token, first, later
            if head == tail:
                break
    for index, token in tokens.items():
        if isinstance(token, bytes):
            yield index, token
        elif bytes_are_spelt and (byte := BYTE.fullmatch(token)):
            yield index, bytes([int(byte[1], 16)])
        else:
            text = decode([anchor, token, anchor])
            inside = len(text) >= len(head) + len(tail) and text.startswith(head) and text.endswith(tail)
            written = text[len(head) : len(text) - len(tail)]
            yield index, written.encode() if inside and ("\ufffd" not in written or "\ufffd" in token) else None


HIDDEN = "\U0010ffff"  # a noncharacter: prefixed to special tokens so that no text matches them
incremental_decoder = codecs.getincrementaldecoder("utf-8")


def begin_ids(tokenizer: Any) -> list[int]:
    """Returns the ids that a tokenizer puts before a text; may be empty, also if it has a BOS token."""
    alone = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    starts = range(len(whole) - len(alone) + 1)
    return list(whole[: next((i for i in starts if whole[i : i + len(alone)] == alone), 0)])


class Vocabulary:
    """A byte table and a plain-text encoder of a tokenizer, which is not modified.

    - `size`: the highest id + 1. `num_tokens`: the number of ids with a token.
    - `token_bytes`: by id, the bytes of the token inside a text ("Ġa", "▁a" and WordPiece "a" are all b" a"); None for
      special tokens, ids without a token, and tokens whose bytes decoding does not show.
    - `plain`: by id, whether the token has bytes and is neither special nor added nor the unknown token. Only plain
      tokens cross a vocabulary bridge. Whitespace tokens of the model's own vocabulary are plain even if they are also
      listed as added.
    - `id_of`: the ids of plain tokens by their bytes; if several ids have the same bytes, the id that the tokenizer
      produces.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        tokens: dict[int, Any] = {index: token for token, index in tokenizer.get_vocab().items()}
        added: dict[int, Any] = tokenizer.added_tokens_decoder
        special = set(tokenizer.all_special_ids) | {index for index, token in added.items() if token.special}
        self._backend = plain_text_backend(tokenizer, {tokens[index] for index in special if index in tokens})
        self._last_before: tuple[str, list[int]] = ("", [])
        self.size, self.num_tokens = max(tokens) + 1, len(tokens)
        self.token_bytes: list[bytes | None] = [None] * self.size
        ordinary = {index: token for index, token in tokens.items() if index not in special}
        for index, written in self._bytes_by_id(ordinary, added):
            self.token_bytes[index] = written
        own = set(self._backend.get_vocab(with_added_tokens=False).values()) if self._backend else set()
        unknown = getattr(self._backend and self._backend.model, "unk_token", None)
        self.plain = [
            bool(written) and tokens[index] != unknown
            and (index not in added or (index in own and written is not None and written.isspace()))
            for index, written in enumerate(self.token_bytes)
        ]  # fmt: skip

    def _bytes_by_id(self, tokens: dict[int, Any], added: dict[int, Any]) -> Iterable[tuple[int, bytes | None]]:
        decoder = None if self._backend is None else self._backend.decoder
        state = {} if decoder is None else json.loads(decoder.__getstate__())
        parts = {part["type"] for part in (state, *state.get("decoders", [])) if part}
        if "ByteLevel" in parts:
            return ((i, token.encode() if i in added else byte_level(token)) for i, token in tokens.items())
        decode: Decode = self._tokenizer.convert_tokens_to_string
        if self._backend is not None:
            decode = " ".join if decoder is None else decoder.decode
        elif {chr(byte) for byte in range(256)} <= set(tokens.values()) and decode(list("Ã©")) == "é":
            # The tokens are the characters of single bytes, as ByT5's are.
            ids = {token: index for index, token in tokens.items()}
            owners = {ids[chr(byte)]: bytes([byte]) for byte in range(256)}
            return ((i, owners.get(i, token.encode())) for i, token in tokens.items())
        return decode_between_anchors(tokens, decode, bytes_are_spelt="ByteFallback" in parts or self._backend is None)

    @cached_property
    def id_of(self) -> dict[bytes, int]:
        owners: dict[bytes, list[int]] = defaultdict(list)
        for index, written in enumerate(self.token_bytes):
            if written is not None and self.plain[index]:
                owners[written].append(index)

        def preferred(written: bytes, ids: list[int]) -> int:
            """Returns the id that the tokenizer produces; if it produces none, the first that is not a single-byte
            token, or the first."""
            try:
                text = written.decode()
            except UnicodeDecodeError:
                return ids[0]
            produced = [*(self.encode_after("a", text) or []), *self.encode(text)]
            whole = [index for index in ids if not BYTE.fullmatch(self._tokenizer.convert_ids_to_tokens(index))]
            return next((index for index in produced if index in ids), (whole or ids)[0])

        return {written: ids[0] if len(ids) == 1 else preferred(written, ids) for written, ids in owners.items()}

    @cached_property
    def bos_ids(self) -> list[int]:
        """The ids that the tokenizer puts before a text; may be empty."""
        return begin_ids(self._tokenizer)

    @cached_property
    def dummy_prefix(self) -> bool:
        """True if the tokenizer prepends a space to texts without one."""
        for written in islice(filter(None, self.token_bytes), MANY):
            word = written.decode(errors="ignore").strip()
            if word.isalnum() and (encoded := self.to_bytes(self.encode(word))).strip() == word.encode():
                return encoded.startswith(b" ")
        return False

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text without a prefix such as BOS. The names of special tokens in it are plain
        text."""
        if self._backend is not None:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            return ids
        encoded = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return list(encoded)

    def encode_after(self, before: str, text: str) -> list[int] | None:
        """Returns the tokens that `text` adds after `before`; None if a token spans the boundary.

        Encodes both texts together; the result must begin with the tokens of `before` (SLEM's look-behind). The tokens
        of the last `before` are cached.
        """
        if self._last_before[0] != before:
            self._last_before = (before, self.encode(before))
        known = self._last_before[1]
        whole = self.encode(before + text)
        return whole[len(known) :] if whole[: len(known)] == known else None

    def to_bytes(self, ids: Sequence[int]) -> bytes:
        """Returns the joined bytes of tokens inside a text; special tokens have no bytes."""
        return b"".join([self.token_bytes[index] or b"" for index in ids])

    def text(self, ids: Sequence[int]) -> tuple[str, int]:
        """Returns the text of tokens, and the number of last tokens that hold an incomplete character.

        The text excludes these tokens; other invalid UTF-8 becomes U+FFFD. A space that the tokenizer prepends to every
        text (dummy prefix) is removed.
        """
        pieces = [self.token_bytes[index] or b"" for index in ids]
        num_kept = len(pieces)
        text = ""
        while num_kept:
            decoder = incremental_decoder("replace")
            text = decoder.decode(b"".join(pieces[:num_kept]))
            num_pending = len(decoder.getstate()[0])
            if not num_pending:
                break
            text = ""
            while num_pending > 0:
                num_kept -= 1
                num_pending -= len(pieces[num_kept])
        return text.removeprefix(" ") if self.dummy_prefix else text, len(pieces) - num_kept


MIN_COMMON = 0.99  # smallest share of the ids of each vocabulary that both have, for models that share their ids


def same_ids(
    ours: Mapping[str, int], theirs: Mapping[str, int], own: Vocabulary, other: Vocabulary
) -> set[int]:  # fmt: skip
    """Returns the ids that mean the same token in two vocabularies: the same string, which decodes to the same bytes.
    Special tokens have no bytes."""
    same = set()
    for _, index in ours.items() & theirs.items():
        first, second = own.token_bytes[index], other.token_bytes[index]
        if first == second or None in (first, second):
            same.add(index)
    return same


def can_share_ids(num_common: int, *sizes: int) -> bool:
    """Returns whether so many ids of two vocabularies are common that a drafter may draft these alone."""
    return num_common >= MIN_COMMON * max(sizes)


def continues_character(written: Sequence[int]) -> bool:
    """Returns whether bytes begin within a character: the first one is a continuation byte of UTF-8."""
    return len(written) > 0 and written[0] & 0xC0 == 0x80


def plain_text_backend(tokenizer: Any, special_tokens: set[str]) -> Tokenizer | None:
    """Returns a copy of a fast tokenizer in which no text matches a special token; None if it cannot be copied.

    An option to ignore special tokens is not enough: a Unigram model also holds them as pieces.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return None
    try:
        state = json.loads(backend.to_str())
    except Exception:  # parts written in Python cannot be serialized
        return None
    hidden = {token: HIDDEN + token for token in special_tokens if len(token) > 1}
    model = state["model"]
    for token in state["added_tokens"]:
        token["content"] = hidden.get(token["content"], token["content"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {hidden.get(token, token): index for token, index in model["vocab"].items()}
    else:
        model["vocab"] = [[hidden.get(token, token), score] for token, score in model["vocab"]]
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if "".join(pair).replace(" ", "") not in hidden]
        model["dropout"] = None
    if model.get("unk_token") is not None:
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    state.update(truncation=None, padding=None, post_processor=None)
    return Tokenizer.from_str(json.dumps(state))
