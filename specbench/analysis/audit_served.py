"""The audit of servers: draws of a server against as many draws of the server without speculation.

The target of a server is not in this process, so its exact probabilities are not known. Both servers draw after the
same prefixes, and χ² tests whether their next tokens follow the same distribution. The server without speculation has
two controls: further draws of its own must pass, and draws at a higher temperature must fail.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from specbench.analysis.audit_distribution import (
    CountTest,
    MethodDraws,
    Outlier,
    TokenDistribution,
    Tokens,
    count_next_tokens,
    exact_distributions,
    judge_draws,
    max_length,
)
from specbench.analysis.audit_methods import Audit, JudgeDraws
from specbench.analysis.audit_report import DrawStatistics, Reference
from specbench.core.errors import ConfigError
from specbench.decoding.decoder import stream_seed
from specbench.integrations.served.engine import Engine
from specbench.results.verdict import Noise

NUM_ANSWERS = 4  # whole drawn answers of a server: to score one, a server of the target gets a request for each token
REFERENCE = "ar again"  # no method has a name with a blank


class ServedAudit(Audit):
    """An audit of servers against the target in this process."""

    def _test_answers(self, noise: Noise) -> dict[str, DrawStatistics]:
        """Returns the test of whole drawn answers to the first prompts, by their log-probabilities under the target. A
        server that raises ConfigError has no test."""
        found: dict[str, list[list[Tokens]]] = {}
        prompts = self.prompts[:NUM_ANSWERS]
        for subject in self.subjects if self._is_exact else ():
            if subject.drawing is None:
                continue
            self.progress(f"{subject.name}: whole answers")
            seed_of = partial(stream_seed, self.seed, "audit-answers", subject.name)
            try:
                found[subject.name] = [
                    [tuple(subject.drawing.generate(prompt.ids, prompt.stop, seed_of(number)).token_ids)]
                    for number, prompt in enumerate(prompts)
                ]
            except ConfigError as error:
                subject.refuse("whole answers", error)
        if not found:
            return {}
        rows = exact_distributions(self.target, [prompt.ids for prompt in prompts], found.values(), self.sampling, 1)
        tests = {name: judge_draws(each, rows, self._allowance(noise))[0] for name, each in found.items()}
        return {name: test.model_copy(update={"p_by_token": []}) for name, test in tests.items()}

    @property
    def _is_exact(self) -> bool:
        """Returns whether the target's probabilities of samples are known."""
        return True


class PairedAudit(ServedAudit):
    """An audit whose draws are compared with other draws of the first server, which is AR."""

    reference: ClassVar[Reference] = "ar"

    @property
    def _is_exact(self) -> bool:
        """Returns whether the server's log-probabilities are those of its samples. At another temperature or top-p they
        are not: that would need the probability of every token, and the server reports only the most probable."""
        sampling = self.sampling
        return sampling.temperature == 1 and sampling.top_p is None and (sampling.top_k or 0) <= Engine.num_logprobs

    def _make_judge(
        self, draws: Mapping[str, MethodDraws], prompt_ids: Sequence[list[int]], noise: float
    ) -> JudgeDraws:
        baseline = self.subjects[0].drawing
        assert baseline is not None
        references = {
            num_tokens: self._draw(REFERENCE, baseline, prompt_ids, num_tokens).sequences
            for num_tokens in {each.most_tokens for each in draws.values()}
        }
        return lambda each: judge_samples(each.sequences, references[each.most_tokens], noise)


def judge_samples(
    sequences: Sequence[Sequence[Tokens]], others: Sequence[Sequence[Tokens]], noise: float
) -> tuple[DrawStatistics, Outlier | None]:
    """Returns the test of drawn sequences (one list per prompt) against other draws after the same prompts, and the
    token farthest from its expectation. `noise`: as in `judge_draws`."""
    counts, own, other = CountTest(), count_next_tokens(sequences), count_next_tokens(others)
    for key in own.keys() & other.keys():
        pooled = own[key] + other[key]
        probs = np.array(list(pooled.values())) / pooled.total()
        row = TokenDistribution(np.array(list(pooled)), probs, log_p={}, mean=0.0, variance=0.0, third=0.0)
        counts.add(key, own[key], row, noise, num_others=other[key].total())
    by_token, p_value = counts.p_values(max_length(sequences))
    num_tokens = sum(counter.total() for counter in own.values())
    return DrawStatistics(num_tokens=num_tokens, p_value=p_value, p_by_token=by_token), counts.outlier
