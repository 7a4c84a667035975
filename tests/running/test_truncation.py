"""Prompts that are too long lose their middle: as little as must be, the same for all models, and counted."""

import json
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import Prompt
from specbench.running.models import LoadedModels
from specbench.running.prompts import PromptBudget, PromptRenderer, Texts, truncate_examples
from specbench.specs.catalogue import load_method
from specbench.tasks.examples import Example, TaskData
from tests.support import tiny


class Words:
    """A model whose tokens are words; only what prompts need."""

    def __init__(self) -> None:
        self.chat_template = SimpleNamespace(exists=False)

    def render_prompt(self, texts: Sequence[str], chat: bool, system: str | None) -> Prompt:
        return Prompt("", array("I", range(len(" ".join(texts).split()))))


def shorten(texts: Texts, budgets: Sequence[Any], chat: str) -> Texts:
    return PromptRenderer(chat, budgets).shorten(texts)


def data(*prompts: str) -> TaskData:
    examples = (Example(n, str(n), (prompt,), (None,)) for n, prompt in enumerate(prompts))
    return TaskData("local", "rows.jsonl", None, tuple(examples))


def test_a_text_that_fits_is_left_alone() -> None:
    budgets = [PromptBudget(tiny.causal_lm(), 26)]
    assert shorten(("abcdefghijklmnopqrstuvwxyz",), budgets, "never") == ("abcdefghijklmnopqrstuvwxyz",)
    assert shorten(("x" * 9999,), [], "never") == ("x" * 9999,)


@pytest.mark.parametrize(("num_tokens", "expected"), [(5, "abcyz"), (6, "abcxyz"), (1, "a")])
def test_the_middle_goes_and_no_more_than_must(num_tokens: int, expected: str) -> None:
    budgets = [PromptBudget(tiny.causal_lm(), num_tokens)]  # a token a byte
    assert shorten(("abcdefghijklmnopqrstuvwxyz",), budgets, "never") == (expected,)


def test_the_tightest_model_decides_for_all() -> None:
    text = "one two three four five six seven eight nine ten"
    model, words = tiny.causal_lm(), Words()
    for budgets in (
        [PromptBudget(model, 30), PromptBudget(words, 8)],
        [PromptBudget(words, 8), PromptBudget(model, 30)],
    ):
        (cut,) = shorten((text,), budgets, "never")
        assert (len(model.encode_prompt(cut, chat=False)), len(cut.split())) == (30, len(cut.split()))
        assert len(cut.split()) <= 8
    (cut,) = shorten((text,), [PromptBudget(model, 40), PromptBudget(words, 4)], "never")
    assert len(cut.split()) == 4 and text.startswith(cut[:5]) and text.endswith(cut[-5:])


def test_of_a_conversation_the_middle_of_all_texts_goes() -> None:
    budgets = [PromptBudget(tiny.causal_lm(), 12)]
    texts = ("aaaaaaaa", "bbbb", "cccccccc")  # and two line breaks
    assert shorten(texts, budgets, "never") == ("aaaaa", "", "ccccc")


def test_nothing_can_be_cut_from_a_template() -> None:
    model = tiny.causal_lm()
    model.tokenizer.chat_template = "a long text that is always there"
    with pytest.raises(ConfigError, match="chat template alone is longer"):
        shorten(("hello",), [PromptBudget(model, 10)], "auto")


def test_what_went_is_counted_in_tokens_of_the_target() -> None:
    model = tiny.causal_lm()
    cut = truncate_examples(data("x" * 100, "short"), model, PromptRenderer("never", [PromptBudget(model, 60)]))
    assert [example.truncated_tokens for example in cut.examples] == [40, 0]
    assert [len(example.prompt) for example in cut.examples] == [60, 5]


def test_budgets_leave_room_for_the_answer_in_every_context() -> None:
    small, large = tiny.causal_lm(max_position_embeddings=64), tiny.causal_lm(max_position_embeddings=256)
    sd, draft_only = load_method("sd"), load_method("draft-only")
    found = LoadedModels(large, {"sd": small}).budgets([sd], 24)  # the drafter reads the target's tokens
    assert [(budget.model, budget.num_tokens) for budget in found] == [(large, 40)]
    other = LoadedModels(large, {"draft-only": small}).budgets([draft_only], 24)  # it counts tokens of its own
    assert [(budget.model, budget.num_tokens) for budget in other] == [(large, 40), (small, 40)]
    assert LoadedModels(small, {}).budgets([], 1000)[0].num_tokens == 32  # half of the context is for the prompt


