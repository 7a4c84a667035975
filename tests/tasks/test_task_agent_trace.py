"""The traces of an agent: what their rows are, and how much of an answer drafters that copy find."""

import json
from typing import Any

import pytest
import torch

from specbench.core.environment import builtin_dir
from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.models.loading import load_model
from specbench.specs.catalogue import load_method, load_task
from specbench.tasks.examples import load_examples
from tools import agent_trace
from tools.agent_trace import Session, Step

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    lines = (builtin_dir("tasks") / "samples/agent_trace.jsonl").read_text(encoding="utf-8")
    assert lines == agent_trace.text(), "python -m tools.agent_trace tasks/samples/agent_trace.jsonl"
    return [json.loads(line) for line in lines.splitlines()]


def test_each_step_reads_the_file_again_and_writes_it_whole(rows: Rows) -> None:
    assert len(rows) == 20 and len({row["id"] for row in rows}) == 20
    for before, row in zip([None, *rows], rows, strict=False):
        *_, last = row["transcript"].split(">>> read ")
        content = last.partition("\n")[2].partition(">>> write")[0]
        compile(row["file"], "file", "exec")
        assert row["transcript"].endswith(".py\n") and content != row["file"]
        if before is not None and not row["id"].endswith("-1"):
            assert content == before["file"] and row["transcript"].startswith(before["transcript"])
        lines = row["file"].splitlines()
        assert sum(line in content.splitlines() for line in lines) >= 0.5 * len(lines)
        assert "\n>>>" not in row["file"], "the stop string would cut the answer"


def test_an_edit_of_a_text_that_the_file_lacks_is_one_line() -> None:
    wrong = Session("a.py", "x = 1\n", (Step("Rename y.", [("y", "z")]),))
    with pytest.raises(ConfigError, match=r"a\.py, step 1: the file has no 'y': correct the edit"):
        list(agent_trace.rows([wrong]))


def tokens_per_pass(method: str) -> float:
    """τ, with the bonus token, of a drafter if the target writes the files of the sample."""
    target = load_model("embedded:target", device="cpu", weights=False)
    decoder = build_decoder(load_method(method), ModelPair(target), Sampling(0.0))
    assert isinstance(decoder, DraftingDecoder)
    num_tokens = num_passes = 0
    for example in load_examples(load_task("agent_trace"), "default", data=None, use_sample=True, limit=None).examples:
        prompt, answer = (target.tokenizer(text)["input_ids"] for text in (example.prompt, example.references[0]))
        decoder.drafter.prefill(prompt)
        done = 1
        while done < len(answer):
            most = min(decoder.method.num_draft_tokens, len(answer) - done)
            drafted = decoder.drafter.propose(prompt + answer[:done], most, torch.Generator()).token_ids
            right = [a == b for a, b in zip(drafted, answer[done:], strict=False)]
            step = min(len(answer) - done, (right.index(False) if False in right else len(right)) + 1)
            num_tokens, num_passes, done = num_tokens + step, num_passes + 1, done + step
    return num_tokens / num_passes


def test_drafters_that_copy_find_the_answer_in_the_transcript() -> None:
    found = {name: tokens_per_pass(name) for name in ("suffix", "sam", "pld", "ngram-mod")}
    assert {name: round(value, 1) for name, value in found.items()} == {
        "suffix": 9.3, "sam": 8.9, "pld": 5.5, "ngram-mod": 3.5
    }, "docs/notes/memory.md"  # fmt: skip
