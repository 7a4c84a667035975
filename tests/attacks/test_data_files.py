"""Files of rows that expand without end, have no end of line, or hold numbers and cells that take all memory."""

import csv
import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.tasks.local_files import member_rows, parallel_rows, read_rows
from specbench.training.data import texts_of
from tests.attacks.bounds import within_bounds

MIB = 2**20
LONG = f'{{"question": "{"x" * 2000}", "answer": 1}}\n'.encode()


def packed(chunk: bytes, num_mib: int) -> bytes:
    """A gz file of this chunk again and again."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = chunk * (MIB // len(chunk))
    return b"".join([*(packer.compress(piece) for _ in range(num_mib)), packer.flush()])


def parquet(num_rows: int, cell: str) -> bytes:
    """A dictionary holds the cell once, and every row has it."""
    table = pa.table({"q": pa.DictionaryArray.from_arrays(pa.array([0] * num_rows, pa.int32()), [cell])})
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


REAL, SMALL = 64, 1  # MiB, of which the bound on a file is one; the other bounds are as many times as small
REAL_AND_FAST = ("a gz of empty lines", "a line without an end")  # the other attacks of real size are slow
SMALL_ONLY = ("a gz of a gz", "a gz of a table", "a key twice", "a parquet without an end")


@pytest.fixture
def mib(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The bound on a file in MiB, in force with the others; the same code refuses a file of a sixty-fourth."""
    if request.param == SMALL:
        monkeypatch.setattr(bounded, "MAX_BYTES", MIB)
        monkeypatch.setattr(bounded, "MAX_MEMORY", 8 * MIB)
        monkeypatch.setattr(bounded, "MAX_LINES", 31_250)
    before = csv.field_size_limit()
    yield request.param
    csv.field_size_limit(before)


