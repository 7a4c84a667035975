"""transformers' own decoders: assisted generation, with one tokenizer or two, and prompt lookup.

`generate` chooses by what it is given: with both tokenizers, string matching when it decodes greedily and token-level
intersection when it samples. Here each is a decoder of its own at any temperature: where `generate` would have chosen
the other, its candidate generator is constructed from transformers' class and handed to the same loop.
"""

from typing import Annotated, Any

from pydantic import Field
from transformers.generation import candidate_generator as generators

from specbench.decoding.sampling import Sampling
from specbench.errors import ConfigError
from specbench.external.assisted import Assisted, CountedPasses, own_assistant
from specbench.external.contract import LoadedModel


class AssistedGeneration(Assisted):
    """Assisted generation with a draft model of the same vocabulary: speculative sampling, or greedy matching."""

    def __init__(self, *, target: LoadedModel, drafter: LoadedModel, num_draft_tokens: int, sampling: Sampling) -> None:
        super().__init__(target, sampling)
        self.arguments = {"assistant_model": own_assistant(drafter.model, num_draft_tokens)}


class PromptLookup(Assisted):
    """Prompt lookup: the first place where the last tokens stood before, looked for anew in every step."""

    def __init__(
        self, *, target: LoadedModel, num_draft_tokens: int, sampling: Sampling,
        max_matching_ngram_size: Annotated[int, Field(ge=1)] = 2,
    ) -> None:  # fmt: skip
        super().__init__(target, sampling)
        self.settings = {
            "prompt_lookup_num_tokens": num_draft_tokens,
            "max_matching_ngram_size": max_matching_ngram_size,
        }


class TwoTokenizers(Assisted):
    """The base of the decoders for a draft model with a vocabulary of its own."""

    def __init__(self, *, target: LoadedModel, drafter: LoadedModel, num_draft_tokens: int, sampling: Sampling) -> None:
        super().__init__(target, sampling)
        self.tokenizers = {"target_tokenizer": target.tokenizer, "assistant_tokenizer": drafter.tokenizer}
        self.assistant = own_assistant(drafter.model, num_draft_tokens)
        self.arguments = {"assistant_model": self.assistant}
        sizes = [each.config.get_text_config().vocab_size for each in (target.model, drafter.model)]
        if sizes[0] != sizes[1]:  # `generate` wants them then, and refuses them otherwise
            self.arguments |= {"tokenizer": target.tokenizer, "assistant_tokenizer": drafter.tokenizer}


class StringMatch(TwoTokenizers):
    """Universal assisted generation: drafts are decoded, tokenized anew and matched with the target's own tokens."""

    counted = CountedPasses

    def candidates(self, **arguments: Any) -> Any:
        return generators.AssistedCandidateGeneratorDifferentTokenizers(**{**arguments, **self.tokenizers})


class InOrder:
    """A tokenizer whose vocabulary comes in the order of its ids. From that order transformers takes the rows of the
    pruned output layer, and tokenizers gives another one in every process: the same seed would draw other tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def get_vocab(self) -> dict[str, int]:
        return dict(sorted(self.tokenizer.get_vocab().items(), key=lambda item: item[1]))

    def __call__(self, *texts: Any, **how: Any) -> Any:
        return self.tokenizer(*texts, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


class TokenIntersection(TwoTokenizers):
    """Universal speculative decoding: drafts of the tokens that both vocabularies have, and speculative sampling.

    `prune_lm_head` cuts the draft model's output layer down to them, as transformers does unless told otherwise.
    """

    def __init__(
        self, *, target: LoadedModel, drafter: LoadedModel, num_draft_tokens: int, sampling: Sampling,
        prune_lm_head: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(target=target, drafter=drafter, num_draft_tokens=num_draft_tokens, sampling=sampling)
        in_order: Any = InOrder(drafter.tokenizer)
        self.translator = generators.AssistantToTargetTranslator(
            target.tokenizer, in_order, self.model.config.get_text_config().vocab_size, self.assistant, prune_lm_head,
        )  # fmt: skip
        if prune_lm_head and not len(self.translator._suppress_input_ids):
            raise ConfigError(
                "the target has every token of the draft model, and there transformers fails with a pruned output "
                "layer: set decoder.options.prune_lm_head=false"
            )

    def candidates(self, **arguments: Any) -> Any:
        return generators.UniversalSpeculativeDecodingGenerator(
            **{**arguments, **self.tokenizers, "atm_translator": self.translator}
        )
