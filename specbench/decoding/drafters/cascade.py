"""A drafter that is itself speculative: another drafter drafts for the draft model, which verifies that draft and
drafts for the target."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.core.source import is_outside
from specbench.core.validation import collected
from specbench.decoding.checked_parts import CheckedDrafter, FunctionDrafter
from specbench.decoding.drafters import BeyondContext, Checkpoint, Drafter, ModelDrafter
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.verification import VerificationRule, count_leading
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.meters import PassLog
from specbench.models.own_drafts import OwnDraftModel
from specbench.models.scoring import ScoringModel
from specbench.specs.components import DrafterSpec, DraftTemperature, VerificationSpec, build

REFUSED = {
    "none": "drafts nothing: take drafter.type=model",
    "cascade": "is a cascade: there are two levels, so name another drafter",
    "synthetic": "knows the target's tokens in advance: name another drafter",
}
HEADS = ("eagle", "eagle_tree", "medusa", "mtp")


class InnerDrafterSpec(DrafterSpec):
    place = "drafter.inner"


class LevelSpec(DrafterSpec):
    place = "drafter.level"


class InnerVerificationSpec(VerificationSpec):
    place = "drafter.inner_verification"


def has_probs(drafter: DrafterSpec) -> bool:
    return "probs" in drafter.features.provides


def complete_inner(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the inner drafter with all its options. Raises ConfigError for one that cannot draft for a draft
    model."""
    try:
        spec = build(InnerDrafterSpec, dict(given))
        problem = REFUSED.get(spec.type)
        if spec.type in HEADS:
            problem = "reads hidden states of tokens that may be taken back: name a drafter that reads tokens"
        if problem is not None:
            raise ConfigError(f"drafter.inner.type = '{spec.type}': {problem}")
        if spec.needs_model and not spec.options.get("checkpoint"):
            raise ConfigError(
                f"drafter.inner.checkpoint: drafter '{spec.type}' needs a model of its own, smaller than the draft "
                "model: name it"
            )
        if spec.options.get("memory") == "run":
            raise ConfigError(
                "drafter.inner.memory = 'run': its text has draft tokens that the target did not accept: write prompt"
            )
    except ConfigError as error:  # pydantic collects it with the other problems of a file
        raise collected(error) from error
    return spec.model_dump()


LEVELS = ("self_quantized", "self_skip", "self_window")


