"""What a chat template and a checkpoint decide about a run is a condition of its rows, and the same when it is resumed:
the date, the system prompt, the sampling."""

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from specbench.core.errors import ConfigError
from specbench.models.loading import load_model
from specbench.results.runs import RecordedRun
from specbench.running.recorded_prompts import prompts_of
from tests.support import tiny

DATED = "{{ strftime_now('%d %b %Y') }} {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
DROPS = "{% for m in messages %}<{{ m.role }}>{% endfor %}"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(specbench: Run, tmp_path: Path) -> Run:
    """Runs a task of two rows on a model whose folder has a chat template; the first call writes them."""

    def call(template: str | None, *words: str, task: dict[str, Any] | None = None) -> tuple[int, str, str]:
        folder = tmp_path / "model"
        if not folder.exists():
            tiny.save(folder, num_hidden_layers=1)
        if template is not None:
            (folder / "chat_template.jinja").write_text(template)
        whole = {
            "name": "t", "version": 1, "title": "T", "prompt": "{{ row.text }}", "local": {"files": ["rows"]},
            "generation": {"max_new_tokens": 3}, **(task or {}),
        }  # fmt: skip
        (tmp_path / "t.yaml").write_text(yaml.safe_dump(whole))
        (tmp_path / "rows.jsonl").write_text('{"text": "One?"}\n{"text": "Two?"}\n')
        fixed = ("--task", "t.yaml", "--data", ".", "--method", "pld", "--target", str(folder), "--json")
        return specbench("run", *fixed, *words)

    return call


def shown(out: str, field: str) -> Any:
    """The value of a field in all rows."""
    first, *others = [row[field] for row in json.loads(out)]
    assert all(each == first for each in others)
    return first


def identity(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(folder) / "run.json").read_text())
    return found


def on(monkeypatch: pytest.MonkeyPatch, day: str) -> None:
    class Day(date):
        @classmethod
        def today(cls) -> date:
            return date.fromisoformat(day)

    monkeypatch.setattr("specbench.specs.run.date", Day)


