"""Conversations: each turn is measured with the method's own answers before it, also after a run was broken off."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from specbench.core.errors import ConfigError
from specbench.decoding.decoder import DraftingDecoder
from specbench.models.loading import load_model
from specbench.results.bootstrap import Prompts
from specbench.running.prompts import record_prompts
from specbench.running.records import with_the_same_history
from specbench.specs.components import build
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import load_examples
from tests import tiny

Specbench = Callable[..., tuple[int, str, str]]
TASK = {
    "name": "talk", "version": 1, "title": "Talk", "turns": "turns", "prompt": "{{ row.turn_index }}: {{ row.turn }}",
    "reference": "{{ row.answers[row.turn_index] }}", "scorer": {"type": "number"},
    "generation": {"max_new_tokens": 6}, "local": {"files": ["rows"]},
}  # fmt: skip
ROWS = [{"turns": ["How?", f"Why {n}?", "So?"], "answers": [1, None, str(n)]} for n in range(3)]


def write(folder: Path, *rows: dict[str, Any], **changes: Any) -> str:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "talk.yaml").write_text(yaml.safe_dump({**TASK, **changes}))
    return str(folder / "talk.yaml")


def load(path: Path, **changes: Any) -> Any:
    task = build(TaskSpec, {**TASK, **changes})
    return load_examples(task, "default", data=str(path), use_sample=False, limit=None).examples


def read(folder: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(folder) / "records.jsonl").read_bytes().splitlines()]


def counted(record: dict[str, Any]) -> dict[str, Any]:
    return {name: (part["token_ids"], part["text"], part["scores"]) for name, part in record["methods"].items()}


@pytest.fixture
def call(specbench: Specbench, tiny_pair: tuple[str, str], tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    def run(task: str, output: str, *more: str) -> list[dict[str, Any]]:
        code, _, err = specbench(
            "run", "--task", task, "--method", "sd,draft-only", "--data", str(tmp_path), "--target", tiny_pair[0],
            "--drafter", tiny_pair[1], "--output", output, *more,
        )  # fmt: skip
        assert code == 0, err
        return read(output)

    return run


def test_the_turns_of_a_row(tmp_path: Path) -> None:
    write(tmp_path, *ROWS)
    example = load(tmp_path)[1]
    assert example.turns == ("0: How?", "1: Why 1?", "2: So?")
    assert example.references == ("1", None, "1")
    assert (example.prompt, example.reference) == ("0: How?", "1")


def test_a_column_of_references_has_an_entry_per_turn(tmp_path: Path) -> None:
    write(tmp_path, {"turns": ["a", "b", "c", "d"], "right": [["x", "y"], "z", []]}, {"turns": ["a"], "right": []})
    loaded = load(tmp_path, reference=None, references="right")
    assert [example.references for example in loaded] == [(["x", "y"], ["z"], None, None), (None,)]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"turns": "How?"}, "row 1: column 'turns' must be a list of texts, one per turn"),
        ({"turns": []}, "row 1: column 'turns' must be a list of texts"),
        ({"turns": ["How?", " "]}, "row 1: column 'turns' must be a list of texts"),
        ({"turn": ["How?"]}, "row 1: no column 'turns', which lists the turns: did you mean 'turn'?"),
    ],
)
def test_rows_that_do_not_fit(tmp_path: Path, row: dict[str, Any], expected: str) -> None:
    write(tmp_path, row)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    assert expected in str(caught.value)


def test_each_method_reads_its_own_answers(
    call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_pair: tuple[str, str]
) -> None:
    asked: dict[str, list[str]] = {"ar": [], "sd": [], "draft-only": []}
    generate, model = DraftingDecoder.generate, load_model(tiny_pair[0])

    def spy(self: DraftingDecoder, prompt_ids: list[int], *rest: Any, **named: Any) -> Any:
        text = model.decode_text(prompt_ids)
        if text.startswith("0: How?"):
            asked[self.method.name].append(text)
        return generate(self, prompt_ids, *rest, **named)

    monkeypatch.setattr(DraftingDecoder, "generate", spy)
    records = call(write(tmp_path, *ROWS), "out")
    assert [(record["example"], record["turn"]) for record in records] == [(n, t) for n in range(3) for t in range(3)]
    for name, prompts in asked.items():
        for number in range(3):
            first, second = (records[3 * number + turn]["methods"][name]["text"] for turn in (0, 1))
            before = f"0: How?{first}\n\n1: Why {number}?"
            assert prompts[3 * number : 3 * number + 3] == ["0: How?", before, f"{before}{second}\n\n2: So?"]
    assert asked["sd"] == asked["ar"] != asked["draft-only"]


def test_a_run_that_was_broken_off_goes_on_with_the_recorded_answers(call: Callable[..., Any], tmp_path: Path) -> None:
    task = write(tmp_path, *ROWS)
    hot = ("--set", "generation.temperature=1.0", "--repeats", "2")
    whole = call(task, "whole", *hot)
    assert len(whole) == 18
    for num_kept in (1, 2, 10):
        broken = tmp_path / f"broken{num_kept}"
        broken.mkdir()
        for name in ("run.json", "records.jsonl"):
            lines = (tmp_path / "whole" / name).read_bytes().splitlines(keepends=True)
            (broken / name).write_bytes(b"".join(lines[: num_kept if name == "records.jsonl" else None]))
        again = call(task, str(broken), *hot)
        assert list(map(counted, again)) == list(map(counted, whole))


def test_a_turn_without_a_reference_is_counted_and_no_zero(call: Callable[..., Any], tmp_path: Path) -> None:
    records = call(write(tmp_path, *ROWS), "out")
    for record in records:
        for part in record["methods"].values():
            if record["turn"] == 1:
                assert (record["reference"], part["score"], part["scores"]) == (None, None, {"accuracy": None})
                assert "no reference" in part["problem"]
            else:
                assert part["score"] == part["scores"]["accuracy"] in (0.0, 1.0) and "problem" not in part


def test_the_interval_draws_whole_conversations(call: Callable[..., Any], tmp_path: Path) -> None:
    records = call(write(tmp_path, *ROWS), "out")
    assert Prompts.of(records, 0).cluster.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_conversation_that_grows_too_long_loses_its_middle(call: Callable[..., Any], tmp_path: Path) -> None:
    task = write(tmp_path, {"turns": ["x" * 600, "y" * 300, "z" * 100], "answers": [None] * 3})
    records = call(task, "out", "--set", "generation.max_new_tokens=100")
    cuts = [record["truncated_tokens"] for record in records]
    assert cuts[0] == 0 and cuts[1] > 0 and cuts[2] > cuts[1]
    assert [record["prompt_tokens"] for record in records] == [603, 924, 924]  # of 1,024
    assert records[2]["methods"]["ar"]["truncated_tokens"] == cuts[2]
    assert "truncated_tokens" not in records[0]["methods"]["ar"]


def test_the_prompts_of_records_are_what_was_read(
    call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_pair: tuple[str, str]
) -> None:
    read_ids: list[list[int]] = []
    generate = DraftingDecoder.generate

    def spy(self: DraftingDecoder, prompt_ids: list[int], *rest: Any, **named: Any) -> Any:
        if self.method.name == "ar" and bytes(prompt_ids[:1]):
            read_ids.append(prompt_ids)
        return generate(self, prompt_ids, *rest, **named)

    monkeypatch.setattr(DraftingDecoder, "generate", spy)
    records = call(write(tmp_path, *ROWS), "out")
    examples = {("default", example.index): example for example in load(tmp_path)}
    ids = record_prompts(examples, {}, records, load_model(tiny_pair[0]), "auto")
    assert [ids(record) for record in records] == read_ids[-len(records) :]


def test_records_with_other_answers_before_them_are_no_comparison() -> None:
    def record(turn: int, other: str) -> dict[str, Any]:
        place = {"task": "t", "subset": "en", "example": 0, "repeat": 0, "turn": turn}
        return {**place, "methods": {"ar": {"text": "a"}, "fsd": {"text": other}}}

    records = [record(0, "a"), record(1, "b"), record(2, "a")]
    assert [r["turn"] for r in with_the_same_history(records, "fsd")] == [0, 1]


def test_a_chat_template_gets_messages_in_turn() -> None:
    model = tiny.causal_lm()
    model.tokenizer.chat_template = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}<a>"
    ids = model.encode_prompt("three", True, ("one", "two"))
    assert model.decode_text(ids) == "<u>one<a>two<u>three<a>"
    assert model.decode_text(model.encode_prompt("three", False, ("one", "two"))) == "onetwo\n\nthree"
