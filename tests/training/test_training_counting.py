"""`specbench train ngram`: the data and the settings of every training, and a record beside the counts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.models.corpus_models import NgramModel
from specbench.specs.components import build
from specbench.training.data import gather_data
from specbench.training.spec import DataSpec
from tests.support import tiny

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.save(tmp_path_factory.mktemp("target") / "model", hidden_size=16, num_hidden_layers=1))


def counted(specbench: Run, target: str, *arguments: str) -> dict[str, Any]:
    """The record of a counting into the folder `out`."""
    code, _, err = specbench("train", "ngram", "--target", target, "--output", "out", *arguments)
    assert code == 0, err
    record: dict[str, Any] = json.loads(Path("out/training.json").read_text(encoding="utf-8"))
    return record


def test_the_record_says_what_was_counted_and_what_it_cost(specbench: Run, target: str, tmp_path: Path) -> None:
    (tmp_path / "sw.txt").write_text("moja\nmbili\n\n")
    (tmp_path / "a.txt").write_text("plain\n")
    record = counted(specbench, target, "--corpus", "a.txt", "--text", "sw=sw.txt", "--order", "3")
    model = NgramModel.load("out")
    assert record["settings"]["kind"] == "ngram" and record["settings"]["order"] == 3
    assert record["settings"]["data"]["corpus"] == ["a.txt"]
    assert record["data"]["languages"] == {"sw": 2}
    assert record["data"]["sources"] == ["sw: 2 from sw.txt", "1 from a.txt"] and record["data"]["overlap"] == []
    told = {"name": target, "tokenizer_digest": model.tokenizer_digest}
    assert record["models"] == {"target": told}
    counts = record["counts"]
    assert (counts["num_documents"], counts["num_tokens"]) == (3, model.num_tokens)
    assert (counts["num_ngrams"], counts["digest"]) == (model.num_ngrams, model.digest)
    assert record["cost"]["wall_seconds"] > 0 and "cpu_joules" in record["cost"]
    assert record["environment"]["versions"]["specbench"] and "dtype" not in record["environment"]
    assert record["command"].startswith("specbench train ngram --target ") and record["finished"]


def test_rows_are_those_of_every_training_and_their_answers_have_an_end(specbench: Run, target: str) -> None:
    record = counted(specbench, target, "--task", "world:mgsm", "--subset", "en,sw", "--limit", "5", "--seed", "3")
    spec = build(DataSpec, {"tasks": ["world:mgsm"], "subsets": ["en", "sw"], "limit": 5})
    data = gather_data(spec, 3)
    assert record["data"]["digest"] == data.digest and record["data"]["languages"] == {"en": 5, "sw": 5}
    tokenizer, model = tiny.tokenizer(), NgramModel.load("out")
    documents = [tokenizer(text)["input_ids"] for name in data.languages for text in data.texts(name)]
    assert model.num_tokens == sum(len(ids) + 1 for ids in documents)
    ids, counts = model.continuations([])
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True))[tokenizer.eos_token_id] == len(documents) == 10


def test_the_digest_is_that_of_the_texts_and_not_of_their_files(specbench: Run, target: str, tmp_path: Path) -> None:
    (tmp_path / "whole.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "half.txt").write_text("one\n")
    (tmp_path / "rest.jsonl").write_text('{"text": "two"}\n{"text": "three"}\n{"text": "four"}\n')
    whole = counted(specbench, target, "--corpus", "whole.txt")
    parts = counted(specbench, target, "--corpus", "half.txt", "rest.jsonl", "--limit", "3")
    more = counted(specbench, target, "--corpus", "half.txt", "rest.jsonl")
    assert whole["data"]["digest"] == parts["data"]["digest"] != more["data"]["digest"]
    assert whole["counts"]["digest"] == parts["counts"]["digest"] != more["counts"]["digest"]


def test_a_file_has_the_settings_and_the_command_line_wins(specbench: Run, target: str, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("kind: ngram\norder: 4\nseed: 7\ndata: {tasks: ['world:mgsm'], limit: 2}\n")
    record = counted(specbench, target, "--config", "my.yaml", "--order", "3", "--set", "data.subsets=[en]")
    settings = record["settings"]
    assert (settings["order"], settings["seed"]) == (3, 7)
    assert (settings["data"]["limit"], settings["data"]["subsets"]) == (2, ["en"])
    assert record["data"]["languages"] == {"en": 2}


def test_measured_rows_are_said_to_be_so(specbench: Run, target: str) -> None:
    given = ("--task", "wmt", "--subset", "de-en", "--data", "sample", "--limit", "2", "--output", "out")
    code, _, err = specbench("train", "ngram", "--target", target, *given)
    assert code == 0 and "warning: `specbench run` measures the training rows (de-en: 2 rows of wmt" in err


def test_model_and_record_are_replaced_together(
    specbench: Run, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("words\n")
    first = counted(specbench, target, "--corpus", "a.txt")
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("specbench.training.corpus.CorpusRecord.write", full)
        code, _, err = specbench("train", "ngram", "--target", target, "--corpus", "a.txt", "--output", "out")
    assert code == 2 and "out: cannot be written (No space left" in err
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == files
    second = counted(specbench, target, "--corpus", "a.txt", "--order", "1")
    assert (first["settings"]["order"], second["settings"]["order"]) == (2, 1)
    assert NgramModel.load("out").digest == second["counts"]["digest"] != first["counts"]["digest"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "data: there is no training data: give --corpus or --task or --text"),
        (("--corpus", "a.txt", "--order", "17"), "order = 17"),
        (("--corpus", "a.txt", "--set", "ordr=3"), "--set ordr=3: ordr: unknown key 'ordr': did you mean 'order'?"),
        (("--corpus", "a.txt", "--subset", "en"), "data.subsets: has no effect without data.tasks"),
        (("--config", "other.yaml"), "other.yaml: kind = 'scdf', but the command is `train ngram`"),
        (("--task", "world:mgms"), "data.tasks: 'world:mgms' does not exist: did you mean 'world:mgsm'?"),
        (("--text", "en=gone.txt"), "data.text.en: gone.txt: no such file"),
    ],
)
def test_a_mistake_is_one_line(
    specbench: Run, target: str, tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    (tmp_path / "a.txt").write_text("words\n")
    (tmp_path / "other.yaml").write_text("kind: scdf\n")
    code, out, err = specbench("train", "ngram", "--target", target, "--output", "out", *arguments)
    assert code == 2 and not out and problem in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_only_a_record_is_no_model(specbench: Run, target: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "training.json").write_text("{}")
    (tmp_path / "a.txt").write_text("words\n")
    code, _, err = specbench("train", "ngram", "--target", target, "--corpus", "a.txt", "--output", "out")
    assert code == 2 and "holds training.json but no n-gram model" in err
