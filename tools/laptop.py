"""A session from an empty environment to rows of GGUF files, each command timed, and docs/measured/laptop.md and
docs/measured/laptop.json with them.

    python -m tools.laptop MODELS_DIR            # with qwen-coder-1.5b.gguf and qwen-coder-0.5b.gguf
    python -m tools.laptop --page-only

The environment and the run lie in a folder outside the checkout, which is removed. pip takes nothing from its cache, so
that it downloads and builds what it would on a new machine. Nothing else should run meanwhile: building takes all
cores.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from specbench.core.files import write_atomically
from specbench.core.table import markdown_table
from specbench.models.machine import environment
from specbench.report.captions import verdict_word
from specbench.results.leaderboard import load
from specbench.results.metric_format import NULL, with_interval
from specbench.running.plan import others_load
from specbench.statistics.bootstrap import Estimate
from tools.board_session import output_block
from tools.commands import ROOT, link, run_timed

MEASURED = ROOT / "docs" / "measured"
TARGET, DRAFTER = "qwen-coder-1.5b.gguf", "qwen-coder-0.5b.gguf"
PAIR = f"--target {TARGET} --drafter {DRAFTER}"
RUN = f"specbench run --task gsm8k --data sample --limit 8 --method pld,sd {PAIR} --output my-run"
MAKE, INSTALL = "python3 -m venv environment", "pip install {words} './specbench[gguf]'"
COMMANDS = (
    f"specbench show {TARGET}", f"specbench vocab {PAIR}", f"{RUN} --dry-run", RUN, RUN, "specbench advise my-run",
)  # fmt: skip
VERSIONS = ("python", "torch", "transformers", "llama-cpp-python")
OTHER_INSTALLATIONS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_NUM_THREADS")  # nor other numbers of threads


@dataclass(frozen=True)
class Step:
    """A command with its seconds by the clock and of the CPU."""

    command: str
    wall: float
    cpu: float


@dataclass(frozen=True)
class Files:
    """Where pip took packages from: `downloaded`, from its `cache`, from folders of the machine (`local`), and those
    that it `built`. The names of files, or of packages."""

    downloaded: list[str]
    cached: list[str]
    local: list[str]
    built: list[str]

    @classmethod
    def of(cls, printed: str) -> "Files":
        """Reads what `pip install` printed."""

        def named(pattern: str) -> list[str]:
            return sorted({Path(found).name for found in re.findall(pattern, printed, re.M)})

        return cls(
            downloaded=named(r"^ *Downloading (\S+\.(?:whl|tar\.gz|zip))(?:\s|$)"),
            cached=named(r"^ *Using cached (\S+\.(?:whl|tar\.gz|zip))(?:\s|$)"),
            local=named(r"^ *Processing (\S+\.(?:whl|tar\.gz|zip))(?:\s|$)"),
            built=named(r"^ *Created wheel for (\S+?):"),
        )  # fmt: skip


def session(folder: Path, models: Path, words: str, do: Callable[[str], str]) -> dict[str, Any]:
    """Does all of it in an empty folder. Returns what the page needs besides the steps. `words`: options of pip. `do`:
    runs a command there, and returns what it prints."""
    link(folder / "specbench", ROOT)
    for name in (TARGET, DRAFTER):
        link(folder / name, models / name)
    do(MAKE)
    files = Files.of(do(INSTALL.format(words=words)))
    *_, advice = [do(command) for command in COMMANDS]
    rows = load(folder / "my-run" / "leaderboard.json")
    return {
        "device": rows[0].device, "versions": rows[0].versions, "date": date.today().isoformat(),
        "models": {name: (models / name).stat().st_size for name in (TARGET, DRAFTER)}, "files": asdict(files),
        "advice": advice,
        "rows": [
            {
                "method": row.method_name, "n": row.n, "engine": row.engine, "dtype": row.dtype,
                "tokens_per_second": row.value("tokens_per_second"),
                "speedup": None if row.is_baseline else row.metric("speedup").model_dump(),
                "verdict": verdict_word(row),
            }
            for row in rows
        ],
    }  # fmt: skip


def measure(models: Path, words: str) -> dict[str, Any]:
    """Returns the content of laptop.json."""
    others = others_load()
    steps: list[Step] = []
    with tempfile.TemporaryDirectory(prefix="laptop-") as scratch:
        folder = Path(os.path.realpath(scratch))
        clean = {name: value for name, value in os.environ.items() if name not in OTHER_INSTALLATIONS}
        clean |= {"PATH": f"{folder / 'environment' / 'bin'}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "110"}

        def do(command: str) -> str:
            # The environment has the Python of this process, whichever is python3 here.
            program = command.replace("python3 ", f"{sys.executable} ", 1) if command == MAKE else command
            done = run_timed(program, folder, clean)
            print(f"{done.wall:7.1f} s {done.cpu:7.1f} s CPU  {command}", flush=True)
            if done.code != 0:
                raise SystemExit(f"{command}: exit status {done.code}\n{done.printed}")
            steps.append(Step(command, round(done.wall, 1), round(done.cpu, 1)))
            return done.printed.replace(f"{folder}/", "")

        found = session(folder, models, words, do)
    return {
        "commit": environment("cpu", "", "")["commit"], "cores": os.cpu_count(), "others": round(others, 2),
        **found, "steps": [asdict(step) for step in steps],
    }  # fmt: skip


HEAD = """# From nothing to a row of GGUF files

