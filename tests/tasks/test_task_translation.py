"""Translation tasks: prompts, layouts of published and local files, source languages, right and wrong answers."""

import json
import random
from pathlib import Path

import pytest

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.specs.catalogue import load_task, with_overrides
from specbench.tasks.examples import load_examples
from specbench.tasks.readers.documents import translation as reader
from tools.world import WORLDS

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
TASKS = ("wmt", "iwslt14", "low_resource_mt")
SUBSETS = [(task, subset) for task in TASKS for subset in WORLDS[task].weights()]
LOW_RESOURCE = ["amh", "ber", "chr", "grn", "haw", "ibo", "npi", "oci", "que", "yor", "zgh"]
ROWS = [{"translation": {"de": "Guten Tag.", "en": "Hello."}}, {"translation": {"de": "Danke.", "en": "Thanks."}}]


def load(task, subset, path, **options):
    options = {"limit": None, **options}
    return load_examples(load_task(task), subset, data=str(path), use_sample=False, **options).examples


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def scores(task, subset, answers, references):
    """BLEU and chrF++ of a corpus, as a run makes them of the answers' statistics."""
    spec = load_task(task).subset(subset).scorer
    scorer = SCORERS.get(spec.type)(**spec.options)
    each = [scorer(answer, reference) for answer, reference in zip(answers, references, strict=True)]
    return {
        name: scorer.corpus(
            name, [sum(column) for column in zip(*(score.statistics[name] for score in each), strict=True)]
        )
        for name in scorer.names
    }


@pytest.mark.parametrize(("task", "subset"), SUBSETS)
def test_the_world_s_answers_are_right_and_others_are_not(task, subset, tmp_path):
    generator = random.Random(1)
    rows = [WORLDS[task].draw(subset, True, generator) for _ in range(12)]
    path = write(tmp_path / "rows.jsonl", [{k: v for k, v in row.items() if k[0] != "_"} for row in rows])
    examples = load(task, subset, path)
    texts = [WORLDS[task].example(row) for row in rows]
    assert [example.prompt for example in examples] == [prompt for prompt, _ in texts]
    references = [example.reference for example in examples]
    right = scores(task, subset, [completion.strip() for _, completion in texts], references)
    shifted = scores(task, subset, references[1:] + references[:1], references)
    assert right == pytest.approx({"bleu": 100, "chrf": 100})
    assert scores(task, subset, [""] * 12, references) == {"bleu": 0, "chrf": 0}
    assert 0 <= shifted["bleu"] < 60 and shifted["chrf"] < 70


def test_prompts_and_languages_of_wmt():
    wmt = load_task("wmt")
    pairs = {f"{other}-en" for other in ("de", "fr", "ru", "zh", "ja")}
    assert set(wmt.subset_names) == pairs | {"-".join(reversed(pair.split("-"))) for pair in pairs}
    for name in wmt.subset_names:
        subset = wmt.subset(name)
        assert name == f"{subset.vars['source']}-{subset.vars['target']}" and subset.language == subset.vars["target"]
        assert subset.scorer.options["tokenizer"] == {"zh": "zh", "ja": "ja-mecab"}.get(subset.language, "13a")
        assert subset.dataset.data_files and subset.dataset.name is None, "one file of one split"
    assert wmt.subset("de-en").dataset == wmt.subset("en-de").dataset


@pytest.mark.parametrize(
    "row",
    [
        {"translation": {"en": "Hello.", "de": "Guten Tag."}},
        {"en": "Hello.", "de": "Guten Tag."},
        {"English": "Hello.", " german": "Guten Tag."},
    ],
)
def test_layouts_of_one_file_in_both_directions(tmp_path, row):
    write(tmp_path / "de-en.jsonl", [row])
    there, back = (load("wmt", name, tmp_path, num_subsets=2)[0] for name in ("de-en", "en-de"))
    assert (there.prompt, there.reference) == ("Translate German to English: Guten Tag.", "Hello.")
    assert (back.prompt, back.reference) == ("Translate English to German: Hello.", "Guten Tag.")


