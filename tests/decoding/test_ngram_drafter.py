"""The n-gram drafter: its q is what it draws from, and decoding with it is lossless; controls must fail."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from specbench.core.errors import ConfigError
from specbench.decoding.drafters.ngram import (
    NgramDistribution,
    NgramDrafter,
    SparseProbs,
    draw_uniforms,
    process_counts,
)
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import Sampling, draw, process
from specbench.decoding.verification import Fuzzy, rejection
from specbench.models.causal_lm import ModelPair
from specbench.models.corpus_models import NgramModel
from specbench.models.loading import load_model
from specbench.models.mmap_store import vocabulary_digest
from specbench.training.corpus_arrays import build_ngrams
from tests.support.distributions import PROMPT, chi_square_p
from tests.support.toys import TableModel, joint

CPU = torch.device("cpu")
NUM_DRAWS = 220  # sequences; the controls fail at p < 1e-6 with them
VOCAB = 12
SAMPLINGS = [
    Sampling(1.0), Sampling(0.5), Sampling(2.0, top_k=3), Sampling(1.0, top_p=0.7), Sampling(0.7, 5, 0.9), Sampling(0.0)
]  # fmt: skip


def random_model(folder: Path, seed: int, vocab_size: int = VOCAB, order: int = 2, length: int = 60) -> NgramModel:
    """Counts of skewed random documents; tokens that no document has are left over when there are few."""
    random = Random(seed)
    weights = [random.random() ** 3 for _ in range(vocab_size)]
    documents = [random.choices(range(vocab_size), weights, k=length) for _ in range(5)]
    return build_ngrams(documents, order, vocab_size, folder, "d")


def drafter(model: NgramModel, sampling: Sampling, eos: tuple[int, ...] = ()) -> NgramDrafter:
    return NgramDrafter(target_of(model, eos), sampling, model)


def target_of(model: NgramModel, eos: tuple[int, ...] = ()) -> Any:
    return SimpleNamespace(
        target=SimpleNamespace(eos_token_ids=frozenset(eos), vocab_size=model.vocab_size, device=CPU)
    )


def dense_logits(model: NgramModel, contexts: list[list[int]]) -> torch.Tensor:
    """Log counts as logits over the whole vocabulary: what the sparse form must agree with."""
    logits = torch.full((len(contexts), model.vocab_size), float("-inf"))
    for row, context in enumerate(contexts):
        ids, counts = model.continuations(context)
        logits[row, torch.tensor(ids.astype(np.int64))] = torch.tensor(counts.astype(np.float32)).log()
    return logits


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_sparse_distributions_are_those_of_process(tmp_path: Path, order: int, sampling: Sampling) -> None:
    model = random_model(tmp_path / "ngram", order, order=order)
    contexts = [[first, second] for first in range(VOCAB) for second in (0, 3, VOCAB - 1)]
    logits = dense_logits(model, contexts)
    sparse = SparseProbs([NgramDistribution(model, model.span(each), sampling) for each in contexts], VOCAB, CPU)
    expected = process(logits, sampling)
    assert torch.allclose(sparse.probs, expected, atol=1e-6)
    assert torch.allclose(sparse.raw_probs, torch.softmax(logits, -1), atol=1e-6)
    target_probs = torch.softmax(torch.randn(len(contexts), VOCAB, generator=torch.Generator().manual_seed(1)), -1)
    assert torch.allclose(sparse.overlap(target_probs), torch.minimum(expected, target_probs).sum(-1), atol=1e-6)
    for token in range(VOCAB):
        ids = torch.full((len(contexts),), token)
        assert torch.allclose(sparse.token_probs(ids), expected[:, token], atol=1e-6)


@pytest.mark.parametrize("sampling", SAMPLINGS[:-1])
def test_it_draws_from_the_q_that_it_hands_over(tmp_path: Path, sampling: Sampling) -> None:
    model = random_model(tmp_path / "ngram", 4, length=500)
    generator = torch.Generator().manual_seed(5)
    made = drafter(model, sampling)
    counts: dict[int, Counter[int]] = {1: Counter(), 2: Counter()}
    first = made.propose([0, 3], 1, generator)
    wanted = max(range(VOCAB), key=lambda token: float(first.probs.token_probs(torch.tensor([token]))[0]))
    followed = None
    for _ in range(2000):
        proposal = made.propose([0, 3], 2, generator)
        counts[1][proposal.token_ids[0]] += 1
        if proposal.token_ids[0] == wanted:  # the second draft token, given the first
            counts[2][proposal.token_ids[1]] += 1
            followed = proposal.probs
    assert isinstance(followed, SparseProbs)
    for number, probs in enumerate(followed.probs, start=1):
        support = probs > 0
        assert not set(counts[number]) - set(support.nonzero()[:, 0].tolist())
        observed = [counts[number][token] for token in support.nonzero()[:, 0].tolist()]
        expected = probs[support].double().numpy()
        assert stats.chisquare(observed, expected / expected.sum() * sum(observed)).pvalue > 1e-3


def test_recover_draws_from_the_residual(tmp_path: Path) -> None:
    model = random_model(tmp_path / "ngram", 6, length=500)
    generator = torch.Generator().manual_seed(6)
    sparse = drafter(model, Sampling(1.0)).propose([2], 3, generator).probs
    assert isinstance(sparse, SparseProbs)
    target_probs = torch.softmax(torch.randn(VOCAB, generator=generator), -1)
    for index in range(3):
        counts = Counter(draw(sparse.residual(torch.tensor([index]), target_probs), generator) for _ in range(1000))
        left = (target_probs - sparse.probs[index]).clamp_min(0).double()
        support = left > 0
        observed = [counts[token] for token in support.nonzero()[:, 0].tolist()]
        assert sum(observed) == 1000
        assert stats.chisquare(observed, (left[support] / left.sum() * 1000).numpy()).pvalue > 1e-3


def test_greedy_drafts_are_the_most_frequent_continuations(tmp_path: Path) -> None:
    model = build_ngrams([[0, 1, 2, 0, 1, 3, 0, 1, 3], [4, 4, 4]], 3, VOCAB, tmp_path / "ngram", "d")
    proposal = drafter(model, Sampling(0.0)).propose([9, 0], 4, torch.Generator())
    assert proposal.token_ids == [1, 3, 0, 1]
    assert isinstance(proposal.probs, SparseProbs) and proposal.probs.is_one_hot
    assert proposal.probs.probs.argmax(-1).tolist() == [1, 3, 0, 1] and float(proposal.probs.probs.sum()) == 4.0
    raw = proposal.probs.raw_probs
    assert raw[0].tolist() == [0, 1.0, *[0] * (VOCAB - 2)]
    assert raw[1, [2, 3]].tolist() == pytest.approx([1 / 3, 2 / 3])
    assert torch.equal(proposal.probs.token_probs(torch.tensor(proposal.token_ids)), torch.ones(4))


def test_an_end_token_ends_the_draft_and_every_draft_token_is_a_pass(tmp_path: Path) -> None:
    model = build_ngrams([[0, 1, 2, 3, 4]], 2, VOCAB, tmp_path / "ngram", "d")
    made = drafter(model, Sampling(0.0), eos=(3,))
    generator = torch.Generator().manual_seed(0)
    assert made.propose([1], 5, generator).token_ids == [2, 3]
    assert made.propose([1], 0, generator).token_ids == []
    assert made.passes is not None
    assert [length for length, _ in made.passes.read()] == [1, 1]
    sampled = drafter(model, Sampling(1.0), eos=(3,))
    assert sampled.propose([0], 5, generator).token_ids == [1, 2, 3]
    assert sampled.passes is not None and all(seconds > 0 for _, seconds in sampled.passes.read())


def test_uniform_draws_stay_below_the_last_cumulated_probability() -> None:
    """The largest draw times any sum of probabilities must not round up to that sum."""
    largest = ((1 << 52) - 1) / (1 << 52)
    for total in np.linspace(0.99, 1.01, 20_001):
        assert largest * total < total
    uniforms = draw_uniforms(10_000, torch.Generator().manual_seed(1))
    assert min(uniforms) >= 0 and max(uniforms) < 1 and stats.kstest(uniforms, "uniform").pvalue > 1e-3


def test_top_k_keeps_ties_and_top_p_at_least_one() -> None:
    counts = np.array([5, 3, 3, 3, 1], dtype=np.uint16)
    assert len(process_counts(counts, Sampling(1.0, top_k=2))) == 4
    assert len(process_counts(counts, Sampling(1.0, top_p=1e-9))) == 1
    assert process_counts(counts, Sampling(1.0)).sum() == pytest.approx(1.0)


def sequences(target: TableModel, made: NgramDrafter, gamma: int, seed: int, rule: Callable = rejection) -> Counter:
    generator = torch.Generator().manual_seed(seed)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(NUM_DRAWS):
        generation = decode(
            target, made, rule, PROMPT, num_draft_tokens=gamma, sampling=Sampling(1.0),
            stop=StopRules(max_new_tokens=4), generator=generator,
        )  # fmt: skip
        counts[tuple(generation.token_ids[:3])] += 1
    return counts


@pytest.mark.parametrize(("seed", "order", "draft"), [
    (1, 2, Sampling(1.0)), (2, 3, Sampling(1.0)), (3, 2, Sampling(0.5, top_k=2)), (4, 2, Sampling(0.0)),
])  # fmt: skip
def test_decoding_is_lossless(tmp_path: Path, seed: int, order: int, draft: Sampling) -> None:
    """Also where the n-gram model never saw a token (token 3 of 4), and whatever the drafts' own sampling is."""
    target = TableModel(4, seed)
    random = Random(seed)
    model = build_ngrams([random.choices(range(3), k=9) for _ in range(4)], order, 4, tmp_path / "ngram", "d")
    counts = sequences(target, drafter(model, draft), 2, seed)
    assert chi_square_p(counts, joint(target, PROMPT, 3)) > 1e-3


