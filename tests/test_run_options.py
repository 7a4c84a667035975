"""Options of `specbench run` that only some tasks know: refused, or without effect, where no task does."""

import json

import pytest


def test_an_include_folder_without_a_task_of_lm_eval_is_refused(specbench):
    code, _, err = specbench("run", "--task", "mgsm", "--method", "sd", "--lm-eval-include", ".")
    assert code == 2 and "--lm-eval-include: has no effect without --task lm_eval:NAME" in err


def test_allowing_code_is_part_of_a_run_that_has_some_alone(specbench, tiny_pair, tmp_path, monkeypatch):
    monkeypatch.setattr("specbench.results.environment.commit", lambda checkout: "commit")
    (tmp_path / "mgsm_en.tsv").write_text("What is 1 + 1?\t2\n")
    row = {"task_id": "0", "prompt": "def one():\n", "entry_point": "one", "canonical_solution": "    return 1\n",
           "test": "def check(candidate):\n    assert candidate() == 1\n"}  # fmt: skip
    (tmp_path / "HumanEval.jsonl").write_text(json.dumps(row) + "\n")

    def run(task: str, *more: str) -> tuple[int, str, str]:
        return specbench(
            "run", "--task", task, "--method", "sd", "--data", str(tmp_path), "--target", tiny_pair[0], "--drafter",
            tiny_pair[1], "--set", "generation.max_new_tokens=4", "--output", task, *more,
        )  # fmt: skip

    assert run("mgsm", "--subset", "en")[0] == 0
    code, _, err = run("mgsm", "--subset", "en", "--allow-code-execution")
    assert code == 0 and "measured already" in err and "--allow-code-execution: no effect" in err, err
    code, _, err = run("humaneval", "--subset", "default", "--allow-code-execution")
    assert code == 0 and "no effect" not in err, err
    assert json.loads((tmp_path / "humaneval" / "run.json").read_text())["code_execution"] is True
    code, _, err = run("humaneval", "--subset", "default")
    assert code == 2 and "code_execution" in err


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ((), True),
        (("--repeats", "10"), True),
        (("--set", "generation.temperature=0.8", "--repeats", "9"), True),
        (("--set", "generation.temperature=0.8", "--repeats", "10"), False),
    ],
)
def test_pass_at_k_needs_k_different_answers(specbench, more, refused):
    # The target is nowhere: with k as it must be, that is what is said.
    code, _, err = specbench(
        "run", "--task", "humaneval", "--subset", "default", "--method", "ar", "--target", "nobody/nothing", "--set",
        "scorer.k=[1, 10]", *more,
    )  # fmt: skip
    assert code == 2
    assert ("pass@10 of task humaneval needs --repeats 10 and a temperature" in err) == refused, err
