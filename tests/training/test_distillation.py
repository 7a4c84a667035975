"""Distillation on truncated probabilities, and what all objectives over fixed samples share."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.training.corrective import CorrectiveObjective
from specbench.training.data import TrainingData, TrainingPrompt
from specbench.training.loop import by_group
from specbench.training.objectives import SampleObjective, SoftTargets, build_objective, split_held_out
from specbench.training.passes import Batch, Sample, batches_of, learnt_logits, truncated_probs
from specbench.training.spec import TrainSpec
from tests.support import tiny

DATA = TrainingData(
    {name: tuple(TrainingPrompt(name, f"{name} number {i}: what?", "that") for i in range(20)) for name in ("en", "sw")}
)


def spec(kind: str = "distill", **keys: Any) -> TrainSpec:
    given = {"kind": kind, "output": "x", "data": {"tasks": ["mgsm"]}, "max_new_tokens": 5, **keys}
    if kind == "distill":
        given["distill"] = {"batch_size": 4, **keys.get("distill", {})}
    return TrainSpec.model_validate(given)


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return tiny.causal_lm(num_hidden_layers=1)


def build(
    target: CausalLM, folder: Path, made: TrainSpec, data: TrainingData = DATA, drafter: CausalLM | None = None
) -> Any:
    return build_objective(made, target, drafter or target, data, folder)


def test_a_step_is_the_truncated_cross_entropy_over_all_its_tokens(target: CausalLM, tmp_path: Path) -> None:
    model = tiny.network(seed=1)
    objective = build(target, tmp_path, spec(distill={"top_k": 3}))
    parts = objective.parts(model, 0)
    found = sum(part.weight * float(part.losses(model).mean().detach()) for part in parts)
    losses = {"top": [], "all": []}
    for sample in objective.batch(0):
        batch = Batch([sample])
        p, q = (learnt_logits(each, batch, 257).detach() for each in (target.model, model))
        best = p.softmax(-1).topk(3)
        losses["top"].append(-(best.values * q.log_softmax(-1).gather(-1, best.indices)).sum(-1))
        losses["all"].append(-(p.softmax(-1) * q.log_softmax(-1)).sum(-1))
    assert found == pytest.approx(float(torch.cat(losses["top"]).mean()), rel=1e-5)
    assert found != pytest.approx(float(torch.cat(losses["all"]).mean()), rel=1e-2)
    assert sum(part.weight for part in parts) == pytest.approx(1.0)
    texts = [(part.groups, part.losses(model).detach()) for part in parts]
    of_texts = [
        (group, float(values.sum()), size)
        for groups, losses in texts
        for (group, size), values in zip(groups, losses.split([size for _, size in groups]), strict=True)
    ]
    rows = objective.rows(model, 0, by_group(of_texts))
    assert {row["lang"] for row in rows} <= {"en", "sw"}
    assert sum(row["loss"] * row["num_tokens"] for row in rows) / sum(
        row["num_tokens"] for row in rows
    ) == pytest.approx(found)
    assert set(rows[0]) == set(objective.columns)


def test_the_task_corpus_is_the_target_s_greedy_answer_and_only_it_is_learnt(target: CausalLM, tmp_path: Path) -> None:
    objective = build(target, tmp_path, spec())
    for sample in objective.samples[:5]:
        ids = list(sample.ids[: sample.num_given])
        assert target.decode_text(ids).startswith(sample.group + " number")
        assert sample.num_learnt == 5 or sample.ids[-1] in target.eos_token_ids
        for token in sample.ids[sample.num_given :]:
            assert int(target.score(ids, 1).logits[0].argmax()) == token
            ids.append(token)


def test_the_general_corpus_is_the_text_itself(target: CausalLM, tmp_path: Path) -> None:
    objective = build(
        target,
        tmp_path,
        spec(learning_rate=1e-4, max_text_tokens=9, distill={"corpus": "general", "validation_share": 0}),
    )
    assert {sample.num_given for sample in objective.samples} == {1}
    assert {len(sample.ids) for sample in objective.samples} == {9}
    assert target.decode_text(list(objective.samples[0].ids)) == "en number 0: what? that"[:9]


def test_five_percent_of_every_language_are_held_out(target: CausalLM, tmp_path: Path) -> None:
    objective = build(target, tmp_path, spec(distill={"validation_share": 0.1}))
    assert [sample.group for sample in objective.held_out] == ["en"] * 2 + ["sw"] * 2
    assert not set(objective.held_out) & set(objective.samples) and objective.num_items == 36
    again = build(target, tmp_path, spec(distill={"validation_share": 0.1}))
    assert again.held_out == objective.held_out
    other = build(target, tmp_path, spec(seed=1, distill={"validation_share": 0.1}))
    assert other.held_out != objective.held_out
    model = tiny.network(seed=1)
    assert objective.validation(model) == again.validation(model) != other.validation(model)
    assert objective.validation(target.model) < objective.validation(model)
    assert build(target, tmp_path, spec(learning_rate=1e-4, distill={"validation_share": 0})).validation(model) is None


def test_every_epoch_has_every_sample_once_in_its_own_order() -> None:
    samples = [Sample("en", (1, 2, i), 1) for i in range(10)]
    objective = SampleObjective(samples, 4, 0.0, 0, lambda batch, model: torch.zeros(batch.num_learnt))
    epochs = [[objective.batch(3 * epoch + place) for place in range(3)] for epoch in range(2)]
    assert [len(batch) for batch in epochs[0]] == [4, 4, 2]
    orders = [[sample for batch in epoch for sample in batch] for epoch in epochs]
    assert set(orders[0]) == set(orders[1]) == set(samples) and orders[0] != orders[1]


def test_soft_targets_depend_on_the_batch_and_not_on_what_came_before(target: CausalLM) -> None:
    random = torch.Generator().manual_seed(0)
    samples = [Sample("en", tuple(torch.randint(0, 257, (n,), generator=random).tolist()), 2) for n in range(4, 24)]
    late, early = Batch(samples[13:17]), Batch([samples[3], samples[14], samples[8]])
    first, second = SoftTargets(target, samples, 5, 4), SoftTargets(target, samples, 5, 4)
    second.of(early)
    for a, b in zip(first.of(late), second.of(late), strict=True):
        assert torch.equal(a, b)
    tight = SoftTargets(target, samples, 5, 4, limit_bytes=10)
    torch.testing.assert_close(tight.of(late)[0], first.of(late)[0], rtol=1e-4, atol=1e-6)
    assert torch.equal(tight.of(late)[1], first.of(late)[1])


class Mingling(nn.Module):
    """Logits that follow from all that is in a batch, as the rounding of a large model's do."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(257, generator=torch.Generator().manual_seed(0)))

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=(self.table * input_ids.float().mean()).expand(*input_ids.shape, -1))


