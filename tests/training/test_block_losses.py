"""Heads that draft blocks learn what they draft: the same places, masks and tokens as in the decode loop."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch.nn import functional

from specbench.decoding.drafters.blocks import BlockDrafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.verification import rejection
from specbench.models.causal_lm import CausalLM
from specbench.models.heads.block import BlockHead, BlockModel, LayerMask
from specbench.training import block_losses
from specbench.training.block_losses import BlockLosses, draw_anchors, read_blocks
from specbench.training.heads import DraftHead
from specbench.training.passes import Batch, Sample
from specbench.training.spec import TrainSpec
from tests.support import tiny
from tests.support.heads import block_spec, recorded_drafts

RANDOM = torch.Generator().manual_seed(5)
SAMPLES = [
    Sample("en", tuple(torch.randint(0, 256, (length,), generator=RANDOM).tolist()), given)
    for length, given in ((19, 9), (12, 11), (14, 6))
]
IDS = SAMPLES[0].ids
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("dflash", {}), ("dflash", {"draft_vocab_size": 120}), ("dspark", {"markov_head_type": "gated"}),
    ("dspark", {"markov_head_type": "rnn", "draft_vocab_size": 120}), ("dspark", {"confidence_weight": 0.0}),
    ("domino", {"pure_draft_prefix_len": 1}), ("domino", {}),
]  # fmt: skip


@cache
def target() -> CausalLM:
    model = tiny.causal_lm(num_hidden_layers=6)
    model.model.requires_grad_(False)
    return model


def head_of(kind: str, model: CausalLM | None = None, **block: Any) -> tuple[TrainSpec, BlockHead]:
    """A random head, whose corrections and gains are random too."""
    spec = block_spec(kind, **block)
    draft = DraftHead.of(spec, model or target())
    draft.choose_vocabulary(spec, SAMPLES)
    torch.manual_seed(1)
    for parameter in draft.own_parameters.values():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return spec, draft.model


def hidden_of(head: BlockHead, ids: Sequence[int], model: CausalLM | None = None) -> list[torch.Tensor]:
    made = (model or target()).model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return [made[layer][0] for layer in head.hidden_layers]


@torch.no_grad()
def drafted(head: BlockHead, ids: Sequence[int], anchor: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """As a drafter computes it behind the text up to the anchor: for each draft token the logits with and without
    correction, given the tokens of the text before it, and the confidence."""
    model = BlockModel(head, 257, frozenset())
    model.read_target([layer[:anchor] for layer in hidden_of(head, ids)], range(anchor))
    states, _ = model.read_block(list(ids[: anchor + 1]), head.layout.num_drafts)
    memory, found = None, []
    for place in range(min(len(states), len(ids) - 1 - anchor)):
        state, before = states[place : place + 1], torch.tensor([ids[anchor + place]])
        plain = head.base_logits(state)
        correction, memory = head.correction(place, state, before, memory)
        chance = torch.tensor(head.confidence(state, before) if head.has_confidence else 1.0)
        found.append((plain[0], plain[0] if correction is None else (plain + correction)[0], chance))
    return found


def losses_by_definition(spec: TrainSpec, head: BlockHead, plain_weight: float) -> torch.Tensor:
    """Of all anchors, by the drafter's own logits and over the target's whole vocabulary."""
    assert spec.block is not None
    found = []
    for sample in SAMPLES:
        ids, total, weights = sample.ids, torch.zeros(sample.num_learnt), 0.0
        probs = torch.softmax(target().model(torch.tensor([ids])).logits[0].detach(), dim=-1)
        for anchor in range(min(sample.num_given, len(ids) - 2), len(ids) - 1):
            for place, (plain, logits, chance) in enumerate(drafted(head, ids, anchor)):
                token = anchor + 1 + place
                entropy, of_plain = (
                    -torch.log_softmax(head.whole_logits(each, 257), -1)[ids[token]] for each in (logits, plain)
                )
                if not torch.isfinite(entropy):
                    entropy = of_plain = torch.zeros(())
                loss = entropy
                if spec.domino is not None:
                    loss = plain_weight * of_plain + (1 - plain_weight) * entropy
                if spec.dspark is not None:
                    draft_probs = torch.softmax(head.whole_logits(logits, 257), -1)
                    distance = (probs[token - 1] - draft_probs).abs().sum()
                    loss = 0.1 * entropy + 0.9 * distance
                    if head.has_confidence:
                        loss = loss + functional.binary_cross_entropy(chance, 1 - distance / 2)
                total[token - sample.num_given] += spec.block.decay**place * loss
                weights += spec.block.decay**place
        found.append(total * sample.num_learnt / weights)
    return torch.cat(found)


def losses_of(spec: TrainSpec, head: BlockHead, number: int | None = 1) -> tuple[torch.Tensor, torch.Tensor]:
    losses = BlockLosses(spec, target(), head)
    losses.num_passes = 5
    made = losses(Batch(SAMPLES), head, number)
    trained = [value for value in head.parameters() if value.requires_grad]
    gradients = torch.autograd.grad(made.sum(), trained, allow_unused=True)
    return made.detach(), torch.cat([each.flatten() for each in gradients if each is not None])


@pytest.mark.parametrize(("kind", "block"), KINDS)
def test_losses_are_those_of_the_drafter_s_own_logits_in_parts_and_as_a_whole(
    kind: str, block: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds the mask, the positions, the alignment, the tokens before a draft token and its label together."""
    spec, head = head_of(kind, **block)
    expected = losses_by_definition(spec, head, plain_weight=0.75)  # of pass 1 of 0 to 4
    found, gradient = losses_of(spec, head)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    if kind == "domino":
        in_validation, _ = losses_of(spec, head, None)
        torch.testing.assert_close(in_validation, losses_by_definition(spec, head, 0.0), rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(block_losses, "MAX_ROWS", 2 * head.layout.block_size)
    monkeypatch.setattr(block_losses, "MAX_GRAPH", 0)
    in_parts, gradient_in_parts = losses_of(spec, head)
    torch.testing.assert_close(in_parts, found, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient_in_parts, gradient, rtol=1e-3, atol=1e-4)


WRONG = {  # what a training could get wrong about the places of a text that a block sees
    "the anchor's own state": lambda context, first: context <= first,
    "all of the text": lambda context, first: context + first >= 0,
    "one token less": lambda context, first: context < first - 1,
}  # fmt: skip


@torch.no_grad()
def block_states(head: BlockHead, hidden: Sequence[torch.Tensor], anchors: Sequence[int]) -> torch.Tensor:
    return read_blocks(head, torch.tensor(IDS), head.project(hidden), torch.tensor(anchors))


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_mask_is_found(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, head = head_of("dflash")
    right = losses_by_definition(spec, head, 0.0)

    def visible(mask: LayerMask, num_context: int, num_rows: int, device: Any, starts: Any = None) -> Any:
        if starts is None:
            return None
        first = starts.repeat_interleave(num_rows)[:, None]
        block = torch.arange(len(starts)).repeat_interleave(num_rows)
        return torch.cat([WRONG[wrong](torch.arange(num_context), first), block == block[:, None]], dim=1)

    monkeypatch.setattr(LayerMask, "visible", visible)
    found, _ = losses_of(spec, head)
    assert not torch.allclose(found, right, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("wrong", [None, "the anchor's own state", "all of the text"])
def test_a_block_sees_no_text_from_its_anchor_on(wrong: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the tokens and states from the anchor on, it reads the anchor alone, and it sees no other block."""
    _, head = head_of("dflash")
    anchor, others = 10, [4, 12, 17]
    hidden = hidden_of(head, IDS)
    if wrong is not None:
        original = LayerMask.visible

        def visible(mask: LayerMask, num_context: int, *rest: Any) -> Any:
            made = original(mask, num_context, *rest)
            assert made is not None
            first = rest[-1].repeat_interleave(rest[0])[:, None]
            made[:, :num_context] = WRONG[wrong](torch.arange(num_context), first)
            return made

        monkeypatch.setattr(LayerMask, "visible", visible)
    before = block_states(head, hidden, [anchor, *others])[0]
    changed = [layer.clone() for layer in hidden]
    for layer in changed:
        layer[anchor:] += 1
    after = block_states(head, changed, [anchor, *others])[0]
    alone = block_states(head, hidden, [anchor])[0]
    assert torch.allclose(before, after, atol=1e-5) == (wrong is None)
    assert torch.allclose(before, alone, atol=1e-5)
    earlier = [layer.clone() for layer in hidden]
    for layer in earlier:
        layer[anchor - 1] += 1
    assert not torch.allclose(before, block_states(head, earlier, [anchor, *others])[0], atol=1e-3)


@pytest.mark.parametrize("kind", ["dflash", "dspark", "domino"])
@torch.no_grad()
def test_a_training_has_the_logits_of_the_decode_loop(kind: str) -> None:
    """The drafts of a generation are recorded; the training then reads the same text at the same places."""
    _, head = head_of(kind)
    drafter = BlockDrafter(BlockModel(head, 257, frozenset()), Sampling(0.0))
    recorded = recorded_drafts(drafter)
    prompt = list(range(40, 52))
    answer = decode(
        target(), drafter, rejection, prompt, num_draft_tokens=3, sampling=Sampling(0.0), stop=StopRules(10),
        generator=torch.Generator().manual_seed(1),
    ).token_ids  # fmt: skip
    text = [*prompt, *answer]
    assert len(recorded) > 2
    for ids, proposal in recorded:
        anchor = len(ids) - 1
        assert text[: len(ids)] == ids and isinstance(proposal.probs, Distributions)
        drafts = proposal.token_ids
        hidden = hidden_of(head, [*ids, *drafts])  # with the drafts as the text
        read = torch.tensor([*ids, *drafts, 0, 0, 0])
        states = read_blocks(head, read, head.project(hidden), torch.tensor([anchor, anchor - 3]))
        memory = None
        for place in range(len(drafts)):
            correction, memory = head.correction(
                place, states[:, place], read[torch.tensor([anchor, anchor - 3]) + place], memory
            )
            logits = head.base_logits(states[:, place])
            logits = (logits if correction is None else logits + correction)[0]
            torch.testing.assert_close(logits, proposal.probs.logits[place], rtol=1e-3, atol=1e-3)


def test_anchors_are_those_of_drafts() -> None:
    """The first draft of an answer begins behind its first token, which the target has not read."""
    generator = torch.Generator().manual_seed(0)
    assert draw_anchors(SAMPLES[0], 512, generator).tolist() == list(range(9, 18))
    assert draw_anchors(SAMPLES[1], 512, generator).tolist() == [10]  # the answer has one token
    drawn = [draw_anchors(SAMPLES[0], 4, generator).tolist() for _ in range(20)]
    assert all(len(set(each)) == 4 and each == sorted(each) for each in drawn) and len({*map(tuple, drawn)}) > 5
    assert {place for each in drawn for place in each} == set(range(9, 18))


def test_a_pass_has_its_own_anchors_and_a_validation_always_the_same() -> None:
    spec, head = head_of("dflash", num_anchors=2)
    losses = BlockLosses(spec, target(), head)
    batch = Batch(SAMPLES)
    found = {number: losses(batch, head, number).detach() for number in (0, 1, None)}
    again = {number: losses(batch, head, number).detach() for number in (None, 1, 0)}
    assert all(torch.equal(found[number], again[number]) for number in found)
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[0], found[None])
    means = [each.mean() for each in found[0].split([sample.num_learnt for sample in SAMPLES])]
    assert all(0 < mean < 30 for mean in means)
