"""`specbench check`: injected regressions are caught, repetitions are not, and what does not compare is said to be so.

The clock is simulated: every look at it takes a millisecond with 10 % of noise, so that nothing hangs on the load of
the machine; a sleep moves it on.
"""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console
from scipy import stats

from specbench.core.errors import ConfigError
from specbench.gate.check import check
from specbench.gate.report import ALL_LENGTH as LENGTH
from specbench.gate.report import (
    FALSE_ALARMS,
    SPEED,
    SPEEDUP,
    MethodFindings,
    Ratio,
    junit,
    markdown,
    output_finding,
)
from specbench.gate.rotation import InterleavedRuns
from specbench.gate.speed import (
    MIN_PROMPTS,
    TYPICAL,
    TYPICAL_SPEED,
    hodges_lehmann,
    judge,
    length_ratio,
    typical_ratio,
)
from specbench.models import meters
from specbench.models.near_ties import TokenDifference
from specbench.results.answers import Answer
from specbench.results.conditions import pair_rows
from specbench.results.leaderboard import load, write
from specbench.results.paired import unpaired_ratio, widen_ratio
from specbench.results.row import RowSampling
from specbench.running.execute import execute
from specbench.running.request import Request
from specbench.specs.run_options import RunOptions
from specbench.statistics.bootstrap import Estimate, Resampler, bonferroni
from tests.support import tiny
from tests.support.records import generation as made_generation
from tools.gate.simulated import CLOCKS, shares

NUM_PROMPTS = MIN_PROMPTS


