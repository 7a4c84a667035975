"""Draft lengths replayed from records, against real runs at these lengths."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from specbench.analysis.draft_lengths import (
    RECORDING,
    RecordedDrafts,
    candidate_lengths,
    is_recording,
    length_name,
    length_of,
    replayed_rates,
    with_length,
)
from specbench.analysis.roofline.predict import Machine, predict
from specbench.decoding.draft_length import make_length
from specbench.decoding.drafters import ModelDrafter
from specbench.decoding.loop import GenerationOutput, StopRules, decode
from specbench.decoding.verification import rejection
from specbench.records.generation import Generation
from specbench.results.draft_lengths import costs_of_widths
from specbench.running.execute import execute
from specbench.running.request import Request
from specbench.specs.catalogue import load_method
from specbench.specs.method import MethodSpec
from specbench.specs.run_options import RunOptions
from tests.support.loops import GREEDY
from tests.support.records import autoregressive, compared, generation
from tests.support.toys import TableModel

PROMPT, MOST, NEW = [0, 1], 24, 60


def decoded(method: MethodSpec, seed: int) -> GenerationOutput:
    """A greedy generation of two tables that agree often."""
    target = TableModel(12, seed, spread=3.0, eos_token_ids=[11])
    draft = TableModel(12, seed, spread=3.0, eos_token_ids=[11])
    draft.table = draft.table + torch.randn(draft.table.shape, generator=torch.Generator().manual_seed(seed + 7))
    drafter = ModelDrafter(draft, GREEDY)
    assert method.draft_length is not None
    drafter.use_length(make_length(method.draft_length.factory, method.draft_length.options, is_asked=True))
    return decode(
        target, drafter, rejection, PROMPT, num_draft_tokens=method.num_draft_tokens, sampling=GREEDY,
        stop=StopRules(max_new_tokens=NEW, eos_token_ids=frozenset({11})),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


def record_of(output: GenerationOutput, **fields: Any) -> Generation:
    steps = [[s.num_drafted, s.num_verified, s.num_accepted, s.num_emitted] for s in output.steps]
    return generation(
        steps, token_ids=output.token_ids, finish=output.finish, draft_confidence=output.draft_confidence,
        draft_entropy=output.draft_entropy, **fields,
    )  # fmt: skip


def recording() -> MethodSpec:
    return with_length(load_method("sd"), RECORDING, MOST)


LENGTHS = [each for each in candidate_lengths(0.2, [1.0, 1.1, 1.2]) if each["policy"] != "heuristic"]


@pytest.mark.parametrize("length", LENGTHS, ids=length_name)
def test_a_replay_has_the_steps_of_a_real_run(length: dict[str, Any]) -> None:
    """Of a run whose verdicts are all known; its texts are those of the recorded run, as decoding is greedy."""
    num_compared, num_steps, num_drafts = 0, 0, set()
    for seed in range(1, 30):
        output = decoded(recording(), seed)
        drafts = RecordedDrafts.of(record_of(output), MOST, NEW)
        method = with_length(load_method("sd"), length, MOST)
        replayed = drafts.replay(length_of(method), MOST, unknown=True)
        if replayed.num_missing or replayed.num_cut:
            continue
        real = decoded(method, seed)
        assert real.token_ids == output.token_ids
        steps = [(s.num_drafted, s.num_verified, s.num_accepted, s.num_emitted) for s in real.steps]
        assert [tuple(step) for step in replayed.steps] == steps
        assert sum(replayed.num_passes) == len(real.draft_passes)
        num_compared, num_steps = num_compared + 1, num_steps + len(steps)
        num_drafts |= {step[0] for step in steps}
    assert num_compared >= 5
    assert num_steps > 30
    assert len(num_drafts) > 1


def test_a_length_without_a_look_at_drafts_is_replayed_too() -> None:
    found = []
    for seed in range(1, 30):
        output = decoded(recording(), seed)
        method = with_length(load_method("sd"), {"policy": "heuristic"}, MOST)
        replayed = RecordedDrafts.of(record_of(output), MOST, NEW).replay(length_of(method), MOST, unknown=True)
        if not replayed.num_missing and not replayed.num_cut:
            real = decoded(method, seed)
            steps = [(s.num_drafted, s.num_verified, s.num_accepted, s.num_emitted) for s in real.steps]
            found.append([tuple(step) for step in replayed.steps] == steps)
    assert len(found) >= 5
    assert all(found)


def test_missing_verdicts_are_counted() -> None:
    """After a draft that was accepted whole, the target's token was not drafted."""
    output = generation(
        [[2, 2, 2, 3], [2, 2, 2, 3]], draft_confidence=[0.9] * 4, draft_entropy=[0.1] * 4, finish="length"
    )
    method = with_length(load_method("sd"), {"policy": "heuristic", "first": 4}, 4)
    replayed = RecordedDrafts.of(output, 2, 7).replay(length_of(method), 4, unknown=True)
    assert (replayed.num_missing, len(replayed.steps)) == (1, 2)
    assert replayed.num_verdicts == 4


