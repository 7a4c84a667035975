"""Batched generation: each prompt's continuation is its own, whatever goes with it; and it is kept on disk."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding.sampling import Sampling, process
from specbench.models.causal_lm import CausalLM
from specbench.training import teacher as generations
from specbench.training.teacher import (
    GenerationCache,
    GenerationJob,
    Generator,
    draw_by_inverse,
    model_fingerprint,
)
from tests.support import tiny

RANDOM = torch.Generator().manual_seed(1)
JOBS = [
    GenerationJob(tuple(torch.randint(0, 257, (n,), generator=RANDOM).tolist()), n) for n in (3, 12, 1, 30, 7, 7, 9)
]


def generator(
    model: CausalLM, temperature: float, ends: frozenset[int] = frozenset({256}), number: int = 8
) -> Generator:
    return Generator(model.model, 257, ends, Sampling(temperature), number)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "qwen3_5_text", "mamba"])
def test_batches_change_nothing(kind: str) -> None:
    model = tiny.causal_lm(kind, **tiny.two_layers(kind))
    for temperature in (0.0, 1.0):
        found = generator(model, temperature, number=4).continue_all(JOBS, 7)
        assert found == generator(model, temperature, number=4).continue_all(JOBS[::-1], 3)[::-1]
    assert found == [generator(model, 1.0, number=4).continue_all([job], 1)[0] for job in JOBS]
    assert found[4] != found[5]  # two prompts
    other = generator(model, 1.0, number=4).continue_all(
        [GenerationJob(job.prompt_ids, job.seed + 1) for job in JOBS], 7
    )
    assert all(a != b for a, b in zip(found, other, strict=True))


def test_greedy_continuations_are_those_of_the_decoding_loop() -> None:
    model = tiny.causal_lm(num_hidden_layers=1)
    found = generator(model, 0.0, frozenset()).continue_all(JOBS, 7)
    for job, tokens in zip(JOBS, found, strict=True):
        ids = list(job.prompt_ids)
        for token in tokens:
            assert int(model.score(ids, 1).logits[0].argmax()) == token
            ids.append(token)


def test_rows_that_ended_change_nothing_for_the_others() -> None:
    model, ends = tiny.causal_lm(num_hidden_layers=1), frozenset(range(0, 257, 5))
    free = generator(model, 1.0, frozenset(), 24).continue_all(JOBS * 4, 28)
    found = generator(model, 1.0, ends, 24).continue_all(JOBS * 4, 28)
    lengths = set()
    for whole, cut in zip(free, found, strict=True):
        end = next((place for place, token in enumerate(whole) if token in ends), len(whole) - 1)
        assert cut == whole[: end + 1]
        lengths.add(len(cut))
    assert len(lengths) > 3


def test_draws_follow_the_distribution() -> None:
    probs = torch.tensor([[0.0, 0.5, 0.125, 0.0, 0.375, 0.0]])
    uniforms = (torch.arange(8000, dtype=torch.float64) + 0.5) / 8000
    drawn = Counter(draw_by_inverse(probs.expand(8000, -1), uniforms).tolist())
    assert drawn == {1: 4000, 2: 1000, 4: 3000}
    edges = draw_by_inverse(probs.expand(2, -1), torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64))
    assert edges.tolist() == [1, 4]


def test_samples_have_the_target_s_frequencies_at_each_temperature() -> None:
    model = tiny.causal_lm(num_hidden_layers=1)
    jobs = [GenerationJob((5, 6, 7), seed) for seed in range(2000)]
    logits = model.score([5, 6, 7], 1).logits
    for temperature, other in itertools.permutations((0.7, 2.0)):
        probs, wrong = (process(logits, Sampling(value))[0] for value in (temperature, other))
        drawn = Counter(ids[0] for ids in generator(model, temperature, number=1).continue_all(jobs, 500))
        best = int(probs.argmax())
        assert drawn[best] / 2000 == pytest.approx(float(probs[best]), abs=0.05)
        assert abs(drawn[best] / 2000 - float(wrong[best])) > 0.05


def test_what_is_kept_is_not_generated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = tiny.causal_lm(num_hidden_layers=1), []
    original = Generator.batches

    def counting(self: Generator, jobs: Any, batch_size: int) -> Any:
        asked.extend(jobs)
        return original(self, jobs, batch_size)

    monkeypatch.setattr(Generator, "batches", counting)

    def ask(jobs: list[GenerationJob], temperature: float = 1.0, number: int = 4, of: CausalLM = model) -> Any:
        asked.clear()
        return GenerationCache(tmp_path).continuations(of, generator(of, temperature, number=number), jobs, 4)

    found = ask(JOBS + JOBS[:1])
    assert found[-1] == found[0] and len(asked) == len(JOBS)
    assert ask(JOBS) == found[:-1] and not asked
    assert ask([GenerationJob(JOBS[1].prompt_ids, 99)]) != found[1:2] and len(asked) == 1
    for change in ({"temperature": 0.5}, {"number": 3}, {"of": tiny.causal_lm(seed=3, num_hidden_layers=1)}):
        ask(JOBS[:1], **change)
        assert len(asked) == 1, change
    ask(JOBS[:1], temperature=0.0)
    ask([GenerationJob(JOBS[0].prompt_ids, 77)], temperature=0.0)
    assert not asked  # greedy answers have no seed


def test_an_interruption_keeps_what_is_there(tmp_path: Path) -> None:
    store, made = GenerationCache(tmp_path), []

    def stopped(jobs: Any) -> Any:
        yield [(0, "a")]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.complete(["x", "y"], ["job x", "job y"], stopped, "texts")

    def rest(jobs: Any) -> Any:
        made.extend(jobs)
        yield [(place, "b") for place, _ in enumerate(jobs)]

    assert store.complete(["x", "y"], ["job x", "job y"], rest, "texts") == ["a", "b"]
    assert made == ["job y"]


def test_a_damaged_file_or_a_folder_that_cannot_be_is_one_error(tmp_path: Path) -> None:
    (tmp_path / generations.FILE).write_text("no database, but long enough to be read as one" * 50)
    with pytest.raises(ConfigError, match="delete the file if it is damaged"):
        GenerationCache(tmp_path).complete(["x"], ["job"], lambda jobs: iter([[(0, 1)]]), "texts")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"continuations of the target\): cannot be written"):
        GenerationCache(tmp_path / "file").complete(["x"], ["job"], lambda jobs: iter([[(0, 1)]]), "texts")


def test_the_fingerprint_follows_the_weights() -> None:
    model, other = tiny.causal_lm(), tiny.causal_lm(seed=1)
    assert model_fingerprint(model) == model_fingerprint(tiny.causal_lm()) != model_fingerprint(other)
    assert model_fingerprint(CausalLM(other.model, other.tokenizer, "x", "abc")) == "abc float32"
