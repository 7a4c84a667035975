"""Heads that know what the target writes: along the decode path of each kind, all their drafts must be accepted.

The target's next token depends on the position and the token. Its hidden states say both. In a head, only the parts
with weights are replaced: embeddings, rotation, projections, layers, output layers. What stands for a layer believes
what it is handed: it sees the rows that the mask shows, and drafts only if the positions, states and tokens of these
rows are those of one text, without a gap. A trained head would draft a little worse where one of them is shifted; this
one drafts nothing right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config

from specbench.decoding.build import build_decoder
from specbench.decoding.drafters import Drafter, ModelDrafter
from specbench.decoding.drafters.blocks import BlockDrafter
from specbench.decoding.drafters.heads import EagleDrafter
from specbench.decoding.drafters.model_tree import DynamicTreeDrafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import exact_match, rejection
from specbench.models.causal_lm import ModelPair
from specbench.models.heads.block import (
    BlockHead,
    BlockLayout,
    BlockModel,
    DominoHead,
    DominoLayout,
    DSparkHead,
    LayerMask,
    MarkovLayout,
)
from specbench.models.heads.eagle import EagleHead, EagleLayout, EagleModel, MtpHead
from specbench.models.heads.parallel import ParallelEagleHead, ParallelModel
from specbench.models.meters import Clock, PassLog
from specbench.models.scoring import Output, ScoringModel
from specbench.specs.catalogue import load_method, with_overrides
from tests.support import tiny
from tests.support.heads import saved_head

VOCAB, WIDTH = 31, 4
MASK, UNKNOWN = VOCAB, -1
LAYERS = (2, 5, 7)  # whose hidden states EAGLE-3, P-EAGLE and heads that draft blocks read
GREEDY, NEVER = Sampling(0.0), frozenset[int]()
NUM_DRAFTS, NUM_TOKENS = 4, 41
BLIND = frozenset(range(9, 60, 7))  # positions of tokens that a head with a blind spot drafts wrongly


def following(place: Any, token: Any) -> Any:
    """The token after the one at a position."""
    return (5 * token + 3 * place + 1) % VOCAB


PROMPT = [3]
for _ in range(4):
    PROMPT.append(following(len(PROMPT) - 1, PROMPT[-1]))


def code(place: Tensor, token: Tensor, layer: float = 0.0) -> Tensor:
    """What a state says: [..., WIDTH]."""
    return torch.stack([place, token, torch.full_like(place, layer), torch.zeros_like(place)], dim=-1).float()


class KnownTarget(ScoringModel):
    """`late`: its hidden states are those of the positions before."""

    def __init__(self, late: int = 0) -> None:
        self.late, self.eos_token_ids, self.vocab_size = late, NEVER, VOCAB
        self.passes = PassLog(Clock(torch.device("cpu")))
        self._is_empty = True

    def reset(self) -> None:
        self._is_empty = True

    def score(self, ids: list[int], num_logits: int, pending: Tensor | None = None) -> Output:
        num_read = len(ids) if self._is_empty else num_logits
        self._is_empty = False
        places = torch.arange(len(ids) - num_read, len(ids))
        return self._output(places, torch.tensor(ids[-num_read:]), num_logits)

    def score_tree(self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int) -> Output:
        places = [len(ids) - 1]
        for parent in parents:
            places.append(places[parent + 1] + 1)
        return self._output(torch.tensor(places), torch.tensor([ids[-1], *tree_ids]), num_logits)

    def keep_path(self, path: Sequence[int]) -> None:
        pass

    def _output(self, places: Tensor, tokens: Tensor, num_logits: int) -> Output:
        self.passes.add(len(places), 0.0, 0.0)
        logits = one_hot(following(places, tokens))[-num_logits:]
        said = [tokens, *[tokens.roll(1)] * self.late][-1]
        return Output(logits, tuple(code(places - self.late, said, layer) for layer in self.hidden_layers))


def one_hot(tokens: Tensor) -> Tensor:
    return 9.0 * nn.functional.one_hot(tokens.long(), VOCAB).float()


# The parts of heads.


class Embeddings(nn.Module):
    def forward(self, ids: Tensor) -> Tensor:
        return code(torch.zeros_like(ids), torch.where(ids == MASK, UNKNOWN, ids))


class Rotation(nn.Module):
    """Hands on the positions."""

    def forward(self, states: Tensor, positions: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        given = positions if positions is not None else position_ids
        assert given is not None
        return given


class Joined(nn.Module):
    """Reads the states of the target's layers, side by side and in their order; of EAGLE-1, embeddings and states."""

    def __init__(self, layers: Sequence[int]) -> None:
        super().__init__()
        self.layers = torch.tensor(layers).float()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, joined: Tensor) -> Tensor:
        parts = joined.unflatten(-1, (-1, WIDTH))
        if not len(self.layers):
            return parts[..., -1, :]
        is_right = (parts[..., 2] == self.layers).all(-1, keepdim=True)
        return torch.where(is_right, parts[..., 0, :], torch.full_like(parts[..., 0, :], -9.0))