def over(mib: int) -> int:
    """Two fifths more than the bound, or twice as much."""
    return mib + max(1, mib * 26 // 64)


BYTES, LINES, EXPANDS = "exceeds {bytes} characters", "exceeds {lines} lines", "expands to more than 50 times its"
ATTACKS = {  # file's name, what makes it for a bound of so many MiB → what the error tells
    "a gz of zeros": ("x.jsonl.gz", lambda mib: packed(b"0", mib + 1), BYTES),
    "a gz of empty lines": ("x.jsonl.gz", lambda mib: packed(b"\n", max(1, mib // 21)), LINES),
    "a gz of rows": ("x.jsonl.gz", lambda mib: packed(LONG, over(mib)), EXPANDS),
    "a gz of a table": ("x.csv.gz", lambda mib: packed(b"a,b\n" * 99, max(1, mib // 7)), LINES),
    "a gz of a table of one cell": ("x.csv.gz", lambda mib: packed(b'"', mib + 1), BYTES),
    "a gz of texts": ("x.txt.gz", lambda mib: packed(b"word " * 99 + b"\n", over(mib)), EXPANDS),
    "a gz of one value": ("x.json.gz", lambda mib: packed(b"[\n" * 99, max(1, mib // 12)), LINES),
    "a gz of parquet": ("x.parquet.gz", lambda mib: packed(b"0", over(mib)), EXPANDS),
    "a gz of a gz": ("x.jsonl.gz", lambda mib: gzip.compress(packed(b"0", 9)), "not UTF-8 text"),
    "a number beyond the bound": ("x.jsonl", lambda mib: b'{"q": ' + b"9" * (mib * MIB) + b"}", BYTES),
    "a long number": ("x.json", lambda mib: b'[{"q": ' + b"9" * (mib * 300_000) + b"}]", "a number of {digits} digits"),
    "a line without an end": ("x.jsonl", lambda mib: b'{"q": "' + b"x" * (mib * MIB), BYTES),
    "a text without an end": ("x.txt", lambda mib: b"x" * (mib * MIB + 1), BYTES),
    "a cell without an end": ("x.csv", lambda mib: b'q\n"' + (b"x" * 99 + b"\n") * (mib * 12_500), "field larger than"),
    "a tab-separated line without an end": ("x.tsv", lambda mib: b"q\n" + b"x" * (mib * MIB + 1), BYTES),
    "columns without an end": ("x.csv", lambda mib: b"," * (mib * MIB + 1), BYTES),
    "one long value": (
        "x.json", lambda mib: b"[\n" + (b'{"q":\n' + b"1" * 99) * (mib * 11_000), "{bytes} characters for one value",
    ),
    "deep rows": ("x.jsonl", lambda mib: b"[" * (mib * 100_000), "exceeds 64 levels"),
    "a deep value": ("x.json", lambda mib: b'{"data":' * (mib * 20_000), "exceeds 64 levels"),
    "a key twice": ("x.jsonl", lambda mib: b'{"q": 1, "q": 2}', "duplicate key 'q'"),
    "a row of lists": (
        "x.jsonl", lambda mib: b"[" + b"[]," * (mib * 234_375) + b"1]", "exceed {memory} bytes",
    ),
    "a parquet that expands": ("x.parquet", lambda mib: parquet_of_long_cells(over(mib)), EXPANDS),
    "a parquet without an end": ("x.parquet", lambda mib: parquet(9, "x")[:-20], "not a parquet file"),
}  # fmt: skip


def parquet_of_long_cells(num_mib: int) -> bytes:
    table = pa.table({"q": ["x" * MIB] * num_mib})
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", use_dictionary=False)
    return file.getvalue()


def said(told: str, mib: int) -> str:
    return told.format(
        bytes=f"{mib * MIB:,}", lines=f"{mib * 31_250:,}", memory=f"{mib * 8 * MIB:,}", digits=f"{mib * 300_000:,}"
    )


def sizes(name: str) -> list[object]:
    slow = () if name in REAL_AND_FAST else pytest.mark.slow
    return [pytest.param(name, SMALL), *([] if name in SMALL_ONLY else [pytest.param(name, REAL, marks=slow)])]


@pytest.mark.parametrize(("name", "mib"), [size for name in ATTACKS for size in sizes(name)], indirect=["mib"])
def test_a_file_is_refused(tmp_path, name, mib):
    file, made, told = ATTACKS[name]
    (tmp_path / file).write_bytes(made(mib))
    with within_bounds(), pytest.raises(ConfigError) as raised:
        for _ in read_rows(tmp_path / file):
            pass
    assert str(raised.value).startswith(str(tmp_path / file)) and said(told, mib) in str(raised.value)


def test_a_dictionary_of_a_parquet_file_is_not_expanded_at_once(tmp_path):
    (tmp_path / "x.parquet").write_bytes(parquet(10_000, "x" * 8 * MIB))
    with within_bounds():
        rows = read_rows(tmp_path / "x.parquet")
        assert len(next(rows)["q"]) == len(next(rows)["q"]) == 8 * MIB


@pytest.mark.parametrize("mib", [SMALL], indirect=True)
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda mib: b"\n" * (max(1, mib // 21) * MIB), LINES),
        (lambda mib: LONG * (over(mib) * MIB // len(LONG)), EXPANDS),
    ],
    ids=("empty lines", "rows"),
)
def test_a_member_of_a_zip_is_refused(tmp_path, made, told, mib):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.jsonl", made(mib))
    with within_bounds(), pytest.raises(ConfigError, match=said(told, mib)):
        for _ in member_rows(tmp_path / "x.zip", "x.jsonl"):
            pass


def test_an_aligned_file_is_refused(tmp_path):
    (tmp_path / "x.en").write_bytes(b"x\n" * 40_000_000)
    with within_bounds(), pytest.raises(ConfigError, match="exceeds 67,108,864 bytes"):
        next(parallel_rows({"source": tmp_path / "x.en"}))


@pytest.mark.parametrize("mib", [SMALL], indirect=True)
@pytest.mark.parametrize(
    ("name", "made", "told"),
    [
        ("x.txt.gz", lambda mib: packed(b"0", mib + 1), BYTES),
        ("x.txt.gz", lambda mib: packed(b"word " * 99 + b"\n", over(mib)), EXPANDS),
        ("x.jsonl", lambda mib: b"[" * (mib * 100_000), "exceeds 64 levels"),
        ("x.jsonl", lambda mib: b'{"text": ' + b"9" * 1_000_000, "a number of 1,000,000"),
    ],
    ids=("zeros", "words", "brackets", "a number"),
)
def test_a_corpus_is_refused(tmp_path, name, made, told, mib):
    (tmp_path / name).write_bytes(made(mib))
    with within_bounds(), pytest.raises(ConfigError, match=said(told, mib)):
        for _ in texts_of([str(tmp_path / name)], "text"):
            pass
