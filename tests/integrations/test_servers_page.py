"""The page of servers: each message that it lists is one that a server which fails, or lies, really gets."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from specbench.core.errors import ConfigError
from specbench.results.row import Row, RowWarning
from tests.support.scripted_server import AR, SD, Script
from tests.support.served_runs import SKIPPING, pair, row_of, run, run_method

PAGE = Path(__file__).parents[2] / "docs/guide/servers.md"
OTHER_ANSWER = (*Script("vllm").answer[:-2], 5, 0)


def listed() -> dict[str, dict[str, str]]:
    """Returns the messages of each table of the section by their first cell; tables by the heading of their second."""
    (section,) = re.findall(r"^## What is checked\n(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found: dict[str, dict[str, str]] = {}
    for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        heading, _, *lines = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines())
        found[heading[1]] = {case: message.strip("`") for case, message in lines}
    return found


def is_of(message: str, text: str) -> bool:
    """Returns whether a text has the message of a table, in which … stands for anything."""
    return re.search(".+".join(map(re.escape, message.rstrip("…").split("…"))), text) is not None


def lie(server: str = "draft", engine: str = "vllm", **keys: Any) -> dict[str, Script]:
    """Returns two servers, one of which differs from an honest one."""
    honest = pair(engine)
    return {**honest, server: replace(honest[server], **keys)}


FAILURES: dict[str, dict[str, Script]] = {
    "it does not answer in time": lie(delay_seconds=0.2),
    "it is not an HTTP server (an SSH server, say), or needs `https://`": lie(banner=b"SSH-2.0-OpenSSH_9.6\r\n"),
    "it closes the connection in the middle of an answer": lie(cut_after=2),
    "it refuses a request": lie(status=500),
    "it reports an error in the middle of an answer": lie(fail_after=2),
    "it aborts a request": lie(finish="abort"),
    "it ends an answer at a limit of its own": lie(finish="length", answer=OTHER_ANSWER[:-1]),
    "its events have another form": lie(form={"choices": "text"}),
    "`ar` drafts": lie("ar", passes=SD),
    "`ar` says that it speculates": lie("ar", "sglang", passes=SD),
    "the server of a method says that it does not": lie(engine="sglang", passes=AR),
    "it tokenizes a text differently": lie(wrong_tokenizer=True),
    "it sends tokens that the target does not have": lie(answer=(5000, 0), passes=((3, 0),)),
    "it read fewer tokens than the prompt has": lie(read_prompt=-3),
    "it had tokens of the prompt in its cache": lie(num_cached=16),
    "its usage does not count the tokens that it sent": lie(extra_usage=7),
    "other programs use it": lie(num_running=3),
    "it is of another engine than `ar`": {**pair("vllm"), "draft": Script("sglang", passes=SD)},
    "it has other settings than when the run began": lie(settings={"max_model_len": 4096}),
}


WITHOUT_ITS_NAME = ("it is of another engine than `ar`", "it has other settings than when the run began")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs of honest servers of an engine that have measured one example; each is made once."""

    def begin(engine: str) -> Path:
        folder = tmp_path_factory.mktemp("begun")
        run(folder, pair(engine), num_examples=1)
        return folder

    return cache(begin)


