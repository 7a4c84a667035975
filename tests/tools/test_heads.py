"""The tool that trains heads for a public target: its halves of the prompts, its commands, and its page."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from specbench.specs.components import build
from specbench.specs.method import MethodSpec, proposes_trees
from specbench.statistics.bootstrap import Estimate
from tests.support.rows import row
from tools.drafters.workplace import Workplace
from tools.heads import __main__ as tool
from tools.heads import parts
from tools.heads.page import TITLES, Measured, Point, draw, page, read, write
from tools.heads.parts import PARTS, Part, measure, train
from tools.heads.prompts import COLUMN, SUBSETS, TEXTS, digest_of, is_measured, split_rows

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def test_the_halves_share_no_row_and_no_question(place: Workplace) -> None:
    number = split_rows(place, None)
    prompts = [json.loads(line)[COLUMN] for line in place.path(TEXTS).read_text().splitlines()]
    assert len(prompts) == number > 20
    for task in SUBSETS:
        halves = [place.path("data", half, f"{task}.jsonl").read_text().splitlines() for half in ("train", "measured")]
        assert halves[0] and not {*halves[0]} & {*halves[1]}
        for line in halves[1]:
            question = json.loads(line).get("question") or json.loads(line)["turns"][0]
            assert not any(question in prompt for prompt in prompts)
    before = digest_of(place)
    assert split_rows(place, None) == number and digest_of(place) == before


def test_a_question_of_another_set_is_found() -> None:
    measured = [json.dumps({"turns": ['Is "a" one?\nYes or no?']})]
    assert is_measured('Q: Is "a" one?\nYes or no?\nA: Let\'s think step by step.', measured)
    assert is_measured('Is "a" one?\nYes or no?', measured) and not is_measured("Is b one?", measured)


def test_other_data_are_of_a_folder(place: Workplace, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no gsm8k/\*\.jsonl"):
        split_rows(place, tmp_path)
    for task, found in {
        "gsm8k": [{"question": f"How many {n}?", "answer": f"#### {n}"} for n in range(4)],
        "spec_bench": [{"question_id": n, "category": "qa", "turns": [f"Who is {n}?"]} for n in range(4)],
    }.items():
        (tmp_path / "rows" / task).mkdir(parents=True)
        (tmp_path / "rows" / task / "x.jsonl").write_text("".join(json.dumps(each) + "\n" for each in found))
    # Spec-Bench has no rows of the other groups here, which a real folder has.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SUBSETS, "spec_bench", ("qa",))
        assert split_rows(place, tmp_path / "rows") == 4
    prompts = place.path(TEXTS).read_text()
    assert all(text in prompts for text in ("How many 0?", "How many 2?", "Who is 0?", "Who is 2?"))


@dataclass(frozen=True)
class Told(Workplace):
    """Runs nothing and keeps the words of the commands."""

    words: list[tuple[str, ...]] = field(default_factory=list)

    def specbench(self, made: str, *words: str) -> None:
        self.words.append(words)


@pytest.mark.parametrize("part", [Part(kind, 32, 3) for kind in parts.SETTINGS], ids=lambda part: part.kind)
def test_commands_are_understood(specbench: Run, tmp_path: Path, part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's folder holds something else, which is said after the settings have been read."""
    monkeypatch.chdir(tmp_path)
    place = Told(tmp_path)
    split_rows(place, None)
    train(place, part, "embedded:target")
    measure(place, part, "embedded:target")
    place.path(part.folder).mkdir(parents=True)
    place.path(part.folder, "config.json").write_text("{}")
    for words in place.words:
        code, _, err = specbench(*words)
        assert code == 2 and part.folder in err.splitlines()[-1] and "problems" not in err, err


def test_every_kind_is_trained_measured_and_told_apart() -> None:
    assert {part.kind for part in PARTS} == parts.SETTINGS.keys() == TITLES.keys() == parts.SECONDS_PER_STEP.keys()
    assert len(TITLES) <= 10, "matplotlib's colours, one for each kind"
    for kind in parts.SETTINGS:
        part = Part(kind, 100, 3)
        for name, method in part.methods().items():
            spec = build(MethodSpec, {"name": name, "version": 1, "title": name, "num_draft_tokens": 3, **method})
            assert spec.drafter.options.get("path", "") in (part.folder, "")
            assert name.rpartition("-")[2] == ("tree" if proposes_trees(spec) else "chain")


