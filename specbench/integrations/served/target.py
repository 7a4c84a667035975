"""The target behind the server without speculation, which gives log-probabilities in place of logits."""

import math

import torch

from specbench.integrations.served.engine import LogProbs, json_mapping
from specbench.integrations.served.server import Server
from specbench.models.scoring import Output, ScoringModel

NUM_AHEAD = 64  # tokens per request
LEAST_LEFT = 1e-12  # minimum probability of all other tokens, since sums are rounded


class ServedTarget(ScoringModel):
    """Scores sequences by requests to a server without speculation.

    A row of logits holds the log-probabilities of the most probable tokens; all other tokens share the remaining
    probability equally. A row after a token that the server itself wrote since `reset` comes from its pass over that
    token; every other row comes from a pass over the whole sequence.
    """

    def __init__(self, server: Server, vocab_size: int) -> None:
        self.server, self.vocab_size = server, vocab_size
        self._read: dict[tuple[int, ...], LogProbs] = {}  # after a whole sequence
        self._written: dict[tuple[int, ...], LogProbs] = {}  # along the server's own tokens since `reset`

    def reset(self) -> None:
        self._written.clear()

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        if num_logits == 1:
            if tuple(ids) not in self._written:
                self._read_ahead(ids)
            rows = [self._written[tuple(ids)]]
        else:
            rows = [self._row_after(tuple(ids[:end])) for end in range(len(ids) - num_logits + 1, len(ids) + 1)]
        return Output(torch.stack([self._logits(row) for row in rows]))

    def _row_after(self, ids: tuple[int, ...]) -> LogProbs:
        if ids not in self._read:
            self._read[ids] = self._request_rows(list(ids), 1)[0]
        return self._read[ids]

    def _read_ahead(self, ids: list[int]) -> None:
        """Stores the rows after a sequence and after each token with which the server continues it."""
        for row in self._request_rows(ids, NUM_AHEAD, 1):
            self._written[tuple(ids)] = row
            ids = [*ids, max(row, key=row.__getitem__)]

    def _request_rows(self, ids: list[int], *num_tokens: int) -> list[LogProbs]:
        """Returns the rows of the first request that the server accepts: near the end of its context it refuses those
        for many tokens. Raises ConfigError if it accepts none."""
        for number in num_tokens:
            if rows := log_probs(self.server, ids, number):
                return rows
        raise self.server.client.error("no longer gives log-probabilities: see the server's log")

    def _logits(self, row: LogProbs) -> torch.Tensor:
        values = torch.tensor(list(row.values()), dtype=torch.float64)
        left = max(1.0 - float(values.exp().sum()), LEAST_LEFT) / max(1, self.vocab_size - len(row))
        logits = torch.full((self.vocab_size,), min(math.log(left), float(values.min())))
        with self.server.client.reading():  # a token that the target does not have
            logits[list(row)] = values.float()
        return logits


def log_probs(server: Server, ids: list[int], num_tokens: int) -> list[LogProbs]:
    """Returns the log-probabilities of the most probable tokens after a sequence and after each of the greedy tokens
    that follow. Returns an empty list if the engine does not report them, or not the real ones: llama.cpp reports 0 and
    no alternatives for draft tokens."""
    body = server.engine.scoring_request(ids, num_tokens, server.model)
    answer = json_mapping(lambda path: server.client.post(path, body), server.engine.path) if body else {}
    with server.client.reading():
        rows = server.engine.log_probs(answer) if answer else []
    is_real = all(len(row) > 1 and any(row.values()) for row in rows)
    return rows if is_real else []


def served_target(server: Server, vocab_size: int) -> ServedTarget | None:
    """Returns the target of a server; None if the server reports no real log-probabilities."""
    return ServedTarget(server, vocab_size) if log_probs(server, [0, 0], 2) else None
