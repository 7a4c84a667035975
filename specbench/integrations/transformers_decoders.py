"""Assisted decoding by transformers: one call of `generate`, on copies of the models, with counted steps.

Tested with transformers 5.23, which reads the draft length and the confidence threshold from the assistant's generation
config, and modifies both models. Every decoder therefore has its own copies of the models, with shared weights. Their
generation configs have only the run's settings.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from transformers import GenerationConfig, StoppingCriteria
from transformers.generation import candidate_generator as generators
from transformers.generation.streamers import BaseStreamer

from specbench.core.errors import ConfigError
from specbench.decoding.proposal import Step
from specbench.decoding.sampling import Sampling
from specbench.integrations.external import LoadedModel
from specbench.models.checkpoints import quiet_transformers
from specbench.models.eager import common_prefix

OnToken = Callable[[list[int]], bool]


def own_copy(model: Any, **settings: Any) -> Any:
    """Returns a copy of the model with the same weights and an empty generation config except for `settings`."""
    tensors = [*model.parameters(), *model.buffers()]
    made = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    made.generation_config = GenerationConfig(**settings)
    return made


class WatchedAnswer(BaseStreamer, StoppingCriteria):
    """One answer while `generate` writes it: a streamer that reports the tokens of every step, a stopping criterion for
    the end of the answer, and the result with the counts of every target pass, which are computed on access.

    `has_steps`: whether a draft is proposed as it is. If it is tokenized again, γ draft tokens may become more than γ
    proposed tokens, so that the acceptance rate is not comparable.
    """

    def __init__(self, on_token: OnToken, num_prompt_tokens: int, has_steps: bool) -> None:
        self._on_token, self._num_prompt_tokens, self._has_steps = on_token, num_prompt_tokens, has_steps
        self._has_prompt = self._has_ended = False
        self._candidates: list[tuple[int, torch.Tensor]] = []  # length before a step, and ids including the draft
        self.sequence: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        if self._has_prompt:
            self._has_ended = self._on_token(value.flatten().tolist())
        self._has_prompt = True  # `generate` puts the prompt first

    def end(self) -> None:
        pass

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), self._has_ended, dtype=torch.bool, device=input_ids.device)

    def watch(self, generator: Any) -> Any:
        """Makes a candidate generator record its proposals, and returns it."""
        get_candidates = generator.get_candidates

        def keep(input_ids: torch.Tensor, *rest: Any, **named: Any) -> Any:
            made = get_candidates(input_ids, *rest, **named)
            self._candidates.append((input_ids.shape[1], made[0]))
            return made

        generator.get_candidates = keep
        return generator

    @property
    def token_ids(self) -> list[int]:
        return self.sequence[self._num_prompt_tokens :]

    @property
    def num_target_passes(self) -> int:
        return len(self._candidates)

    @property
    def steps(self) -> list[Step] | None:
        """The (drafted, verified, accepted, emitted) counts of each pass. The common prefix of drafted and emitted
        tokens is accepted: after a rejection, the rejected token has probability 0 in the residual, so that the next
        emitted token always differs from it."""
        ends = [start for start, _ in self._candidates[1:]] + [len(self.sequence)]
        found = []
        for (start, ids), end in zip(self._candidates, ends, strict=True):
            drafted, emitted = ids[0, start:].tolist(), self.sequence[start:end]
            num_accepted = common_prefix(drafted, emitted)
            is_rejected = num_accepted < len(drafted) and len(emitted) > num_accepted
            found.append(Step(len(drafted), num_accepted + is_rejected, num_accepted, len(emitted)))
        return found if self._has_steps else None


class Assisted:
    """`generate` of a target with one of transformers' candidate generators."""

    has_steps = True

    def __init__(self, target: LoadedModel, sampling: Sampling) -> None:
        self.model = own_copy(target.model)
        self.sampling = sampling
        self.arguments: dict[str, object] = {}  # for `generate`
        self.settings: dict[str, object] = {}  # for the generation config

    def candidates(self, **arguments: Any) -> Any:
        """Returns the candidate generator of a call, by default the one that `generate` selects."""
        return type(self.model)._get_candidate_generator(self.model, **arguments)

    def generate(
        self, prompt_ids: Sequence[int], *, max_new_tokens: int, eos_token_ids: list[int], on_token: OnToken
    ) -> WatchedAnswer:
        answer = WatchedAnswer(on_token, len(prompt_ids), self.has_steps)
        self.model._get_candidate_generator = lambda **arguments: answer.watch(self.candidates(**arguments))
        # The run's sampling, without defaults of `generate` such as top_k 50.
        sampling = self.sampling
        drawn = {"temperature": sampling.temperature, "top_k": sampling.top_k or 0, "top_p": sampling.top_p or 1.0}
        config = GenerationConfig(
            max_new_tokens=max_new_tokens, eos_token_id=eos_token_ids or None, pad_token_id=0,
            do_sample=not sampling.greedy, **({} if sampling.greedy else drawn), **self.settings,
        )  # fmt: skip
        ids = torch.tensor([prompt_ids], device=self.model.device)
        with quiet_transformers():
            output = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=answer,
                stopping_criteria=[answer], **self.arguments,
            )  # fmt: skip
        answer.sequence = output[0].tolist()
        return answer


