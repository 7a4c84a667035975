"""Examples from the sample, from files and from the hub; and what is said when the data does not fit."""

import json
import math
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import datasets
import huggingface_hub
import pytest

from specbench.core.errors import ConfigError
from specbench.core.registry import READERS
from specbench.models import loading
from specbench.specs.catalogue import load_task
from specbench.specs.components import build
from specbench.specs.task import TaskSpec
from specbench.tasks import hub as dataset_hub
from specbench.tasks.examples import load_examples
from specbench.tasks.scoring.numbers import answered_number
from specbench.tasks.sources import subsets_with_files

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "mgsm"
LANGUAGES = ["bn", "de", "en", "es", "ja", "sw"]
QUESTIONS = {
    "bn": '১৬টি ডিমের দাম প্রতিটি $2। "মোট" কত?',
    "de": "Was kosten 16 Eier zu je 2 $?",
    "en": 'She said "16 eggs at $2. How much?',
    "es": "¿Cuánto cuestan 16 huevos a 2 $ cada uno?",
    "ja": "卵が16個あり、1個2ドルです。全部でいくらですか？",
    "sw": "Mayai 16 kwa $2 kila moja ni pesa ngapi?",
}
ANSWERS = ["18", "3", "70000", "2,125", "-5", "0.5"]
TASK = {
    "name": "sums",
    "version": 1,
    "title": "Sums",
    "prompt": "Q: {{ row.question }}",
    "reference": "{{ row.answer }}",
    "scorer": {"type": "number"},
    "generation": {"max_new_tokens": 16},
}
TWO = {"subsets": {"en": {}, "de": {}}}


def task(**changes):
    return build(TaskSpec, TASK | changes)


def load(spec, subset="default", data=None, use_sample=False, limit=None, **options):
    data = str(data) if isinstance(data, Path) else data
    return load_examples(spec, subset, data=data, use_sample=use_sample, limit=limit, **options)