@pytest.mark.parametrize("chat", ["always", "auto"])
@pytest.mark.parametrize("name", ["sd", "slem"])
def test_a_drafter_reads_what_the_target_reads(name: str, chat: str) -> None:
    """It needs no chat template, and the target's counts in it."""
    target, drafter = tiny.causal_lm(), tiny.causal_lm(max_position_embeddings=64)
    target.tokenizer.chat_template = "<{{ messages[0].content }}>" + "-" * 18
    budgets = LoadedModels(target, {name: drafter}).budgets([load_method(name)], 24)
    assert shorten(("a" * 20,), budgets, chat) == ("a" * 20,)
    assert shorten(("a" * 21,), budgets, chat) == ("a" * 20,)
    with pytest.raises(ConfigError, match="has no chat template"):
        alone = LoadedModels(target, {"draft-only": drafter}).budgets([load_method("draft-only")], 24)
        shorten(("a",), alone, "always")


def test_one_drafter_has_a_budget_for_each_way_in_which_it_reads() -> None:
    target, drafter = tiny.causal_lm(), tiny.causal_lm(max_position_embeddings=64)
    methods = [load_method(name) for name in ("slem", "draft-only", "tli")]
    found = LoadedModels(target, {method.name: drafter for method in methods}).budgets(methods, 24)
    assert [(b.model, b.num_tokens, b.translated) for b in found] == [
        (target, 40, None), (drafter, 40, target), (drafter, 40, None),
    ]  # fmt: skip


@pytest.fixture
def task(tmp_path: Path) -> Callable[..., str]:
    def write(**changes: Any) -> str:
        whole = {
            "name": "long", "version": 1, "title": "Long", "prompt": "{{ row.text }} Sum:",
            "generation": {"max_new_tokens": 24}, "local": {"files": ["rows"]}, **changes,
        }  # fmt: skip
        rows = ({"text": text} for text in ("short", "begin " + "very " * 300 + "long"))
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "long.yaml").write_text(yaml.safe_dump(whole))
        return str(tmp_path / "long.yaml")

    return write


def test_a_run_records_what_was_cut(
    task: Callable[..., str], specbench: Callable[..., tuple[int, str, str]], tiny_pair: tuple[str, str], tmp_path: Path
) -> None:
    options = ("--method", "sd", "--data", str(tmp_path), "--target", tiny_pair[0], "--drafter", tiny_pair[1])
    code, _, err = specbench("run", "--task", task(), *options, "--output", "no")
    assert code == 2 and "the prompt has 1515 tokens, but the context of the models is 1024" in err
    assert "--set truncation=middle" in err
    code, _, err = specbench("run", "--task", task(), "--set", "truncation=middle", *options, "--output", "yes")
    assert code == 0, err
    records = [json.loads(line) for line in (tmp_path / "yes" / "records.jsonl").read_text().splitlines()]
    assert [record["truncated_tokens"] for record in records] == [0, 515]
    assert [record["prompt_tokens"] for record in records] == [10, 1000]
    assert "budgets" not in records[0]
    assert records[1]["budgets"] == {tiny_pair[0]: 1000}
    assert all(part["finish"] == "length" for record in records for part in record["methods"].values())
    rows = json.loads((tmp_path / "yes" / "leaderboard.json").read_text())["rows"]
    assert {(row["context"]["model"], row["context"]["tokens"]) for row in rows} == {(tiny_pair[0], 1024)}


def test_a_run_says_whose_context_cuts_answers_where_a_drafter_pauses_and_what_ids_it_shares(
    task: Callable[..., str], specbench: Callable[..., tuple[int, str, str]], tiny_pair: tuple[str, str], tmp_path: Path
) -> None:
    """A drafter of 32 positions, with an added token. Rows are recomputed from the run's folder alone."""
    made = tiny.tokenizer()
    made.add_tokens(["<extra>"])
    tiny.network("gpt2", vocab_size=len(made), max_position_embeddings=32, num_hidden_layers=1).save_pretrained("small")
    made.save_pretrained("small")
    options = ("--task", task(), "--method", "sd", "--data", str(tmp_path), "--target", tiny_pair[0], "--limit", "1",
               "--drafter", "small", "--set", "generation.max_new_tokens=40")  # fmt: skip
    for number, more in enumerate([(), ("--set", "drafter.beyond_context=pause")]):
        code, out, err = specbench("run", *options, *more, "--output", f"run{number}")
        assert code == 0, err
        said, row = (
            " ".join(out.split()),
            json.loads((tmp_path / f"run{number}/leaderboard.json").read_text())["rows"][-1],
        )
        assert "257 of the target's 257 and the drafter's 258 ids in common; it drafts only these" in said
        if more:
            assert row["context"] == {"model": tiny_pair[0], "tokens": 1024, "share_cut_ar": 0.0, "pauses_at": 32,
                                      "share_paused": 18 / 40, "trained": None, "share_beyond": None}  # fmt: skip
            assert "tokens beyond the drafter's context of 32 tokens" in said and "answers cut" not in said
        else:
            assert row["context"]["tokens"] == 32 and row["context"]["share_cut_ar"] == 1.0
            assert "answers cut at the context of small, 32 tokens (--set drafter.beyond_context=pause" in said
            assert "100% of ar, 100% of sd in default" in said
        code, out, err = specbench("leaderboard", "validate", "--records", f"run{number}/leaderboard.json")
        assert code == 0, out + err