@pytest.mark.parametrize("case", FAILURES)
def test_a_listed_failure_ends_in_the_listed_line(begun, tmp_path, monkeypatch, case) -> None:
    monkeypatch.setattr("specbench.integrations.served.server.IDLE_SECONDS", 0.05)
    engine = FAILURES[case]["ar"].engine
    folder = Path(shutil.copytree(begun(engine), tmp_path / "begun"))
    with pytest.raises(ConfigError) as caught:
        run(folder, FAILURES[case], timeout_seconds=1.0)
    assert is_of(listed()["message"][case], str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
    name = "ar" if case.startswith("`ar`") else "draft"
    assert case in WITHOUT_ITS_NAME or f"server '{name}' (http" in str(caught.value)
    first, now = ((each / "run/records.jsonl").read_text() for each in (begun(engine), folder))
    assert now == first and len(now.splitlines()) == 1


SHORT = ((1, 1), (3, 3), *((2, 0),) * (len(Script("vllm").answer) - 1 - 6))
COUNTS: dict[str, tuple[dict[str, Script], str]] = {
    "they cannot be (negative, fractions, more accepted than drafted), contradict each other, or the declared draft "
    "length": (
        lie(passes=tuple((5, accepted) for _, accepted in SD)), "draft_model",
    ),
    "the server was restarted meanwhile": (lie(engine="lmdeploy", falls=True), "eagle3"),
    "the server does not report them": (pair("vllm", tells=False, counts=False), "draft_model"),
    "a histogram, and not every step drafted the declared number": (
        pair("vllm", passes=SHORT, summary=True), "draft_model",
    ),
    "vLLM reports only the n-gram steps with a draft": (
        pair("vllm", passes=SKIPPING, skips=True), "ngram",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """Rows of the servers of COUNTS: those of one engine are measured beside one server `ar`."""
    found: dict[str, Row] = {}
    for engine in ("vllm", "lmdeploy"):
        names = {f"method-{n}": case for n, case in enumerate(COUNTS) if COUNTS[case][0]["ar"].engine == engine}
        folder, scripts = tmp_path_factory.mktemp("counted"), {n: COUNTS[case][0]["draft"] for n, case in names.items()}
        methods = {name: COUNTS[case][1] for name, case in names.items()}
        outcome = run(folder, {"ar": Script(engine), **scripts}, num_examples=1, methods=methods)
        found |= {case: row_of(outcome, name) for name, case in names.items()}
    return found


@pytest.mark.parametrize("case", COUNTS)
def test_listed_counts_have_the_listed_source(counted, case) -> None:
    row = counted[case]
    assert row.served is not None and is_of(listed()["acceptance from"][case], row.served.acceptance_source)
    if row.served.acceptance_source.startswith("none"):
        assert row.value("acceptance_rate") is None and row.value("speedup") is not None


MARKED: dict[tuple[str, ...], dict[str, Script]] = {  # servers that get these marks
    (): pair("vllm"),
    ("baseline_unchecked", "tokenizer_unchecked", "idle_unchecked"): pair("openai"),
    ("caches_unknown", "settings_differ", "answers_differ", "memory_not_stated"): lie(
        num_cached=None, settings={"max_model_len": 4096}, answer=OTHER_ANSWER
    ),
    ("drafts_nothing",): lie(engine="llama.cpp", passes=AR),
    ("slow_client",): pair("llama.cpp", delay_seconds=0.002),
    ("read_late",): pair("llama.cpp", delay_seconds=0.005, told_time=4.0),
    ("impossible_times",): lie(engine="llama.cpp", timings={"predicted_ms": -1}),
    ("learns",): pair("vllm"),
}


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Row]:
    """Rows of the servers of MARKED, each of which is made once."""

    def make(codes: tuple[str, ...]) -> Row:
        folder, keys = tmp_path_factory.mktemp("marked"), {"memory": None} if "memory_not_stated" in codes else {}
        if "learns" in codes:
            return run_method(folder, "suffix", MARKED[codes])
        return row_of(run(folder, MARKED[codes], num_examples=1, **keys))

    return cache(make)


CODES = {
    "it is not known whether `ar` drafts": "baseline_unchecked",
    "it is not known whether prompts were cached": "caches_unknown",
    "the engine has no endpoint that tokenizes a text, such as TensorRT-LLM and LMDeploy": "tokenizer_unchecked",
    "the engine does not report how many requests run": "idle_unchecked",
    "the method's server drafted nothing": "drafts_nothing",
    "the servers differ in more than their speculation": "settings_differ",
    "the file does not say how they reserve memory": "memory_not_stated",
    "the drafter learns, such as vLLM's `suffix` and llama.cpp's `ngram-mod`": "learns",
    "more than 5 % of the time of the method's answers, or of `ar`'s, is spent outside the server": "slow_client",
    "an answer of llama.cpp was read in less than half the time in which the server wrote it, since the client was "
    "held up": "read_late",
    "a server reports a time that is negative, not finite or longer than a day; it is left out": "impossible_times",
    "greedy answers differ from those of `ar`, and not all differences are near-ties": "answers_differ",
}


@pytest.mark.parametrize("case", CODES)
def test_a_listed_condition_is_marked_with_the_listed_line(marked, case) -> None:
    (codes,) = (codes for codes in MARKED if CODES[case] in codes)
    texts = {each.code: each.text for each in marked(codes).warnings}
    assert is_of(listed()["line"][case], texts.get(CODES[case], "")), texts


def test_honest_servers_get_none_of_these_marks(marked) -> None:
    assert not {each.code for each in marked(()).warnings} & set(CODES.values())


def test_the_page_lists_these_cases_and_no_others() -> None:
    found = listed()
    assert set(found["message"]) == set(FAILURES)
    assert set(found["acceptance from"]) == set(COUNTS) and set(found["line"]) == set(CODES)
    codes = list(get_args(RowWarning.model_fields["code"].annotation))
    of_servers = set(codes[codes.index("baseline_unchecked") :]) - {"few_turns"}  # of the section on turns
    assert set(CODES.values()) == of_servers
