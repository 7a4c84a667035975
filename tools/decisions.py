"""Writes docs/measured/decisions.md: from the committed records of a real pair to a profile, its exports, advice, and a
paper's figure and table. Nothing is measured; the page has the commands and what they print."""

import argparse
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from specbench.core.files import write_atomically
from tools.commands import ROOT, run_specbench
from tools.real.archive import unpack

PAGE = ROOT / "docs" / "measured" / "decisions.md"
ARCHIVES = ROOT / "leaderboards" / "real"
CELLS = ("humaneval-chains", "humaneval-int8", "humaneval-q4", "gsm8k-chains")
PRECISIONS = "runs/humaneval-chains runs/humaneval-int8 runs/humaneval-q4"
FIGURES = ("decisions-ways.png", "decisions-methods.png")


@dataclass(frozen=True)
class Part:
    """A section. `commands`: each run in turn, in a folder with the unpacked records. `figure`: that one of them makes,
    shown behind them."""

    heading: str
    text: str
    commands: tuple[str, ...]
    figure: str = ""


PARTS = (
    Part(
        "How far drafts get",
        "The profile of the draft model on HumanEval, and the settings with which other engines would force the same "
        "acceptance ([what each takes](../guide/examine.md#for-other-engines)). *Measured*: positions and histograms; "
        "*computed*: the lengths of shorter drafts in the last export, which says so.",
        (
            "specbench profile runs/humaneval-chains:sd --output profile.json",
            "specbench profile profile.json --export vllm",
            "specbench profile profile.json --export llama.cpp",
            "specbench profile profile.json --export sglang",
            "specbench profile profile.json --export tensorrt-llm",
            "specbench profile profile.json --export inferencex --lengths 1,3",
        ),
    ),
    Part(
        "Which of these on this machine",
        "Three runs of the same prompts: bfloat16 and int8 in this process, and Q4_K_M with llama.cpp. Another "
        "precision is another target, so that its score stands beside its speed. Shorter drafts are replayed, and said "
        "to be.",
        (
            f"specbench advise {PRECISIONS} --plot {FIGURES[0]}",
            f"specbench advise {PRECISIONS} --goal cost --price-per-hour 0.10 --max-loss 0.1",
        ),
        FIGURES[0],
    ),
    Part(
        "Where energy could not be read",
        "The machine has no counter that may be read, so there is no ranking, and not a made-up one:",
        (f"specbench advise {PRECISIONS} --goal energy",),
    ),
    Part(
        "A figure and a table for a paper",
        "Both tasks with three methods; rows of other conditions never share a group.",
        (
            f"specbench plot methods runs/gsm8k-chains runs/humaneval-chains --method sd,pld,fsd-med "
            f"--output {FIGURES[1]} --width text",
            "specbench table runs/gsm8k-chains runs/humaneval-chains --method sd,pld,fsd-med --format latex --siunitx",
        ),
        FIGURES[1],
    ),
)

HEAD = """# From records to a decision

`python -m tools.decisions --write` writes this page from the committed records of the [real pair](real.md),
Qwen2.5-Coder 1.5B with its 0.5B as the draft model, on two threads of a CPU. Nothing is measured for it: it shows what
`profile`, `advise`, `plot` and `table` say of runs that exist. What [a change of the target](drift.md) does to
acceptance, and what [published speed-ups](claims.md) leave open beside this pair, have pages of their own. Records of
servers under a load are not committed: [the guide](../guide/examine.md#what-does-the-drafters-memory-cost-memory) has
the commands for them.

The records are unpacked first, in a checkout:

```sh
{unpacking}
```
"""


def page(folder: Path) -> str:
    """Returns the page; figures are left in the folder."""
    for name in CELLS:
        unpack(ARCHIVES / f"{name}.tar.xz", folder / "runs" / name)
    unpacking = "\n".join(
        f"mkdir -p runs/{name} && tar xJf leaderboards/real/{name}.tar.xz -C runs/{name}" for name in CELLS
    )
    return "\n".join([HEAD.format(unpacking=unpacking), *(section(part, folder) for part in PARTS)]).rstrip() + "\n"


def section(part: Part, folder: Path) -> str:
    lines = [f"## {part.heading}", part.text]
    for command in part.commands:
        lines += [f"```bash\n{command}\n```", f"```text\n{printed(command, folder)}\n```"]
    if part.figure:
        lines.append(f"![{part.heading}]({part.figure})")
    return "\n\n".join(lines) + "\n"


def printed(command: str, folder: Path) -> str:
    """Returns what a command prints, its notes and errors included. Raises SystemExit if it fails otherwise than by
    saying that a goal has no numbers."""
    output = folder / "output.txt"
    with output.open("w", encoding="utf-8") as file:
        done = run_specbench(shlex.split(command)[1:], folder, 1, file, stderr=subprocess.STDOUT)
    text = output.read_text(encoding="utf-8")
    if done.returncode and "error: --goal energy" not in text:
        raise SystemExit(f"{command}: {text}")
    progress = ("reading the r", "drawing")
    return "\n".join(line.rstrip() for line in text.splitlines() if not line.startswith(progress)).strip("\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.decisions", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page and its figures, instead of printing it")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page")
    given = parser.parse_args()
    with TemporaryDirectory(prefix="specbench-decisions-") as scratch:
        text = page(Path(scratch))
        if not given.write:
            print(text)
            return
        for name in FIGURES:
            shutil.copy(Path(scratch) / name, given.page.with_name(name))
    write_atomically(given.page, text)


if __name__ == "__main__":
    main()
