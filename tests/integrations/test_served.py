"""Methods that servers run: what each engine tells, and what becomes of servers that fail or lie."""

import io
import json
import random
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from specbench.core.completions import ApiKey
from specbench.core.errors import ConfigError
from specbench.core.reasoning import TAGS
from specbench.core.registry import ENGINES
from specbench.decoding.loop import GenerationState, StopRules
from specbench.integrations.served.acceptance import (
    contradiction,
    from_histogram,
    from_passes,
    kept_counts,
    passes_of_event,
    steps_of,
)
from specbench.integrations.served.client import Client
from specbench.integrations.served.decoder import Answer, ServedDecoder
from specbench.integrations.served.engine import Page, held_ids
from specbench.integrations.served.engines import LlamaCpp
from specbench.integrations.served.models import load_served
from specbench.models.causal_lm import TextModel
from specbench.models.loading import load_tokenizer
from specbench.models.vocabulary import Vocabulary
from specbench.records.generation import Generation
from specbench.report.compare import agreement_of
from specbench.report.tables import comparison_table, served_table
from specbench.results import answers
from specbench.results.conditions import check_together, conditions_that_differ
from specbench.results.runs import RecordedRun
from specbench.results.warnings import SLOW_CLIENT, share_of_waiting
from specbench.running.execute import RunOutcome, execute
from specbench.running.request import Request
from specbench.specs.run import read_servers
from specbench.specs.run_options import RunOptions
from tests.attacks.hostile_server import running
from tests.support.records import generation, record
from tests.support.scripted_server import ANSWER, AR, SD, TOKENIZER, VERSION, Script, passes_for, scripted, servers_file
from tests.support.served_runs import NUM_EXAMPLES, SKIPPING, pair, records, row_of, run

ENDED = (*SD[:-1], (3, 3))  # the answer ends within the last draft
OTHERS: dict[str, dict[str, dict[str, Any]]] = {  # beside draft, which tells all that its engine can
    "vllm": {
        "summary": {"summary": True}, "counters": {"tells": False}, "merged": {"merges": 2},
        "ended": {"passes": ENDED}, "ended-summary": {"passes": ENDED, "summary": True},
    },
    "sglang": {"ended": {"passes": ENDED}},
    "lmdeploy": {"ended": {"passes": ENDED}},
}  # fmt: skip


