"""P-EAGLE heads: their logits are those of plain loops, in one pass or in many, and what does not fit is refused."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.loop import StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.heads.checkpoints import read_checkpoint
from specbench.models.heads.eagle_checkpoint import load_eagle
from specbench.models.heads.parallel import ParallelEagleHead, ParallelModel
from specbench.specs.catalogue import load_method, with_overrides
from tests.support import tiny
from tests.support.heads import (
    MASK,
    SPECULATORS,
    VOCAB,
    WIDTH,
    Draws,
    PlainEagle,
    Tensors,
    eagle3_tensors,
    layer_tensors,
    save_head,
)

AUX = (2, 4, 5)  # of a target with 8 layers
TEXT = list(range(40, 52))
Config = dict[str, Any]
PEAGLE: Config = {
    **SPECULATORS, "architectures": ["PEagleSpeculator"], "speculators_model_type": "peagle", "mask_token_id": MASK,
    "embed_requires_grad": True,
}  # fmt: skip


def tensors(shape: tuple[int, ...] = (1, 1, 3 * WIDTH), norms: bool = False) -> Tensors:
    draw = Draws(6)
    found = {
        **eagle3_tensors(prefix="layers.0"), "embed_tokens.weight": draw(VOCAB, WIDTH), "mask_hidden": 3 * draw(*shape),
        **layer_tensors(draw, "layers.1", WIDTH), "layers.1.input_layernorm.weight": draw.gain(WIDTH),
    }  # fmt: skip
    return {**found, **{f"fc_norm.{number}.weight": draw.gain(WIDTH) for number in range(3)}} if norms else found


def without(given: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}


@cache
def target() -> CausalLM:
    model = tiny.causal_lm(num_hidden_layers=8)
    model.model.double()
    return model


def features(text: list[int]) -> list[list[torch.Tensor]]:
    with torch.no_grad():
        made = target().model(torch.tensor([text]), output_hidden_states=True).hidden_states
    return [[made[layer][0, place] for layer in AUX] for place in range(len(text))]


@dataclass(frozen=True)
class PlainParallel(PlainEagle):
    """All rows of P-EAGLE's pass, by loops; a row sees itself and those before it."""

    def all_logits(self, rows: list[list[torch.Tensor]], tokens: list[int], num_drafts: int) -> list[torch.Tensor]:
        """The logits of the draft tokens. `tokens`: the one after each row of the text."""
        masks = [list(self.weight("mask_hidden").flatten().chunk(3))] * (num_drafts - 1)
        states = [self.project(each) for each in (*rows, *masks)]
        read = [*tokens, *[MASK] * (num_drafts - 1)]
        states = [self.layer(states[: row + 1], read[: row + 1]) for row in range(len(states))]
        second = replace(self, prefix="layers.1")
        normed = [self.norm("layers.1.input_layernorm.weight", state) for state in states]
        made = []
        for row, state in enumerate(states):
            middle = state + second.attention(normed[: row + 1])
            inner = self.norm("layers.1.post_attention_layernorm.weight", middle)
            gate, up = (self.weight(f"layers.1.mlp.{name}_proj.weight") @ inner for name in ("gate", "up"))
            made.append(middle + self.weight("layers.1.mlp.down_proj.weight") @ (gate * torch.sigmoid(gate) * up))
        return [self.head(state) for state in made[len(rows) - 1 :]]


def plain(given: Tensors) -> PlainParallel:
    return PlainParallel(
        given, given["embed_tokens.weight"], given["lm_head.weight"], prefix="layers.0", norm_before_residual=True
    )


def loaded(config: Config, given: Tensors, folder: Path) -> ParallelModel:
    head = load_eagle(read_checkpoint(str(save_head(folder, config, given))), target())
    assert isinstance(head, ParallelEagleHead)
    return ParallelModel(head, VOCAB, frozenset())