def test_a_record_without_confidences_is_refused() -> None:
    with pytest.raises(ValueError, match="has no draft_confidence"):
        RecordedDrafts.of(generation([[2, 2, 2, 3]]), 2, 7)


def test_only_drafts_that_nothing_ended_are_a_recording() -> None:
    assert is_recording(recording())
    assert not is_recording(load_method("sd"))
    for length in ({"policy": "confidence", "threshold": 0.1}, {**RECORDING, "update": "roc"}, {"policy": "svip"}):
        assert not is_recording(with_length(load_method("sd"), length, 8))
    assert not is_recording(with_length(load_method("tli"), RECORDING, 8)), "its texts depend on where drafts begin"


def test_the_better_length_has_the_better_rate() -> None:
    """Confident tokens are accepted and others are not, so a threshold between them is best."""
    confidences = [0.9, 0.9, 0.1, 0.1]
    steps = [[4, 3, 2, 3]] * 10
    records = [
        compared(
            example, autoregressive(31, target=[(1, 1.0)] * 30, decode_seconds=30.0),
            generation(
                steps, draft_confidence=confidences * 10, draft_entropy=[0.5] * 40, target=[(5, 1.0)] * 10,
                draft=[(1, 0.3)] * 40, decode_seconds=22.0,
            ),
        )
        for example in range(3)
    ]  # fmt: skip
    method = recording().model_copy(update={"name": "m", "num_draft_tokens": 4})
    lengths = [{"policy": "confidence", "threshold": threshold} for threshold in (0.0, 0.5, 0.95)]
    rates = replayed_rates(
        records, method, lengths, {("t", "en"): 100}, 0.3, costs_of_widths([], [])
    )  # fmt: skip
    assert max(rates, key=rates.__getitem__) == "confidence 0.5"
    assert rates["confidence 0.5"] == pytest.approx(3 / (3 * 0.3 + 1.0))  # the third token is drafted and kept


def test_names_tell_lengths_apart() -> None:
    names = [length_name(each) for each in candidate_lengths(0.1, [1.0])]
    assert len(set(names)) == len(names)
    assert "confidence 0.4 roc" in names


def test_predict_replays_a_recorded_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ("draft_length.threshold=0", "generation.max_new_tokens=24")
    options = RunOptions(subsets=("en",), limit=2, overrides=overrides, device="cpu", threads=1)
    request = Request(["mgsm"], ["sd-confidence"], options, "specbench run --task mgsm", output=tmp_path / "run")
    execute(request, Console(quiet=True))
    report = predict([str(tmp_path / "run")], [], Machine(target_pass=10.0, draft_pass=1.0))
    of_method = [each for each in report.predictions if each.method == "sd-confidence"]
    varying = [each for each in of_method if each.draft_length is not None]
    assert {each.draft_length for each in varying} >= {"svip 0.3", "costs", "heuristic 5"}
    assert all(each.speedup.value for each in varying)
    assert not any(each.is_recorded for each in varying)
    shortest = next(each for each in varying if each.draft_length == "confidence 0.9")
    longest = of_method[-1]
    assert longest.is_recorded
    assert (shortest.mean_acceptance_length.value or 0) <= (longest.mean_acceptance_length.value or 0)
