"""Events of servers that report what cannot be: each is a reason or one line, after bounded work, and no number."""

import json
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specbench.core.errors import ConfigError
from specbench.core.registry import ENGINES
from specbench.integrations.served.acceptance import MAX_COUNT, Impossible, contradiction
from specbench.integrations.served.client import Client
from specbench.integrations.served.engine import MAX_HELD_BYTES, held_ids
from specbench.integrations.served.engines import LlamaCpp, Vllm
from specbench.integrations.served.server import Server, log_probs
from specbench.models.loading import load_tokenizer
from specbench.models.vocabulary import Vocabulary
from tests.attacks.bounds import within_bounds
from tests.attacks.hostile_server import HostileServer, running
from tests.support.served_runs import pair, records, row_of, run

NO_COUNTS = (-1, True, 2.0, "3", [], math.nan, math.inf, MAX_COUNT + 1, 10**12, 10**300)
HISTOGRAM = {"acceptance_histogram": [1, 0, 1, 0], "num_draft_tokens": 6, "num_accepted_draft_tokens": 2}
STEPS = {"per_step_drafted": [3, 3], "per_step_accepted": [0, 2], "num_draft_tokens": 6, "num_accepted_draft_tokens": 2}
SGLANG = {"spec_verify_ct": 2, "spec_num_proposed_drafts": 6, "spec_num_correct_drafts": 2,
          "spec_correct_drafts_histogram": [1, 0, 1, 0]}  # fmt: skip
TENSORRT = {"num_spec_steps": 2, "total_draft_tokens": 6, "total_accepted_draft_tokens": 2,
            "acceptance_histogram": [1, 0, 1, 0]}  # fmt: skip
NUM_TOKENS = 5  # of the answer of two steps that all of these report


def llama_cpp(told: dict[str, Any]) -> list[dict[str, Any]]:
    sums = [{}, {"draft_n": 3}, told, told, told]
    return [{"tokens": [7], "tokens_predicted": number + 1, "timings": each} for number, each in enumerate(sums)]


EVENTS = {  # the counts of an engine, and the events that hold them
    "llama.cpp": ({"draft_n": 6, "draft_n_accepted": 2}, llama_cpp),
    "vllm": (HISTOGRAM, lambda told: [{"metrics": {"speculative_decoding": told}}]),
    "vllm, steps": (STEPS, lambda told: [{"metrics": {"speculative_decoding": told}}]),
    "sglang": (SGLANG, lambda told: [{"meta_info": told}]),
    "tensorrt-llm": (TENSORRT, lambda told: [{"choices": [{"speculative_decoding": told}]}]),
}


def reason(name: str, told: dict[str, Any]) -> str | None:
    """Returns why an engine's counts cannot be; None if they can."""
    engine = ENGINES.get(name.partition(",")[0])()
    try:
        found = engine.acceptance(EVENTS[name][1](told), 3)
    except Impossible as error:
        return str(error)
    return contradiction(found, NUM_TOKENS, 3)


@pytest.mark.parametrize("name", EVENTS)
def test_no_engine_reports_counts_that_cannot_be(name) -> None:
    counts = EVENTS[name][0]
    assert reason(name, counts) is None
    for key, value in counts.items():
        parts = [*NO_COUNTS, *([] if isinstance(value, list) else [300_000_000, value + 7, value + 70])]
        for wrong in parts:
            told = [value[0], wrong, *value[2:]] if isinstance(value, list) else wrong
            with within_bounds():
                found = reason(name, {**counts, key: told})
            assert found and "\n" not in found and len(found) < 120, (key, wrong)


@pytest.mark.parametrize(
    ("timings", "told"),
    [
        ({"draft_n": 300_000_000, "draft_n_accepted": 3}, "none: its counts contradict each other (draft_n = 3000"),
        ({"draft_n": 3, "draft_n_accepted": 5}, "none: its counts contradict each other (5 of 3 draft tokens accepted"),
        ({"prompt_ms": -1}, "prompt_ms = -1"), ({"predicted_ms": math.nan}, "predicted_ms = nan"),
        ({"predicted_ms": math.inf}, "predicted_ms = inf"), ({"prompt_ms": 1e300}, "prompt_ms = 1e+300"),
    ],
)  # fmt: skip
def test_a_lie_of_a_server_is_a_line_and_null(tmp_path, timings, told) -> None:
    with within_bounds():
        row = row_of(run(tmp_path, pair("llama.cpp", timings=timings), num_examples=1))
    (record,) = records(tmp_path)
    counts, warnings = record["methods"]["draft"]["external"], {each.code: each.text for each in row.warnings}
    json.dumps(record, allow_nan=False)
    if "draft_n" in timings:
        assert counts["acceptance_source"].startswith(told) and counts["totals"] is None
        assert row.value("acceptance_rate_pooled") is None
    else:
        assert f"({told})" in warnings["impossible_times"] and counts["server_seconds"] is None


