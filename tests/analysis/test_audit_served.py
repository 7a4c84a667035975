"""The audit of servers: a server that draws from another distribution is found, and one that does not is lossless."""

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from specbench.analysis.audit.audit import run_audit
from specbench.analysis.audit.distribution import Tokens, compare_with_samples, moments_of_pooled
from specbench.analysis.audit.report import AuditReport, MethodVerdict, audit_table, width_table
from specbench.core.errors import ConfigError
from specbench.integrations.served.models import load_served
from specbench.models.loading import load_tokenizer
from specbench.results.row import Row
from specbench.results.verdict import FALSE_ALARM
from specbench.running.execute import execute
from specbench.running.request import Request
from specbench.specs.run_options import RunOptions
from tests.support import tiny
from tests.support.drawn_answers import model, tied
from tests.support.scripted_server import SD, Script, servers_file

QUIET = Console(file=io.StringIO())
SHORT = ("generation.max_new_tokens=8",)


def biased(ids: Sequence[int]) -> dict[int, float]:
    """A server that keeps its best token too often, as one does that accepts too many draft tokens."""
    return dict(zip(model(ids), (0.98, 0.01, 0.005, 0.005), strict=True))


def scripts(other: Any = model, target: Any = model, **ar: Any) -> dict[str, Script]:
    return {"ar": Script("vllm", model=target, **ar), "draft": Script("vllm", passes=SD, model=other)}


def audited(
    folder: Path, servers: Mapping[str, Script], num_draws: int = 300, target: str | None = None,
    overrides: tuple[str, ...] = SHORT, temperature: float = 1.0,
) -> AuditReport:  # fmt: skip
    with servers_file(folder, servers) as file:
        options = RunOptions(subsets=("en",), limit=3, overrides=overrides, target=target)
        request = Request(["mgsm"], [], options, "", servers=file)
        return run_audit(request, num_draws, temperature, lambda _: None, QUIET, load_served)


def verdict(report: AuditReport, method: str) -> MethodVerdict:
    return next(each for each in report.verdicts if each.method == method)


@pytest.mark.slow
def test_a_server_that_draws_as_the_target_is_lossless_and_a_biased_one_is_not(tmp_path) -> None:
    servers = {**scripts(), "biased": Script("vllm", passes=SD, model=biased)}
    report = audited(tmp_path, servers, overrides=("generation.max_new_tokens=24",))  # fewer have no proof in them
    assert [each.verdict for each in report.verdicts] == ["lossless", "lossless", "diverged"]
    assert report.control is not None and report.control.caught and report.reference == "ar"
    wrong = verdict(report, "biased")
    assert wrong.greedy is not None and wrong.greedy.num_equal == 3  # greedily it is right: only draws can tell
    assert wrong.distribution is not None and wrong.distribution.mean_log_p is None
    example = wrong.distribution.example
    assert example is not None and abs(example.num_observed - example.num_expected) > 5
    assert not report.as_declared and report.engine == "served vllm 1.2.3" and report.dtype == "as served"
    caption = "\n".join(audit_table(report).caption)
    assert "tested against as many other samples of the server 'ar'" in caption and "was rejected" in caption
    assert AuditReport.model_validate_json(report.model_dump_json()) == report


def flat(ids: Sequence[int]) -> dict[int, float]:
    """A server that keeps the best token, and draws nearly any."""
    return dict(zip(model(ids), (0.31, 0.23, 0.23, 0.23), strict=True))


@pytest.fixture
def _one_prompt(monkeypatch) -> None:
    """Draws begin from one prompt and not from three."""
    monkeypatch.setattr("specbench.analysis.audit.audit.NUM_SAMPLE_PROMPTS", 1)


@pytest.mark.usefixtures("_one_prompt")
@pytest.mark.slow
def test_a_server_that_is_wrong_late_in_its_samples_is_found_by_whole_answers(tmp_path) -> None:
    servers = scripts()
    servers["draft"].late_model = flat
    long = ("generation.max_new_tokens=64",)
    report = audited(tmp_path, servers, num_draws=4, overrides=long)
    plain, wrong = (verdict(report, name) for name in ("ar", "draft"))
    assert plain.answers is not None and not plain.answers.failed and plain.answers.num_tokens == 3 * 64
    assert wrong.greedy is not None and wrong.greedy.num_equal == 3
    assert wrong.distribution is not None and not wrong.distribution.failed  # the draws end before
    assert wrong.answers is not None and wrong.answers.failed and wrong.verdict == "diverged"
    assert wrong.answers.mean_log_p is not None and wrong.answers.expected_log_p is not None
    assert wrong.answers.mean_log_p < wrong.answers.expected_log_p - 1
    caption = "\n".join(audit_table(report).caption)
    assert re.search(r"by the log-probabilities of the server 'ar': ar [-+]0\.\d+ ± 0\.\d+, draft -1\.\d+ ±", caption)
    assert AuditReport.model_validate_json(report.model_dump_json()) == report


