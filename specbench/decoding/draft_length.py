"""Draft lengths: how many tokens a step drafts, at most `num_draft_tokens`.

A lossless length decides whether to draft token i + 1 by what is known before that token is drawn: the text, the draft
tokens so far, the drafter's distributions up to q_(i+1), verdicts on earlier steps. A drawn token is always kept: one
that was dropped because of itself would have been drawn from another distribution than the rule is told. The first
token of a step is always drafted, so that every length goes on learning. See docs/notes/draft_length.md.

Both numbers that lengths read are of the drafter's raw distribution (temperature 1, not truncated), which tells its
certainty in greedy decoding, too: the confidence q(x) of a draft token x, and the entropy of q in nats.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any, Literal

from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFT_LENGTHS

DIGITS = 6  # of confidences and entropies, as records hold them: a replay decides as the run did


class DraftLength:
    """Decides how many tokens a step drafts: as many as are allowed.

    `is_asked`: whether the drafter asks `draws` before it draws a token, and `goes_on` after it. `learns_over_prompts`:
    whether it learns from earlier prompts. `confidences`, `entropies`: of the draft tokens of this generation; None if
    they are unknown.
    """

    is_asked: bool = False
    learns_over_prompts: bool = False
    confidences: list[float] | None = None
    entropies: list[float] | None = None

    def forget(self) -> None:
        """Forgets what it has learnt."""

    def begin_prompt(self) -> None:
        """Called before the prompt is read."""

    def limit(self, most: int) -> int:
        """Called before each draft. Returns the number of tokens to draft at most, given how many are allowed."""
        return most

    def draws(self, entropy: float) -> bool:
        """Returns whether to draw the next token, given the entropy of the distribution that it is drawn from."""
        return True

    def goes_on(self, confidence: float) -> bool:
        """Returns whether another token may be drafted, given the confidence of the one just drawn, which is kept."""
        return True

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Called after each verification."""


FIXED = DraftLength()

STATE = "How long it remembers what it has learnt: for a prompt, or for the run, so that earlier prompts change speeds."
State = Annotated[Literal["prompt", "run"], Field(description=STATE)]


class LearningLength(DraftLength):
    """A length that may learn from verdicts."""

    def __init__(self, state: str) -> None:
        self.learns_over_prompts = state == "run"
        self.forget()

    def begin_prompt(self) -> None:
        if not self.learns_over_prompts:
            self.forget()


class AskedLength(LearningLength):
    """A length that decides within the draft. A subclass defines `wants_draw` or `wants_more`, which are asked from the
    second token on."""

    def __init__(self, state: str = "prompt") -> None:
        super().__init__(state)
        self._draft: list[tuple[float, float]] = []  # confidence and entropy of the tokens of this draft
        self._most = 0  # tokens that this draft may have
        self._entropy = 0.0

    def begin_prompt(self) -> None:
        super().begin_prompt()
        self.confidences, self.entropies = [], []

    def limit(self, most: int) -> int:
        self._draft, self._most = [], most
        return most

    def draws(self, entropy: float) -> bool:
        self._entropy = round(entropy, DIGITS)
        return not self._draft or self.wants_draw(self._entropy)

    def goes_on(self, confidence: float) -> bool:
        confidence = round(confidence, DIGITS)
        self._draft.append((confidence, self._entropy))
        return self.wants_more(confidence, self._entropy)

    def wants_draw(self, entropy: float) -> bool:
        return True

    def wants_more(self, confidence: float, entropy: float) -> bool:
        return True

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        # A bridge may propose fewer tokens than were drawn, or others: then records do not tell whose these were.
        if self.confidences is not None and self.entropies is not None and num_drafted == len(self._draft):
            self.confidences += [confidence for confidence, _ in self._draft]
            self.entropies += [entropy for _, entropy in self._draft]
        elif num_drafted:
            self.confidences = self.entropies = None
        self.learn(num_drafted, num_accepted)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Learns from the verdict on the draft."""


Share = Annotated[float, Field(ge=0, le=1)]


class AcceptanceControl:
    """Moves a threshold so that a share of the draft tokens is accepted: up while the running share is below TARGET,
    else down, but not after a draft that no lower threshold would have made longer. The numbers and the start of the
    share are those of the code of arXiv:2309.08168; AdaEDL has the same numbers (Algorithm 1)."""

    TARGET, STEP, SMOOTHING, MEMORY = 0.9, 0.01, 0.9, 0.5

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self._share = 0.0

    def learn(self, num_drafted: int, num_accepted: int, is_whole: bool) -> None:
        """`is_whole`: whether the draft was as long as is allowed, in the method's sense of it."""
        if not num_drafted:
            return
        self._share = self.MEMORY * self._share + (1 - self.MEMORY) * num_accepted / num_drafted
        step = self.STEP if self._share < self.TARGET else 0.0 if is_whole else -self.STEP
        self.threshold = min(1.0, max(0.0, self.threshold + (1 - self.SMOOTHING) * step))