def message(*arguments, **options):
    with pytest.raises(ConfigError) as caught:
        load(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_rows(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "sums_default.jsonl", *({"question": f"{n}+1?", "answer": n + 1} for n in range(9)))


@pytest.mark.parametrize("language", load_task("mgsm").subset_names)
def test_the_bundled_sample_of_mgsm(language):
    data = load(load_task("mgsm"), language, use_sample=True)
    assert (data.source, data.location) == ("sample", "mgsm.jsonl")
    assert len(data.examples) >= 16
    assert len({example.id for example in data.examples}) == len(data.examples)
    assert all(answered_number(example.reference) is not None for example in data.examples)
    words = load_task("mgsm").subset(language).vars
    assert all(example.prompt.startswith(words["question_word"] + " ") for example in data.examples)
    assert all(example.prompt.endswith("\n" + words["step_by_step"]) for example in data.examples)


@pytest.fixture(params=["own", "real"])
def mgsm(request, tmp_path):
    """A folder of files as MGSM has them: without a header, thousands marked in some answers. Ours, and the real one
    where it is there."""
    if request.param == "real":
        if not SHARED.is_dir():
            pytest.skip("the shared data is not here")
        return SHARED
    for language, question in QUESTIONS.items():
        lines = [f"{number}. {question}\t{answer}\n" for number, answer in enumerate(ANSWERS)]
        path = tmp_path / "mgsm" / f"mgsm_{language}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(lines), encoding="utf-8")
    return path.parent


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_rows_of_mgsm(mgsm, language):
    file = mgsm / f"mgsm_{language}.tsv"
    data = load(load_task("mgsm"), language, data=mgsm)
    assert (data.source, data.location) == ("local", str(file))
    lines = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == (250 if mgsm == SHARED else len(ANSWERS))
    assert [example.reference for example in data.examples] == [answer for _, answer in lines]
    assert all(question in example.prompt for (question, _), example in zip(lines, data.examples, strict=True))
    assert (data.examples[0].reference, data.examples[2].reference) == ("18", "70000")
    assert "2,125" in {example.reference for example in data.examples}
    assert [example.index for example in data.examples] == list(range(len(lines)))
    assert load(load_task("mgsm"), language, data=file) == data


def test_languages_without_a_file(mgsm):
    text = message(load_task("mgsm"), "fr", data=mgsm)
    assert "no file for subset 'fr' of task 'mgsm': tried mgsm_fr, fr, fr/test* with .jsonl, .json" in text


def test_a_file_of_another_language_is_refused(mgsm):
    text = message(load_task("mgsm"), "de", data=mgsm / "mgsm_en.tsv")
    assert "mgsm_en.tsv: is named after the subset 'en', not 'de': give --subset en, or a file" in text


def test_the_subsets_that_a_users_files_hold(mgsm):
    task = load_task("mgsm")
    assert set(LANGUAGES) <= set(subsets_with_files(task, mgsm)) < set(task.subset_names)
    assert subsets_with_files(task, mgsm / "mgsm_de.tsv") == ["de"]
    assert subsets_with_files(task, mgsm / "nowhere") == []
    other = mgsm / ".." / "rows.jsonl"  # by its name it may hold any
    if mgsm != SHARED:
        other.write_text("{}\n")
        assert subsets_with_files(task, other) == list(task.subset_names)


@pytest.mark.parametrize("layout", ["parquet", "csv", "tsv", "jsonl"])
def test_the_hub_layout_gives_the_same_examples(mgsm, tmp_path, layout):
    """The folders of a downloaded hub dataset: columns question, answer, answer_number, equation_solution."""
    lines = (mgsm / "mgsm_ja.tsv").read_text(encoding="utf-8").splitlines()
    columns = {"question": [line.split("\t")[0] for line in lines], "answer": [None] * len(lines)}
    columns |= {"answer_number": [line.split("\t")[1].replace(",", "") for line in lines]}
    table = datasets.Dataset.from_dict(columns | {"equation_solution": [None] * len(lines)})
    path = tmp_path / "ja" / f"test-00000-of-00001.{layout}"
    path.parent.mkdir()
    if layout == "parquet":
        table.to_parquet(path)
    elif layout == "jsonl":
        table.to_json(path)
    else:
        table.to_csv(path, sep="\t" if layout == "tsv" else ",")
    ours = load(load_task("mgsm"), "ja", data=tmp_path).examples
    original = load(load_task("mgsm"), "ja", data=mgsm).examples
    assert [example.prompt for example in ours] == [example.prompt for example in original]
    assert [example.reference for example in ours] == [e.reference.replace(",", "") for e in original]


def test_limit_takes_the_first_rows(rows):
    data = load(task(), data=rows.parent, limit=3)
    assert [example.prompt for example in data.examples] == ["Q: 0+1?", "Q: 1+1?", "Q: 2+1?"]
    assert [example.id for example in data.examples] == ["0", "1", "2"]
    assert len(load(task(), data=rows.parent, limit=30).examples) == 9


def test_the_revision_of_a_file_is_its_digest(rows):
    before = load(task(), data=rows).revision
    assert load(task(), data=rows.parent).revision == before
    write_rows(rows, {"question": "other", "answer": 1})
    assert load(task(), data=rows).revision != before


def test_several_files_are_read_in_order(tmp_path):
    for number in (1, 0):
        write_rows(
            tmp_path / "default" / f"test-{number}.jsonl", {"id": f"r{number}", "question": "x", "answer": number}
        )
    data = load(task(), data=tmp_path)
    assert [example.id for example in data.examples] == ["r0", "r1"]
    assert data.location.endswith("test-1.jsonl (2 files)")


def test_the_subset_column_picks_the_rows(tmp_path):
    path = write_rows(
        tmp_path / "all.jsonl",
        {"subset": "en", "question": "a", "answer": 1},
        {"subset": "de", "question": "b", "answer": 2},
        {"subset": "en", "question": "c", "answer": 3},
    )
    spec = task(**TWO)
    assert [e.reference for e in load(spec, "en", data=path, num_subsets=2).examples] == ["1", "3"]
    assert [e.reference for e in load(spec, "de", data=path, num_subsets=2).examples] == ["2"]
    assert len(load(task(), data=path).examples) == 3
    assert "all.jsonl: holds no rows of subset 'fr': the choices are de, en" in message(
        task(subsets={"en": {}, "fr": {}}), "fr", data=path
    )


@pytest.fixture(params=["a wildcard", "one name", "a link"])
def shared_folder(request, tmp_path):
    """Files that two subsets share, in a folder: (the files' stems in the task, the folder)."""
    path = write_rows(tmp_path / "rows.jsonl", {"question": "a", "answer": 1})
    if request.param == "a link":
        for name in ("en", "de"):
            (tmp_path / f"{name}.jsonl").symlink_to(path)
        return ["{subset}"], tmp_path
    return ["r*" if request.param == "a wildcard" else "rows"], tmp_path


def test_a_file_in_a_folder_is_not_measured_under_several_names(shared_folder):
    stems, folder = shared_folder
    spec = task(**TWO, local={"files": stems})
    assert len(load(spec, "de", data=folder).examples) == 1
    for subset in ("de", "en"):
        text = message(spec, subset, data=folder, num_subsets=2)
        assert (
            ".jsonl: has no column 'subset' to tell several subsets apart: choose one subset, or add the column" in text
        )


def test_files_of_their_own_and_shared_files_with_the_column(tmp_path):
    rows = [{"subset": name, "question": name, "answer": 1} for name in ("en", "de")]
    write_rows(tmp_path / "both" / "rows.jsonl", *rows)
    for name in ("en", "de"):
        write_rows(tmp_path / "own" / f"{name}.jsonl", {"question": name, "answer": 1})
    for folder, stems in (("both", ["rows"]), ("own", ["{subset}", "rows"])):
        spec = task(**TWO, local={"files": stems})
        data = [load(spec, name, data=tmp_path / folder, num_subsets=2) for name in ("en", "de")]
        assert [[example.prompt for example in one.examples] for one in data] == [["Q: en"], ["Q: de"]]


def test_a_sample_is_not_measured_under_several_names(tmp_path):
    path = write_rows(tmp_path / "sample.jsonl", {"question": "a", "answer": 1})
    spec = task(**TWO, sample=str(path))
    assert len(load(spec, "en", data="sample").examples) == 1
    assert "sample.jsonl: has no column 'subset'" in message(spec, "en", data="sample", num_subsets=2)


def test_one_file_is_not_measured_under_several_names(tmp_path):
    path = write_rows(tmp_path / "mine.jsonl", {"question": "a", "answer": 1})
    assert len(load(task(**TWO), "de", data=path).examples) == 1
    text = message(task(**TWO), "de", data=path, num_subsets=2)
    assert "mine.jsonl: has no column 'subset' to tell several subsets apart" in text


@pytest.mark.parametrize(
    ("row", "changes", "expected"),
    [
        ({"quest": "x", "answer": 1}, {}, "row 2: no column 'question', which the prompt needs: did you mean 'quest'?"),
        ({"question": "x"}, {}, "row 2: no column 'answer', which the reference needs: the choices are question"),
        ({"question": None, "answer": 1}, {}, "row 2: column 'question' is empty, which the prompt needs"),
        ({"question": " ", "answer": 1}, {}, "row 2: column 'question' is empty, which the prompt needs"),
        ({"question": math.nan, "answer": 1}, {}, "row 2: column 'question' is empty, which the prompt needs"),
        (
            {"question": None, "answer": 1},
            {"prompt": "{{ row.question | lower }}"},
            "column 'question' is empty, which the prompt needs: fill it in, or write a template that tests {% if row.",
        ),
        (
            {"question": "", "answer": 1},
            {"prompt": "{% if row.question %}{{ row.question }}{% endif %}"},
            "row 2: the prompt comes out empty: fill in question",
        ),
        (
            {"question": math.nan, "answer": 1},
            {"prompt": "{% if row.answer %}{{ row.question }}{% endif %}"},
            "the prompt of task 'sums' fails: NullValue: a value is null or NaN",
        ),
        (
            {"question": "\ud800 x", "answer": 1},
            {},
            "the prompt of task 'sums' fails: ValueError: the text is not valid",
        ),
        (
            {"question": {"a": 1}, "answer": 1},
            {"prompt": "{{ row.question.stem }}"},
            "the prompt of task 'sums' fails: ",
        ),
        ({"question": "x", "answer": 1}, {"prompt": "{{ row.question + 1 }}"}, "the prompt of task 'sums' fails: "),
    ],
)
def test_rows_that_do_not_fit(tmp_path, row, changes, expected):
    first = {"question": {"stem": "s"} if "prompt" in changes and "stem" in changes["prompt"] else 1, "answer": 1}
    path = write_rows(tmp_path / "rows.jsonl", first, row)
    text = message(task(**changes), data=path)
    assert text.startswith(f"{path}, row 2: ")
    assert expected in text


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (
            "{{ row }}",
            "UndefinedError: `row` and `vars` are not texts: write one of their values, such as row.question",
        ),
        ("{{ vars ~ '' }}", "UndefinedError: `row` and `vars` are not texts"),
        ("{{ row.question.upper }}", "UndefinedError: builtin_function_or_method is not a text: write a value"),
        ("{{ row.question | map('upper') }}", "UndefinedError: a list is not a text"),
        ("{{ [row.question] }}", "UndefinedError: a list is not a text: write one of its values"),
        ("{{ {'q': row.question} }}", "UndefinedError: a dict is not a text"),
        ("{{ row.question | dictsort }}", "AttributeError: 'str' object has no attribute 'items'"),
        ("{{ row.question[0] | int + 'a' }}", "TypeError: "),
        ("{{ '{0}'.format() }}", "SecurityError: access to attribute 'format' of 'str' object is unsafe"),
        ("{{ row.question * 10 ** 15 }}", "TooMuch: the template's output exceeds 4,194,304 characters"),
    ],
)
def test_templates_that_fail(rows, prompt, expected):
    text = message(task(prompt=prompt), data=rows)
    assert text.startswith(f"{rows}, row 1: the prompt of task 'sums' fails: {expected}")


