"""Clocks and pass logs on the CPU: passes of a generation lie inside its decode time."""

import time
from types import SimpleNamespace

import pytest
import torch

from specbench.decoding.build import build_decoder
from specbench.decoding.drafters import NoDrafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import rejection
from specbench.models.causal_lm import ModelPair
from specbench.models.loading import load_model
from specbench.models.meters import Clock, PassLog, Stopwatch
from specbench.specs.catalogue import load_method
from tests.support import tiny


def test_marks_and_log() -> None:
    clock = Clock(torch.device("cpu"))
    log = PassLog(clock)
    start, middle = clock.mark(), clock.mark()
    log.add(3, start, middle)
    assert clock.now() >= middle
    assert log.read() == [(3, clock.between(start, middle))]
    log.clear()
    assert log.read() == []


def test_choices_and_what_a_stopwatch_saw() -> None:
    log, watch = PassLog(Clock(torch.device("cpu"))), Stopwatch()
    log.add_choice(1.0, 1.5)
    log.add_choice(2.0, 2.25)
    assert (log.choice_seconds(), log.num_passes) == (0.75, 0)
    log.clear()
    assert log.choice_seconds() == 0
    for _ in range(2):
        with watch:
            time.sleep(0.001)
    assert watch.seconds >= 0.002
    watch.clear()
    assert watch.seconds == 0


def test_cuda_marks_and_waits_on_the_device_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: what the clock asks of torch.cuda must name the model's own device."""
    said: list[object] = []
    event = SimpleNamespace(record=lambda stream: said.append(stream), elapsed_time=lambda end: 250.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: said.append(device))
    clock = Clock(torch.device("cuda:1"))
    log = PassLog(clock)
    log.add(1, clock.mark(), clock.mark())
    clock.now()
    assert said == ["stream of cuda:1", "stream of cuda:1", torch.device("cuda:1")]
    assert log.read() == [(1, 0.25)]


def test_passes_are_part_of_the_decode_time_and_the_prefill_is_not() -> None:
    model = tiny.causal_lm()
    generation = decode(
        model, NoDrafter(), rejection, list(range(40)), num_draft_tokens=0, sampling=Sampling(), stop=StopRules(20),
        generator=torch.Generator(),
    )  # fmt: skip
    assert [length for length, _ in generation.target_passes] == [1] * 19
    assert 0 < sum(seconds for _, seconds in generation.target_passes) <= generation.decode_seconds
    assert generation.ttft_seconds > 0 and generation.draft_prefill_seconds <= generation.ttft_seconds


@pytest.mark.parametrize(("name", "drafter"), [("sd", "drafter"), ("slem", "drafter-bpe"), ("slrs", "drafter-bytes")])
def test_the_parts_of_a_generation_lie_inside_its_decode_time(
    name: str, drafter: str, embedded_pair: ModelPair
) -> None:
    """What is neither a pass nor a choice nor a tokenizer's work is left: not less than nothing, by rounding. The rule
    of slrs makes draft passes, which count as passes alone."""
    models = ModelPair(embedded_pair.target, load_model(f"embedded:{drafter}", device="cpu"))
    decoder = build_decoder(load_method(name), models, Sampling(1.0))
    ids = models.target.encode_prompt("Question: 2 + 2 = ?", chat=False)
    stop = StopRules(12, models.target.eos_token_ids, stop_strings=("###",), decode_text=models.target.decode_text)
    found = decoder.generate(ids, stop, 0)
    assert found.rule_seconds is not None and found.tokenizer_seconds is not None
    assert found.rule_seconds > 0 and found.tokenizer_seconds > 0
    passes = sum(seconds for _, seconds in [*found.target_passes, *found.draft_passes])
    assert passes + found.rule_seconds + found.tokenizer_seconds <= found.decode_seconds + 1e-6
