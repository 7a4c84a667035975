"""The n-gram model: exact counts, backoff, the folder, and the command that makes it."""

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from specbench.core.errors import ConfigError
from specbench.models.corpus_models import NgramModel
from specbench.models.mmap_store import vocabulary_digest
from specbench.training.corpus_arrays import build_ngrams
from tests.support import tiny
from tools import bench_ngram

VOCAB = 7
Specbench = Callable[..., tuple[int, str, str]]


def random_documents(seed: int, count: int = 40) -> list[list[int]]:
    """Short documents of skewed tokens, some empty or of one token. The last token of the vocabulary never occurs."""
    random = Random(seed)
    weights = [8, 4, 2, 2, 1, 1]
    return [random.choices(range(VOCAB - 1), weights, k=random.choice([0, 1, 2, 3, 9, 40])) for _ in range(count)]


def naive(documents: list[list[int]], order: int) -> dict[tuple[int, ...], Counter[int]]:
    """Continuation counts of every context up to order − 1 tokens."""
    counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for document in documents:
        for place, token in enumerate(document):
            for length in range(min(order - 1, place) + 1):
                counts[tuple(document[place - length : place])][token] += 1
    return counts


def ranked(counts: Counter[int]) -> list[tuple[int, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def pairs(model: NgramModel, context: list[int]) -> list[tuple[int, int]]:
    ids, counts = model.continuations(context)
    return list(zip(ids.tolist(), counts.tolist(), strict=True))


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_counts_are_those_of_a_dictionary(tmp_path: Path, order: int) -> None:
    documents = random_documents(order)
    model = build_ngrams(documents, order, VOCAB, tmp_path / "ngram", "digest")
    expected = naive(documents, order)
    assert model.num_tokens == sum(map(len, documents))
    assert model.num_ngrams == [
        sum(len(counts) for context, counts in expected.items() if len(context) == level) for level in range(order)
    ]
    for context, counts in expected.items():
        assert pairs(model, list(context)) == ranked(counts)
        assert model.best(list(context)) == ranked(counts)[0][0]


def test_the_digest_is_of_counts_and_tokenizer(tmp_path: Path) -> None:
    documents = random_documents(9)
    models = [build_ngrams(documents, 3, VOCAB, tmp_path / name, "d") for name in ("one", "again")]
    assert models[0].digest == models[1].digest == "da41c4341660"
    assert build_ngrams([*documents, [1, 2]], 3, VOCAB, tmp_path / "other", "d").digest != models[0].digest
    assert build_ngrams(documents, 3, VOCAB, tmp_path / "another", "e").digest != models[0].digest


@pytest.mark.parametrize("vocab_size", [256, 257, 70_000])
def test_documents_may_be_arrays_and_ids_of_any_width(tmp_path: Path, vocab_size: int) -> None:
    top = vocab_size - 1
    documents = [np.array([0, top, 0, top, 1], dtype=np.uint32), (top, 1)]
    model = build_ngrams(documents, 3, vocab_size, tmp_path / "ngram", "d")
    assert pairs(model, [top]) == [(1, 2), (0, 1)]
    assert pairs(model, [0, top]) == [(0, 1), (1, 1)]
    assert model.max_token_id == top


def test_a_context_backs_off_to_its_longest_seen_suffix(tmp_path: Path) -> None:
    model = build_ngrams([[0, 1, 2], [3, 1, 4], [3, 1, 4], [5]], 3, VOCAB, tmp_path / "ngram", "d")
    assert pairs(model, [0, 1]) == [(2, 1)]
    assert pairs(model, [6, 6, 0, 1]) == [(2, 1)]  # only the last two tokens count
    assert pairs(model, [4, 1]) == [(4, 2), (2, 1)]  # never seen together: what follows 1
    assert pairs(model, [1, 4]) == pairs(model, [])  # seen, but only at the end of documents; so is 4
    for context in ([], [5], [6], [6, 5], [100, 200]):
        assert pairs(model, context) == [(1, 3), (3, 2), (4, 2), (0, 1), (2, 1), (5, 1)]
    assert pairs(model, [1]) == [(4, 2), (2, 1)]  # a short context has no longer one to back off from


def test_ngrams_do_not_cross_documents(tmp_path: Path) -> None:
    model = build_ngrams([[0, 1], [2, 3], [2, 3]], 2, VOCAB, tmp_path / "ngram", "d")
    assert pairs(model, [0]) == [(1, 1)] and pairs(model, [2]) == [(3, 2)]
    assert pairs(model, [1]) == pairs(model, [3]) == pairs(model, [])


def test_every_distribution_is_proper(tmp_path: Path) -> None:
    model = build_ngrams(random_documents(3), 3, VOCAB, tmp_path / "ngram", "d")
    for first in range(VOCAB):
        for second in range(VOCAB):
            ids, counts = model.continuations([first, second])
            assert len(set(ids.tolist())) == len(ids) > 0 and counts.min() > 0
            assert (np.diff(counts.astype(int)) <= 0).all()
            assert (counts / counts.sum()).sum() == pytest.approx(1.0)


def test_the_arrays_are_mapped(tmp_path: Path) -> None:
    model = build_ngrams(random_documents(3), 2, VOCAB, tmp_path / "ngram", "d")
    for array in model.continuations([0]):
        base = array
        while base.base is not None and not isinstance(base, np.memmap):
            base = base.base
        assert isinstance(base, np.memmap) and not array.flags.writeable


def without_locks(folder: Path) -> list[str]:
    """The names in a folder, without the lock files of models that were built there."""
    return [path.name for path in folder.iterdir() if not path.name.endswith(".lock")]


@pytest.mark.parametrize("wrong", [-1, VOCAB])
def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path, wrong: int) -> None:
    with pytest.raises(ConfigError, match=f"token id {wrong} is outside the vocabulary of {VOCAB} tokens"):
        build_ngrams([[0, 1], [2, wrong, 3]], 2, VOCAB, tmp_path / "ngram", "d")
    assert not without_locks(tmp_path)


@pytest.mark.parametrize("documents", [[], [[]]])
def test_a_corpus_without_tokens_is_refused(tmp_path: Path, documents: list[list[int]]) -> None:
    with pytest.raises(ConfigError, match="no tokens"):
        build_ngrams(documents, 2, VOCAB, tmp_path / "ngram", "d")


def test_order_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="order = 0"):
        build_ngrams([[1]], 0, VOCAB, tmp_path / "ngram", "d")


