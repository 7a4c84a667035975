"""The search for sub-layers that a target may skip in its own drafts: what a set's score is, and a file that runs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specbench.analysis.tuning.skip_search import SHARES, Text, agreements, search, some_texts
from specbench.decoding.drafters.self_drafting import chosen
from specbench.models.causal_lm import CausalLM
from specbench.models.own_drafts import SkippingSequence, SubLayers
from specbench.specs.catalogue import load_file
from tests.support import tiny
from tests.support.tuning import call as call

NOTHING = SubLayers((), ())


def written(target: CausalLM, prompt: list[int], length: int) -> Text:
    ids = list(prompt)
    for _ in range(length):
        ids.append(int(target.score(ids, 1).logits[0].argmax()))
    return Text(ids, length)


def test_a_set_that_skips_nothing_finds_all_tokens_and_a_damaging_one_few() -> None:
    target = tiny.causal_lm("llama", num_hidden_layers=6)
    texts = [written(target, [3, 1, 4], 12), written(target, [2, 7], 6)]
    sequence = SkippingSequence(target, "test")
    everything = SubLayers(tuple(range(6)), tuple(range(6)))
    whole, none = agreements(target, sequence, texts, [NOTHING, everything])
    assert whole == 1.0 and none < 0.5
    # Tokens count alike, whatever their text.
    first, second = (agreements(target, sequence, [text], [everything])[0] for text in texts)
    assert none == pytest.approx((11 * first + 5 * second) / 16)


def without(target: CausalLM, number: int) -> CausalLM:
    """A layer that adds nothing: skipping it changes nothing."""
    layer = target.model.model.layers[number]
    layer.self_attn.o_proj.weight.data.zero_()
    layer.mlp.down_proj.weight.data.zero_()
    return target


def test_the_search_finds_a_layer_that_adds_nothing() -> None:
    target = without(without(tiny.causal_lm("llama", num_hidden_layers=8), 1), 4)
    texts = [written(target, [3, 1, 4], 24), written(target, [2, 7], 24)]
    found = search(target, texts, 5)
    start = chosen(8, 0.3, None, None)
    before = agreements(target, SkippingSequence(target, "test"), texts, [start])[0]
    assert list(found) == list(SHARES)
    assert found[0.3].agreement > before and len(found[0.3].skipped.mlp) + len(found[0.3].skipped.attention) == 4
    assert search(target, texts, 5) == found  # the same seed, the same sets


def test_a_few_texts_are_used_and_long_answers_are_cut() -> None:
    texts = [Text(list(range(100 + n)), 90) for n in range(20)] + [Text([1, 2], 1)]
    used = some_texts(texts)
    assert len(used) == 8 and all(text.num_tokens == 64 for text in used)
    assert [len(text.ids) for text in used] == [74, 76, 79, 81, 84, 86, 89, 91]
    assert some_texts([Text([1, 2, 3], 2)]) == [Text([1, 2, 3], 2)] and some_texts([Text([1], 1)]) == []


def test_tune_writes_a_set_that_runs(call: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    torch.manual_seed(0)
    target = tiny.save(tmp_path / "deep", num_hidden_layers=6)
    out, err = call(
        "self-skip",
        target=str(target),
        drafter=None,
        calibration="5",
        lengths="2,3",
        output="mine.yaml",
        overrides=["generation.max_new_tokens=8"],
    )
    method = load_file(tmp_path / "mine.yaml")
    options = method.drafter.options
    assert options["choice"] == "fixed" and options["attention"] is not None and options["mlp"] is not None
    assert not {0, 5} & {*options["attention"], *options["mlp"]}
    assert method.num_draft_tokens in (2, 3) and method.calibration is not None
    assert "tokens of AR that drafts find, by share of skipped sub-layers: 0.15: " in err + out
    assert "share: 0." in err + out and "draft length: " in err + out
