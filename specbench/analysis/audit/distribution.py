"""The distribution test: are many samples of a few tokens from fixed prompts samples from the target's own
distribution?

Samples are not compared with samples of AR, whose noise would be added to that of the method: the target's exact
probabilities after every drawn prefix are known. There are two statistics:

- counts: Pearson's χ² of the next token, for every prefix that several samples share; cells with fewer than five
  expected samples are merged. Given the prefixes these are independent multinomials, so they add up over prefixes and
  prompts. The sum at each token position is tested by a gamma distribution with its exact mean and variance (Haldane
  1937). The positions are combined by Fisher's method, because the p-value of each is uniform given the positions
  before.
- log p: the sum of ln p of all drawn tokens, against its exact mean, variance and skewness (Pearson III), two-sided. A
  deviation as large as one token of the lowest log p is forgiven. This statistic also uses prefixes drawn only once.

The p-value is twice the smaller of the two (Bonferroni). Both forgive the rounding noise that `results.greedy`
measured.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from specbench.analysis.audit.report import SampleStatistics
from specbench.decoding.decoder import Decoder
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.proposal import Proposal, Step, Verification
from specbench.decoding.sampling import Distributions, Sampling, process
from specbench.decoding.verification import VerificationRule, rejection
from specbench.models.batch_width import BaselineAnswer
from specbench.models.scoring import ScoringModel
from specbench.results.verdict import NUM_TOKENS

Tokens = tuple[int, ...]
PromptPrefix = tuple[int, Tokens]  # number of the prompt, tokens drawn after it
LOWEST_LOG_P = -9.2  # the log p of all rarer tokens (p < 1e-4), so that no single token decides a test
MIN_EXPECTED = 5.0
SMALLEST = 1e-300  # the least p-value that Fisher's method gets: it takes logarithms


@dataclass(frozen=True)
class TokenDistribution:
    """A next-token distribution. `tokens`, `probs`: the frequent tokens; `log_p`: of the drawn tokens; `mean`,
    `variance`, `third`: the moments of log p under p."""

    tokens: NDArray[np.int64]
    probs: NDArray[np.float64]
    log_p: dict[int, float]
    mean: float
    variance: float
    third: float  # central moment


@torch.inference_mode()
def exact_distributions(
    target: ScoringModel, prompts: Sequence[list[int]], sequences: Iterable[Sequence[Sequence[Tokens]]],
    sampling: Sampling, num_draws: int,
) -> dict[PromptPrefix, TokenDistribution]:  # fmt: skip
    """Returns the distribution after every prefix in `sequences` (by method, then by prompt); scores each prefix once.

    A token is frequent if at least five of `num_draws` samples are expected to show it.
    """
    drawn_tokens: dict[PromptPrefix, set[int]] = defaultdict(set)
    for per_prompt in sequences:
        for key, counter in count_next_tokens(per_prompt).items():
            drawn_tokens[key] |= counter.keys()
    rows: dict[PromptPrefix, TokenDistribution] = {}
    keys = sorted(drawn_tokens)
    for (prompt, prefix), following in zip(keys, [*keys[1:], None], strict=True):
        if following is not None and following[0] == prompt and following[1][: len(prefix)] == prefix:
            continue  # scoring the longer prefix gives this row too
        logits = target.score([*prompts[prompt], *prefix], len(prefix) + 1).logits
        for length in range(len(prefix) + 1):
            key = (prompt, prefix[:length])
            if key not in rows:
                probs = process(logits[length : length + 1], sampling)[0].double().cpu().numpy()
                probs = probs / probs.sum()
                logs = np.maximum(np.log(np.maximum(probs, SMALLEST)), LOWEST_LOG_P)
                mean = float(probs @ logs)
                frequent = np.flatnonzero(probs * num_draws >= MIN_EXPECTED)
                rows[key] = TokenDistribution(
                    tokens=frequent, probs=probs[frequent],
                    log_p={token: float(logs[token]) for token in drawn_tokens[key]}, mean=mean,
                    variance=float(probs @ (logs - mean) ** 2), third=float(probs @ (logs - mean) ** 3),
                )  # fmt: skip
    return rows


class Outlier(NamedTuple):
    """The cell that is farthest from its expectation. `score`: the distance in standard deviations."""

    score: float
    key: PromptPrefix
    token: int
    num_observed: int
    num_expected: float


@dataclass
class CountTest:
    """The test of counts. `by_token`: [χ², its exact mean, its variance] by token position, summed over prefixes;
    `outlier`: the cell that is farthest from its expectation."""

    by_token: dict[int, NDArray[np.float64]] = field(default_factory=lambda: defaultdict(lambda: np.zeros(3)))
    outlier: Outlier | None = None

    def add(
        self, key: PromptPrefix, counter: Counter[int], row: TokenDistribution, noise: float, num_others: int = 0
    ) -> None:
        """Adds the χ² of the tokens after one prefix, if its samples fill at least two cells. `num_others`: 0 if `row`
        is the exact distribution; if `row` is pooled with other samples, their number."""
        total = counter.total()
        least = MIN_EXPECTED * max(1.0, total / num_others if num_others else 1.0)  # enough expected on both sides
        frequent = row.probs * total >= least
        probs = row.probs[frequent]
        observed = np.array([counter[int(token)] for token in row.tokens[frequent]], dtype=np.float64)
        rest = 1.0 - float(probs.sum())
        if rest * total >= least:
            probs, observed = np.append(probs, rest), np.append(observed, total - observed.sum())
        elif len(probs):  # too rare for a cell of its own
            smallest = int(probs.argmin())
            probs[smallest] += rest
            observed[smallest] += total - observed.sum()
        if len(probs) < 2:
            return
        expected = probs * total
        value = float(((observed - expected) ** 2 / expected).sum())
        mean, variance, shift = *moments(probs, total), noise * total
        if num_others:
            value *= (total + num_others) / num_others
            mean, variance = moments_of_pooled(probs, total, num_others)
            shift *= num_others / (total + num_others)
        self.by_token[len(key[1])] += (value, mean + shift, variance + 4 * shift)
        scores = np.abs(observed - expected) / np.sqrt(expected * (1 - probs))
        worst = int(scores[: int(frequent.sum())].argmax()) if frequent.any() else -1
        if worst >= 0 and (self.outlier is None or scores[worst] > self.outlier.score):
            token, probability = int(row.tokens[frequent][worst]), float(row.probs[frequent][worst])
            if num_others:  # its probability by the other samples alone
                probability += (probability * total - counter[token]) / num_others
            self.outlier = Outlier(float(scores[worst]), key, token, counter[token], total * probability)

    def p_values(self, sequences: Sequence[Sequence[Tokens]]) -> tuple[list[float | None], float]:
        """Returns the p-value of each position, by the gamma distribution with the mean and variance of its sum, and
        their combination. A position is None if no prefix has enough samples."""
        found: list[float | None] = [None] * max(len(tokens) for drawn in sequences for tokens in drawn)
        for position, (value, mean, variance) in self.by_token.items():
            found[position] = float(stats.gamma.sf(value, mean**2 / variance, scale=variance / mean))
        known = [max(p, SMALLEST) for p in found if p is not None]
        return found, float(stats.combine_pvalues(known, method="fisher").pvalue) if known else 1.0


def moments(probs: NDArray[np.float64], total: int) -> tuple[float, float]:
    """Returns the exact mean and variance of the χ² of `total` samples from a known distribution (Haldane 1937)."""
    num_cells = len(probs)
    variance = 2 * (num_cells - 1) + float((1 / probs).sum() - num_cells**2 - 2 * num_cells + 2) / total
    return num_cells - 1, variance


def moments_of_pooled(probs: NDArray[np.float64], num_own: int, num_others: int) -> tuple[float, float]:
    """Returns the exact mean and variance of χ² for a table with two rows of samples, given the sums of its rows
    (`num_own`, `num_others`) and the shares of its columns `probs` (Haldane 1940)."""
    total, num_cells = num_own + num_others, len(probs)
    rows, columns = (total / num_own + total / num_others - 4), float((1 / probs).sum()) - num_cells**2
    rows, columns = rows / (total - 2), columns / (total - 2)
    row_term, column_term = (total - 2) / (total - 1), (num_cells - 1) * (total - num_cells) / (total - 1)
    variance = 2 * total / (total - 3) * (row_term - rows) * (column_term - columns)
    variance += total**2 / (total - 1) * rows * columns
    return (num_cells - 1) * total / (total - 1), variance


def count_next_tokens(sequences: Sequence[Sequence[Tokens]]) -> dict[PromptPrefix, Counter[int]]:
    """Returns how often each token was drawn after each prefix. `sequences`: one list per prompt."""
    found: dict[PromptPrefix, Counter[int]] = defaultdict(Counter)
    for prompt, drawn in enumerate(sequences):
        for tokens in drawn:
            for length, token in enumerate(tokens):
                found[prompt, tokens[:length]][token] += 1
    return found


def compare_with_target(
    sequences: Sequence[Sequence[Tokens]], rows: Mapping[PromptPrefix, TokenDistribution], noise: float
) -> tuple[SampleStatistics, Outlier | None]:
    """Returns the test of the drawn sequences (one list per prompt) and the token farthest from its expectation.
    `noise`: E_p[(Δ ln p)²] of the probabilities of a correct method."""
    counts = CountTest()
    sums = np.zeros(4)  # Σ ln p, its mean, its variance and its third central moment
    num_tokens = 0
    for key, counter in count_next_tokens(sequences).items():
        row, total = rows[key], counter.total()
        num_tokens += total
        value = sum(count * row.log_p[token] for token, count in counter.items())
        sums += (value, total * row.mean, total * row.variance, total * row.third)
        counts.add(key, counter, row, noise)
    by_token, p_counts = counts.p_values(sequences)
    # The two-sided p-value of Σ ln p by Pearson III, after forgiving one token of the lowest log p and the noise.
    log_p, expected, variance, third = sums.tolist()
    deviation = math.sqrt(variance)
    excess = abs(log_p - expected) - abs(LOWEST_LOG_P) - math.sqrt(noise * num_tokens) * deviation
    if excess <= 0 or deviation == 0:
        p_log = 1.0 if excess <= 0 else 0.0
    else:
        law = stats.pearson3(third / deviation**3)
        score = math.copysign(excess / deviation, log_p - expected)
        p_log = min(1.0, 2 * float(law.sf(score) if score > 0 else law.cdf(score)))
    found = SampleStatistics(
        p_value=min(1.0, 2 * min(p_counts, p_log)), p_by_token=by_token, num_tokens=num_tokens,
        mean_log_p=log_p / num_tokens, expected_log_p=expected / num_tokens,
        standard_error=math.sqrt(variance) / num_tokens,
    )  # fmt: skip
    return found, counts.outlier


def compare_with_samples(
    sequences: Sequence[Sequence[Tokens]], others: Sequence[Sequence[Tokens]], noise: float
) -> tuple[SampleStatistics, Outlier | None]:
    """Returns the test of drawn sequences (one list per prompt) against other samples after the same prompts, and the
    token farthest from its expectation. `noise`: as in `compare_with_target`."""
    counts, own, other = CountTest(), count_next_tokens(sequences), count_next_tokens(others)
    for key in own.keys() & other.keys():
        pooled = own[key] + other[key]
        probs = np.array(list(pooled.values())) / pooled.total()
        row = TokenDistribution(np.array(list(pooled)), probs, log_p={}, mean=0.0, variance=0.0, third=0.0)
        counts.add(key, own[key], row, noise, num_others=other[key].total())
    by_token, p_value = counts.p_values(sequences)
    num_tokens = sum(counter.total() for counter in own.values())
    return SampleStatistics(num_tokens=num_tokens, p_value=p_value, p_by_token=by_token), counts.outlier


MAX_POSITIONS = 192  # the last ones of each prompt with its answer
ENTROPY_WEIGHT = 0.01  # of positions where drafts are never, or always, accepted


@dataclass(frozen=True)
class Cut:
    """The beginning of a prompt with its answer. `weight`: how undecided the next tokens are; `repeats`: whether the
    next pair of tokens occurred before."""

    name: str
    ids: list[int]
    weight: float
    repeats: bool


@torch.inference_mode()
def choose_prompts(
    target: ScoringModel, drafter: ScoringModel | None, answers: Sequence[BaselineAnswer], sampling: Sampling,
    num_prompts: int, num_tokens: int,
) -> list[Cut]:  # fmt: skip
    """Returns the best cuts of `num_prompts` answers, for samples of `num_tokens` tokens. At least one of them repeats
    a pair of tokens, if there is such a cut: drafters that copy from the text then draft."""
    per_answer = [list_cuts(target, drafter, answer, sampling, num_tokens) for answer in answers]
    weight = attrgetter("weight")
    best = sorted((max(group, key=weight) for group in per_answer if group), key=weight, reverse=True)
    best = best[:num_prompts]
    if any(cut.repeats for cut in best):
        return best
    kept = best[: num_prompts - 1]
    repeating = [cut for group in per_answer for cut in group if cut.repeats]
    others = [cut for cut in repeating if cut.name not in {other.name for other in kept}]
    return [*kept, max(others or repeating, key=weight)] if repeating else best


def list_cuts(
    target: ScoringModel, drafter: ScoringModel | None, answer: BaselineAnswer, sampling: Sampling, num_tokens: int
) -> list[Cut]:
    """Returns the cuts of one prompt with its answer (without its last token), at most MAX_POSITIONS from the end."""
    ids = [*answer.prompt_ids, *answer.token_ids[:-1]]
    num_rows = min(len(ids), MAX_POSITIONS)
    target_probs = score_probs(target, ids, num_rows, sampling)
    entropy = -torch.xlogy(target_probs, target_probs).sum(-1)
    value = entropy * ENTROPY_WEIGHT
    if drafter is not None:
        alpha = torch.minimum(target_probs, score_probs(drafter, ids, num_rows, sampling)).sum(-1)
        value += entropy * alpha * (1 - alpha)
    start = len(ids) - num_rows
    pairs: dict[tuple[int, int], int] = {}
    for place in range(1, len(ids)):
        pairs.setdefault((ids[place - 1], ids[place]), place)
    found = []
    for row in range(max(1, num_rows - num_tokens + 1)):
        length = start + row + 1  # row i is the distribution after ids[: start + i + 1]
        repeats = length < len(ids) and pairs[ids[length - 1], ids[length]] < length - 1
        found.append(Cut(answer.name, ids[:length], float(value[row : row + num_tokens].sum()), repeats))
    return found


def score_probs(model: ScoringModel, ids: list[int], num_rows: int, sampling: Sampling) -> torch.Tensor:
    model.reset()
    return process(model.score(ids, num_rows).logits, sampling)


@dataclass(frozen=True)
class MethodSamples:
    """The samples of a method. `sequences`: the drawn tokens per prompt; `steps`: of all samples, empty for a decoder
    without steps; `reported`: the sums that its server reports, if any."""

    sequences: list[list[Tokens]]
    steps: list[Step] = field(default_factory=list)
    reported: Counter[str] = field(default_factory=Counter)

    def counts(self) -> dict[str, int]:
        """Returns the kinds of tokens in all samples; empty for a decoder that does not count. A step that was cut by
        the end of the text has neither a recovered nor a bonus token."""
        if not self.steps:
            return dict(self.reported)
        whole = [step for step in self.steps if step.num_drafted and step.num_emitted == step.num_accepted + 1]
        num_bonus = sum(step.num_accepted == step.num_drafted for step in whole)
        return {
            "num_drafted": sum(step.num_drafted for step in self.steps),
            "num_accepted": sum(step.num_accepted for step in self.steps),
            "num_recovered": len(whole) - num_bonus,
            "num_bonus": num_bonus,
        }


def draw_samples(
    decoder: Decoder, prompts: Sequence[list[int]], stop: StopRules, num_draws: int,
    seed_of: Callable[[int, int], int], num_tokens: int = NUM_TOKENS,
) -> MethodSamples:  # fmt: skip
    """Returns `num_draws` samples of up to `num_tokens` tokens, spread evenly over the prompts. `seed_of`: returns the
    seed of a draw from the numbers of its prompt and of the draw."""
    stop = replace(stop, max_new_tokens=num_tokens, stop_strings=())
    samples = MethodSamples([[] for _ in prompts])
    for number, prompt in enumerate(prompts):  # all samples of a prompt together, so that models read it once
        for draw in range(number, num_draws, len(prompts)):
            generation = decoder.generate(prompt, stop, seed_of(number, draw))
            samples.sequences[number].append(tuple(generation.token_ids))
            samples.steps.extend(generation.steps)
            samples.reported.update(reported_counts(generation))
    return samples


def reported_counts(generation: GenerationOutput) -> dict[str, int]:
    """Returns the numbers of drafted and accepted tokens of an answer whose server reports only sums; else empty."""
    external = generation.external
    if generation.steps or external is None or external.totals is None:
        return {}
    drafted, _, accepted = external.totals
    return {"num_drafted": drafted, "num_accepted": min(accepted, len(generation.token_ids) - 1)}


class WithoutResidual(VerificationRule):
    """A wrong rule, as a control: the rejection rule, except that the token after a rejection is drawn from the target
    instead of the residual.

    At each position its distribution differs from the target's by at most min(α, 1 − α), where α = Σ min(p, q). A rule
    that accepts every draft token differs by 1 − α.
    """

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        found = rejection(proposal, target, generator)
        if found.num_accepted == proposal.num_drafted:
            return found
        return replace(found, next_token=target.draw(found.num_accepted, generator))
