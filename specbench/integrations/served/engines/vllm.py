"""vLLM: each event has the ids of a pass; the counts of an answer come with its last event."""

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from specbench.core import dotted
from specbench.core.registry import ENGINES
from specbench.decoding.sampling import Sampling
from specbench.integrations.served.acceptance import Acceptance, from_histogram, from_passes
from specbench.integrations.served.engine import (
    SAMPLE,
    Engine,
    Event,
    LogProbs,
    Page,
    is_owned_by,
    json_mapping,
    models_of,
    vllm_counter_names,
)

TOKEN = "token_id:"  # prefix of a token that is given by its id
SECTIONS = ("model_config", "cache_config", "parallel_config", "scheduler_config")  # keys of /server_info
LABEL = re.compile(r'(\w+)="([^"]*)"')
OF_ONE_START = re.compile(r"blocks$|size_tokens$|concurrency$|_port|_ip$|instance|\.(engine|model_name|hf_\w+)\b")


@ENGINES.register("vllm")
class Vllm(Engine):
    """A server of vLLM."""

    name = "vllm"
    tokenize_path = "/tokenize"
    max_stops = 4
    counter_names: ClassVar = vllm_counter_names("vllm", "num_requests_running", "num_requests_waiting")
    learning_methods = frozenset({"suffix"})
    remedy = "start it with --per-request-spec-decode-metrics detailed"

    def version(self, page: Page) -> str | None:
        version = json_mapping(page, "/version").get("version") if is_owned_by(page, "vllm") else None
        return None if version is None else str(version)

    def settings(self, page: Page) -> dict[str, Any]:
        """Returns the model and its context, the settings of the cache from /metrics, and in development mode the
        settings of /server_info. Numbers that a restart may change, such as the number of blocks, are left out."""
        model = next(iter(models_of(page)), {})
        config = json_mapping(page, "/server_info?config_format=json").get("vllm_config")
        sections = {name: config.get(name) for name in SECTIONS} if isinstance(config, dict) else {}
        labels = dict(pair for name, text, _ in SAMPLE.findall(page("/metrics") or "")
                      if name == "vllm:cache_config_info" for pair in LABEL.findall(text))  # fmt: skip
        told = dotted.flat({name: each for name, each in sections.items() if each is not None})
        told |= {f"cache.{name}": value for name, value in labels.items()}
        return {
            "model": model.get("root") or model.get("id"), "context": model.get("max_model_len"),
            **{name: value for name, value in told.items() if not OF_ONE_START.search(name)},
        }  # fmt: skip

    def request(
        self, prompt_ids: list[int], sampling: Sampling, max_new_tokens: int, seed: int, stop: Sequence[str], model: str
    ) -> dict[str, Any]:
        """Returns the body. Without a repetition penalty, vLLM would use the one in the model's generation config."""
        body = super().request(prompt_ids, sampling, max_new_tokens, seed, stop, model)
        own = {"return_token_ids": True, "top_k": sampling.top_k or 0, "include_stop_str_in_output": True}
        return {**body, **own, "repetition_penalty": 1.0}

    def scoring_request(self, prompt_ids: list[int], num_tokens: int, model: str) -> dict[str, Any]:
        own = {"logprobs": self.num_logprobs, "return_tokens_as_token_ids": True, "repetition_penalty": 1.0}
        return {"model": model, "prompt": prompt_ids, "max_tokens": num_tokens, "temperature": 0.0, **own}

    def log_probs(self, answer: Event) -> list[LogProbs]:
        rows = answer["choices"][0]["logprobs"]["top_logprobs"]
        return [{int(token.removeprefix(TOKEN)): float(value) for token, value in row.items()} for row in rows]

    def acceptance(self, events: Sequence[Event], num_draft_tokens: int) -> Acceptance | None:
        """Returns the acceptance by the steps, which `detailed` metrics have, else by the histogram; None if the sums
        contradict them."""
        told: Event = next((event["metrics"] for event in reversed(events) if event.get("metrics")), {})
        found = told.get("speculative_decoding")
        if not found:
            return None
        if found.get("per_step_accepted") is not None and found.get("per_step_drafted") is not None:
            drafted, accepted = found["per_step_drafted"], found["per_step_accepted"]
            if len(drafted) != len(accepted):
                return None
            acceptance = from_passes(list(zip(drafted, accepted, strict=True)))
        else:
            counts = found["acceptance_histogram"]
            acceptance = from_histogram(counts, found["num_draft_tokens"], num_draft_tokens)
        sums = acceptance.num_drafted, acceptance.num_accepted
        is_sound = sums == (found["num_draft_tokens"], found["num_accepted_draft_tokens"])
        return acceptance if is_sound else None