def test_an_optional_column_may_be_empty(tmp_path):
    path = write_rows(
        tmp_path / "rows.jsonl", {"question": "x", "hint": "", "answer": 0}, {"question": "y", "answer": 1}
    )
    spec = task(
        prompt="{{ row.question }}{{ row.hint | default('') }}{% if row.hint is defined %}{{ row.hint }}{% endif %}"
    )
    assert [(e.prompt, e.reference) for e in load(spec, data=path).examples] == [("x", "0"), ("y", "1")]


def test_an_id_that_is_not_unicode(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", {"id": "\udfff", "question": "x", "answer": 1})
    assert message(task(), data=path).startswith(f"{path}, row 1: the id is not valid Unicode")


def test_a_column_may_be_called_like_a_method_of_dict(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", {"items": "apples", "values": 3})
    spec = task(prompt="{{ row.items }}", reference="{{ row['values'] }}")
    assert [(e.prompt, e.reference) for e in load(spec, data=path).examples] == [("apples", "3")]


def test_templates_are_sandboxed(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", {"question": "x", "answer": 1})
    spec = task(prompt="{{ row.question.__class__.__mro__ }}")
    assert "unsafe" in message(spec, data=path)


def test_trailing_line_breaks_of_a_prompt_are_kept(rows):
    assert load(task(prompt="{{ row.question }}\nA:\n"), data=rows).examples[0].prompt == "0+1?\nA:\n"


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_empty_files(tmp_path, content):
    path = tmp_path / "sums_default.jsonl"
    path.write_text(content)
    assert f"{path}: holds no rows" in message(task(), data=tmp_path)


def test_no_such_place(tmp_path):
    assert "--data /no/such: no such folder or file" in message(task(), data="/no/such")
    assert message(task(), data="a" * 5000) == f"--data {'a' * 200}: cannot be read: File name too long: check the path"
    assert "no file for subset 'default' of task 'sums': tried sums_default, default, default/test*" in message(
        task(), data=tmp_path
    )


def test_a_task_without_sample_or_dataset(tmp_path):
    assert "task 'sums' has no bundled sample: give --data FOLDER" in message(task(), use_sample=True)
    assert "task 'sums' has no bundled sample" in message(task(), data="sample")
    assert "task 'sums' has no dataset on the hub: give local files with --data" in message(task())
    assert "no such file: correct the key `sample`" in message(task(sample=str(tmp_path / "no.jsonl")), data="sample")


def test_a_reader_may_change_and_split_rows(tmp_path, monkeypatch):
    def turns():
        return lambda row: [{"question": turn, "answer": row["n"]} for turn in row["turns"]]

    monkeypatch.setitem(READERS._builtin, "turns", turns)
    path = write_rows(tmp_path / "rows.jsonl", {"turns": ["a", "b"], "n": 1}, {"turns": ["c"], "n": 2})
    data = load(task(reader="turns"), data=path)
    assert [(e.index, e.prompt, e.reference) for e in data.examples] == [
        (0, "Q: a", "1"),
        (1, "Q: b", "1"),
        (2, "Q: c", "2"),
    ]
    assert len(load(task(reader="turns"), data=path, limit=1).examples) == 1


def test_a_reader_that_fails_names_the_row(tmp_path, monkeypatch):
    monkeypatch.setitem(READERS._builtin, "strict", lambda: lambda row: {"question": row["problem"], "answer": 1})
    path = write_rows(tmp_path / "rows.jsonl", {"problem": "x"}, {"question": "y"})
    text = message(task(reader="strict"), data=path)
    assert text.startswith(f"{path}, row 2: the reader 'strict' fails: KeyError: 'problem': the row has the columns qu")


def test_a_sample_is_in_the_layout_of_the_task(tmp_path, monkeypatch):
    monkeypatch.setitem(READERS._builtin, "raw", lambda: lambda row: {"question": row["raw"], "answer": 1})
    path = write_rows(tmp_path / "sample.jsonl", {"question": "x", "answer": 1})
    assert load(task(reader="raw", sample=str(path)), data="sample").examples[0].prompt == "Q: x"


def test_subsets_whose_readers_pick_the_rows_share_a_file(tmp_path, monkeypatch):
    def picking(group):
        return lambda: lambda row: [row] if row["group"] == group else []

    for name in ("a", "b"):
        monkeypatch.setitem(READERS._builtin, f"of_{name}", picking(name))
    rows = ({"group": group, "question": group + str(n), "answer": n} for n in range(3) for group in "ab")
    path = write_rows(tmp_path / "rows.jsonl", *rows)
    spec = task(subsets={name: {"reader": f"of_{name}"} for name in "ab"}, local={"files": ["rows"]})
    for data in (path, tmp_path):
        loaded = load(spec, "b", data=data, num_subsets=2, limit=2).examples
        assert [example.prompt for example in loaded] == ["Q: b0", "Q: b1"]


def test_a_task_may_say_that_its_subsets_share_files(tmp_path):
    write_rows(tmp_path / "rows.jsonl", {"question": "x", "answer": 1})
    spec = task(
        local={"files": ["rows"], "subsets_share_files": True}, subsets={"a": {}, "b": {"prompt": "{{ row.answer }}"}}
    )
    assert [load(spec, name, data=tmp_path, num_subsets=2).examples[0].prompt for name in "ab"] == ["Q: x", "1"]


def test_aligned_files_are_rows(tmp_path):
    (tmp_path / "x.en").write_text("one\ntwo\n")
    (tmp_path / "x.de").write_text("eins\nzwei\n")
    local = {"files": ["no"], "parallel": {"question": "*.en", "answer": "*.{subset}"}}
    spec = task(local=local, **TWO)
    data = load(spec, "de", data=tmp_path)
    assert [(e.prompt, e.reference) for e in data.examples] == [("Q: one", "eins"), ("Q: two", "zwei")]
    assert data.location == f"{tmp_path}/x.en … x.de (2 files)"
    (tmp_path / "x.de").write_text("eins\nzwo\n")
    assert load(spec, "de", data=tmp_path).revision != data.revision
    (tmp_path / "x.de").unlink()
    assert "tried aligned files *.en and *.de with the same text for each *, and no with .jsonl" in message(
        spec, "de", data=tmp_path
    )


# references


@pytest.mark.parametrize(
    ("answer", "changes", "expected"),
    [
        (None, {}, None),
        ("", {}, None),
        (" ", {}, None),
        (math.nan, {}, None),
        ([], {"reference": "{{ row.answer[0] }}"}, None),
        ([None], {"reference": "{{ row.answer[0] }}"}, None),
        (None, {"reference": "{{ row.answer or '' }}"}, None),
        (0, {}, "0"),
        ("x", {"reference": {"test": "{{ row.answer }}", "name": "f"}}, {"test": "x", "name": "f"}),
        (None, {"reference": {"test": "{{ row.answer }}", "name": "f"}}, None),
        (["a", None, "", 3], {"reference": None, "references": "answer"}, ["a", "3"]),
        ("a", {"reference": None, "references": "answer"}, ["a"]),
        ([], {"reference": None, "references": "answer"}, None),
        (None, {"reference": None, "references": "answer"}, None),
    ],
)
def test_references_and_rows_without_one(tmp_path, answer, changes, expected):
    path = write_rows(tmp_path / "rows.jsonl", {"question": "x", "answer": answer})
    assert load(task(**changes), data=path).examples[0].references == (expected,)


@pytest.mark.parametrize(
    ("row", "changes", "expected"),
    [
        ({}, {"reference": None, "references": "answer"}, "no column 'answer', which lists the references"),
        (
            {"answer": [{"a": 1}]},
            {"reference": None, "references": "answer"},
            "column 'answer' must be a list of texts",
        ),
        ({"answer": [[1]]}, {"reference": None, "references": "answer"}, "column 'answer' must be a list of texts"),
        ({}, {"reference": {"test": "{{ row.answer }}"}}, "no column 'answer', which the reference.test needs"),
        ({"answer": 1}, {"reference": "{{ row.answer[0] }}"}, "the reference of task 'sums' fails: "),
    ],
)
def test_references_that_do_not_fit(tmp_path, row, changes, expected):
    path = write_rows(tmp_path / "rows.jsonl", {"question": "x", **row})
    text = message(task(**changes), data=path)
    assert text.startswith(f"{path}, row 1: {expected}")


def test_rows_behind_the_limit_are_counted_and_end_no_run(rows, monkeypatch):
    """A row that is not measured may be wrong; then nobody knows how many there are, nor with a file that is too long
    to read for a number."""
    for limit in (None, 2, 0.25, 20):
        assert load(task(), data=rows, limit=limit).num_rows == 9
    monkeypatch.setattr("specbench.tasks.examples.MOST_COUNTED", 6)
    assert load(task(), data=rows, limit=2).num_rows is None
    assert load(task(), data=rows, limit=3).num_rows == 9
    with rows.open("a", encoding="utf-8") as file:
        file.write("{broken\n")
    assert load(task(), data=rows, limit=8).num_rows is None
    assert f"{rows}, line 10" in message(task(), data=rows)


# the hub

DATASET = {"dataset": {"path": "someone/sums", "name": "{subset}", "split": "test"}}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A local folder in a hub dataset's place; returns what was asked of the hub."""
    for language, word in (("en", "Why"), ("de", "Warum")):
        for split, num_rows in (("test", 4), ("train", 9)):
            rows = ({"question": f"{word} {split} {n}?", "answer": n} for n in range(num_rows))
            write_rows(tmp_path / language / f"{split}.jsonl", *rows)
    asked = []
    real = datasets.load_dataset

    def info(path, **options):
        asked.append((path, options["revision"]))
        return SimpleNamespace(sha=COMMIT)

    def load_dataset(path, name, *, revision, data_files=None, **options):
        asked.append((path, name, revision))
        files = data_files or {"test": f"{name}/test.jsonl"}
        return real(str(tmp_path), data_files=files, **options)

    monkeypatch.setattr(huggingface_hub, "dataset_info", info)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


@pytest.mark.parametrize("data", [None, "hub"])
def test_hub_rows_at_a_resolved_commit(hub, data):
    loaded = load(task(**DATASET, **TWO), "de", data=data, limit=3)
    assert (loaded.source, loaded.location, loaded.revision) == ("hub", "someone/sums:de:test", COMMIT)
    assert [example.prompt for example in loaded.examples] == [f"Q: Warum test {n}?" for n in range(3)]
    assert hub == [("someone/sums", "main"), ("someone/sums", "de", COMMIT)]


def test_rows_of_the_hub_are_counted_if_that_downloads_nothing(hub, tmp_path, monkeypatch):
    """Where all are read anyway, or were fetched."""
    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.setattr(huggingface_hub, "cached_assets_path", lambda *names, **options: notes)
    sums = task(**DATASET, **TWO)
    counts = {limit: load(sums, "de", data="hub", limit=limit).num_rows for limit in (None, 0.5, 9, 3)}
    assert counts == {None: 4, 0.5: 4, 9: 4, 3: None}
    dataset_hub.write_note(dataset_hub.fill_fields(sums.dataset, "sums", "de"), COMMIT, ["de/test.jsonl"])
    assert load(sums, "de", data="hub", limit=3).num_rows == 4
    assert load(sums, "en", data="hub", limit=3).num_rows is None


def test_hub_data_files_name_the_file(hub):
    dataset = {"path": "someone/sums", "split": "test", "revision": "v2", "data_files": "{subset}/{split}.*"}
    loaded = load(task(dataset=dataset, **TWO), "en")
    assert loaded.location == "someone/sums:en/test.*:test"
    assert len(loaded.examples) == 4
    assert hub == [("someone/sums", "v2"), ("someone/sums", None, COMMIT)]


def test_a_hub_row_that_does_not_fit(hub):
    text = message(task(**DATASET, **TWO, prompt="{{ row.problem }}"), "de")
    assert text.startswith("someone/sums:de:test, row 1: no column 'problem', which the prompt needs: ")


def test_hub_offline_is_one_line(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    text = message(load_task("mgsm"), "en")
    assert text.startswith(
        "dataset 'juletxara/mgsm' (revision main) could not be read from the hub: OfflineModeIsEnabled"
    )
    assert "give local files with --data FOLDER" in text


def test_hub_unreachable_is_one_line(monkeypatch):
    """A port on which nothing listens: the real client, and no waiting for retries."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", "http://127.0.0.1:9")
    text = message(load_task("mgsm"), "en", data="hub")
    assert "could not be read from the hub: " in text
    assert "--data FOLDER" in text


def test_a_hub_that_fails_while_reading(hub, monkeypatch):
    def load_dataset(*arguments, **options):
        raise ValueError("BuilderConfig 'de' not found.\nAvailable: ['en']")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    text = message(task(**DATASET, **TWO), "de")
    assert (
        f"dataset 'someone/sums' (revision {COMMIT}) could not be read from the hub: ValueError: BuilderConfig" in text
    )


def test_a_hub_that_does_not_answer_costs_seconds(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", f"http://127.0.0.1:{silent.getsockname()[1]}")
        gsm8k = load_task("gsm8k")  # it has no mirrors
        look_ups = {
            loading: lambda: loading.hub_problem("some/model", None),
            dataset_hub: lambda: message(gsm8k, "default", data="hub"),
        }
        for module, look_up in look_ups.items():
            assert module.TIMEOUT_SECONDS == 4
            monkeypatch.setattr(module, "TIMEOUT_SECONDS", 1)
            begin = time.monotonic()
            assert "Timeout" in look_up()
            assert 0.9 < time.monotonic() - begin <= 3
