"""The drafter of prescribed acceptance: its rate is what was asked for, its output the target's own, its rank none."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from specbench.analysis.profile.profile import cell_of_steps
from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import Decoder, DraftingDecoder
from specbench.decoding.drafters import NoDrafter
from specbench.decoding.drafters.synthetic import SyntheticDrafter
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import rejection
from specbench.models.causal_lm import ModelPair
from specbench.records.profile import ProfileCell
from specbench.report.captions import caption_lines
from specbench.report.ranking import rank_rows, unranked_line
from specbench.results.paired import RowWithRecords
from specbench.specs.catalogue import load_method, versioned_name, with_overrides
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.statistics.bootstrap import Estimate
from tests.support import tiny
from tests.support.distributions import VOCAB, chi_square_p
from tests.support.profiles import drawn_steps, entry, profile, steps_of
from tests.support.rows import row
from tests.support.toys import TableModel, joint

GREEDY, PLAIN = Sampling(0.0), Sampling(1.0)
GAMMA = 5
NUM_DRAWS = 150  # the control fails at p < 1e-80 with them


def synthetic(acceptance: float):
    return with_overrides([], [load_method("synthetic")], [f"drafter.acceptance={acceptance}"])[1][0]


def decoder(acceptance: float, sampling: Sampling = GREEDY, vocab: int = 30, **options) -> Decoder:
    target, draft = TableModel(vocab, 1, **options), TableModel(vocab, 2)
    target.device = torch.device("cpu")
    drafter = SyntheticDrafter(ModelPair(target, draft), sampling, acceptance=acceptance)
    return DraftingDecoder(synthetic(acceptance), target, drafter, rejection, sampling)


def plain(target, sampling: Sampling = GREEDY) -> Decoder:
    return DraftingDecoder(load_method("ar"), target, NoDrafter(), rejection, sampling)


def counts(generations: list[GenerationOutput]) -> tuple[int, int]:
    steps = [step for each in generations for step in each.steps]
    return sum(step.num_verified for step in steps), sum(step.num_accepted for step in steps)


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
@pytest.mark.parametrize("acceptance", [0.3, 0.8, 0.95])
@pytest.mark.parametrize("num_texts", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_verified_tokens_are_accepted_with_the_given_probability(
    num_texts: int, acceptance: float, sampling: Sampling
) -> None:
    """Within four standard deviations of the binomial over some 180 verified tokens, or 600."""
    made = decoder(acceptance, sampling)
    verified, accepted = counts([made.generate([seed, 3], StopRules(120), seed) for seed in range(num_texts)])
    assert verified > 65 * num_texts
    assert accepted / verified == pytest.approx(acceptance, abs=4 * (acceptance * (1 - acceptance) / verified) ** 0.5)


def test_at_0_and_1_every_draft_token_is_rejected_or_accepted() -> None:
    for acceptance in (0.0, 1.0):
        verified, accepted = counts([decoder(acceptance).generate([1, 2], StopRules(61), 0)])
        assert accepted == acceptance * verified
    assert len(decoder(1.0).generate([1, 2], StopRules(61), 0).steps) == 10


def test_a_sampled_draft_is_always_accepted_at_1() -> None:
    verified, accepted = counts([decoder(1.0, PLAIN).generate([1, 2], StopRules(61), 0)])
    assert verified == accepted == 50


@pytest.mark.parametrize("seed", range(3))
def test_greedy_outputs_are_those_of_plain_decoding_to_the_end_token(seed: int) -> None:
    made = decoder(0.7, vocab=40, eos_token_ids=[7])
    stop = StopRules(80, frozenset([7]))
    assert made.generate([seed, 2], stop, seed).token_ids == plain(made.model).generate([seed, 2], stop, 0).token_ids


@pytest.mark.parametrize("acceptance", [0.25, 0.9])
def test_drawn_tokens_follow_the_target(acceptance: float) -> None:
    """As in test_losslessness.py; and where the draft distribution is not told rightly, the same test fails."""
    prompt, target_counts = [0, 1], Counter()
    made = decoder(acceptance, PLAIN, vocab=VOCAB)
    for seed in range(NUM_DRAWS):
        target_counts[tuple(made.generate(prompt, StopRules(4), seed).token_ids[:3])] += 1
    assert chi_square_p(target_counts, joint(made.model, prompt, 3)) > 1e-3


def test_control_a_mixture_that_is_not_what_was_drawn_from_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench.decoding.drafters.synthetic import Mixture

    monkeypatch.setattr(Mixture, "token_probs", lambda self, ids: torch.full((len(ids),), 0.05))
    prompt, found = [0, 1], Counter()
    made = decoder(0.25, PLAIN, vocab=VOCAB)
    for seed in range(NUM_DRAWS):
        found[tuple(made.generate(prompt, StopRules(4), seed).token_ids[:3])] += 1
    assert chi_square_p(found, joint(made.model, prompt, 3)) < 1e-6


def test_the_expected_acceptance_of_drawn_tokens_is_the_given_one() -> None:
    overlap = decoder(0.6, PLAIN).generate([1, 2], StopRules(60), 0).positions["overlap"]
    assert overlap == pytest.approx([0.6] * len(overlap), abs=1e-5)


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
def test_what_is_measured_are_the_passes_of_speculative_decoding(sampling: Sampling) -> None:
    """One target pass a step, one draft pass a draft token; the rehearsal's are in no log."""
    made = decoder(0.8, sampling)
    generation = made.generate([1, 2], StopRules(60), 0)
    assert [length for length, _ in generation.target_passes] == [step.num_drafted + 1 for step in generation.steps]
    assert len(generation.draft_passes) == sum(step.num_drafted for step in generation.steps)
    assert {length for length, _ in generation.draft_passes} <= {1, 2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
def test_models_that_round_meet_what_they_rehearsed(sampling: Sampling, dtype: torch.dtype) -> None:
    """The plan of a sampled run is made in passes of one token, the verdict in passes of six: both times the same."""
    target, draft = (tiny.causal_lm(seed=seed, num_hidden_layers=1) for seed in range(2))
    for each in (target, draft):
        each.model.to(dtype)
    made = build_decoder(synthetic(0.8), ModelPair(target, draft), sampling)
    generation = made.generate([5, 6, 7, 1], StopRules(20), 1)
    assert [length for length, _ in generation.target_passes] == [step.num_drafted + 1 for step in generation.steps]
    assert len(generation.draft_passes) == sum(step.num_drafted for step in generation.steps)


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
def test_what_leaves_its_rehearsal_is_refused_and_not_measured(sampling: Sampling) -> None:
    made = decoder(0.8, sampling)
    made.drafter.rehearse(lambda: made._decode(made.model, [1, 2], StopRules(60), 0))
    made.model.table = made.model.table.flip(2)
    with pytest.raises(ConfigError, match=r"differs from its rehearsal after \d+ new tokens"):
        made._decode(made.model, [1, 2], StopRules(60), 0)
    made.drafter.rehearse(lambda: made._decode(made.model, [1, 2], StopRules(20), 0))
    with pytest.raises(ConfigError, match="differs from its rehearsal"):  # which ended before
        made._decode(made.model, [1, 2], StopRules(60), 0)


def test_without_a_rehearsal_it_is_as_lossless_and_no_older_script_is_replayed() -> None:
    made = decoder(0.5)
    first, second = (made._decode(made.model, [1, 2], StopRules(60), seed) for seed in (0, 1))
    assert first.token_ids == second.token_ids == plain(made.model).generate([1, 2], StopRules(60), 0).token_ids
    assert first.steps != second.steps
    assert made.generate([1, 2], StopRules(60), 1).steps == second.steps


def test_it_decodes_with_real_models_and_their_caches() -> None:
    models = ModelPair(*(tiny.causal_lm(seed=seed, num_hidden_layers=1) for seed in range(2)))
    made = build_decoder(synthetic(1.0), models, GREEDY)
    generation = made.generate([5, 6, 7], StopRules(20), 0)
    assert generation.token_ids == plain(models.target).generate([5, 6, 7], StopRules(20), 0).token_ids
    assert counts([generation])[0] == counts([generation])[1]


def test_it_goes_with_its_rule_and_with_no_bridge() -> None:
    plain = load_method("synthetic").model_dump()
    with pytest.raises(ConfigError, match="sets the acceptance rate of rule 'rejection'"):
        build(MethodSpec, plain | {"verification": {"rule": "exact_match"}})
    with pytest.raises(ConfigError, match="so there is nothing to bridge"):
        build(MethodSpec, plain | {"bridge": {"type": "retokenize"}})
    with pytest.raises(ConfigError, match="acceptance"):
        synthetic(1.5)
    assert load_method("synthetic").lossless and load_method("synthetic").drafts_token_by_token


def test_its_rows_are_marked_and_ranked_beside_none() -> None:
    own = {"drafter": {"type": "synthetic", "acceptance": 0.8}, "verification": {"rule": "rejection"}}
    rows = [
        row(method="synthetic@1:0", options=own, metrics={"speedup": Estimate(value=9.0, low=8.9, high=9.1)}),
        row(method="sd@1:0", metrics={"speedup": Estimate(value=2.0, low=1.9, high=2.1)}),
    ]
    order = rank_rows([RowWithRecords(each) for each in rows], "speedup")
    assert [(each.row.method, each.text) for each in order] == [("sd@1:0", "1"), ("synthetic@1:0", "")]
    assert unranked_line(rows) == ["not ranked: synthetic: its α is prescribed (0.8), not a drafter's"]
    assert any("not ranked: its α is prescribed (0.8)" in line for line in caption_lines(rows[:1]))


RATES = [0.9, 0.4, 0.95, 0.6]  # from one position to the next they fall and rise


def profile_file(path: Path, rates: list[float], **changes) -> tuple[Path, ProfileCell]:
    """The file of a profile of 600 steps that were drawn with these rates, and its total."""
    made = entry(drawn_steps(rates, 600, seed=3), len(rates), **changes)
    path.write_text(profile(made).model_dump_json(), encoding="utf-8")
    return path, made.cell()


def measured(drafting: dict, sampling: Sampling, num_prompts: int = 16) -> ProfileCell:
    """The profile of a run of the decode loop over some prompts of a table model."""
    target, draft = TableModel(30, 1), TableModel(30, 2)
    target.device = torch.device("cpu")
    drafter = SyntheticDrafter(ModelPair(target, draft), sampling, **drafting)
    overrides = [f"num_draft_tokens={len(RATES)}", *(f"drafter.{name}={value}" for name, value in drafting.items())]
    method = with_overrides([], [load_method("synthetic")], overrides)[1][0]
    made = DraftingDecoder(method, target, drafter, rejection, sampling)
    steps = []
    for seed in range(num_prompts):
        generation = made.generate([seed, 3], StopRules(90), seed)
        own = [(s.num_drafted, s.num_verified, s.num_accepted, s.num_emitted) for s in generation.steps]
        steps.append(steps_of(own))
        steps[-1][:, 0] = seed
    return cell_of_steps(np.concatenate(steps), len(RATES))


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
def test_a_profile_is_reproduced_position_by_position(sampling: Sampling, tmp_path: Path) -> None:
    path, prescribed = profile_file(tmp_path / "p.json", RATES)
    found = measured({"profile": path}, sampling)
    for own, given in zip(found.positions, prescribed.positions, strict=True):
        rate = given.conditional.value
        deviation = (rate * (1 - rate) / own.verified) ** 0.5
        assert own.conditional.value == pytest.approx(rate, abs=4 * deviation), own.position
    length = prescribed.mean_acceptance_length.of_rates
    assert length.low <= found.mean_acceptance_length.of_rates.value <= length.high


def test_control_one_rate_for_all_positions_does_not_reproduce_it(tmp_path: Path) -> None:
    _, prescribed = profile_file(tmp_path / "p.json", RATES)
    found = measured({"acceptance": prescribed.accepted / prescribed.verified}, GREEDY)
    assert abs(found.conditional[1] - prescribed.conditional[1]) > 0.2


def test_the_rates_identify_a_profile_not_its_file(tmp_path: Path) -> None:
    models = ModelPair(TableModel(30, 1), TableModel(30, 2))

    def identity(name: str, rates: list[float]) -> tuple[str, str | None] | None:
        path, _ = profile_file(tmp_path / name, rates)
        return SyntheticDrafter(models, GREEDY, profile=str(path)).inner_identity

    first = identity("a.json", RATES)
    assert first == identity("b.json", RATES) and first[0] == "profile sd-k4 total"
    assert first != identity("a.json", RATES[::-1])
    digests = {versioned_name(method_with(f"drafter.profile={name}")) for name in ("a.json", "b.json")}
    assert len(digests) == 1


def test_wrong_profiles_are_refused_in_one_line(tmp_path: Path) -> None:
    models = ModelPair(TableModel(30, 1), TableModel(30, 2))

    def refused(**options) -> str:
        with pytest.raises(ConfigError) as error:
            SyntheticDrafter(models, GREEDY, **options)
        return str(error.value)

    path, _ = profile_file(tmp_path / "p.json", RATES)
    assert "no entry 'eagle'" in refused(profile=str(path), entry="eagle")
    assert "no cell 'language=de'" in refused(profile=str(path), cell="language=de")
    assert "drafter.profile: give it, too" in refused(entry="sd")
    tree, _ = profile_file(tmp_path / "tree.json", RATES, shape="tree")
    assert "entry sd-k4 is of draft trees" in refused(profile=str(tree))
    (tmp_path / "board.json").write_text('{"format": 1, "rows": []}', encoding="utf-8")
    assert "board.json: is not an acceptance profile: give a file" in refused(profile=str(tmp_path / "board.json"))
    assert "absent.json: cannot be read" in refused(profile=str(tmp_path / "absent.json"))
    (tmp_path / "cut.json").write_text(path.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    assert "cut.json, line 1: not valid JSON" in refused(profile=str(tmp_path / "cut.json"))
    content = path.read_text(encoding="utf-8").replace('"verified"', '"judged"', 1)
    (tmp_path / "other.json").write_text(content, encoding="utf-8")
    assert "unknown key 'judged'" in refused(profile=str(tmp_path / "other.json"))


def test_drafts_are_no_longer_than_the_profile(tmp_path: Path) -> None:
    path, _ = profile_file(tmp_path / "p.json", RATES)
    models = ModelPair(*(tiny.causal_lm(seed=seed, num_hidden_layers=1) for seed in range(2)))
    with pytest.raises(ConfigError, match=r"drafts at most 4 tokens at once: give --set num_draft_tokens=4 or less"):
        build_decoder(method_with(f"drafter.profile={path}"), models, GREEDY)


def method_with(*overrides: str) -> MethodSpec:
    return with_overrides([], [load_method("synthetic")], overrides)[1][0]


def test_rows_of_a_profile_say_so() -> None:
    drafter = {"type": "synthetic", "acceptance": 0.8, "profile": "p.json"}
    own = row(method="synthetic@1:0", options={"drafter": drafter, "verification": {"rule": "rejection"}})
    assert unranked_line([own]) == ["not ranked: synthetic: its α is prescribed (by a profile), not a drafter's"]
