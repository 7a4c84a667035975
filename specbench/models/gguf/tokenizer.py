"""The tokenizer of a GGUF model: transformers' conversion of the one in the file, or one that the user names. Either
must agree with the file's tokens, byte by byte."""

import re
import warnings
from collections.abc import Callable
from typing import Any

from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specbench.core.errors import ConfigError
from specbench.models.checkpoints import one_line, quiet_transformers
from specbench.models.gguf.files import GgufFile
from specbench.models.gguf.header import BYTE, CONTROL, USER_DEFINED, Header
from specbench.models.gguf.options import GgufOptions
from specbench.models.vocabulary import BYTE as SPELT_BYTE
from specbench.models.vocabulary import byte_level

BYTE_LEVEL = "gpt2"  # tokenizer.ggml.model of byte-level BPE
PADDING = re.compile(rb"\[PAD\d+\]")
SAMPLE = (
    "Hello world! It's 3.14159, 2026 and 1,000,000.\n\n  def f(x):\n\treturn x**2  # done\r\n"
    "Größe naïve Ünïcödé Привет мир. こんにちは世界、今日は。你好，世界！안녕하세요 สวัสดีชาวโลก नमस्ते दुनिया "
    "مرحبا بالعالم שלום 👩‍👩‍👧‍👦🇩🇪 e\u0301 ﬁ ½ ≠ \u00a0\u2009end   "
)
# Values of tokenizer.ggml.pre at which digits stand alone, which transformers does not know.
SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell")
# Those at which transformers' conversion was found to split as llama.cpp does.
COMPARED = ("gpt-2", "qwen2", "smollm")
Tokenize = Callable[[str, bool], list[int]]  # by llama.cpp: a text, and whether special tokens are added


def load_gguf_tokenizer(file: GgufFile, options: GgufOptions) -> Any:
    """Returns transformers' conversion of the tokenizer in a file. Raises ConfigError for a kind that it lacks."""
    try:
        # The class for a checkpoint's architecture would read the file by gguf's slow reader, to find that class.
        with quiet_transformers():
            tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(str(file.path.parent), gguf_file=file.path.name)
    except Exception as error:  # of many classes
        kind = file.header.of_tokenizer("model")
        raise ConfigError(
            f"{file.path}: tokenizer.ggml.model = '{kind}': transformers cannot make its tokenizer "
            f"({one_line(error)}): {options.other_tokenizer}"
        ) from error
    if file.header.of_tokenizer("pre") in SINGLE_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return tokenizer


def check_tokenizer(tokenizer: Any, file: GgufFile, options: GgufOptions, tokenize: Tokenize | str | None) -> None:
    """Raises ConfigError if a tokenizer has other bytes for a token than the file, other special tokens or more
    tokens; and if it is made from the file but splits a text otherwise than llama.cpp. `tokenize`: llama.cpp's,
    or why it has none; None without it."""
    header, source = file.header, options.tokenizer
    other = f"the tokenizer of {options.tokenizer_option} '{source}'" if source else "transformers' tokenizer"
    remedy = "give that of the model" if source else options.other_tokenizer
    own, theirs = file_tokens(header), tokenizer_tokens(tokenizer, header)
    decoder = tokenizer.added_tokens_decoder  # made anew at each access: Gemma's has 6,400 entries
    # Classes of transformers add special tokens of their own, which no text but their names makes.
    if (largest := max((i for i in theirs if i not in decoder), default=0)) >= len(own):
        raise ConfigError(f"{file.path}: it has {len(own):,} tokens, and {other} makes token {largest:,}: {remedy}")
    differing = [
        index for index, written in enumerate(own)
        if theirs.get(index) != written and not (index not in theirs and PADDING.fullmatch(written))
    ]  # fmt: skip
    if differing:
        first = differing[0]
        raise ConfigError(
            f"{file.path}: tokenizer.ggml.tokens: {len(differing):,} of {len(own):,} are others in {other}, such as "
            f"{first}: {own[first]!r:.40} and {theirs.get(first)!r:.40}: {remedy}"
        )
    added = {index for index, token in decoder.items() if token.special}
    special = added | set(tokenizer.all_special_ids)
    ends = {index for ids in header.end_tokens.values() for index in ids}
    if lacking := sorted(ends - special):
        raise ConfigError(
            f"{file.path}: token {lacking[0]} ({own[lacking[0]]!r}) ends answers, and {other} writes it as text: "
            f"{remedy}"
        )
    check_splits(tokenizer, file, options, tokenize)


