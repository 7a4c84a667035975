"""`specbench drift`: the steps along a known answer against all coins and all texts, and runs against their own
records."""

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from specbench.analysis.drift.walk import walk
from tests.support.runs import DRAFTER, TARGET, run_into

Run = Callable[..., tuple[int, str, str]]


# 1. The walk.


def steps_of(coins: tuple[int, ...], num_draft_tokens: int, max_new_tokens: int) -> tuple[int, list[int], list[int]]:
    """The steps, judged and accepted drafts of an answer whose drafts are accepted where the coin is 1, as a loop
    that decodes it counts them. Coin 0 is of the prompt's own pass."""
    num, emitted, num_steps = len(coins), 1, 0
    judged, accepted = [0] * num_draft_tokens, [0] * num_draft_tokens
    while emitted < num:
        num_steps += 1
        for depth in range(min(num_draft_tokens, max_new_tokens - emitted - 1)):
            judged[depth] += 1
            accepted[depth] += coins[emitted]
            emitted += 1
            if not coins[emitted - 1] or emitted == num:
                break
        else:
            emitted += 1
    return num_steps, judged, accepted


@pytest.mark.parametrize(
    ("length", "max_new_tokens", "num_draft_tokens"), [(7, 7, 3), (7, 20, 3), (6, 7, 5), (2, 2, 4)]
)
def test_the_walk_is_the_mean_over_all_coins(length: int, max_new_tokens: int, num_draft_tokens: int) -> None:
    match = np.random.default_rng(length).uniform(size=length)
    expected, judged, accepted = 0.0, np.zeros(num_draft_tokens), np.zeros(num_draft_tokens)
    for coins in product((0, 1), repeat=length):
        weight = np.prod(np.where(coins, match, 1 - match))
        steps = steps_of(coins, num_draft_tokens, max_new_tokens)
        expected, judged, accepted = (total + weight * np.array(each) for total, each in
                                      zip((expected, judged, accepted), steps, strict=True))  # fmt: skip
    found = walk(match, match, num_draft_tokens, max_new_tokens)
    assert found.num_steps == pytest.approx(expected)
    np.testing.assert_allclose(found.judged, judged)
    np.testing.assert_allclose(found.accepted, accepted)


def test_greedy_answers_have_the_steps_that_wrote_them() -> None:
    match = np.array([0, 1, 1, 1, 0, 1, 0.0])
    found = walk(match, match, 2, 100)  # drafts of 1 2 | 4 (wrong) | 5 6 (wrong)
    assert found.num_steps == 3 and found.judged.tolist() == [3, 2] and found.accepted.tolist() == [2, 1]


P = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7]])  # of the next token, by the last one
Q = np.array([[0.3, 0.6, 0.1], [0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
LENGTH, DRAFTS = 5, 2


def decoded(last: int, emitted: int) -> np.ndarray:
    """The expected steps, judged and accepted drafts from here on, over the drafts and coins of the loop itself."""
    if emitted >= LENGTH:
        return np.zeros(3)
    found = np.array([1.0, 0.0, 0.0])
    most = min(DRAFTS, LENGTH - emitted - 1)

    def judge(last: int, place: int, weight: float) -> None:
        nonlocal found
        if place == most:
            found = found + weight * sum(P[last, x] * decoded(x, emitted + most + 1) for x in range(3))
            return
        kept = np.minimum(P[last], Q[last])
        found = found + weight * np.array([0.0, 1.0, kept.sum()])
        for x in range(3):
            judge(x, place + 1, weight * kept[x])
        rejected = P[last] - kept  # the residual, times the probability of a rejection
        found = found + weight * sum(rejected[x] * decoded(x, emitted + place + 1) for x in range(3))

    judge(last, 0, 1.0)
    return found


def computed(first: int, match_of: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """The same from the target's texts alone. `match_of`: of both models' probabilities of the text's tokens."""
    total = np.zeros(3)
    for text in product(range(3), repeat=LENGTH - 1):
        lasts, nexts = np.array((first, *text[:-1])), np.array(text)
        p, q = P[lasts, nexts], Q[lasts, nexts]
        overlap = np.minimum(P[lasts], Q[lasts]).sum(axis=1)
        found = walk(np.append(0, match_of(p, q)), np.append(0, overlap), DRAFTS, LENGTH)
        total += p.prod() * np.array([found.num_steps, found.judged.sum(), found.accepted.sum()])
    return total


def test_over_the_targets_texts_the_walk_is_what_decoding_gives() -> None:
    exact = decoded(0, 1)
    np.testing.assert_allclose(computed(0, lambda p, q: np.minimum(1, q / p)), exact, rtol=1e-12)
    # Two controls: acceptance that does not depend on the token, and a ratio that is upside down.
    assert abs(computed(0, lambda p, q: np.full_like(p, np.minimum(P, Q).sum(1).mean())) / exact - 1).max() > 0.02
    assert abs(computed(0, lambda p, q: np.minimum(1, p / q)) / exact - 1).max() > 0.02


# 2. Runs.


@pytest.fixture(scope="module")
def greedy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("greedy")
    run_into(folder, methods="sd,ngram", subsets=("en", "de"), limit=5)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    run_into(folder, methods="sd", subsets=("en", "de"), limit=5, drafter=TARGET, target=DRAFTER)
    return folder


def test_greedy_runs_agree_with_their_own_records(specbench: Run, greedy: Path, other: Path) -> None:
    code, out, err = specbench("drift", "--before", f"{greedy}:sd", "--after", str(other), "--json")
    assert code == 0, err
    report = json.loads(out)
    assert [group["label"] for group in report["groups"]] == ["all", "en", "de"]
    assert {"target", "drafter"} <= {*report["changed"]} and report["num_left_out"] == 0
    assert report["groups"][0]["before"]["share_cut_in_reasoning"] is None
    for group in report["groups"]:
        for side in (group["before"], group["after"]):
            for name in ("acceptance_rate", "mean_acceptance_length"):
                assert side["estimated"][name]["value"] == pytest.approx(side["decoded"][name]["value"], abs=1e-9)
                assert side["agreement"][name]["value"] == pytest.approx(0, abs=1e-9)
        change = group["changes"]["mean_acceptance_length"]
        assert change["difference"]["value"] == pytest.approx(change["after"]["value"] - change["before"]["value"])
    tau = report["groups"][0]["before"]["decoded"]["mean_acceptance_length"]["value"]
    rows = json.loads((greedy / "leaderboard.json").read_text())["rows"]
    row = next(row for row in rows if row["method"].startswith("sd@") and row["subset"] == "all")
    assert tau == pytest.approx(row["metrics"]["mean_acceptance_length"]["value"])
    assert report["worst"] == sorted(report["worst"], key=lambda prompt: prompt["after"] - prompt["before"])


def test_the_tables_say_what_changed(specbench: Run, greedy: Path, other: Path) -> None:
    code, out, err = specbench("drift", "--before", f"{greedy}:sd", "--after", str(other), "--output", "drift.json")
    assert code == 0 and out.splitlines()[-1] == "report: drift.json" and Path("drift.json").is_file(), err
    told = " ".join(out.split())
    assert "τ on each side's own answers" in told and "does it agree with decoding?" in told
    assert "10 prompts" in told and "different: target, " in told


def test_answers_cut_inside_their_reasoning_are_told(specbench: Run, greedy: Path, other: Path, tmp_path: Path) -> None:
    folder = tmp_path / "reasons"
    shutil.copytree(greedy, folder)
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for number, record in enumerate(records):
        record["methods"]["ar"] |= {"reasoning_tokens": 3} | ({"reasoning_closed": False} if number < 4 else {})
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    words = ("drift", "--before", f"{folder}:sd", "--after", str(other))
    code, out, err = specbench(*words, "--json")
    assert code == 0, err
    whole = json.loads(out)["groups"][0]
    assert whole["before"]["share_cut_in_reasoning"]["value"] == 0.4
    assert whole["after"]["share_cut_in_reasoning"]["value"] == 0.0
    code, out, err = specbench(*words)
    assert code == 0, err
    assert "ended inside their reasoning: before 40.0 [" in " ".join(out.split())


@pytest.fixture
def without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading weights is an error."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr("specbench.models.loading.load_network", refuse)


@pytest.mark.usefixtures("without_weights")
def test_a_changed_prompt_is_told_before_weights_are_read(
    specbench: Run, greedy: Path, other: Path, tmp_path: Path
) -> None:
    row = json.dumps({"question": "How many?", "answer_number": 7})
    for subset in ("en", "de"):
        (tmp_path / f"{subset}.jsonl").write_text(f"{row}\n" * 5)
    code, _, err = specbench("drift", "--before", f"{greedy}:sd", "--after", str(other), "--data", str(tmp_path))
    assert code == 2 and "was measured with a different prompt" in " ".join(err.split()), err


@pytest.mark.usefixtures("without_weights")
def test_a_task_without_references_is_told_before_weights_are_read(specbench: Run) -> None:
    words = ("drift", "--target", TARGET, "--drafter", DRAFTER, "--task", "story", "--data", "sample")
    code, _, err = specbench(*words, "--limit", "2", "--change", f"drafter={TARGET}")
    assert code == 2 and "has no reference text" in " ".join(err.split()), err


def test_models_are_compared_without_a_run(specbench: Run) -> None:
    words = ("drift", "--target", TARGET, "--drafter", DRAFTER, "--task", "wmt", "--data", "sample", "--limit", "5")
    code, out, err = specbench(*words, "--change", f"drafter={TARGET}", "--json")
    assert code == 0, err
    report = json.loads(out)
    change = report["groups"][0]["changes"]["given_before"]
    assert report["changed"] == ["drafter", "drafter_revision"]
    assert change["after"]["value"] == 1.0 > change["before"]["value"]  # a model agrees with itself
    code, out, err = specbench(*words, "--change", "set=generation.temperature=1")
    assert code == 0 and "different: temperature" in " ".join(out.split()), err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--before", "{run}"), "--before: needs --after as well"),
        ((), "give two runs with --before and --after, or models"),
        (("--before", "{run}", "--after", "{run}"), "are the same"),
        (("--before", "{run}:sd", "--after", "{run}:sd"), "are the same"),
        (("--before", "{run}:sd", "--after", "{run}:ngram"), "ngram has the drafter 'ngram'"),
        (("--before", "{run}:sdd", "--after", "{run}:sd"), "no method 'sdd' that drafts: did you mean 'sd'"),
        (("--change", "quantise=int4"), "did you mean 'quantize'"),
        (("--change", "quantize=int3"), "--quantize int3"),
        (("--change", "seed=3"), "write it as OPTION=VALUE"),
        (("--before", "{run}:sd", "--after", "{run}:sd", "--target", "x"), "--target: has no effect with --before"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line(specbench: Run, greedy: Path, words: tuple[str, ...], said: str) -> None:
    code, _, err = specbench("drift", *(word.format(run=greedy) for word in words))
    assert code == 2 and said in " ".join(err.split()), err
