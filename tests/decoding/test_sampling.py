"""Temperature, top-k and top-p against transformers' own warpers, and draws from exactly what is judged."""

import pytest
import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.decoding import sampling
from specbench.decoding.sampling import Distributions, Sampling, draw, process, residual
from specbench.specs.components import build, complete_options
from specbench.specs.task import GenerationSpec

LOGITS = 3 * torch.randn(6, 40, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [None, 1, 7, 100])
@pytest.mark.parametrize("top_p", [None, 0.3, 0.9])
def test_same_probabilities_as_transformers(temperature: float, top_k: int | None, top_p: float | None) -> None:
    scores = TemperatureLogitsWarper(temperature)(None, LOGITS)
    if top_k is not None:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p is not None:
        scores = TopPLogitsWarper(top_p)(None, scores)
    expected = torch.softmax(scores, dim=-1)
    torch.testing.assert_close(process(LOGITS, Sampling(temperature, top_k, top_p)), expected)


def test_greedy_is_one_hot_on_the_best_token() -> None:
    probs = process(LOGITS, Sampling(0.0))
    assert probs.sum(-1).tolist() == [1.0] * 6
    assert probs.argmax(-1).tolist() == Distributions(LOGITS, Sampling()).best.tolist()


def test_the_first_of_the_most_probable_tokens_is_taken_in_any_precision() -> None:
    logits = torch.randint(0, 5, (6, 3000), generator=torch.Generator().manual_seed(0)).bfloat16()  # many are equal
    expected = [row.tolist().index(4.0) for row in logits]
    assert Distributions(logits, Sampling(0.0)).best.tolist() == expected
    assert process(logits, Sampling(0.0)).argmax(-1).tolist() == expected


def test_half_precision_logits_become_float32() -> None:
    rows = Distributions(LOGITS.bfloat16(), Sampling(1.0))
    assert rows.probs.dtype == rows.raw_probs.dtype == torch.float32


def test_concatenated_rows_are_the_rows_that_were_drawn_from() -> None:
    parts = [Distributions(LOGITS[i : i + 1], Sampling(0.7, top_k=5)) for i in range(3)]
    drawn_from = [part.probs for part in parts]
    whole = Distributions.concat(parts)
    assert torch.equal(whole.probs, torch.cat(drawn_from))
    assert torch.equal(whole.raw_probs, torch.softmax(LOGITS[:3], -1))


def test_draw_follows_the_probabilities() -> None:
    generator = torch.Generator().manual_seed(1)
    probs = torch.tensor([0.1, 0.0, 0.6, 0.3])
    counts = torch.bincount(torch.tensor([draw(probs, generator) for _ in range(4000)]), minlength=4) / 4000
    assert counts[1] == 0
    assert (counts - probs).abs().max() < 0.03


@pytest.mark.parametrize("value", [-0.1, 1e-4, float("inf"), float("nan")])
def test_temperatures_that_cannot_be_drawn_at_are_refused_for_both_models(value: float) -> None:
    with pytest.raises(ConfigError, match=r"drafter\.temperature"):
        complete_options(DRAFTERS, "model", {"temperature": value}, "drafter")
    with pytest.raises(ConfigError, match="temperature"):
        build(GenerationSpec, {"max_new_tokens": 1, "temperature": value})


def test_certain_rows_are_judged_by_their_token_as_if_they_were_one_hot(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, target_probs = torch.randn(3, 8, generator=generator), torch.rand(3, 8, generator=generator).softmax(-1)
    rows = Distributions.concat([Distributions(row[None], Sampling(0.0)) for row in logits])
    one_hot = torch.nn.functional.one_hot(logits.argmax(-1), 8).float()
    token_ids = rows.best.clone()
    token_ids[1] = (token_ids[1] + 1) % 8
    monkeypatch.setattr(sampling, "process", None)  # nobody makes them
    assert torch.equal(rows.token_probs(token_ids), torch.tensor([1.0, 0.0, 1.0]))
    assert torch.equal(rows.overlap(target_probs), torch.minimum(one_hot, target_probs).sum(-1))
    for index in range(3):
        rest = rows.residual(torch.tensor([index]), target_probs[index])
        assert torch.equal(rest, residual(target_probs[index], one_hot[index]))
