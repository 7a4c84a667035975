"""String-level rejection sampling: ψ against enumeration, exact joint distributions, and controls that must fail."""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding.bridges.string import Psi, StringBridge, StringProbs, string
from specbench.decoding.drafters import ModelDrafter, NoDrafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.proposal import OUT_OF_VOCABULARY, PointMass
from specbench.decoding.sampling import Sampling, draw, process
from specbench.decoding.verification import rejection
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.loading import load_model
from specbench.models.vocabulary import Vocabulary
from specbench.specs.catalogue import load_method
from tests.support import tiny, tokenizers_made_here
from tests.support.distributions import NUM_DRAWS, PLAIN, PROMPT, chi_square_p, draws
from tests.support.string_bridges import joint
from tests.support.toys import TextModel

SHAPED = Sampling(temperature=0.7, top_k=3)
Texts = Sequence[str | None]
PAIRS: dict[str, tuple[Texts, Texts]] = {
    "segmentations overlap": (("a", "b", "ab", "abb", "ba"), ("a", "b", "ab", "bb")),
    "one byte each": (("a", "b", "ab", "abba"), ("a", "b")),
    "the drafter ends texts": (("a", "b", "ab", "aab"), ("b", None, "a", "aa")),
    "each side has its own": (("a", "b", "ba", "bad"), ("b", "c", "a", "bab", "d")),
    "draft tokens share a string": (("a", "b", "aa", "abb"), ("a", "b", "a")),
}


OVERLAPPING = 4  # seed of the tables of the first pair, in which the path of a draft is far from ψ


class StringModel(TextModel):
    """A table model that also scores batches; `batches` holds the number of suffixes of each."""

    def __init__(self, texts: Texts, seed: int) -> None:
        super().__init__(texts, seed)
        self.batches: list[int] = []

    def score_batch(self, ids: list[int], suffixes: list[list[int]]) -> torch.Tensor:
        assert len({len(suffix) for suffix in suffixes}) == 1
        assert suffixes[0]
        self.batches.append(len(suffixes))
        return torch.cat([self.score(ids + suffix, 1).logits for suffix in suffixes])


def models(name: str, seed: int) -> tuple[StringModel, StringModel]:
    ours, theirs = PAIRS[name]
    return StringModel(ours, seed), StringModel(theirs, seed + 1000)


def bridged(
    target: StringModel, draft: StringModel, sampling: Sampling, draft_sampling: Sampling | None = None, **options: int
) -> StringBridge:
    """The bridge between two toys, with the prompt read."""
    made = bridge_of(ModelPair(target, draft), sampling, draft_sampling, **options)  # type: ignore[arg-type]
    made.prefill(PROMPT)
    return made


def bridge_of(
    models: ModelPair, sampling: Sampling, draft_sampling: Sampling | None = None, **options: int
) -> StringBridge:
    made = string(models, sampling, lambda model: ModelDrafter(model, draft_sampling or sampling), **options)
    assert isinstance(made, StringBridge)
    return made


def enumerated(
    target: StringModel, draft: StringModel, drafter: StringBridge, ids: list[int], sampling: Sampling
) -> dict[int, float]:
    """ψ by drawing out every draft: whole strings are compared, there is no trie."""
    strings = dict(target.text_vocabulary.id_of)
    context = drafter._exact(ids)
    psi: dict[int, float] = defaultdict(float)

    def go_on(drafted: list[int], written: bytes, mass: float, ended: bool) -> None:
        if ended or not any(known.startswith(written) and known != written for known in strings):
            begins = [known for known in strings if written.startswith(known)]
            psi[strings[max(begins, key=len)] if begins else OUT_OF_VOCABULARY] += mass
            return
        probs = process(draft.score(context + drafted, 1).logits, sampling)[0].double()
        for token, prob in enumerate((probs / probs.sum()).tolist()):
            piece = draft.text_vocabulary.token_bytes[token]
            if prob > 0:
                go_on([*drafted, token], written + (piece or b""), mass * prob, piece is None)

    go_on([], b"", 1.0, False)
    return psi


def psi_behind(drafter: StringBridge, ids: list[int]) -> Psi:
    """ψ at a context, by the bridge's own parts."""
    return Psi(drafter._crossing, drafter._tree(drafter._exact(ids)), ())