@pytest.mark.usefixtures("_one_prompt")
@pytest.mark.slow
def test_whole_answers_say_nothing_where_those_of_ar_fail_too(tmp_path) -> None:
    servers = {name: replace(each, late_model=flat) for name, each in scripts().items()}
    report = audited(tmp_path, servers, num_draws=2, overrides=("generation.max_new_tokens=64",))
    plain, own = (verdict(report, name) for name in ("ar", "draft"))
    assert plain.answers is not None and plain.answers.failed and own.answers is not None and own.answers.failed
    assert "whole drawn answers" not in str(own.reason)


@pytest.mark.usefixtures("_one_prompt")
def test_whole_answers_at_another_temperature_need_the_target(tmp_path) -> None:
    report = audited(tmp_path, scripts(), num_draws=2, temperature=0.7)
    assert [each.answers for each in report.verdicts] == [None, None]


@pytest.mark.usefixtures("_one_prompt")
def test_too_few_draws_to_catch_the_control_are_no_proof(tmp_path) -> None:
    report = audited(tmp_path, scripts(), num_draws=6)
    assert verdict(report, "draft").verdict == "undecided"
    assert "the test lacks power: control (AR at 1.5 times the temperature) not rejected" in str(
        verdict(report, "draft").reason
    )


def row_of(folder: Path, servers: Mapping[str, Script]) -> Row:
    with servers_file(folder, servers) as file:
        options = RunOptions(subsets=("en",), limit=3, overrides=SHORT)
        request = Request(["mgsm"], [], options, "", servers=file, output=folder / "run")
        return execute(request, QUIET, load_served).rows[-1]


@pytest.mark.parametrize(("gap", "expected"), [(1e-7, "near-tie only"), (1e-3, "diverged")])
def test_near_ties_are_told_by_the_log_probabilities_of_the_server_ar(tmp_path, gap, expected) -> None:
    target, other = tied(gap)
    row = row_of(tmp_path, scripts(other, target))
    assert row.verdict == expected
    assert ("answers_differ" in {warning.code for warning in row.warnings}) == (expected == "diverged")
    (ties,) = json.loads((tmp_path / "run/measurements.json").read_text())["measurements"][0]["ties"]
    assert ties["num_different"] == 3 and ties["num_near_ties"] == (3 if expected == "near-tie only" else 0)
    found = verdict(audited(tmp_path, scripts(other, target), num_draws=0), "draft")
    assert found.greedy is not None and found.greedy.num_equal == 0
    assert found.greedy.example is not None and found.greedy.example.gap == pytest.approx(gap, rel=0.01, abs=1e-6)
    assert found.greedy.num_near_ties == (3 if expected == "near-tie only" else 0)


@pytest.mark.parametrize("moved", [0.0, 0.1])
def test_the_width_of_a_server_is_told_by_its_log_probabilities(tmp_path, moved) -> None:
    """After its own tokens, the server `ar` gives less to the best token than after the same text as a prompt."""

    def writes(ids: Sequence[int]) -> dict[int, float]:
        (best, most), (second, less), *others = model(ids).items()
        return {best: most - moved, second: less + moved, **dict(others)}

    with servers_file(tmp_path, scripts(writes=writes)) as file:
        request = Request(["mgsm"], [], RunOptions(subsets=("en",), limit=3, overrides=SHORT), "", servers=file)
        report = run_audit(request, 0, 1.0, lambda _: None, QUIET, load_served, shows_width=True)
    assert report.batch_width is not None
    (found,) = report.batch_width.changes
    assert found.compared == "prompt" and found.num_positions == 3 * 8 and found.seconds is None
    assert found.total_variation == pytest.approx(7 / 8 * moved, abs=1e-5)  # the first token follows the prompt
    assert report.batch_width.is_independent == (moved == 0)
    said = " ".join(width_table(report).caption)
    assert "that the server 'ar' reports" in said and ("does not depend on the width" in said) == (moved == 0)


