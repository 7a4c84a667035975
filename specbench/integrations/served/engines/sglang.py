"""SGLang: its own path /generate; events have ids and a histogram of accepted draft tokens."""

from collections.abc import Sequence
from typing import Any, ClassVar

from specbench.core.registry import ENGINES
from specbench.decoding.sampling import Sampling
from specbench.integrations.served.acceptance import Acceptance, from_histogram_or_totals
from specbench.integrations.served.engine import (
    Engine,
    Event,
    EventContent,
    LogProbs,
    Page,
    json_mapping,
    read_generate_event,
)


@ENGINES.register("sglang")
class SGLang(Engine):
    """A server of SGLang."""

    name = "sglang"
    path = "/generate"
    tokenize_path = "/tokenize"
    counter_names: ClassVar = {"num_running": ("sglang:num_running_reqs", "sglang:num_queue_reqs")}
    learning_methods = frozenset({"NGRAM", "ngram"})
    remedy = "this version does not report spec_verify_ct"

    def version(self, page: Page) -> str | None:
        found = self._info(page)
        return str(found["version"]) if "version" in found and "internal_states" in found else None

    def settings(self, page: Page) -> dict[str, Any]:
        """Returns the settings that change the server's capacity or its scheduling."""
        names = (
            "model_path", "dtype", "kv_cache_dtype", "context_length", "max_running_requests", "max_total_num_tokens",
            "mem_fraction_static", "disable_radix_cache", "disable_overlap_schedule", "attention_backend", "tp_size",
            "speculative_accept_threshold_single", "speculative_accept_threshold_acc",
        )  # fmt: skip
        found = self._info(page)
        return {name: found[name] for name in names if name in found}

    def speculates(self, page: Page) -> bool | None:
        found = self._info(page)
        return found["speculative_algorithm"] is not None if "speculative_algorithm" in found else None

    def _info(self, page: Page) -> dict[str, Any]:
        return json_mapping(page, "/server_info") or json_mapping(page, "/get_server_info")

    def request(
        self, prompt_ids: list[int], sampling: Sampling, max_new_tokens: int, seed: int, stop: Sequence[str], model: str
    ) -> dict[str, Any]:
        drawn = {"top_k": sampling.top_k or -1, "top_p": sampling.top_p or 1.0, "sampling_seed": seed % 2**31}
        parameters = {
            "temperature": sampling.temperature, "max_new_tokens": max_new_tokens, "no_stop_trim": True, **drawn,
            "repetition_penalty": 1.0,  # the default is the one in the model's generation config
            **({"stop": list(stop)} if stop else {}),
        }  # fmt: skip
        return {"input_ids": prompt_ids, "sampling_params": parameters, "stream": True}

    def scoring_request(self, prompt_ids: list[int], num_tokens: int, model: str) -> dict[str, Any]:
        parameters = {"temperature": 0.0, "max_new_tokens": num_tokens, "repetition_penalty": 1.0}
        return {
            "input_ids": prompt_ids, "sampling_params": parameters, "return_logprob": True,
            "top_logprobs_num": self.num_logprobs,
        }  # fmt: skip

    def log_probs(self, answer: Event) -> list[LogProbs]:
        rows = answer["meta_info"]["output_top_logprobs"]
        return [{int(token): float(value) for value, token, *_ in row} for row in rows]

    def read(self, event: Event, num_before: int) -> EventContent:
        """Returns the content of an event. `output_ids` holds all ids so far, or with incremental streaming the new
        ones."""
        ids = event.get("output_ids") or []
        num_new = (event.get("meta_info") or {}).get("completion_tokens")
        return read_generate_event(event, ids[num_before:] if len(ids) == num_new else ids)

    def acceptance(self, events: Sequence[Event], num_draft_tokens: int) -> Acceptance | None:
        """Returns the acceptance by the histogram, or by the sums, which have no steps."""
        told: Event = next((event["meta_info"] for event in reversed(events) if event.get("meta_info")), {})
        num_passes, counts = told.get("spec_verify_ct"), told.get("spec_correct_drafts_histogram")
        drafted, accepted = told.get("spec_num_proposed_drafts"), told.get("spec_num_correct_drafts")
        if not num_passes or drafted is None or accepted is None:
            return None
        return from_histogram_or_totals(counts, num_passes, drafted, accepted, num_draft_tokens)
