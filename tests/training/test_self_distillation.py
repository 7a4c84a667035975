"""Language modelling on raw texts and on the target's own answers, from its weights or from a server."""

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.training.data import TrainingData, TrainingPrompt
from specbench.training.objectives import build_objective
from specbench.training.passes import Batch, learnt_logits
from specbench.training.spec import TrainSpec
from specbench.training.teacher import CompletionServer, ServerQuestion
from tests.support import tiny

KEY = "sk-a-key-that-nobody-may-see-0815"
DATA = TrainingData(
    {name: tuple(TrainingPrompt(name, f"{name} {i}?", "yes") for i in range(3)) for name in ("en", "sw")}
)


def spec(data: TrainingData = DATA, **settings: Any) -> TrainSpec:
    keys = {key: settings.pop(key) for key in ("max_text_tokens", "seed", "max_new_tokens") if key in settings}
    return TrainSpec.model_validate(
        {"kind": "finetune", "output": "x", "data": {"tasks": ["mgsm"]}, "max_new_tokens": 6, **keys,
         "finetune": {"temperatures": [0.0, 1.0], "batch_size": 4, **settings}}
    )  # fmt: skip


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return tiny.causal_lm(num_hidden_layers=1)


def build(target: CausalLM, folder: Path, made: TrainSpec, data: TrainingData = DATA) -> Any:
    return build_objective(made, target, target, data, folder)


class Serving(ThreadingHTTPServer):
    """Continues every prompt with its own temperature; a prompt with `fail` in it gets the status in `status`."""

    daemon_threads = True
    status = 500

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Serving

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append({**request, "path": self.path, "key": self.headers["Authorization"]})
        is_chat = self.path.endswith("/chat/completions")
        prompt = request["messages"][0]["content"] if is_chat else request["prompt"]
        text = f" at {request['temperature']}"
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        choice |= {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        body: dict[str, Any] = {"id": "1", "object": "x", "created": 1, "model": "m", "choices": [choice]}
        status = self.server.status if "fail" in prompt else 200
        if status != 200:
            body = {"error": {"message": f"refused {self.headers['Authorization']}"}}
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Serving() as found:
        threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        yield found
        found.shutdown()


def test_every_prompt_is_answered_once_at_each_temperature(target: CausalLM, tmp_path: Path) -> None:
    objective = build(target, tmp_path, spec())
    assert objective.num_items == 12
    assert [sample.group for sample in objective.samples[:6]] == ["en"] * 3 + ["sw"] * 3
    greedy, sampled = objective.samples[:6], objective.samples[6:]
    assert [a.ids[: a.num_given] for a in greedy] == [b.ids[: b.num_given] for b in sampled]
    assert [sample.ids for sample in greedy] != [sample.ids for sample in sampled]
    again, other = (build(target, tmp_path / "other", spec(seed=seed)) for seed in (0, 1))
    assert again.samples == objective.samples
    assert [s.ids for s in other.samples[:6]] == [s.ids for s in greedy]
    assert [s.ids for s in other.samples[6:]] != [s.ids for s in sampled]
    more = TrainingData({"sw": DATA.prompts["sw"]})
    fewer = build(target, tmp_path / "third", spec(), more)
    assert fewer.samples[3:] == sampled[3:]  # other data leave an answer as it is


def test_what_is_answered_is_said_with_its_temperature(target: CausalLM, tmp_path: Path) -> None:
    def said(made: TrainSpec) -> list[str]:
        console = Console(file=io.StringIO(), width=200)
        build_objective(made, target, target, DATA, tmp_path, console)
        return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]

    assert said(spec(temperatures=[0.0])) == [f"6/6 continuations by {target.name} at temperature 0 (0 from the cache)"]
    assert said(spec(temperatures=[0.0, 0.3])) == [
        f"6/6 continuations by {target.name} at temperature 0.3 (0 from the cache)"
    ]


