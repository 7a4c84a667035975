"""The data of a training: languages, what is measured too, and a line for what is missing or empty."""

from pathlib import Path
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.embedded import MAX_WORLD_ROWS
from specbench.specs.components import build
from specbench.training.data import TrainingData, TrainingPrompt, load_data, total_steps
from specbench.training.spec import TrainSpec
from tools.embedded.rows import held_out_rows


def loaded(kind: str = "distill", seed: int = 0, block: dict[str, Any] | None = None, **data: Any) -> TrainingData:
    blocks = {kind: block} if block else {}
    return load_data(build(TrainSpec, {"kind": kind, "data": data, "output": "o", "seed": seed, **blocks}))


def test_rows_of_the_world_are_seeded_and_never_those_that_are_measured() -> None:
    data = loaded(tasks=["world:mgsm"], subsets=["en", "sw"], limit=200)
    assert data.languages == ("en", "sw") and data.num_prompts == 400
    assert data.overlap == ()
    assert data.digest == loaded(tasks=["world:mgsm"], subsets=["en", "sw"], limit=200).digest
    assert data.digest != loaded(seed=1, tasks=["world:mgsm"], subsets=["en", "sw"], limit=200).digest
    measured = {row["question"] for row in held_out_rows("mgsm", 24, seed=0)}
    assert not [prompt for prompt in data.prompts["en"] if any(question in prompt.text for question in measured)]
    texts = [prompt.whole for prompt in data.prompts["en"]]
    assert len(set(texts)) == 200 and all("Step-by-Step Answer: " in text for text in texts)


def test_more_rows_than_the_world_has_are_one_line() -> None:
    given: dict[str, Any] = {"tasks": ["world:mgsm"], "subsets": ["en"]}
    assert loaded(limit=MAX_WORLD_ROWS, **given).num_prompts == MAX_WORLD_ROWS
    with pytest.raises(ConfigError, match=rf"data.limit = 2049: world:mgsm has at most {MAX_WORLD_ROWS} rows"):
        loaded(limit=MAX_WORLD_ROWS + 1, **given)


def test_measured_rows_are_said_to_be_so() -> None:
    data = loaded(tasks=["wmt"], subsets=["de-en", "en-de"], source="sample", limit=3)
    assert data.languages == ("de-en", "en-de")
    assert data.overlap == ("de-en: 3 rows of wmt (wmt.jsonl)", "en-de: 3 rows of wmt (wmt.jsonl)")
    prompt = data.prompts["de-en"][0]
    assert prompt.text.startswith("Translate German to English: ") and prompt.reference
    assert data.texts("de-en")[0] == f"{prompt.text} {prompt.reference}"


def test_another_split_is_no_overlap(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "en.tsv").write_text(f"{split} question\t7\n")
    train = loaded(tasks=["mgsm"], subsets=["en"], source=str(tmp_path / "train"), split="train")
    test = loaded(tasks=["mgsm"], subsets=["en"], source=str(tmp_path / "test"))
    assert "train question" in train.prompts["en"][0].text and train.overlap == ()
    assert "test question" in test.prompts["en"][0].text and len(test.overlap) == 1
    with pytest.raises(ConfigError, match=r"data.split = 'train': .*en.tsv, which is not named after the split"):
        loaded(tasks=["mgsm"], subsets=["en"], source=str(tmp_path / "test"), split="train")
    with pytest.raises(ConfigError, match=r"data.split = 'test': is the split that task 'mgsm' measures"):
        loaded(tasks=["mgsm"], source=str(tmp_path / "test"), split="test")
    with pytest.raises(ConfigError, match=r"data.split = 'train': the bundled samples have one split"):
        loaded(tasks=["mgsm"], source="sample", split="train")