def test_an_interrupt_leaves_what_was_there(tmp_path: Path) -> None:
    before = build_ngrams([[0, 1]], 2, VOCAB, tmp_path / "ngram", "d")

    def interrupted() -> Iterator[list[int]]:
        yield [1, 2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_ngrams(interrupted(), 2, VOCAB, tmp_path / "ngram", "d")
    assert without_locks(tmp_path) == ["ngram"]
    assert NgramModel.load(tmp_path / "ngram").digest == before.digest


def test_a_model_is_replaced_and_any_other_folder_is_not(tmp_path: Path) -> None:
    first = build_ngrams([[0, 1]], 3, VOCAB, tmp_path / "ngram", "d")
    second = build_ngrams([[1, 2]], 2, VOCAB, tmp_path / "ngram", "d")
    assert pairs(first, [0]) == [(1, 1)] and pairs(second, [1]) == [(2, 1)]  # the old one stays mapped
    assert without_locks(tmp_path) == ["ngram"]
    for name in ("notes.txt", "weights.bin"):
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / name).write_text("precious")
        with pytest.raises(ConfigError, match="but no n-gram model"):
            build_ngrams([[0]], 2, VOCAB, tmp_path / "mine", "d")
        (tmp_path / "mine" / name).unlink()
    (tmp_path / "ngram" / "notes.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"holds notes\.txt"):
        build_ngrams([[0]], 2, VOCAB, tmp_path / "ngram", "d")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        build_ngrams([[0]], 2, VOCAB, tmp_path / "file", "d")


def edit(folder: Path, **changes: object) -> None:
    data = json.loads((folder / "ngram.json").read_text())
    (folder / "ngram.json").write_text(json.dumps({**data, **changes}))


def cut(folder: Path) -> None:
    path = folder / "level2-ranked_tokens.bin"
    path.write_bytes(path.read_bytes()[:-1])


def rewrite_starts(folder: Path) -> None:
    path = folder / "level2-starts.bin"
    path.write_bytes(b"\x01" + path.read_bytes()[1:])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "ngram.json").unlink(), "ngram.json is missing"),
        (lambda folder: (folder / "ngram.json").write_text("{"), "not valid JSON"),
        (lambda folder: (folder / "ngram.json").write_text("[]"), "is not a mapping"),
        (lambda folder: edit(folder, format=2), "format = 2"),
        (lambda folder: edit(folder, order="two"), "order = 'two'"),
        (lambda folder: edit(folder, order=3), "arrays: their lengths contradict"),
        (lambda folder: edit(folder, vocab_size=VOCAB + 1), "arrays: their lengths contradict"),
        (lambda folder: edit(folder, colour="red"), "unknown key 'colour'"),
        (lambda folder: (folder / "level2-starts.bin").unlink(), "lacks this file"),
        (cut, r"level2-ranked_tokens\.bin: \d+ bytes where ngram.json says"),
        (rewrite_starts, "the index of the 2-grams does not cover"),
    ],
)
def test_a_damaged_folder_is_one_line(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    build_ngrams(random_documents(1), 2, VOCAB, tmp_path / "ngram", "d")
    damage(tmp_path / "ngram")
    with pytest.raises(ConfigError, match=message) as caught:
        NgramModel.load(tmp_path / "ngram")
    assert "specbench train ngram" in str(caught.value) and str(tmp_path / "ngram") in str(caught.value)


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no n-gram model"):
        NgramModel.load(tmp_path / "nothing")


def test_train_counts_lines_as_the_tokenizer_splits_them(specbench: Specbench, tmp_path: Path) -> None:
    texts = ["abab", "  é ", "ab", "cd\u2028e", "last"]
    (tmp_path / "a.txt").write_bytes(f"\ufeff{texts[0]}\r\n\n{texts[1]}\n".encode())
    (tmp_path / "b.jsonl").write_text(json.dumps({"body": texts[2]}) + "\n\n" + json.dumps({"body": texts[3]}))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(texts[4].encode()))
    tiny.save(tmp_path / "model")
    code, out, err = specbench(
        "train", "ngram", "--corpus", "a.txt", "b.jsonl", "c.txt.gz", "--target", str(tmp_path / "model"),
        "--output", "out/ngram", "--order", "3", "--column", "body",
    )  # fmt: skip
    assert code == 0, err
    documents = [tiny.tokenizer()(text)["input_ids"] for text in texts]
    model, expected = NgramModel.load("out/ngram"), naive(documents, 3)
    assert model.tokenizer_digest == vocabulary_digest(tiny.tokenizer().get_vocab())
    assert all(pairs(model, list(context)) == ranked(counts) for context, counts in expected.items())
    num_tokens = sum(map(len, documents))
    for part in (f"{num_tokens} tokens in 5 documents", "3-grams", "tokenizing", "counting", "tokens/s"):
        assert part in out
    assert "--set drafter.path=out/ngram" in err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\n\xff\xfe\n", "a.txt: not UTF-8 text"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "a.jsonl, line 2: not valid JSON"),
        (
            "a.jsonl",
            b'\n{"body": "a"}\n',
            "a.jsonl, row 1: has no column 'text' (columns: body): give --set data.column=body",
        ),
        ("a.jsonl", b'{"id": "1", "body": "a"}\n', "(columns: id, body): give --set data.column=NAME"),
        ("a.jsonl", b'["a"]\n', "a.jsonl, line 1: "),
        ("a.jsonl", b'{"text": 5}\n', "a.jsonl, row 1: column 'text' must be a text, not 5"),
        ("a.txt.gz", b"plain", "a.txt.gz: cannot be read"),
        ("a.txt.gz", gzip.compress(b"word " * 1000, mtime=0)[:-9], "a.txt.gz: cannot be read"),
        ("a.txt", b"\n \n", "--corpus: the corpus has no tokens: give files with text"),
        ("a.pdf", b"", "a.pdf: unsupported file type"),
    ],
)
def test_bad_corpora_are_one_line(
    specbench: Specbench, tmp_path: Path, tiny_pair: tuple[str, str], name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    code, _, err = specbench("train", "ngram", "--corpus", name, "--target", tiny_pair[0], "--output", "out")
    assert code == 2 and message in err and err.count("\n") == 1
    assert without_locks(tmp_path) == [name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--corpus", "gone.txt"), "gone.txt: no such file"),
        (("--corpus", "a.txt", "--target", "./nothing"), "does not exist"),
        (("--corpus", "a.txt", "--target", "embedded:nobody"), "embedded model 'nobody'"),
        (("--corpus", "a.txt", "--order", "0"), "order"),
        (("--corpus", "a.txt", "--output", " "), "is empty"),
    ],
)
def test_bad_arguments_are_one_line(
    specbench: Specbench, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "a.txt").write_text("words\n")
    output = () if "--output" in arguments else ("--output", "out")
    code, _, err = specbench("train", "ngram", *arguments, *output)
    assert code == 2 and message in err and err.count("\n") == 1


def test_train_refuses_a_folder_with_other_things_before_it_reads(specbench: Specbench, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff")
    code, _, err = specbench("train", "ngram", "--corpus", "a.txt", "--output", ".")
    assert code == 2 and "but no n-gram model" in err


def test_ctrl_c_leaves_no_half_model(
    specbench: Specbench, tmp_path: Path, tiny_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specbench.training.corpus.count_ngrams", interrupt)
    (tmp_path / "a.txt").write_text("words\n")
    code, out, err = specbench("train", "ngram", "--corpus", "a.txt", "--target", tiny_pair[0], "--output", "out")
    assert code == 130 and not out and "interrupted" in err
    assert without_locks(tmp_path) == ["a.txt"]


def test_the_benchmark_script_measures_a_small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_ngram, "in_new_process", lambda function, *arguments: function(*arguments))
    figures = bench_ngram.measure(100_000, 3)
    assert figures["num_tokens"] == 100_000 and len(figures["num_ngrams"]) == 3
    assert figures["use_peak_megabytes"] > 0 and figures["build_peak_megabytes"] > 0
    assert all(figures[f"lookup_microseconds_{kind}"] > 0 for kind in ("of_text", "most_frequent", "never_seen"))
