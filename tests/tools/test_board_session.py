"""The page of a board's session, and the session itself with the commands of the guide."""

import re
from pathlib import Path

import pytest

from tests.publish.test_bundle import needs_ssh
from tools.board_session import MOST_LINES, PAGE, Session, Step, page, whole_session


def test_the_page_has_every_command_with_its_time_and_what_it_prints() -> None:
    steps = [
        Step("ada", "git clone -q a | cat", 0.04, 0.01, ""),
        Step("ada", "specbench board check", 2.25, 1.0, "warming up x\n3/48 mgsm/en · ar\nok: . (1 bundle)\n\n"),
        Step("bob", "specbench board merge", 3.0, 2.0, "\n".join(map(str, range(MOST_LINES + 5)))),
    ]
    text = page(steps, [("First", 0), ("Second", 2)])
    assert "5 s in all" in text and text.index("## First") < text.index("## Second") < text.index("board merge")
    assert re.search(r"\| ada \| `git clone -q a \\\| cat` \| +0\.0 \| +0\.0 \|", text)
    assert "```text\nok: . (1 bundle)\n```" in text and "… (5 more lines)" in text


def test_the_committed_page_is_of_the_whole_session() -> None:
    """Each of the three and the forger; the embedded pair and the real one were measured again."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+) \| `(.*)` \| *(\d+\.\d) \| *(\d+\.\d) \|$", text, re.M)
    assert {who for who, *_ in rows} == {"maintainer", "submitter", "re-runner", "forger"}
    told = "\n".join(command for _, command, *_ in rows)
    for command in (
        "board init",
        "board check",
        "board merge",
        "board rerun",
        "bundle make",
        "bundle sign",
        "run --task",
    ):
        assert f"specbench {command}" in told
    assert (
        "../real" in told
        and "../real-again" in told
        and len(re.findall(r"(?:agrees with|differs from) (?:mgsm|humaneval)@", text)) == 2
    )
    assert "/tmp/" not in text and "session-" not in text


@pytest.mark.slow
@needs_ssh
def test_a_whole_session(tmp_path: Path) -> None:
    """Every command has the exit status that the page says; the rows of two runs have their marks. The models that are
    measured have one layer each."""
    session = Session(tmp_path, prints=False)
    words = "--subset en --limit 3 --target embedded:drafter --drafter embedded:drafter-scdf"
    parts = dict(whole_session(session, words))
    made = page(session.steps, list(parts.items()))
    board = (tmp_path / "my-board" / "BOARD.md").read_text("utf-8")
    assert re.search(r"mgsm@\d+ \| .* recomputed · signed by ada@example.org · 2 runs (agree|differ)", board)
    if "The real pair of another day is filed" in parts:
        assert re.search(r"humaneval@\d+ .* 2 runs (agree|differ)", board)
    refused = session.steps[-1].printed
    assert "board.yaml" in refused and "has the same records as bundles/ada.tar.gz" in refused
    assert str(tmp_path) not in made
