"""s-CDF: the update is half the gradient of the unfairness with the best divergence held constant, and nothing else."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.training.corrective import CorrectiveObjective, num_accepted, prompt_misfit, proxy_acceptance
from specbench.training.loop import LossPart
from specbench.training.passes import (
    Batch,
    Sample,
    corrective_weights,
    cross_entropy_full,
    cross_entropy_sampled,
    learnt_logits,
    truncated_cross_entropy,
    truncated_probs,
)
from specbench.training.spec import TrainSpec
from tests.support import tiny

PROMPTS = [("en", tuple(range(10, 16))), ("en", (1, 2, 3)), ("sw", (40, 41)), ("sw", (9,) * 5), ("te", (200, 7, 8, 3))]
SMALL: dict[str, Any] = {"languages_per_pass": 3, "prompts_per_language": 2, "mini_batch": 2}


def spec(seed: int = 0, **settings: Any) -> TrainSpec:
    return TrainSpec.model_validate(
        {"kind": "scdf", "output": "x", "data": {"tasks": ["mgsm"]}, "max_new_tokens": 6, "seed": seed,
         "scdf": {**SMALL, **settings}}
    )  # fmt: skip


@pytest.fixture(scope="module")
def target() -> CausalLM:
    model = tiny.causal_lm(num_hidden_layers=1)
    model.model.double()
    return model


def drafter(seed: int = 1) -> Any:
    return tiny.network(seed=seed, num_hidden_layers=1).double()


def gradient(model: Any) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def language(part: LossPart) -> str:
    (name,) = {group for group, _ in part.groups}
    return name


def update(model: Any, parts: Sequence[LossPart]) -> torch.Tensor:
    """What a step of the loop accumulates."""
    model.zero_grad()
    for part in parts:
        if part.weight:
            (part.weight * part.losses(model).mean()).backward()
    return gradient(model)


def by_definition(model: Any, target: CausalLM, objective: CorrectiveObjective, best_is_constant: bool) -> torch.Tensor:
    """½ ∇ (1/m) Σ (D − c)², from the very texts of the step, each through both models by itself."""
    divergences = []
    for measured in objective._measured.values():
        values = []
        for sample in (sample for batch in measured.batches for sample in batch.samples):
            ids = torch.tensor([sample.ids])
            places = slice(sample.num_given - 1, len(sample.ids) - 1)
            p = target.model(ids).logits[0, places].softmax(-1).detach()
            values.append(-(p * model(ids).logits[0, places].log_softmax(-1)).sum(-1))
        divergences.append(torch.cat(values).mean())
    stacked = torch.stack(divergences)
    best = stacked.min().detach() if best_is_constant else stacked.min()
    model.zero_grad()
    (0.5 * (stacked - best).square().mean()).backward()
    return gradient(model)


@pytest.mark.parametrize("mini_batch", [1, 2, 8])
def test_the_update_is_half_the_gradient_of_the_unfairness(target: CausalLM, mini_batch: int) -> None:
    model = drafter()
    objective = CorrectiveObjective(spec(mini_batch=mini_batch, prompts_per_language=3), target, PROMPTS)
    found = update(model, objective.parts(model, 0))
    expected = by_definition(model, target, objective, best_is_constant=True)
    assert float((found - expected).abs().max()) <= 1e-8
    assert float(expected.abs().max()) > 1e-3  # there is something to be equal to
    moving = by_definition(model, target, objective, best_is_constant=False)
    assert float((found - moving).abs().max()) > 1e-4  # a best divergence that moves too is another update
    assert float((found - 2 * expected).abs().max()) > 1e-4  # and so is the whole gradient, without the ½


def test_equal_weights_are_another_update(target: CausalLM) -> None:
    model = drafter()
    corrective, equal = (CorrectiveObjective(spec(weighting=name), target, PROMPTS) for name in ("corrective", "equal"))
    first, second = update(model, corrective.parts(model, 0)), update(model, equal.parts(model, 0))
    assert float((first - second).abs().max()) > 1e-4
    assert sum(part.weight for part in equal.parts(model, 0)) == pytest.approx(1.0)


def test_the_best_language_gets_no_weight(target: CausalLM) -> None:
    model = drafter()
    objective = CorrectiveObjective(spec(), target, PROMPTS)
    parts, rows = objective.parts(model, 3), objective.rows(model, 3, {})
    best = rows[0]["star_lang"]
    assert {row["lang"] for row in rows} == {"en", "sw", "te"}
    assert {row["lang"] for row in rows if row["weight"] == 0.0} == {best}
    assert {language(part) for part in parts if part.weight == 0.0} == {best}
    divergences = {row["lang"]: row["r"] for row in rows}
    assert best == min(divergences, key=divergences.__getitem__)
    for row in rows:
        assert set(row) == set(objective.columns)
        assert row["weight"] == pytest.approx((row["r"] - divergences[best]) / 3)
        assert row["unfairness"] == pytest.approx(sum((d - divergences[best]) ** 2 for d in divergences.values()) / 3)
        assert 0 <= row["acceptance"] <= 1 and 0 < row["prompt_tv_q"] <= 1 and 0 < row["prompt_tv_p"] <= 1
    for part in parts:  # what is not computed again is what it would be
        loss = float(part.losses(model).mean().detach())
        places = [i for i, each in enumerate(p for p in parts if language(p) == language(part)) if each is part]
        assert loss == pytest.approx(objective._measured[language(part)].losses[places[0]].mean().item())


def test_the_same_step_is_the_same_whatever_ran_before_it(target: CausalLM) -> None:
    def losses(seed: int, before: Sequence[int], step: int) -> list[float]:
        model, objective = drafter(), CorrectiveObjective(spec(seed), target, PROMPTS)
        for earlier in before:
            objective.parts(model, earlier)
            objective.rows(model, earlier, {})
        return [float(part.losses(model).mean().detach()) for part in objective.parts(model, step)]

    assert losses(0, [], 2) == losses(0, [0, 1], 2)
    assert losses(0, [], 2) != losses(1, [], 2)
    assert losses(0, [], 2) != losses(0, [], 3)


def test_the_sampled_estimator_converges_to_the_full_one() -> None:
    random = torch.Generator().manual_seed(0)
    target_logits, draft_logits = (torch.randn(3, 8, generator=random).double() for _ in range(2))
    full = cross_entropy_full(target_logits, draft_logits)
    number = 20_000

    def sampled(logits: torch.Tensor) -> torch.Tensor:
        tokens = torch.multinomial(logits.softmax(-1), number, replacement=True, generator=random)
        pairs = zip(tokens, draft_logits, strict=True)
        return torch.stack([cross_entropy_sampled(row, q.expand(number, -1)) for row, q in pairs])

    right, wrong = sampled(target_logits), sampled(draft_logits)
    errors = 5 * right.std(-1) / number**0.5
    assert ((right.mean(-1) - full).abs() <= errors).all()
    assert ((wrong.mean(-1) - full).abs() > errors).any()  # tokens of the drafter's own estimate something else


def test_both_estimators_of_one_step_differ_and_use_the_same_texts(target: CausalLM) -> None:
    model = drafter()
    objectives = [CorrectiveObjective(spec(estimator=name), target, PROMPTS) for name in ("full", "sampled")]
    parts = [objective.parts(model, 0) for objective in objectives]
    assert [part.groups for part in parts[0]] == [part.groups for part in parts[1]]
    tokens = {sample.ids for each in objectives[0]._measured.values() for b in each.batches for sample in b.samples}
    again = {sample.ids for each in objectives[1]._measured.values() for b in each.batches for sample in b.samples}
    assert tokens == again
    batch = objectives[1]._measured["en"].batches[0]
    expected = cross_entropy_sampled(batch.learnt_ids, learnt_logits(model, batch, 257)).mean()
    assert objectives[1]._measured["en"].losses[0].mean().item() == pytest.approx(float(expected.detach()))
    assert objectives[0]._measured["en"].losses[0].mean().item() != pytest.approx(float(expected.detach()))


def test_proportions_draw_the_languages_of_a_step(target: CausalLM) -> None:
    settings = {"weighting": "balanced", "proportions": {"en": 3.0, "sw": 1.0}, "languages_per_pass": 4}
    objective = CorrectiveObjective(spec(**settings), target, PROMPTS)
    drawn = [objective._draw_languages(step) for step in range(400)]
    counts = {name: sum(each[name] for each in drawn) / 1600 for name in ("en", "sw", "te")}
    assert counts["en"] == pytest.approx(0.75, abs=0.05) and counts["te"] == 0.0
    model = drafter()
    step = next(i for i, each in enumerate(drawn) if each == {"en": 3, "sw": 1})
    parts = objective.parts(model, step)
    weights = {name: sum(p.weight for p in parts if language(p) == name) for name in ("en", "sw")}
    assert weights == pytest.approx({"en": 0.75, "sw": 0.25})


def test_one_language_per_step_would_learn_nothing(target: CausalLM) -> None:
    with pytest.raises(ConfigError, match="languages_per_pass = 1"):
        CorrectiveObjective(spec(languages_per_pass=1), target, PROMPTS)


def test_weights_by_hand() -> None:
    assert corrective_weights([1.0, 3.0, 1.5, 1.0]) == [0.0, 0.5, 0.125, 0.0]


def test_cross_entropies_on_a_table() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.25]]).double(), torch.tensor([[0.25, 0.25, 0.5]]).double()
    log2 = float(torch.log(torch.tensor(2.0).double()))
    assert float(cross_entropy_full(p.log(), q.log())) == pytest.approx((0.5 * 2 + 0.25 * 2 + 0.25) * log2)
    probs, ids = truncated_probs(p.log(), 1)
    assert (probs.tolist(), ids.tolist()) == ([[pytest.approx(0.5)]], [[0]])
    assert float(truncated_cross_entropy(probs, ids, q.log())) == pytest.approx(0.5 * 2 * log2)
    everything = truncated_probs(p.log(), 20)
    assert float(truncated_cross_entropy(*everything, q.log())) == pytest.approx(
        float(cross_entropy_full(p.log(), q.log()))
    )
    assert cross_entropy_full(p.log().half(), q.log().half()).dtype == torch.float32


def test_padding_changes_no_logits() -> None:
    model = tiny.network(seed=2).double()
    random = torch.Generator().manual_seed(0)
    lengths = [(9, 4), (3, 1), (6, 5)]
    samples = [
        Sample("a", tuple(torch.randint(0, 257, (length,), generator=random).tolist()), given)
        for length, given in lengths
    ]
    together = learnt_logits(model, Batch(samples), 257)
    alone = torch.cat([learnt_logits(model, Batch([sample]), 257) for sample in samples])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    direct = model(torch.tensor([samples[0].ids])).logits[0, 3:8]
    torch.testing.assert_close(together[:5], direct, rtol=0, atol=1e-12)
    assert learnt_logits(model, Batch(samples), 200).shape == (8, 200)


def test_a_text_may_be_one_token_longer_than_the_context() -> None:
    model = tiny.network("gpt2", max_position_embeddings=8)
    assert learnt_logits(model, Batch([Sample("a", tuple(range(9)), 2)]), 257).shape == (7, 257)


def test_proxy_acceptance_is_the_accepted_prefix() -> None:
    p, q = torch.tensor([0.5, 0.1, 0.9, 0.4]), torch.tensor([0.5, 0.2, 0.3, 0.8])
    for uniforms, expected in ((0.99, 0.99, 0, 0), 1), ((0.99, 0.49, 0.99, 0.49), 4), ((0.99, 0.49, 0.99, 0.5), 3):
        assert num_accepted(p, q, torch.tensor(uniforms)) == expected


def test_proxies_against_known_tables() -> None:
    """A target that gives every drafted token half of what the drafter gives it accepts the k-th with 2^-k."""

    def logits(chosen: float) -> Any:
        def of(batch: Batch) -> torch.Tensor:
            rest = (1 - chosen) / 3
            table = torch.full((batch.num_learnt, 4), rest)
            return table.scatter(1, batch.learnt_ids[:, None], chosen).log()

        return of

    drafts = [Sample("", (0, *ids), 1) for ids in product(range(4), repeat=5)] * 4
    found = proxy_acceptance(drafts, logits(0.4), logits(0.8), 512, seed=0)
    assert found == pytest.approx(sum(2.0**-k for k in range(1, 6)) / 5, abs=0.01)
    few = drafts[::16]
    first, again, other = (proxy_acceptance(few, logits(0.4), logits(0.8), 64, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    assert proxy_acceptance(few, logits(0.8), logits(0.4), 64, seed=0) == 1.0
    assert prompt_misfit(few, logits(0.4), 64) == pytest.approx(0.6)
    assert prompt_misfit([Sample("", (1,), 1)], logits(0.4), 64) is None
