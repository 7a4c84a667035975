"""TensorRT-LLM: `trtllm-serve` reports the counts of an answer in its last choice."""

from collections.abc import Sequence
from typing import Any, ClassVar

from specbench.core.registry import ENGINES
from specbench.decoding.sampling import Sampling
from specbench.integrations.served.acceptance import Acceptance, from_histogram_or_totals
from specbench.integrations.served.engine import Engine, Event, Page, is_owned_by, json_mapping


@ENGINES.register("tensorrt-llm")
class TensorRtLlm(Engine):
    """A server of TensorRT-LLM. Reading /metrics empties it, so the counters come from the page for Prometheus."""

    name = "tensorrt-llm"
    metrics_path = "/prometheus/metrics"
    counter_names: ClassVar = {
        "num_drafted": ("trtllm_spec_decode_num_draft_tokens_total",),
        "num_accepted": ("trtllm_spec_decode_num_accepted_tokens_total",),
        "per_position": ("trtllm_spec_decode_accepted_tokens_total",),
        "num_running": ("trtllm_num_requests_running", "trtllm_num_requests_waiting"),
    }  # fmt: skip
    remedy = "start it with return_perf_metrics: true"

    def version(self, page: Page) -> str | None:
        version = json_mapping(page, "/version").get("version") if is_owned_by(page, "tensorrt") else None
        return None if version is None else str(version)

    def request(
        self, prompt_ids: list[int], sampling: Sampling, max_new_tokens: int, seed: int, stop: Sequence[str], model: str
    ) -> dict[str, Any]:
        body = super().request(prompt_ids, sampling, max_new_tokens, seed, stop, model)
        own = {"detokenize": False, "top_k": sampling.top_k or 0, "include_stop_str_in_output": True}
        return {**body, **own}  # without detokenization the choices have ids

    def acceptance(self, events: Sequence[Event], num_draft_tokens: int) -> Acceptance | None:
        """Returns the acceptance by the histogram, or by the sums, which have no steps."""
        choices = [choice for event in events for choice in event.get("choices") or ()]
        found = next(
            (each["speculative_decoding"] for each in reversed(choices) if each.get("speculative_decoding")), None
        )
        if found is None:
            return None
        return from_histogram_or_totals(
            found.get("acceptance_histogram"), found["num_spec_steps"], found["total_draft_tokens"],
            found["total_accepted_draft_tokens"], num_draft_tokens,
        )  # fmt: skip
