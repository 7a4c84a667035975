"""A real engine: llama.cpp serves the embedded pair, and its answers and steps are those of this process."""

import io
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.optimize import brentq

from specbench.analysis.audit.audit import run_audit
from specbench.analysis.profile.exports import export
from specbench.analysis.profile.profile import profile_of_runs
from specbench.core.errors import ConfigError
from specbench.embedded import member_path
from specbench.models.loading import load_model
from specbench.models.near_ties import logit_gap
from specbench.records.columns import StepCounts
from specbench.report.compare import compare, comparison_tables
from specbench.results.concurrency import load_of
from specbench.results.metrics import expected_speedup
from specbench.results.runs import read_input
from specbench.running.execute import RunOutcome, execute
from specbench.running.plan import load_data
from specbench.running.request import Request, run_spec
from specbench.specs.run import ServersSpec
from specbench.specs.run_options import RunOptions

pytest.importorskip("xllamacpp", reason="llama.cpp is not installed: pip install 'specbench-lm[llama-cpp]'")
pytest.importorskip("gguf", reason="gguf is not installed: pip install 'specbench-lm[llama-cpp]'")

from specbench.integrations.served.client import Client
from specbench.integrations.served.llama_cpp import Serving
from specbench.integrations.served.models import load_served
from specbench.integrations.served.server import Server, find_server, log_probs, served_target
from tools.commands import ROOT
from tools.llama_cpp.convert import write_gguf
from tools.llama_cpp.server import gguf_file, llama_cpp_server
from tools.real.archive import unpack

QUIET = Console(file=io.StringIO())
SUBSETS = ("en", "sw", "th")
NUM_DRAFT_TOKENS = 5
FORCED_LENGTH = 3.5  # tokens of a pass
NEAR_TIE = 0.01  # between logits: libraries round differently


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    """The addresses of a server without speculation and of three with it."""
    with ExitStack() as stack:
        yield {
            "ar": stack.enter_context(llama_cpp_server()),
            "draft": stack.enter_context(llama_cpp_server("draft")),
            "copies": stack.enter_context(llama_cpp_server("ngram")),
            "forced": stack.enter_context(llama_cpp_server("draft", synthetic_length=FORCED_LENGTH)),
        }


@pytest.fixture(scope="module")
def shallow_servers() -> Iterator[dict[str, str]]:
    """The same of two models of one layer, which draw an answer in a fraction of the time."""
    serving = Serving(gguf_file("drafter"), gguf_file("drafter-scdf"), NUM_DRAFT_TOKENS, threads=1)
    with ExitStack() as stack:
        yield {
            "ar": stack.enter_context(serving.server("ar")),
            "draft": stack.enter_context(serving.server("draft")),
            "forced": stack.enter_context(serving.server("draft", synthetic_length=FORCED_LENGTH)),
        }


def write_file(
    folder: Path, servers: Mapping[str, str], names: tuple[str, ...], drafter: str = "drafter", **keys: Any
) -> Path:
    speculation = {"ar": "none", "copies": {"method": "ngram-simple", "num_draft_tokens": NUM_DRAFT_TOKENS}}
    drafting = {"method": "draft_model", "num_draft_tokens": NUM_DRAFT_TOKENS, "model": drafter}
    content = {
        "tokenizer": "embedded:target", "hardware": "this machine", "memory": "same KV",
        "servers": {name: {"url": servers[name], "speculation": speculation.get(name, drafting)} for name in names},
    }  # fmt: skip
    path = folder / "servers.yaml"
    path.write_text(json.dumps(content | keys))
    return path


def serve(folder: Path, servers: Mapping[str, str], names: tuple[str, ...], **options: Any) -> RunOutcome:
    request = Request(
        ["mgsm"], [], RunOptions(**options), "", output=folder / "served", servers=write_file(folder, servers, names)
    )
    return execute(request, QUIET, load_served)


