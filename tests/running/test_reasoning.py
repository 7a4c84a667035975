"""What a model writes between its tags of reasoning is not part of its answer, wherever answers are read."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.core.reasoning import TAGS, Tags, part_answer
from specbench.decoding.loop import GenerationState, StopRules, WrittenText
from specbench.models.causal_lm import CausalLM
from specbench.records.records import RecordFile
from specbench.results.leaderboard import load
from specbench.specs.catalogue import digest, load_task, with_overrides
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import load_examples
from tests.support import reasoning_model, tiny

CHANNELS = Tags("<|channel|>analysis<|message|>", "<|channel|>final<|message|>")


@pytest.mark.parametrize(
    ("text", "is_open", "tags", "answer"),
    [
        ("<think>The answer is 5.</think> 18", False, TAGS, " 18"),
        ("18", False, TAGS, "18"),
        ("<think>5</think>\n\n  \n    return 18\n", False, TAGS, "    return 18\n"),
        ("Let me see. <think>5</think>18", False, TAGS, "18"),
        ("5</think>18", True, TAGS, "18"),
        ("The answer is 5.</think> 18", False, TAGS, " 18"),  # nothing that is visible opened it
        ("5</think>6</think>\n\n18", False, TAGS, "18"),
        ("5</think>", False, TAGS, ""),
        ("<think>5</think>17, no:<think>6</think>18", False, TAGS, "18"),
        ("<think>I could write </think> here</think>18", False, TAGS, "18"),
        ("<think>5", False, TAGS, None),
        ("5", True, TAGS, None),
        ("<think>5</think>18<think>6", False, TAGS, None),
        ("</think>5<think>6", False, TAGS, None),
        ("<think></think>", False, TAGS, ""),
        ("", False, TAGS, ""),
        ("", True, TAGS, None),
        ("[T]5[/T]18", False, Tags("[T]", "[/T]"), "18"),
        (f"{CHANNELS.open}5<|end|><|start|>assistant{CHANNELS.close}18", False, CHANNELS, "18"),
    ],
)
def test_where_an_answer_starts(text: str, is_open: bool, tags: Tags, answer: str | None) -> None:
    """None: the text ends inside its reasoning, and the answer is empty."""
    found = part_answer(text, tags, is_open)
    assert text[found.start :] == (answer or "") and found.is_closed == (answer is not None)


def decode_text(ids: Sequence[int], keep: Sequence[str] = ()) -> str:
    return "".join(map(chr, ids))


def written(text: str, prompt: str = "Q", step: int = 1, **rules: Any) -> tuple[str | None, str, str]:
    """The finish, the text and the answer of a model that writes one character per token, in steps of several."""
    stop = StopRules(200, decode_text=decode_text, reasoning=TAGS, **rules)
    state = GenerationState([*map(ord, prompt)], stop)
    for start in range(0, len(text), step):
        if not state.finished:
            state._emit([*map(ord, text[start : start + step])])
    found = WrittenText.of(stop, state.prompt_ids, state.new_ids)
    return state.finish, found.text, found.answer


@pytest.mark.parametrize("step", [1, 5, 100])
def test_no_stop_string_ends_a_generation_inside_its_reasoning(step: int) -> None:
    """Nor do the blank lines after it, as in lm-eval, which applies stop strings to what follows the reasoning."""
    text = "<think>a\n\nb Q: c</think>\n\n18\n\nmore"
    assert written(text, step=step, stop_strings=("\n\n", "Q:")) == ("stop", text[:-6], "18")
    assert written(text[7:], "Q<think>\n", step, stop_strings=("\n\n", "Q:")) == ("stop", text[7:-6], "18")
    assert written("18\n\n<think>", step=step, stop_strings=("\n\n",)) == ("stop", "18", "18")
    assert written("<think>a\n\nb", step=step, stop_strings=("\n\n",)) == (None, "<think>a\n\nb", "")
    again = "<think>a</think> b<think>\n\n</think>\n \n c\n\n"
    assert written(again, step=step, stop_strings=("\n\n",)) == ("stop", again[:-2], " c")
    assert written("<think>a</think>\n\nb", step=step, stop_strings=("b",)) == ("stop", "<think>a</think>\n\n", "")
    # what a closing tag ends that nothing opened is known when it comes, and a stop string before it has ended the text
    unopened = "a</think>\n\n18</think>\n \nb\n\nc"
    assert written(unopened, step=step, stop_strings=("\n\n",)) == ("stop", unopened[:-3], "b")
    assert written("a\n\nb</think>18", step=step, stop_strings=("\n\n",)) == ("stop", "a", "a")


def test_a_token_with_a_stop_string_and_the_closing_tag_after_it_ends_nothing() -> None:
    pieces = ["a", "\n\n</think>\n\n", "18", "\n\n<think>"]
    stop = StopRules(
        9, stop_strings=("\n\n",), decode_text=lambda ids, keep: "".join(pieces[i] for i in ids), reasoning=TAGS
    )
    state = GenerationState([0], stop)
    state._emit([0, 1, 2])
    found = WrittenText.of(stop, [0], state.new_ids)
    assert (state.finish, found.answer, found.num_reasoning_tokens) == (None, "18", 2)
    state._emit([3])
    assert state.finish == "stop"


def test_only_a_prompt_that_ends_with_the_tag_opens_reasoning() -> None:
    assert written("5", "Reason.<think>\n")[2] == ""
    for prompt in ("Write <think>, reason, and close it.", "<think>\n\n</think>\n\n"):
        assert written("5", prompt)[2] == "5"
        assert written("5</think>18", prompt)[2] == "18"


@pytest.mark.parametrize("is_special", [False, True])
def test_tags_that_are_special_tokens_survive_decoding(is_special: bool, tmp_path: Path) -> None:
    from specbench.models.loading import load_model

    model = load_model(str(reasoning_model.save(tmp_path, opens=True, is_special=is_special)), device="cpu")
    ids = model.tokenizer("<think>5 é</think> 18")["input_ids"]
    assert len(ids) == 9 and model.decode_text([*ids, *model.eos_token_ids], TAGS) == "<think>5 é</think> 18"
    assert model.decode_text(ids) == ("5 é 18" if is_special else "<think>5 é</think> 18")
    stop = StopRules(9, decode_text=model.decode_text, reasoning=TAGS)
    found = WrittenText.of(stop, model.encode_prompt("1 + 1?", chat=False), ids)
    assert (found.answer, found.num_reasoning_tokens) == (" 18", 6)
    found = WrittenText.of(stop, model.encode_prompt("1 + 1?", chat=True), ids[1:])
    assert (found.answer, found.num_reasoning_tokens) == (" 18", 5)
    found = WrittenText.of(stop, [], ids[:3])
    assert found.record_fields() == {
        "text": "<think>5 ", "answer": "", "reasoning_tokens": 3, "reasoning_closed": False
    }  # fmt: skip


def test_special_tokens_inside_the_tags_survive_decoding() -> None:
    """As gpt-oss writes: reasoning and answer are messages on two channels."""
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<|start|>", "<|channel|>", "<|message|>"]}  # <|end|> is one already
    )
    model = CausalLM(tiny.network(num_hidden_layers=1, vocab_size=len(tokenizer)), tokenizer, "tiny", None)
    text = f"{CHANNELS.open}5<|end|><|start|>assistant{CHANNELS.close}18<|end|>"
    stop = StopRules(99, decode_text=model.decode_text, reasoning=CHANNELS)
    found = WrittenText.of(stop, [], tokenizer(text)["input_ids"])
    assert found.text == f"{CHANNELS.open}5assistant{CHANNELS.close}18" and found.answer == "18"


def test_the_tags_of_a_task() -> None:
    """The default keeps the digests of tasks; other tags, and none, are another task."""
    tasks = [load_task("gsm8k")]

    def changed(tags: str) -> TaskSpec:
        return with_overrides(tasks, [], [f"generation.reasoning_tags={tags}"])[0][0]

    other, none = changed("[<T>, '[/T]']"), changed("null")
    assert digest(changed("[<think>, </think>]")) == digest(tasks[0])
    assert len({digest(task) for task in (*tasks, other, none)}) == 3
    assert tasks[0].generation.reasoning == TAGS and none.generation.reasoning is None
    assert other.generation.reasoning == Tags("<T>", "[/T]")
    for tags in ("[</think>, <x></think>]", "[' ', </think>]"):
        with pytest.raises(ConfigError, match=r"generation.reasoning_tags.*: write two tags that can be told apart"):
            changed(tags)
    for tags in ("[<think>]", "<think>", "[<think>, </think>, x]"):
        with pytest.raises(ConfigError, match=r"generation.reasoning_tags"):
            changed(tags)


TASKS = ("mgsm", "humaneval", "math500")
LIMIT = 3


def answers(is_chat: bool) -> dict[str, str]:
    """By a part of the prompt, what a model that reasons writes for three examples of each task. The first one reasons
    wrongly and answers rightly, the second the other way round, the third does not end its reasoning."""
    bodies = {}
    for line in Path(str(load_task("humaneval").sample_of("default"))).read_text().splitlines():
        bodies[json.loads(line)["prompt"]] = json.loads(line)["canonical_solution"]
    found = {}
    for task in map(load_task, TASKS):
        rows = load_examples(task, task.subset_names[0], data="sample", use_sample=True, limit=LIMIT).examples
        for example in rows:
            right, wrong = f"The answer is {example.reference}.", "The answer is 12345."
            if task.name == "math500":
                right, wrong = f"It is $\\boxed{{{example.reference}}}$.", "It is $\\boxed{12345}$."
            elif task.name == "humaneval":
                head, right, wrong = example.prompt, bodies[example.prompt], "    return None\n"
                if is_chat:
                    right, wrong = (f"So:\n```python\n{head}{body}```\n" for body in (right, wrong))
            inside, after = (wrong, right) if example.index == 0 else (right, wrong)
            reasoning = f"Question: Q: what?\n\n{inside}\nprint(1)\ndef f(): pass\n# {inside}\n"
            closed = "</think>" * (example.index < LIMIT - 1)
            found[example.prompt] = f"{'' if is_chat else '<think>'}{reasoning}{closed}\n\n{after}"
    return found


@pytest.mark.parametrize("chat", ["auto", "never"])
def test_a_model_that_reasons_is_scored_by_its_answers(specbench: Any, tmp_path: Path, chat: str) -> None:
    """Tasks of three scorers; with `auto` the chat template writes the opening tag, else the model."""
    found = answers(chat == "auto")
    folder = reasoning_model.save(tmp_path / "model", opens=True)
    with reasoning_model.scripted(lambda prompt: next((found[key] for key in found if key in prompt), "x" * 99)):
        code, out, err = specbench(
            "run", "--task", ",".join(TASKS), "--method", "pld", "--target", str(folder), "--data", "sample",
            "--subsets-per-task", "1", "--limit", str(LIMIT), "--chat", chat, "--allow-code-execution",
            "--set", "generation.max_new_tokens=5000", "--output", "out",
        )  # fmt: skip
    assert code == 0, err
    records = RecordFile(tmp_path / "out" / "records.jsonl").read()
    assert len(records) == LIMIT * len(TASKS)
    for record in records:
        for generation in record.methods.values():
            where = record.task, record.example, generation.text
            assert generation.score == (record.example == 0), where
            assert generation.text.endswith(generation.answer) and "Question:" in generation.text, where
            assert "<think>" not in generation.answer and generation.finish in ("eos", "stop"), where
            assert generation.reasoning_closed == bool(generation.answer) == (record.example < LIMIT - 1), where
            assert 0 < generation.reasoning_tokens <= generation.num_new_tokens, where
    for row in load(tmp_path / "out" / "leaderboard.json"):
        own = [r.methods[row.method_name] for r in records if r.task == row.task_name]
        shares = [sum(values) for values in zip(*((g.reasoning_tokens, g.num_new_tokens) for g in own), strict=True)]
        assert row.value("reasoning_share") == pytest.approx(shares[0] / shares[1])
        assert row.value("share_cut_in_reasoning") == row.value("share_cut_in_reasoning_ar") == pytest.approx(1 / LIMIT)
        assert row.value(f"{row.quality}") == pytest.approx(1 / LIMIT)
    shown = " ".join(out.split())
    assert re.search(r"reasoning tokens, which scores ignore, %, ar → method: \d\d\.\d → \d\d\.\d in", shown)
    assert "answers that ended inside their reasoning and count as empty, %, ar → method: 33.3 → 33.3 in" in shown


def test_a_later_turn_has_the_answers_without_reasoning(specbench: Any, tmp_path: Path) -> None:
    """As chat templates of such models show earlier turns to them; the judge sees the same."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"turns": ["First?", "Second?", "Third?"]}) + "\n")
    (tmp_path / "task.yaml").write_text(
        "{name: talk, version: 1, title: Talk, local: {files: [rows]}, turns: turns, prompt: '{{ row.turn }}',"
        " generation: {max_new_tokens: 60}, scorer: {type: text}}"
    )
    prompts: list[str] = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        return "secret" if "Second?" in prompt and "Third?" not in prompt else "secret</think>\n\nopen"

    folder = reasoning_model.save(tmp_path / "model", opens=True)
    with reasoning_model.scripted(answer):
        code, _, err = specbench(
            "run", "--task", "task.yaml", "--method", "pld", "--target", str(folder), "--data", ".", "--output", "out"
        )
    assert code == 0, err
    assert prompts[-1] == (
        "[user] First?\n[assistant] open\n[user] Second?\n[assistant] \n[user] Third?\n[assistant] <think>"
    )