def several(engine: str, **methods: dict[str, Any]) -> dict[str, Script]:
    """Returns the server ar, and one of each method."""
    return {"ar": Script(engine), **{name: Script(engine, **{"passes": SD, **of}) for name, of in methods.items()}}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunOutcome]:
    """Runs honest servers of an engine, once."""
    return cache(
        lambda engine: run(tmp_path_factory.mktemp("honest"), several(engine, draft={}, **OTHERS.get(engine, {})))
    )


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a run of honest servers that has measured one example."""
    folder = tmp_path_factory.mktemp("begun")
    run(folder, pair("vllm"), num_examples=1)
    return folder


STEPS = steps_of(SD, sum(accepted + 1 for _, accepted in SD) + 1)
NUM_ACCEPTED, NUM_JUDGED = sum(s.num_accepted for s in STEPS), sum(s.num_verified for s in STEPS)
ALPHA, TAU = NUM_ACCEPTED / NUM_JUDGED, sum(s.num_emitted for s in STEPS) / len(STEPS)
OF_ENGINE = sum(a for _, a in SD) / sum(d for d, _ in SD)


@pytest.mark.parametrize(
    ("engine", "source", "name"),
    [
        ("llama.cpp", "steps", "draft"), ("vllm", "steps", "draft"), ("vllm", "histogram", "summary"),
        ("sglang", "histogram", "draft"), ("tensorrt-llm", "histogram", "draft"), ("lmdeploy", "counters", "draft"),
        ("vllm", "counters", "counters"), ("vllm", "steps", "merged"),
    ],
)  # fmt: skip
def test_acceptance_is_the_same_whatever_an_engine_tells(honest, engine, source, name) -> None:
    row = row_of(honest(engine), name)
    assert row.served is not None and row.served.acceptance_source == source
    assert row.value("acceptance_rate_pooled") == pytest.approx(ALPHA)
    assert row.value("mean_acceptance_length") == pytest.approx(TAU)
    assert row.value("accepted_per_drafted") == pytest.approx(OF_ENGINE)
    assert row.verdict == "greedy equal"
    assert row.engine.startswith(f"served {engine}") and (engine in ("llama.cpp", "lmdeploy") or VERSION in row.engine)
    assert (row.accepted_tokens_per_step is not None) == (source == "steps")
    assert {"ttft_seconds", "tpot_seconds", "e2e_seconds", "speedup"} <= {n for n, m in row.metrics.items() if m.value}
    for time in ("ttft", "tpot", "itl", "e2e"):
        quantiles = [row.value(f"{time}_{share}seconds") for share in ("", "p90_", "p95_", "p99_")]
        assert None not in quantiles and quantiles == sorted(quantiles) and (quantiles[-1] or 0) > 0, time


@pytest.mark.parametrize(
    ("engine", "name"), [("vllm", "ended"), ("vllm", "ended-summary"), ("sglang", "ended"), ("lmdeploy", "ended")]
)
def test_tokens_after_the_end_of_an_answer_count_nowhere(honest, engine, name) -> None:
    steps = steps_of(ENDED, len(ANSWER))
    accepted, judged = sum(s.num_accepted for s in steps), sum(s.num_verified for s in steps)
    row = row_of(honest(engine), name)
    knows_steps = (engine, name) == ("vllm", "ended")  # else the last step may have rejected a token after the end
    assert row.value("acceptance_rate_pooled") == pytest.approx(accepted / (judged if knows_steps else judged - 1))
    assert row.served is not None and ("α is an upper bound" in row.served.acceptance_source) != knows_steps
    assert row.value("mean_acceptance_length") == pytest.approx(TAU)


def test_answers_that_were_counted_in_another_way_are_not_added_to(begun, tmp_path) -> None:
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "run/run.json"
    content = json.loads(path.read_text())
    assert content.pop("counting") == 2
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="counting") as caught:
        run(tmp_path, pair("vllm"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("engine", "key"), [("vllm", "max_model_len"), ("sglang", "context_length")])
def test_the_shortest_context_cuts_the_answers_of_all_servers(tmp_path, engine, key) -> None:
    """As in process: no server is asked for more, and the answer says why it ended."""
    scripts = pair(engine, settings={key: 60})
    run(tmp_path, scripts, num_examples=1)
    for each in records(tmp_path):
        for name in ("ar", "draft"):
            answer = each["methods"][name]
            assert answer["finish"] == "context"
            request = next(
                each for each in scripts[name].requests
                if len(each.get("prompt") or each.get("input_ids")) + len(answer["token_ids"]) == 60
            )  # fmt: skip
            most = request.get("max_tokens") or request["sampling_params"]["max_new_tokens"]
            assert most == len(answer["token_ids"])


def test_a_server_that_tells_nothing_has_a_speed_and_no_acceptance(honest) -> None:
    row = row_of(honest("openai"))
    assert row.served is not None and row.served.acceptance_source == "none: this engine does not report it"
    names = ("acceptance_rate", "acceptance_rate_pooled", "mean_acceptance_length", "accepted_per_drafted")
    assert [row.value(name) for name in names] == [None] * 4
    assert row.value("speedup") and row.value("accuracy") is not None
    (warning,) = (w.text for w in row.warnings if w.code == "baseline_unchecked")
    assert "it is unknown whether the server 'ar' drafts" in warning


WITHOUT = "the server does not report steps without a draft: steps = tokens − 1 − accepted"


@pytest.fixture(scope="module")
def skipping(tmp_path_factory: pytest.TempPathFactory) -> RunOutcome:
    """vLLM counts no step in which an n-gram drafter found nothing. The drafter of the method `model` always drafts."""
    told: dict[str, dict[str, Any]] = {"steps": {}, "histogram": {"summary": True}, "counters": {"tells": False}}
    methods = {name: {"passes": SKIPPING, "skips": True, **of} for name, of in (*told.items(), ("model", {}))}
    folder = tmp_path_factory.mktemp("skipping")
    return run(folder, several("vllm", **methods), num_examples=1, methods=dict.fromkeys(told, "ngram"))


@pytest.mark.parametrize(
    ("name", "source", "alpha"),
    [
        ("steps", f"steps ({WITHOUT})", 4 / (3 + 2 + 1)),
        ("histogram", "histogram (α is not known, since its drafter may draft fewer tokens than declared; ", None),
        ("counters", "counters (α is not known, since its drafter may draft fewer tokens than declared; ", None),
    ],
)
def test_steps_without_a_draft_follow_from_the_number_of_tokens(skipping, name, source, alpha) -> None:
    row = row_of(skipping, name)
    assert row.served is not None and row.served.acceptance_source.startswith(source)
    assert row.served.acceptance_source.endswith(f"{WITHOUT})")
    assert row.value("mean_acceptance_length") == pytest.approx((len(Script("vllm").answer) - 1) / len(SKIPPING))
    assert row.value("acceptance_rate_pooled") == (alpha if alpha is None else pytest.approx(alpha))
    assert row.value("accepted_per_drafted") == pytest.approx(4 / 8)


def test_counts_that_fall_short_contradict_each_other_where_each_step_drafts(skipping) -> None:
    row = row_of(skipping, "model")
    assert row.served is not None and row.served.acceptance_source.startswith("none: its counts contradict each other")


def test_a_draft_that_stopped_early_leaves_alpha_unknown_without_steps(tmp_path) -> None:
    """Five passes with 1 to 3 drafted tokens each, whose sum is 2 for each."""
    length = len(Script("vllm").answer) - 1
    short = ((1, 1), (3, 3), (1, 0), (3, 1), (2, 2), *((2, 0),) * (length - 12))
    methods = {"draft": {"passes": short, "summary": True}, "told": {"passes": short}}
    outcome = run(tmp_path, several("vllm", **methods), num_examples=1)
    row = row_of(outcome)
    assert row.served is not None
    assert row.served.acceptance_source == "histogram (α is not known, since not every step drafted 3 tokens)"
    assert row.value("acceptance_rate") is None and row.value("acceptance_rate_pooled") is None
    assert row.value("mean_acceptance_length") == pytest.approx(length / len(short))
    assert row_of(outcome, "told").value("acceptance_rate_pooled") is not None


def test_alpha_is_of_all_answers_or_of_none() -> None:
    def served(*totals: int | None) -> answers.Answer:
        counts = {"num_first_tokens": 1, "num_target_passes": None, "acceptance_source": "totals"}
        return answers.Answer.of(generation([], external=counts | {"totals": totals}))

    known, unknown = served(6, 4, 3), served(5, None, 3)
    assert answers.acceptance_rates([known]) == [0.75] and answers.acceptance_rates([known, unknown]) == [None, None]
    assert answers.acceptance_rates([known, served(0, None, 0)]) == [0.75, None]


UNCHECKED = {"tokenizer_unchecked", "idle_unchecked"}


@pytest.mark.parametrize(
    ("engine", "is_known", "missing"),
    [
        ("vllm", True, set()), ("vllm", False, UNCHECKED), ("llama.cpp", True, set()), ("sglang", True, set()),
        ("tensorrt-llm", True, {"tokenizer_unchecked"}),
        ("tensorrt-llm", False, UNCHECKED), ("lmdeploy", True, {"tokenizer_unchecked"}), ("openai", True, UNCHECKED),
    ],
)  # fmt: skip
def test_what_a_server_offers_no_way_to_check_is_marked(tmp_path, honest, engine, is_known, missing) -> None:
    unknown = {name: replace(each, is_known=False) for name, each in pair(engine).items()}
    outcome = honest(engine) if is_known else run(tmp_path, unknown, num_examples=1)
    row = row_of(outcome)
    texts = {each.code: each.text for each in row.warnings}
    assert set(texts) & UNCHECKED == missing
    assert all("could not be checked" in texts[code] for code in missing)
    shown = "\n".join(comparison_table(outcome.by_task()[0]).caption)
    assert all(f"† draft: {texts[code]}" in shown for code in missing)


def test_a_busy_tensorrt_llm_is_not_measured(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("specbench.integrations.served.server.IDLE_SECONDS", 0.05)
    with pytest.raises(ConfigError, match=r"server 'ar' .* is busy with 2 requests of other programs"):
        run(tmp_path, {**pair("tensorrt-llm"), "ar": Script("tensorrt-llm", num_running=2)})


CACHE = 'vllm:cache_config_info{{block_size="16",cache_dtype="{}",engine="0",num_gpu_blocks="{}"}} 1.0\n'
CONFIG = {"model_config": {"dtype": "bfloat16", "hf_config": {"a": 1}}, "speculative_config": None,
          "scheduler_config": {"async_scheduling": True}, "parallel_config": {"data_parallel_rpc_port": 1}}  # fmt: skip


def vllm_pages(dtype: str, blocks: int, **config: Any) -> dict[str, Any]:
    info = {"vllm_config": {**CONFIG, **config}}
    return {"/metrics": CACHE.format(dtype, blocks), "/server_info?config_format=json": info}


def test_all_that_vllm_tells_of_its_settings_is_compared(tmp_path) -> None:
    """Numbers that another start would change are not; nor is the speculation."""
    own = vllm_pages(
        "fp8", 90, scheduler_config={"async_scheduling": False}, speculative_config={"method": "ngram"},
        parallel_config={"data_parallel_rpc_port": 2},
    )  # fmt: skip
    servers = pair("vllm", pages=own)
    servers["ar"] = replace(servers["ar"], pages=vllm_pages("auto", 100))
    row = row_of(run(tmp_path, servers, num_examples=1))
    (text,) = (each.text for each in row.warnings if each.code == "settings_differ")
    assert text.endswith("speculation: scheduler_config.async_scheduling True ≠ False, cache.cache_dtype auto ≠ fp8")


def test_a_client_that_waits_beside_its_server_is_marked(tmp_path) -> None:
    """Half of the time, or more on a busy machine. The limit is shown on made times."""
    short = (*ANSWER[:4], 0)
    plain = Script("llama.cpp", answer=short, delay_seconds=0.03, told_time=0.5)
    draft = replace(plain, passes=passes_for(len(short), (2, 0), 3))
    outcome = run(tmp_path, {"ar": plain, "draft": draft}, num_examples=1)
    (text,) = (each.text for each in row_of(outcome).warnings if each.code == "slow_client")
    told = re.fullmatch(
        "([0-9]+)% of the time of the answers of '(ar|draft)' is spent outside the server: the client or the network "
        "is the bottleneck",
        text,
    )
    assert told is not None and int(told[1]) >= 49

    record = next(iter(RecordedRun(outcome.records.parent).records.values()))
    answer = answers.Answer.of(record.methods["draft"], of_record=answers.record_fields(record))
    assert answer.external is not None

    def share(told: float) -> float:
        external = msgspec.structs.replace(answer.external, server_seconds=told * answer.seconds)
        return share_of_waiting([msgspec.structs.replace(answer, external=external)])

    assert share(0.96) < SLOW_CLIENT < share(0.94)


def test_rows_of_servers_are_recomputed_from_the_folder(honest) -> None:
    outcome = honest("llama.cpp")
    found = RecordedRun(outcome.records.parent)
    assert [found.recompute_row(row) for row in outcome.rows] == list(outcome.rows)


def test_rows_of_servers_share_no_file_with_others(honest) -> None:
    row = row_of(honest("vllm"))
    other = row.model_copy(update={"served": None, "engine": "eager"})
    with pytest.raises(ConfigError, match=r"where methods run = in this process, but .* has in servers: a file holds"):
        check_together([("board.json: rows.0", row), ("board.json: rows.1", other)])
    assert {each.field for each in conditions_that_differ(row, other)} >= {"engine"}


LIES = {  # beside those of test_servers_page.py
    "500 in mid-stream": ({"fail_after": 2}, "reports an error in the middle of an answer: .*CUDA error"),
    "nested answer": ({"form": "[" * 5000}, "sent an answer whose format is not"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_one_line_and_keeps_what_was_measured(begun, tmp_path, name) -> None:
    lie, message = LIES[name]
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    (measured,) = records(tmp_path)
    with pytest.raises(ConfigError, match=f"server 'draft' .* {message}") as caught:
        run(tmp_path, pair("vllm", **lie))
    assert "\n" not in str(caught.value)
    assert records(tmp_path) == [measured]
    if name == "500 in mid-stream":  # whatever has ended a run, the next command resumes it
        outcome = run(tmp_path, pair("vllm"))
        assert records(tmp_path)[0] == measured and len(records(tmp_path)) == NUM_EXAMPLES
        assert row_of(outcome).n == NUM_EXAMPLES


def test_a_baseline_that_says_how_it_was_started_is_checked(honest) -> None:
    assert "baseline_unchecked" not in {w.code for w in row_of(honest("sglang")).warnings}


def test_sums_that_contradict_their_parts_are_no_acceptance(tmp_path) -> None:
    row = row_of(run(tmp_path, pair("vllm", overstated=2, counts=False), num_examples=1))
    assert row.served is not None and row.served.acceptance_source.startswith("none: ")
    assert row.value("acceptance_rate") is None


PAST: dict[str, dict[str, Any]] = {"summary": {"summary": True}, "counters": {"tells": False}}  # vLLM without steps


@pytest.mark.parametrize(
    ("engine", "sources"),
    [
        ("llama.cpp", {"draft": "steps"}), ("openai", {"draft": "none: this engine does not report it"}),
        ("vllm", {"draft": "steps", **dict.fromkeys(PAST, "none: the server kept generating past a stop string")}),
    ],
)  # fmt: skip
def test_an_answer_ends_at_a_stop_string_that_the_request_had_no_room_for(
    tmp_path, monkeypatch, engine, sources
) -> None:
    """vLLM and OpenAI take four. These servers write on: what they wrote then counts nowhere."""
    rules = ServedDecoder.stop_rules
    stops = ("one", "two", "six", "four", "3 =")
    monkeypatch.setattr(
        ServedDecoder, "stop_rules", lambda self, *given: replace(rules(self, *given), stop_strings=stops)
    )
    outcome = run(tmp_path, several(engine, **{name: PAST.get(name, {}) for name in sources}), num_examples=1)
    for name, source in sources.items():
        row = row_of(outcome, name)
        assert row.served is not None and row.served.acceptance_source == source
        generation = records(tmp_path)[0]["methods"][name]
        kept = generation["token_ids"]
        assert generation["finish"] == "stop" and "3 =" in TOKENIZER.decode(kept) and len(kept) < len(ANSWER) - 3
        assert row.verdict == "greedy equal"
        if source == "steps":
            steps = steps_of(SD, len(kept))
            assert row.value("mean_acceptance_length") == pytest.approx(sum(s.num_emitted for s in steps) / len(steps))


THOUGHTS = "We add.\n\nQuestion: 5</think>\n\n5 is it."


def stops_of(request: Mapping[str, Any]) -> list[str]:
    return list({**request, **request.get("sampling_params", {})}.get("stop", ()))


class StopsAnywhere(Script):
    """A server that ends an answer at a stop string wherever it stands, as engines do."""

    def drawn(self, request: Mapping[str, Any]) -> Script:
        text = TOKENIZER.decode(self.answer)
        kept = min((text.find(stop) for stop in stops_of(request) if stop in text), default=len(text))
        ids = [*TOKENIZER.encode(text[:kept]).ids, 0]
        return replace(self, answer=tuple(ids), passes=passes_for(len(ids), (1,), 3) if self.passes else AR)


@pytest.mark.parametrize(
    ("engine", "opens"),
    [("vllm", True), ("vllm", False), ("sglang", False), ("llama.cpp", False), ("openai", False)],
)
def test_a_server_does_not_stop_inside_reasoning(tmp_path, monkeypatch, engine, opens) -> None:
    """The requests have no stop strings if the prompt opened the reasoning, or once the server has stopped in it; the
    client then looks for them in the answer."""
    if opens:
        render = TextModel.render_prompt
        monkeypatch.setattr(
            TextModel,
            "render_prompt",
            lambda self, texts, *rest: render(self, [*texts[:-1], f"{texts[-1]}<think>\n"], *rest),
        )
    answer = (*TOKENIZER.encode("<think>" * (not opens) + THOUGHTS + "Question: 6").ids, 0)
    scripts = {"ar": StopsAnywhere(engine, answer=answer), "draft": StopsAnywhere(engine, SD, answer)}
    outcome = run(tmp_path, scripts)
    for own in (own for each in records(tmp_path) for own in each["methods"].values()):
        assert own["answer"] == "5 is it." and own["finish"] == "stop", own
        assert THOUGHTS in own["text"] and own["reasoning_tokens"] > 10
    assert row_of(outcome).verdict == "greedy equal" and row_of(outcome).value("reasoning_share") > 0.5
    for script in scripts.values():
        sent = [bool(stops_of(request)) for request in script.requests]
        assert sent.count(True) <= (0 if opens else 1 + sent.index(False)), sent


def test_reasoning_that_a_server_parts_itself_is_kept_apart() -> None:
    rules = StopRules(99, stop_strings=("Q:",), decode_text=lambda ids, keep=(): "", reasoning=TAGS)
    read = ENGINES.get("openai")().read
    for parts, text in (
        ([{"reasoning_content": "Q: 1"}, {"reasoning_content": " + 1"}, {"text": "\n2"}, {"text": "."}],
         "<think>Q: 1 + 1</think>\n2."),
        ([{"reasoning": "1 + 1", "text": ""}, {"text": "2"}], "<think>1 + 1</think>2"),
        ([{"reasoning": "1 + 1"}], "<think>1 + 1"),
        ([{"text": "2"}], "2"),
    ):  # fmt: skip
        answer = Answer(GenerationState([1], rules))
        for part in parts:
            answer.add(0.0, read({"choices": [part]}, 0))
        assert answer.text == text and not answer.has_stop(["Q:"]) and len(answer.reads) == len(parts)


THINKING = tuple(TOKENIZER.encode("Two and three are five.").ids)


def test_chat_completions_have_a_time_to_the_first_token_and_one_to_the_first_of_the_answer(tmp_path) -> None:
    scripts = {
        name: Script("openai", passes, reasoning=THINKING, pause_seconds=pause)
        for name, passes, pause in (("ar", AR, 0.08), ("draft", SD, 0.05))
    }  # fmt: skip
    outcome = run(tmp_path, scripts, engine="openai-chat")
    assert row_of(outcome).engine == "served openai-chat of unknown version"
    text = scripts["ar"].requests[-1]["messages"][0]["content"]
    assert "Question" in text and text.rstrip().endswith("Answer:"), text
    for name, pause in (("ar", 0.08), ("draft", 0.05)):
        row = row_of(outcome, name)
        first, proper, whole = (row.value(f"{each}_seconds") for each in ("ttft", "ttfa", "e2e"))
        assert first < pause <= proper <= whole
        (mine,) = {own["reasoning_tokens"] for each in records(tmp_path) for own in [each["methods"][name]]}
        assert row.value("reasoning_tokens") == mine > len(THINKING)  # with the tags
        assert row.value("answer_tokens") == row.value("new_tokens") / NUM_EXAMPLES - mine > 10
    own = records(tmp_path)[0]["methods"]["draft"]
    assert own["answer"] == " We add 2 and 3. 2 + 3 = 5. The answer is 5." and own["external"]["answer_seconds"] >= 0.05
    assert row_of(outcome).value("acceptance_rate") is None and "engine: auto" in own["external"]["acceptance_source"]
    table = served_table(outcome.rows)
    assert "TTFA\nms" in [column.heading for column in table.columns]
    assert any("TTFA: to the first text behind the reasoning" in line for line in table.caption)


def test_an_answer_that_ends_inside_its_reasoning_has_no_first_answer_token(tmp_path) -> None:
    cut = {"reasoning": THINKING, "answer": (0,)}
    outcome = run(tmp_path, {"ar": Script("openai", **cut), "draft": Script("openai", SD, **cut)}, engine="openai-chat")
    row = row_of(outcome)
    assert row.value("share_cut_in_reasoning") == 1.0 and row.value("answer_tokens") == 0.0
    assert "ttfa_seconds" in row.metrics and row.value("ttfa_seconds") is None and row.value("ttft_seconds") > 0
    assert "answer_seconds" not in records(tmp_path)[0]["methods"]["draft"]["external"]


@pytest.mark.parametrize("engine", ["vllm", "openai"])
def test_completions_of_tokens_have_it_too_where_the_model_reasons(tmp_path, engine) -> None:
    """The first read behind the closing tag and its blank lines, by tokens or, without ids, by texts."""
    answer = (*TOKENIZER.encode("<think>one two</think>\n\nThe answer is 5.").ids, 0)
    servers = {"ar": Script(engine, answer=answer, delay_seconds=0.003),
               "draft": Script(engine, passes_for(len(answer), (1,), 3), answer, delay_seconds=0.003)}  # fmt: skip
    outcome = run(tmp_path, servers, num_examples=1)
    external = records(tmp_path)[0]["methods"]["ar"]["external"]
    before = next(n for n in range(1, len(answer)) if TOKENIZER.decode(answer[:n]).rstrip().endswith("The"))
    assert external["answer_seconds"] >= 0.003 * before
    assert row_of(outcome, "ar").value("ttfa_seconds") == external["answer_seconds"]
    if engine == "vllm":
        assert external["answer_seconds"] == external["events"][before - 1][0]


def test_a_chat_template_is_not_put_into_another(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("specbench.integrations.served.models.uses_chat", lambda model, chat: chat != "never")
    with pytest.raises(ConfigError, match=r"--chat auto: servers of engine openai-chat .* give --chat never"):
        run(tmp_path, pair("openai"), engine="openai-chat")


def test_other_conditions_are_marked(tmp_path) -> None:
    other = {"settings": {"max_model_len": 4096}, "answer": (*Script("vllm").answer[:-2], 5, 0), "num_cached": None}
    row = row_of(run(tmp_path, pair("vllm", **other), memory=None))
    found = {warning.code: warning.text for warning in row.warnings}
    assert "context 2048 ≠ 4096" in found["settings_differ"]
    assert "2 of 2 answers differ from those of the server 'ar'" in found["answers_differ"]
    assert {"caches_unknown", "memory_not_stated"} <= set(found)
    assert row.verdict == "not audited"


@pytest.mark.parametrize(("unstable", "verdict", "num_changed"), [(False, "diverged", 0), (True, "not audited", 6)])
def test_answers_diverge_if_they_differ_more_often_than_those_of_ar(tmp_path, unstable, verdict, num_changed) -> None:
    servers = pair("vllm", answer=(*Script("vllm").answer[:-2], 7, 0))
    outcome = run(tmp_path, {**servers, "ar": Script("vllm", unstable=unstable)}, num_examples=6)
    row = row_of(outcome)
    assert row.value("ar_changed") == num_changed / 6
    assert row.verdict == verdict
    (warning,) = (each.text for each in row.warnings if each.code == "answers_differ")
    assert (
        f"differ from those of the server 'ar', which itself changed {num_changed} of 6 answers when asked" in warning
    )
    shown = "\n".join(served_table([row]).caption)
    assert f"control: asked again, 'ar' changed {100 * num_changed / 6:.1f} [" in shown


def test_the_control_ends_after_a_number_of_answers(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("specbench.integrations.served.decoder.NUM_CONTROLS", 1)
    row = row_of(run(tmp_path, pair("vllm")))
    assert [each["methods"]["ar"]["external"]["same_again"] for each in records(tmp_path)] == [True, None]
    assert row.value("ar_changed") == 0 and row.verdict == "greedy equal"


def test_a_drafter_that_learns_across_requests_is_named_and_not_repeated(tmp_path) -> None:
    scripts = pair("llama.cpp")
    keys = {"speculation": {"method": "ngram-mod", "num_draft_tokens": 3}}
    with servers_file(tmp_path, scripts) as file:
        content = json.loads(file.read_text())
        content["servers"]["draft"] |= keys
        file.write_text(json.dumps(content))
        options = RunOptions(subsets=("en",), limit=1)
        request = Request(["mgsm"], [], options, "", output=tmp_path / "run", servers=file)
        row = row_of(execute(request, Console(file=io.StringIO()), load_served))
        assert "learns" in {warning.code for warning in row.warnings} and row.memory == "shuffled"
        with pytest.raises(ConfigError, match="--repeats 2: the drafter of server 'draft' learns across requests"):
            execute(replace(request, options=replace(options, repeats=2)), Console(file=io.StringIO()), load_served)


def test_a_folder_refuses_another_server(begun, tmp_path) -> None:
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    with pytest.raises(ConfigError, match=r"another|changed|differ") as caught:
        run(tmp_path, pair("vllm", settings={"max_model_len": 4096}))
    assert "4096" in str(caught.value) and len(records(tmp_path)) == 1


KEY = "sk-a-secret-of-some-length"


def run_with_key(folder: Path, given: str, *, engine: str = "openai", **keys: Any) -> RunOutcome:
    """Runs servers that ask for KEY, whose variable holds `given`."""
    scripts = {name: replace(script, key=KEY) for name, script in pair(engine).items()}
    with servers_file(folder, scripts) as file, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVED_KEY", given)
        content = json.loads(file.read_text())
        for server in content["servers"].values():
            server |= {"api_key_env": "SERVED_KEY"} | keys
        file.write_text(json.dumps(content))
        options = RunOptions(subsets=("en",), limit=1)
        request = Request(["mgsm"], [], options, "", output=folder / "run", servers=file)
        return execute(request, Console(file=io.StringIO()), load_served)


@pytest.mark.parametrize("engine", ["openai", "llama.cpp"])
def test_a_key_is_sent_and_is_in_no_file(tmp_path, engine) -> None:
    assert row_of(run_with_key(tmp_path, KEY, engine=engine)).n == 1
    written = [path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert written and not any(KEY in text for text in written)


@pytest.mark.parametrize(
    ("given", "keys", "message"),
    [
        (KEY, {"api_key_env": "NOT_SET"}, "^servers.ar.api_key_env: NOT_SET is not set: export the key"),
        (KEY, {"api_key_env": None}, r"server 'ar' .* is none of .*; a server that asks for a key needs its api_key_e"),
        (KEY, {"api_key_env": KEY}, r"servers.yaml: servers.ar.api_key_env = 'sk-a-secret-of-some-length': "),
        ("sk-another-key-than-it", {}, "server 'ar' .* is none of the known engines: engine is one of [^;]*$"),
    ],
)
def test_a_key_that_is_missing_or_wrong_is_one_line(tmp_path, given, keys, message) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        run_with_key(tmp_path, given, **keys)
    assert "\n" not in str(caught.value)


def test_a_server_that_repeats_the_key_does_not_show_it() -> None:
    with scripted(Script("vllm", key=KEY)) as url, pytest.raises(ConfigError, match=r"wrong key: Bearer \(key\)"):
        list(Client("ar", url, 5.0, ApiKey(f"{KEY}-s")).stream("/v1/completions", {}))


def test_servers_of_two_engines_are_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"servers of several engines \(ar vllm, draft sglang\)"):
        run(tmp_path, {"ar": Script("vllm"), "draft": Script("sglang", passes=SD)})


def test_a_server_that_does_not_listen_is_named(tmp_path) -> None:
    with scripted(Script("vllm")) as gone:
        pass
    with pytest.raises(ConfigError, match=f"server 'ar' \\({gone}\\) connection refused: start it, or correct its url"):
        Client("ar", gone, 1.0).get("/v1/models")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tokeniser": "x"}, r"servers.yaml: .*unknown key 'tokeniser': did you mean 'tokenizer'\?"),
        ({"engine": "vlm"}, r"servers.yaml: .*unknown engine 'vlm': did you mean 'vllm'\?"),
        ({"timeout_seconds": 0}, "servers.yaml: timeout_seconds = 0: .*greater than 0"),
        ({"servers": {"sd": {"url": "http://a:1", "speculation": "none"}}}, "servers: there is no .*'ar'"),
        *(
            ({"servers": {"ar": {"url": url, "speculation": "none"}}}, f"servers.yaml: servers.ar.url = '{url}': write")
            for url in ("a:1", "http://a:99999", "http://a:x", "http://a..b", "http://u:p@a:1", "http://a:1/ü")
        ),
        *(
            (
                {"servers": {"ar": {"url": "http://a:1", "speculation": "none", "start": {"command": ["x"], **start}}}},
                rf"servers.yaml: servers.ar.start.\S* = '{value}': string should match pattern",
            )
            for start, value in (
                ({"environment": {"A=B": "c"}}, "A=B"), ({"environment": {"": "c"}}, ""), ({"health": "/a b"}, "/a b"),
            )
        ),
        ({"load": {"rate": [1e-300]}}, "servers.yaml: load.rate.0 = 1e-300: input should be greater than"),
        (
            {"servers": {n: {"url": "http://a:1", "speculation": "none"} for n in ("ar", "b")}},
            "servers.ar.url = 'http://a:1': 'b' has this address too",
        ),
        (
            {"servers": {"ar": {"url": "http://a:1", "speculation": {"method": "x", "num_draft_token": 3}}}},
            r"servers.ar.speculation.num_draft_token: unknown key .*did you mean 'num_draft_tokens'\?",
        ),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line_with_key_and_value(tmp_path, keys, message) -> None:
    content = {"tokenizer": "embedded:target", "servers": {"ar": {"url": "http://a:1", "speculation": "none"}}}
    path = tmp_path / "servers.yaml"
    path.write_text(json.dumps(content | keys))
    with pytest.raises(ConfigError, match=message) as caught:
        read_servers(path)
    assert "\n" not in str(caught.value)


def test_options_of_models_in_this_process_are_refused(tmp_path) -> None:
    with servers_file(tmp_path, pair("vllm")) as file:
        for methods, options, message in (
            (["drft"], RunOptions(), "--method drft: .*servers.yaml has no such server: did you mean 'draft'"),
            ([], RunOptions(dtype="float16"), "--dtype float16: has no effect with --servers"),
        ):
            with pytest.raises(ConfigError, match=message):
                execute(Request(["mgsm"], methods, options, "", servers=file), Console(file=io.StringIO()), load_served)


def test_steps_end_where_the_answer_does() -> None:
    found = steps_of([(3, 3), (3, 1), (3, 2)], 8)  # 1 + 4 + 2 tokens, and one of the last pass
    assert [tuple(step)[:4] if isinstance(step, tuple) else
            (step.num_drafted, step.num_verified, step.num_accepted, step.num_emitted) for step in found] == [
        (3, 3, 3, 4), (3, 2, 1, 2), (3, 1, 1, 1)]  # fmt: skip


def test_no_token_is_drafted_for_the_last_place() -> None:
    """As in the decode loop, whatever the server does there."""
    for last in ((5, 5), (5, 3), (5, 2), (2, 2)):  # 3 places left: two draft tokens and the target's own
        steps = steps_of([(5, 1), last], 6, most_tokens=6)
        assert [(s.num_drafted, s.num_verified, s.num_accepted, s.num_emitted) for s in steps] == [
            (4, 2, 1, 2), (2, 2, 2, 3)]  # fmt: skip
    steps = steps_of([(5, 1), (5, 5)], 6, most_tokens=20)  # ends at the third draft token
    assert [(s.num_drafted, s.num_verified, s.num_accepted, s.num_emitted) for s in steps] == [
        (5, 2, 1, 2), (5, 3, 3, 3)]  # fmt: skip


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_counts_without_steps_are_those_of_the_steps_or_a_bound(length: int) -> None:
    """Random answers with an end anywhere in the last pass, before or at the limit."""
    rng, num_bounds = random.Random(length), 0
    for _ in range(400):
        passes = [(length, rng.randint(0, length)) for _ in range(rng.randint(1, 6))]
        num_tokens = 1 + sum(a + 1 for _, a in passes[:-1]) + rng.randint(1, passes[-1][1] + 1)
        most = num_tokens + rng.choice([0, 0, length + 1, 50])
        steps = steps_of(passes, num_tokens, most)
        right = sum(step.num_accepted for step in steps), sum(step.num_verified for step in steps)
        counts = [sum(a == n for _, a in passes) for n in range(length + 1)]
        told = from_histogram(counts, None, len(passes) * length, sum(a for _, a in passes), length)
        assert contradiction(told, num_tokens, length) is None
        found = kept_counts(told, num_tokens, most, length)
        assert found.accepted == right[0]
        assert right[1] - found.verified in ((0, 1) if found.is_bound else (0,))
        num_bounds += found.is_bound
    assert num_bounds


def test_tokens_after_the_end_are_not_accepted_without_steps() -> None:
    """Passes (5, 1) and (5, 5); the end token is the first of the second draft."""
    told = from_histogram([0, 1, 0, 0, 0, 1], None, 10, 6, 5)
    assert (told.num_accepted, told.num_verified) == (6, 7)
    found = kept_counts(told, 4, 100, 5)
    assert (found.accepted, found.verified, found.is_bound) == (2, 3, False)
    # Three tokens after the end, of drafts of 0 and 2.
    wrong = contradiction(from_histogram([2, 0, 1, 0], None, 9, 2, 3), 3, 3)
    assert wrong == "3 steps with 2 accepted tokens for an answer of 3 tokens"


def test_a_histogram_of_drafts_of_several_lengths_has_no_verified_tokens() -> None:
    passes = [(3, 0), (3, 3), (2, 2)]
    assert from_histogram([1, 0, 1, 1], None, 9, 5, 3).num_verified == 1 + 3 + 3
    assert from_histogram([1, 0, 1, 1], None, 8, 5, 3).num_verified is None
    assert from_histogram([1, 0, 1, 1], None, 9, 5, 5).num_verified is None  # 1, 3 and 5 drafted would be 9, too
    assert from_passes(passes).num_verified == 1 + 3 + 2


def test_ids_that_were_held_back_follow_from_the_bytes_of_a_character() -> None:
    vocabulary, found = Vocabulary(load_tokenizer("embedded:target")), 0
    for character in "กขคงจฉชซญดตถทธนบปผพภมยรลวศสหอ":
        ids = vocabulary.encode(character)
        if len(ids) > 1:
            found += 1
            assert held_ids(character, ids[-1], len(ids) - 1, vocabulary) == tuple(ids[:-1])
    assert found > 3
    with pytest.raises(ConfigError, match="held back the ids of 2 tokens, and its text 'a' does not determine them"):
        held_ids("a", vocabulary.encode("b")[0], 2, vocabulary)


@pytest.mark.parametrize(
    ("num_tokens", "drafted", "accepted", "passes"),
    [
        (1, 5, 3, [(5, 3)]), (1, 0, 0, [(0, 0)]), (3, 0, 0, [(0, 0)] * 3), (2, 10, 4, [(5, 0), (5, 4)]),
        (3, 10, 7, [(5, 2), (5, 5)]), (2, 2, 0, [(0, 0), (2, 0)]), (3, 12, 1, [(5, 0), (5, 0), (2, 1)]),
    ],
)  # fmt: skip
def test_passes_follow_from_the_growth_of_the_sums(num_tokens, drafted, accepted, passes) -> None:
    assert passes_of_event(num_tokens, drafted, accepted, 5) == passes


def test_the_first_difference_of_a_subset_is_named() -> None:
    def made(tokens: list[int], sizes: list[int]) -> Generation:
        return generation([[3, 1, 0, size] for size in sizes], token_ids=tokens)

    asked = [record({}, subset=subset, example=example) for subset, example in (("en", 4), ("en", 5), ("th", 0))]
    first = [made([1, 2, 3, 4], [2, 1]), made([1, 2], [1]), made([1, 2], [])]
    second = [made([1, 2, 3, 4], [1, 2]), made([1, 9], [1]), made([1], [])]
    found = agreement_of(zip(asked, first, second, strict=True))
    assert (found.num_answers, found.num_equal, found.num_with_steps, found.num_same_steps) == (3, 1, 2, 1)
    assert found.lines()[1:] == [
        "first difference (first ≠ second): en example 4, tokens of step 0: 2 ≠ 1",
        "first difference (first ≠ second): th example 0, token 1: 2 ≠ the end",
    ]


def test_an_engine_of_a_plug_in_is_found(tmp_path, monkeypatch) -> None:
    class Mine(LlamaCpp):
        name = "mine"

        def version(self, page: Page) -> str | None:
            return "7" if page("/props") else None

    point = SimpleNamespace(name="mine", value="mine:Mine", load=lambda: Mine)
    monkeypatch.setitem(ENGINES.plugins, "mine", point)
    row = row_of(run(tmp_path, pair("llama.cpp"), num_examples=1, engine="mine"))
    assert row.engine == "served mine 7" and row.served is not None and row.served.acceptance_source == "steps"


def test_events_end_at_an_empty_line() -> None:
    stream = ': comment\r\ndata: {"a": 1}\r\n\r\ndata: {"b":\ndata:  2}\n\nevent: x\n\ndata: [DONE]\n\ndata: {}\n\n'
    with running() as server:
        server.play({"raw": f"HTTP/1.1 200 OK\r\n\r\n{stream}"})
        found = [event for _, event in Client("ar", server.address, 5.0).stream("/v1/completions", {})]
    assert found == [{"a": 1}, {"b": 2}]


SHAPES: dict[str, dict[str, Any]] = {
    "vllm": {"choices": [{"logprobs": {"top_logprobs": [{"token_id:5": -0.1, "token_id:7": -2.4}]}}]},
    "sglang": {"meta_info": {"output_top_logprobs": [[[-0.1, 5, None], [-2.4, 7, None]]]}},
    "llama.cpp": {
        "completion_probabilities": [
            {"bytes": [65], "top_logprobs": [{"id": 5, "logprob": -0.1}, {"id": 7, "logprob": -2.4}]},
            {"bytes": [0xB8], "top_logprobs": [{"id": 1, "logprob": 0.0}]},  # a part of a character was left out
        ]
    },
}


@pytest.mark.parametrize("name", ["vllm", "sglang", "llama.cpp", "lmdeploy", "tensorrt-llm", "openai"])
def test_log_probabilities_are_read_by_token_id(name) -> None:
    engine = ENGINES.get(name)()
    body = engine.scoring_request([1, 2, 3], 4, "target")
    assert (body is not None) == (name in SHAPES)
    if name in SHAPES:
        assert [1, 2, 3] in body.values() and not body.get("stream")
        assert engine.log_probs(SHAPES[name]) == [{5: -0.1, 7: -2.4}]


def test_options_of_the_chat_template_reach_served_targets(tmp_path: Path) -> None:
    """The prompts of servers are rendered here, so that they take the options too."""
    for option in ({"template_date": "2025-03-01"}, {"chat_template_args": ("thinking=true",)}):
        with servers_file(tmp_path, pair("vllm")) as file, pytest.raises(ConfigError, match="has no chat template"):
            request = Request(
                ["mgsm"], [], RunOptions(subsets=("en",), **option), "", output=tmp_path / "r", servers=file
            )
            execute(request, Console(file=io.StringIO()), load_served)


def test_top_k_is_refused_where_requests_have_none(tmp_path: Path) -> None:
    with (
        servers_file(tmp_path, pair("openai")) as file,
        pytest.raises(ConfigError, match=r"server 'ar' .*no top_k, and"),
    ):
        overrides = ("generation.temperature=0.6", "generation.top_k=20")
        options = RunOptions(subsets=("en",), limit=1, overrides=overrides)
        execute(
            Request(["mgsm"], [], options, "", output=tmp_path / "run", servers=file), Console(quiet=True), load_served
        )