@pytest.mark.parametrize(("task", "subset"), [*SUBSETS, *(("low_resource_mt", name) for name in LOW_RESOURCE)])
def test_an_answer_ends_with_its_line_but_not_in_chat(task, subset):
    """There it may begin with an empty line, or with "Here is the translation:"."""
    generation = load_task(task).subset(subset).generation
    assert generation.where(in_chat=False).stop == ("\n",) and generation.where(in_chat=True).stop == ()


def test_other_columns_stay_and_unknown_ones_are_told_of():
    assert reader({"id": 7, "English": "a", "Yoruba": "b"}) == {"id": 7, "translation": {"en": "a", "yor": "b"}}
    with pytest.raises(ConfigError, match=r"columns source, en: name two of them after their languages"):
        reader({"source": "a", "en": "b"})


def test_a_row_without_the_language_that_is_asked(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(ConfigError, match=r"rows.jsonl, row 1: .*prompt"):
        load("wmt", "fr-en", path)


@pytest.mark.parametrize("nothing", [None, float("nan"), " \t"])
@pytest.mark.parametrize("in_columns", [True, False])
def test_a_missing_translation_is_no_reference_and_a_missing_source_is_told(tmp_path, nothing, in_columns):
    row = {"de": " Guten Tag. ", "en": nothing}
    path = write(tmp_path / "rows.jsonl", [row if in_columns else {"translation": row}])
    (example,) = load("wmt", "de-en", path)
    assert (example.prompt, example.reference) == ("Translate German to English: Guten Tag.", None)
    with pytest.raises(ConfigError, match=r"rows.jsonl, row 1: .*prompt"):
        load("wmt", "en-de", path, num_subsets=2)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"translation": {"de": 5, "en": "x"}}, "row 1: the text in language 'de' is of type int, 5: correct it"),
        ({"de": ["a"], "en": "x"}, "row 1: the text in language 'de' is of type list"),
        ({"translation": "x"}, "row 1: column 'translation' must map languages to texts, but is of type str"),
    ],
)
def test_a_translation_that_is_no_text_is_told(tmp_path, row, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load("wmt", "de-en", write(tmp_path / "rows.jsonl", [row]))
    assert "\n" not in str(caught.value)


def test_a_blank_line_of_the_source_is_told(tmp_path):
    (tmp_path / "test.de").write_text("Ja.\n\n", encoding="utf-8")
    (tmp_path / "test.en").write_text("Yes.\nNo.\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"test.de, line 2: .*prompt"):
        load("iwslt14", "de-en", tmp_path)


def test_texts_aligned_line_by_line(tmp_path):
    (tmp_path / "set.jpn-eng.jpn").write_text("猫。\n犬。\n", encoding="utf-8")
    (tmp_path / "set.jpn-eng.eng").write_text("A cat.\nA dog.\n", encoding="utf-8")
    assert load("wmt", "en-ja", tmp_path)[1].prompt == "Translate English to Japanese: A dog."
    assert load("wmt", "ja-en", tmp_path, num_subsets=2)[0].reference == "A cat."
    (tmp_path / "test.de").write_text("Ja.\n", encoding="utf-8")
    (tmp_path / "test.en").write_text("Yes.\n", encoding="utf-8")
    assert load("iwslt14", "de-en", tmp_path)[0].prompt == "Translate German to English: Ja."


def test_a_low_resource_language_is_local_only_and_the_sample_is_invented():
    task = load_task("low_resource_mt")
    assert [name for name in task.subset_names if name != "x-demo"] == LOW_RESOURCE
    assert [name for name in task.subset_names if task.subset(name).sample] == ["x-demo"]
    assert task.generation.model_dump(exclude={"stop", "chat_stop", "reasoning_tags"}) == {
        "max_new_tokens": 128, "temperature": 1.0, "top_k": 100, "top_p": 0.9,
    }  # fmt: skip
    for name in LOW_RESOURCE:
        assert task.subset(name).dataset is None
        with pytest.raises(ConfigError, match="--data"):
            load("low_resource_mt", name, "sample")


@pytest.mark.parametrize("name", LOW_RESOURCE)
def test_layouts_of_low_resource_languages(tmp_path, name):
    source, suffix = ("es", "quy") if name == "que" else ("en", name)
    (tmp_path / "parallel").mkdir()
    (tmp_path / f"parallel/news.{source}").write_text("One.\n", encoding="utf-8")
    (tmp_path / f"parallel/news.{suffix}").write_text("Two.\n", encoding="utf-8")
    write(tmp_path / f"table/{name}.jsonl", [{source: "One.", name: "Two."}])
    language = "Spanish" if name == "que" else "English"
    for folder in (tmp_path / "table", tmp_path / "parallel"):
        (example,) = load("low_resource_mt", name, folder)
        assert example.prompt.startswith(f"Translate {language} to ") and example.prompt.endswith(": One.")
        assert example.reference == "Two."


@pytest.mark.parametrize(
    ("subset", "sets", "files", "begins"),
    [
        ("grn", ["source=es"], ("dev.es", "dev.gn"), "Translate Spanish to Guarani: One."),
        ("grn", ["source=spa"], ("dev.es", "dev.grn"), None),  # a code that `prompt` does not name
        ("grn", ["source=spa", "source_language=Castilian"], ("dev.es", "dev.grn"), "Translate Castilian to Guarani: "),
        ("grn", ["source=pt"], ("dev.por", "dev.gn"), "Translate Portuguese to Guarani: One."),
        ("amh", ["source=fr"], ("x.amh-fra.fra", "x.amh-fra.amh"), "Translate French to Amharic: One."),
        ("que", ["source=en"], ("dev.en", "dev.quy"), "Translate English to Quechua: One."),
        ("ber", ["source=ayr", "source_language=Aymara"], ("dev.ayr", "dev.ber"), "Translate Aymara to Berber: One."),
    ],
)
def test_any_source_language_by_key(tmp_path, subset, sets, files, begins):
    for name, text in zip(files, ("One.", "Two."), strict=True):
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    [task], _ = with_overrides([load_task("low_resource_mt")], [], [f"subsets.{subset}.vars.{each}" for each in sets])
    if begins is None:
        with pytest.raises(ConfigError, match=r"prompt .*vars.source_language = None.*--set vars\.NAME="):
            load_examples(task, subset, data=str(tmp_path), use_sample=False, limit=None)
        return
    (example,) = load_examples(task, subset, data=str(tmp_path), use_sample=False, limit=None).examples
    assert example.prompt.startswith(begins) and example.reference == "Two."
    others = [name for name in task.subset_names if name != subset]
    assert [task.subset(name) for name in others] == [load_task("low_resource_mt").subset(name) for name in others]


@pytest.mark.parametrize(
    "row",
    [{"es": "One.", "gn": "Two."}, {"id": 1, "Spanish": "One.", "Guarani": "Two."},
     {"translation": {"spa": "One.", "gn": "Two."}}, {"no": "x", "es": "One.", "grn": "Two."}],
)  # fmt: skip
def test_the_other_code_of_a_language_in_a_table(tmp_path, row):
    write(tmp_path / "grn.jsonl", [row])
    [task], _ = with_overrides([load_task("low_resource_mt")], [], ["subsets.grn.vars.source=es"])
    (example,) = load_examples(task, "grn", data=str(tmp_path), use_sample=False, limit=None).examples
    assert (example.prompt, example.reference) == ("Translate Spanish to Guarani: One.", "Two.")


REAL = [
    ("wmt", "de-en", "wmt22", 200), ("wmt", "en-de", "wmt22", 200), ("wmt", "de-en", "tatoeba", 1000),
    ("wmt", "en-ja", "tatoeba", 1000), ("low_resource_mt", "amh", "tatoeba", 168),
    ("low_resource_mt", "chr", "low_resource", 200), ("low_resource_mt", "que", "low_resource", 200),
    ("low_resource_mt", "yor", "low_resource", 200),
]  # fmt: skip


@pytest.mark.skipif(not SHARED.is_dir(), reason="no real files here")
@pytest.mark.parametrize(("task", "subset", "folder", "number"), REAL)
def test_real_files(task, subset, folder, number):
    examples = load(task, subset, SHARED / folder, num_subsets=2)
    assert len(examples) == number and all(example.reference for example in examples)
