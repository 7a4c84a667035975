"""llama.cpp: its own path /completion; every event has ids and the counts so far."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import Any, ClassVar

from specbench.core.registry import ENGINES
from specbench.decoding.sampling import Sampling
from specbench.integrations.served.acceptance import Acceptance, from_passes, passes_of_event
from specbench.integrations.served.engine import (
    Engine,
    Event,
    EventContent,
    LogProbs,
    Page,
    json_mapping,
    json_page,
    vllm_counter_names,
)
from specbench.integrations.served.held import MAX_HELD, starts_character

FINISH = {"eos": "eos", "limit": "length", "word": "stop"}


@ENGINES.register("llama.cpp")
class LlamaCpp(Engine):
    """A server of llama.cpp, which sends one event per token."""

    name = "llama.cpp"
    path = "/completion"
    tokenize_path = "/tokenize"
    counter_names: ClassVar = vllm_counter_names("llamacpp", "requests_processing", "requests_deferred")
    learning_methods = frozenset({"ngram-mod", "ngram-cache"})
    reports_at_end = False

    def version(self, page: Page) -> str | None:
        build = json_mapping(page, "/props").get("build_info")
        return None if build is None else str(build)

    def settings(self, page: Page) -> dict[str, Any]:
        """Returns the model's file, type and context. /props does not report the speculation."""
        found = json_mapping(page, "/props")
        return {
            "model": PurePath(found.get("model_path", "")).name, "type": found.get("model_ftype"),
            "slots": found.get("total_slots"), "context": found.get("default_generation_settings", {}).get("n_ctx"),
        }  # fmt: skip

    def speculates(self, page: Page) -> bool | None:
        slots = json_page(page, "/slots")
        told = [slot.get("speculative") for slot in slots] if isinstance(slots, list) else []
        return None if not told or None in told else any(told)

    def request(
        self, prompt_ids: list[int], sampling: Sampling, max_new_tokens: int, seed: int, stop: Sequence[str], model: str
    ) -> dict[str, Any]:
        """Returns the body, with all samplers but top-k and top-p switched off. It has no stop strings, for which the
        server would hold tokens back, and MAX_HELD more tokens, which the last character may need."""
        return {
            "prompt": prompt_ids, "n_predict": max_new_tokens + MAX_HELD, "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0, "top_p": sampling.top_p or 1.0, "min_p": 0.0, "seed": seed % 2**31,
            "cache_prompt": False, "return_tokens": True, "timings_per_token": True, "stream": True,
        }  # fmt: skip

    def scoring_request(self, prompt_ids: list[int], num_tokens: int, model: str) -> dict[str, Any]:
        """Returns the body. A token that ends within a character has no row. A single token is therefore forced to be a
        letter, which does not change the reported probabilities."""
        forced = [["a", 100.0]] if num_tokens == 1 else []
        own = {"n_predict": num_tokens, "n_probs": self.num_logprobs, "logit_bias": forced, "cache_prompt": False}
        return {"prompt": prompt_ids, "temperature": 0.0, **own}

    def log_probs(self, answer: Event) -> list[LogProbs]:
        """Returns the rows before the first token that continues a character, since some rows before it are missing."""
        rows = takewhile(lambda row: starts_character(row["bytes"]), answer.get("completion_probabilities", ()))
        return [{int(each["id"]): float(each["logprob"]) for each in row["top_logprobs"]} for row in rows]

    def read(self, event: Event, num_before: int) -> EventContent:
        times, ids = event.get("timings") or {}, tuple(event.get("tokens") or ())
        has_ended, num_new = bool(event.get("stop")), event.get("tokens_predicted")
        prompt, decode = times.get("prompt_ms", 0.0) / 1000, times.get("predicted_ms", 0.0) / 1000
        return EventContent(
            token_ids=ids, text=event.get("content") or "",
            finish=FINISH.get(str(event.get("stop_type")), "stop") if has_ended else None,
            num_prompt_tokens=event.get("tokens_evaluated"), num_new_tokens=num_new if has_ended else None,
            num_cached=times.get("cache_n"), seconds=prompt + decode if times else None,
            decode_seconds=decode if times else None,
            num_held=num_new - num_before - len(ids) if ids and num_new is not None else 0,
        )  # fmt: skip

    def all_ids(self, answer: Event) -> tuple[int, ...]:
        return tuple(answer.get("tokens") or ())

    def acceptance(self, events: Sequence[Event], num_draft_tokens: int) -> Acceptance | None:
        """Returns the passes: one for each change of the sums, and one for each token without a change."""
        passes: list[tuple[int, int]] = []
        num_emitted, drafted, accepted = 1, 0, 0  # the prefill emits the first one
        for event in (event for event in events if event.get("tokens")):
            times = event.get("timings")
            if times is None or "tokens_predicted" not in event:
                return None
            num_fresh = int(event["tokens_predicted"]) - num_emitted
            if num_fresh > 0:
                sums = int(times.get("draft_n", 0)), int(times.get("draft_n_accepted", 0))
                passes += passes_of_event(num_fresh, sums[0] - drafted, sums[1] - accepted, num_draft_tokens)
                num_emitted, (drafted, accepted) = 1 + sum(number + 1 for _, number in passes), sums
        return from_passes(passes)
