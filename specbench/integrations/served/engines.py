"""The serving engines: llama.cpp, vLLM, SGLang, TensorRT-LLM, LMDeploy, and any other with OpenAI's completions."""

import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import ClassVar

from specbench.core import dotted
from specbench.core.registry import ENGINES
from specbench.decoding.sampling import Sampling
from specbench.integrations.served.acceptance import (
    Acceptance,
    Impossible,
    from_histogram,
    from_passes,
    passes_of_event,
    read_count,
    read_counts,
    read_seconds,
    with_sums,
)
from specbench.integrations.served.engine import (
    MAX_HELD,
    SAMPLE,
    Body,
    Engine,
    Event,
    EventContent,
    LogProbs,
    Page,
    Settings,
    is_owned_by,
    json_mapping,
    json_page,
    models_of,
    read_generate_event,
    version_if_owned,
    vllm_counter_names,
)
from specbench.models.vocabulary import continues_character

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

    def settings(self, page: Page) -> Settings:
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
    ) -> Body:
        """Returns the body, with all samplers but top-k and top-p switched off. It has no stop strings, for which the
        server would hold tokens back, and MAX_HELD more tokens, which the last character may need."""
        return {
            "prompt": prompt_ids, "n_predict": max_new_tokens + MAX_HELD, "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0, "top_p": sampling.top_p or 1.0, "min_p": 0.0, "seed": seed % 2**31,
            "cache_prompt": False, "return_tokens": True, "timings_per_token": True, "stream": True,
        }  # fmt: skip

    def scoring_request(self, prompt_ids: list[int], num_tokens: int, model: str) -> Body:
        """Returns the body. A token that ends within a character has no row. A single token is therefore forced to be a
        letter, which does not change the reported probabilities."""
        forced = [["a", 100.0]] if num_tokens == 1 else []
        own = {"n_predict": num_tokens, "n_probs": self.num_logprobs, "logit_bias": forced, "cache_prompt": False}
        return {"prompt": prompt_ids, "temperature": 0.0, **own}

    def log_probs(self, answer: Event) -> list[LogProbs]:
        """Returns the rows before the first token that continues a character, since some rows before it are missing."""
        rows = answer.get("completion_probabilities", ())
        rows = takewhile(lambda row: not continues_character(row["bytes"]), rows)
        return [{int(each["id"]): float(each["logprob"]) for each in row["top_logprobs"]} for row in rows]

    def read(self, event: Event, num_before: int) -> EventContent:
        times = event.get("timings") or {}
        ids = tuple(event.get("tokens") or ())
        has_ended = bool(event.get("stop"))
        num_new = event.get("tokens_predicted")
        prompt, decode, problem = 0.0, 0.0, None
        try:
            prompt, decode = read_seconds(times, "prompt_ms", 1e-3), read_seconds(times, "predicted_ms", 1e-3)
        except Impossible as error:
            problem = str(error)
        has_times = bool(times) and problem is None
        return EventContent(
            token_ids=ids, text=event.get("content") or "",
            finish=FINISH.get(str(event.get("stop_type")), "stop") if has_ended else None,
            num_prompt_tokens=event.get("tokens_evaluated"), num_new_tokens=num_new if has_ended else None,
            num_cached=times.get("cache_n"), seconds=prompt + decode if has_times else None,
            decode_seconds=decode if has_times else None, impossible_time=problem,
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
            num_fresh = read_count(event, "tokens_predicted") - num_emitted
            if num_fresh > 0:
                sums = read_count(times, "draft_n", 0), read_count(times, "draft_n_accepted", 0)
                new = passes_of_event(num_fresh, sums[0] - drafted, sums[1] - accepted, num_draft_tokens)
                passes += new
                num_emitted += sum(number + 1 for _, number in new)
                drafted, accepted = sums
        return from_passes(passes)


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
        return version_if_owned(page, "vllm")

    def settings(self, page: Page) -> Settings:
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
    ) -> Body:
        """Returns the body. vLLM would take values that are absent from the model's generation config."""
        body = super().request(prompt_ids, sampling, max_new_tokens, seed, stop, model)
        own = {"return_token_ids": True, "top_k": sampling.top_k or 0, "include_stop_str_in_output": True}
        return {**body, **own, "repetition_penalty": 1.0, "min_p": 0.0}

    def scoring_request(self, prompt_ids: list[int], num_tokens: int, model: str) -> Body:
        own = {"logprobs": self.num_logprobs, "return_tokens_as_token_ids": True, "repetition_penalty": 1.0}
        return {"model": model, "prompt": prompt_ids, "max_tokens": num_tokens, "temperature": 0.0, **own}

    def log_probs(self, answer: Event) -> list[LogProbs]:
        rows = answer["choices"][0]["logprobs"]["top_logprobs"]
        return [{int(token.removeprefix(TOKEN)): float(value) for token, value in row.items()} for row in rows]

    def acceptance(self, events: Sequence[Event], num_draft_tokens: int) -> Acceptance | None:
        """Returns the acceptance by the steps, else by the histogram."""
        told: Event = next((event["metrics"] for event in reversed(events) if event.get("metrics")), {})
        found = told.get("speculative_decoding")
        if not found:
            return None
        sums = read_count(found, "num_draft_tokens"), read_count(found, "num_accepted_draft_tokens")
        if found.get("per_step_accepted") is not None and found.get("per_step_drafted") is not None:
            drafted, accepted = read_counts(found, "per_step_drafted"), read_counts(found, "per_step_accepted")
            if len(drafted) != len(accepted):
                raise Impossible(f"{len(drafted)} numbers in per_step_drafted, {len(accepted)} in per_step_accepted")
            return with_sums(from_passes(list(zip(drafted, accepted, strict=True))), *sums)
        return from_histogram(read_counts(found, "acceptance_histogram"), None, *sums, num_draft_tokens)


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

    def settings(self, page: Page) -> Settings:
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

    def _info(self, page: Page) -> Event:
        return json_mapping(page, "/server_info") or json_mapping(page, "/get_server_info")

    def request(
        self, prompt_ids: list[int], sampling: Sampling, max_new_tokens: int, seed: int, stop: Sequence[str], model: str
    ) -> Body:
        drawn = {"top_k": sampling.top_k or -1, "top_p": sampling.top_p or 1.0, "sampling_seed": seed % 2**31}
        parameters = {
            "temperature": sampling.temperature, "max_new_tokens": max_new_tokens, "no_stop_trim": True, **drawn,
            "repetition_penalty": 1.0,  # the default is the one in the model's generation config
            **({"stop": list(stop)} if stop else {}),
        }  # fmt: skip
        return {"input_ids": prompt_ids, "sampling_params": parameters, "stream": True}

    def scoring_request(self, prompt_ids: list[int], num_tokens: int, model: str) -> Body:
        parameters = {"temperature": 0.0, "max_new_tokens": num_tokens, "repetition_penalty": 1.0}
        return {
            "input_ids": prompt_ids, "sampling_params": parameters, "return_logprob": True,
            "top_logprobs_num": self.num_logprobs,
        }  # fmt: skip

    def log_probs(self, answer: Event) -> list[LogProbs]:
        rows = answer["meta_info"]["output_top_logprobs"]
        return [{int(token): float(value) for value, token, *_ in row} for row in rows]

    def read(self, event: Event, num_before: int) -> EventContent:
        """Returns the content of an event, whose `output_ids` are all ids so far, or the new ones."""
        ids = event.get("output_ids") or []
        num_new = (event.get("meta_info") or {}).get("completion_tokens")
        return read_generate_event(event, ids[num_before:] if len(ids) == num_new else ids)

    def acceptance(self, events: Sequence[Event], num_draft_tokens: int) -> Acceptance | None:
        """Returns the acceptance by the histogram, or by the sums, which have no steps."""
        told: Event = next((event["meta_info"] for event in reversed(events) if event.get("meta_info")), {})
        names = ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts")
        if told.get(names[0]) in (None, 0) or None in (told.get(names[1]), told.get(names[2])):
            return None
        histogram = "spec_correct_drafts_histogram"
        counts = None if told.get(histogram) is None else read_counts(told, histogram)
        num_passes, num_drafted, num_accepted = (read_count(told, name) for name in names)
        return from_histogram(counts, num_passes, num_drafted, num_accepted, num_draft_tokens)


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
        return version_if_owned(page, "tensorrt")

    def request(
        self, prompt_ids: list[int], sampling: Sampling, max_new_tokens: int, seed: int, stop: Sequence[str], model: str
    ) -> Body:
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
        counts = None if found.get("acceptance_histogram") is None else read_counts(found, "acceptance_histogram")
        names = ("num_spec_steps", "total_draft_tokens", "total_accepted_draft_tokens")
        num_passes, num_drafted, num_accepted = (read_count(found, name) for name in names)
        return from_histogram(counts, num_passes, num_drafted, num_accepted, num_draft_tokens)


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
    ) -> Body:
        """Returns the body. LMDeploy decodes greedily with top_k 1, and has no seed."""
        top_k = 1 if sampling.greedy else sampling.top_k or 0
        return {
            "input_ids": prompt_ids, "max_tokens": max_new_tokens, "temperature": sampling.temperature or 1.0,
            "top_k": top_k, "top_p": sampling.top_p or 1.0, "stream": True,
            **({"stop": list(stop), "include_stop_str_in_output": True} if stop else {}),
        }  # fmt: skip

    def read(self, event: Event, num_before: int) -> EventContent:
        return read_generate_event(event, event.get("output_ids") or ())


