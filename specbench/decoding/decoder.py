"""Decoders: a decoder is a method that is ready to decode prompts with one pair of models."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch

from specbench.core.values import text_digest
from specbench.decoding.checked_parts import CheckedDrafter, CheckedRule, FunctionDrafter, same_torch_state
from specbench.decoding.drafters import SHUFFLED, Drafter, memory_of
from specbench.decoding.loop import GenerationOutput, StopRules, decode
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import VerificationRule
from specbench.models.causal_lm import CausalLM, TextModel
from specbench.models.own_passes import OwnPasses, PassRecorder
from specbench.models.scoring import ScoringModel
from specbench.specs.method import MethodSpec
from specbench.specs.task import GenerationSpec

OUTSIDE = (CheckedDrafter, CheckedRule, FunctionDrafter)  # parts whose code is not this package's


@dataclass(frozen=True)
class QueryInfo:
    """The text of a query and the language of its answer; None if the task names no language."""

    language: str | None = None
    text: str = ""


UNKNOWN = QueryInfo()


@dataclass(frozen=True)
class Decoder:
    """A method that decodes prompts. `model` reads the prompts, and the output consists of that model's tokens.
    `record_fields`: what its records say besides, such as the route."""

    method: MethodSpec
    model: TextModel
    record_fields: Mapping[str, str] = field(default_factory=dict, kw_only=True, compare=False)

    def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> GenerationOutput:
        """Decodes one prompt with the random stream of `seed`."""
        raise NotImplementedError

    def record_passes(self, prompt_ids: list[int], stop: StopRules, seed: int, position: int) -> OwnPasses | None:
        """Decodes one prompt again and returns the rows that its own passes gave; None for a decoder whose passes are
        not known. `position`: the new token whose whole row is kept."""
        return None

    def select_decoder(self, seed: int, query: QueryInfo = UNKNOWN) -> "Decoder":
        """Returns the decoder for one query: itself, unless the method distributes queries over several decoders."""
        return self

    @property
    def parts(self) -> "tuple[Decoder, ...]":
        """The decoders that `select_decoder` may return."""
        return (self,)

    @property
    def code_revision(self) -> str | None:
        """The revision of external code; None for this package's own methods."""
        return None

    @property
    def memory(self) -> str | None:
        """What its drafters remember of other prompts (see `drafters.memory_of`); None if they have no memory."""
        return ", ".join(dict.fromkeys(filter(None, (part.memory for part in self.parts if part is not self)))) or None

    @property
    def learns(self) -> bool:
        """Returns whether the speed of a prompt depends on the prompts before it."""
        return SHUFFLED in (self.memory or "")

    def stop_rules(self, generation: GenerationSpec, context_limit: int | None) -> StopRules:
        """Returns the rules that end a generation with this method's model. A stop string that is a special token of
        the model is an end token."""
        special = self.model.special_tokens
        searched = [text for text in generation.stop if text not in special] + list(generation.reasoning or ())
        return StopRules(
            max_new_tokens=generation.max_new_tokens,
            eos_token_ids=self.model.eos_token_ids | {special[text] for text in generation.stop if text in special},
            stop_strings=generation.stop,  # a model may also spell a special token
            decode_text=self.model.decode_text,
            context_limit=context_limit,
            keep=tuple(text for text in searched if any(token in text for token in special)),
            reasoning=generation.reasoning,
        )


@dataclass(frozen=True)
class DraftingDecoder(Decoder):
    """A decoder that runs the decode loop with a drafter and a verification rule. In autoregressive decoding, the
    drafter proposes nothing. `select_seconds`: the time to select it for the query, which ttft_seconds includes."""

    model: CausalLM
    drafter: Drafter
    rule: VerificationRule
    sampling: Sampling
    select_seconds: float = 0.0

    @property
    def memory(self) -> str | None:
        return memory_of(self.drafter)

    def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> GenerationOutput:
        """Decodes one prompt with the random stream of `seed`, after a dry run if the drafter needs one."""
        output = self._generate(self.model, prompt_ids, stop, seed)
        return replace(output, ttft_seconds=self.select_seconds + (output.ttft_seconds or 0.0))

    def record_passes(self, prompt_ids: list[int], stop: StopRules, seed: int, position: int) -> OwnPasses:
        """Decodes one prompt again up to the new token `position`, and returns the rows that its own passes gave. The
        drafts before it are as long as without this limit."""
        most = min(stop.max_new_tokens, position + 1 + self.method.num_draft_tokens)
        recorder = PassRecorder(self.model, len(prompt_ids), position)
        output = self._generate(recorder, prompt_ids, replace(stop, max_new_tokens=most), seed)
        return recorder.own_passes(prompt_ids, output.token_ids)

    def _generate(self, target: ScoringModel, prompt_ids: list[int], stop: StopRules, seed: int) -> GenerationOutput:
        places = [part.place for part in (self.drafter, self.rule) if isinstance(part, OUTSIDE)]
        with same_torch_state(places[0]) if places else nullcontext():
            self.drafter.rehearse(lambda: self._decode(target, prompt_ids, stop, seed))
            return self._decode(target, prompt_ids, stop, seed)

    def _decode(self, target: ScoringModel, prompt_ids: list[int], stop: StopRules, seed: int) -> GenerationOutput:
        generator = torch.Generator(device=self.model.device).manual_seed(seed)
        return decode(
            target, self.drafter, self.rule, prompt_ids, num_draft_tokens=self.method.num_draft_tokens,
            sampling=self.sampling, stop=stop, generator=generator,
        )  # fmt: skip


def drafting_decoders(decoders: Iterable[Decoder]) -> Iterator[DraftingDecoder]:
    for decoder in (part for each in decoders for part in each.parts):
        if isinstance(decoder, DraftingDecoder):
            yield decoder


def tree_width(decoders: Iterable[Decoder]) -> int | None:
    """Returns the number of tokens of the widest pass over a draft tree with its root; None if all draft chains."""
    lengths = (each.drafter.tree_lengths(each.method.num_draft_tokens) for each in drafting_decoders(decoders))
    return max((length for each in lengths for length in each), default=None)


def stream_seed(*parts: str | int) -> int:
    """Returns the seed of the random stream with this name.

    The seed depends on nothing else, so neither the order of execution nor resuming a run changes the draws.
    """
    return int(text_digest("\0".join(str(part) for part in parts), 16), 16) >> 1