def test_texts_by_language(tmp_path: Path) -> None:
    (tmp_path / "en.txt").write_text("one\n\ntwo\nthree\n")
    (tmp_path / "sw.csv").write_text("id,content\n1,moja\n2,mbili\n")
    data = loaded(text={name: str(tmp_path / name) for name in ("en.txt", "sw.csv")}, column="content", limit=2)
    assert data.prompts == {
        "en.txt": (TrainingPrompt("en.txt", "one"), TrainingPrompt("en.txt", "two")),
        "sw.csv": (TrainingPrompt("sw.csv", "moja"), TrainingPrompt("sw.csv", "mbili")),
    }


def test_a_language_from_several_places_is_one(tmp_path: Path) -> None:
    (tmp_path / "en.txt").write_text("one\n")
    data = loaded(tasks=["world:mgsm"], subsets=["en"], limit=2, text={"en": str(tmp_path / "en.txt")})
    assert [len(prompts) for prompts in data.prompts.values()] == [3]
    assert data.sources == ("en: 2 from world:mgsm", f"en: 1 from {tmp_path / 'en.txt'}")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"tasks": ["world:mgsm"], "subsets": ["en", "swa"]},
         "data.subsets: world:mgsm has no language 'swa': did you mean 'sw'?"),
        ({"tasks": ["mgsm"], "subsets": ["xx"], "source": "sample"}, "data.subsets: mgsm has no language 'xx'"),
        ({"tasks": ["mgsm", "world:wmt"], "subsets": ["en", "xx"], "source": "sample"}, "has no language 'xx'"),
        ({"tasks": ["world:mgms"]}, "data.tasks: 'world:mgms' does not exist: did you mean 'world:mgsm'? (choices: "),
        ({"tasks": ["world:dril"]}, "data.tasks: 'world:dril' does not exist: did you mean 'world:drill'?"),
        ({"tasks": ["mgms"]}, "mgsm"),
        ({"tasks": ["world:mgsm"], "source": "hub"}, "data.source: has no effect on rows of the embedded world"),
        ({"text": {"en": "{folder}/empty.txt"}}, "data.text.en: '{folder}/empty.txt': the corpus is empty"),
        ({"text": {"en": "{folder}/none.txt"}}, "data.text.en: {folder}/none.txt: no such file"),
    ],
)  # fmt: skip
def test_what_is_missing_or_empty_is_named(tmp_path: Path, data: dict[str, Any], problem: str) -> None:
    (tmp_path / "empty.txt").write_text("\n  \n")

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(inner) for key, inner in value.items()}
        return value.replace("{folder}", str(tmp_path)) if isinstance(value, str) else value

    with pytest.raises(ConfigError) as error:
        loaded(**filled(data))
    assert problem.replace("{folder}", str(tmp_path)) in str(error.value)


def test_scdf_needs_its_languages() -> None:
    with pytest.raises(
        ConfigError, match="has one language, 'en', and s-CDF gives the best language of a pass no weight"
    ):
        loaded("scdf", tasks=["world:mgsm"], subsets=["en"], limit=2)
    balanced = {"weighting": "balanced", "proportions": {"en": 1, "xx": 2}}
    with pytest.raises(ConfigError, match=r"scdf.proportions.xx: the data has no language 'xx'"):
        loaded("scdf", block=balanced, tasks=["world:mgsm"], subsets=["en", "sw"], limit=2)
    assert loaded("scdf", block={"weighting": "equal"}, tasks=["world:mgsm"], subsets=["en"], limit=2).num_prompts == 2


def test_epochs_are_whole() -> None:
    data = {"tasks": ["world:mgsm"]}
    spec = build(TrainSpec, {"kind": "finetune", "data": data, "output": "o", "finetune": {"epochs": 2}})
    assert total_steps(spec, 17) == 2 * 3  # batches of 8: 8 + 8 + 1
    assert total_steps(spec.model_copy(update={"gradient_accumulation": 4}), 17) == 2  # 6 passes, and 2 more
    assert total_steps(spec.model_copy(update={"num_steps": 5, "gradient_accumulation": 4}), 17) == 5
    with pytest.raises(ConfigError, match=r"warmup = 7: .* has only num_steps = 6: give fewer, or a share"):
        total_steps(spec.model_copy(update={"warmup": 7}), 17)
