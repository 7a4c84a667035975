"""The session of a maintainer, a submitter and a re-runner of a board repository, each in a clone on this machine, and
docs/measured/board.md with its commands, what they print and their times.

    python -m tools.board_session                # prints the page
    python -m tools.board_session --write

The embedded pair is measured, and measured again. A run of a real pair and its repetition on another day are those of
a cell of leaderboards/real, whose earlier edition the history of Git has.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specbench.core.files import write_atomically
from specbench.core.table import markdown_table
from specbench.results.row import ALL
from tools.commands import ROOT, run_timed
from tools.real.archive import unpack
from tools.real.board import Archives
from tools.real.cells import CELLS
from tools.real.reruns import LICENCE, unpack_earlier
from tools.servers_page import device_name

PAGE = ROOT / "docs" / "measured" / "board.md"
REAL = "humaneval-chains"
MAINTAINER, SUBMITTER, RERUNNER, FORGER = "maintainer", "submitter", "re-runner", "forger"
IDENTITY = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER")
            for key, value in (("NAME", "somebody"), ("EMAIL", "somebody@example.org"))}  # fmt: skip
MOST_LINES = 60  # of a command's output


@dataclass(frozen=True)
class Step:
    """A command with its seconds by the clock and of the CPU. `printed`: without the output of git."""

    who: str
    command: str
    wall: float
    cpu: float
    printed: str


@dataclass
class Session:
    """Commands in the folders of several people below `folder`. `prints`: whether each is printed while it runs."""

    folder: Path
    prints: bool = True
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        program = self.folder / "bin" / "specbench"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m specbench "$@"\n')
        program.chmod(0o755)
        for who in ("ada", "bob"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.folder / f"{who}_key")]
            subprocess.run(words, check=True)

    def do(self, who: str, place: str, command: str, code: int = 0) -> str:
        """Runs a line of a shell in a folder. Returns what it prints. Raises RuntimeError for another exit status."""
        environment = os.environ | IDENTITY | {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
            "COLUMNS": "110", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        (self.folder / place).mkdir(exist_ok=True)
        done = run_timed(command, self.folder / place, environment)
        printed = done.printed.replace(f"{self.folder}/", "")
        if done.code != code:
            raise RuntimeError(f"{command}: exit status {done.code}: {printed}")
        is_git = command.startswith("git ") and "specbench" not in command
        self.steps.append(Step(who, command, done.wall, done.cpu, "" if is_git else printed.rstrip()))
        if self.prints:
            print(f"{who:11}{done.wall:7.1f} s {done.cpu:7.1f} s CPU  {command}", flush=True)
        return printed

    def row(self, board: str, method: str, task: str) -> str:
        """Returns the name of a row over all subsets, as BOARD.md has it."""
        text = (self.folder / board / "BOARD.md").read_text(encoding="utf-8")
        found = re.findall(rf"^\| (\w{{8}}) \| {task}@\d+ \| (\w+) \| {method} \|", text, re.M)
        names: dict[str, str] = {subset: name for name, subset in found}
        return names.get(ALL) or next(iter(names.values()))  # a run of one subset has no row over all

    def submit(self, who: str, place: str, branch: str) -> None:
        """A submission is checked, pushed, checked as the workflow does, and merged by the maintainer."""
        self.do(who, place, "specbench board check --base origin/main")
        self.do(who, place, f"git add bundles && git commit -q -m 'Add {branch}' && git push -q origin {branch}")
        board = "my-board"
        self.do(MAINTAINER, board, f"git fetch -q && git switch -q --detach origin/{branch}")
        self.do(MAINTAINER, board, "specbench board check --base main --markdown ../report.md")
        self.do(MAINTAINER, board, f"git switch -q main && git merge -q origin/{branch}")
        self.do(MAINTAINER, board, "specbench board merge")
        self.do(MAINTAINER, board, f"git add -A && git commit -q -m 'Rows of {branch}' && git push -q")


def whole_session(session: Session, words: str = "--subset en,de --limit 12") -> list[tuple[str, int]]:
    """Does all of it. Returns the titles of its parts, each with the number of its first step. `words`: of the run of
    the embedded pair."""
    folder, parts = session.folder, []

    def part(title: str) -> None:
        parts.append((title, len(session.steps)))

    part("An empty board")
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(folder / "board.git")], check=True)
    session.do(MAINTAINER, ".", "git init -q -b main my-board")
    session.do(MAINTAINER, ".", "specbench board init my-board --title 'SD on small CPUs' --address ../board.git")
    board = folder / "my-board" / "board.yaml"
    text = board.read_text(encoding="utf-8").replace("signatures: optional", "signatures: required")
    board.write_text(text.replace("CC0-1.0]", "Apache-2.0]"), encoding="utf-8")
    with (folder / "my-board" / "allowed_signers").open("a", encoding="utf-8") as file:
        for who in ("ada", "bob"):
            public = (folder / f"{who}_key.pub").read_text(encoding="utf-8").strip()
            file.write(f'{who}@example.org namespaces="specbench-bundle" {public}\n')
    session.do(MAINTAINER, "my-board", "specbench board merge")
    session.do(
        MAINTAINER, "my-board", "git add -A && git commit -q -m 'An empty board' && git remote add origin ../board.git "
        "&& git push -q -u origin main",
    )  # fmt: skip

    part("A run of the embedded pair is submitted")
    session.do(SUBMITTER, ".", "git clone -q board.git ada && git -C ada switch -q -c ada")
    session.do(SUBMITTER, "ada", f"specbench run --task mgsm --method sd {words} --output ../mine")
    make = "specbench bundle make {} --output bundles/{}.tar.gz --author 'Ada Lovelace' --license {}"
    session.do(SUBMITTER, "ada", make.format("../mine", "ada", "CC-BY-4.0"))
    session.do(SUBMITTER, "ada", "specbench board check --base origin/main", code=2)  # it is not signed yet
    session.do(SUBMITTER, "ada", "specbench bundle sign bundles/ada.tar.gz --key ../ada_key")
    session.submit(SUBMITTER, "ada", "ada")

    archive = Archives(ROOT / "leaderboards" / "real.json").archive(next(each for each in CELLS if each.name == REAL))
    earlier = next((place for _, place in unpack_earlier(archive, REAL, folder / "editions")), None)
    if earlier is not None:
        earlier.rename(folder / "real")
        unpack(archive, folder / "real-again")
        part("A run of a real pair is submitted")
        session.do(SUBMITTER, "ada", "git fetch -q && git switch -q -c real origin/main")
        session.do(SUBMITTER, "ada", make.format("../real", "real", LICENCE))
        session.do(SUBMITTER, "ada", "specbench bundle sign bundles/real.tar.gz --key ../ada_key")
        session.submit(SUBMITTER, "ada", "real")

    part("Somebody measures the embedded pair again")
    session.do(RERUNNER, ".", "git clone -q board.git bob && git -C bob switch -q -c bob")
    name = session.row("bob", "sd", "mgsm")
    [command] = re.findall("^specbench run .*", session.do(RERUNNER, "bob", f"specbench board rerun {name}"), re.M)
    session.do(RERUNNER, "bob", command)
    session.do(RERUNNER, "bob", f"specbench board rerun {name} --with rerun-{name} --author Bob")
    session.do(RERUNNER, "bob", f"specbench bundle sign bundles/rerun-{name}-1.tar.gz --key ../bob_key")
    session.submit(RERUNNER, "bob", "bob")

    if earlier is not None:
        part("The real pair of another day is filed")
        session.do(RERUNNER, "bob", "git fetch -q && git switch -q -c again origin/main")
        name = session.row("bob", "sd", "humaneval")
        session.do(RERUNNER, "bob", f"specbench board rerun {name}")
        session.do(RERUNNER, "bob", f"specbench board rerun {name} --with ../real-again --author Bob")
        session.do(RERUNNER, "bob", f"specbench bundle sign bundles/rerun-{name}-1.tar.gz --key ../bob_key")
        session.submit(RERUNNER, "bob", "again")

    part("Private texts")
    private = "specbench bundle make ../mine --output ../private.tar.gz --license CC-BY-4.0 --without-texts"
    session.do(SUBMITTER, "ada", private)
    session.do(SUBMITTER, "ada", "specbench bundle verify ../private.tar.gz")

    part("What is refused")
    session.do(FORGER, ".", "git clone -q board.git eve && git -C eve switch -q -c eve")
    session.do(FORGER, "eve", "cp bundles/ada.tar.gz bundles/eve.tar.gz && cp ../private.tar.gz bundles/")
    session.do(FORGER, "eve", "sed -i 's/^tolerance: .*/tolerance: 9/' board.yaml && rm bundles/ada.tar.gz.sig")
    session.do(FORGER, "eve", "specbench board check --base origin/main", code=2)
    return parts


def page(steps: Sequence[Step], parts: Sequence[tuple[str, int]]) -> str:
    """Returns the page as Markdown."""
    found = [HEAD.format(device=device_name(), seconds=sum(step.wall for step in steps))]
    rows = [[step.who, f"`{_short(step.command)}`", f"{step.wall:.1f}", f"{step.cpu:.1f}"] for step in steps]
    ends = [start for _, start in parts[1:]] + [len(steps)]
    for (title, start), end in zip(parts, ends, strict=True):
        found.append(f"## {title}")
        found.append(markdown_table(["who", "command", "s", "CPU s"], rows[start:end], [False, False, True, True]))
        for step in steps[start:end]:
            if step.printed:
                printed = output_block(step.printed)
                found.append(f"The {step.who}, `{_short(step.command)}`:\n\n```text\n{printed}\n```")
    return "\n\n".join(found) + "\n"


def _short(command: str) -> str:
    return command.replace("|", "\\|")


def output_block(text: str) -> str:
    """Returns what a command printed, without progress and empty lines."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not PROGRESS.match(line)]
    more = [f"… ({len(lines) - MOST_LINES} more lines)"] if len(lines) > MOST_LINES else []
    return "\n".join([*lines[:MOST_LINES], *more])


PROGRESS = re.compile(r"warming up |measuring |\d+/\d+ |\S+/\S+, example ")
HEAD = """# A session with a board

`python -m tools.board_session --write` writes this page. A maintainer, a submitter and a re-runner have clones of one
repository on one machine (two cores of {device}); what each did is one command per line, with seconds by the clock and
of the CPU, {seconds:.0f} s in all. [Keep a board for others](../guide/board.md) explains the commands. The tiny
embedded pair is measured while the session runs; the real pair is a cell of [Real pairs](real.md) and its repetition on
another day. The board asks for signatures, and knows the keys of `ada@example.org` and `bob@example.org`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="session-") as scratch:
        session = Session(Path(os.path.realpath(scratch)))
        made = page(session.steps, whole_session(session))
    if options.write:
        write_atomically(PAGE, made)
    else:
        print(made)


if __name__ == "__main__":
    main()
