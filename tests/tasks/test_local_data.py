"""File readers: every format gives the same rows, and every mistake names file and line."""

import csv
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbench.core.errors import ConfigError
from specbench.specs.catalogue import load_task
from specbench.tasks.examples import load_examples
from specbench.tasks.local_files import find_files, find_parallel, parallel_rows, read_rows

COLUMNS = ["question", "answer", "answer_number", "equation_solution"]
ROWS = [
    {"question": 'She said "2\u2028more", then?', "answer": None, "answer_number": 18, "equation_solution": None},
    {"question": "৫টি, আর?", "answer": None, "answer_number": 3, "equation_solution": "1 + 2 = 3"},
]


LONG_NUMBER = b'{"q": 1}\n{"q": ' + b"1" * 5000 + b"}\n"
DEEP = b'{"q": ' + b"[" * 99_999 + b"]" * 99_999 + b"}\n"
DAMAGED = gzip.compress(b"", mtime=0)[:10] + b"\xff" * 60


def text_of(form):
    """The two rows in one format, as bytes. Table formats hold texts only; tsv is written without quoting."""
    if form == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
    if form == "json":
        return json.dumps(ROWS).encode()
    if form == "data.json":
        return json.dumps({"version": 1, "data": ROWS}).encode()
    if form == "parquet":
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(ROWS), buffer)
        return buffer.getvalue()
    if form == "tsv":
        lines = ["\t".join(COLUMNS), *("\t".join(str(row[name] or "") for name in COLUMNS) for row in ROWS)]
        return "".join(line + "\n" for line in lines).encode()
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    writer.writerows(ROWS)
    return file.getvalue().encode()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", ["jsonl", "json", "data.json", "csv", "tsv", "parquet"])
def test_every_format_gives_the_same_rows(tmp_path, form, packed):
    path = tmp_path / f"rows.{form}{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(text_of(form)) if packed else text_of(form))
    rows = list(read_rows(path, column_names=["question", "answer_number"]))
    assert [row["question"] for row in rows] == [row["question"] for row in ROWS]
    assert [str(row["answer_number"]) for row in rows] == ["18", "3"]
    assert list(rows[0]) == COLUMNS


def test_a_table_without_a_header(tmp_path):
    path = tmp_path / "mgsm_en.tsv"
    path.write_text('He said "2\t18\nMore "quotes" here\t2,125\n\n', encoding="utf-8")
    rows = list(read_rows(path, column_names=["question", "answer_number"]))
    assert rows == [
        {"question": 'He said "2', "answer_number": "18"},
        {"question": 'More "quotes" here', "answer_number": "2,125"},
    ]


def test_a_header_with_one_wrong_name_is_still_a_header(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("question\tanswer\nWhy?\t3\n")
    assert list(read_rows(path, column_names=["question", "answer_number"])) == [{"question": "Why?", "answer": "3"}]


def test_byte_order_mark_and_windows_lines(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b'\xef\xbb\xbfquestion,answer\r\n"a, b",3\r\n')
    assert list(read_rows(path)) == [{"question": "a, b", "answer": "3"}]


def test_a_long_cell_and_quoted_line_breaks(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('q,a\n"' + "x" * 200_000 + '\ny",3\n')
    (row,) = read_rows(path)
    assert len(row["q"]) == 200_002


def test_rows_are_read_lazily(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"q": 1}\nbroken\n')
    assert next(read_rows(path)) == {"q": 1}


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.jsonl", b'{"q": 1}\n\n{"q": \n', "x.jsonl, line 3: not valid JSON: "),
        ("x.jsonl", b"[1]\n", "x.jsonl, line 1: a row must be a JSON object"),
        ("x.json", b'[{"q": 1},\n', "x.json, line 2: not valid JSON: "),
        ("x.json", b'{"rows": []}', "x.json: holds no rows: write a list of rows"),
        ("x.json", b'[{"q": 1}, 2]', "x.json, row 2: a row must be a JSON object"),
        ("x.tsv", b"q\ta\n1\t2\t3\n", "x.tsv, line 2: 3 cells where there are 2 columns (q, a)"),
        ("x.csv", b'q,a\n"1"x,2\n', "x.csv, line 2: not valid csv: "),
        ("x.csv", "q\né\n".encode("latin-1"), "x.csv: not UTF-8 text"),
        ("x.parquet", b"PAR2", "x.parquet: not a parquet file: "),
        ("x.jsonl.gz", b"plain", "x.jsonl.gz: cannot be read: "),
        ("x.jsonl.gz", gzip.compress(b'{"q": 1}\n' * 99, mtime=0)[:-9], "x.jsonl.gz: cannot be read: "),
        ("x.parquet.gz", b"plain", "x.parquet.gz: cannot be read: "),
        pytest.param("x.jsonl", LONG_NUMBER, "x.jsonl, line 2: has a number of", id="long number"),
        pytest.param("x.jsonl", DEEP, "x.jsonl, line 1: exceeds 64 levels", id="deep jsonl"),
        pytest.param("x.json", DEEP, "x.json, line 1: exceeds 64 levels", id="deep json"),
        ("x.jsonl.gz", DAMAGED, "x.jsonl.gz: cannot be read: Error -3 while decompressing data"),
        ("x.parquet.gz", DAMAGED, "x.parquet.gz: cannot be read: Error -3 while decompressing data"),
        ("x.doc", b"q", "x.doc: unsupported file type: use .jsonl, .json, .csv, .tsv, .parquet, .txt"),
    ],
)
def test_mistakes(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        list(read_rows(path))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"no\.jsonl: cannot be read: No such file or directory"):
        list(read_rows(tmp_path / "no.jsonl"))


