"""`specbench sample` prints what a run reads, and `specbench answers` what it recorded and why it scored so."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from transformers import AutoTokenizer

from specbench.publish.site import answers as answers_page
from specbench.report.shown import ShownRecord, ShownRun
from specbench.results.leaderboard import load, write
from specbench.tasks.scoring.texts import text
from tests.support import tiny
from tests.support.records import autoregressive, generation, record
from tests.support.site_rows import HOSTILE

Specbench = Callable[..., tuple[int, str, str]]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random target whose tokenizer has a chat template."""
    folder = tiny.save(tmp_path_factory.mktemp("chatting") / "model", num_hidden_layers=1)
    made = tiny.tokenizer()
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def task(tmp_path: Path) -> str:
    """A task of two subsets with few-shot examples; one example has no number to be read as its reference."""
    whole: dict[str, Any] = {
        "name": "sums", "version": 1, "title": "Sums", "prompt": "Q: {{ row.a }}+1?\nA:", "reference": "{{ row.b }}",
        "scorer": {"type": "number"}, "generation": {"max_new_tokens": 8, "stop": ["\n\n"]},
        "local": {"files": ["{subset}"]}, "subsets": {"one": {}, "two": {}},
        "fewshot": {"num_shots": 1, "example": "Q: {{ row.a }}+1?\nA: {{ row.b }}", "rows": [{"a": 70, "b": 71}]},
    }  # fmt: skip
    (tmp_path / "sums.yaml").write_text(yaml.safe_dump(whole))
    for name, rows in {"one": [(1, 2), (3, 4)], "two": [(5, 6)]}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in rows))
    return str(tmp_path / "sums.yaml")


