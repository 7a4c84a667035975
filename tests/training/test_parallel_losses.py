"""P-EAGLE heads learn what they draft: the same rows, masks, positions and tokens as in the decode loop. Their files
are read as they were trained."""

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specbench.core.errors import ConfigError
from specbench.decoding.drafters.blocks import BlockDrafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.verification import rejection
from specbench.models.causal_lm import CausalLM
from specbench.models.heads.checkpoints import read_checkpoint
from specbench.models.heads.eagle_checkpoint import load_eagle
from specbench.models.heads.parallel import ParallelEagleHead, ParallelModel
from specbench.specs.components import build
from specbench.training import heads, parallel_losses
from specbench.training.heads import DraftHead
from specbench.training.parallel_losses import ParallelLosses, draw_chains, read_chains
from specbench.training.passes import Batch, Sample
from specbench.training.spec import PEagleSpec, TrainSpec
from tests.support import tiny
from tests.support.heads import check_is_written_again, recorded_drafts

RANDOM = torch.Generator().manual_seed(5)
SAMPLES = [
    Sample("en", tuple(torch.randint(0, 256, (length,), generator=RANDOM).tolist()), given)
    for length, given in ((17, 9), (12, 11), (14, 6), (3, 1))
]
IDS = SAMPLES[0].ids
VOCAB = 257


@cache
def target(kind: str = "llama", **more: Any) -> CausalLM:
    model = tiny.causal_lm(kind, num_hidden_layers=6, **more)
    model.model.requires_grad_(False)
    return model


def peagle_spec(**peagle: Any) -> TrainSpec:
    """Settings of a small head that learns every draft token everywhere."""
    small = {"num_layers": 2, "num_draft_tokens": 4, "kept_share": 1.0, "decay": 0.9, **peagle}
    return build(TrainSpec, {"kind": "peagle", "data": {"text": {"en": "x.txt"}}, "output": "x", "peagle": small})


def head_of(model: CausalLM | None = None, **peagle: Any) -> tuple[TrainSpec, DraftHead]:
    """A random head, whose later layers and gains are random too."""
    spec = peagle_spec(**peagle)
    draft = DraftHead.of(spec, model or target())
    draft.choose_vocabulary(spec, SAMPLES)
    torch.manual_seed(1)
    for parameter in draft.own_parameters.values():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return spec, draft


def hidden_of(head: ParallelEagleHead, ids: Sequence[int], model: CausalLM | None = None) -> list[torch.Tensor]:
    made = (model or target()).model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return [made[layer][0] for layer in head.hidden_layers]


@torch.no_grad()
def drafted(
    head: ParallelEagleHead, ids: Sequence[int], anchor: int, num: int, model: CausalLM | None = None
) -> torch.Tensor:
    """As a drafter computes them behind the text up to the token `anchor`: the logits of `num` draft tokens."""
    block = ParallelModel(head, VOCAB, frozenset())
    block.read_target([layer[:anchor] for layer in hidden_of(head, ids, model)], range(anchor))
    states, _ = block.read_block(list(ids[: anchor + 1]), num)
    return head.whole_logits(head.base_logits(states), VOCAB)


def losses_by_definition(spec: TrainSpec, head: ParallelEagleHead) -> torch.Tensor:
    """Of all places, by the drafter's own logits and the target's distributions over the draft vocabulary."""
    assert spec.peagle is not None
    found = []
    for sample in SAMPLES:
        ids, total = sample.ids, torch.zeros(sample.num_learnt)
        logits = target().model(torch.tensor([ids])).logits[0].detach()
        anchors = range(max(1, min(sample.num_given, len(ids) - 2)), len(ids) - 1)
        numbers = [sum(anchor + 1 + place < len(ids) for anchor in anchors) for place in range(4)]
        weights = sum(spec.peagle.decay**place for place in range(4) if numbers[place])
        for anchor in anchors:
            for place, row in enumerate(drafted(head, ids, anchor, min(4, len(ids) - 1 - anchor))):
                token = anchor + 1 + place
                known = torch.isfinite(row)
                probs = torch.softmax(logits[token - 1][known], dim=-1)
                loss = -(probs * torch.log_softmax(row[known], dim=-1)).sum()
                if not known[logits[token - 1].argmax()]:
                    loss = torch.zeros(())
                share = spec.peagle.decay**place / weights / numbers[place]
                total[token - sample.num_given] += share * sample.num_learnt * loss
        found.append(total)
    return torch.cat(found)


def losses_of(spec: TrainSpec, draft: DraftHead) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    made = ParallelLosses(spec, target(), draft.model)(Batch(SAMPLES), draft.model, 1)
    trained = draft.own_parameters
    gradients = torch.autograd.grad(made.sum(), list(trained.values()), allow_unused=True)
    return made.detach(), {
        name: each for name, each in zip(trained, gradients, strict=True) if each is not None
    }  # fmt: skip


