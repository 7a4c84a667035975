"""The audit of servers: draws of a server against as many draws of the server without speculation.

The target of a server is not in this process, so its exact probabilities are not known. Both servers draw after the
same beginnings, and χ² tests whether the next tokens of both follow one distribution, whatever it is. The server
without speculation has two controls: its other draws, which pass, and its draws at a higher temperature, which fail.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from specbench.analysis.audit_distribution import (
    CountTest,
    MethodDraws,
    Outlier,
    TokenDistribution,
    Tokens,
    longest,
    next_tokens,
)
from specbench.analysis.audit_methods import Audit, JudgeDraws
from specbench.analysis.audit_report import DrawStatistics, Reference

REFERENCE = "ar again"  # no method has a name with a blank


class ServedAudit(Audit):
    """An audit whose draws are compared with other draws of the first method, which is AR."""

    reference: ClassVar[Reference] = "ar"

    def _judge(self, draws: Mapping[str, MethodDraws], prompt_ids: Sequence[list[int]], noise: float) -> JudgeDraws:
        baseline = self.subjects[0].drawing
        assert baseline is not None
        references = {
            num_tokens: self._draws(REFERENCE, baseline, prompt_ids, num_tokens).sequences
            for num_tokens in {each.most_tokens for each in draws.values()}
        }
        return lambda each: judge_samples(each.sequences, references[each.most_tokens], noise)


def judge_samples(
    sequences: Sequence[Sequence[Tokens]], others: Sequence[Sequence[Tokens]], noise: float
) -> tuple[DrawStatistics, Outlier | None]:
    """Returns the test of drawn sequences, one list per prompt, against other draws after the same prompts, and the
    token farthest from its expectation. `noise`: as in `judge_draws`."""
    counts, own, beside = CountTest(), next_tokens(sequences), next_tokens(others)
    for key in own.keys() & beside.keys():
        pooled = own[key] + beside[key]
        probs = np.array(list(pooled.values())) / pooled.total()
        row = TokenDistribution(np.array(list(pooled)), probs, log_p={}, mean=0.0, variance=0.0, third=0.0)
        counts.add(key, own[key], row, noise, num_others=beside[key].total())
    by_token, p_value = counts.p_values(longest(sequences))
    num_tokens = sum(counter.total() for counter in own.values())
    return DrawStatistics(num_tokens=num_tokens, p_value=p_value, p_by_token=by_token), counts.outlier