def test_find_files_takes_the_first_stem_and_format(tmp_path):
    for name in ("de/test-1.parquet", "de/test-0.parquet", "de/train.parquet", "en.csv", "en.jsonl.gz", "x_en.tsv"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()

    def names(*stems):
        return [str(path.relative_to(tmp_path)) for path in find_files(tmp_path, stems)]

    assert names("de", "de/test*") == ["de/test-0.parquet", "de/test-1.parquet"]
    assert names("x_en", "en") == ["x_en.tsv"]
    assert names("en") == ["en.jsonl.gz"]
    assert names("fr") == []


@pytest.mark.parametrize(
    ("stem", "expected"),
    [
        ("a**", "local.files: cannot search for 'a**': Invalid pattern"),
        pytest.param("r" * 5000, f"local.files: cannot search for '{'r' * 60}': File name too long", id="long"),
    ],
)
def test_a_stem_that_no_file_has(tmp_path, stem, expected):
    with pytest.raises(ConfigError) as caught:
        find_files(tmp_path, [stem])
    assert str(caught.value).startswith(expected)


def test_a_text_file_is_a_row_a_line(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes("\ufeffone \r\n\r\ntwo\n".encode())
    assert list(read_rows(path)) == [{"text": "one "}, {"text": "two"}]


def test_json_that_holds_a_row_a_line(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"q": 1, "data": []}\n{"q": 2}\n')
    assert [row["q"] for row in read_rows(path)] == [1, 2]
    path.write_text('{"q": 1}\n{"q": \n')
    with pytest.raises(ConfigError, match=r"x\.json, line 2: not valid JSON"):
        list(read_rows(path))


def write_lines(folder, **texts):
    for name, text in texts.items():
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_bytes(text.encode())


def test_aligned_files(tmp_path):
    write_lines(tmp_path, dev_en="one\r\ntwo\u2028more\n\n three\n", dev_chr="Ꮟ\nᏔ\n\nᏦ", mono_chr="Ꮟ\n")
    [files] = find_parallel(tmp_path, {"en": ["*.en"], "chr": ["*.chr"]})
    assert [path.name for path in files.values()] == ["dev.en", "dev.chr"]
    places, rows = zip(*parallel_rows(files), strict=True)
    assert list(rows) == [{"en": "one", "chr": "Ꮟ"}, {"en": "two\u2028more", "chr": "Ꮤ"}, {"en": " three", "chr": "Ꮶ"}]
    assert [place.rpartition("/")[2] for place in places] == ["dev.en, line 1", "dev.en, line 2", "dev.en, line 4"]


def test_which_files_are_aligned(tmp_path):
    write_lines(tmp_path, b_en="1\n", a_en="2\n", b_de="3\n", a_de="4\n", c_de="5\n", only_fr="6\n")

    def found(**patterns):
        return [[path.name for path in files.values()] for files in find_parallel(tmp_path, patterns)]

    assert found(en=["*.en"], de=["*.de"]) == [["a.en", "a.de"], ["b.en", "b.de"]]
    assert found(en=["a.en"], de=["c.de"]) == [["a.en", "c.de"]]
    assert found(en=["*.en"], fr=["*.fr"]) == found(en=["*.en"], ja=["*.ja"]) == found() == []
    assert found(en=["*.eng", "*.en"], fr=["*.fr", "*.de"]) == [["a.en", "a.de"], ["b.en", "b.de"]]
    assert found(en=["*.en"], x=["*.de", "a.en"]) == [["a.en", "a.de"], ["b.en", "b.de"]]


def test_texts_that_are_no_translations_of_each_other_are_not_paired(tmp_path):
    """One of each language, as many lines, and yet of two books."""
    write_lines(tmp_path, genesis_en="1\n2\n", genesis_chr="Ꮟ\nᏔ\n", news_ber="yan\nsin\n")
    task = load_task("low_resource_mt")
    found = load_examples(task, "chr", data=str(tmp_path), use_sample=False, limit=None)
    assert [example.reference for example in found.examples] == ["Ꮟ", "Ꮤ"]
    with pytest.raises(
        ConfigError, match=r"tried aligned files \*\.en or \*\.eng and \*\.ber with the same text for each \*"
    ):
        load_examples(task, "ber", data=str(tmp_path), use_sample=False, limit=None)


def test_of_several_splits_the_right_one_is_aligned(tmp_path):
    write_lines(tmp_path, train_en="1\n", train_yor="2\n", test_en="3\n", test_yor="4\n", dev_en="5\n", dev_yor="6\n")
    patterns = {"en": ["*.en"], "yor": ["*.yor"]}
    assert [files["en"].name for files in find_parallel(tmp_path, patterns)] == ["test.en"]
    assert [files["yor"].name for files in find_parallel(tmp_path, patterns, "dev")] == ["dev.yor"]
    assert len(find_parallel(tmp_path, patterns, "other")) == 3
    data = load_examples(load_task("low_resource_mt"), "yor", data=str(tmp_path), use_sample=False, limit=None)
    assert [example.reference for example in data.examples] == ["4"]


def test_files_that_are_not_aligned(tmp_path):
    write_lines(tmp_path, a_en="1\n2\n", a_de="1\n")
    [files] = find_parallel(tmp_path, {"en": ["*.en"], "de": ["*.de"]})
    with pytest.raises(
        ConfigError, match=r"a\.en has 2 lines, .*a\.de has 1 lines: aligned files need equal numbers of lines"
    ):
        list(parallel_rows(files))