@pytest.mark.parametrize("peagle", [{}, {"draft_vocab_size": 120}])
def test_losses_are_those_of_the_drafter_s_own_logits_in_parts_and_as_a_whole(
    peagle: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds the mask, the positions, the states and tokens of the rows, and the labels together."""
    spec, draft = head_of(**peagle)
    expected = losses_by_definition(spec, draft.model)
    found, gradients = losses_of(spec, draft)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert gradients.keys() == draft.own_parameters.keys()  # embeddings and the state of the mask tokens among them
    monkeypatch.setattr(parallel_losses, "MAX_GRAPH", 0)
    monkeypatch.setattr(heads, "MAX_CHUNK", 2 * VOCAB)
    in_parts, gradients_in_parts = losses_of(spec, draft)
    torch.testing.assert_close(in_parts, found, rtol=1e-4, atol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradients_in_parts[name], gradient, rtol=1e-3, atol=1e-4)


Read = Callable[..., torch.Tensor]
WRONG: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "a row too late": lambda anchors, depths: (anchors + 1, depths),
    "a position too far": lambda anchors, depths: (anchors, depths + 1),
    "one depth for all": lambda anchors, depths: (anchors, torch.ones_like(depths)),
    "chains that see each other": lambda anchors, depths: (anchors.min().expand_as(anchors), anchors + depths),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_mask_or_position_is_found(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, draft = head_of()
    right = losses_by_definition(spec, draft.model)
    read: Read = ParallelEagleHead.read

    def changed(head: Any, tokens: Any, states: Any, anchors: Any, depths: Any, *more: Any) -> torch.Tensor:
        return read(
            head, tokens, states, *(WRONG[wrong](anchors, depths) if len(anchors) else (anchors, depths)), *more
        )

    monkeypatch.setattr(ParallelEagleHead, "read", changed)
    found, _ = losses_of(spec, draft)
    assert not torch.allclose(found, right, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_a_chain_sees_no_text_behind_its_row_and_no_other_chain() -> None:
    _, draft = head_of()
    head, states = draft.model, draft.model.project(hidden_of(draft.model, IDS))[: len(IDS) - 2]
    row, others = 7, [4, 8, 9]
    ids, later = torch.tensor(IDS), torch.tensor(IDS)
    later[row + 2 :] += 1  # the row itself reads the token behind it

    def chain(ids: torch.Tensor, states: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        found = read_chains(head, ids, states, [torch.tensor(sorted(rows))] * 3)
        return torch.stack([each[sorted(rows).index(row)] for each in found])

    alone, together = chain(ids, states, [row]), chain(ids, states, [row, *others])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    changed = states.clone()
    changed[row + 1 :] += 1
    torch.testing.assert_close(chain(later, changed, [row, *others]), alone, atol=1e-5, rtol=1e-5)
    changed[row] += 1
    assert not torch.allclose(chain(ids, changed, [row]), alone, atol=1e-3)


@torch.no_grad()
def test_a_training_has_the_logits_of_the_decode_loop() -> None:
    """The drafts of a generation are recorded; the training then reads the same text at the same places."""
    _, draft = head_of()
    head = draft.model
    drafter = BlockDrafter(ParallelModel(head, VOCAB, frozenset()), Sampling(0.0))
    recorded = recorded_drafts(drafter)
    decode(
        target(), drafter, rejection, list(range(40, 52)), num_draft_tokens=3, sampling=Sampling(0.0),
        stop=StopRules(10), generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    assert len(recorded) > 2
    for ids, proposal in recorded:
        assert isinstance(proposal.probs, Distributions)
        text = [*ids, 0]
        states = head.project(hidden_of(head, text))[: len(text) - 2]
        row = len(ids) - 2
        found = read_chains(head, torch.tensor(text), states, [torch.tensor([row - 3, row])] * 3)
        logits = head.base_logits(torch.stack([each[1] for each in found]))[: len(proposal.token_ids)]
        torch.testing.assert_close(logits, proposal.probs.logits, rtol=1e-3, atol=1e-3)


def test_places_of_each_draft_token_are_among_those_of_the_one_before() -> None:
    settings = PEagleSpec(num_draft_tokens=5, kept_share=0.5, min_kept_share=0.2)
    sample = Sample("en", tuple(range(60)), 9)
    generator = torch.Generator().manual_seed(0)
    drawn = [draw_chains(sample, settings, generator) for _ in range(40)]
    for chains in drawn:
        assert chains[0].tolist() == list(range(8, 58))  # behind the answer's first token, before the text's last
        for depth, (longer, shorter) in enumerate(pairwise(chains), start=1):
            assert set(shorter.tolist()) <= set(longer.tolist()) and shorter.tolist() == sorted(shorter.tolist())
            assert int(shorter.max()) + 2 + depth < 60 and len(shorter) <= math.ceil(50 * max(0.5**depth, 0.2))
    assert {place for chains in drawn for place in chains[3].tolist()} == set(range(8, 55))
    assert all(len(chains[4]) >= 6 for chains in drawn)  # a tenth without the lowest share
    assert draw_chains(SAMPLES[1], settings, generator)[0].tolist() == [9]  # the answer has one token
    assert draw_chains(Sample("en", (1, 2), 1), settings, generator) == []


def test_a_pass_has_its_own_places_and_a_validation_always_the_same() -> None:
    spec, draft = head_of(kept_share=0.5)
    losses = ParallelLosses(spec, target(), draft.model)
    batch = Batch(SAMPLES)
    with torch.no_grad():
        found = {number: losses(batch, draft.model, number) for number in (0, 1, None)}
        again = {number: losses(batch, draft.model, number) for number in (None, 1, 0)}
        many = torch.stack([losses(batch, draft.model, number) for number in range(60)]).mean(0)
        whole = ParallelLosses(head_of()[0], target(), draft.model)(batch, draft.model, 0)
    assert all(torch.equal(found[number], again[number]) for number in found)
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[0], found[None])
    lengths = [sample.num_learnt for sample in SAMPLES]
    for of_part, of_all in zip(many.split(lengths), whole.split(lengths), strict=True):  # only noisier than all places
        assert float(of_part.mean()) == pytest.approx(float(of_all.mean()), rel=0.05)


def test_a_new_head_drafts_its_first_token_as_a_new_eagle3_head_does() -> None:
    """The layers after the first change nothing yet."""
    model = target()
    head = DraftHead.of(peagle_spec(num_layers=3), model).model
    states = torch.randn(5, 32, generator=torch.Generator().manual_seed(2))
    ids = torch.tensor([3, 1, 4, 1, 5])
    none = ids[:0]
    with torch.no_grad():
        alone = head(ids[None], states[None], torch.arange(5)[None])[0]
        torch.testing.assert_close(head.read(ids, states, none, none)[-1], alone[-1], atol=1e-5, rtol=1e-5)
    assert torch.equal(head.embed_tokens.weight, model.model.get_input_embeddings().weight.float())


@pytest.mark.parametrize("name", ["llama", "scaled and padded embeddings"])
@pytest.mark.parametrize("peagle", [{"mask_token_id": 250}, {"draft_vocab_size": 64}])
def test_a_head_is_read_as_it_was_trained(name: str, peagle: dict[str, Any], tmp_path: Path) -> None:
    model = target() if name == "llama" else target("gemma2", vocab_size=300)
    spec, draft = head_of(model, **peagle)
    draft.model.eval().requires_grad_(False)
    expected = drafted(draft.model, IDS, 9, 4, model)
    draft.save(tmp_path, torch.float32)
    config = json.loads((tmp_path / "config.json").read_text())
    mask = 250 if "mask_token_id" in peagle else config["mask_token_id"]
    assert config["speculators_model_type"] == "peagle" and config["mask_token_id"] == mask
    assert config["transformer_layer_config"]["num_hidden_layers"] == 2
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 4
    tensors = load_file(tmp_path / "model.safetensors")
    assert len(tensors["embed_tokens.weight"]) == config["transformer_layer_config"]["vocab_size"] > mask
    assert len(tensors["lm_head.weight"]) == config["draft_vocab_size"]
    checkpoint = read_checkpoint(str(tmp_path))
    assert checkpoint.kind == "peagle"
    again = load_eagle(checkpoint, model)
    assert isinstance(again, ParallelEagleHead) and again.mask_token_id == mask
    torch.testing.assert_close(drafted(again, IDS, 9, 4, model), expected, rtol=1e-5, atol=1e-5)
    check_is_written_again(tmp_path, spec, draft, model)


def test_the_mask_token_is_one_that_texts_do_not_have() -> None:
    samples = [Sample("en", tuple(token for token in range(VOCAB) if token not in (77, 99)), 1)]
    spec = peagle_spec()
    draft = DraftHead.of(spec, target())
    draft.choose_vocabulary(spec, samples)
    assert draft.model.mask_token_id == 99
    given = peagle_spec(mask_token_id=VOCAB)
    with pytest.raises(ConfigError, match=r"peagle.mask_token_id = 257: the embeddings of target .* have 257 rows"):
        DraftHead.of(given, target()).choose_vocabulary(given, samples)
