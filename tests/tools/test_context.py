"""The tool that measures growing contexts: its parts, and small ones of the embedded pair from meetings to the page."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.embedded import member_path
from specbench.records.columns import StepCounts
from tools import context
from tools.commands import ROOT
from tools.context import LONGEST, PLANS, Pair, Part, Plan, meetings
from tools.real.models import QWEN, QWEN_DRAFTER

Run = Callable[..., tuple[int, str, str]]
WORDS = ("We", "meet", "again", "on", "the", "budget", "of", "our", "remote")


def test_parts_are_short_and_cover_every_meeting_at_every_context() -> None:
    parts = [part for plan in PLANS.values() for part in plan.parts]
    assert len({part.name for part in parts}) == len(parts)
    assert all(0 < part.minutes <= LONGEST for part in parts)
    for plan in PLANS.values():
        for number in plan.at_once:
            own = [part for part in plan.parts if part.context == number]
            covered = [first for part in own for first in range(part.first, part.first + part.num)]
            assert covered == list(range(plan.num_meetings))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three meetings, the longest last, each with two questions."""
    folder = tmp_path / "rows" / "qmsum"
    folder.mkdir(parents=True)
    rows = [
        {
            "general_query_list": [{"query": "Summarize it.", "answer": "A budget."}],
            "specific_query_list": [{"query": f"Who spoke {n}?", "answer": "A."}, {"query": "Why?", "answer": "B."}],
            "meeting_transcripts": [
                {"speaker": "ABC"[line % 3], "content": f"{' '.join(WORDS[line % 5 :])}."} for line in range(20 + 5 * n)
            ],
        }
        for n in range(3)
    ]
    (folder / "val.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return folder.parent


def test_the_longest_meetings_come_first_with_one_question(data: Path) -> None:
    found = meetings(data)
    assert [row["specific_query_list"][0]["query"] for row in found] == [f"Who spoke {n}?" for n in (2, 1, 0)]
    assert all(len(row["specific_query_list"]) == 1 and not row["general_query_list"] for row in found)


@pytest.fixture
def tool(tmp_path: Path, data: Path, specbench: Run, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """`call`: the program on the embedded pair in this process. `commands`: what it ran; `codes`: exit codes that
    replace the next commands."""
    found = SimpleNamespace(commands=[], codes=[], page=tmp_path / "context.md", archives=tmp_path / "archives")
    (tmp_path / "given").mkdir()
    for model, name in ((QWEN, "target"), (QWEN_DRAFTER, "drafter")):
        (tmp_path / "given" / model.folder).symlink_to(member_path(name))
    monkeypatch.setattr(context, "PAIRS", {"tiny": Pair(QWEN, QWEN_DRAFTER, 1000, 0.001)})
    monkeypatch.setattr(context, "PLANS", {"tiny": Plan("tiny", {64: 3, 96: 2}, 3)})
    for name, value in {"TOKENS": 8, "WARM_UP": 0, "METHODS": ("sd", "pld")}.items():
        monkeypatch.setattr(context, name, value)

    def run(command: list[str], *, cwd: Path, **options: Any) -> SimpleNamespace:
        found.commands.append(command[command.index("specbench") + 1 :])
        if found.codes:
            return SimpleNamespace(returncode=found.codes.pop(0))
        monkeypatch.chdir(cwd)
        code, _, err = specbench(*found.commands[-1])
        assert code == 0, err
        return SimpleNamespace(returncode=code)

    monkeypatch.setattr("tools.commands.subprocess", SimpleNamespace(run=run))

    def call(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", [
            "context", str(tmp_path / "given"), "--data", str(data), "--threads", "1", "--work", str(tmp_path / "work"),
            "--archives", str(found.archives), "--page", str(found.page), *words,
        ])  # fmt: skip
        context.main()

    found.call = call
    return found


@pytest.mark.slow
def test_parts_are_measured_once_and_pooled(tool: SimpleNamespace, tmp_path: Path) -> None:
    tool.codes = [1]
    with pytest.raises(SystemExit, match="not measured: tiny-64-1; the same command goes on"):
        tool.call()
    text = tool.page.read_text(encoding="utf-8")
    assert "Not measured yet: tiny-64-1." in text and "| 96 | sd |" in text
    tool.call()
    outputs = [words[words.index("--output") + 1] for words in tool.commands]
    assert outputs == [f"parts/{name}" for name in ("tiny-64-1", "tiny-96-1", "tiny-96-3", "tiny-64-1")]
    text = tool.page.read_text(encoding="utf-8")
    assert "Not measured yet" not in text and str(tmp_path) not in text and "3 prompts" in text
    # τ of a context is that of the records of its parts.
    steps = []
    for part in (Part("tiny", 96, 0, 2), Part("tiny", 96, 2, 1)):
        file = tmp_path / "work" / "parts" / part.name / "records.jsonl"
        for line in file.read_text(encoding="utf-8").splitlines():
            steps += [StepCounts(*step) for step in json.loads(line)["methods"]["sd"]["steps"]]
    tau = sum(step.emitted for step in steps) / len(steps)
    row = next(line for line in text.splitlines() if line.startswith("| 96 | sd |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[6] == f"{tau:.2f}" and float(cells[7]) > 0  # and its paired change since the first context
    assert "no change is shown" not in text and re.search(r"\| 96 \| [\d.]+ \| [\d.]+ \|", text)
    before = tool.page.read_bytes()
    tool.page.unlink()
    tool.call("--page-only")
    assert tool.page.read_bytes() == before and len(tool.commands) == 4


def test_the_list_tells_what_is_left(tool: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    tool.archives.mkdir()
    (tool.archives / "tiny-96-1.tar.xz").touch()
    tool.call("--list")
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["min", "measured", "min"]


def test_the_committed_page_names_every_part() -> None:
    text = (ROOT / "docs" / "measured" / "context.md").read_text(encoding="utf-8")
    archives = {file.name.removesuffix(".tar.xz") for file in context.ARCHIVES.glob("*.tar.xz")}
    for part in (part for plan in PLANS.values() for part in plan.parts):
        assert (part.name in text) != (part.name in archives)
