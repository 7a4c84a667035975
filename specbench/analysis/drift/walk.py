"""The steps in which a drafter and a target would write a known answer, without decoding it again.

Under a lossless rule the answer x is a sample of the target's distribution, whatever is drafted. Given x, the draft of
token x_t is accepted with the probability m_t = min(1, q_t(x_t) / p_t(x_t)) if all drafts before it in its step were
accepted: the draft was x_t and was kept, which has the probability min(p_t(x_t), q_t(x_t)), out of p_t(x_t). So the
steps of an answer are a Markov chain over its positions, and expected numbers of steps, judged and accepted tokens are
exact sums over it. Greedy, each m_t is 0 or 1 and the chain is the steps themselves.

A draft that leaves the answer is rejected where it leaves it, so that p and q are only needed along the answer, each
behind the true tokens before it: one pass of each model reads them all.
"""

from dataclasses import dataclass

import numpy as np

from specbench.statistics.bootstrap import Array


@dataclass(frozen=True)
class Walk:
    """The expected numbers of an answer's steps. `num_steps`; `judged`, `accepted`: by draft position, [γ]. Accepted
    counts use Σ min(p, q) at the position itself, which has the same mean over answers as m_t and less noise."""

    num_steps: float
    judged: Array
    accepted: Array


def walk(match: Array, overlap: Array, num_draft_tokens: int, max_new_tokens: int) -> Walk:
    """Returns the expected steps of an answer.

    match: [num_new_tokens], m_t of each token of the answer, its end token included; the first one is the prompt's own
    pass, without a draft. overlap: [num_new_tokens], Σ min(p_t, q_t). The draft of a step is shortened where
    `max_new_tokens` leaves room for less; nothing is judged behind the end of the answer.
    """
    num = len(match)
    visits = np.zeros(num + 1)  # element t: the probability that a step begins with the token t
    visits[1:2] = 1.0
    judged, accepted = np.zeros(num_draft_tokens), np.zeros(num_draft_tokens)
    num_steps = 0.0
    for start in range(1, num):
        reached = visits[start]  # that a step begins here and all its drafts so far are accepted
        if reached == 0.0:
            continue
        num_steps += reached
        num_drafted = min(num_draft_tokens, max_new_tokens - start - 1)
        place = start
        for depth in range(min(num_drafted, num - start)):
            judged[depth] += reached
            accepted[depth] += reached * overlap[place]
            visits[place + 1] += reached * (1.0 - match[place])
            reached *= match[place]
            place += 1
        if place < num:  # the target's own token ends the step
            visits[place + 1] += reached
    return Walk(num_steps, judged, accepted)
