"""Readers of programming problems in their published layouts, with tests that the code scorer can run."""

import base64
import io
import json
import pickle
import re
import zlib
from typing import Any

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.tasks.local_files import Row
from specbench.tasks.readers import row_reader
from specbench.tasks.scoring.code import CALL_METHOD, RUN_SCRIPT


@row_reader("math500")
def math500(row: Row) -> Row:
    """Rows of HuggingFaceH4/MATH-500, with the column `id`."""
    return {"id": row["unique_id"], **row} if "unique_id" in row else row


@row_reader("mbpp")
def mbpp(row: Row) -> Row | list[Row]:
    """Rows of google-research-datasets/mbpp, full or sanitized, with `id`, all tests as one text, and `entry_point`:
    the last function of the right program that the tests name. Task 1 is skipped: the paper's few-shot examples are
    tasks 2 to 4."""
    if str(row.get("task_id")) == "1":
        return []
    tests = "\n".join(row["test_list"])
    names = [name for name in re.findall(r"^def (\w+)", row["code"], re.MULTILINE) if re.search(rf"\b{name}\b", tests)]
    if not names:
        raise ConfigError("column 'test_list' names no function of column 'code': correct the row")
    setup = [*(row.get("test_imports") or ()), row.get("test_setup_code") or ""]
    text = row["text"] if "text" in row else row["prompt"]
    added = {"text": text, "test": "\n".join([*setup, tests]), "entry_point": names[-1]}
    return {"id": f"{row['task_id']}", **row, **added}


COMPARISON = """
def numbers(line):
    from decimal import Decimal, InvalidOperation
    try:
        return [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return None

def same(printed, expected):
    lines, wanted = ([line.strip() for line in text.strip().split("\\n")] for text in (printed, expected))
    return len(lines) == len(wanted) and all(
        a == b or (numbers(a) is not None and numbers(a) == numbers(b)) for a, b in zip(lines, wanted)
    )

def listed(value):
    return [listed(each) for each in value] if isinstance(value, (list, tuple)) else value
"""


@row_reader("livecodebench")
def livecodebench(row: Row) -> Row:
    """Rows of livecodebench/code_generation_lite, with `id`, and all public and private tests as Python source."""
    cases = [*_cases(row["public_test_cases"]), *_cases(row["private_test_cases"])]
    if not cases:
        raise ConfigError("columns 'public_test_cases' and 'private_test_cases' hold no tests: correct the row")
    if cases[0]["testtype"] == "functional":
        entry_point, method = CALL_METHOD, json.loads(row["metadata"])["func_name"]
        lines = []
        for case in cases:
            arguments = [json.loads(line) for line in case["input"].split("\n") if line.strip()]
            call = f"{CALL_METHOD}({method!r}, {arguments!r})"
            lines.append(f"assert listed({call}) == {json.loads(case['output'])!r}")
    else:
        entry_point = RUN_SCRIPT
        lines = [f"assert same({RUN_SCRIPT}({case['input']!r}), {case['output']!r})" for case in cases]
    kept = {key: value for key, value in row.items() if not key.endswith("_test_cases")}
    return {"id": row["question_id"], **kept, "test": "\n".join([COMPARISON, *lines]), "entry_point": entry_point}


class _TextUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise ConfigError(f"column 'private_test_cases' names {module_name}.{global_name}: only texts are read")


def _cases(text: str) -> list[dict[str, str]]:
    """Returns the tests in a text: JSON, or, for private tests, JSON that was pickled, packed by zlib and written in
    base64."""
    if not text.lstrip().startswith("["):
        try:
            unpacking = zlib.decompressobj()
            content = unpacking.decompress(base64.b64decode(text, validate=True), bounded.MAX_BYTES)
            if unpacking.unconsumed_tail:
                raise ConfigError(f"column 'private_test_cases': has more than {bounded.MAX_BYTES:,} bytes unpacked")
            text = _TextUnpickler(io.BytesIO(content)).load()
        except (ValueError, zlib.error, pickle.UnpicklingError, EOFError) as error:
            raise ConfigError(f"column 'private_test_cases' cannot be unpacked ({error}): correct the row") from error
    found: list[dict[str, str]] = json.loads(text)
    return found