def test_a_sample_is_what_a_run_reads(task: str, chatting: str, specbench: Specbench, tmp_path: Path) -> None:
    """The digest of its ids is that of the record; the answers show the same prompt again."""
    options = ("--data", str(tmp_path), "--target", chatting)
    code, out, err = specbench("sample", task, *options, "--limit", "all", "--json")
    assert code == 0, err
    samples = json.loads(out)
    assert [(each["subset"], each["prompt"]["text"]) for each in samples][1:] == [
        ("one", "<user>Q: 70+1?\nA: 71\n\nQ: 3+1?\nA:<assistant>"),
        ("two", "<user>Q: 70+1?\nA: 71\n\nQ: 5+1?\nA:<assistant>"),
    ]
    assert samples[2]["end_tokens"] == {"<|end|>": 256} and samples[2]["num_shots"] == 1
    code, out, err = specbench("sample", task, *options, "--subset", "two", "--chat", "never")
    assert code == 0, err
    for part in ("sums/two example 0", "prompt, 26 tokens:\nQ: 70+1?", "\nA:\n\nids: 48 25 220",
                 "without a chat template",
                 "ends at: 8 new tokens; end tokens: '<|end|>' (256); stop strings: '\\n\\n'", "reference: 6",
                 "scorer: number"):  # fmt: skip
        assert part in out, part

    code, _, err = specbench("run", "--task", task, "--method", "pld", *options, "--output", "run")
    assert code == 0, err
    lines = (tmp_path / "run" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    by_key = {(record["subset"], str(record["id"])): record for record in records}
    for each in samples:
        assert by_key[each["subset"], each["id"]]["prompt_tokens"] == len(each["prompt"]["ids"])
    code, out, err = specbench("answers", "run", "--json")
    assert code == 0 and not err, err
    shown = json.loads(out)
    assert [each["prompt"]["ids"] for each in shown] == [each["prompt"]["ids"] for each in samples]
    for each in shown:
        own = by_key[each["subset"], each["id"]]["methods"]
        assert [answer["texts"]["text"] for answer in each["answers"]] == [own["ar"]["text"], own["pld"]["text"]]
        assert all(answer["reasons"]["reason"].startswith(("read ", "no number")) for answer in each["answers"])
        assert [answer["finish"] for answer in each["answers"]] == [own["ar"]["finish"], own["pld"]["finish"]]

    code, out, _ = specbench("answers", "run", "--subset", "one", "--example", "1", "--method", "pld", "--only-wrong")
    assert code == 0 and "sums/one example 1\nprompt, " in out and "Q: 3+1?" in out
    assert "\n\nreference: 4\npld: accuracy 0.0 %; 8 tokens, ended by length" in out and "1 of 1 record" in out
    assert "\nar: " not in out
    code, out, _ = specbench("answers", "run", "--limit", "1")
    assert "1 of 3 records; --limit all shows all" in out
    for option, name in (("--subset", "tow"), ("--example", "7"), ("--method", "sd")):
        code, _, err = specbench("answers", "run", option, name)
        assert code == 2 and f"{option} {name}: no record of 'run' has it" in err
    code, out, _ = specbench("answers", "run", "--page", "answers.html")
    assert code == 0 and out.startswith("answers.html: 3 records of 3")
    assert "Q: 3+1?" in (tmp_path / "answers.html").read_text(encoding="utf-8")
    code, _, err = specbench("answers", "run", "--method", "pld", "--page", "answers.html")
    page = (tmp_path / "answers.html").read_text(encoding="utf-8")
    assert code == 0 and page.count("<h4>pld: ") == 3 and "<h4>ar: " not in page, err
    code, _, err = specbench("site", "run/leaderboard.json", "--output", "site", "--answers", "1")
    assert code == 0, err
    rows = [path.read_text(encoding="utf-8") for path in (tmp_path / "site" / "rows").glob("*.html")]
    (answers,) = (tmp_path / "site" / "answers").iterdir()
    page = answers.read_text(encoding="utf-8")
    assert len(rows) == 6 and all(f'href="../answers/{answers.name}"' in text for text in rows)
    assert page.count('<article class="record"') == 2 and "<dt>reason</dt>" in page, "one of each subset"
    assert "Q: 5+1?" not in page, "prompts may be private"
    code, _, err = specbench("site", "run/leaderboard.json", "--output", "site", "--answers", "1", "--prompts")
    assert code == 0, err
    assert "Q: 5+1?" in answers.read_text(encoding="utf-8")
    others = [row.model_copy(update={"run": "run", "commit": "0" * 40, "created": "2026-01-01T00:00:00+00:00"})
              for row in load(tmp_path / "run" / "leaderboard.json")]  # fmt: skip
    write(tmp_path / "others.json", others)
    code, _, err = specbench("site", "others.json", "--output", "others", "--answers", "1")
    assert code == 0 and "warning: answers are not shown: run: has none of the rows that name it" in err
    assert not (tmp_path / "others" / "answers").exists(), "a stranger's file names a folder of mine"
    code, _, err = specbench("site", "run/leaderboard.json", "--output", "site", "--prompts")
    assert code == 2 and "--prompts: has no effect without --answers" in err

    (tmp_path / "one.jsonl").write_text('{"a": 8, "b": 9}\n')  # other data than was measured
    code, out, err = specbench("answers", "run")
    assert code == 0 and "prompts of sums/one are not shown" in err and "different prompt" in err
    assert out.count("not shown") == 2 and "Q: 5+1?" in out


def test_all_texts_and_reasons_of_an_answer_are_shown() -> None:
    """Also the answer apart from the reasoning before it."""
    made = generation(
        token_ids=[1, 2], text="<think>I think so</think>x = 1", answer="x = 1", scores={"pass@1": None},
        problem="no function", outcome={"status": "failed", "reason": ""}, route="en",
    )  # fmt: skip
    methods = {"ar": made, "sd": made}
    shown = ShownRecord.of(record(methods, id=3, repeat=1, turn=1, prompt_tokens=9, reference="r"), {"ar"})
    assert list(shown.lines()) == [
        "t/en example 3, turn 2, repeat 1", "prompt, 9 tokens: not shown", "reference: r",
        "ar: pass@1 –; 2 tokens, ended by eos", "text:\n<think>I think so</think>x = 1", "answer:\nx = 1",
        "problem: no function", "status: failed",
    ]  # fmt: skip


def test_a_reference_with_parts_is_shown_part_by_part() -> None:
    made = autoregressive(1, finish="stop", score=0.95, scores={"rougeL": 0.952381}, reasoning_closed=False)

    def lines(reference: Any) -> list[str]:
        return list(ShownRecord.of(record({"ar": made}, reference=reference), {"ar"}, scorer=text()).lines())[2:]

    answer = [
        "ar: rougeL 95.2 %; 1 token, ended by stop",
        "",
        "reason: cut inside its reasoning, so the answer is empty",
    ]
    parts = {"test": "check(f)\n\ncheck(g)\n", "entry_point": "f"}
    assert lines(parts) == ["reference, test:\ncheck(f)\n\ncheck(g)", "reference, entry_point: f", *answer]
    assert lines(["a", "b"]) == ["reference 1: a", "reference 2: b", *answer]
    assert lines(["a"]) == ["reference: a", *answer]


def test_a_page_of_answers_escapes_all_of_them(tmp_path: Path) -> None:
    made = record({"ar": autoregressive(1, text=HOSTILE, problem=HOSTILE)}, task=HOSTILE, id=HOSTILE, reference=HOSTILE)
    prompt: Any = SimpleNamespace(ids=[1], text=HOSTILE + "\ud800")
    run = ShownRun((ShownRecord.of(made, {"ar"}, prompt),), 1, (HOSTILE,))
    answers_page.write_page(tmp_path / "page.html", HOSTILE, run)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<img" not in text and "<script" not in text and text.count("&lt;img") == 10


def test_a_run_that_is_not_finished_has_no_answers_to_show(specbench: Specbench, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    code, _, err = specbench("answers", "run")
    assert code == 2 and err.startswith("error: run 'run': has no leaderboard.json")
    code, _, err = specbench("answers", "run", "--limit", "0.5")
    assert code == 2 and "--limit 0.5: give a number of records, or all" in err


@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_the_sample_of_a_public_model_is_its_chat_template_or_has_its_bos(
    name: str, real_models: Path, specbench: Specbench
) -> None:
    code, out, err = specbench("sample", "gsm8k", "--data", "sample", "--target", str(real_models / name), "--json")
    assert code == 0, err
    (found,) = json.loads(out)
    tokenizer = AutoTokenizer.from_pretrained(real_models / name)
    if tokenizer.chat_template is None:
        expected = tokenizer(found["given"])["input_ids"]
        assert found["prompt"]["text"] == tokenizer.bos_token + found["given"]
    else:
        question = found["given"].partition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
        messages = [{"role": "user", "content": question}]
        expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert found["prompt"]["text"] == found["given"] and "shells" in question
    assert found["prompt"]["ids"] == expected
