"""Keys of GGUF headers that have another type, length or range than a model needs: one line that names the key."""

import re
from pathlib import Path
from typing import Any

import gguf
import pytest

from specbench.core.errors import ConfigError
from specbench.models.gguf.files import find_gguf
from specbench.models.gguf.loading import check_tokenizer_kind
from specbench.models.gguf.options import GgufOptions
from tests.support import gguf_files

Kind = gguf.GGUFValueType
Values = dict[str, Any]


@pytest.fixture(scope="module")
def file() -> Path:
    return gguf_files.embedded("drafter")


def ids(*numbers: int) -> tuple[list[int], Kind, Kind]:
    return list(numbers), Kind.ARRAY, Kind.INT32


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"tokenizer.ggml.token_type": ids(*[1] * 2045)},
         "tokenizer.ggml.token_type has 2,045 values, and tokenizer.ggml.tokens has 2,048 tokens: fetch the file"),
        ({"tokenizer.ggml.token_type": "abc"}, "tokenizer.ggml.token_type = 'abc': a list of whole numbers is needed"),
        ({"tokenizer.ggml.tokens": ids(1, 2, 3)}, "tokenizer.ggml.tokens = array([1, 2, 3], dtype=int32): a list of"),
        ({"tokenizer.ggml.tokens": "abc"}, "tokenizer.ggml.tokens = 'abc': a list of strings is needed"),
        ({"tokenizer.ggml.eos_token_id": (99999, Kind.UINT32)},
         "tokenizer.ggml.eos_token_id = 99999: the last token is 2,047"),
        ({"tokenizer.ggml.eot_token_id": "x"}, "tokenizer.ggml.eot_token_id = 'x': the number of a token is needed"),
        ({"tokenizer.ggml.bos_token_id": 1.5}, "tokenizer.ggml.bos_token_id = 1.5: the number of a token is needed"),
        ({"llama.context_length": "many"}, "llama.context_length = 'many': a number of at least 0 is needed"),
        ({"llama.block_count": None}, "llama.block_count is missing: a number of at least 1 is needed"),
        ({"llama.rope.scaling.type": "liner"}, "llama.rope.scaling.type = 'liner': did you mean 'linear'?"),
        ({"llama.rope.scaling.factor": "4"}, "llama.rope.scaling.factor = '4': a number of at least 0 is needed"),
        ({"general.alignment": (7, Kind.UINT32)}, "general.alignment = 7, which is not a power of two"),
        ({"general.alignment": "a"}, "general.alignment = 'a', which is not a power of two"),
    ],
)  # fmt: skip
def test_keys_that_no_model_has(file: Path, tmp_path: Path, values: Values, problem: str) -> None:
    path = gguf_files.rewritten(file, tmp_path / "m.gguf", values)
    with pytest.raises(ConfigError, match=re.escape(f"{path}: {problem}")) as caught:
        find_gguf(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [2047, 2049])
def test_as_many_tokens_as_rows(file: Path, tmp_path: Path, number: int) -> None:
    """llama.cpp opens a file with rows for padding as little as one with too few."""
    tokens = [f"t{index}" for index in range(number)]
    values = {"tokenizer.ggml.tokens": (tokens, Kind.ARRAY, Kind.STRING), "tokenizer.ggml.token_type": None}
    path = gguf_files.rewritten(file, tmp_path / "m.gguf", values)
    problem = rf"tensor 'token_embd.weight' has 2,048 rows, and tokenizer.ggml.tokens has {number:,} tokens"
    with pytest.raises(ConfigError, match=problem):
        find_gguf(str(path))


def test_tokens_that_do_not_exist_concern_the_files_tokenizer_only(file: Path, tmp_path: Path) -> None:
    """llama.cpp takes a default for them. transformers fails without naming the key."""
    path = gguf_files.rewritten(file, tmp_path / "m.gguf", {"tokenizer.ggml.padding_token_id": (99999, Kind.UINT32)})
    found = find_gguf(str(path))
    with pytest.raises(ConfigError, match=r"padding_token_id = 99999: the last token is 2,047: give .* --tokenizer"):
        check_tokenizer_kind(found, GgufOptions(given_by="options"))
    check_tokenizer_kind(found, GgufOptions("org/model"))
