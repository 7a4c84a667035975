"""What drafted text was drawn from, as the rejection rule asks for it."""

import torch

from specbench.decoding.bridges.psi import Psi
from specbench.decoding.sampling import draw


class StringProbs:
    """q_i = ψ behind the i-th context; computed only for the tokens that are met. Rows may sum to less than 1."""

    def __init__(self, token_ids: list[int], psis: list[Psi]) -> None:
        self._token_ids = token_ids
        self._psis = psis

    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        values = [psi.of(token) for psi, token in zip(self._psis, token_ids.tolist(), strict=True)]
        return torch.tensor(values, device=token_ids.device)

    def overlap(self, target_probs: torch.Tensor) -> None:
        """Not known: it would need ψ of the whole vocabulary."""
        return None

    def recover(self, index: int, target_probs: torch.Tensor, generator: torch.Generator) -> int:
        """A draw from norm(max(p − ψ, 0)) by rejection: p stands in where ψ is not yet known.

        A token drawn there is kept with probability max(p − ψ, 0) / p; if it is not, its weight is set to its residual.
        Whatever was refused before, the token that is kept follows the residual; no token is refused twice, so that
        this ends.
        """
        psi = self._psis[index]
        weights = target_probs.clone()
        met: set[int] = set()
        while bool(weights.any()):
            token = draw(weights, generator)
            if token in met:
                return token
            met.add(token)
            target_prob = float(target_probs[token])
            rest = max(target_prob - psi.of(token), 0.0)
            if float(torch.rand((), generator=generator, device=weights.device)) * target_prob < rest:
                return token
            weights[token] = rest
        return draw(target_probs, generator)  # rounding left nothing, as in sampling.residual
