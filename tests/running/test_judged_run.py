"""`specbench run --judge` from end to end, with a server of these tests' own."""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.results.leaderboard import load, merge_rows
from specbench.results.leaderboard_files import validate
from tests.support.judge_server import Server, serving  # noqa: F401  # a fixture

SHOWN = ("judge_score", "num_unjudged", "num_unscored")


@pytest.fixture
def run(specbench, tiny_pair, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("specbench.models.machine.commit", lambda checkout: "commit")
    (tmp_path / "mgsm_en.tsv").write_text("".join(f"What is {n} + {n}?\t{2 * n}\n" for n in range(3)))

    def call(*more: str, limit: int = 2) -> tuple[int, str, str]:
        return specbench(
            "run", "--task", "mgsm", "--method", "pld", "--data", str(tmp_path), "--subset", "en", "--target",
            tiny_pair[1], "--set", "generation.max_new_tokens=3", "--limit", str(limit),
            "--output", "out", *more,
        )  # fmt: skip

    return call


def asked(server: Server, model: str = "judge-model") -> tuple[str, ...]:
    return "--judge", model, "--judge-base-url", server.url


def scores(folder: Path) -> list[dict[str, Any]]:
    """judge_score, num_unjudged, num_unscored and the judge of every row of a run."""
    return [
        {
            **{name: row.metrics[name].value for name in SHOWN if name in row.metrics},
            "judge": row.signatures.get("judge_score"),
        }
        for row in load(folder / "leaderboard.json")
    ]


def judged_row(server: Server, value: float = 7.0, num_unjudged: int = 0) -> dict[str, Any]:
    judge = f"judge-model at {server.url}, MT-bench single answer, temperature 0"
    return {"judge_score": value, "num_unjudged": num_unjudged, "num_unscored": 0, "judge": judge}


def test_ratings_stay_in_the_rows_of_later_commands(run, server, tmp_path, monkeypatch):
    code, out, err = run(*asked(server))
    assert code == 0 and "judged 4 of 4 answers" in err, err
    assert "judge-model at" in out
    assert scores(tmp_path / "out") == [judged_row(server)] * 2
    monkeypatch.delenv("OPENAI_API_KEY")
    for more in ((), (*asked(server), "--judge-dry-run")):
        code, _, err = run(*more)
        assert code == 0 and "4 of 4 answers have ratings of judge-model from" in err, err
        assert scores(tmp_path / "out") == [judged_row(server)] * 2
    code, _, err = run(*asked(server))  # all in the cache
    assert code == 0, err
    num_asked = len(server.requests)
    code, _, err = run(limit=3)
    assert code == 0 and "4 of 6 answers have ratings" in err and "--judge judge-model rates the others" in err
    assert scores(tmp_path / "out") == [judged_row(server, num_unjudged=1)] * 2
    assert len(server.requests) == num_asked


def test_a_missing_key_is_said_before_anything_is_measured(run, server, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    code, _, err = run(*asked(server))
    assert code == 2 and "OPENAI_API_KEY is not set" in err
    assert (tmp_path / "out" / "records.jsonl").read_text() == ""
    assert run()[0] == 0
    code, _, err = run(*asked(server))
    assert code == 2 and "OPENAI_API_KEY is not set" in err
    assert [row["judge"] for row in scores(tmp_path / "out")] == [None, None]


def test_a_judge_that_fails_loses_nothing(run, server, tmp_path):
    server.plan = {"": [(404, "no such model")]}
    code, _, err = run(*asked(server))
    assert code == 2 and "404" in err
    assert scores(tmp_path / "out") == [{"num_unscored": 0, "judge": None}] * 2
    server.plan = {}
    assert run(*asked(server))[0] == 0
    server.plan = {"": [(404, "no such model")]}
    assert run(*asked(server, "another"))[0] == 2
    assert scores(tmp_path / "out") == [judged_row(server)] * 2


def test_a_judge_that_answers_nothing_is_an_error_and_what_was_measured_is_kept(run, server, tmp_path):
    server.plan = {"": [(400, "not this way")]}
    code, out, err = run(*asked(server))
    assert code == 2 and out == ""
    said = f"error: --judge judge-model at {server.url}: rated 0 of 4 answers: check --judge-base-url"
    assert err.strip().splitlines()[-1].startswith(said)
    assert scores(tmp_path / "out") == [{"num_unscored": 0, "judge": None}] * 2
    server.plan = {}
    code, out, err = run(*asked(server))
    assert code == 0 and "judged 4 of 4 answers" in err and "judge 1–10, ar → method: 7.00 → 7.00 in en" in out


def test_what_the_judge_cannot_rate_is_no_problem_of_the_scorer(run, server, tmp_path):
    server.plan = {"What is 0 + 0?": [(200, "I like it.")]}
    code, out, _ = run(*asked(server))
    assert code == 0 and "not rated by the judge" in out and "not scored" not in out
    assert scores(tmp_path / "out") == [judged_row(server, num_unjudged=1)] * 2
    assert all(row.metrics["accuracy"].value is not None for row in load(tmp_path / "out" / "leaderboard.json"))


def test_other_judges_have_rows_of_their_own(run, server, tmp_path):
    board = str(tmp_path / "board.json")
    assert run("--leaderboard", board)[0] == 0 and len(load(board)) == 2
    assert run("--leaderboard", board, *asked(server))[0] == 0 and len(load(board)) == 2, "instead of the unjudged"
    assert run("--leaderboard", board, *asked(server, "another"))[0] == 0
    judges = [row.signatures["judge_score"].partition(" ")[0] for row in load(board)]
    assert judges == ["judge-model"] * 2 + ["another"] * 2
    assert len(merge_rows(load(board), load(board))) == 4
    assert validate(Path(board), with_records=True).problems == (), "each with the ratings of its own judge"


def test_another_prompt_of_the_judge_has_rows_of_its_own(run, server, tmp_path):
    (tmp_path / "strict.yaml").write_text(
        '{name: strict, prompt: "Q {{ row.question }}", rating: "Rating: {rating}/10"}'
    )
    server.plan = {"Q Question": [(200, "Rating: 3/10")]}
    assert run(*asked(server))[0] == 0
    code, _, err = run(*asked(server), "--judge-template", "strict.yaml")
    assert code == 0, err
    for row in scores(tmp_path / "out"):
        assert row["judge_score"] == 3 and row["judge"].startswith(f"judge-model at {server.url}, template strict ")
    code, _, err = run("--judge-template", "strict.yaml")
    assert code == 2 and "--judge-template: has no effect without --judge MODEL" in err
    code, _, err = run(*asked(server), "--judge-template", "absent.yaml")
    assert code == 2 and "absent.yaml" in err and len(err.strip().splitlines()) == 1


def test_a_smaller_judgement_keeps_the_others(run, server, tmp_path):
    code, _, err = run(*asked(server), limit=3)
    assert code == 0 and "judged 6 of 6 answers" in err, err
    code, _, err = run(*asked(server), limit=1)
    assert code == 0 and "judged 2 of 2 answers" in err, err
    code, _, err = run(limit=3)
    assert code == 0 and "6 of 6 answers have ratings of judge-model from" in err, err
    assert run(*asked(server, "another"), limit=1)[0] == 0
    code, _, err = run(limit=3)
    assert code == 0 and "2 of 6 answers have ratings of another" in err, err
    num_asked = len(server.requests)
    assert run(*asked(server), limit=3)[0] == 0 and len(server.requests) == num_asked
    code, _, err = run(limit=3)
    assert code == 0 and "6 of 6 answers have ratings of judge-model from" in err, err


def test_damaged_ratings_are_said(run, server, tmp_path):
    assert run(*asked(server))[0] == 0
    for damage in ("{", json.dumps({"request": "x"}), "[]"):
        (tmp_path / "out" / "judgements.jsonl").write_text(damage)
        code, _, err = run()
        assert code == 2 and "judgements.jsonl" in err and "delete the file" in err
