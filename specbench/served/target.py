"""The target as the server without speculation serves it: log-probabilities in place of logits."""

import math

import torch

from specbench.models.scoring import Output, ScoringModel
from specbench.served.engine import LogProbs, json_mapping
from specbench.served.server import Server

NUM_AHEAD = 64  # tokens that one request asks for
LEAST_LEFT = 1e-12  # of the probability, since sums are rounded


class ServedTarget(ScoringModel):
    """Scores sequences by requests to a server without speculation.

    A row of logits holds the log-probabilities of the most probable tokens; what is left is divided among all others. A
    row after a token that the server wrote itself since `reset` is of its own pass over that token; every other row is
    of a pass over the whole sequence.
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
                self._ask(ids)
            rows = [self._written[tuple(ids)]]
        else:
            rows = [self._whole(tuple(ids[:end])) for end in range(len(ids) - num_logits + 1, len(ids) + 1)]
        return Output(torch.stack([self._logits(row) for row in rows]))

    def _whole(self, ids: tuple[int, ...]) -> LogProbs:
        if ids not in self._read:
            self._read[ids] = self._rows(list(ids), 1)[0]
        return self._read[ids]

    def _ask(self, ids: list[int]) -> None:
        """Keeps the rows of a sequence and of the tokens with which the server goes on."""
        for row in self._rows(ids, NUM_AHEAD, 1):
            self._written[tuple(ids)] = row
            ids = [*ids, max(row, key=row.__getitem__)]

    def _rows(self, ids: list[int], *num_tokens: int) -> list[LogProbs]:
        """Returns the rows of the first request that the server takes: near the end of its context it refuses long
        ones. Raises ConfigError if it takes none."""
        for number in num_tokens:
            if rows := log_probs(self.server, ids, number):
                return rows
        raise self.server.client.error("tells no log-probabilities any more: see the server's log")

    def _logits(self, row: LogProbs) -> torch.Tensor:
        values = torch.tensor(list(row.values()), dtype=torch.float64)
        left = max(1.0 - float(values.exp().sum()), LEAST_LEFT) / max(1, self.vocab_size - len(row))
        logits = torch.full((self.vocab_size,), min(math.log(left), float(values.min())))
        with self.server.client.reading():  # a token that the target does not have
            logits[list(row)] = values.float()
        return logits


def log_probs(server: Server, ids: list[int], num_tokens: int) -> list[LogProbs]:
    """Returns the log-probabilities of the most probable tokens after a sequence, and after each of the greedy tokens
    that follow; none if the engine does not tell them, or if they are not real: llama.cpp tells 0 and no alternatives
    for draft tokens."""
    body = server.engine.scoring_request(ids, num_tokens, server.model)
    answer = json_mapping(lambda path: server.client.post(path, body), server.engine.path) if body else {}
    with server.client.reading():
        rows = server.engine.log_probs(answer) if answer else []
    is_real = all(len(row) > 1 and any(row.values()) for row in rows)
    return rows if is_real else []


def served_target(server: Server, vocab_size: int) -> ServedTarget | None:
    """Returns the target that a server serves; None if the server tells no log-probabilities that are real."""
    return ServedTarget(server, vocab_size) if log_probs(server, [0, 0], 2) else None
