"""The objective of a training, with all that it needs of target and data."""

from pathlib import Path

from rich.console import Console

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM, shortest_context
from specbench.running.prompts import Budget, encode, shortened
from specbench.training.corrective import CorrectiveObjective
from specbench.training.data import TrainingData
from specbench.training.distillation import (
    SampleObjective,
    distillation,
    greedy_answers,
    language_modelling,
    raw_samples,
)
from specbench.training.self_distillation import self_distilled
from specbench.training.spec import TrainSpec
from specbench.training.teacher import Generations

Built = CorrectiveObjective | SampleObjective


def build_objective(
    spec: TrainSpec, target: CausalLM, drafter: CausalLM, data: TrainingData, cache_folder: Path,
    console: Console | None = None,
) -> Built:  # fmt: skip
    """The objective of a training. Its `num_items` are the prompts or samples of an epoch.

    target: with its weights where `models.computes_target` says so. drafter: splits raw texts, and has the target's
    vocabulary (see `models.check_fit`); no sample is longer than the shorter context of the two. cache_folder: where
    the target's continuations are kept. console: told how generation goes on. Raises ConfigError for data from which
    nothing can be learnt, and where the target's server fails.
    """
    store = Generations(cache_folder, console)
    context = shortest_context([target, drafter])
    limit = min(spec.max_text_tokens, context or spec.max_text_tokens)
    if spec.distill is not None and spec.distill.corpus == "general":
        return distillation(spec, target, raw_samples(drafter.tokenizer, data, limit))
    if spec.finetune is not None and spec.finetune.stage == "pretrain":
        samples = raw_samples(drafter.tokenizer, data, limit, end=drafter.tokenizer.eos_token_id)
        return language_modelling(spec, target.vocab_size, samples)
    texts = fitting_prompts(spec, target, data, context)
    if spec.finetune is not None:
        return language_modelling(spec, target.vocab_size, self_distilled(spec, target, texts, store, limit))
    prompts = [(language, tuple(encode(target, (text,), "auto"))) for language, text in texts]
    if spec.distill is not None:
        return distillation(spec, target, greedy_answers(spec, target, prompts, store))
    return CorrectiveObjective(spec, target, prompts)


def fitting_prompts(
    spec: TrainSpec, target: CausalLM, data: TrainingData, context: int | None
) -> list[tuple[str, str]]:  # fmt: skip
    """The prompts with their languages; those that are too long lose their middle, as in a run.

    context: the tokens that both models can read, None without a limit. Raises ConfigError for a prompt without tokens,
    and where the context has no room for what follows a prompt: the target's answer, or s-CDF's drafts.
    """
    follows = {"max_new_tokens": spec.max_new_tokens}
    if spec.scdf is not None:
        follows["scdf.num_draft_tokens"] = spec.scdf.num_draft_tokens
    key = max(follows, key=follows.__getitem__)
    room = spec.max_prompt_tokens if context is None else context - follows[key]
    if room < 1:
        raise ConfigError(
            f"{key} = {follows[key]}: leaves no room for a prompt in the {context} tokens that target and drafter can "
            "both read: give less"
        )
    budget = Budget(target, min(spec.max_prompt_tokens, room))
    found = [
        (language, shortened((prompt.text,), [budget], "auto")[0])
        for language, prompts in data.prompts.items()
        for prompt in prompts
    ]
    for language, text in found:
        if not encode(target, (text,), "auto"):
            raise ConfigError(f"data: a prompt of '{language}' has no tokens: take it out")
    return found
