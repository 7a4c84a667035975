"""Room for what is measured: no block, no warm-up and no audit outgrows what was made ready for it.

Passes are left uncompiled, and counted as torch would count them.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.models import causal_lm, static_passes
from specbench.models.static_passes import StaticPasses, StaticSequence
from specbench.records.generation import Record
from specbench.running import capture_plan as reserving
from specbench.running import measure as runner
from specbench.running.plan import SubsetRun, Trial
from tests.support import tiny

Outcome = tuple[int, str, str]


@pytest.fixture
def made(made: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Counted as compiled passes are."""
    for module in (reserving, runner):
        monkeypatch.setattr(module, "num_compilations", lambda: len(made))
    return made


@pytest.fixture
def capacities(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Of the buffers that are made, by model, beyond the least."""
    found: list[tuple[str, int]] = []
    make = StaticSequence._buffers

    def noted(self: StaticSequence, capacity: int) -> StaticPasses:
        if capacity > static_passes.MIN_CAPACITY:
            found.append((self.name, capacity))
        return make(self, capacity)

    monkeypatch.setattr(StaticSequence, "_buffers", noted)
    return found


def test_a_conversation_that_grows_when_it_is_read_again_gets_room_before_it_is_measured(
    specbench: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: list[str]
) -> None:
    """Random bytes are not text: of 60 that were written about 120 are read in the second turn."""
    target = tiny.save(tmp_path / "target", num_hidden_layers=1)
    monkeypatch.setattr(causal_lm, "end_token_sources", lambda *given: {})
    asked = ("run", "--task", "mt_bench", "--subset", "writing", "--data", "sample", "--limit", "1", "--method", "ar",
             "--target", str(target), "--set", "generation.max_new_tokens=60", "--engine", "compiled", "--device",
             "cpu")  # fmt: skip
    code, _, said = specbench(*asked, "--output", "here")
    assert code == 0, said
    first, second = map(json.loads, (tmp_path / "here" / "records.jsonl").read_text().splitlines())
    lines = [json.loads(line) for line in (tmp_path / "here" / "compilations.jsonl").read_text().splitlines()]
    assert [line["capacity"] for line in lines] == [192, 256] and sum(line["num_passes"] for line in lines) == len(made)
    assert first["prompt_tokens"] + 60 < 192 < second["prompt_tokens"] + 60 <= 256
    assert "for 256 tokens: " in said and "writing: compiled " in said

    monkeypatch.setattr(runner, "allocate_and_capture_for_trial", lambda *given: iter(()))
    code, _, said = specbench(*asked, "--output", "there")
    assert code == 2 and "passes were compiled or recorded while it was measured" in " ".join(said.split())


MGSM = ("--task", "mgsm", "--limit", "2", "--data", "sample", "--method", "slrs", "--target", "embedded:drafter",
        "--drafter", "embedded:drafter-bytes", "--engine", "compiled", "--device", "cpu")  # fmt: skip


@pytest.mark.parametrize(("subset", "num_new"), [("zh", 20), pytest.param("sw", 12, marks=pytest.mark.slow)])
def test_a_warm_up_text_of_more_drafter_tokens_than_the_prompts_has_room(
    subset: str, num_new: int, specbench: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    made: list[str], capacities: list[tuple[str, int]],
) -> None:  # fmt: skip
    monkeypatch.setattr("specbench.running.warm_up.NUM_NEW_TOKENS", 16)
    asked = ("run", *MGSM, "--subset", subset, "--set", f"generation.max_new_tokens={num_new}", "--output", "here")
    code, _, said = specbench(*asked)
    assert code == 0, said
    lines = [json.loads(line) for line in (tmp_path / "here" / "compilations.jsonl").read_text().splitlines()]
    assert {(line["model"], line["capacity"]) for line in lines} >= set(capacities) and len(lines) == 2
    assert len(dict(capacities)) == len(capacities)  # once for each model
    assert sum(line["num_passes"] for line in lines) == len(made)


def test_a_block_that_fits_compiles_nothing_more(
    specbench: Callable[..., Outcome], tiny_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch, made: list[str]
) -> None:
    """Nor do buffers become smaller for a shorter one."""
    numbers = []
    reserve_for_block = runner.allocate_and_capture_for_trial

    def noted(*given: Any) -> Any:
        before = len(made)
        assert list(reserve_for_block(*given)) == []
        numbers.append((len(made) - before, given[0].run.models.target.static.capacity))
        return iter(())

    monkeypatch.setattr(runner, "allocate_and_capture_for_trial", noted)
    code, _, said = specbench(
        "run", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", "2", "--method", "sd", "--output",
        "here", "--target", tiny_pair[0], "--drafter", tiny_pair[1], "--engine", "compiled", "--device", "cpu", "--set",
        "generation.max_new_tokens=3",
    )  # fmt: skip
    assert code == 0, said
    assert len(numbers) == 2 and len(set(numbers)) == 1 and numbers[0][0] == 0 < len(made)


def test_a_run_with_trees_compiles_nothing_while_it_is_measured(
    specbench: Callable[..., Outcome], tiny_pair: tuple[str, str], tmp_path: Path, made: list[str]
) -> None:
    code, _, said = specbench(
        "run", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", "1", "--method",
        "sd,sd-tree,token-recycling,lookahead", "--output", "here", "--target", tiny_pair[0], "--drafter", tiny_pair[1],
        "--engine", "compiled", "--device", "cpu", "--set", "generation.max_new_tokens=6",
    )  # fmt: skip
    assert code == 0, said
    lines = [json.loads(line) for line in (tmp_path / "here" / "compilations.jsonl").read_text().splitlines()]
    # target: 1, 6, and trees of 28, 81, 41, 21, 57, 29, 15 tokens; drafter: 1, 2, and levels of 3 and 6
    assert [line["num_passes"] for line in lines] == [9, 4] and len(made) == 13


def test_an_audit_reserves_for_a_byte_drafter_by_its_own_count(
    specbench: Callable[..., Outcome], made: list[str], capacities: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What is made ready first is enough to the end; only the target then reads whole texts, to know its noise."""
    numbers = []
    reserve_for = reserving.allocate_and_capture_for

    def noted(*given: Any) -> None:
        reserve_for(*given)
        numbers.append((len(made), len(capacities)))

    monkeypatch.setattr("specbench.analysis.audit.audit.allocate_and_capture_for", noted)
    code, _, said = specbench("audit", *MGSM, "--subset", "ru", "--set", "generation.max_new_tokens=24", "--draws", "0",
                             "--limit", "1")  # fmt: skip
    assert code == 0, said
    assert [name for name, _ in capacities] == ["embedded:drafter", "embedded:drafter-bytes"]
    of_target = f"_{capacities[0][1]}"
    assert [size for _, size in numbers] == [2] and all(name.endswith(of_target) for name in made[numbers[0][0] :])


def test_subsets_in_turns_have_their_own_room_and_compile_once(
    specbench: Callable[..., Outcome], tiny_pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    made: list[str],
) -> None:  # fmt: skip
    """A subset of short prompts and one of long prompts: each is measured in the room that it has alone."""
    for subset, words in (("en", 10), ("de", 300)):
        (tmp_path / f"mgsm_{subset}.tsv").write_text("".join(f"{'a ' * words}{n}?\t1\n" for n in range(2)))
    seen: list[tuple[str, int]] = []
    sized: list[str] = []
    measure, conversations = runner.measure, reserving.unanswered_conversations

    def measured(block: Trial, *given: Any) -> Record:
        static = block.run.models.target.static
        assert static is not None
        seen.append((block.run.subset, static.capacity))
        return measure(block, *given)

    def noted(run: SubsetRun) -> Iterator[Any]:
        sized.append(run.subset)
        return conversations(run)

    monkeypatch.setattr(runner, "measure", measured)
    monkeypatch.setattr(reserving, "unanswered_conversations", noted)
    code, _, said = specbench(
        "run", "--task", "mgsm", "--subset", "en,de", "--data", ".", "--method", "pld", "--target", tiny_pair[0],
        "--set", "generation.max_new_tokens=6", "--engine", "compiled", "--device", "cpu", "--output", "here",
    )  # fmt: skip
    assert code == 0, said
    (_, short), (_, long) = seen[:2]
    assert short < long and seen == [("en", short), ("de", long)] * 2
    lines = [json.loads(line) for line in (tmp_path / "here" / "compilations.jsonl").read_text().splitlines()]
    assert [line["capacity"] for line in lines] == [short, long] and sized == ["en", "de"]