MIN_PAIRS = 5  # transformers refits with more than so many
MAX_PAIRS = 1000  # the last ones, so that a step takes less than a millisecond
FALSE_NEGATIVE = 3  # an accepted token below the threshold weighs as three rejected ones above it


def best_threshold(pairs: Sequence[tuple[float, bool]]) -> float | None:
    """Returns the threshold that transformers would take: that of the confidences with the least false positive rate
    + 3 · false negative rate; None if there are too few pairs, or all have one verdict. `pairs`: the confidence of each
    verified token, and whether it was accepted."""
    num_accepted = sum(is_accepted for _, is_accepted in pairs)
    num_rejected = len(pairs) - num_accepted
    if len(pairs) <= MIN_PAIRS or not num_accepted or not num_rejected:
        return None
    least, best = math.inf, 0.0
    above = [0, 0]  # rejected and accepted tokens at or above the threshold
    for confidence, equal in groupby(sorted(pairs, reverse=True), key=itemgetter(0)):
        for _, is_accepted in equal:
            above[is_accepted] += 1
        loss = above[0] / num_rejected + FALSE_NEGATIVE * (1 - above[1] / num_accepted)
        if loss < least:
            least, best = loss, confidence
    return best


CONFIDENCE = "The draft ends after a token whose probability is below it; 0 never ends it."
CONFIDENCE_UPDATE = (
    "How acceptance moves the threshold. none: not at all; roc: as in transformers with scikit-learn, to the "
    "confidence that best separates accepted from rejected tokens; acceptance: by small steps, so that 90 % of the "
    "draft tokens are accepted; it does not fall after a draft of full length."
)


@DRAFT_LENGTHS.register("confidence", looks_at_drafts=True)
class Confidence(AskedLength):
    """A draft ends after the first token to which the drafter gave less probability than a threshold. The token is
    kept. This is the assistant's confidence threshold of transformers, and the rule of arXiv:2309.08168."""

    def __init__(
        self,
        *,
        threshold: Annotated[Share, Field(description=CONFIDENCE)] = 0.4,
        update: Annotated[Literal["none", "roc", "acceptance"], Field(description=CONFIDENCE_UPDATE)] = "none",
        state: State = "prompt",
    ) -> None:
        self._start, self._update = threshold, update
        super().__init__(state)

    def forget(self) -> None:
        self._control = AcceptanceControl(self._start)
        self._pairs: list[tuple[float, bool]] = []

    @property
    def threshold(self) -> float:
        return self._control.threshold

    def wants_more(self, confidence: float, entropy: float) -> bool:
        return confidence >= self.threshold

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        if self._update == "acceptance":
            self._control.learn(num_drafted, num_accepted, num_drafted == self._most)
        elif self._update == "roc":
            verified = self._draft[: min(num_accepted + 1, num_drafted)]
            pairs = [(confidence, place < num_accepted) for place, (confidence, _) in enumerate(verified)]
            self._pairs = [*self._pairs, *pairs][-MAX_PAIRS:]
            best = best_threshold(self._pairs)
            self._control.threshold = self.threshold if best is None else best