def test_held_tokens_are_found_at_once_or_not_at_all() -> None:
    """Blanks can be split in very many ways."""
    vocabulary = Vocabulary(load_tokenizer("embedded:target"))
    (last,) = vocabulary.encode("a")
    assert vocabulary.to_bytes([last]) == b"a"
    with within_bounds():
        for number in range(1, MAX_HELD_BYTES + 1):
            text = " " * number + "a"
            found = held_ids(text, last, number, vocabulary)
            assert len(found) == number and vocabulary.to_bytes([*found, last]) == text.encode()
        for length, number in ((20, 21), (20, 10**12), (10**6, 2)):
            with pytest.raises(ConfigError, match=f"held back the ids of {number} tokens"):
                held_ids(" " * length + "a", last, number, vocabulary)


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({"content": "\ud800", "tokens": [1]}, "can't encode character"), ({"tokens": ["1"]}, "valid integer"),
        ({"tokens": [1], "tokens_evaluated": -5}, "greater than or equal to 0"),
        ({"tokens": [1], "tokens_predicted": math.nan}, "num_held"), ({"tokens": 5}, "not iterable"),
    ],
)  # fmt: skip
def test_an_event_of_another_form_is_one_line(event, told) -> None:
    client = Client("ar", "http://localhost:1", 1.0)
    with pytest.raises(ConfigError, match=f"format is not that of its engine .*{told}") as caught, client.reading():
        LlamaCpp().read(event, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf, 0.5])
def test_a_log_probability_that_cannot_be_is_one_line(value) -> None:
    client = Client("ar", "http://localhost:1", 1.0)
    rows = [{"token_id:1": -0.5, "token_id:2": value}]
    page = json.dumps({"choices": [{"logprobs": {"top_logprobs": rows}}]})
    told = SimpleNamespace(get=lambda path, body: page, error=client.error, reading=client.reading)
    server = Server(cast(Client, told), Vllm(), "1", {}, "m", False)
    with pytest.raises(ConfigError, match=f"reports a log-probability of {value}: start it so that"):
        log_probs(server, [0], 1)


@pytest.fixture(scope="module")
def server():
    with running() as found:
        yield found


@pytest.mark.parametrize(
    ("attack", "seconds", "told"),
    [({"endless": "body"}, 60.0, r"sent .* without an end"), ({"drip": "body"}, 0.3, "timed out")],
)
def test_an_answer_without_an_end_is_refused(server: HostileServer, attack, seconds, told) -> None:
    server.play(attack)
    with within_bounds(), pytest.raises(ConfigError, match=told):
        list(Client("ar", server.address, seconds).stream("/v1/completions", {}))


@pytest.mark.parametrize(
    ("attack", "told"),
    [
        ({"raw": "SSH-2.0-OpenSSH_9.6\r\n"}, "does not speak HTTP (BadStatusLine: SSH-2.0-OpenSSH_9.6): correct"),
        ({"raw": "\x15\x03\x01\x00\x02\x02\x46"}, "does not speak HTTP (BadStatusLine: "),
        ({"raw": "HTTP/1.1 200 OK\r\n", "scheme": "https"}, "does not speak HTTPS (SSLError: "),
        ({"raw": ""}, "closed the connection (RemoteDisconnected: "),
        *(({"drip": kind}, "timed out after 0.3 s at /health") for kind in ("header", "body", "nothing")),
        *(({"endless": kind}, "server 'ar'") for kind in ("header", "headers")),
        ({"drip": "body", "scheme": "https"}, "server 'ar'"),
    ],
)  # fmt: skip
def test_a_server_that_speaks_another_language_is_one_line_in_time(server: HostileServer, attack, told) -> None:
    server.play(attack)
    seconds = 0.3 if {"drip", "endless"} & set(attack) else 10.0
    with within_bounds(), pytest.raises(ConfigError) as caught:
        Client("ar", server.address, seconds).get("/health", {})
    assert told in str(caught.value) and "\n" not in str(caught.value)