def complete_level(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the way in which the target drafts on the second level, with all its options. Raises ConfigError for
    another drafter."""
    try:
        spec = build(LevelSpec, dict(given))
        if spec.type not in LEVELS:
            raise ConfigError(
                f"drafter.level.type = '{spec.type}': is not a way in which the target drafts: choose "
                f"{', '.join(LEVELS)}, or delete the key and give --drafter"
            )
        if spec.needs_model:
            raise ConfigError("drafter.level.checkpoint: a file is a draft model: delete the key, and give --drafter")
        if spec.options.get("choice") == "on_the_fly":
            raise ConfigError("drafter.level.choice = 'on_the_fly': a level skips the same sub-layers: write fixed")
    except ConfigError as error:
        raise collected(error) from error
    return spec.model_dump()


def complete_rule(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the inner rule with all its options. Raises ConfigError for a lossy one."""
    try:
        spec = build(InnerVerificationSpec, dict(given))
        if not spec.features.lossless:
            raise ConfigError(
                f"drafter.inner_verification.rule = '{spec.rule}': is lossy, so that draft tokens would not have the "
                "draft model's distribution: choose a lossless rule"
            )
    except ConfigError as error:
        raise collected(error) from error
    return spec.model_dump()


INNER = "The drafter that drafts for the draft model, with its options, such as {type: prompt_lookup}."
INNER_RULE = (
    "The lossless rule by which the draft model verifies these drafts; null: rejection, or exact_match for drafts "
    "without probabilities and for trees."
)
LEVEL = (
    "The target itself in place of a draft model: {type: self_quantized, quantize: int8}, self_skip or self_window; "
    "null: the draft model."
)
INNER_TOKENS = "Maximum draft tokens of the inner drafter in one pass of the draft model."
Inner = Annotated[dict[str, Any], AfterValidator(complete_inner), Field(description=INNER)]
Level = Annotated[dict[str, Any], AfterValidator(complete_level), Field(description=LEVEL)]
InnerRule = Annotated[dict[str, Any], AfterValidator(complete_rule), Field(description=INNER_RULE)]


def cascade_drawing(
    *, inner: Mapping[str, Any], inner_tokens: int, level: Mapping[str, Any] | None = None, **others: object
) -> tuple[tuple[str, ...], str]:
    middle = "draft model" if level is None else str(level["type"])
    return (
        f"{inner['type']:<15} a b c      drafts for the {middle}",
        f"{middle:<15} a b x      verifies them in one pass; the next inner draft follows x",
        f"{'target':<15} a b x y …  verifies the whole draft",
    ), (
        f"A step of the inner level reads up to {inner_tokens} tokens of drafter '{inner['type']}' with one pass of "
        f"the {middle} and gives one token more than it accepts. It counts as one draft pass. Tokens that the target "
        "rejects are taken back on both levels."
    )


@DRAFTERS.register("cascade", drawing=cascade_drawing)
class CascadeDrafter(Drafter):
    """A small language model drafts, and does so speculatively: another drafter drafts for it, and it verifies several
    tokens per pass (arXiv:2312.11462). Its tokens have its own distribution, which is what the target's rule needs."""

    # One step of the inner level, from its draft to its verification, is logged as one pass.

    model: ScoringModel
    sampling: Sampling
    passes: PassLog

    def __init__(
        self,
        models: ModelPair,
        sampling: Sampling,
        *,
        inner: Inner,
        level: Level | None = None,
        inner_verification: InnerRule | None = None,
        inner_tokens: Annotated[int, Field(ge=1, le=64, description=INNER_TOKENS)] = 4,
        temperature: DraftTemperature = None,
        checkpoint: Checkpoint = None,
        beyond_context: BeyondContext = None,
    ) -> None:
        del beyond_context  # `build_decoder` sets pauses_at, and the checkpoint is loaded as models.drafter
        sampling = sampling.at(temperature)
        reader = models.drafter if level is None else models.target  # whose tokens the inner drafter drafts
        model: ScoringModel | None = reader
        if level is not None:
            if checkpoint is not None:
                raise ConfigError(f"drafter.checkpoint = '{checkpoint}': drafter.level replaces it: delete one")
            made = level_drafter(build(LevelSpec, level), models, sampling)
            model, self.name, self.revision = made.model, made.name, made.revision
            reader = model if isinstance(model, CausalLM) else models.target
        assert model is not None and reader is not None
        super().__init__(model, sampling)
        self.sampling = sampling
        if model.underlying is not model:
            raise ConfigError(
                f"drafter 'cascade': draft model and target '{models.target.name}' have vocabularies that differ: give "
                "a draft model with the target's"
            )
        spec = build(InnerDrafterSpec, inner)
        given = None if inner_verification is None else build(InnerVerificationSpec, inner_verification)
        needs_probs = has_probs(spec) if given is None else "probs" in given.features.requires
        if level is not None and spec.type in LEVELS:
            raise ConfigError(
                f"drafter.inner.type = '{spec.type}': the target drafts on the second level: name another drafter"
            )
        self.inner = inner_drafter(spec, ModelPair(reader, models.inner), sampling, needs_probs)
        trees = self.inner.draws is not None
        usual = "rejection" if needs_probs and not trees else "exact_match"
        rule = given or build(InnerVerificationSpec, {"rule": usual})
        check_rule(spec, rule, self.inner)
        self.rule: VerificationRule = rule.factory(**rule.options)
        if trees and isinstance(model, OwnDraftModel):
            raise ConfigError(
                f"drafter.inner.type = '{spec.type}': proposes trees, and drafter.level reads chains only: name another"
            )
        if trees:
            reader.check_trees()
        self.inner_tokens = inner_tokens
        self.learns_over_prompts, self.memory_kind = self.inner.learns_over_prompts, self.inner.memory_kind
        self.passes = PassLog(model.passes.clock)
        part = models.inner or self.inner
        self.inner_identity = None if part.name is None else (part.name, part.revision)
        self._read: list[int] = []  # the text that the inner drafter read last

    def begin_cell(self) -> None:
        self.inner.begin_cell()

    def reserve(self, num_draft_tokens: int) -> tuple[int, float]:
        return self.inner.reserve(self.inner_tokens)

    def chain_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        return () if self.inner.draws is not None else (min(self.inner_tokens + 1, num_draft_tokens),)

    def level_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        return self.inner.tree_lengths(self.inner_tokens) if self.inner.draws is not None else ()

    def prefill(self, prompt_ids: list[int]) -> None:
        self.inner.prefill(prompt_ids)
        self.left_out_own = self.inner.left_out_own
        self._read = list(prompt_ids)
        if not isinstance(self.model, OwnDraftModel):  # whose passes begin with what the target has read
            super().prefill(prompt_ids)
        for log in filter(None, (self.model.passes, self.inner.passes)):
            log.clear()  # their passes are parts of the steps that are logged here

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        if not isinstance(self.model, OwnDraftModel) or not num_draft_tokens:
            return self._propose(ids, num_draft_tokens, generator)
        start = self.passes.clock.mark()  # what prepares a draft is part of its first step
        with self.model.drafting(ids):
            return self._propose(ids, num_draft_tokens, generator, start)

    def _propose(
        self, ids: list[int], num_draft_tokens: int, generator: torch.Generator, first_start: Any = None
    ) -> Proposal:
        token_ids: list[int] = []
        rows: list[Distributions] = []
        while len(token_ids) < num_draft_tokens:
            start = self.passes.clock.mark() if token_ids or first_start is None else first_start
            num_left = num_draft_tokens - len(token_ids)
            drafted, distributions, num_read = self._step([*ids, *token_ids], num_left, generator)
            token_ids += drafted
            rows.append(distributions)
            self.passes.add(num_read, start, self.passes.clock.mark())
            if drafted[-1] in self.model.eos_token_ids:
                break
        return Proposal(token_ids, Distributions.concat(rows)) if rows else Proposal()

    def _step(self, text: list[int], num_left: int, generator: torch.Generator) -> tuple[list[int], Distributions, int]:
        """Drafts 1 to `num_left` tokens after `text` with one pass of the draft model. Returns them, the distributions
        that they were drawn from, and the number of tokens that the pass read."""
        # 1. The inner draft. Tokens that the target did not accept are no longer in the text.
        if text[: len(self._read)] != self._read:
            self.inner.rewind(text)
        self._read = text
        draft = self.inner.propose(text, min(self.inner_tokens, num_left - 1), generator)
        # 2. The draft model verifies it, which takes one place for its own token.
        output = self.model.score_proposal(text, draft)
        distributions = Distributions(output.logits, self.sampling)
        found = self.rule(draft, distributions, generator)
        self.model.keep_accepted(draft, found.path)
        self.inner.observe(draft, output, found)
        # 3. Each token that stands was drawn, as a whole, from the draft model's distribution after those before it.
        token_ids = [*(draft.token_ids[node] for node in found.path), found.next_token]
        ends = [token not in self.model.eos_token_ids for token in token_ids]
        token_ids = token_ids[: count_leading(ends) + 1]
        places = torch.tensor([0, *(node + 1 for node in found.path)][: len(token_ids)], device=output.logits.device)
        probs = None if self.sampling.greedy else distributions.probs.index_select(0, places)
        of_tokens = Distributions(output.logits.index_select(0, places), self.sampling, probs)
        return token_ids, of_tokens, len(draft.scored_ids) + 1


def level_drafter(spec: DrafterSpec, models: ModelPair, sampling: Sampling) -> ModelDrafter:
    """Returns the drafter whose passes are those of the second level."""
    try:
        made: ModelDrafter = spec.factory(models, sampling, **spec.options)
    except ConfigError as error:
        raise ConfigError(f"drafter.level: {error}") from error
    return made


def inner_drafter(spec: DrafterSpec, models: ModelPair, sampling: Sampling, needs_probs: bool) -> Drafter:
    """Returns the drafter that drafts for the draft model, which is the target of `models`. `needs_probs`: whether the
    inner rule reads its probabilities."""
    factory = spec.factory
    has_own = not isinstance(factory, type) or factory.__init__ is not Drafter.__init__  # type: ignore[misc]
    try:
        made: Drafter = factory(*((models, sampling) if has_own else ()), **spec.options)
    except ConfigError as error:
        raise ConfigError(f"drafter.inner: {error}") from error
    if made.hidden_layers:
        raise ConfigError(
            f"drafter.inner.type = '{spec.type}': reads hidden states of tokens that may be taken back: name a drafter "
            "that reads tokens"
        )
    place = f"drafter.inner '{spec.type}'"
    if isinstance(made, FunctionDrafter):
        made.place = place
    if not is_outside(made):
        return made
    return CheckedDrafter(made, place, (models.drafter or models.target).vocab_size, needs_probs)


def check_rule(drafter: DrafterSpec, rule: VerificationSpec, made: Drafter) -> None:
    """Raises ConfigError for a rule that does not verify what the inner drafter proposes."""
    place = f"drafter.inner_verification.rule = '{rule.rule}'"
    features = rule.features
    if lacking := features.requires - drafter.features.provides:
        raise ConfigError(
            f"{place}: needs {', '.join(sorted(lacking))}, which drafter '{drafter.type}' lacks: write exact_match"
        )
    if made.draws is not None and not features.verifies_trees:
        raise ConfigError(
            f"{place}: verifies chains only, and drafter '{drafter.type}' proposes trees: write exact_match"
        )
    if made.draws is not None and features.draws is not None and made.draws not in features.draws:
        raise ConfigError(f"{place}: is not valid for children drawn as {made.draws}: write exact_match")
