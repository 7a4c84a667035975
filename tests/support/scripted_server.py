"""A server that answers as a script says, in the shapes of several engines, and lies where a test wants it to. It
imports neither torch nor transformers, as some tests start it in processes of its own."""

import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from specbench.core.environment import PACKAGE

TOKENIZER = Tokenizer.from_file(str(PACKAGE / "embedded" / "weights" / "target" / "tokenizer.json"))
EOS = 0
ANSWER = (*TOKENIZER.encode(" We add 2 and 3. 2 + 3 = 5. The answer is 5.").ids, EOS)
AR: tuple[tuple[int, int], ...] = ()  # the passes of a server without speculation
VERSION = "1.2.3"
LATE = 15


def passes_for(num_tokens: int, accepted: Sequence[int], num_draft_tokens: int) -> tuple[tuple[int, int], ...]:
    """Returns passes that emit all tokens but the first, whose accepted tokens repeat a pattern."""
    found: list[tuple[int, int]] = []
    while (left := num_tokens - 1 - sum(number + 1 for _, number in found)) > 0:
        found.append((num_draft_tokens, min(accepted[len(found) % len(accepted)], left - 1)))
    return tuple(found)


SD = passes_for(len(ANSWER), (3, 1, 0, 2), 3)


@dataclass
class Script:
    """The engine whose shapes are sent, the passes of an answer, and the lies.

    `tells`: whether requests tell acceptance. `counts`: whether the page of metrics does. `cut_after`, `fail_after`:
    the number of events after which the connection or the answer ends. `extra_usage`: added to the number of new tokens
    of the usage. `falls`: the counters begin anew with every answer. `summary`: the histogram only. `unstable`: no
    answer is the one before it. `skips`: steps without a draft are in no count, as vLLM's n-grams. `is_known`: whether
    the server tells how it cuts texts and how many requests run. `told_time`: the share of its time that llama.cpp
    tells; `timings`: what it tells in the place of other timings. `finish`: the reason with which an OpenAI-compatible
    server ends an answer. `pages`: further pages by path. `model`: the probabilities of the next token after a
    sequence, from which answers are drawn with the temperature and the seed of a request, `late_model`: the same from
    the 17th token of an answer on; `tells_log_probs`: whether it tells them too, and `writes`: those that it tells
    after its own tokens.
    """

    engine: str
    passes: tuple[tuple[int, int], ...] = AR
    answer: tuple[int, ...] = ANSWER
    tells: bool = True
    counts: bool = True
    summary: bool = False
    merges: int = 1
    delay_seconds: float = 0.0
    cut_after: int | None = None
    fail_after: int | None = None
    status: int = 200
    banner: bytes = b""  # in the place of answers
    extra_usage: int = 0
    read_prompt: int = 0  # added to the number of prompt tokens
    num_cached: int | None = 0
    falls: bool = False
    unstable: bool = False
    skips: bool = False
    is_known: bool = True
    told_time: float = 0.0
    finish: str = "stop"
    pages: dict[str, Any] = field(default_factory=dict)
    wrong_tokenizer: bool = False
    overstated: int = 0  # added to the sums, and to no part
    timings: dict[str, Any] = field(default_factory=dict)
    num_running: int = 0
    form: Any = None  # the second event, whatever it is; a text is sent as it is
    settings: dict[str, Any] = field(default_factory=dict)
    model: Callable[[Sequence[int]], Mapping[int, float]] | None = None
    late_model: Callable[[Sequence[int]], Mapping[int, float]] | None = None
    tells_log_probs: bool = True
    writes: Callable[[Sequence[int]], Mapping[int, float]] | None = None
    key: str | None = None  # that requests must send
    reasoning: tuple[int, ...] = ()  # of chat completions, before the answer
    pause_seconds: float = 0.0  # of chat completions, before the first token of the answer
    num_answers: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)

    def parts(self) -> list[tuple[int, ...]]:
        """Returns the tokens of the events: one event per pass, several passes merged into one by a slow reader."""
        ids, found = list(self.answer), [1, *(accepted + 1 for _, accepted in self.passes)]
        if not self.passes:
            found = [1] * len(ids)
        found = [sum(found[at : at + self.merges]) for at in range(0, len(found), self.merges)]
        starts = [sum(found[:number]) for number in range(len(found) + 1)]
        return [tuple(ids[first:last]) for first, last in pairwise(starts) if ids[first:last]]

    def drawn(self, request: Mapping[str, Any]) -> "Script":
        """Returns the script with an answer that `model` draws; drafts are accepted as in `passes`."""
        if self.model is None:
            return self
        generator, ids = random.Random(request["seed"]), list(request["prompt"])
        for number in range(request["max_tokens"]):
            model = self.late_model if self.late_model is not None and number > LATE else self.model
            probs, temperature = model(ids), request["temperature"]
            weights = [p ** (1 / temperature) for p in probs.values()] if temperature else [1.0]
            ids.append(generator.choices(list(probs), weights)[0] if temperature else max(probs, key=probs.__getitem__))
            if ids[-1] == EOS:
                break
        answer = tuple(ids[len(request["prompt"]) :])
        pattern = [accepted for _, accepted in self.passes]
        return replace(self, answer=answer, passes=passes_for(len(answer), pattern, 3) if pattern else AR)

    def log_probs(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns vLLM's answer to a request for the log-probabilities of greedy tokens."""
        assert self.model is not None
        ids, rows = list(request["prompt"]), []
        for _ in range(request["max_tokens"]):
            probs = (self.writes or self.model)(ids) if rows else self.model(ids)
            ids.append(max(probs, key=probs.__getitem__))
            rows.append({f"token_id:{token}": math.log(p) for token, p in probs.items()})
        return {"choices": [{"logprobs": {"top_logprobs": rows}}]}

    @property
    def counted(self) -> tuple[tuple[int, int], ...]:
        """The passes that the server counts."""
        return tuple(each for each in self.passes if each[0] or not self.skips)

    @property
    def sums(self) -> tuple[int, int]:
        """The drafted and the accepted tokens of an answer."""
        return sum(d for d, _ in self.passes) + self.overstated, sum(a for _, a in self.passes)

    @property
    def histogram(self) -> list[int]:
        """Element a: the passes that accepted a draft tokens."""
        most = max((d for d, _ in self.passes), default=0)
        return [sum(a == number for _, a in self.counted) for number in range(most + 1)]


def openai_events(script: Script, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields events of /v1/completions; the usage comes in an event of its own."""
    parts = script.parts()
    with_ids = {"vllm": request.get("return_token_ids"), "tensorrt-llm": request.get("detokenize") is False}
    for number, ids in enumerate(parts):
        is_last = number == len(parts) - 1
        choice: dict[str, Any] = {
            "index": 0, "text": TOKENIZER.decode(ids),
            "finish_reason": script.finish if is_last else None,
        }  # fmt: skip
        if with_ids.get(script.engine):
            choice["token_ids"] = list(ids)
        if is_last and script.engine == "tensorrt-llm" and script.tells and script.passes:
            drafted, accepted = script.sums
            choice["speculative_decoding"] = {
                "acceptance_histogram": script.histogram, "num_spec_steps": len(script.passes),
                "total_draft_tokens": drafted, "total_accepted_draft_tokens": accepted,
            }  # fmt: skip
        yield {"choices": [choice]}
    prompt, cached = request["prompt"], script.num_cached
    usage: dict[str, Any] = {
        "prompt_tokens": len(prompt) + script.read_prompt, "completion_tokens": len(script.answer) + script.extra_usage,
    }  # fmt: skip
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    last: dict[str, Any] = {"choices": [], "usage": usage}
    if script.engine == "vllm" and script.tells and script.passes:
        last["metrics"] = {"speculative_decoding": vllm_metrics(script)}
    yield last


def chat_events(script: Script, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields events of /v1/chat/completions: the role, the reasoning in a field of its own, the answer, the usage."""
    assert "prompt" not in request and request["messages"][0]["role"] == "user"
    deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": TOKENIZER.decode([token])} for token in script.reasoning]
    deltas += [{"content": TOKENIZER.decode([token])} for token in script.answer if token != EOS]
    for number, delta in enumerate(deltas):
        if number == len(script.reasoning) + 1:
            time.sleep(script.pause_seconds)
        last = number == len(deltas) - 1
        yield {"choices": [{"index": 0, "delta": delta, "finish_reason": script.finish if last else None}]}
    used = {"prompt_tokens": 99, "completion_tokens": len(script.reasoning) + len(script.answer)}
    yield {"choices": [], "usage": {**used, "prompt_tokens_details": {"cached_tokens": script.num_cached}}}


def vllm_metrics(script: Script) -> dict[str, Any]:
    drafted, accepted = script.sums
    passes = script.counted
    steps = {"per_step_drafted": [d for d, _ in passes], "per_step_accepted": [a for _, a in passes]}
    return {
        "mean_acceptance_length": 1 + accepted / len(passes), "draft_acceptance_rate": accepted / drafted,
        "acceptance_histogram": script.histogram, "num_spec_steps": len(passes),
        "num_accepted_draft_tokens": accepted, "num_draft_tokens": drafted, "num_spec_tokens": 3,
        **({} if script.summary else steps),
    }  # fmt: skip


def generate_events(script: Script, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields events of /generate: SGLang sends all ids so far, LMDeploy the new ones."""
    parts, sent = script.parts(), 0
    for number, ids in enumerate(parts):
        is_last = number == len(parts) - 1
        sent += len(ids)
        told: dict[str, Any] = {
            "finish_reason": {"type": "stop"} if is_last else None,
            "prompt_tokens": len(request["input_ids"]) + script.read_prompt,
            "completion_tokens": sent + (script.extra_usage if is_last else 0),
        }  # fmt: skip
        whole = list(script.answer[:sent])
        if script.engine == "sglang":
            told["cached_tokens"] = script.num_cached
            if script.tells and script.passes and is_last:
                drafted, accepted = script.sums
                told |= {
                    "spec_verify_ct": len(script.passes), "spec_num_proposed_drafts": drafted,
                    "spec_num_correct_drafts": accepted, "spec_correct_drafts_histogram": script.histogram,
                }  # fmt: skip
        yield {"text": "", "output_ids": whole if script.engine == "sglang" else list(ids), "meta_info": told}


def llama_cpp_events(script: Script, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields one event per token, with the sums so far, and a last one without a token."""
    prompt, start = request["prompt"], time.perf_counter()
    known = {"tokens_evaluated": len(prompt) + script.read_prompt}
    sums = [(0, 0)]
    for drafted, accepted in script.passes or ((0, 0),) * (len(script.answer) - 1):
        before = sums[-1]
        sums += [(before[0] + drafted, before[1] + accepted)] * (accepted + 1)
    for number, (token, (drafted, accepted)) in enumerate(zip(script.answer, sums, strict=False)):
        milliseconds = 1000 * script.told_time * (time.perf_counter() + script.delay_seconds - start)
        times: dict[str, Any] = {"cache_n": script.num_cached, "prompt_ms": 0.001, "predicted_ms": milliseconds}
        if drafted:
            times |= {"draft_n": drafted, "draft_n_accepted": accepted}
        times |= script.timings
        content = TOKENIZER.decode([token], skip_special_tokens=False)
        yield {"content": content, "tokens": [token], "stop": False, "timings": times, **known,
               "tokens_predicted": number + 1}  # fmt: skip
    yield {"content": "", "tokens": [], "stop": True, "stop_type": "eos", **known,
           "tokens_predicted": len(script.answer) + script.extra_usage}  # fmt: skip


PREFIXES = {"vllm": "vllm:spec_decode_num", "lmdeploy": "lmdeploy:spec_decode_num",
            "llama.cpp": "llamacpp:spec_decode_num", "tensorrt-llm": "trtllm_spec_decode_num"}  # fmt: skip
RUNNING = {"vllm": "vllm:num_requests_running", "sglang": "sglang:num_running_reqs",
           "lmdeploy": "lmdeploy:num_requests_running", "llama.cpp": "llamacpp:requests_processing",
           "tensorrt-llm": "trtllm_num_requests_running"}  # fmt: skip


def metrics_page(script: Script) -> str:
    """Returns the counters in Prometheus' format; with `falls`, as if the server had been started again."""
    times = 100 - script.num_answers if script.falls else script.num_answers
    drafted, accepted = (total * times for total in script.sums)
    prefix, lines = PREFIXES.get(script.engine), ["# HELP text", "# TYPE text counter"]
    if script.engine in RUNNING and script.is_known:
        lines.append(f'{RUNNING[script.engine]}{{model="m"}} {script.num_running}.0')
    if prefix is not None and script.passes:
        lines += [
            f'{prefix}_drafts_total{{engine="0"}} {len(script.counted) * times}.0',
            f'{prefix}_drafts_created{{engine="0"}} 1.7e9',
            f'{prefix}_draft_tokens_total{{engine="0"}} {drafted}.0',
            f'{prefix}_accepted_tokens_total{{engine="0"}} {accepted}.0',
        ]
        reached = [sum(a > place for _, a in script.passes) * times for place in range(3)]
        lines += [
            f'{prefix}_accepted_tokens_per_pos_total{{position="{place}"}} {number}.0'
            for place, number in enumerate(reached)
        ]
    return "\n".join(lines) + "\n"


def pages(script: Script) -> dict[str, Any]:
    """Returns what a server tells of itself, by path."""
    owner = {"vllm": "vllm", "tensorrt-llm": "tensorrt_llm", "lmdeploy": "lmdeploy"}.get(script.engine, "someone")
    model = {"id": "target", "root": "target", "owned_by": owner, "max_model_len": 2048, **script.settings}
    found: dict[str, Any] = {"/v1/models": {"data": [model]}, "/health": {}}
    if script.engine in ("vllm", "tensorrt-llm"):
        found["/version"] = {"version": VERSION}
    if script.engine == "sglang":
        algorithm = {"speculative_algorithm": "EAGLE3" if script.passes else None}
        told = {"version": VERSION, "internal_states": [{}], "model_path": "t"}
        found["/server_info"] = {**told, **algorithm, **script.settings}
    if script.engine == "llama.cpp":
        found["/props"] = {"build_info": "b1-x", "model_path": "/m/t.gguf", "total_slots": 1, **script.settings}
    return found | script.pages


class Handler(BaseHTTPRequestHandler):
    server: "Server"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        script = self.server.script
        if not self.may_ask():
            return self.page("{}", 401)
        if self.path in ("/metrics", "/prometheus/metrics") and script.counts and script.engine != "openai":
            return self.page(metrics_page(script) + script.pages.get("/metrics", ""))
        found = pages(script).get(self.path)
        return self.page(json.dumps(found)) if found is not None else self.page("{}", 404)

    def do_POST(self) -> None:
        script = self.server.script
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.may_ask():
            return self.page(json.dumps({"error": f"wrong key: {self.headers.get('Authorization')}"}), 401)
        if self.path == "/tokenize" and not script.is_known:
            return self.page("{}", 404)
        if self.path == "/tokenize":
            text = request.get("content") or request.get("prompt")
            ids = TOKENIZER.encode(text, add_special_tokens=False).ids
            return self.page(json.dumps({"tokens": [id + 1 for id in ids] if script.wrong_tokenizer else ids}))
        makers = {
            "/v1/completions": openai_events, "/generate": generate_events, "/completion": llama_cpp_events,
            "/v1/chat/completions": chat_events,
        }  # fmt: skip
        if script.banner:
            self.close_connection = True
            self.wfile.write(script.banner)
            return None
        script.requests.append(request)
        if not request.get("stream"):
            tells = script.model is not None and script.tells_log_probs
            return self.page(json.dumps(script.log_probs(request))) if tells else self.page("{}", 400)
        if script.engine in ("vllm", "openai") and len(request.get("stop", ())) > 4:
            return self.page(json.dumps({"error": "List should have at most 4 items"}), 400)
        if script.unstable:
            script.answer = (*script.answer[:-2], 5 if script.answer[-2] == 6 else 6, EOS)
        if script.status != 200:
            return self.page(json.dumps({"error": "the engine is gone"}), script.status)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(makers[self.path](script.drawn(request), request)):
            if number == script.cut_after:
                self.close_connection = True
                return None
            time.sleep(script.delay_seconds)
            if number == script.fail_after:
                event = {"error": {"message": "CUDA error", "code": 500}}
            if number == 1 and script.form is not None:
                event = script.form
            self.chunk(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())
        script.num_answers += 1  # before the client knows that the answer is complete
        if self.path == "/v1/completions":
            self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")
        return None

    def may_ask(self) -> bool:
        key = self.server.script.key
        return key is None or self.headers.get("Authorization") == f"Bearer {key}"

    def chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()

    def page(self, text: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, script: Script, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.script = script

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that no longer reads is part of these tests."""


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    """Yields the address of a server that follows a script."""
    server = Server(script)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def servers_file(folder: Path, scripts: Mapping[str, Script], **keys: Any) -> Iterator[Path]:
    """Yields a servers file of scripted servers; the name of a method with its draft length is draft_model 3."""
    with ExitStack() as stack:
        servers = {
            name: {
                "url": stack.enter_context(scripted(script)),
                "speculation": "none" if name == "ar" else {"method": "draft_model", "num_draft_tokens": 3},
            }
            for name, script in scripts.items()
        }
        tokenizer = "embedded:drafter"  # the target's tokenizer; this model is built in a tenth of the time
        content = {"tokenizer": tokenizer, "memory": "same KV", "timeout_seconds": 5.0, "servers": servers}
        path = folder / "servers.yaml"
        path.write_text(json.dumps(content | keys))
        yield path
