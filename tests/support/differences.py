"""A method's differences from AR, with their kinds as a verdict finds them."""

from collections.abc import Sequence
from typing import Any

from specbench.decoding.decoder import DraftingDecoder, tree_width
from specbench.decoding.loop import StopRules
from specbench.models.batch_width import BaselineAnswer, BatchWidth, measure_batch_width
from specbench.models.causal_lm import CausalLM
from specbench.models.near_ties import TokenDifference, find_differences
from tests.support.loops import autoregressive


def answers_of(target: CausalLM, prompts: Sequence[list[int]], stop: StopRules) -> list[BaselineAnswer]:
    return [
        BaselineAnswer(str(number), ids, autoregressive(target, ids, stop).token_ids)
        for number, ids in enumerate(prompts)
    ]


def differences_of(
    decoder: DraftingDecoder, target: CausalLM, prompts: Sequence[list[int]], stop: StopRules, num_noise_tokens: int
) -> tuple[list[TokenDifference], BatchWidth]:
    """The differences of a method on some prompts, and what is known of the target along the beginnings of AR's
    answers."""
    answers = answers_of(target, prompts, stop)
    outputs = [decoder.generate(each.prompt_ids, stop, 0).token_ids for each in answers]
    most = decoder.method.most_draft_tokens + 1
    starts = [BaselineAnswer(each.name, each.prompt_ids, each.token_ids[:num_noise_tokens]) for each in answers]
    trees = tree_width([decoder])
    width = measure_batch_width(target, starts, most, trees)
    noise = width.noise(most, trees)

    def again(index: int, position: int) -> Any:
        return decoder.record_passes(answers[index].prompt_ids, stop, 0, position)

    found = find_differences(
        target, answers, outputs, noise.tolerance, decode_again=again, trust=width.trust(trees),
        kept_tolerance=noise.kept_tolerance,
    )  # fmt: skip
    return found, width


def kinds(found: Sequence[TokenDifference]) -> set[str | None]:
    assert found, "the planted defect changes no output: the control is none"
    assert all(each.repeated for each in found)
    return {each.kind for each in found}