def test_a_server_without_log_probabilities_leaves_differences_undecided(tmp_path) -> None:
    target, other = tied(1e-7)
    servers = scripts(other, target, tells_log_probs=False)
    assert row_of(tmp_path, servers).verdict == "not audited"
    with pytest.raises(ConfigError, match=r"the server 'ar' reports no log-probabilities, .*: give --target") as caught:
        audited(tmp_path, servers)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("_one_prompt")
def test_the_target_of_this_process_judges_the_server_ar_too(tmp_path) -> None:
    folder, tokenizer = tmp_path / "target", load_tokenizer("embedded:target")
    tiny.network(num_hidden_layers=1, vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    report = audited(tmp_path, scripts(tells_log_probs=False), num_draws=8, target=str(folder))
    own = verdict(report, "ar")
    assert report.reference == "target" and own.distribution is not None and own.distribution.mean_log_p is not None
    assert (
        own.answers is not None
        and own.answers.failed
        and "by the log-probabilities of the target in this process" in ("\n".join(audit_table(report).caption))
    )
    assert own.distribution.failed and own.verdict == "diverged"  # the scripted server serves another model


def test_a_target_with_other_tokens_is_refused(tmp_path, tiny_pair) -> None:
    with pytest.raises(ConfigError, match=r"^--target .*: has other tokens than the tokenizer of the servers"):
        audited(tmp_path, scripts(), target=tiny_pair[0])


@pytest.mark.usefixtures("_one_prompt")
def test_the_command_fails_for_a_server_that_is_not_lossless(tmp_path, specbench) -> None:
    with servers_file(tmp_path, scripts(flat)) as file:
        code, shown, problem = specbench(
            "audit", "--servers", file, "--subset", "en", "--limit", "3", "--set", *SHORT, "--draws", "30",
            "--output", tmp_path / "audit.json",
        )  # fmt: skip
    assert code == 1, problem
    assert "draft – diverged: its samples do not follow the target's probabilities" in " ".join(shown.split())
    assert json.loads((tmp_path / "audit.json").read_text())["reference"] == "ar"
    assert f"report: {tmp_path / 'audit.json'}" in shown.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--task and --method need at least one name each"),
        (("--method", "sd"), "servers.yaml has no such server: the choices are ar, draft"),
        (("--dtype", "float32"), "--dtype float32: has no effect with --servers"),
    ],
)
def test_mistakes_are_one_line(tmp_path, specbench, arguments, message) -> None:
    with servers_file(tmp_path, scripts()) as file:
        code, _, problem = specbench("audit", *(["--servers", file] if arguments else []), *arguments)
    assert code == 2 and message in " ".join(problem.split())


def drawn(generator: np.random.Generator, probs: Sequence[float], number: int) -> list[list[Tokens]]:
    return [[tuple(row) for row in generator.choice(len(probs), p=probs, size=(number, 3)).tolist()] for _ in range(2)]


@pytest.mark.parametrize("sizes", [(100, 100), (150, 60)])
def test_false_alarms_are_as_rare_as_stated(sizes: tuple[int, int]) -> None:
    generator, probs = np.random.default_rng(5), (0.6, 0.2, 0.1, 0.06, 0.04)
    found = [
        compare_with_samples(*(drawn(generator, probs, size) for size in sizes), 0.0)[0].p_value for _ in range(200)
    ]  # fmt: skip
    for level in (0.5, 0.1, 0.02):
        expected = stats.binom(len(found), level)
        assert expected.ppf(0.001) <= sum(p < level for p in found) <= expected.ppf(0.999), level
    assert sum(p < FALSE_ALARM for p in found) <= 3


def test_the_moments_are_those_of_tables_with_given_sums() -> None:
    generator, columns, own = np.random.default_rng(1), np.array([12, 25, 40]), 30
    total = int(columns.sum())
    tables = generator.multivariate_hypergeometric(columns, own, size=200_000)
    expected = columns * own / total
    values = ((tables - expected) ** 2 / expected).sum(1) * total / (total - own)
    mean, variance = moments_of_pooled(columns / total, own, total - own)
    assert mean == pytest.approx(values.mean(), rel=0.01) and variance == pytest.approx(values.var(), rel=0.03)


def test_a_rare_token_that_only_one_side_draws_is_found() -> None:
    generator = np.random.default_rng(2)
    own, others = (drawn(generator, probs, 300) for probs in ((0.5, 0.4, 0.1), (0.5, 0.5)))
    found, outlier = compare_with_samples(own, others, 0.0)
    assert found.failed and outlier is not None and outlier.token == 2 and outlier.num_expected < 5
