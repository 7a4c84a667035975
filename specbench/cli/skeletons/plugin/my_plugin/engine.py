"""An engine of its own: transformers' `generate`, measured like any other decoder."""

from typing import Any

import torch


class Engine:
    def __init__(self, *, target: Any) -> None:
        """Called once for a target, before anything is measured."""
        self.target = target

    def generate(self, prompt_ids: list[int], *, max_new_tokens: int, eos_token_ids: list[int]) -> list[int]:
        """Returns the new tokens of an answer."""
        ids = torch.tensor([prompt_ids], device=self.target.device)
        ends = {"eos_token_id": eos_token_ids} if eos_token_ids else {}
        made = self.target.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=0,
            **ends,
        )  # fmt: skip
        answer: list[int] = made[0, len(prompt_ids) :].tolist()
        return answer