FACTOR = "The factor of the entropy, in nats, below the root."
BOUND = "The draft ends before a token whose lower bound is below it."
BOUND_UPDATE = (
    "How acceptance moves the threshold. none: not at all; acceptance: by small steps, so that 90 % of the draft "
    "tokens are accepted; it does not fall after a draft of full length that was accepted whole (Algorithm 1 of the "
    "paper)."
)
Factor = Annotated[float, Field(gt=0, le=10, description=FACTOR)]


@DRAFT_LENGTHS.register("adaedl", looks_at_drafts=True)
class EntropyBound(AskedLength):
    """A draft ends before a token whose distribution q has 1 − √(factor · H(q)) below a threshold: an approximate lower
    bound of the probability that the token will be accepted (AdaEDL, arXiv:2410.18351). The pass that gave q has been
    made."""

    def __init__(
        self,
        *,
        factor: Factor = 0.2,
        threshold: Annotated[Share, Field(description=BOUND)] = 0.3,
        update: Annotated[Literal["none", "acceptance"], Field(description=BOUND_UPDATE)] = "acceptance",
        state: State = "prompt",
    ) -> None:
        self._factor, self._start, self._update = factor, threshold, update
        super().__init__(state)

    def forget(self) -> None:
        self._control = AcceptanceControl(self._start)

    @property
    def threshold(self) -> float:
        return self._control.threshold

    def wants_draw(self, entropy: float) -> bool:
        return 1 - math.sqrt(self._factor * entropy) >= self.threshold

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        if self._update == "acceptance":
            self._control.learn(num_drafted, num_accepted, num_accepted == self._most)


SVIP_THRESHOLD = "The draft ends after a token with a larger root."


@DRAFT_LENGTHS.register("svip", looks_at_drafts=True)
class RootEntropy(AskedLength):
    """A draft ends after the first token whose distribution q has √(factor · H(q)) above a threshold. The token is
    kept (SVIP, arXiv:2411.18462)."""

    def __init__(
        self,
        *,
        factor: Factor = 0.15,
        threshold: Annotated[float, Field(ge=0, le=100, description=SVIP_THRESHOLD)] = 0.3,
    ) -> None:
        self._factor, self._threshold = factor, threshold
        super().__init__()

    def wants_more(self, confidence: float, entropy: float) -> bool:
        return math.sqrt(self._factor * entropy) <= self._threshold


FIRST = "The length of the first draft."


@DRAFT_LENGTHS.register("heuristic")
class Heuristic(LearningLength):
    """The length grows by two if a draft of full length was accepted whole, and falls by one, down to one, if not: the
    schedule `heuristic` of transformers."""

    def __init__(self, *, first: Annotated[int, Field(ge=1, le=64, description=FIRST)] = 5, state: State = "prompt"):
        self._first = first
        super().__init__(state)

    def forget(self) -> None:
        self._length, self._longest = self._first, 0

    def limit(self, most: int) -> int:
        self._most, self._longest = most, max(most, self._longest)  # the longest one is `num_draft_tokens`
        self._length = min(self._length, self._longest)
        return min(self._length, most)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        if self._most < self._length:  # a draft that the end of the text cuts says nothing
            return
        is_whole = num_accepted == self._length
        self._length = min(self._length + 2, self._longest) if is_whole else max(1, self._length - 1)


DRAFT_COST = "c: a draft pass in target passes over one token, as `specbench tune` measures it."
VERIFY_COSTS = (
    "v: target passes over 1, 2, 3, … tokens, in passes over one token, as `specbench tune` measures them; beyond the "
    "last one, the costs rise as between the last two."
)
PassCost = Annotated[float, Field(gt=0, le=1000)]
NUM_BINS = 10
PRIOR = 4.0  # tokens: what a bin holds before it has seen any


