"""Instructions of the Aya suite: one file of many languages and scripts, the bundled ones, right and wrong answers."""

import json
import random

import pyarrow
import pyarrow.parquet
import pytest

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.specs.catalogue import load_task
from specbench.tasks.examples import load_examples
from specbench.tasks.readers import aya
from tools.world import WORLDS
from tools.world import chat as dolly

LANGUAGES = ("ar", "de", "en", "es", "fr", "it", "ja", "ko", "pt", "ru", "th", "vi", "zh")  # that Qwen2.5 names
SUITE = [  # as the published file: the languages one after the other, some in two scripts
    {"id": number, "inputs": f"{language}-{script} {number}?", "targets": f"answer {number}", "language": language,
     "script": script, "source_id": number}
    for language, script in [("afr", "Latn"), ("deu", "Latn"), ("zho", "Hant"), ("zho", "Hans"), ("rus", "Cyrl")]
    for number in range(3)
]  # fmt: skip


def load(subset, path, **options):
    options = {"limit": None, **options}
    return load_examples(load_task("dolly"), subset, data=str(path), use_sample=False, **options).examples


@pytest.fixture
def suite(tmp_path):
    folder = tmp_path / "dolly_machine_translated"
    folder.mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(SUITE), folder / "test-00000-of-00001.parquet")
    return tmp_path


def test_each_subset_takes_its_language_of_the_one_file(suite):
    assert [example.prompt for example in load("de", suite, num_subsets=3)] == [f"deu-Latn {n}?" for n in range(3)]
    assert [example.prompt for example in load("zh", suite, num_subsets=3)] == [f"zho-Hans {n}?" for n in range(3)]
    assert load("ru", suite, limit=1)[0].reference == "answer 0"
    with pytest.raises(ConfigError, match="no rows are left of subset 'th'"):
        load("th", suite)


def test_rows_that_name_no_language_or_no_script_are_taken():
    plain = {"inputs": "a", "targets": "b"}
    assert aya("zho", plain) == plain
    assert aya("zho", {**plain, "language": "zho"}) == {**plain, "language": "zho"}
    assert aya("zho", {**plain, "language": "zho", "script": "Hant"}) == []
    assert aya("deu", {**plain, "language": "deu", "script": "Latn"})
    assert aya("deu", {**plain, "language": "eng"}) == []


def test_languages_samples_and_tokenizers():
    task = load_task("dolly")
    assert sorted(task.subset_names) == sorted(LANGUAGES)
    assert {name for name in LANGUAGES if task.subset(name).sample} == set(WORLDS["dolly"].weights())
    for name in LANGUAGES:
        assert task.subset(name).language == name
        assert task.subset(name).reader.startswith("aya_")
        assert task.subset(name).scorer.options["tokenizer"] == {"zh": "zh", "ja": "ja-mecab", "th": "char"}.get(
            name, "13a"
        )
    assert task.dataset.name is None and task.dataset.data_files, "one file of one split"


@pytest.mark.parametrize("subset", list(WORLDS["dolly"].weights()))
def test_the_world_s_answers_are_right_and_others_are_not(subset, tmp_path):
    generator = random.Random(1)
    rows = [dolly.dolly_draw(subset, True, generator) for _ in range(12)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if k[0] != "_"}) + "\n" for row in rows))
    spec = load_task("dolly").subset(subset).scorer
    scorer = SCORERS.get(spec.type)(**spec.options)
    for row, example in zip(rows, load(subset, path), strict=True):
        prompt, completion = WORLDS["dolly"].example(row)
        assert prompt == example.prompt
        assert scorer(completion.strip(), example.reference).values["bleu"] == pytest.approx(100)
        assert scorer("", example.reference).values["bleu"] == 0
        assert scorer("Я не знаю 0!", example.reference).values["bleu"] < 30
