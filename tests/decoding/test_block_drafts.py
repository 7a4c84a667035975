"""Drafts of blocks: their law through the decode loop, with controls that must be caught, and greedy equality."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.drafters.blocks import BlockDrafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import Distributions, Sampling, process
from specbench.decoding.tree_rules import BlockVerification
from specbench.decoding.verification import VerificationRule, rejection
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
from specbench.models.heads.eagle import EagleLayout
from specbench.models.heads.parallel import ParallelEagleHead, ParallelModel
from specbench.models.loading import load_model
from specbench.models.scoring import Output
from specbench.specs.catalogue import load_method, with_overrides
from tests.support import tiny
from tests.support.distributions import PLAIN, PROMPT, chi_square_p
from tests.support.heads import DEEPSPEC, DFLASH, DOMINO, block_tensors, save_head
from tests.support.toys import TableModel, joint

SIZE, WIDTH = 3, 16
NUM_DRAWS, NUM_CONTROL_DRAWS = 500, 1500
KINDS = ("dflash", "dspark", "domino")
ALL_KINDS = (*KINDS, "peagle")


class TableWithStates(TableModel):
    """A table model whose passes return a hidden state of each token that they read."""

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        num_read = max(num_logits, len(ids) - len(self._seen)) if not self._seen else num_logits
        output = super().score(ids, num_logits, pending)
        states = torch.randn(SIZE + 1, WIDTH, generator=torch.Generator().manual_seed(3))  # by token
        return Output(output.logits, (states[ids[len(ids) - num_read :]],))


def toy_head(kind: str, seed: int = 5) -> BlockHead:
    """A head over three tokens and a mask token; its corrections are large."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        hidden_size=WIDTH, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        num_hidden_layers=1,
    )  # fmt: skip
    layout = BlockLayout((1,), WIDTH, 3, SIZE, kind != "dflash", 2, (LayerMask(),), SIZE)
    parts = torch.nn.Embedding(SIZE + 1, WIDTH), torch.nn.Linear(WIDTH, SIZE, bias=False)
    if kind == "dspark":
        head: BlockHead = DSparkHead(config, layout, *parts, MarkovLayout("vanilla", SIZE, 4, confidence=True))
    elif kind == "domino":
        head = DominoHead(config, layout, *parts, DominoLayout(4, 6))
    else:
        head = BlockHead(config, layout, *parts)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return head.eval().requires_grad_(False)


def parallel_head(seed: int = 5) -> ParallelEagleHead:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1,
        attn_implementation="sdpa",
    )  # fmt: skip
    head = ParallelEagleHead(config, EagleLayout(3, (1,), WIDTH, SIZE), torch.nn.Embedding(SIZE + 1, WIDTH), 2, SIZE)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return head.eval().requires_grad_(False)


def drafter(kind: str, sampling: Sampling = PLAIN, make: Any = BlockDrafter, **options: Any) -> BlockDrafter:
    never = frozenset[int]()
    is_parallel = kind == "peagle"
    model = ParallelModel(parallel_head(), SIZE, never) if is_parallel else BlockModel(toy_head(kind), SIZE, never)
    made: BlockDrafter = make(model, sampling, **options)
    return made


def first_tokens(
    made: BlockDrafter, rule: VerificationRule = rejection, sampling: Sampling = PLAIN, num_draws: int = NUM_DRAWS
) -> Counter[tuple[int, ...]]:
    """The first three tokens of many generations: one of the prefill, and two of drafts."""
    target, generator = TableWithStates(SIZE, 1), torch.Generator().manual_seed(11)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(num_draws):
        generation = decode(
            target, made, rule, PROMPT, num_draft_tokens=2, sampling=sampling, stop=StopRules(max_new_tokens=4),
            generator=generator,
        )  # fmt: skip
        counts[tuple(generation.token_ids[:3])] += 1
    return counts