@dataclass(frozen=True)
class Row:
    """A row of a pass: the position that it has, and the token that it knows, with the token's position."""

    place: int
    token_place: int
    token: int
    is_right: bool = True


def knowledge(row: Row, seen: Sequence[Row], to: int) -> tuple[int, int]:
    """What a row that sees these rows says about the token at position `to`."""
    seen = sorted(seen, key=lambda each: each.place)
    known = [each for each in seen if each.token != UNKNOWN]
    is_right = (
        [each.place for each in seen] == list(range(len(seen))) and row in seen and all(each.is_right for each in seen)
    )
    is_right &= all(
        following(first.token_place, first.token) == second.token and first.token_place + 1 == second.token_place
        for first, second in pairwise(known)
    )
    if not is_right or not known or to < known[-1].token_place:
        return to + 2, 0  # the position is wrong, too: corrections read it alone
    token = known[-1].token
    for place in range(known[-1].token_place, to):
        token = following(place, token)
    return to, token


class ContinuingLayer(nn.Module):
    """The layer of EAGLE, P-EAGLE and MTP: the row at position i has the state of token i and reads token i + 1. It
    makes the state of the token that it read, or, of a mask token, of the one that would be there.

    `shift`: it is about so many tokens later.
    """

    def __init__(self, shift: int = 0) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, states: Tensor, embeddings: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        rows = []
        for place, state, read in zip(positions[0].tolist(), states[0].tolist(), embeddings[0].tolist(), strict=True):
            is_right = read[1] == UNKNOWN or (state[0] == place and following(place, state[1]) == read[1])
            rows.append((place, place + 1, read[1], is_right))
        entries = torch.tensor(rows, dtype=torch.float32)[None, None]
        seen, _ = cache.update(entries, entries, 0)
        found = [Row(*map(int, each[:3]), bool(each[3])) for each in seen[0, 0].tolist()]
        made = []
        for number, own in enumerate(found[len(found) - len(rows) :]):
            shown = [row for row, is_shown in zip(found, mask[0, 0, number].tolist(), strict=True) if is_shown]
            made.append(knowledge(own, shown, own.place + 1 + self.shift))
        return code(*torch.tensor(made).T)[None]


