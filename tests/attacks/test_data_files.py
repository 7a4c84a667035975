"""Files of rows that expand without end, have no end of line, or hold numbers and cells that take all memory."""

import gzip
import io
import zipfile
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbench.core.errors import ConfigError
from specbench.tasks.local_files import member_rows, parallel_rows, read_rows
from specbench.training.data import CorpusFiles
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


ATTACKS = {  # file's name, what makes it → what the error tells
    "a gz of zeros": ("x.jsonl.gz", lambda: packed(b"0", 65), "more than 67,108,864 characters"),
    "a gz of empty lines": ("x.jsonl.gz", lambda: packed(b"\n", 3), "more than 2,000,000 lines"),
    "a gz of rows": ("x.jsonl.gz", lambda: packed(LONG, 90), "expands to more than 50 times its size"),
    "a gz of a table": ("x.csv.gz", lambda: packed(b"a,b\n" * 99, 9), "more than 2,000,000 lines"),
    "a gz of a table of one cell": ("x.csv.gz", lambda: packed(b'"', 65), "more than 67,108,864 characters"),
    "a gz of texts": ("x.txt.gz", lambda: packed(b"word " * 99 + b"\n", 90), "expands to more than 50 times"),
    "a gz of one value": ("x.json.gz", lambda: packed(b"[\n" * 99, 5), "more than 2,000,000 lines"),
    "a gz of parquet": ("x.parquet.gz", lambda: packed(b"0", 90), "expands to more than 50 times its size"),
    "a gz of a gz": ("x.jsonl.gz", lambda: gzip.compress(packed(b"0", 9)), "not UTF-8 text"),
    "a number of 68 MB": ("x.jsonl", lambda: b'{"q": ' + b"9" * 68_000_000 + b"}", "more than 67,108,864 characters"),
    "a number of 20 MB": ("x.json", lambda: b'[{"q": ' + b"9" * 20_000_000 + b"}]", "a number of 20,000,000"),
    "a line without an end": ("x.jsonl", lambda: b'{"q": "' + b"x" * 68_000_000, "more than 67,108,864 characters"),
    "a text without an end": ("x.txt", lambda: b"x" * 68_000_000, "more than 67,108,864 characters"),
    "a cell without an end": ("x.csv", lambda: b'q\n"' + (b"x" * 99 + b"\n") * 800_000, "field larger than"),
    "a tab-separated line without an end": ("x.tsv", lambda: b"q\n" + b"x" * 68_000_000, "more than 67,108,864"),
    "columns without an end": ("x.csv", lambda: b"," * 68_000_000, "more than 67,108,864 characters"),
    "one value of 80 MB": ("x.json", lambda: b"[\n" + (b'{"q":\n' + b"1" * 99) * 700_000, "characters for one value"),
    "deep rows": ("x.jsonl", lambda: b"[" * 1_000_000, "nested deeper than 64 levels"),
    "a deep value": ("x.json", lambda: b'{"data":' * 1_000_000, "nested deeper than 64 levels"),
    "a key twice": ("x.jsonl", lambda: b'{"q": 1, "q": 2}', "duplicate key 'q'"),
    "a row of lists": ("x.jsonl", lambda: b"[" + b"[]," * 15_000_000 + b"1]", "take more than 536,870,912 bytes"),
    "a parquet that expands": ("x.parquet", lambda: parquet_of_long_cells(), "expands to more than 50 times its size"),
    "a parquet without an end": ("x.parquet", lambda: parquet(9, "x")[:-20], "not a parquet file"),
}  # fmt: skip


def parquet_of_long_cells() -> bytes:
    table = pa.table({"q": ["x" * MIB] * 80})
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", use_dictionary=False)
    return file.getvalue()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_file_is_refused(tmp_path, name):
    file, made, told = ATTACKS[name]
    (tmp_path / file).write_bytes(made())
    with within_bounds(), pytest.raises(ConfigError) as raised:
        for _ in read_rows(tmp_path / file):
            pass
    assert str(raised.value).startswith(str(tmp_path / file)) and told in str(raised.value)


def test_a_dictionary_of_a_parquet_file_is_not_expanded_at_once(tmp_path):
    (tmp_path / "x.parquet").write_bytes(parquet(10_000, "x" * 8 * MIB))
    with within_bounds():
        rows = read_rows(tmp_path / "x.parquet")
        assert len(next(rows)["q"]) == len(next(rows)["q"]) == 8 * MIB


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: b"\n" * (3 * MIB), "more than 2,000,000 lines"),
        (lambda: LONG * (90 * MIB // len(LONG)), "expands to more than 50"),
    ],
    ids=("empty lines", "rows"),
)
def test_a_member_of_a_zip_is_refused(tmp_path, made, told):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.jsonl", made())
    with within_bounds(), pytest.raises(ConfigError, match=told):
        for _ in member_rows(tmp_path / "x.zip", "x.jsonl"):
            pass


def test_an_aligned_file_is_refused(tmp_path):
    (tmp_path / "x.en").write_bytes(b"x\n" * 40_000_000)
    with within_bounds(), pytest.raises(ConfigError, match="has more than 67,108,864 bytes"):
        next(parallel_rows({"source": tmp_path / "x.en"}))


@pytest.mark.parametrize(
    ("name", "made", "told"),
    [
        ("x.txt.gz", lambda: packed(b"0", 65), "more than 67,108,864 characters"),
        ("x.txt.gz", lambda: packed(b"word " * 99 + b"\n", 90), "expands to more than 50 times its size"),
        ("x.jsonl", lambda: b"[" * 1_000_000, "nested deeper than 64 levels"),
        ("x.jsonl", lambda: b'{"text": ' + b"9" * 1_000_000, "a number of 1,000,000"),
    ],
)
def test_a_corpus_is_refused(tmp_path, name, made, told):
    (tmp_path / name).write_bytes(made())
    with within_bounds(), pytest.raises(ConfigError, match=told):
        for _ in CorpusFiles([tmp_path / name], "text"):
            pass