class Chances:
    """The chance that a draft token is accepted, by its confidence: in each tenth, the share of the verified tokens
    that were, beside PRIOR tokens of which as many were as they are confident."""

    def __init__(self) -> None:
        self._verified, self._accepted = [0] * NUM_BINS, [0] * NUM_BINS

    def add(self, confidence: float, is_accepted: bool) -> None:
        place = self._bin(confidence)
        self._verified[place] += 1
        self._accepted[place] += is_accepted

    def of(self, confidence: float) -> float:
        place = self._bin(confidence)
        prior = (place + 0.5) / NUM_BINS
        return (self._accepted[place] + PRIOR * prior) / (self._verified[place] + PRIOR)

    def of_next(self) -> float:
        """Returns the chance of a token of unknown confidence."""
        return (sum(self._accepted) + PRIOR / 2) / (sum(self._verified) + PRIOR)

    def _bin(self, confidence: float) -> int:
        return min(NUM_BINS - 1, int(confidence * NUM_BINS))


class VerifyCosts:
    """v(n): the cost of a target pass over n tokens."""

    def __init__(self, costs: Sequence[float]) -> None:
        slope = costs[-1] - costs[-2] if len(costs) > 1 else 0.0
        self._costs, self._slope = costs, max(0.0, slope)

    def of(self, num_tokens: int) -> float:
        last = len(self._costs)
        return self._costs[min(num_tokens, last) - 1] + self._slope * max(0, num_tokens - last)


@DRAFT_LENGTHS.register("costs")
class CostSchedule(AskedLength):
    """A draft goes on while the next token is worth its cost: while the chance that it and all before it are accepted
    exceeds (c + v(i + 2) − v(i + 1)) · the tokens per cost so far, with c and v as measured on the machine. Chances are
    learnt by confidence; of a drafter without distributions all tokens have one chance. The published proposal for
    llama.cpp (pull request 17034) takes a table of costs from the environment."""

    def __init__(
        self,
        *,
        draft_cost: Annotated[float, Field(ge=0, le=1000, description=DRAFT_COST)],
        verify_costs: Annotated[list[PassCost], Field(min_length=1, max_length=65, description=VERIFY_COSTS)],
        state: State = "prompt",
    ) -> None:
        self._draft_cost, self._verify = draft_cost, VerifyCosts(verify_costs)
        super().__init__(state)

    def forget(self) -> None:
        self._chances = Chances()
        self._emitted, self._spent = 1.0, self._verify.of(1)  # as one autoregressive step

    def limit(self, most: int) -> int:
        super().limit(most)
        self._reached = 1.0  # the chance that all draft tokens so far are accepted
        if self.is_asked:
            return most
        chance, length = self._chances.of_next(), min(1, most)
        while length < most and self._is_worth(chance ** (length + 1), length):
            length += 1
        return length

    def wants_more(self, confidence: float, entropy: float) -> bool:
        self._reached *= self._chances.of(confidence)
        return self._is_worth(self._reached * self._chances.of_next(), len(self._draft))

    def _is_worth(self, chance: float, num_drafted: int) -> bool:
        more = self._draft_cost + self._verify.of(num_drafted + 2) - self._verify.of(num_drafted + 1)
        return chance > more * self._emitted / self._spent

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        if self.is_asked:
            super().observe(num_drafted, num_accepted)
        else:
            self.confidences = self.entropies = None
            self._draft = [(1.0, 0.0)] * num_drafted
            self.learn(num_drafted, num_accepted)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        verified = self._draft[: min(num_accepted + 1, num_drafted)]
        for place, (confidence, _) in enumerate(verified):
            self._chances.add(confidence, place < num_accepted)
        self._emitted += num_accepted + 1
        self._spent += num_drafted * self._draft_cost + self._verify.of(num_drafted + 1)


def make_length(factory: Any, options: dict[str, Any], is_asked: bool) -> DraftLength:
    """Returns a draft length. `is_asked`: whether the drafter asks within a draft, which not every length needs."""
    made = factory(**options)
    if not isinstance(made, DraftLength):
        raise ConfigError(
            f"draft length '{getattr(factory, '__name__', factory)}' made a {type(made).__name__}: derive its class "
            "from specbench.plugin.DraftLength"
        )
    made.is_asked = is_asked and isinstance(made, AskedLength)
    return made