def test_soft_targets_are_those_of_the_home_batch_whatever_is_asked_for() -> None:
    model: Any = SimpleNamespace(model=Mingling(), vocab_size=257)
    samples = [Sample("en", tuple(range(n, 2 * n)), 2) for n in range(4, 16)]
    homes = batches_of(samples, 4)
    asked = [Batch([samples[0], samples[9]]), Batch([samples[9]]), Batch(samples[7:10]), Batch([samples[5]])]
    targets = SoftTargets(model, samples, 5, 4)
    for batch in asked:
        found = targets.of(batch)[0].split([sample.num_learnt for sample in batch.samples])
        for sample, probs in zip(batch.samples, found, strict=True):
            home = next(each for each in homes if sample in each.samples)
            scored = truncated_probs(learnt_logits(model.model, home, 257), 5)[0]
            start = sum(each.num_learnt for each in home.samples[: home.samples.index(sample)])
            assert torch.equal(probs, scored[start : start + sample.num_learnt])
            assert not torch.equal(probs, truncated_probs(learnt_logits(model.model, batch, 257), 5)[0][: len(probs)])


def test_a_group_of_one_cannot_be_split(target: CausalLM, tmp_path: Path) -> None:
    data = TrainingData({"en": DATA.prompts["en"], "te": DATA.prompts["sw"][:1]})
    with pytest.raises(ConfigError, match="'te' has one text"):
        build(target, tmp_path, spec(), data)


def test_prompts_that_are_too_long_are_cut_and_answers_must_fit(target: CausalLM, tmp_path: Path) -> None:
    whole = {"learning_rate": 1e-4, "distill": {"validation_share": 0}}  # short prompts are equal
    objective = build(target, tmp_path, spec(max_prompt_tokens=8, **whole))
    assert {sample.num_given for sample in objective.samples} == {8}
    with pytest.raises(ConfigError, match="max_new_tokens = 1024"):
        build(target, tmp_path, spec(max_new_tokens=1024))


def test_an_empty_text_teaches_nothing(target: CausalLM, tmp_path: Path) -> None:
    data = TrainingData({"en": (TrainingPrompt("en", "a"),)})
    with pytest.raises(ConfigError, match="no text of 'en' has two tokens"):
        build(target, tmp_path, spec(distill={"corpus": "general"}), data)