class Overconfident(NgramDrafter):
    """Draws from the frequencies and hands over sharper ones."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        proposal = super().propose(ids, num_draft_tokens, generator)
        if not isinstance(proposal.probs, SparseProbs):
            return proposal
        sharper = [NgramDistribution(row.model, row.span, Sampling(0.3)) for row in proposal.probs.rows]
        return Proposal(proposal.token_ids, SparseProbs(sharper, self.ngram.vocab_size, CPU))


def test_control_a_wrong_q_is_caught(tmp_path: Path) -> None:
    target, model = TableModel(3, 4), random_model(tmp_path / "ngram", 4, vocab_size=3)
    made = Overconfident(target_of(model), Sampling(1.0), model)
    assert chi_square_p(sequences(target, made, 2, 4), joint(target, PROMPT, 3)) < 1e-6


def test_it_works_with_the_fuzzy_rule(tmp_path: Path) -> None:
    """At threshold 0 that follows the target, with a threshold it does not."""
    target, model = TableModel(4, 2), random_model(tmp_path / "ngram", 2, vocab_size=4)
    for threshold, passes in ((0.0, True), (0.6, False)):
        rule = Fuzzy(divergence="js", threshold=threshold)
        value = chi_square_p(sequences(target, drafter(model, Sampling(1.0)), 2, 2, rule), joint(target, PROMPT, 3))
        assert value > 1e-3 if passes else value < 1e-6


@pytest.fixture(scope="module")
def target(tiny_pair: tuple[str, str]) -> ModelPair:
    return ModelPair(load_model(tiny_pair[0], device="cpu"))


def own_model(folder: Path, target: ModelPair) -> NgramModel:
    """Counts of the target's tokens of a text."""
    ids = target.target.tokenizer("the cat and the hat and the bat " * 3)["input_ids"]
    digest = vocabulary_digest(target.target.vocabulary)
    return build_ngrams([ids], 2, target.target.vocab_size, folder, digest)