def test_parts_are_listed_with_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An estimate grows with answers and steps, and nothing is trained."""
    write(tmp_path / "heads.json", Measured("models/x", "abc", (point(PARTS[0], 1.4),)))
    monkeypatch.setattr("sys.argv", ["heads", "--list", "--output", str(tmp_path)])
    tool.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [part.name for part in PARTS]
    assert lines[0].endswith("measured") and all(re.search(r"about \d+ min(, a guess)?$", line) for line in lines[1:])
    assert {line.split("-")[0] for line in lines if line.endswith("guess")} == parts.GUESSED
    for kind in parts.SETTINGS:
        assert Part(kind, 100, 3).minutes < Part(kind, 100, 10).minutes < Part(kind, 300, 10).minutes
    monkeypatch.setattr("sys.argv", ["heads", "--output", str(tmp_path)])
    with pytest.raises(SystemExit):
        tool.main()
    assert "MODEL is missing" in capsys.readouterr().err


def test_sizes_grow_so_that_the_first_parts_are_done_first() -> None:
    for kind in parts.SETTINGS:
        sizes = [(part.num_answers, part.epochs) for part in PARTS if part.kind == kind]
        assert sizes == sorted(sizes, key=lambda size: size[0]) and len({part.name for part in PARTS}) == len(PARTS)


def point(part: Part, tau: float) -> Point:
    metrics = {"mean_acceptance_length": Estimate(value=tau, low=tau - 0.1, high=tau + 0.1),
               "speedup": Estimate(value=1.2), "acceptance_rate": Estimate(value=0.44)}  # fmt: skip
    kinds = [name.rpartition("-")[2] for name in part.methods()]
    rows = {kind: row(metrics=metrics) for kind in kinds}
    return Point(
        part, 72, 14000, 9_800_000, 98.0, {50: 13.2, 72: 12.9}, rows, row(), ("specbench train eagle3 …",)
    )  # fmt: skip


def test_the_page_shows_each_part_and_says_what_is_missing(tmp_path: Path) -> None:
    found = (
        point(PARTS[0], 1.4),
        point(PARTS[1], 1.5),
        point(Part("medusa", 100, 3), 1.3),
        point(Part("dspark", 100, 3), 1.35),
    )
    measured, file = Measured("models/smollm2-135m", "abc", found), tmp_path / "heads.json"
    assert read(file, "models/smollm2-135m", "abc") == Measured("models/smollm2-135m", "abc")
    write(file, measured)
    assert read(file, "models/smollm2-135m", "abc") == measured
    with pytest.raises(SystemExit, match=r"heads\.json: has parts of .* the prompts abc, not of .* and abd"):
        read(file, "models/smollm2-135m", "abd")
    text = page(measured, 307)
    assert (
        "| eagle3-32-10 | 32 | 14,000 | 72 | 9.8 M | 1.6 min | 12.90 | 1.40 [1.30, 1.50] | 1.40 [1.30, 1.50] |" in text
    )
    assert "| medusa-100-3 | 100 | 14,000 | 72 | 9.8 M | 1.6 min | 12.90 | – | 1.30 [1.20, 1.40] |" in text
    assert "| dspark-100-3 | 100 | 14,000 | 72 | 9.8 M | 1.6 min | 12.90 | 1.35 [1.25, 1.45] | – |" in text
    assert "in this edition: distill-100-3, mtp-100-3, dflash-100-3, peagle-100-3, eagle3-100-10" in text
    assert "specbench train eagle3 …" in text
    draw(found, tmp_path / "heads.png")
    assert (tmp_path / "heads.png").stat().st_size > 5000


@pytest.mark.slow
def test_the_whole_tool_goes_on_where_it_was(specbench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_here(words: Sequence[str], folder: Path, *_: object) -> subprocess.CompletedProcess[str]:
        """In this process, which has imported what the commands need."""
        argv = sys.argv
        with contextlib.chdir(folder):
            code, out, err = specbench(*words)
        sys.argv = argv
        assert code == 0, err
        return subprocess.CompletedProcess(words, code, out)

    monkeypatch.setattr("tools.drafters.workplace.run_specbench", run_here)
    monkeypatch.setattr("specbench.training.train.cache_folder", lambda: tmp_path / "cache")
    small: Any = ("--set", f"data.column={COLUMN}", "--set", "max_new_tokens=8", "--threads", "1")
    monkeypatch.setattr(parts, "COMMON", small)
    for kind in ("eagle3", "mtp", "dflash"):
        settings = ("--set", f"{kind}.validation_share=0", "--set", f"{kind}.batch_size=4")
        own = ("--set", "dflash.num_layers=1", "--set", "dflash.block_size=4") if kind == "dflash" else ()
        monkeypatch.setitem(parts.SETTINGS, kind, (*settings, *own))
    monkeypatch.setattr(parts, "RUN", ("--limit", "1", "--set", "generation.max_new_tokens=4", "--threads", "1"))
    monkeypatch.setattr(tool, "PARTS", tuple(Part(kind, 8, 1) for kind in ("eagle3", "mtp", "dflash")))
    monkeypatch.setattr("tools.heads.page.PARTS", (*tool.PARTS, Part("medusa", 8, 1)))
    words = ["heads", "embedded:target", "--work", str(tmp_path / "work"), "--output", str(tmp_path / "docs")]
    monkeypatch.setattr("sys.argv", words)
    tool.main()
    text = (tmp_path / "docs" / "heads.md").read_text()
    assert all(f"| {kind}-8-1 | 8 |" in text for kind in ("eagle3", "mtp", "dflash"))
    assert "Not measured in this edition: medusa-8-1" in text
    assert (tmp_path / "docs" / "heads.png").exists()
    monkeypatch.setattr(Workplace, "_run", lambda *_: pytest.fail("it is there"))
    tool.main()
    monkeypatch.setattr("sys.argv", [*words[:3], str(tmp_path / "elsewhere"), *words[4:]])
    tool.main()
    assert (tmp_path / "docs" / "heads.md").read_text() == text
    monkeypatch.setattr("sys.argv", [*words, "--only", "eagle3-9"])
    with pytest.raises(SystemExit, match="no such part"):
        tool.main()