class BlockOracle(nn.Module):
    """The layer of heads that draft blocks. `ahead`: whose state the row of a position makes, in tokens."""

    def __init__(self, ahead: int) -> None:
        super().__init__()
        self.ahead = ahead
        self.self_attn = SimpleNamespace(keys_and_values=self._of_context)  # type: ignore[assignment]

    def _of_context(self, context: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        is_right = context[..., 0] == positions
        entries = torch.stack([positions, positions, context[..., 1], is_right], dim=-1).float()[:, None]
        return entries, entries

    def forward(self, states: Tensor, positions: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        assert mask is None
        of_block = torch.stack([positions, positions, states[..., 1], torch.ones_like(positions)], dim=-1)
        seen, _ = cache.update(of_block.float()[:, None], of_block.float()[:, None])
        found = [Row(*map(int, each[:3]), bool(each[3])) for each in seen[0, 0].tolist()]
        block = found[len(found) - states.shape[1] :]
        return code(*torch.tensor([knowledge(row, found, max(row.place + self.ahead, 0)) for row in block]).T)[None]


class NextToken(nn.Module):
    """An output layer: the token after the one that a state is about. `blind`: positions that it gets wrong."""

    def __init__(self, blind: frozenset[int] = NEVER) -> None:
        super().__init__()
        self.blind = blind

    def forward(self, states: Tensor) -> Tensor:
        return one_hot(self.after(states[..., 0], states[..., 1]))

    def after(self, places: Tensor, tokens: Tensor) -> Tensor:
        is_wrong = torch.isin(places.long() + 1, torch.tensor(sorted(self.blind), dtype=torch.long))
        found: Tensor = (following(places, tokens) + is_wrong) % VOCAB
        return found


class NextOfPrevious(NextToken):
    """A correction: the position comes from the state, the token is the one before, as the drafter hands it on."""

    def forward(self, state: Tensor, token: Tensor | None = None, memory: Tensor | None = None) -> Any:  # type: ignore[override]
        if token is not None:  # DSpark
            return one_hot(self.after(state[..., 0], token)), memory
        return one_hot(self.after(state[..., 0], state[..., WIDTH + 1]))  # Domino: state and GRU


class LastRead(nn.Module):
    """A GRU that knows the token that it read last."""

    def forward(self, embedding: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return embedding, memory


# The drafters, each with the parts above. `shift`: what the head says is about a token so much later.


def eagle_head(generation: int, shift: int, blind: frozenset[int]) -> EagleHead:
    config = LlamaConfig(hidden_size=WIDTH, num_attention_heads=1, num_key_value_heads=1, intermediate_size=4)
    config._attn_implementation = "sdpa"
    layers = LAYERS if generation == 3 else LAYERS[-1:]
    head = EagleHead(config, EagleLayout(generation, layers, WIDTH, VOCAB), Embeddings(), nn.Identity())
    return replaced(head, layers if generation == 3 else (), shift, blind)


def replaced(head: Any, layers: Sequence[int], shift: int, blind: frozenset[int]) -> Any:
    head.fc, head.rotary_emb, head.norm = Joined(layers), Rotation(), nn.Identity()
    head.midlayer, head.lm_head = ContinuingLayer(shift), NextToken(blind)
    return head


def eagle(generation: int = 3, is_tree: bool = False) -> Callable[..., Drafter]:
    def make(shift: int, blind: frozenset[int], path: Path) -> Drafter:
        model = EagleModel(eagle_head(generation, shift, blind), VOCAB, NEVER)
        return EagleDrafter(model, DynamicTreeDrafter(model, NUM_DRAFTS, 1) if is_tree else ModelDrafter(model, GREEDY))

    return make


def mtp(shift: int, blind: frozenset[int], path: Path) -> Drafter:
    class Layer(ContinuingLayer):
        def forward(  # type: ignore[override]
            self, embeddings: Tensor, states: Tensor, *, position_embeddings: Tensor, attention_mask: Tensor,
            position_ids: Tensor, past_key_values: Any,
        ) -> Tensor:  # fmt: skip
            assert torch.equal(position_embeddings, position_ids)
            return super().forward(states, embeddings, position_ids, attention_mask, past_key_values)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = SimpleNamespace()
            self.layers = nn.ModuleList([Layer(shift)])
            self.layers[0].weight = nn.Parameter(torch.zeros(1))
            self.embed_tokens, self.rotary_emb, self._project_to_logits = Embeddings(), Rotation(), NextToken(blind)
            self.has_per_layer_rope = self.use_shared_post_norm = False

    head = MtpHead(Network(), tiny.causal_lm())
    model = EagleModel(head, VOCAB, NEVER)
    return EagleDrafter(model, ModelDrafter(model, GREEDY))


def peagle(shift: int, blind: frozenset[int], path: Path) -> Drafter:
    config = LlamaConfig(hidden_size=WIDTH, num_attention_heads=1, num_key_value_heads=1, intermediate_size=4)
    head = ParallelEagleHead(config, EagleLayout(3, LAYERS, WIDTH, VOCAB), Embeddings(), 1, MASK)
    unknown = torch.full((), UNKNOWN)
    head.mask_hidden = nn.Parameter(torch.cat([code(unknown, unknown, layer) for layer in LAYERS])[None, None])
    return BlockDrafter(ParallelModel(replaced(head, LAYERS, shift, blind), VOCAB, NEVER), GREEDY)


def block(kind: type[BlockHead], from_anchor: bool) -> Callable[..., Drafter]:
    def make(shift: int, blind: frozenset[int], path: Path) -> Drafter:
        config = Qwen3Config(hidden_size=WIDTH, num_attention_heads=1, num_key_value_heads=1, head_dim=WIDTH)
        size = NUM_DRAFTS if from_anchor else NUM_DRAFTS + 1
        layout = BlockLayout(LAYERS, WIDTH, size, MASK, from_anchor, NUM_DRAFTS, (LayerMask(),), VOCAB)
        parts = config, layout, Embeddings(), NextToken(blind)
        # The state of a token says the next one: so does the row of the token, or the one behind it.
        oracle = BlockOracle((0 if from_anchor else -1) + shift)
        if kind is DSparkHead:
            head: Any = DSparkHead(*parts, MarkovLayout("vanilla", VOCAB, 2))
            head.markov_head = NextOfPrevious(blind)
        elif kind is DominoHead:
            head = DominoHead(*parts, DominoLayout(2, 2))
            head.prefix_gru, head.embed_proj = LastRead(), NextOfPrevious(blind)
        else:
            head = BlockHead(*parts)
        if head.is_chain:
            head.lm_head = Nothing()
        head.fc, head.hidden_norm, head.norm = Joined(LAYERS), nn.Identity(), nn.Identity()
        head.layers, head.rotary_emb = nn.ModuleList([oracle]), Rotation()
        return BlockDrafter(BlockModel(head, VOCAB, NEVER), GREEDY)

    return make


class Nothing(nn.Module):
    def forward(self, states: Tensor) -> Tensor:
        return torch.zeros(*states.shape[:-1], VOCAB)


def medusa(shift: int, blind: frozenset[int], path: Path) -> Drafter:
    class Heads(nn.Module):
        """Head k is about the token k + 2 places after a state."""

        def forward(self, state: Tensor) -> Tensor:
            place, token = (int(each) for each in state[:2])
            found = []
            for _ in range(NUM_DRAFTS + 2 + shift):
                place, token = place + 1, following(place, token)
                found.append((token + (place in blind)) % VOCAB)
            return one_hot(torch.tensor(found[1 + shift :][:NUM_DRAFTS]))

    model = tiny.causal_lm()
    names = [f"drafter.path={saved_head('medusa', model, path, num_heads=NUM_DRAFTS)}"]
    names += [f"drafter.head_chances={[[0.9]] * NUM_DRAFTS}", f"drafter.num_nodes={NUM_DRAFTS}"]
    _, (spec,) = with_overrides([], [load_method("medusa")], names)
    drafter = cast(Any, build_decoder(spec, ModelPair(model), GREEDY)).drafter
    drafter.heads, drafter.eos_token_ids = Heads(), NEVER
    return cast(Drafter, drafter)


PATHS: dict[str, Callable[..., Drafter]] = {
    "EAGLE-1": eagle(1), "EAGLE-3": eagle(), "EAGLE-3, a tree": eagle(is_tree=True), "MTP": mtp, "P-EAGLE": peagle,
    "Medusa": medusa,
    "DFlash": block(BlockHead, False), "DFlash of DeepSpec": block(BlockHead, True),
    "DSpark": block(DSparkHead, True), "DSpark, fill-in": block(DSparkHead, False),
    "Domino": block(DominoHead, False), "Domino, shifted": block(DominoHead, True),
}  # fmt: skip


def steps(drafter: Drafter, late: int = 0) -> tuple[list[int], list[int]]:
    """The accepted draft tokens of all full steps, and the tokens of the answer."""
    made = decode(
        KnownTarget(late), drafter, exact_match if drafter.draws else rejection, PROMPT,
        num_draft_tokens=NUM_DRAFTS, sampling=GREEDY, stop=StopRules(NUM_TOKENS), generator=torch.Generator(),
    )  # fmt: skip
    full = [step for step in made.steps if step.num_drafted == NUM_DRAFTS]
    assert len(full) > 5
    return [step.num_accepted for step in full], made.token_ids


def tokens_of_the_target() -> list[int]:
    text = list(PROMPT)
    for _ in range(NUM_TOKENS):
        text.append(following(len(text) - 1, text[-1]))
    return text[len(PROMPT) :]


@pytest.mark.parametrize("path", PATHS)
def test_all_drafts_of_a_head_that_knows_the_target_are_accepted(path: str, tmp_path: Path) -> None:
    accepted, tokens = steps(PATHS[path](0, NEVER, tmp_path / "head"))
    assert accepted == [NUM_DRAFTS] * len(accepted) and tokens == tokens_of_the_target()


@pytest.mark.parametrize("path", PATHS)
def test_a_rejection_leaves_no_trace(path: str, tmp_path: Path) -> None:
    """A head with blind spots is rejected there, and nowhere else: what it drafted in vain, and the states of it, are
    gone."""
    accepted, tokens = steps(PATHS[path](0, BLIND, tmp_path / "head"))
    assert tokens == tokens_of_the_target()
    expected, last = [], len(PROMPT)  # the position of the last token of the text
    for _ in accepted:
        right = next(number for number in range(NUM_DRAFTS + 1) if number == NUM_DRAFTS or last + 1 + number in BLIND)
        expected.append(right)
        last += right + 1
    assert accepted == expected and {0, NUM_DRAFTS} & set(expected) and len(set(expected)) > 2


@pytest.mark.parametrize("path", PATHS)
def test_a_shift_by_one_is_found(path: str, tmp_path: Path) -> None:
    """Of what the head says, or of the states that it reads."""
    for shift, late in ((1, 0), (-1, 0), (0, 1)):
        accepted, tokens = steps(PATHS[path](shift, NEVER, tmp_path / f"{shift}_{late}"), late)
        assert tokens == tokens_of_the_target()
        assert sum(accepted) / len(accepted) < 0.3, (shift, late, accepted)