class SimulatedClock:
    """In the place of the module `time`, where passes are timed."""

    def __init__(self, seed):
        self.now, self.noise = 0.0, np.random.default_rng(seed)

    def perf_counter(self):
        self.now += 1e-3 * float(np.exp(0.1 * self.noise.normal()))
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture(scope="module")
def patch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A target, a drafter that is nearly it, and one that is much less so."""
    folder = tmp_path_factory.mktemp("models")
    tiny.save(folder / "target", num_hidden_layers=1)
    for name, noise in {"drafter": 0.03, "worse": 0.5}.items():
        network = tiny.network(num_hidden_layers=1, vocab_size=257)
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += noise * parameter.std() * torch.randn_like(parameter) if parameter.ndim > 1 else 0
        network.save_pretrained(folder / name)
        tiny.tokenizer().save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory, models, patch):
    """Measures into a new folder, with a clock of its own."""

    def run(
        name, seed, drafter="drafter", overrides=(), target="target", limit=NUM_PROMPTS // 2, methods=("sd", "fsd")
    ):
        clock = SimulatedClock(seed)
        patch.setattr(meters, "time", clock)
        path = tmp_path_factory.mktemp("runs") / name
        request = Request(
            tasks=["mgsm"], methods=methods, command="specbench run --task mgsm", output=path,
            options=RunOptions(
                subsets=("en", "sw"), target=str(models / target), drafter=str(models / drafter),
                data="sample", limit=limit, device="cpu", threads=1,
                overrides=("generation.max_new_tokens=4", *overrides),
            ),
        )  # fmt: skip
        execute(request, Console(quiet=True))
        return path

    return run


@pytest.fixture(scope="module")
def base(run):
    return run("base", seed=1)


@pytest.fixture(scope="module")
def again(run):
    """The same, measured once more."""
    return run("again", seed=2)


@pytest.fixture(scope="module")
def strict(run):
    """A run whose fuzzy rule accepts nothing that differs at all."""
    return run("strict", seed=5, overrides=["verification.threshold=0.0"])


def regressions(report):
    return {(each.method, finding.what) for each in report.compared for finding in each.regressions}


def said(report):
    return "\n".join([*report.problems, *(text for each in report.compared for text in each.problems)])


def redrawn(folder, path, seed):
    """A copy of a run whose generations took another time: 5 % of noise, and one of 50 twice as long."""
    noise = np.random.default_rng(seed)
    clock = float(np.exp(0.05 * noise.normal()))

    def draw(records):
        for generation in (generation for record in records for generation in record["methods"].values()):
            spike = 2 if noise.random() < 0.02 else 1
            generation["decode_seconds"] *= clock * spike * float(np.exp(0.05 * noise.normal()))

    return with_records(folder, path, draw)


def edited(folder, path, **changes):
    """A copy of a run with other rows."""
    copy = shutil.copytree(folder, path)
    rows = load(copy / "leaderboard.json")
    write(copy / "leaderboard.json", [row.model_copy(update=changes) for row in rows])
    return copy


def with_records(folder, path, change):
    """A copy of a run with other records."""
    file = shutil.copytree(folder, path) / "records.jsonl"
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    change(records)
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def scaled(folder, path, name, factor, **changes):
    """A copy of a run with one metric of all rows multiplied, with its interval, and other changes."""
    copy = shutil.copytree(folder, path)
    rows = []
    for row in load(copy / "leaderboard.json"):
        ends = {end: value and factor * value for end, value in row.metrics[name].model_dump().items()}
        rows.append(row.model_copy(update={**changes, "metrics": {**row.metrics, name: Estimate(**ends)}}))
    write(copy / "leaderboard.json", rows)
    return copy


def with_another_token(records):
    ids = records[0]["methods"]["sd"]["token_ids"]
    ids[3] = (ids[3] + 1) % 256


def test_repetitions_raise_no_alarm(base, again, tmp_path):
    folders = [redrawn(base, tmp_path / str(seed), seed) for seed in range(2)]
    for folder in [again, *folders]:
        report = check(str(base), str(folder), 0.03)
        assert report.result == "fine" and report.exit_code == 0 and report.num_tolerant == 4, said(report)
    assert all(finding.candidate.startswith("8 equal") for each in report.compared for finding in each.findings
               if finding.what == "outputs")  # fmt: skip


def again_interleaved(folder, path, seed, slower=(), share=1.0):
    """A copy of a run as if both had been measured interleaved: 5 % of noise, and decoders that take longer."""
    noise = np.random.default_rng(seed)

    def draw(records):
        for name, generation in (item for record in records for item in record["methods"].items()):
            generation["decode_seconds"] *= float(np.exp(0.05 * noise.normal())) * (share if name in slower else 1)

    return with_records(folder, path, draw)


def speeds_that_fell(report):
    return {each.method for each in report.compared for finding in each.regressions if finding.ratio is not None}


def test_interleaved_every_method_is_compared_with_itself_and_ar_too(base, tmp_path):
    """So that a slow-down of what AR and the methods share is found, which no speed-up shows."""
    for seed in range(2):
        same = again_interleaved(base, tmp_path / f"same-{seed}", seed)
        report = check(str(base), str(same), 0.01, interleaved=True)
        assert report.result == "fine" and report.num_tolerant == 6, said(report)
    shared = again_interleaved(base, tmp_path / "shared", 4, ("ar", "sd", "fsd"), 1.15)
    report = check(str(base), str(shared), 0.01, interleaved=True)
    assert report.exit_code == 1 and speeds_that_fell(report) == {"ar", "sd", "fsd"}
    assert {what for _, what in regressions(report)} <= {SPEED, TYPICAL_SPEED}
    text = markdown(report)
    assert "| speed in tokens/s |" in text and "or a ratio of speed in tokens/s whose whole interval" in text
    assert speeds_that_fell(check(str(base), str(shared), 0.01)) == set(), "control: no speed-up fell"
    alone = again_interleaved(base, tmp_path / "alone", 5, ("sd",), 1.15)
    assert speeds_that_fell(check(str(base), str(alone), 0.01, interleaved=True)) == {"sd"}
    assert check(str(base), str(alone), 0.2, interleaved=True).exit_code == 0, "control: so much was allowed"


def test_interleaved_the_times_of_other_outputs_are_left_out(base, tmp_path):
    def change(records):
        for record in records[:num_changed]:
            ids = record["methods"]["fsd"]["token_ids"]
            ids[0] = (ids[0] + 1) % 256
            record["methods"]["fsd"]["decode_seconds"] *= 100

    num_changed = 2
    report = check(str(base), str(with_records(base, tmp_path / "two", change)), 0.01, interleaved=True)
    (fsd,) = [each for each in report.compared if each.method == "fsd"]
    assert speeds_that_fell(report) == set()
    assert any(text.startswith("times of 2 of 16 outputs of all: they have other tokens") for text in fsd.not_compared)
    num_changed = NUM_PROMPTS
    report = check(str(base), str(with_records(base, tmp_path / "all", change)), 0.01, interleaved=True)
    assert "no equal answers of more than one token" in said(report) and report.exit_code == 2


def test_a_drafter_made_worse_is_caught(base, run):
    report = check(f"{base}:sd", str(run("worse", 3, drafter="worse", methods=["sd"])), 0.03)
    found = regressions(report)
    assert report.exit_code == 1
    assert {("sd", what) for what in ("τ", "α", "target passes per token", "draft passes per token")} <= found
    sd = next(each for each in report.compared if each.method == "sd")
    assert any(note.startswith("changed: drafter_revision") for note in sd.notes)
    assert all(not finding.regressed for finding in sd.findings if finding.what == "outputs")


def test_a_sleep_in_the_loop_is_caught_by_the_speed_up_alone(base, run, patch):
    from specbench.decoding.drafters import ModelDrafter

    def slow(self, *arguments):
        meters.time.sleep(0.01)
        return propose(self, *arguments)

    propose = ModelDrafter.propose
    patch.setattr(ModelDrafter, "propose", slow)
    folder = run("slow", 4, methods=["sd"])
    patch.setattr(ModelDrafter, "propose", propose)
    report = check(f"{base}:sd", str(folder), 0.03)
    assert report.exit_code == 1 and regressions(report) == {("sd", SPEEDUP), ("sd", TYPICAL)}
    assert check(f"{base}:sd", str(folder), 0.9).exit_code == 0, "control: so much was allowed"
    by_rows = check(f"{base / 'leaderboard.json'}:sd", str(folder), 0.03)
    assert ("sd", "speed-up") in regressions(by_rows)


@pytest.mark.slow
def test_a_stricter_rule_is_caught(base, strict):
    report = check(str(base), str(strict), 0.03)
    assert report.exit_code == 1
    assert {method for method, _ in regressions(report)} == {"fsd"}
    assert {("fsd", "τ, all outputs"), ("fsd", "τ")} & regressions(report)
    assert any("threshold" in note for each in report.compared for note in each.notes)


def test_a_rule_that_is_wrong_is_caught_by_its_outputs(base, tmp_path):
    """The target is asked: what it excuses is not a regression, what it does not is one."""
    copy = with_records(base, tmp_path / "wrong", with_another_token)
    report = check(str(base), str(copy), 0.03)
    assert report.exit_code == 1 and regressions(report) == {("sd", "outputs")}
    (finding,) = [finding for each in report.compared for finding in each.regressions]
    assert "7 equal, 1 other" in str(finding) and "token 3" in finding.detail


def test_other_draws_are_no_regression(base, tmp_path):
    """Of a run that samples, other tokens are compared by what their passes are worth."""
    before = edited(base, tmp_path / "before", sampling=RowSampling(temperature=1.0))
    now = with_records(before, tmp_path / "now", with_another_token)
    report = check(str(before), str(now), 0.03)
    sd = next(each for each in report.compared if each.method == "sd")
    assert report.exit_code == 0 and LENGTH in {finding.what for finding in sd.findings}
    assert any(text.startswith("α and passes of all outputs") for text in sd.not_compared)
    assert any("7 equal, 1 other (outputs of a lossy or sampling" in str(finding) for finding in sd.findings)


def test_counts_have_noise_where_rounding_may_differ(base, tmp_path):
    """A near-tie of the drafter: one more draft pass, of the same outputs."""

    def one_more(records):
        records[0]["methods"]["sd"]["passes"]["draft"].append([1, 0.0])

    copy = with_records(base, tmp_path / "more", one_more)
    assert regressions(check(str(base), str(copy), 0.03)) == {("sd", "draft passes per token")}
    other = edited(copy, tmp_path / "other", device="A faster CPU")
    report = check(str(base), str(other), 0.03, ignore=["device"])
    sd = next(each for each in report.compared if each.method == "sd")
    assert report.result == "fine" and LENGTH in {finding.what for finding in sd.findings}
    assert any("device differs, and rounding may change drafts" in note for note in sd.notes)


def test_of_rows_too_counts_have_noise_where_rounding_may_differ(base, tmp_path):
    board = str(base / "leaderboard.json")
    same = scaled(base, tmp_path / "same", "mean_acceptance_length", 0.999)
    assert ("sd", "τ") in regressions(check(board, str(same), 0.03))
    other = scaled(base, tmp_path / "other", "mean_acceptance_length", 0.999, device="A faster CPU")
    report = check(board, str(other), 0.03, ignore=["device"])
    assert report.result == "fine" and any(f.what == "τ" and f.ratio for each in report.compared for f in each.findings)
    worse = scaled(base, tmp_path / "worse", "mean_acceptance_length", 0.1, device="A faster CPU")
    assert ("sd", "τ") in regressions(check(board, str(worse), 0.03, ignore=["device"]))


def test_near_ties_are_no_regression():
    tie = TokenDifference(prompt="1", position=2, ar_token="a", method_token="b", gap=1e-6, near_tie=True)
    serious = tie.model_copy(update={"near_tie": False, "gap": 1.0})
    excused, wrong = output_finding("en", 8, 1, [tie]), output_finding("en", 8, 2, [tie, serious])
    assert not excused.regressed and excused.candidate == "8 equal, 1 near-ties"
    assert wrong.regressed and wrong.candidate == "8 equal, 1 near-ties, 1 other"


@pytest.mark.parametrize("changes", [{"verdict": "diverged"}, {"verdict": "lossy by design", "lossless": False}])
def test_lost_losslessness_is_a_regression(base, tmp_path, changes):
    copy = edited(base, tmp_path / "lossy", **changes)
    report = check(f"{base}:sd", f"{copy}:sd", 0.03)
    assert report.exit_code == 1 and ("sd", "verdict") in regressions(report)
    assert check(f"{copy}:sd", f"{base}:sd", 0.03).exit_code == 0, "the other way round it is none"


def test_another_tokenizer_cannot_be_compared(base, run, models, tmp_path):
    shutil.copytree(models / "target", models / "other")
    shutil.copytree(models / "drafter", models / "other-drafter")
    for name in ("other", "other-drafter"):
        file = models / name / "tokenizer.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        content["pre_tokenizer"]["add_prefix_space"] = True
        file.write_text(json.dumps(content), encoding="utf-8")
    report = check(str(base), str(run("other", 6, "other-drafter", target="other", limit=1)), 0.03)
    assert report.exit_code == 2
    assert "target_revision: local-" in said(report) and "n: 8 in the baseline, 1 in the candidate" in said(report)
    named = edited(base, tmp_path / "named", target_revision="local-0")
    assert check(str(base), str(named), 0.03, ignore=["target"]).exit_code == 2, "the name may differ, not the files"


def test_prompts_of_another_length_cannot_be_compared(base, tmp_path):
    """A tokenizer that the revision of a model does not tell: that of a plug-in."""

    def longer(records):
        records[0]["prompt_tokens"] += 1

    copy = with_records(base, tmp_path / "longer", longer)
    report = check(str(base), str(copy), 0.03)
    assert report.exit_code == 2 and "en: prompt_tokens differs in 1 of 8 records" in said(report)


def test_conditions_that_differ_are_named_with_both_values(base, tmp_path):
    copy = edited(base, tmp_path / "other", device="A faster CPU", seed=7)
    report = check(str(base), str(copy), 0.03)
    assert report.exit_code == 2
    for part in ("device: ", "A faster CPU in the candidate", "seed: 0 in the baseline, 7 in the candidate"):
        assert part in said(report)
    only_device = edited(base, tmp_path / "device", device="A faster CPU")
    assert check(str(base), str(only_device), 0.03, ignore=["device"]).exit_code == 0


def test_an_ar_of_another_speed_says_so(base, tmp_path):
    def slow(records):
        for generation in (generation for record in records for generation in record["methods"].values()):
            generation["decode_seconds"] *= 2

    copy = with_records(base, tmp_path / "loaded", slow)
    report = check(str(base), str(copy), 0.03)
    assert report.exit_code == 2 and "ar itself ran at 0.500 times its speed" in said(report)


def test_too_few_prompts_are_a_problem(run, tmp_path):
    """However much slower the candidate has become, or not: nothing that was not compared passes."""

    def slow(records):
        for record in records:
            record["methods"]["sd"]["decode_seconds"] *= 3

    few = run("few", 7, limit=3, methods=["sd"])
    slower = with_records(few, tmp_path / "slower", slow)
    for baseline in (few, few / "leaderboard.json"):
        report = check(f"{baseline}:sd", str(slower), 0.03)
        assert report.exit_code == 2 and not report.num_tolerant
        assert "speed-up of all: 6 prompts are too few: measure 16 or more" in said(report)


@pytest.mark.parametrize(
    ("fall", "exit_code", "told"),
    [(0.9, 2, "other work on the machine may explain this: measure both"), (0.8, 1, "")],
)
def test_a_speed_up_that_fell_with_the_speed_of_ar_has_no_verdict(base, tmp_path, fall, exit_code, told):
    """AR took a fifth longer in the second run; the method longer still, as where a machine has other work. Then 10 %
    may have gone with it, and no more."""

    def load(records):
        for record in records:
            for name, generation in record["methods"].items():
                generation["decode_seconds"] *= 1.2 / (1 if name == "ar" else fall)

    report = check(str(base), str(with_records(base, tmp_path / "loaded", load)), 0.03)
    assert report.exit_code == exit_code and told in said(report)
    alone = with_records(base, tmp_path / "alone", lambda records: [r["methods"]["sd"].update(
        decode_seconds=r["methods"]["sd"]["decode_seconds"] / fall) for r in records])  # fmt: skip
    assert check(str(base), str(alone), 0.03).exit_code == 1, "control: with AR as before it is a regression"


@pytest.mark.parametrize(
    ("num_prompts", "ratio", "what", "verdict"),
    [
        (MIN_PROMPTS, Estimate(value=1.0, low=0.99, high=1.01), SPEEDUP, "fine"),
        (MIN_PROMPTS, Estimate(value=0.5, low=0.49, high=0.51), SPEEDUP, "regressed"),
        (MIN_PROMPTS - 1, Estimate(value=0.5, low=0.49, high=0.51), SPEEDUP, "cannot compare"),
        (MIN_PROMPTS, Estimate(value=0.5), SPEEDUP, "cannot compare"),
        (MIN_PROMPTS, Estimate(value=0.5), LENGTH, "cannot compare"),
        (MIN_PROMPTS, Estimate(value=0.5), TYPICAL, "fine"),  # all prompts together decide
    ],
)
def test_what_has_no_interval_never_passes(num_prompts, ratio, what, verdict):
    compared = MethodFindings("mgsm", "sd")
    values = (Estimate(value=2.0), Estimate(value=2.0))
    judge(compared, Ratio(what, "all", values, lambda by: ratio, num_prompts), 1.0, 0.03, paired=True)
    assert compared.result == verdict
    assert len([*compared.findings, *compared.problems, *compared.not_compared]) == 1


def test_a_speed_up_that_the_candidate_lost_is_a_problem(base, tmp_path):
    lost = edited(base, tmp_path / "lost", metrics={})
    for baseline in (base, base / "leaderboard.json"):
        report = check(f"{baseline}:sd", str(lost), 0.03)
        assert report.exit_code == 2 and "speed-up of all: sd has none" in said(report)


def test_of_several_rows_of_a_file_the_nearest_is_compared(base):
    row = next(row for row in load(base / "leaderboard.json") if row.method.startswith("sd@"))
    retrained = row.model_copy(update={"drafter_revision": "r1", "created": "2026-01-01"})
    older = row.model_copy(update={"versions": {**row.versions, "torch": "1.0"}, "created": "2026-01-02"})
    for others in ((retrained, older, row), (row, older, retrained)):
        pairs, *_ = pair_rows(others, [row], ["versions"], by_rows=True)
        assert [pair.baseline for pair in pairs] == [row]
    third = row.model_copy(update={"drafter_revision": "r2", "created": "2026-01-03"})
    pairs, refused, *_ = pair_rows((retrained, older, third), [row], [], by_rows=True)
    (reason,) = refused[0][1]
    assert not pairs and "2026-01-01 and 2026-01-03 (drafter_revision r1 → r2): remove one of the two" in reason


def test_what_the_candidate_left_out_is_a_problem(base, tmp_path):
    def without_fsd(records):
        for record in records:
            del record["methods"]["fsd"]

    copy = with_records(base, tmp_path / "less", without_fsd)
    rows = load(copy / "leaderboard.json")
    write(copy / "leaderboard.json", [row for row in rows if not row.method.startswith("fsd@")])
    specs = json.loads((copy / "specs.json").read_text(encoding="utf-8"))
    specs["methods"] = [method for method in specs["methods"] if method["name"] != "fsd"]
    (copy / "specs.json").write_text(json.dumps(specs), encoding="utf-8")
    report = check(str(base), str(copy), 0.03)
    assert report.exit_code == 2 and "the candidate has no mgsm fsd (en, sw)" in said(report)
    assert check(f"{base}:sd", str(copy), 0.03).exit_code == 0


def test_a_leaderboard_file_as_baseline(specbench, base, again, tmp_path):
    board = tmp_path / "board.json"
    shutil.copy(base / "leaderboard.json", board)
    code, out, _ = specbench("check", "--baseline", board, "--candidate", again, "--max-regression", "5%")
    assert code == 0 and "fine:" in out and "a leaderboard file does not have them" in out
    ratios = [f.ratio.value for each in check(str(board), str(again), 0.05).compared for f in each.findings if f.ratio]
    assert len(ratios) == 2 and all(0.9 < ratio < 1.1 and ratio != 1 for ratio in ratios), "measured anew"
    worse = edited(base, tmp_path / "worse", metrics={"mean_acceptance_length": Estimate(value=0.99)})
    code, out, _ = specbench("check", "--baseline", board, "--candidate", worse)
    assert code == 1 and "sd, en: τ" in out


def test_the_report_in_three_forms(specbench, base, tmp_path):
    worse = edited(base, tmp_path / "worse", verdict="diverged")
    text, xml = tmp_path / "made" / "gate.md", tmp_path / "gate.xml"
    code, out, err = specbench("check", "--baseline", base, "--candidate", worse, "--markdown", text, "--junit", xml)
    assert code == 1 and "Traceback" not in err
    assert out.startswith("regressed:") and len(out.splitlines()) <= 40
    assert all(len(line) <= 100 for line in out.splitlines())
    report = check(str(base), str(worse), 0.03)
    assert text.read_text(encoding="utf-8").strip() == markdown(report).strip()
    assert "\n| fsd | " in markdown(report) and markdown(report).startswith("### specbench check: regressed")
    suite = ElementTree.fromstring(junit(report).partition("?>")[2])[0]
    assert ElementTree.parse(xml).getroot()[0].attrib == suite.attrib
    num_findings = sum(len(each.findings) for each in report.compared)
    assert int(suite.get("tests")) == len(suite) >= num_findings
    assert int(suite.get("failures")) == len(regressions(report) and suite.findall("testcase/failure")) > 0


MISTAKES = {
    "no such folder or file": ["--baseline", "nowhere", "--candidate", "{run}"],
    "has no rows of method 'sdd': did you mean 'sd'?": ["--baseline", "{run}:sdd", "--candidate", "{run}"],
    "no such folder: give the folder of a run": ["--baseline", "{run}", "--candidate", "nowhere"],
    "is a file: give the folder of a run": ["--baseline", "{run}", "--candidate", "{run}/leaderboard.json"],
    "has no leaderboard.json, so it is not finished": ["--baseline", "{run}", "--candidate", "."],
    "--max-regression 3: give a share": ["--baseline", "{run}", "--candidate", "x", "--max-regression", "3"],
    "did you mean 'versions'?": ["--baseline", "{run}", "--candidate", "x", "--ignore", "version"],
    "--junit .: cannot be written (it is a folder)": ["--baseline", "{run}", "--candidate", "x", "--junit", "."],
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_line(specbench, base, message):
    code, out, err = specbench("check", *(word.format(run=base) for word in MISTAKES[message]))
    assert code == 2 and out == "" and len(err.strip().splitlines()) == 1
    assert message in err


def test_a_run_that_was_cut_short_is_refused(base, tmp_path):
    copy = shutil.copytree(base, tmp_path / "cut")
    lines = (copy / "records.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (copy / "records.jsonl").write_text("".join(lines[:-3]), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mgsm/en has a row of n = 8 and records of 7: repeat its command"):
        check(str(base), str(copy), 0.03)


def test_intervals_are_widened_for_many_and_never_narrowed():
    ratio = Estimate(value=0.9, low=0.8, high=0.96)
    one, ten = (bonferroni(number, FALSE_ALARMS) for number in (1, 10))
    assert 1 < one < ten and widen_ratio(ratio, 1.0) == pytest.approx(ratio)
    wide = widen_ratio(ratio, ten)
    assert wide.low < 0.8 and wide.high > 0.96 and wide.value == 0.9
    assert widen_ratio(Estimate(value=0.9), 2.0) == Estimate(value=0.9)


def test_ratios_of_rows_join_their_intervals():
    speed = Estimate(value=2.0, low=1.8, high=2.2)
    ratio = unpaired_ratio(speed, speed)
    assert ratio.value == 1.0 and np.log(ratio.high) == pytest.approx(np.hypot(np.log(1.1), np.log(2 / 1.8)))
    assert (
        unpaired_ratio(speed, Estimate(value=1.0)) == Estimate(value=0.5)
        and unpaired_ratio(Estimate(), speed) == Estimate()
    )


@pytest.mark.slow
def test_false_alarms_are_rare():
    """At a rate of 1 % more than 10 of 500 are alarms with a probability of 1.3 %, at one of 4 % of 99 %."""
    assert shares(500, MIN_PROMPTS, 0.0, CLOCKS["quiet"], max_regression=0.0)[1] <= 10 / 500
    assert shares(100, MIN_PROMPTS, 0.0, CLOCKS["noisy"])[1] <= 4 / 100


def test_false_alarms_are_few_and_large_falls_are_seen(monkeypatch):
    """Exit codes; docs/measured/gate.md has the table. Of 100 checks more than 4 are alarms with a probability of 0.3 %
    at a rate of 1 %, and of 91 % at a rate of 8 %; the slow test above sees lower ones."""
    assert shares(100, MIN_PROMPTS, 0.0, CLOCKS["quiet"], max_regression=0.0)[1] <= 4 / 100
    assert shares(20, 100, 0.2, CLOCKS["quiet"])[1] >= 0.9
    assert shares(20, MIN_PROMPTS - 1, 0.0, CLOCKS["quiet"]) == (0, 0, 1)
    monkeypatch.setattr("specbench.gate.speed.EXCESS", 0.0)
    assert shares(60, 100, 0.0, CLOCKS["noisy"])[1] > 0.03, "control: a load that AR does not cancel"


def test_the_typical_ratio_is_that_of_wilcoxon_and_ignores_a_generation_that_was_held_up():
    logs = np.random.default_rng(0).normal(-0.1, 0.05, size=30)
    low, middle, high = hodges_lehmann(logs)
    for end in (low, high):  # the test's own p-value there is 5 %
        assert stats.wilcoxon(logs - end).pvalue == pytest.approx(0.05, abs=0.01)
    columns = np.ones((8, 30))
    columns[1] = np.exp(-logs)
    columns[1, 0] *= 50
    assert typical_ratio(columns).value == pytest.approx(np.exp(middle), rel=0.02) and low < middle < high
    assert hodges_lehmann(logs, 2.0)[2] > high and hodges_lehmann(logs, 99.0) == (None, middle, None)
    assert typical_ratio(columns, 99.0) == Estimate(value=typical_ratio(columns).value), (
        "no end, rather than one that is too near"
    )


def test_an_answer_without_passes_on_one_side_has_no_length_there_and_is_left_out_on_both():
    """Answers of 3 tokens a pass; the last of the candidate ended with the prefill. Nothing at all does not pass."""

    def answer(num_passes):
        return Answer.of(made_generation(steps=[[2, 2, 2, 3]] * num_passes))

    prompts = Resampler.of_units(MIN_PROMPTS + 1, seed=0)
    before, now = [answer(2)] * (MIN_PROMPTS + 1), [*[answer(1)] * MIN_PROMPTS, answer(0)]
    found = length_ratio(SimpleNamespace(own=(before, now), prompts=prompts), "all")
    assert found.num_prompts == MIN_PROMPTS and [each.value for each in found.values] == [3.0, 3.0]
    assert found.ratio(1.0) == Estimate(value=1.0, low=1.0, high=1.0)
    ended = [answer(0)] * (MIN_PROMPTS + 1)
    none = length_ratio(SimpleNamespace(own=(before, ended), prompts=prompts), "all")
    compared = MethodFindings("mgsm", "sd")
    judge(compared, none, 1.0, 0.03, paired=True)
    assert none.num_prompts == 0 and compared.result == "cannot compare"


def test_the_workflow_of_the_guide(specbench, base, tmp_path, monkeypatch):
    guide = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "guard.md").read_text(encoding="utf-8")
    workflow = yaml.safe_load(re.findall(r"```yaml\n(?:# \S+\n)?(name: speed\n.*?)```", guide, re.S)[-1])
    commands = "\n".join(step.get("run", "") for step in workflow["jobs"]["gate"]["steps"])
    (line,) = [line for line in commands.splitlines() if "specbench check" in line]
    assert "venv $side-env" in commands and "cat gate.md" in commands and '{ref: "${{ github.base_ref }}"' in guide
    runs = InterleavedRuns(base, again_interleaved(base, tmp_path / "again", 1), ("baseline: specbench 0.0.9",))
    asked = []

    def measure(request, against, say, folder):
        asked.append((request.tasks, request.methods, request.options.limit, against, folder))
        return runs

    monkeypatch.setattr("specbench.gate.rotation.measure_interleaved", measure)
    monkeypatch.setattr("shutil.which", lambda text: text)  # the workflow installs it
    for side in ("../base", "."):
        (tmp_path / "head" / side).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / "head")
    code, out, err = specbench(*line.split()[1:])
    assert code == 0 and "baseline: specbench 0.0.9" in out, err
    assert asked == [(["mgsm"], ["sd", "fsd"], 10, str(tmp_path / "base-env/bin/python"), Path("../base"))]
    assert (tmp_path / "gate.md").is_file() and (tmp_path / "gate.xml").is_file()
