"""A model that reasons and writes what a test says: only its passes are a script, all else is that of any model. Its
tags are special tokens, which decoding drops."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken

from specbench.models.causal_lm import CausalLM
from specbench.models.scoring import Output
from tests.support import tiny

TAGS = ("<think>", "</think>")
TEMPLATE = "{% for each in messages %}[{{ each.role }}] {{ each.content }}\n{% endfor %}[assistant] "


def save(folder: Path, opens: bool, is_special: bool = True) -> Path:
    """Returns a model's folder. `opens`: its chat template writes the opening tag. `is_special`: tags are special
    tokens, else added ones that decoding keeps."""
    made = tiny.tokenizer()
    made.add_tokens([AddedToken(tag, special=is_special) for tag in TAGS], special_tokens=is_special)
    made.chat_template = TEMPLATE + "<think>\n" * opens
    tiny.network(num_hidden_layers=1, vocab_size=len(made), max_position_embeddings=32768).save_pretrained(folder)
    made.save_pretrained(folder)
    return folder


@contextmanager
def scripted(answer: Callable[[str], str]) -> Iterator[None]:
    """Within the block every model writes `answer(prompt)` and then its end token."""
    scripts: dict[int, tuple[int, list[int]]] = {}  # the prompt's length and the answer's tokens, by id of the model

    def reset(model: CausalLM) -> None:
        scripts.pop(id(model), None)

    def score(model: CausalLM, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        if id(model) not in scripts:
            text = answer(model.tokenizer.decode(ids))
            scripts[id(model)] = len(ids), model.tokenizer(text, add_special_tokens=False)["input_ids"]
        num_prompt, script = scripts[id(model)]
        logits = torch.zeros(num_logits, model.vocab_size)
        for row, end in enumerate(range(len(ids) - num_logits + 1, len(ids) + 1)):
            written = ids[num_prompt:end]
            goes_on = script[: len(written)] == written and len(written) < len(script)
            logits[row, script[len(written)] if goes_on else min(model.eos_token_ids)] = 100.0
        model.passes.add(num_logits, 0.0, 0.001)
        return Output(logits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CausalLM, "reset", reset)
        patch.setattr(CausalLM, "score", score)
        patch.setattr(CausalLM, "checkpoint", lambda model: 0)
        patch.setattr(CausalLM, "rollback", lambda model, num_tokens: None)
        yield