def full_psi(drafter: StringBridge, ids: list[int], vocab_size: int) -> torch.Tensor | None:
    """ψ of every target token after `ids`, [vocab_size]; None if nothing can be drafted."""
    depth = drafter._crossing.target.depth
    if drafter._fitting(drafter._exact(ids), depth) < depth:
        return None
    psi = psi_behind(drafter, ids)
    return torch.tensor([psi.of(token) for token in range(vocab_size)])


@pytest.mark.parametrize("sampling", [PLAIN, SHAPED])
@pytest.mark.parametrize("name", PAIRS)
def test_psi_is_the_sum_over_all_drafts(name: str, sampling: Sampling) -> None:
    for seed in range(2):
        target, draft = models(name, seed)
        drafter = bridged(target, draft, sampling)
        for ids in ([0, 1], [1, 0], [0, 3], [2, 1, 2]):
            check_psi(target, draft, drafter, ids, sampling)


def check_psi(
    target: StringModel, draft: StringModel, drafter: StringBridge, ids: list[int], sampling: Sampling
) -> None:
    expected = enumerated(target, draft, drafter, ids, sampling)
    one_after_the_other, tokens = psi_behind(drafter, ids), [*range(target.vocab_size), OUT_OF_VOCABULARY]
    for token in tokens:
        assert psi_behind(drafter, ids).of(token) == pytest.approx(expected[token], abs=1e-12)
        assert one_after_the_other.of(token) == pytest.approx(expected[token], abs=1e-12)
    assert sum(expected.values()) == pytest.approx(1.0)
    assert sum(map(one_after_the_other.of, tokens)) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_psi_is_the_sum_over_all_drafts_for_random_vocabularies(seed: int) -> None:
    source = random.Random(seed)

    def texts(num_tokens: int, longest: int) -> list[str]:
        drawn = {"".join(source.choices("abc", k=source.randint(1, longest))) for _ in range(num_tokens)}
        return sorted(drawn | {"a"}, key=lambda text: (text != "a", text))

    target = StringModel([*texts(7, 4), None], seed)
    draft = StringModel([*texts(5, source.choice([1, 3])), None], seed + 1)
    drafter = bridged(target, draft, PLAIN)
    check_psi(target, draft, drafter, [0, 0], PLAIN)


@pytest.mark.parametrize("name", PAIRS)
def test_drafts_follow_psi(name: str) -> None:
    target, draft = models(name, 5)
    drafter = bridged(target, draft, PLAIN)
    generator = torch.Generator().manual_seed(5)
    counts = Counter((drafter.propose(PROMPT, 1, generator).token_ids[0],) for _ in range(NUM_DRAWS))
    expected = {(token,): mass for token, mass in enumerated(target, draft, drafter, PROMPT, PLAIN).items()}
    assert chi_square_p(counts, expected) > 1e-3