@ENGINES.register("openai")
class OpenAiCompatible(Engine):
    """A server of an unknown engine. If its events have no ids, answers are tokenized here."""

    name = "openai"
    max_stops = 4
    takes_top_k = False


@ENGINES.register("openai-chat")
class OpenAiChat(OpenAiCompatible):
    """Chat completions of a server of any engine, which puts the prompt into its own chat template and may send its
    reasoning in a field of its own. Only a servers file that names it gets it. Acceptance is not read."""

    name = "openai-chat"
    path = "/v1/chat/completions"
    sends_text = True
    remedy = "chat completions tell times only: measure acceptance with engine: auto, by completions of token ids"

    def request(
        self, prompt_ids: list[int], sampling: Sampling, max_new_tokens: int, seed: int, stop: Sequence[str], model: str
    ) -> Body:
        """Returns the body without a prompt: the decoder adds its text as `messages`."""
        body = super().request(prompt_ids, sampling, max_new_tokens, seed, stop, model)
        return {name: value for name, value in body.items() if name != "prompt"}

    def read(self, event: Event, num_before: int) -> EventContent:
        """Returns the content of an event, whose new text is the content or the reasoning of its `delta`."""
        choices = event.get("choices") or ()
        flat = [{**choice, **(choice.get("delta") or {})} for choice in choices]
        return super().read({**event, "choices": [{**each, "text": each.get("content")} for each in flat]}, num_before)
