"""The plan is checked before anything runs: prompts fit, tokens exist, references can be read."""

from types import SimpleNamespace
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.running.plan import check_prompts, check_references
from specbench.running.prompts import PromptRenderer, uses_chat
from specbench.specs.components import ScorerSpec
from specbench.tasks.examples import Example
from specbench.tasks.scoring import make_scorer
from tests.support import tiny


def cell(prompt: str, model: Any, context_limit: int | None = 100, reference: str = "1") -> Any:
    data = SimpleNamespace(location="rows.tsv", examples=[Example(0, "first", (prompt,), (reference,))])
    task = SimpleNamespace(name="t", language="en", scorer=ScorerSpec.model_validate({"type": "number"}))
    decoder = SimpleNamespace(model=model)
    decoder.parts = (decoder,)
    scorer = make_scorer(task)
    return SimpleNamespace(
        task=task,
        subset="en",
        data=data,
        decoders=[decoder],
        context_limit=context_limit,
        scorer=scorer,
        limited_by="small",
        renderer=PromptRenderer("never"),
        readers=(model,),
    )


def test_a_prompt_must_leave_room_for_one_token() -> None:
    check_prompts(cell("x" * 99, tiny.causal_lm()))
    with pytest.raises(
        ConfigError, match=r"t/en example first: the prompt has 100 tokens.*100 tokens \(that of 'small'"
    ):
        check_prompts(cell("x" * 100, tiny.causal_lm()))
    check_prompts(cell("x" * 1000, tiny.causal_lm(), context_limit=None))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty after tokenization"):
        check_prompts(cell("", tiny.causal_lm()))


def test_a_tokenizer_that_is_wider_than_its_model_is_refused() -> None:
    narrow = tiny.causal_lm(vocab_size=200)
    check_prompts(cell("plain", narrow))
    with pytest.raises(ConfigError, match=r"makes token 2[0-9]+, but the model has only 200"):
        check_prompts(cell("naïve \x00", narrow))


def test_a_scorer_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    SCORERS.names()
    monkeypatch.setitem(SCORERS._builtin, "number", lambda: len)
    with pytest.raises(ConfigError, match="scorer 'number' returned a builtin_function_or_method, not a "):
        cell("x", None)


def test_references_are_read_once_before_the_run() -> None:
    check_references(cell("x", None, reference="2,125"))
    with pytest.raises(ConfigError, match=r"rows\.tsv: en example first: .*'many' holds no number"):
        check_references(cell("x", None, reference="many"))


def test_chat() -> None:
    model = tiny.causal_lm()
    assert not uses_chat(model, "auto") and not uses_chat(model, "never")
    with pytest.raises(ConfigError, match="no chat template"):
        uses_chat(model, "always")
    model.tokenizer.chat_template = "{{ messages[0].content }}"
    assert uses_chat(model, "auto") and uses_chat(model, "always") and not uses_chat(model, "never")