class AssistedGeneration(Assisted):
    """Assisted generation with a draft model of the same vocabulary: speculative sampling, or greedy verification."""

    def __init__(self, *, target: LoadedModel, drafter: LoadedModel, num_draft_tokens: int, sampling: Sampling) -> None:
        super().__init__(target, sampling)
        self.assistant = own_copy(  # which drafts a fixed number of tokens at any confidence
            drafter.model, num_assistant_tokens=num_draft_tokens, num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )  # fmt: skip
        self.arguments = {"assistant_model": self.assistant}


class PromptLookup(Assisted):
    """Prompt lookup: drafts the tokens that follow the first earlier occurrence of the last tokens."""

    def __init__(
        self, *, target: LoadedModel, num_draft_tokens: int, sampling: Sampling,
        max_matching_ngram_size: Annotated[int, Field(ge=1)] = 2,
    ) -> None:  # fmt: skip
        super().__init__(target, sampling)
        self.settings = {
            "prompt_lookup_num_tokens": num_draft_tokens,
            "max_matching_ngram_size": max_matching_ngram_size,
        }


class TwoTokenizers(AssistedGeneration):
    """The base of the decoders for a draft model with another vocabulary."""

    def __init__(self, *, target: LoadedModel, drafter: LoadedModel, num_draft_tokens: int, sampling: Sampling) -> None:
        super().__init__(target=target, drafter=drafter, num_draft_tokens=num_draft_tokens, sampling=sampling)
        self.tokenizers = {"target_tokenizer": target.tokenizer, "assistant_tokenizer": drafter.tokenizer}
        sizes = [model.config.get_text_config().vocab_size for model in (target.model, drafter.model)]
        if sizes[0] != sizes[1]:  # only then `generate` requires the tokenizers; otherwise it refuses them
            self.arguments |= {"tokenizer": target.tokenizer, "assistant_tokenizer": drafter.tokenizer}


class StringMatch(TwoTokenizers):
    """Universal assisted generation: drafts are decoded, tokenized for the target, and compared with its tokens."""

    has_steps = False

    def candidates(self, **arguments: Any) -> Any:
        return generators.AssistedCandidateGeneratorDifferentTokenizers(**{**arguments, **self.tokenizers})


class SortedVocabulary:
    """A tokenizer whose vocabulary is sorted by id. transformers orders the rows of the pruned output layer like the
    vocabulary. Without sorting, that order differs between processes, and equal seeds would draw different tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def get_vocab(self) -> dict[str, int]:
        return dict(sorted(self.tokenizer.get_vocab().items(), key=lambda item: item[1]))

    def __call__(self, *texts: Any, **how: Any) -> Any:
        return self.tokenizer(*texts, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


class TokenIntersection(TwoTokenizers):
    """Universal speculative decoding (token-level intersection): drafts only tokens that both vocabularies have, with
    speculative sampling.

    `prune_lm_head`: whether the draft model's output layer is reduced to these tokens, as transformers does by default.
    """

    def __init__(
        self, *, target: LoadedModel, drafter: LoadedModel, num_draft_tokens: int, sampling: Sampling,
        prune_lm_head: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(target=target, drafter=drafter, num_draft_tokens=num_draft_tokens, sampling=sampling)
        tokenizer: Any = SortedVocabulary(drafter.tokenizer)
        self.translator = generators.AssistantToTargetTranslator(
            target.tokenizer, tokenizer, self.model.config.get_text_config().vocab_size, self.assistant, prune_lm_head,
        )  # fmt: skip
        if prune_lm_head and not len(self.translator._suppress_input_ids):
            raise ConfigError(
                "the target has every token of the draft model, for which transformers cannot prune the output layer: "
                "set decoder.options.prune_lm_head=false"
            )

    def candidates(self, **arguments: Any) -> Any:
        return generators.UniversalSpeculativeDecodingGenerator(
            **{**arguments, **self.tokenizers, "atm_translator": self.translator}
        )
