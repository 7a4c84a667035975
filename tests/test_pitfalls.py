"""What went wrong in other harnesses, each shown to be impossible here, on the embedded pair.

1 tokens counted differently; 2 tokens after the end counted; 3 a handicapped baseline; 4 a baseline of another run;
5 hidden defaults of a library; 6 warm-up on a measured prompt; 7 losslessness assumed (test_losslessness.py);
8 timers that leave something out; 9 a mean of ratios (test_metrics.py); 10 test rows among a prompt's examples.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from specbench.cli import make_app
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.drafters import ModelDrafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import Rejection, rejection
from specbench.models.causal_lm import ModelPair
from specbench.running.warm_up import TEXT
from specbench.specs.catalogue import load_method, load_task
from specbench.tasks.examples import load_examples
from tests.support.toys import TableModel

Specbench = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    words = ["run", "--task", "mgsm", "--method", "sd", "--limit", "1", "--subset", "en", "--output", str(folder)]
    result = CliRunner().invoke(make_app(), words)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in (folder / "records.jsonl").read_bytes().splitlines()]


def generations(records: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for record in records:
        yield from record["methods"].items()


def test_same_output_same_count(records: list[dict[str, Any]]) -> None:
    for record in records:
        plain, drafted = record["methods"]["ar"], record["methods"]["sd"]
        assert plain["token_ids"] == drafted["token_ids"]
        emitted = [sum(step[3] for step in method["steps"]) + 1 for method in (plain, drafted)]
        assert emitted == [len(plain["token_ids"])] * 2


def test_nothing_is_counted_after_the_end(records: list[dict[str, Any]], embedded_pair: ModelPair) -> None:
    for _, generation in generations(records):
        ends = [i for i, token in enumerate(generation["token_ids"]) if token in embedded_pair.target.eos_token_ids]
        assert generation["finish"] == "eos" and ends == [len(generation["token_ids"]) - 1]
        assert sum(step[2] for step in generation["steps"]) < len(generation["token_ids"])


def test_the_baseline_has_the_same_model_cache_and_loop(embedded_pair: ModelPair) -> None:
    baseline, method = (build_decoder(load_method(name), embedded_pair, Sampling()) for name in ("ar", "sd"))
    assert baseline.model is method.model and type(baseline.rule) is type(method.rule) is Rejection
    assert baseline.model.sequence is method.model.sequence
    generation = load_task("mgsm").subset("en").generation
    assert baseline.stop_rules(generation, 100) == method.stop_rules(generation, 100)


def test_the_baseline_is_of_the_same_process_and_example(records: list[dict[str, Any]]) -> None:
    """A record is one example in one process, named in it, and holds the baseline and the method."""
    for record in records:
        assert set(record["order"]) == set(record["methods"]) == {"ar", "sd"}
        assert isinstance(record["process"], str)


def test_every_draft_has_the_asked_length_until_the_limit() -> None:
    """No confidence threshold, no schedule: however bad the drafter, it drafts what it is asked for."""
    target, bad = TableModel(6, 1), TableModel(6, 2)
    generation = decode(
        target, ModelDrafter(bad, Sampling()), rejection, [0, 1], num_draft_tokens=5, sampling=Sampling(),
        stop=StopRules(100), generator=torch.Generator(),
    )  # fmt: skip
    emitted_before = itertools.accumulate((step.num_emitted for step in generation.steps), initial=1)
    for step, num_emitted in zip(generation.steps, emitted_before, strict=False):
        assert step.num_drafted == min(5, 100 - num_emitted - 1)


def test_the_warm_up_text_is_no_prompt(monkeypatch: pytest.MonkeyPatch, specbench: Specbench) -> None:
    """Everything that is decoded before the first record is written comes from the filler text."""
    decoded: list[list[int]] = []
    generate = DraftingDecoder.generate

    def spy(self: DraftingDecoder, prompt_ids: list[int], *rest: Any, **named: Any) -> Any:
        decoded.append(prompt_ids)
        return generate(self, prompt_ids, *rest, **named)

    monkeypatch.setattr(DraftingDecoder, "generate", spy)
    specbench(
        "run", "--task", "mgsm", "--method", "sd", "--limit", "1", "--subset", "en", "--output", "p",
        "--set", "generation.max_new_tokens=2", "--warm-up", "60",
    )  # fmt: skip
    *warm_ups, first, second = decoded
    assert first == second
    start = len(TEXT) // 8
    assert len(warm_ups) == 4 and all(first[:start] != ids[:start] for ids in warm_ups)


def test_all_passes_lie_inside_the_clock(records: list[dict[str, Any]]) -> None:
    """The first draft pass and the last verification are timed: one target pass a step, one draft pass a token."""
    for name, generation in generations(records):
        target, draft = generation["passes"]["target"], generation["passes"]["draft"]
        assert len(target) == len(generation["steps"])
        assert [length for length, _ in target] == [step[0] + 1 for step in generation["steps"]]
        assert len(draft) == sum(step[0] for step in generation["steps"]) * (name == "sd")
        assert sum(seconds for _, seconds in [*target, *draft]) < generation["decode_seconds"]


def test_prompts_hold_no_other_question_of_the_sample() -> None:
    task = load_task("mgsm")
    examples = load_examples(task, "en", data="sample", use_sample=True, limit=None).examples
    questions = [example.prompt.splitlines()[0].removeprefix("Question: ") for example in examples]
    assert len(set(questions)) == len(questions)
    for example in examples:
        assert sum(question in example.prompt for question in questions) == 1