def test_a_step_is_the_mean_over_the_answers_tokens(target: CausalLM, tmp_path: Path) -> None:
    model = tiny.network(seed=1)
    objective = build(target, tmp_path, spec())
    parts = objective.parts(model, 1)
    found = sum(part.weight * float(part.losses(model).mean().detach()) for part in parts)
    losses = []
    for sample in objective.batch(1):
        log_probs = learnt_logits(model, Batch([sample]), 257).log_softmax(-1)
        losses += [
            -float(row[token].detach()) for row, token in zip(log_probs, sample.ids[sample.num_given :], strict=True)
        ]
    assert found == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert {group for part in parts for group, _ in part.groups} <= {"en", "sw"}


def test_pretraining_learns_whole_texts_and_their_ends(target: CausalLM, tmp_path: Path) -> None:
    objective = build(target, tmp_path, spec(stage="pretrain"))
    sample = objective.samples[0]
    end = target.tokenizer.eos_token_id
    assert sample.num_given == 1 and sample.ids[-1] == end
    assert target.decode_text(list(sample.ids[:-1])) == "en 0? yes"
    short = build(target, tmp_path, spec(stage="pretrain", max_text_tokens=4))
    assert {len(sample.ids) for sample in short.samples} == {4} and short.samples[0].ids[-1] != end


def test_an_answer_beyond_the_limit_teaches_nothing(target: CausalLM, tmp_path: Path) -> None:
    assert {len(s.ids) for s in build(target, tmp_path, spec(max_text_tokens=6)).samples} == {6}
    with pytest.raises(ConfigError, match="no answer of the target to a prompt of 'en' fits into max_text_tokens = 4"):
        build(target, tmp_path, spec(max_text_tokens=4))


@pytest.mark.parametrize("chat", [False, True])
def test_a_server_answers_in_the_target_s_place(target: CausalLM, tmp_path: Path, server: Serving, chat: bool) -> None:
    template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target.tokenizer, "chat_template", template if chat else None)
        made = spec(server={"base_url": server.url, "model": "m"})
        objective = build(target, tmp_path, made)
        texts = [
            target.decode_text([i for i in s.ids if i != target.tokenizer.eos_token_id]) for s in objective.samples
        ]
        assert texts[0] == ("<en 0?> at 0.0" if chat else "en 0? at 0.0") and texts[6].endswith(" at 1.0")
        assert all(sample.ids[-1] == target.tokenizer.eos_token_id for sample in objective.samples)
        assert len(server.requests) == 12
        assert {request["key"] for request in server.requests} == {f"Bearer {KEY}"}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        assert {request["path"] for request in server.requests} == {path}
        assert build(target, tmp_path, made).samples == objective.samples and len(server.requests) == 12
    assert not any(KEY.encode() in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize(("status", "said"), [(401, "refuses the key"), (404, "has no model 'm'"), (400, "(key)")])
def test_a_server_that_fails_is_one_error_without_the_key(server: Serving, status: int, said: str) -> None:
    server.status = status
    with pytest.raises(ConfigError) as raised:
        list(CompletionServer(server.url, "m", num_retries=0).answers([ServerQuestion("fail", True, 0.0, 4, 0)]))
    assert said in str(raised.value) and KEY not in str(raised.value)


def test_an_address_that_is_none_and_a_missing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("localhost:8000", "http://me:secret@host/v1", "http://host/v1?key=1"):
        with pytest.raises(ConfigError, match=r"finetune\.server\.base_url"):
            CompletionServer(url, "m")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set"):
        next(CompletionServer("http://127.0.0.1:1/v1", "m").answers([ServerQuestion("x", True, 0.0, 4, 0)]))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(ConfigError, match="does not answer"):
        next(
            CompletionServer("http://127.0.0.1:1/v1", "m", num_retries=0).answers(
                [ServerQuestion("x", True, 0.0, 4, 0)]
            )
        )


def test_training_on_one_text_lowers_its_loss(target: CausalLM, tmp_path: Path) -> None:
    model = tiny.network(seed=1, num_hidden_layers=1)
    data = TrainingData({"en": (TrainingPrompt("en", "the same text again and again"),)})
    objective = build(target, tmp_path, spec(stage="pretrain"), data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    curve = []
    for step in range(5):
        (part,) = objective.parts(model, step)
        loss = part.losses(model).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(float(loss.detach()))
    assert curve[-1] < curve[0] - 0.5