def check_splits(tokenizer: Any, file: GgufFile, options: GgufOptions, tokenize: Tokenize | str | None) -> None:
    """Raises ConfigError, or warns if the user chose the tokenizer, if it splits a text otherwise than llama.cpp, or if
    llama.cpp does not know how to split. Warns if nothing can show it."""
    pre, source = file.header.of_tokenizer("pre") or "default", options.tokenizer
    kind = f"tokenizer.ggml.pre = '{pre}'"
    if isinstance(tokenize, str) and "pre-tokenizer" in tokenize:
        problem = f"{file.path}: {kind}: llama.cpp does not know how to split text ({tokenize})"
        if source is None:
            raise ConfigError(f"{problem}: {options.other_tokenizer}")
        warnings.warn(
            f"{problem}: that of {options.tokenizer_option} '{source}' is taken unchecked", UserWarning, stacklevel=1
        )
        return
    if tokenize is None or isinstance(tokenize, str):
        if source is None and file.header.of_tokenizer("model") == BYTE_LEVEL and pre not in COMPARED:
            without = f", which cannot open it ({tokenize}): " if tokenize else ": install llama-cpp-python, or "
            problem = f"whether transformers splits text as the model expects is not checked without llama.cpp{without}"
            warnings.warn(f"{file.path}: {kind}: {problem}{options.other_tokenizer}", UserWarning, stacklevel=1)
        return
    for text, adds in ((SAMPLE, False), ("Hello", True)):
        found = tokenizer(text, add_special_tokens=adds)["input_ids"]
        expected = tokenize(text, adds)
        if found == expected:
            continue
        place = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), 0)
        shown = tuple(tokenizer.decode(ids[place : place + 3]) for ids in (found, expected))
        what = f"llama.cpp splits a sample of text into {len(expected)} tokens, and the tokenizer into {len(found)}"
        problem = f"{file.path}: {kind}: {what}: at token {place}, {shown[1]!r:.30} is {shown[0]!r:.30} here"
        if source is None and not adds:
            raise ConfigError(f"{problem}: {options.other_tokenizer}")
        warnings.warn(f"{problem}", UserWarning, stacklevel=1)


def file_tokens(header: Header) -> list[bytes]:
    """Returns the bytes of each token of a file; of control tokens, their names."""
    kinds = header.token_types
    is_byte_level = header.of_tokenizer("model") == BYTE_LEVEL
    return [
        _bytes(token.decode("utf-8", "replace"), is_byte_level, kind in (CONTROL, USER_DEFINED), kind == BYTE)
        for token, kind in zip(header.tokens, kinds, strict=True)
    ]


def tokenizer_tokens(tokenizer: Any, header: Header) -> dict[int, bytes]:
    """Returns the bytes of each token of a transformers tokenizer of the file's kind."""
    is_byte_level = header.of_tokenizer("model") == BYTE_LEVEL
    added = tokenizer.added_tokens_decoder
    kinds = header.token_types
    return {
        index: _bytes(
            token, is_byte_level, index in added and kinds[index : index + 1] != [1],
            kinds[index : index + 1] == [BYTE],
        )
        for token, index in tokenizer.get_vocab().items()
    }  # fmt: skip


def _bytes(token: str, is_byte_level: bool, is_added: bool, is_byte: bool) -> bytes:
    """Returns the bytes of a token. `is_added`: whether it is found in a text as a whole, so that its name is its
    text."""
    if is_byte_level:
        return token.encode() if is_added else byte_level(token)
    if is_byte and (spelt := SPELT_BYTE.fullmatch(token)):
        return bytes([int(spelt[1], 16)])
    return token.replace("\u2581", " ").encode()