def test_the_factory_takes_a_folder_and_names_it(tmp_path: Path, target: ModelPair) -> None:
    model = own_model(tmp_path / "ngram", target)
    made = NgramDrafter(target, Sampling(1.0), path=str(tmp_path / "ngram"), temperature=0.0)
    assert (made.name, made.revision) == (str(tmp_path / "ngram"), model.digest)
    assert made.sampling.greedy


def test_the_factory_refuses_what_does_not_fit(tmp_path: Path, target: ModelPair) -> None:
    folder = str(tmp_path / "ngram")
    with pytest.raises(ConfigError, match="no n-gram model of its own: train one with `specbench train ngram"):
        NgramDrafter(target, Sampling())
    with pytest.raises(ConfigError, match="no n-gram model"):
        NgramDrafter(target, Sampling(), path=folder)
    build_ngrams([[1, 2]], 2, target.target.vocab_size, Path(folder), "another digest")
    with pytest.raises(ConfigError, match="with another tokenizer"):
        NgramDrafter(target, Sampling(), path=folder)
    own_model(Path(folder), target)
    narrow = SimpleNamespace(name="narrow", vocabulary=target.target.vocabulary, vocab_size=50)
    with pytest.raises(ConfigError, match="with another tokenizer"):
        NgramDrafter(SimpleNamespace(target=narrow), Sampling(), path=folder)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_run_with_it_records_what_it_drafted_with(
    specbench: Callable[..., tuple[int, str, str]], tmp_path: Path, target: ModelPair, temperature: str
) -> None:
    own = own_model(tmp_path / "ngram", target)
    (tmp_path / "mgsm_en.tsv").write_text("the cat and the hat\t5\nthe bat\t7\n", encoding="utf-8")
    code, out, err = specbench(
        "run", "--task", "mgsm", "--subset", "en", "--method", "ngram", "--data", str(tmp_path), "--json",
        "--target", target.target.name, "--set", "generation.max_new_tokens=12", "--set", "drafter.path=ngram",
        "--set", f"generation.temperature={temperature}", "--output", "out",
    )  # fmt: skip
    assert code == 0, err
    for part in ('"drafter": "ngram"', f'"drafter_revision": "{own.digest}"', '"method": "ngram@1'):
        assert part in out