@pytest.mark.parametrize(
    ("number", "name", "sampling"),
    [
        pytest.param(number, name, sampling, marks=[pytest.mark.slow] * ((number // 2 + shaped) % 2))
        for number, name in enumerate(PAIRS)
        for shaped, sampling in enumerate([PLAIN, SHAPED])
    ],
)
def test_the_target_is_followed(number: int, name: str, sampling: Sampling) -> None:
    """Every pair of vocabularies meets drafts of one and of three tokens, and so does every sampling; the fast half of
    the cases has every pair, and both lengths with both samplings."""
    seed = 1 + (number + [PLAIN, SHAPED].index(sampling)) % 2
    gamma = 2 * seed - 1
    target, draft = models(name, OVERLAPPING if name == "segmentations overlap" else seed)
    counts = draws(target, bridged(target, draft, sampling), rejection, gamma, seed, sampling)
    assert chi_square_p(counts, joint(target, 3, sampling)) > 1e-3


def test_greedy_drafts_are_lossless_too() -> None:
    target, draft = models("segmentations overlap", 4)
    drafter = bridged(target, draft, PLAIN, Sampling(0.0))
    assert isinstance(drafter.propose(PROMPT, 1, torch.Generator()).probs, PointMass)
    assert chi_square_p(draws(target, drafter, rejection, 2, 4), joint(target, 3, PLAIN)) > 1e-3


def test_control_the_drafted_path_alone_in_place_of_psi_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a token can be drafted in several ways, the probability of one of them is too little. With the same tables,
    draws and draft length ψ itself passes in the test above."""
    drawn: dict[Psi, float] = {}
    draw_token = Psi.draw

    def recorded(self: Psi, generator: torch.Generator) -> Any:
        token, path = draw_token(self, generator)
        drawn[self] = 1.0
        for index, draft_token in enumerate(path):
            (row,) = self._tree.rows([self._start + path[:index]], b"")
            drawn[self] *= float(row._distributions.probs[row._index, draft_token])
        return token, path

    target, draft = models("segmentations overlap", OVERLAPPING)
    drafter = bridged(target, draft, PLAIN)
    monkeypatch.setattr(Psi, "draw", recorded)
    monkeypatch.setattr(StringProbs, "token_probs", lambda self, ids: torch.tensor([drawn[psi] for psi in self._psis]))
    assert chi_square_p(draws(target, drafter, rejection, 1, 1), joint(target, 3, PLAIN)) < 1e-6


@pytest.mark.parametrize(
    ("name", "seed", "num_draws"),
    [
        pytest.param(name, 1, 700, marks=pytest.mark.slow) if name != "the drafter ends texts" else (name, 3, NUM_DRAWS)
        for name in PAIRS
    ],
)
def test_control_recovering_from_the_target_is_caught(
    name: str, seed: int, num_draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StringProbs, "sample_residual", lambda self, index, probs, generator: draw(probs, generator))
    target, draft = models(name, seed)
    counts = draws(target, bridged(target, draft, PLAIN), rejection, 1, seed, num_draws=num_draws)
    assert chi_square_p(counts, joint(target, 3, PLAIN)) < 1e-6


@pytest.mark.parametrize("foreign", [0.0, 0.3])
def test_recovery_follows_the_residual_and_ends(foreign: float) -> None:
    """ψ close to p refuses nearly every token: each is refused at most once per draw."""

    class Table:
        def __init__(self) -> None:
            self.num_asked = 0

        def of(self, token: int) -> float:
            self.num_asked += 1
            return float(psi[token])

    target_probs = torch.tensor([0.4, 0.3, 0.2, 0.05, 0.05, 0.0])
    psi = (target_probs + torch.tensor([1e-3, -2e-3, 5e-4, -5e-4, 1e-3, 0.0])) * (1 - foreign)
    residual = (target_probs - psi).clamp_min(0)
    generator = torch.Generator().manual_seed(0)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(NUM_DRAWS):
        table = Table()
        counts[(StringProbs([0], [table]).sample_residual(0, target_probs, generator),)] += 1  # type: ignore[list-item]
        assert table.num_asked <= 5
    expected = {(i,): float(mass) for i, mass in enumerate(residual / residual.sum()) if mass > 0}
    assert set(counts) <= set(expected)
    assert chi_square_p(counts, expected) > 1e-3


@pytest.mark.parametrize(("seed", "name"), list(enumerate(PAIRS)))
def test_accepts_at_least_as_much_as_exact_match(name: str, seed: int) -> None:
    """The rate of a run is Σ min(p, ψ), which is never below exact match's Σ p·ψ: so it is for any numbers up to 1."""
    target, draft = models(name, seed)
    drafter = bridged(target, draft, PLAIN)
    generator = torch.Generator().manual_seed(seed)
    psi = full_psi(drafter, PROMPT, target.vocab_size)
    assert psi is not None
    target_probs = target.probs(PROMPT)
    expected = float(torch.minimum(target_probs, psi).sum())
    assert expected >= float((target_probs * psi).sum())
    accepted = 0
    for _ in range(200):
        proposal = drafter.propose(PROMPT, 1, generator)
        assert proposal.probs is not None
        token = torch.tensor(proposal.token_ids)
        kept = torch.rand((), generator=generator) * proposal.probs.token_probs(token)
        accepted += int(proposal.token_ids[0] != OUT_OF_VOCABULARY and bool(kept < target_probs[token]))
    assert accepted / 200 == pytest.approx(expected, abs=5 * (expected * (1 - expected) / 200) ** 0.5 + 1e-3)


@pytest.mark.parametrize("draft_sampling", [Sampling(0.0), PLAIN])
@pytest.mark.parametrize("name", PAIRS)
def test_greedy_decoding_is_unchanged(name: str, draft_sampling: Sampling) -> None:
    """Without any ψ: the draft model reads only what is drafted."""
    num_accepted = 0
    for seed in range(2):
        target, draft = models(name, seed)
        drafter = bridged(target, draft, Sampling(0.0), draft_sampling)
        outputs = [
            decode(
                target, made, rejection, PROMPT, num_draft_tokens=gamma, sampling=Sampling(0.0),
                stop=StopRules(max_new_tokens=20), generator=torch.Generator().manual_seed(seed),
            )
            for made, gamma in ((NoDrafter(), 0), (drafter, 3))
        ]  # fmt: skip
        assert outputs[0].token_ids == outputs[1].token_ids
        assert not draft.batches
        num_accepted += sum(step.num_accepted for step in outputs[1].steps)
    assert num_accepted > 0


def byte_drafter(**options: int) -> tuple[StringModel, StringBridge]:
    """A drafter of single letters for tokens that end in a gap below one another: b and ba lead to nothing alone."""
    target = StringModel(("a", "c", "ab", "abcab", "abccc"), 3)
    draft = StringModel(("a", "b", "c"), 4)
    drafter = bridged(target, draft, PLAIN, **options)
    draft.query_lengths.clear()
    return draft, drafter


def test_contexts_are_read_once_and_together() -> None:
    draft, drafter = byte_drafter()
    psi = psi_behind(drafter, PROMPT)
    psi.of(2)  # ab: the contexts "", a, ab on the way; then abc, and behind it abca and abcc together
    assert (len(draft.query_lengths) - sum(draft.batches), draft.batches, drafter.num_passes) == (2, [2], 6)
    num_calls = len(draft.query_lengths)
    for token in (0, 2, 3, 4):  # all that they need is known: a ends at "a", the others on the way
        psi.of(token)
    assert len(draft.query_lengths) == num_calls
    assert drafter.num_passes == 6
    psi.draw(torch.Generator().manual_seed(0))
    assert len(draft.query_lengths) == num_calls


def test_a_token_is_read_in_one_pass_where_draft_tokens_are_bytes() -> None:
    draft, drafter = byte_drafter()
    psi = psi_behind(drafter, PROMPT)
    psi.of(3)  # abcab: "", a, ab, abc, abca
    assert (len(draft.query_lengths), draft.batches, drafter.num_passes) == (1, [], 5)
    assert draft.query_lengths[0] <= 6


def test_the_cap_raises_and_says_what_to_do() -> None:
    _, drafter = byte_drafter(max_draft_passes=5)
    psi = psi_behind(drafter, PROMPT)
    with pytest.raises(ConfigError, match=r"slrs.*'ab' needs more than bridge\.max_draft_passes = 5 draft passes"):
        psi.of(2)
    assert psi_behind(byte_drafter(max_draft_passes=6)[1], PROMPT).of(2) > 0


def test_one_cap_for_all_tokens_of_a_step() -> None:
    target, draft = models("one byte each", 2)
    proposal = bridged(target, draft, PLAIN).propose(PROMPT, 3, torch.Generator().manual_seed(1))
    capped = bridged(target, draft, PLAIN, max_draft_passes=4)
    with pytest.raises(ConfigError, match="in one step"):
        for seed in range(20):
            proposal = capped.propose(PROMPT, 3, torch.Generator().manual_seed(seed))
            assert proposal.probs is not None
            proposal.probs.token_probs(torch.tensor(proposal.token_ids))


def test_a_token_that_ends_inside_a_draft_token_is_read_anew() -> None:
    """The target's a of the drafter's only token aab: what follows is drafted behind a text without the rest."""
    target, draft = StringModel(("a", "b", "d"), 1), StringModel(("aab", "a", "b"), 2)
    draft.table[..., 1:] = -30.0
    drafter = bridged(target, draft, PLAIN)
    read: list[list[int]] = []
    score = draft.score
    draft.score = lambda ids, num: read.append(list(ids)) or score(ids, num)  # type: ignore[method-assign, func-returns-value]
    assert drafter.propose([0, 1], 2, torch.Generator().manual_seed(0)).token_ids == [0, 0]
    assert read == [[1, 2], [1, 2, 1]]


def test_nothing_is_drafted_at_the_end_of_the_draft_context() -> None:
    target, draft = models("one byte each", 1)
    drafter = bridged(target, draft, PLAIN)
    generator = torch.Generator().manual_seed(0)
    draft.context_limit = 5  # the longest token has 4 letters
    assert drafter.propose([0], 3, generator).num_drafted == 1
    assert drafter.propose([0, 1], 3, generator).num_drafted == 0
    assert full_psi(drafter, [0, 1], target.vocab_size) is None
    assert drafter.propose([0], 0, generator).num_drafted == 0


def test_other_drafters_are_refused() -> None:
    target, draft = models("one byte each", 1)
    with pytest.raises(ConfigError, match=r"use drafter: \{type: model\}"):
        string(ModelPair(target, draft), PLAIN, lambda model: NoDrafter())  # type: ignore[arg-type]


def test_the_method_is_lossless_and_fuzzy_rules_do_not_fit() -> None:
    method = load_method("slrs")
    assert method.lossless
    assert method.bridge.options == {"max_draft_passes": 4096}
    with pytest.raises(ConfigError, match="raw_probs, which bridge 'string' cannot carry"):
        dumped = method.model_dump(exclude={"sweep"})
        type(method).model_validate({**dumped, "verification": {"rule": "fuzzy", "divergence": "js", "threshold": 0.3}})


@pytest.mark.parametrize("kind", ["llama", "mamba2", "qwen3_5_text"])
def test_real_caches_give_the_same_psi_in_any_order(kind: str) -> None:
    """One token at a time behind a walk, all tokens at once, and as if nothing was cached."""
    tokenizer = tokenizers_made_here.byte_bpe(340)
    target = CausalLM(tiny.network(vocab_size=len(tokenizer), num_hidden_layers=1), tokenizer, "target", None)
    draft = tiny.causal_lm(kind, seed=1, **tiny.two_layers(kind))
    drafter = bridge_of(ModelPair(target, draft), PLAIN)
    ids = target.encode_prompt("Janet's ducks lay 16 eggs", chat=False)
    drafter.prefill(ids)
    generator = torch.Generator().manual_seed(0)
    psi = psi_behind(drafter, ids)
    drafted = [psi.draw(generator)[0] for _ in range(3)]
    tokens = [*drafted, *range(300, 315)]
    apart = torch.tensor([psi.of(token) for token in tokens])
    draft.reset()
    together = full_psi(drafter, ids, target.vocab_size)
    assert together is not None
    torch.testing.assert_close(apart, together[tokens], rtol=1e-3, atol=1e-7)
    context, vocabulary = drafter._exact(ids), target.text_vocabulary
    final = [token for token in tokens if not longer(vocabulary, token)]
    assert len(final) > 5
    for token in final:  # one chain of bytes
        path = [draft.text_vocabulary.id_of[bytes([byte])] for byte in vocabulary.token_bytes[token] or b""]
        draft.reset()
        probs = torch.softmax(draft.score([*context, *path[:-1]], len(path)).logits, dim=-1)
        assert psi.of(token) == pytest.approx(float(probs[range(len(path)), path].prod()), rel=1e-3)


def longer(vocabulary: Vocabulary, token: int) -> list[bytes]:
    written = vocabulary.token_bytes[token] or b""
    return [other for other in vocabulary.id_of if other != written and other.startswith(written)]


def test_sampling_from_the_embedded_target_stays_below_the_cap(
    embedded_pair: ModelPair, embedded_prompts: dict[str, list[list[int]]]
) -> None:
    """Where the target is uncertain, ψ and p differ, and the residual is drawn too."""
    target = embedded_pair.target
    drafter = bridge_of(ModelPair(target, load_model("embedded:drafter-bytes", device="cpu")), PLAIN)
    generator = torch.Generator().manual_seed(0)
    steps = []
    for prompts in list(embedded_prompts.values())[:1]:
        generation = decode(
            target, drafter, rejection, prompts[0], num_draft_tokens=2, sampling=PLAIN,
            stop=StopRules(max_new_tokens=16, eos_token_ids=target.eos_token_ids), generator=generator,
        )  # fmt: skip
        assert generation.positions["draft_prob"] is not None
        assert all(0 < prob <= 1 + 1e-6 for prob in generation.positions["draft_prob"])
        steps += generation.steps
    assert any(step.num_accepted < step.num_verified for step in steps)
    assert sum(step.num_accepted for step in steps) / sum(step.num_verified for step in steps) > 0.3