def test_a_resumed_run_keeps_its_date(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    today = ("--template-date", "today")
    on(monkeypatch, "2026-11-26")
    code, out, err = run(DATED, *today, "--limit", "1", "--output", "a")
    assert code == 0, err
    assert shown(out, "template_date") == "2026-11-26"
    assert run(None, *today, "--limit", "1")[0] == 0  # into a folder that is named after the request
    on(monkeypatch, "2026-11-27")
    for words in (today, ()):  # the second example is measured, with the folder's date
        code, out, err = run(None, *words, "--output", "a")
        assert code == 0, err
        assert (shown(out, "template_date"), shown(out, "n")) == ("2026-11-26", 2)
        kept = "--template-date today: a began on 2026-11-26, which its prompts keep"
        assert (kept in " ".join((out + err).split())) == (words == today)
    assert identity("a")["template_date"] == "2026-11-26"
    assert run(None, *today, "--limit", "1")[0] == 0
    assert len(list(Path("runs").iterdir())) == 1, "tomorrow, the same command resumes it"
    code, _, err = run(None, "--template-date", "2025-01-01", "--output", "a")
    assert code == 2 and '--template-date: "2026-11-26" → "2025-01-01"' in err


def test_a_date_that_is_read_as_a_variable_is_kept_too(run: Run) -> None:
    """As in Llama 3.1, whose template has a date of its own, which is not passed."""
    own = "{% if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}{{ date_string }}"
    source = own + "{% for m in messages %}{{ m.content }}{% endfor %}"
    code, out, err = run(source, "--limit", "1", "--output", "own")
    assert code == 0 and shown(out, "template_date") is None, err
    assert run(None, "--template-date", "2025-03-01", "--limit", "1", "--output", "a")[0] == 0
    code, out, err = run(None, "--output", "a")
    assert code == 0 and (shown(out, "template_date"), shown(out, "n")) == ("2025-03-01", 2), err
    code, _, err = run(None, "--template-date", "2025-03-01", "--output", "own")
    assert code == 2 and '--template-date: absent → "2025-03-01"' in err


def test_prompts_are_made_again_as_they_were(run: Run) -> None:
    """`check` and `fairness` score the baseline's answers behind the prompts of its rows."""
    code, _, err = run(DATED, "--template-date", "2025-03-01", "--system-instruction", "Be brief.", "--output", "a")
    assert code == 0, err
    recorded, place = RecordedRun(Path("a")), ("t", "default")
    row = next(row for row in recorded.rows if row.is_baseline)
    target = load_model(row.target, device="cpu")
    found = prompts_of(recorded, {place: row}, {place: [*recorded.records]}, target, [])
    assert [target.decode_text(each.prompt_ids) for each in found.values()] == [
        f"01 Mar 2025 <system>Be brief.<user>{text}?" for text in ("One", "Two")
    ]
    other = row.model_copy(update={"template_date": "2025-03-02"})
    with pytest.raises(ConfigError, match="was measured with a different prompt"):
        prompts_of(recorded, {place: other}, {place: [*recorded.records]}, target, [])


def test_a_template_without_a_date_has_no_such_condition(run: Run) -> None:
    code, out, err = run("{% for m in messages %}{{ m.content }}{% endfor %}", "--output", "a")
    assert code == 0, err
    assert shown(out, "template_date") is None
    new = {"template_date", "system_instruction", "special_stops"}
    assert not new & identity("a").keys(), "folders keep their names"
    code, _, err = run(None, "--set", "generation.stop=['<|end|>x']", "--output", "stops")
    assert code == 0 and identity("stops")["special_stops"] == ["<|end|>x"], err
    code, _, err = run(None, "--template-date", "2025-01-01", "--output", "b")
    assert code == 2 and "--template-date 2025-01-01: the chat template of" in err
    code, _, err = run(None, "--template-date", "May", "--output", "b")
    assert code == 2 and "write today, or a date such as 2024-07-26" in err
    code, _, err = run(None, "--template-date", "today", "--chat", "never", "--output", "b")
    assert code == 2 and "has no effect, since --chat never" in err


def test_other_tokens_of_the_same_text_are_refused_on_resume(run: Run) -> None:
    assert run(DATED, "--limit", "1", "--output", "a")[0] == 0
    records = Path("a/records.jsonl")
    old = json.loads(records.read_text())
    records.write_text(json.dumps({**old, "prompt_ids_digest": "0" * 12}) + "\n")
    code, _, err = run(None, "--output", "a")
    assert code == 2 and "t/default example 0: its prompt of the same text had 22 tokens (digest 0000" in err
    del old["prompt_ids_digest"]  # as an earlier version wrote it
    records.write_text(json.dumps(old) + "\n")
    code, out, err = run(None, "--output", "a")
    assert code == 0 and shown(out, "n") == 2, err


@pytest.mark.parametrize("drops", [True, False])
def test_prompts_that_are_not_the_user_s_are_refused(run: Run, tmp_path: Path, drops: bool) -> None:
    if drops:
        said = "its chat template drops or cuts the user's text"
    else:
        tiny.save(tmp_path / "model", num_hidden_layers=1)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
        end = (tokenizer.eos_token, tokenizer.eos_token_id)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing("$A <|end|>", special_tokens=[end])
        tokenizer.save_pretrained(tmp_path / "model")
        said = "its tokenizer ends prompts with <|end|>"
    template = DROPS if drops else None
    code, _, err = run(template, "--output", "a")
    assert code == 2 and said in err and "--prompt-checks warn" in err and "Traceback" not in err
    code, _, err = run(template, "--prompt-checks", "warn", "--output", "a")
    assert code == 0 and f"warning: model '{tmp_path / 'model'}': {said}" in " ".join(err.split()), err


def test_a_system_prompt_is_a_condition(run: Run) -> None:
    plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    task = {"system": "Answer in {{ vars.language }}.", "vars": {"language": "French"}}
    cases = {
        "task": (plain, (), "Answer in French."),
        "option": (plain, ("--system_instruction", "Be {{ brief }}."), "Be {{ brief }}."),
        "none": (plain, ("--system-instruction", ""), None),
        "plain": (plain, ("--chat", "never"), "Answer in French."),
    }
    numbers = {}
    for name, (template, words, expected) in cases.items():
        code, out, err = run(template, *words, "--limit", "1", "--output", name, task=task)
        assert code == 0, err
        assert shown(out, "system") == expected, name
        numbers[name] = json.loads(Path(name, "records.jsonl").read_text())["prompt_tokens"]
    assert numbers == {"none": 10, "task": 10 + 8 + 17, "option": 10 + 8 + 15, "plain": 4 + 17}
    code, _, err = run(plain, "--limit", "1", "--output", "option", task=task)
    assert code == 2 and '--system-instruction: "Be {{ brief }}." → absent' in err
    code, _, err = run(plain, "--output", "b", task={"system": "{{ row.text }}"})
    assert code == 2 and "system: uses row.text, but all rows share the system prompt" in err


def test_the_sampling_of_a_checkpoint(run: Run, tmp_path: Path) -> None:
    words = ("--sampling", "model", "--limit", "1")
    code, _, err = run(None, *words, "--output", "a")
    assert code == 2 and "asks for no sampling" in err
    assert "--set generation.temperature=0.6 --set generation.top_p=0.95" in err
    config = tmp_path / "model" / "generation_config.json"
    asked = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1,
             "repetition_penalty": 1.1}  # fmt: skip
    config.write_text(json.dumps({**json.loads(config.read_text()), **asked}))
    task = {"subsets": {"x": {"local": {"files": ["rows"]}, "generation": {"temperature": 0.1}}}}
    code, out, err = run(None, *words, "--output", "a", task=task)
    assert code == 0, err
    assert (
        "temperature 0.6, top_k 20, top_p 0.95 of the target's generation_config.json; its min_p 0.1, "
        "repetition_penalty 1.1 are not supported and left out"
    ) in " ".join(err.split())
    assert shown(out, "sampling") == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    code, out, err = run(None, *words, "--set", "generation.temperature=1", "--output", "b")
    assert code == 0 and shown(out, "sampling")["temperature"] == 1.0, err
    for wrong, said in (
        (json.dumps({**asked, "do_sample": False}), "asks for no sampling"),
        (json.dumps({**asked, "temperature": -1}), "generation_config.json: temperature"),
        (json.dumps({**asked, "top_k": 2.5}), "generation_config.json: top_k"),
        ("[]", "cannot read its generation_config.json"),
        ('{"top_k": 5', "cannot read its generation_config.json"),
    ):
        config.write_text(wrong)
        code, _, err = run(None, *words, "--output", "c")
        assert (code, err.count("\n")) == (2, 1) and said in err, err
