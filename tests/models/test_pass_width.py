"""Passes of a fixed number of rows (--pass-width): no row depends on the tokens of a pass, padding leaves nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.models.batch_width import BaselineAnswer, BatchWidth, Compared, measure_batch_width
from specbench.models.causal_lm import CausalLM
from specbench.models.eager import EagerSequence
from specbench.models.loading import load_model
from specbench.results.conditions import conditions_that_differ
from specbench.results.leaderboard import load
from specbench.specs.run_options import TARGET_OPTIONS
from tests.support import tiny

Outcome = tuple[int, str, str]
WIDTH = 4
IDS = [5, 9, 30, 31, 7, 8, 60, 61, 90, 91, 92, 3, 17]  # three parts and a token
PARENTS = (-1, 0, 0, 1, 2, 4)  # the branch 0, 2, 4, 5 has a gap behind its first node
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def padded(kind: str = "llama", num_rows: int = WIDTH, **overrides: Any) -> CausalLM:
    model = tiny.causal_lm(kind, **overrides)
    model.sequence.fix_width(num_rows)
    return model


def fresh(model: CausalLM, ids: list[int], num_logits: int = 1) -> torch.Tensor:
    model.reset()
    return model.score(ids, num_logits).logits.clone()


def measured(model: CausalLM, text: str = "def add(a, b):\n    return a") -> BatchWidth:
    ids = model.encode_prompt(text, chat=False)[:20]
    answer = BaselineAnswer("", ids, [(7 * place + ids[0]) % 150 for place in range(14)])
    return measure_batch_width(model, [answer], 5, 9, whole=True)


# What it is for.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_are_the_same_bit_for_bit_in_chains_trees_and_whole_texts(dtype: str) -> None:
    """Also in passes that are longer than the width. Without the option they are not, so that the test can fail."""
    assert not measured(load_model("embedded:drafter", device="cpu", dtype=dtype)).is_independent
    found = measured(load_model("embedded:drafter", device="cpu", dtype=dtype, pass_width=WIDTH))
    assert {each.compared for each in found.changes} == set(get_args(Compared))
    assert found.is_independent and found.repeated and found.rolled_back
    assert found.padding_cost is not None and found.padding_cost > 0


@pytest.mark.parametrize("kind", ["gemma3_text", "mistral"])
def test_sliding_windows_do_not_depend_on_the_width(kind: str) -> None:
    assert measured(padded(kind)).is_independent


# What it must not change.


@pytest.mark.parametrize("num_rows", [1, WIDTH, 32])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma3_text"])
def test_logits_and_hidden_states_are_those_without_it(kind: str, num_rows: int) -> None:
    plain, model = tiny.causal_lm(kind), padded(kind, num_rows)
    for each in (plain, model):
        each.hidden_layers = (1, 2)
    for num_logits in (1, 3, len(IDS)):
        expected, found = (each.score(IDS, num_logits) for each in (plain, model))
        torch.testing.assert_close(found.logits, expected.logits, **CLOSE)
        for states, others in zip(found.hidden, expected.hidden, strict=True):
            torch.testing.assert_close(states, others, **CLOSE)
        for each in (plain, model):
            each.reset()


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_trees_that_grow_and_are_kept(kind: str) -> None:
    plain, model = tiny.causal_lm(kind), padded(kind)
    nodes = [40, 41, 42, 43, 44, 45]
    found = []
    for each in (plain, model):
        each.score(IDS[:-3], 1)
        first = each.score_tree(IDS, nodes[:3], PARENTS[:3], 4).logits.clone()
        second = each.score_tree(IDS, nodes, PARENTS, 3).logits.clone()
        each.keep_path([0, 2, 4, 5])
        third = each.score([*IDS, 40, 42, 44, 45, 50], 1).logits
        found.append(torch.cat([first, second, third]))
    torch.testing.assert_close(found[1], found[0], **CLOSE)
    assert torch.equal(found[1][-1:], fresh(model, [*IDS, 40, 42, 44, 45, 50]))


def test_padding_leaves_nothing_in_the_cache() -> None:
    model = padded()
    for length in (1, 3, 5, 9):
        model.score(IDS[:length], 1)
        sequence = model.sequence
        assert isinstance(sequence, EagerSequence)
        assert {layer.length for layer in sequence._attention_layers} == {length} == {len(sequence.cached_ids)}
        assert torch.equal(model.score(IDS[:length], 1).logits, fresh(model, IDS[:length]))


def test_padding_needs_no_positions_beyond_the_last_token() -> None:
    """A network with a table of 16 positions, full but for one."""
    model, plain = (
        CausalLM(tiny.network("gpt2", n_positions=16, n_embd=32, n_head=4, n_layer=2), tiny.tokenizer(), "gpt2", None)
        for _ in range(2)
    )
    model.sequence.fix_width(WIDTH)
    ids = [*IDS, 1, 2, 3]
    model.score(ids[:-1], 1)
    torch.testing.assert_close(model.score(ids, 1).logits, plain.score(ids, 1).logits, **CLOSE)


def test_the_parts_of_a_pass_count_as_one() -> None:
    model = padded()
    model.score(IDS, 1)
    assert [length for length, _ in model.passes.read()] == [len(IDS)]


def test_alternative_continuations() -> None:
    plain, model = tiny.causal_lm(), padded()
    suffixes = [[number, 3] for number in range(5)]
    torch.testing.assert_close(model.score_batch(IDS, suffixes), plain.score_batch(IDS, suffixes), **CLOSE)
    assert model.sequence.cached_ids == IDS
    assert torch.equal(model.score_batch(IDS, suffixes)[2:3], fresh(model, [*IDS, *suffixes[2]]))


# A run under this condition.

RUN = ("run", "--task", "mgsm", "--subset", "en", "--limit", "1", "--method", "sd,sd-tree", "--dtype", "bfloat16",
       "--set", "generation.max_new_tokens=12", "--output", "here")  # fmt: skip


def test_a_run_tells_its_width_and_goes_on_under_it_only(
    specbench: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, said = specbench(*RUN, "--pass-width", "6")
    assert code == 0, said
    assert "--pass-width 6" in out
    assert json.loads((tmp_path / "here" / "run.json").read_text())["pass_width"] == 6
    rows = load(tmp_path / "here" / "leaderboard.json")
    assert {row.pass_width for row in rows} == {6} and {row.verdict for row in rows} == {"greedy equal"}
    plain = rows[0].model_copy(update={"pass_width": None})
    assert [each.field for each in conditions_that_differ(plain, rows[0])] == ["pass_width"]
    code, _, said = specbench(*RUN)
    assert code == 2 and "--pass-width" in said


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--engine", "compiled"), "--pass-width 6: --engine compiled has passes of fixed lengths of its own: take"),
        (("--device-map", "auto"), "--pass-width 6: was tried on a CPU only: leave out --device-map auto"),
    ],
)
def test_what_does_not_go_with_it(specbench: Callable[..., Outcome], given: tuple[str, str], message: str) -> None:
    code, _, said = specbench(*RUN, "--pass-width", "6", *given)
    assert code == 2 and message in said


def test_models_whose_rows_cannot_be_alike_are_refused() -> None:
    assert TARGET_OPTIONS["pass_width"] is None
    with pytest.raises(ConfigError, match=r"^--pass-width 4: model 'tiny-qwen3_5_text' has recurrent layers, whose"):
        padded("qwen3_5_text")
    model = tiny.causal_lm()
    model.model.set_attn_implementation("eager")
    with pytest.raises(ConfigError, match=r"^--pass-width 4 needs attention .* uses eager; leave the option out$"):
        model.sequence.fix_width(4)