def law(sampling: Sampling = PLAIN) -> dict[tuple[int, ...], float]:
    if sampling == PLAIN:
        return joint(TableModel(SIZE, 1), PROMPT, 3)
    table, found = TableModel(SIZE, 1).table, {}
    for tokens in product(range(SIZE), repeat=3):
        ids, mass = list(PROMPT), 1.0
        for token in tokens:
            mass *= float(process(table[ids[-2], ids[-1]][None], sampling)[0, token])
            ids.append(token)
        found[tokens] = mass
    return {tokens: mass for tokens, mass in found.items() if mass > 0}


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("rule", [rejection, BlockVerification()])
def test_drawn_drafts_are_lossless(kind: str, rule: VerificationRule) -> None:
    assert chi_square_p(first_tokens(drafter(kind), rule), law()) > 1e-3


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_drafts_of_the_most_probable_tokens_are_lossless(kind: str) -> None:
    assert chi_square_p(first_tokens(drafter(kind, Sampling(0.0))), law()) > 1e-3


@pytest.mark.parametrize("sampling", [Sampling(0.7), Sampling(1.0, top_p=0.8)])
def test_temperature_and_truncation_are_those_of_the_draws(sampling: Sampling) -> None:
    counts = first_tokens(drafter("dspark", sampling), sampling=sampling)
    expected = law(sampling)
    assert counts.keys() <= expected.keys()
    assert chi_square_p(counts, expected) > 1e-3


def after_prompt(made: BlockDrafter, anchor: int = 2) -> list[int]:
    made.prefill(PROMPT)
    made.block.read_target(TableWithStates(SIZE, 1).score(PROMPT, 1).hidden, range(len(PROMPT)))
    return [*PROMPT, anchor]


@pytest.mark.parametrize("kind", ALL_KINDS)
@torch.no_grad()
def test_q_is_what_was_drawn_from(kind: str) -> None:
    """The product of the reported probabilities, added over all drafts that are drawn, is each draft's frequency."""
    made, generator = drafter(kind), torch.Generator().manual_seed(2)
    ids = after_prompt(made)
    counts: Counter[tuple[int, ...]] = Counter()
    reported: dict[tuple[int, ...], float] = {}
    for _ in range(NUM_CONTROL_DRAWS):
        proposal = made.propose(ids, 2, generator)
        tokens = tuple(proposal.token_ids)
        assert proposal.probs is not None and not proposal.probs.is_one_hot
        counts[tokens] += 1
        reported[tokens] = float(proposal.probs.token_probs(torch.tensor(tokens)).prod())
    assert sum(reported.values()) == pytest.approx(1, abs=1e-5) and len(reported) == SIZE**2
    assert chi_square_p(counts, reported) > 1e-3


class SoftmaxOfArgmax(BlockDrafter):
    """Drafts the most probable tokens and reports the softmax as their distribution."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        proposal = super().propose(ids, num_draft_tokens, generator)
        if not proposal.token_ids:
            return proposal
        assert isinstance(proposal.probs, Distributions)
        return Proposal(proposal.token_ids, Distributions(proposal.probs.logits, PLAIN))


class WithoutCorrection(BlockDrafter):
    """Draws from the corrected distributions and reports those of the backbone."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        proposal = super().propose(ids, num_draft_tokens, generator)
        if not proposal.token_ids:
            return proposal
        states, _ = self.block.read_block(ids, len(proposal.token_ids))
        base = self.block.head.base_logits(states)
        return Proposal(proposal.token_ids, Distributions(base, PLAIN))


class OtherSlot(BlockDrafter):
    """Reports the distributions of the other position."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        proposal = super().propose(ids, num_draft_tokens, generator)
        if not proposal.token_ids:
            return proposal
        assert isinstance(proposal.probs, Distributions)
        return Proposal(proposal.token_ids, Distributions(proposal.probs.logits.flip(0), PLAIN))


class DropsUnlikelyTokens(BlockDrafter):
    """Ends the draft before a token that was drawn with a small probability."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        proposal = super().propose(ids, num_draft_tokens, generator)
        if not proposal.token_ids:
            return proposal
        assert isinstance(proposal.probs, Distributions)
        drawn = proposal.probs.token_probs(torch.tensor(proposal.token_ids)).tolist()
        kept = next((place for place, value in enumerate(drawn) if value < 0.4), len(drawn))
        if not kept:
            return Proposal()
        return Proposal(proposal.token_ids[:kept], Distributions(proposal.probs.logits[:kept], PLAIN))