def records(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    lines = (folder / "records.jsonl").read_text().splitlines()
    return {(r["subset"], r["example"]): r["methods"] for r in map(json.loads, lines)}


def check_equal(folder: Path, subsets: tuple[str, ...], limit: int, served: RunOutcome, **options: Any) -> None:
    """Asserts that answers and steps are those of `sd` in this process, and that rows say so."""
    options |= {"subsets": subsets, "limit": limit}
    request = Request(["mgsm"], ["sd"], RunOptions(**options), "", output=folder / "in-process")
    own = execute(request, QUIET)
    ours, theirs = records(folder / "in-process"), records(folder / "served")
    assert list(ours) == list(theirs) and len(ours) == limit * len(subsets)
    undecided = [key for key in ours if not same_passes(key, ours[key], theirs[key])]
    for subset in subsets:
        row, other = (
            next(row for row in outcome.rows if (row.subset, row.method_name) == (subset, name))
            for outcome, name in ((own, "sd"), (served, "draft"))
        )
        assert other.verdict == "greedy equal" and other.served is not None
        assert other.served.acceptance_source == "steps" and other.served.caches == "verified empty"
        assert other.value("ar_changed") == 0
        if subset not in {key[0] for key in undecided}:
            assert other.value("mean_acceptance_length") == row.value("mean_acceptance_length")
        steps = [StepCounts(*step) for key in theirs if key[0] == subset for step in theirs[key]["draft"]["steps"]]
        rate = sum(step.accepted for step in steps) / sum(step.verified for step in steps)
        assert other.value("acceptance_rate_pooled") == rate
    assert len(undecided) <= len(ours) // 12


def check_compared(folder: Path) -> None:
    """Asserts that `specbench compare` finds the runs of `check_equal` equal, whatever their conditions are."""
    found = compare(read_input(f"{folder / 'served'}:draft"), read_input(f"{folder / 'in-process'}:sd"))
    (subset,) = found.compared
    assert subset.agreement is not None and subset.agreement.num_answers == 2
    assert subset.agreement.num_equal == subset.agreement.num_same_steps == 2 and not subset.agreement.differences
    assert {"engine", "device"} <= {each.field for each in found.hindrances}
    shown = " ".join(line for table in comparison_tables(found) for line in table.caption)
    assert "2 of 2 answers have the same tokens; 2 of 2 have equally many tokens in every step" in shown


def same_passes(key: tuple[str, int], ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Asserts that answers are equal, and that passes accept as many tokens; returns False where the drafter is
    undecided between two tokens, so that the passes after it differ.

    Where the drafter of this process ends its draft at its end token, llama.cpp drafts on; it counts an end token as
    the target's own.
    """
    for name in ("ar", "draft"):
        assert theirs[name]["token_ids"] == ours["sd"]["token_ids"] and theirs[name]["text"] == ours["sd"]["text"], key
    position = 1
    for counts in zip(ours["sd"]["steps"], theirs["draft"]["steps"], strict=False):
        own, other = (StepCounts(*each) for each in counts)
        if own.drafted == other.drafted and own != other:
            first = position + min(own.accepted, other.accepted)
            assert drafter_gap(key, ours["sd"]["token_ids"][:first]) < NEAR_TIE, (key, own, other)
            return False
        if own != other:
            assert own.drafted < other.drafted and own.accepted in (other.accepted, other.accepted + 1), (key, own)
        position += own.emitted
    assert len(ours["sd"]["steps"]) == len(theirs["draft"]["steps"]), key
    return True


def drafter_gap(key: tuple[str, int], answer: list[int]) -> float:
    """Returns the distance between the two highest logits of the drafter after the beginning of an answer."""
    subset, number = key
    spec = run_spec(Request(["mgsm"], ["sd"], RunOptions(subsets=(subset,)), ""))
    ((_, _, data),) = load_data(spec, use_sample=True)
    drafter = load_model("embedded:drafter")
    ids = drafter.encode_prompt(data.examples[number].prompt, chat=False)
    highest, second = drafter.score([*ids, *answer], 1).logits[-1].topk(2).values.tolist()
    return float(highest - second)


def test_a_server_answers_and_accepts_as_this_process_does(tmp_path, servers) -> None:
    short: dict[str, Any] = {"overrides": ("generation.max_new_tokens=40",)}
    served = serve(tmp_path, servers, ("ar", "draft", "copies"), subsets=("en",), limit=2, **short)
    check_equal(tmp_path, ("en",), 2, served, **short)
    check_compared(tmp_path)
    copies = next(row for row in served.rows if row.method_name == "copies")
    assert copies.verdict == "greedy equal" and (copies.value("mean_acceptance_length") or 0) >= 1


@pytest.mark.slow
def test_6_answers_in_three_languages(tmp_path, servers) -> None:
    served = serve(tmp_path, servers, ("ar", "draft"), subsets=SUBSETS, limit=2)
    check_equal(tmp_path, SUBSETS, 2, served)


@pytest.mark.slow
def test_a_server_that_forces_its_acceptance_has_the_rate_that_was_set(tmp_path, servers, monkeypatch) -> None:
    monkeypatch.setattr("specbench.models.batch_width.NUM_NOISE_TOKENS", 4)  # each takes requests to the server ar
    monkeypatch.setattr("specbench.models.batch_width.NUM_NOISE_ANSWERS", 1)
    row = serve(tmp_path, servers, ("ar", "forced"), subsets=("en",), limit=5).rows[-1]
    rate = brentq(lambda rate: expected_speedup(rate, NUM_DRAFT_TOKENS, cost_ratio=0.0) - FORCED_LENGTH, 0.0, 1.0)
    num_passes = sum(row.accepted_tokens_per_step or ())
    assert num_passes > 60  # three standard errors are then below 0.1 of a rate, and 0.8 of a length
    assert row.value("acceptance_rate_pooled") == pytest.approx(rate, abs=0.1)
    assert row.value("mean_acceptance_length") == pytest.approx(FORCED_LENGTH, abs=0.8)
    assert row.verdict == "diverged" and "answers_differ" in {warning.code for warning in row.warnings}


def without_end(name: str, folder: Path) -> Path:
    """Returns an embedded model as a GGUF file in which its end token is a word like others: a server does not accept
    a drafted end token, whatever rates it is given."""
    shutil.copytree(member_path(name), folder)
    for file, old, new in (
        ("tokenizer.json", "<|end|>", "theend"),
        ("config.json", '"eos_token_id": 0', '"eos_token_id": 1'),
    ):
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))
    write_gguf(folder, folder / f"{name}.gguf")
    return folder / f"{name}.gguf"


def test_rates_of_a_recorded_run_are_what_a_server_accepts(tmp_path: Path) -> None:
    """llama.cpp's export of a real pair's profile, and the counters by position of a server that gets it."""
    unpack(ROOT / "leaderboards" / "real" / "wmt-chains.tar.xz", tmp_path / "run")
    text, _ = export(profile_of_runs([f"{tmp_path / 'run'}:sd"]), "llama.cpp")
    words = text.split()
    options = dict(zip(words[::2], words[1::2], strict=True))
    most, rates = options.pop("--spec-draft-n-max"), [float(rate) for rate in options["--spec-synth-rates"].split(",")]
    assert len(options) == 1 and len(rates) == int(most)
    serving = Serving(
        without_end("target", tmp_path / "t"), without_end("drafter", tmp_path / "d"), int(most), threads=1
    )
    with serving.server("draft", synthetic_rates=rates) as address:
        for prompt in ("We add 2 and 3.", "Once upon a time"):
            body = {"prompt": prompt, "n_predict": 500, "ignore_eos": True, "cache_prompt": False}
            request = HttpRequest(f"{address}/completion", json.dumps(body).encode())
            assert json.load(urlopen(request, timeout=120))["tokens_predicted"] == 500
        counters = dict(line.rsplit(" ", 1) for line in urlopen(f"{address}/metrics").read().decode().splitlines()
                        if line.startswith("llamacpp:spec_decode"))  # fmt: skip
    name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    accepted = np.array([float(counters[f'{name}{{position="{place}"}}']) for place in range(len(rates))])
    steps = float(counters["llamacpp:spec_decode_num_drafts_total"])
    assert accepted.sum() == float(counters["llamacpp:spec_decode_num_accepted_tokens_total"]) and steps > 200

    def standard_errors(expected: np.ndarray) -> np.ndarray:
        return np.abs(accepted / steps - expected) / np.sqrt(expected * (1 - expected) / steps)

    assert (standard_errors(np.array(rates)) < 4).all()
    assert standard_errors(np.cumprod(rates))[1:].max() > 4  # the test can tell them from conditional rates


@pytest.mark.slow
def test_four_requests_at_once_have_the_same_answers_and_acceptance(tmp_path, servers) -> None:
    with llama_cpp_server(num_slots=4) as plain, llama_cpp_server("draft", num_slots=4) as drafting:
        addresses = {"ar": plain, "draft": drafting}
        load = {"concurrency": [1, 4], "windows": 2, "requests": 3}
        file = write_file(tmp_path, addresses, ("ar", "draft"), load=load)
        request = Request(["mgsm"], [], RunOptions(subsets=("en",), limit=3), "", output=tmp_path / "run", servers=file)
        outcome = execute(request, QUIET, load_served)
    alone = outcome.rows[1].value("mean_acceptance_length")
    rows = outcome.rows[2:]
    levels = [(load_of(row).level, row.method_name) for row in rows]
    assert levels == [(c, name) for c in (1, 4) for name in ("ar", "draft")]
    for row in rows:
        assert row.verdict == "greedy equal"
        assert load_of(row).requests == 3 * load_of(row).level
        tau, ratio = row.value("mean_acceptance_length"), row.value("pass_ratio")
        assert tau == pytest.approx(1.0 if row.method_name == "ar" else alone, rel=0.01)
        assert tau and ratio and row.value("speedup_user") == pytest.approx(tau / ratio, rel=0.05)


def test_an_answer_cut_in_a_character_has_all_its_tokens(tmp_path, servers) -> None:
    cut = ("generation.max_new_tokens=17",)
    serve(tmp_path, servers, ("ar", "draft"), subsets=("th",), limit=1, overrides=cut)
    ((_, methods),) = records(tmp_path / "served").items()
    assert methods["ar"]["token_ids"] == methods["draft"]["token_ids"] and methods["ar"]["finish"] == "length"
    assert len(methods["ar"]["token_ids"]) == 17 and methods["ar"]["text"].endswith("\ufffd")


def test_control_a_baseline_that_drafts_is_refused(tmp_path, servers) -> None:
    with pytest.raises(ConfigError, match=r"server 'ar' .* was started with speculation"):
        serve(tmp_path, {**servers, "ar": servers["forced"]}, ("ar", "draft"), subsets=("en",), limit=1)


def ask(address: str, name: str = "ar") -> Server:
    spec = ServersSpec.model_validate(
        {"tokenizer": "embedded:target", "servers": {"ar": {"url": address, "speculation": "none"}}}
    )
    return find_server(Client(name, address, 30.0), spec)


def test_log_probabilities_of_the_server_ar_are_those_of_this_process(servers) -> None:
    target, server = load_model("embedded:target"), ask(servers["ar"])
    served = served_target(server, target.vocab_size)
    assert served is not None
    thai = target.tokenizer("คำตอบคือ 12 บาท")["input_ids"]  # its characters have several tokens
    for ids in (target.tokenizer("We add 2 and 3. 2 + 3 =")["input_ids"], thai[:4], thai[:5]):
        for model in (served, target):
            model.reset()
        ours, theirs = (torch.log_softmax(model.score(ids, 3).logits, -1) for model in (target, served))
        best = ours.topk(5).indices
        assert torch.allclose(ours.gather(1, best), theirs.gather(1, best), atol=0.05), ids
        assert abs(logit_gap(served, ids, [7]) - logit_gap(target, ids, [7])) < 0.05 or logit_gap(target, ids, [7]) > 5


def test_zeros_in_place_of_log_probabilities_are_refused(servers) -> None:
    ids = load_model("embedded:target", weights=False).tokenizer("We add 2 and 3. 2 + 3 =")["input_ids"]
    assert len(log_probs(ask(servers["ar"]), ids, 12)) == 12
    assert log_probs(ask(servers["draft"], "draft"), ids, 12) == []


def test_an_answer_that_is_no_text_has_all_its_tokens(tmp_path, servers) -> None:
    """At a high temperature many tokens are bytes that are not a character, whose ids the stream does not have."""
    hot = ("generation.max_new_tokens=12", "generation.temperature=2.0")
    serve(tmp_path, servers, ("ar", "draft"), subsets=("en",), limit=2, overrides=hot)
    answers = [methods[name] for methods in records(tmp_path / "served").values() for name in ("ar", "draft")]
    assert all(len(each["token_ids"]) == 12 or each["finish"] == "eos" for each in answers)
    assert any("\ufffd" in each["text"] for each in answers)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "num_draws"), [(None, 240), ("embedded:drafter", 60)])
def test_a_served_draft_model_is_lossless_and_a_forced_one_is_not(tmp_path, shallow_servers, target, num_draws) -> None:
    """Without the target's probabilities, draws are compared with draws, which takes more of them."""
    options = RunOptions(subsets=("en",), limit=4, target=target)
    file = write_file(tmp_path, shallow_servers, ("ar", "draft", "forced"), "drafter-scdf")
    request = Request(["mgsm"], [], options, "", servers=file)
    report = run_audit(request, num_draws, 1.0, lambda _: None, QUIET, load_served)
    assert [each.verdict for each in report.verdicts] == ["lossless", "lossless", "diverged"]
    assert report.control is not None and report.control.caught
    assert report.reference == ("ar" if target is None else "target")
    assert all(each.answers is not None and not each.answers.failed for each in report.verdicts[:2])


def test_the_command_measures_servers(tmp_path, servers, specbench) -> None:
    file = write_file(tmp_path, servers, ("ar", "draft"))
    code, shown, problem = specbench("run", "--task", "mgsm", "--servers", file, "--subset", "en", "--limit", "1",
                                     "--set", "generation.max_new_tokens=12")  # fmt: skip
    assert code == 0, problem
    assert "answers of servers" in shown and "acceptance from: steps" in shown and "ITL" not in shown
