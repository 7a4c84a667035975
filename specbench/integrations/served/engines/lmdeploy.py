"""LMDeploy: its own path /generate with ids; only the counters of the server report acceptance."""

from collections.abc import Sequence
from typing import Any, ClassVar

from specbench.core.registry import ENGINES
from specbench.decoding.sampling import Sampling
from specbench.integrations.served.engine import (
    Engine,
    Event,
    EventContent,
    Page,
    is_owned_by,
    read_generate_event,
    vllm_counter_names,
)


@ENGINES.register("lmdeploy")
class LmDeploy(Engine):
    """A server of LMDeploy's PyTorch back end."""

    name = "lmdeploy"
    path = "/generate"
    counter_names: ClassVar = vllm_counter_names("lmdeploy", "num_requests_running", "num_requests_waiting")
    remedy = "start it with --enable-metrics"

    def version(self, page: Page) -> str | None:
        return "of unknown version" if is_owned_by(page, "lmdeploy") else None

    def request(
        self, prompt_ids: list[int], sampling: Sampling, max_new_tokens: int, seed: int, stop: Sequence[str], model: str
    ) -> dict[str, Any]:
        """Returns the body. LMDeploy decodes greedily with top_k 1, and has no seed."""
        top_k = 1 if sampling.greedy else sampling.top_k or 0
        return {
            "input_ids": prompt_ids, "max_tokens": max_new_tokens, "temperature": sampling.temperature or 1.0,
            "top_k": top_k, "top_p": sampling.top_p or 1.0, "stream": True,
            **({"stop": list(stop), "include_stop_str_in_output": True} if stop else {}),
        }  # fmt: skip

    def read(self, event: Event, num_before: int) -> EventContent:
        return read_generate_event(event, event.get("output_ids") or ())