class SearchesTheWholeBlock(BlockDrafter):
    """Proposes nothing where the second token is not worth its cost, which its confidence tells by the first one: so
    the best length of a whole block leaves out a token because of itself."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        proposal = super().propose(ids, num_draft_tokens, generator)
        return Proposal() if proposal.token_ids[:1] == [0] else proposal


@pytest.mark.parametrize(
    ("kind", "make", "sampling"),
    [
        ("dspark", SearchesTheWholeBlock, PLAIN),
        ("dflash", SoftmaxOfArgmax, Sampling(0.0)),
        ("dspark", WithoutCorrection, PLAIN),
        ("domino", WithoutCorrection, PLAIN),
        ("dspark", OtherSlot, PLAIN),
        ("dspark", DropsUnlikelyTokens, PLAIN),
    ],
)
def test_control_a_wrong_q_or_cut_is_caught(kind: str, make: type[BlockDrafter], sampling: Sampling) -> None:
    counts = first_tokens(drafter(kind, sampling, make), num_draws=NUM_CONTROL_DRAWS)
    assert chi_square_p(counts, law()) < 1e-6


def test_a_cut_by_the_confidence_is_lossless() -> None:
    """The head doubts every token after token 0, so that drafts end there: none follows it as the last token of the
    text, and no second one as a draft token."""
    made = drafter("dspark", min_confidence=0.5)
    head = made.block.head
    assert isinstance(head, DSparkHead)
    weight = torch.zeros(1, WIDTH + 4)
    weight[0, WIDTH:] = torch.linalg.pinv(head.markov_head.markov_w1.weight) @ torch.tensor([-3.0, 3.0, 3.0])
    head.confidence_head.proj.weight.data, head.confidence_head.proj.bias.data = weight, torch.zeros(1)
    generator = torch.Generator().manual_seed(1)
    drafts = [made.propose(after_prompt(made), 2, generator).token_ids for _ in range(60)]
    assert {len(draft) for draft in drafts} == {1, 2} and all((draft[0] == 0) == (len(draft) == 1) for draft in drafts)
    assert made.propose(after_prompt(made, 0), 2, generator).token_ids == []
    assert chi_square_p(first_tokens(made), law()) > 1e-3


def test_a_drafted_end_token_ends_the_draft() -> None:
    for kind in ALL_KINDS:
        made = drafter(kind, Sampling(0.0))
        first = made.propose(after_prompt(made), 2, torch.Generator()).token_ids
        assert len(first) == 2
        made.block.eos_token_ids = frozenset(first[:1])
        assert made.propose(after_prompt(made), 2, torch.Generator()).token_ids == first[:1]


CONFIGS: dict[str, dict[str, Any]] = {"dflash": DFLASH, "dspark": DEEPSPEC, "domino": DOMINO}


def saved(kind: str, folder: Path) -> str:
    return str(save_head(folder, CONFIGS[kind], block_tensors(kind=kind, own=kind == "dspark")))


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_outputs_are_those_of_autoregressive_decoding(kind: str, tmp_path: Path) -> None:
    model = tiny.causal_lm(num_hidden_layers=8)
    options = [f"drafter.path={saved(kind, tmp_path)}", "num_draft_tokens=3"]
    _, (spec,) = with_overrides([], [load_method(kind)], options)
    prompt = list(range(40, 60))
    plain = build_decoder(load_method("ar"), ModelPair(model), Sampling(0.0)).generate(prompt, StopRules(12), 0)
    decoder = build_decoder(spec, ModelPair(model), Sampling(0.0))
    made = decoder.generate(prompt, StopRules(12), 0)
    assert made.token_ids == plain.token_ids
    assert any(step.num_drafted == 3 for step in made.steps)
    assert len(made.draft_passes) == sum(step.num_drafted > 0 for step in made.steps)  # one pass for each draft
    assert decoder.generate(prompt, StopRules(12), 0).steps == made.steps  # no state passes from prompt to prompt


def test_which_tokens_are_drafted_by_default(tmp_path: Path) -> None:
    model, drawn = ModelPair(tiny.causal_lm(num_hidden_layers=8)), Sampling(0.8)

    def sampling(kind: str, *options: str) -> Sampling | None:
        given = [f"drafter.path={saved(kind, tmp_path / kind)}", "num_draft_tokens=3", *options]
        _, (spec,) = with_overrides([], [load_method(kind)], given)
        return build_decoder(spec, model, drawn).drafter.sampling  # type: ignore[attr-defined, no-any-return]

    assert sampling("dflash") == Sampling(0.0) and sampling("dspark") == sampling("domino") == drawn
    assert sampling("dflash", "drafter.draft=sample") == drawn
    assert sampling("dflash", "drafter.draft=sample", "drafter.temperature=0.5") == Sampling(0.5)
    assert sampling("dspark", "drafter.draft=argmax") == Sampling(0.0)


@pytest.mark.parametrize(
    ("kind", "options", "problem"),
    [
        ("dflash", ["num_draft_tokens=4"], "drafts at most 3 tokens at once: give --set num_draft_tokens=3 or less"),
        (
            "dflash",
            ["drafter.temperature=0.5"],
            "no effect on drafts of the most probable tokens: give drafter.draft=s",
        ),
        ("domino", ["drafter.min_confidence=0.5"], "has no confidence head: leave it out"),
    ],
)
def test_options_that_do_not_fit_are_refused(kind: str, options: list[str], problem: str, tmp_path: Path) -> None:
    given = [f"drafter.path={saved(kind, tmp_path)}", "num_draft_tokens=3", *options]
    _, (spec,) = with_overrides([], [load_method(kind)], given)
    with pytest.raises(ConfigError, match=problem) as error:
        build_decoder(spec, ModelPair(tiny.causal_lm(num_hidden_layers=8)), Sampling(0.8))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["dflash", "peagle"])
def test_a_target_without_a_published_head(kind: str, specbench: Callable[..., tuple[int, str, str]]) -> None:
    code, _, error = specbench("run", "--task", "mgsm", "--method", f"ar,{kind}", "--target", "org/unknown")
    assert code == 2 and f"has no published {kind} head: give --set drafter.path=DIR" in error
    assert f"train one with `specbench train {kind}" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_equality_on_the_embedded_family(
    kind: str, tmp_path: Path, specbench: Callable[..., tuple[int, str, str]]
) -> None:
    """With random heads for the embedded target."""
    config = load_model("embedded:target", device="cpu").model.config
    width, vocab, num_layers = config.hidden_size, config.vocab_size, config.num_hidden_layers
    settings = {
        **CONFIGS[kind], "hidden_size": width, "vocab_size": vocab, "num_target_layers": num_layers,
        "dflash_config": {
            **CONFIGS[kind].get("dflash_config", {}), "target_layer_ids": [0, num_layers - 2],
            "mask_token_id": vocab - 1,
        },
    }  # fmt: skip
    for key in ("target_layer_ids", "mask_token_id"):
        settings.pop(key, None)
    save_head(tmp_path / "head", settings, block_tensors(kind=kind, width=width, vocab=vocab, draft_vocab=vocab))
    code, _, error = specbench(
        "run", "--task", "mgsm", "--subset", "en", "--method", f"ar,{kind}", "--limit", "2", "--data", "sample",
        "--set", "num_draft_tokens=3", "--set", f"drafter.path={tmp_path / 'head'}",
        "--set", "generation.max_new_tokens=16", "--output", "run",
    )  # fmt: skip
    assert code == 0, error
    for line in Path("run/records.jsonl").read_text().splitlines():
        answers = json.loads(line)["methods"]
        assert answers[kind]["token_ids"] == answers["ar"]["token_ids"]
        assert any(step[0] == 3 for step in answers[kind]["steps"])
    identity = json.loads(Path("run/run.json").read_text())
    assert identity["drafters"][kind]["name"] == str(tmp_path / "head")