`python -m tools.laptop MODELS_DIR` writes this page and `laptop.json`. It makes an empty virtual environment, installs
specbench with the extra `[gguf]`, and does what [Measure GGUF files](../guide/gguf.md) shows, with files on the disk in
the place of the hub's names.
"""
MEASURED_ON = """Measured on {date} on {device} (the machine has {cores} cores; other programs used {others:.1f} of
them when it began) with {versions}, commit {commit}. It took {minutes:.1f} minutes. Not timed: the download of the
models ({models}) and of specbench itself.

pip took {from_cache} from its cache{option}, downloaded {downloaded}, and took {local} from folders of the machine. It
built {built}. How long that takes depends on the network, too.
"""


def page(found: dict[str, Any] | None) -> str:
    """Returns the page of a session; None: there was none yet."""
    if found is None:
        return f"{HEAD}\nNot measured yet.\n"
    files, steps = Files(**found["files"]), [Step(**step) for step in found["steps"]]
    install = steps[1].command
    sizes = ", ".join(f"`{name}`: {size / 1e9:.2f} GB" for name, size in found["models"].items())
    text = MEASURED_ON.format(
        **{name: found[name] for name in ("date", "device", "cores", "others")},
        versions=", ".join(f"{name} {found['versions'][name]}" for name in VERSIONS if found["versions"].get(name)),
        commit=(found["commit"] or "unknown")[:7], minutes=sum(step.wall for step in steps) / 60, models=sizes,
        from_cache=told(files.cached), option=" (`--no-cache-dir`)" if "--no-cache-dir" in install else "",
        downloaded=told(files.downloaded), local=told(files.local), built=", ".join(files.built) or "nothing",
    )  # fmt: skip
    rows = [
        [row["method"], str(row["n"]), row["engine"], row["dtype"], f"{row['tokens_per_second']:.1f}",
         NULL if row["speedup"] is None else with_interval(Estimate(**row["speedup"])), row["verdict"]]
        for row in found["rows"]
    ]  # fmt: skip
    return "\n\n".join([
        HEAD.rstrip(), text.rstrip(),
        markdown_table(
            ["command", "s", "CPU s"], [[f"`{step.command}`", f"{step.wall:.1f}", f"{step.cpu:.1f}"] for step in steps],
            [False, True, True],
        ),
        "The second time, the command finds all measured. The rows:",
        markdown_table(["method", "n", "engine", "dtype", "tok/s", "speed-up, 95 %", "verdict"], rows),
        "What `specbench advise` says:", f"```text\n{output_block(found['advice'])}\n```",
    ]) + "\n"  # fmt: skip


FEW = 3


def told(names: Sequence[str]) -> str:
    """Returns the number of files, with their names if they are few."""
    if not names:
        return "nothing"
    return f"{len(names)} file{'s' * (len(names) > 1)}" + (f" ({', '.join(names)})" if len(names) <= FEW else "")


def read(place: Path) -> dict[str, Any] | None:
    """Returns the session that was measured."""
    try:
        found: dict[str, Any] = json.loads((place / "laptop.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.laptop", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="?", help=f"folder of {TARGET} and {DRAFTER}", metavar="MODELS_DIR")
    parser.add_argument("--pip", default="--no-cache-dir", metavar="WORDS", help="options of pip install")
    parser.add_argument("--place", type=Path, default=MEASURED, help="folder of the page and the JSON")
    parser.add_argument("--page-only", action="store_true", help="measure nothing")
    given = parser.parse_args()
    if not given.page_only:
        if given.models is None:
            parser.error("MODELS_DIR is missing")
        if missing := [name for name in (TARGET, DRAFTER) if not (given.models / name).is_file()]:
            parser.error(f"{given.models / missing[0]} is missing")
        found = measure(given.models.resolve(), given.pip)
        write_atomically(given.place / "laptop.json", json.dumps(found, indent=1) + "\n")
    write_atomically(given.place / "laptop.md", page(read(given.place)))


if __name__ == "__main__":
    main()
