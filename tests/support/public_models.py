"""Public models: questions that each has its own kind of text, AR's answers, and a method's outputs beside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import Decoder, tree_width
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.batch_width import BaselineAnswer, BatchWidth, measure_batch_width
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.near_ties import TokenDifference, find_differences
from specbench.models.own_passes import OwnPasses
from specbench.records.generation import Finish
from specbench.specs.catalogue import load_method, with_overrides
from tests.support.loops import GREEDY, autoregressive

Question = tuple[str, bool]  # a text, and whether the chat template renders it
MAX_WIDTH = 6  # tokens of the passes whose noise is measured: wider ones differ as much


def generate(network: Any, prompt_ids: list[int], max_new_tokens: int, **options: Any) -> list[int]:
    """What transformers' `generate` writes, greedily."""
    ids = torch.tensor([prompt_ids])
    made = network.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False, **options
    )
    return [int(token) for token in made[0, len(prompt_ids) :]]


@dataclass(frozen=True)
class Answered:
    """A target with AR's greedy answers to some questions, and how far the width of a pass moves its logits."""

    target: CausalLM
    stop: StopRules
    answers: list[BaselineAnswer]
    finishes: list[Finish]
    width: BatchWidth

    @property
    def num_tokens(self) -> int:
        return sum(len(each.token_ids) for each in self.answers)

    @property
    def tolerance(self) -> float:
        return self.width.noise().tolerance


def answered(
    target: CausalLM, questions: Sequence[Question], max_new_tokens: int, max_width: int = MAX_WIDTH
) -> Answered:
    """Returns AR's answers. The noise of the target is measured along the first of them."""
    stop = StopRules(max_new_tokens, target.eos_token_ids, decode_text=target.decode_text)
    answers, finishes = [], []
    for text, chat in questions:
        ids = target.encode_prompt(text, chat=chat)
        output = autoregressive(target, ids, stop)
        answers.append(BaselineAnswer(text, ids, output.token_ids))
        finishes.append(output.finish)
    width = measure_batch_width(target, answers[:1], max_width)
    return Answered(target, stop, answers, finishes, width)


@dataclass(frozen=True)
class Outputs:
    """The outputs of a method, and their differences from AR's answers."""

    decoder: Decoder
    outputs: list[GenerationOutput]
    differences: list[TokenDifference]
    num_drafted: int
    num_verified: int
    num_accepted: int

    @property
    def num_tokens(self) -> int:
        return sum(len(each.token_ids) for each in self.outputs)


def outputs_of(
    method: str, models: ModelPair, known: Answered, overrides: Sequence[str] = (), sampling: Sampling = GREEDY
) -> Outputs:
    """Decodes all questions with a method. A greedy difference gets its kind as in a verdict: the method's own passes
    are decoded again."""
    _, (spec,) = with_overrides([], [load_method(method)], overrides)
    decoder = build_decoder(spec, models, sampling)
    outputs = [decoder.generate(each.prompt_ids, known.stop, number) for number, each in enumerate(known.answers)]
    written = [each.token_ids for each in outputs]
    differences: list[TokenDifference] = []
    if sampling.greedy and written != [each.token_ids for each in known.answers]:
        tolerance = known.tolerance
        if tree := tree_width([decoder]):
            tree_noise = measure_batch_width(known.target, known.answers[:1], 1, tree).noise(1, tree)
            tolerance = max(tolerance, tree_noise.tolerance)

        def again(index: int, position: int) -> OwnPasses | None:
            return decoder.record_passes(known.answers[index].prompt_ids, known.stop, index, position)

        differences = find_differences(known.target, known.answers, written, tolerance, decode_again=again)
    steps = [step for output in outputs for step in output.steps]
    return Outputs(
        decoder, outputs, differences,
        num_drafted=sum(step.num_drafted for step in steps), num_verified=sum(step.num_verified for step in steps),
        num_accepted=sum(step.num_accepted for step in steps),
    )  # fmt: skip


def check_equal(found: Outputs, known: Answered, num_near_ties: int = 0) -> None:
    """Asserts that a method wrote AR's answers, token by token, up to `num_near_ties` near-ties within the noise, and
    that it drafted well and badly, so that drafts were kept and rolled back."""
    kinds = [each.kind for each in found.differences]
    assert set(kinds) <= {"near-tie"} and len(kinds) <= num_near_ties, found.differences
    assert all(each.gap is not None and each.gap <= known.tolerance for each in found.differences)
    if not kinds:
        assert [each.token_ids for each in found.outputs] == [each.token_ids for each in known.answers]
        assert [each.finish for each in found.outputs] == known.finishes
    assert found.num_tokens >= 20 and (kinds or found.num_tokens == known.num_tokens)
    if any(each.steps for each in found.outputs):
        assert 0 < found.num_accepted < found.num_verified
    else:  # a decoder that counts target passes alone: fewer than tokens, so that some drafts were kept
        passes = [each.external.num_target_passes for each in found.outputs if each.external is not None]
        assert len(passes) == len(found.outputs) and 0 < sum(map(int, filter(None, passes))) < found.num_tokens


def save(model: CausalLM, folder: Path) -> Path:
    """Writes a model as a checkpoint of float32 weights, for commands."""
    model.model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder
