"""The objective of a training, with all that it needs of target and data."""

from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.running.prompts import Budget, encode, shortened
from specbench.training.corrective import CorrectiveObjective
from specbench.training.data import TrainingData
from specbench.training.distillation import distillation, greedy_answers
from specbench.training.generations import Generations
from specbench.training.language_modelling import language_modelling, raw_samples
from specbench.training.sample_objective import SampleObjective
from specbench.training.self_distillation import self_distilled
from specbench.training.spec import TrainSpec

Built = CorrectiveObjective | SampleObjective


def build_objective(
    spec: TrainSpec, target: CausalLM, tokenizer: Any, data: TrainingData, cache_folder: Path,
    console: Console | None = None,
) -> Built:  # fmt: skip
    """The objective of a training. Its `num_items` are the prompts or samples of an epoch.

    tokenizer: of raw texts, the drafter's; it must be the target's own (see `models.check_fit`). cache_folder: where
    the target's continuations are kept. console: told how generation goes on. Raises ConfigError for data from which
    nothing can be learnt, and where the target's server fails.
    """
    store = Generations(cache_folder, console)
    limit = min(spec.max_text_tokens, target.context_limit or spec.max_text_tokens)
    if spec.distill is not None and spec.distill.corpus == "general":
        return distillation(spec, target, raw_samples(tokenizer, data, limit))
    if spec.finetune is not None and spec.finetune.stage == "pretrain":
        samples = raw_samples(tokenizer, data, limit, end=tokenizer.eos_token_id)
        return language_modelling(spec, target.vocab_size, samples)
    texts = fitting_prompts(spec, target, data)
    if spec.finetune is not None:
        return language_modelling(spec, target.vocab_size, self_distilled(spec, target, texts, store))
    prompts = [(language, tuple(encode(target, (text,), "auto"))) for language, text in texts]
    if spec.distill is not None:
        return distillation(spec, target, greedy_answers(spec, target, prompts, store))
    return CorrectiveObjective(spec, target, prompts)


def fitting_prompts(spec: TrainSpec, target: CausalLM, data: TrainingData) -> list[tuple[str, str]]:
    """The prompts with their languages; those that are too long lose their middle, as in a run.

    Raises ConfigError for a prompt without tokens, and where the target's context has no room for an answer.
    """
    context = target.context_limit or spec.max_prompt_tokens + spec.max_new_tokens
    if spec.max_new_tokens >= context:
        raise ConfigError(
            f"max_new_tokens = {spec.max_new_tokens}: leaves no room for a prompt in the {context} tokens of the "
            "target's context: give less"
        )
    budget = Budget(target, min(spec.max_prompt_tokens, context - spec.max_new_tokens))
    found = [
        (language, shortened((prompt.text,), [budget], "auto")[0])
        for language, prompts in data.prompts.items()
        for prompt in prompts
    ]
    for language, text in found:
        if not encode(target, (text,), "auto"):
            raise ConfigError(f"data: a prompt of '{language}' has no tokens: take it out")
    return found
