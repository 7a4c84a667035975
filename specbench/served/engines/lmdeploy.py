"""LMDeploy: its own path /generate with ids; acceptance is told by the counters of the server only."""

from collections.abc import Sequence
from typing import Any, ClassVar

from specbench.core.registry import ENGINES
from specbench.decoding.sampling import Sampling
from specbench.served.engine import Engine, Event, Page, Piece, json_page


@ENGINES.register("lmdeploy")
class LmDeploy(Engine):
    """A server of LMDeploy's PyTorch back end."""

    name = "lmdeploy"
    path = "/generate"
    counter_names: ClassVar = {
        "num_drafts": ("lmdeploy:spec_decode_num_drafts_total", "lmdeploy:spec_decode_num_drafts"),
        "num_drafted": ("lmdeploy:spec_decode_num_draft_tokens_total", "lmdeploy:spec_decode_num_draft_tokens"),
        "num_accepted": (
            "lmdeploy:spec_decode_num_accepted_tokens_total", "lmdeploy:spec_decode_num_accepted_tokens",
        ),
        "per_position": ("lmdeploy:spec_decode_num_accepted_tokens_per_pos_total",),
        "num_running": ("lmdeploy:num_requests_running", "lmdeploy:num_requests_waiting"),
    }  # fmt: skip
    remedy = "start it with --enable-metrics"

    def version(self, page: Page) -> str | None:
        models = json_page(page, "/v1/models")
        is_own = isinstance(models, dict) and any(each.get("owned_by") == "lmdeploy" for each in models.get("data", ()))
        return "of unknown version" if is_own else None

    def request(
        self, prompt_ids: list[int], sampling: Sampling, max_new_tokens: int, seed: int, stop: Sequence[str], model: str
    ) -> dict[str, Any]:
        """Returns the body. Greedy decoding is top_k 1 there, and there is no seed."""
        top_k = 1 if sampling.greedy else sampling.top_k or 0
        return {
            "input_ids": prompt_ids, "max_tokens": max_new_tokens, "temperature": sampling.temperature or 1.0,
            "top_k": top_k, "top_p": sampling.top_p or 1.0, "stream": True,
            **({"stop": list(stop), "include_stop_str_in_output": True} if stop else {}),
        }  # fmt: skip

    def read(self, event: Event, num_before: int) -> Piece:
        told = event.get("meta_info") or {}
        reason = told.get("finish_reason")
        return Piece(
            token_ids=tuple(event.get("output_ids") or ()), text=event.get("text") or "",
            finish=None if reason is None else str(reason.get("type") if isinstance(reason, dict) else reason),
            num_prompt_tokens=told.get("prompt_tokens"),
            num_new_tokens=told.get("completion_tokens") if reason else None,
        )  # fmt: skip