def read(model: ParallelModel, text: list[int], start: int, end: int) -> None:
    rows = features(text)
    model.read_target([torch.stack([row[number] for row in rows]) for number in range(3)], range(start, end))


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (PEAGLE, tensors()),
        (PEAGLE, tensors((1, 3 * WIDTH))),
        ({**without(PEAGLE, "mask_token_id"), "ptd_token_id": MASK}, tensors()),
        ({**PEAGLE, "fc_norm": True}, tensors(norms=True)),
    ],
)
@torch.no_grad()
def test_logits_are_those_of_plain_loops(config: Config, given: Tensors, tmp_path: Path) -> None:
    """After each of several steps, in which the head has read rows of mask tokens."""
    model = loaded(config, given, tmp_path)
    assert model.head.hidden_layers == AUX and read_checkpoint(str(tmp_path)).kind == "peagle"
    network = plain(given)
    read(model, TEXT, 0, 5)
    model.read_context(TEXT[:6])
    end = 5
    for num_new, num_drafts in ((0, 3), (1, 4), (3, 1), (2, 4)):
        if num_new:
            read(model, TEXT, end, end + num_new)
        end += num_new
        states, _ = model.read_block(TEXT[: end + 1], num_drafts)
        found = model.head.whole_logits(model.head.base_logits(states), VOCAB)
        expected = network.all_logits(features(TEXT[:end]), TEXT[1 : end + 1], num_drafts)
        assert len(found) == num_drafts
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_row_does_not_see_later_mask_tokens(tmp_path: Path) -> None:
    """The pass is causal, unlike DFlash's."""
    model = loaded(PEAGLE, tensors(), tmp_path)
    read(model, TEXT, 0, 5)
    longest, _ = model.read_block(TEXT[:6], 4)
    for num_drafts in (1, 2, 3):
        states, num_rows = model.read_block(TEXT[:6], num_drafts)
        torch.testing.assert_close(states, longest[:num_drafts])
        assert num_rows == num_drafts - 1  # the text was read before


@torch.no_grad()
def test_the_state_of_the_mask_is_projected_and_normed(tmp_path: Path) -> None:
    given = tensors(norms=True)
    model = loaded({**PEAGLE, "fc_norm": True}, given, tmp_path)
    raw = given["fc.weight"].double() @ given["mask_hidden"].double().flatten()
    found = model.head.mask_state()[0]
    expected = plain(given).project(list(given["mask_hidden"].double().flatten().chunk(3)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, raw)


REFUSED: dict[str, tuple[Config, Tensors, str]] = {
    "no mask token": (without(PEAGLE, "mask_token_id"), tensors(), "no mask_token_id"),
    "two mask tokens": ({**PEAGLE, "pard_token": 3}, tensors(), "expected one mask_token_id"),
    "a mask token without a row": ({**PEAGLE, "mask_token_id": 999}, tensors(), "its embeddings have 257 rows"),
    "no embeddings": (PEAGLE, without(tensors(), "embed_tokens.weight"), "embed_tokens.weight, which P-EAGLE trains"),
    "no state of the mask": (PEAGLE, without(tensors(), "mask_hidden"), "says P-EAGLE, and the file has no tensor"),
    "a state of another width": (PEAGLE, tensors((1, 1, 8)), r"mask_hidden has shape \[1, 1, 8\], expected"),
    "a gap in the layers": (
        PEAGLE, {name.replace("layers.1.", "layers.2."): value for name, value in tensors().items()}, "unknown tensor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    config, given, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message) as error:
        loaded(config, given, tmp_path)
    assert str(error.value).startswith("drafter.path = '") and "\n" not in str(error.value)


def test_greedy_outputs_are_those_of_autoregressive_decoding(tmp_path: Path) -> None:
    model = tiny.causal_lm(num_hidden_layers=8)
    path = save_head(tmp_path, PEAGLE, tensors())
    _, (spec,) = with_overrides([], [load_method("peagle")], [f"drafter.path={path}", "num_draft_tokens=3"])
    plain_text = build_decoder(load_method("ar"), ModelPair(model), Sampling(0.0)).generate(TEXT, StopRules(12), 0)
    decoder = build_decoder(spec, ModelPair(model), Sampling(0.0))
    made = decoder.generate(TEXT, StopRules(12), 0)
    assert made.token_ids == plain_text.token_ids and any(step.num_drafted == 3 for step in made.steps)
    assert decoder.generate(TEXT, StopRules(12), 0).steps == made.steps
    assert build_decoder(spec, ModelPair(model), Sampling(0.8)).drafter.sampling == Sampling(0.0)  # type: ignore[attr-defined]