def test_scdf_is_built_from_the_same_data(target: CausalLM, tmp_path: Path) -> None:
    objective = build(target, tmp_path, spec("scdf"))
    assert isinstance(objective, CorrectiveObjective) and objective.num_items == 40


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("scdf", {"scdf": {"prompts_per_language": 2}}),
        ("scdf", {"scdf": {"prompts_per_language": 2}, "max_new_tokens": 2}),  # its drafts are longer
        ("distill", {}),
        ("distill", {"distill": {"corpus": "general"}}),
        ("finetune", {"finetune": {"stage": "pretrain"}}),
        ("finetune", {}),
    ],
)
def test_a_drafter_may_have_a_shorter_context(
    target: CausalLM, tmp_path: Path, kind: str, given: dict[str, Any]
) -> None:
    drafter = tiny.causal_lm("gpt2", max_position_embeddings=16, num_hidden_layers=1)  # learnt positions: no 17th
    data = TrainingData({"en": tuple(TrainingPrompt("en", f"{i}, which is long: what?", "that") for i in range(20))})
    objective = build(target, tmp_path, spec(kind, **given), data, drafter)
    parts = objective.parts(drafter.model, 0)
    assert all(torch.isfinite(part.losses(drafter.model)).all() for part in parts)
    assert objective.rows(drafter.model, 0, by_group([("en", 1.0, 1)]))
    if isinstance(objective, SampleObjective):
        assert max(len(sample.ids) for sample in objective.samples) == 16
    with pytest.raises(ConfigError, match="max_new_tokens = 16: leaves no room for a prompt in the 16 tokens that"):
        build(target, tmp_path, spec("scdf", max_new_tokens=16), drafter=drafter)


def test_a_prompt_is_held_out_with_all_its_answers() -> None:
    """Five prompts of four answers each, and texts of which two are equal; texts of one first token are different."""
    answers = [Sample("en", (1, prompt, temperature), 2) for temperature in range(4) for prompt in range(5)]
    learnt, held_out = split_held_out(answers, 0.2, 0)
    prompts = [{sample.ids[:2] for sample in part} for part in (learnt, held_out)]
    assert [len(learnt), len(held_out)] == [16, 4] and not prompts[0] & prompts[1]
    assert split_held_out(answers, 0.2, 0) == (learnt, held_out)
    assert len({tuple(split_held_out(answers, 0.2, seed)[1]) for seed in range(8)}) > 1
    texts = [Sample("en", (1, text), 1) for text in (7, 7, 8, 9)]
    for seed in range(8):
        learnt, held_out = split_held_out(texts, 0.3, seed)
        assert len(set(held_out)) == 1 and not set(learnt) & set(held_out)
    with pytest.raises(ConfigError, match=r"'en' has one text \(equal texts count once\)"):
        split_held_out(texts[:2], 0.3, 0)


def test_a_prompt_of_two_languages_is_held_out_of_both_or_of_none() -> None:
    """`de` has half of the prompts of `en`, and `sw` all of them; `te` has its own."""
    prompts = {"en": range(40), "de": range(20, 40), "sw": range(40), "te": range(40, 60)}
    samples = [Sample(group, (1, prompt, 5), 2) for group, found in prompts.items() for prompt in found]
    for seed in range(8):
        learnt, held_out = split_held_out(samples, 0.1, seed)
        assert not {sample.ids for sample in learnt} & {sample.ids for sample in held_out}
        assert sorted(learnt + held_out, key=samples.index) == samples
        counts = Counter(sample.group for sample in held_out)
        assert counts == {"en": 4, "de": 2, "sw": 4, "te": 2}
    alone = [sample for sample in samples if sample.group == "te"]
    assert split_held_out(alone, 0.1, 3)[1] == [
        sample for sample in split_held_out(samples, 0.1, 3)[1] if sample.group == "te"
    ]


def test_a_language_of_which_all_is_held_out_is_reported() -> None:
    pairs = {"aa": (1, 2), "bb": (3, 4), "en": (1, 2, 3, 4)}
    samples = [Sample(group, (9, prompt, 5), 2) for group, found in pairs.items() for prompt in found]
    learnt, _ = split_held_out(samples, 0.5, 0)
    assert {sample.group for sample in learnt} == set(pairs)
    with pytest.raises(ConfigError, match=r"validation_share = 0.9 holds out every text of 'aa', since other"):
        split_held_out(samples, 0.9, 0)
