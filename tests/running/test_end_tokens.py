"""Answers that go on behind a token that marks the end of a text, where a checkpoint's files name too few of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken

from specbench.results.leaderboard import load
from specbench.results.row import Row
from tests.conftest import Outcome
from tests.support import reasoning_model, tiny

END, IMAGE = "<|endoftext|>", "<|image_pad|>"  # 257 and 258; the tokenizer's end token is 256
Specbench = Callable[..., Outcome]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    made = tiny.tokenizer()
    made.add_tokens([AddedToken(token, special=True) for token in (END, IMAGE)], special_tokens=True)
    tiny.network(num_hidden_layers=1, vocab_size=len(made)).save_pretrained(folder)
    made.save_pretrained(folder)
    return folder


@pytest.fixture
def measured(specbench: Specbench, model: Path, tmp_path: Path) -> Callable[..., tuple[list[Row], str]]:
    """Measures a model that writes a text, into a folder of the name `output`. Returns the rows and what was said."""

    def run(text: str, *options: str, output: str = "run", limit: int = 2) -> tuple[list[Row], str]:
        with reasoning_model.scripted(lambda prompt: text):
            code, _, said = specbench(
                "run", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", str(limit), "--target",
                str(model), "--method", "pld", "--warm-up", "0", "--output", output, "--set",
                "generation.max_new_tokens=8", *options,
            )  # fmt: skip
        assert code == 0, said
        return list(load(tmp_path / output / "leaderboard.json")), " ".join(said.split())

    return run


def warned(rows: list[Row]) -> list[str]:
    return [each.text for row in rows for each in row.warnings if each.code == "past_end"]


def test_a_run_says_at_once_and_in_its_rows_that_answers_go_on(
    measured: Callable[..., tuple[list[Row], str]], specbench: Specbench, tmp_path: Path
) -> None:
    text = f"7{END}{IMAGE}ab"
    rows, said = measured(text)
    assert said.count("ar wrote 4 tokens behind 257 <|endoftext|>, which marks the end of a text") == 1
    assert [row.end_tokens for row in rows] == ["256 <|end|>"] * 2
    own, drafted = warned(rows)
    assert own.startswith("2 of its 2 answers go on") and "(257 <|endoftext|>), with 66.7% of its tokens behind" in own
    assert drafted.startswith("2 of its 2 answers and 2 of ar's go on")
    # The folder confirms the warning, and a row without it is another one.
    board = tmp_path / "run" / "leaderboard.json"
    code, printed, _ = specbench("leaderboard", "validate", str(board), "--records")
    assert code == 0, printed
    # A finished run makes the same rows without the models; an interrupted one goes on.
    again, said = measured(text)
    assert [row.content_digest for row in again] == [row.content_digest for row in rows] and "ar wrote" not in said
    (tmp_path / "run" / "leaderboard.json").unlink()
    records = tmp_path / "run" / "records.jsonl"
    records.write_bytes(records.read_bytes().splitlines(keepends=True)[0])
    again, said = measured(text)
    assert "1 of 2 examples done" in said and "ar wrote" in said and len(warned(again)) == 2


def test_both_remedies_end_the_answers(measured: Callable[..., tuple[list[Row], str]], model: Path) -> None:
    text = f"7{END}ab"
    rows, said = measured(text, "--set", f'generation.stop=["Question:", "{END}"]', limit=1)
    assert not warned(rows) and "ar wrote" not in said and {row.value("new_tokens") for row in rows} == {2}
    file = model / "generation_config.json"
    before = file.read_text()
    file.write_text(json.dumps({"eos_token_id": [256, 257]}))
    rows, said = measured(text, output="named", limit=1)
    file.write_text(before)
    assert not warned(rows) and "ar wrote" not in said and {row.value("new_tokens") for row in rows} == {2}
    assert {row.end_tokens for row in rows} == {"256 <|end|>, 257 <|endoftext|>"}


@pytest.mark.parametrize("text", [f"7{IMAGE}ab", f"7abcdef{END}ab"])
def test_another_special_token_and_an_end_at_the_very_end_are_no_reason(
    text: str, measured: Callable[..., tuple[list[Row], str]]
) -> None:
    rows, said = measured(text, limit=1)
    assert not warned(rows) and "ar wrote" not in said
