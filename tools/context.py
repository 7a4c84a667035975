"""Measures a public pair at growing contexts, and writes docs/measured/context.md.

`python -m tools.context MODELS_DIR --data DIR` cuts the meetings of QMSum in their middle to 2k, 4k and 8k tokens and
decodes the answers to one question about each. A part is some meetings at one context, one run of `specbench run`
of at most 25 minutes on two idle cores. Its records are compressed into leaderboards/context, and a part whose
archive is there is not measured again: the same command goes on with the others. `--list` shows what is left.
"""

import argparse
import json
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from specbench.core.files import write_atomically
from specbench.core.table import markdown_table
from specbench.report.sweep import sweep_table
from specbench.results.answers import Answer
from specbench.results.metric_format import NULL, with_interval
from specbench.results.paired import RowWithRecords
from specbench.results.runs import RecordedRun, finished_run, rows_of_subsets
from specbench.results.sweeps import Sweep, SweptRow, joined
from specbench.specs.sweep import CONTEXT, value_text
from tools.commands import ROOT, link, run_specbench
from tools.real.archive import pack, unpack
from tools.real.models import MODELS, QWEN, QWEN_DRAFTER, SMOLLM, RealModel

PAGE = ROOT / "docs" / "measured" / "context.md"
ARCHIVES = ROOT / "leaderboards" / "context"
TASK, SUBSET = "scrolls", "qmsum"
METHODS = ("sd", "pld", "self-window")
TOKENS = 128  # new tokens at most
WARM_UP = 60  # seconds
LONGEST = 25  # minutes of a part


@dataclass(frozen=True)
class Pair:
    """`prefill`: rough tokens per second that the target reads, and `token`: seconds of one of its tokens, both on two
    threads. `drafter`: None leaves out the methods with a draft model."""

    target: RealModel
    drafter: RealModel | None
    prefill: float
    token: float

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(name for name in METHODS if self.drafter is not None or name != "sd")


PAIRS = {"qwen": Pair(QWEN, QWEN_DRAFTER, 45, 0.12), "smollm2": Pair(SMOLLM, None, 400, 0.02)}


@dataclass(frozen=True)
class Plan:
    """What is measured: the longest meetings first, so that none is shorter than the contexts, `at_once` of them in a
    part at each context."""

    pair: str
    at_once: Mapping[int, int]
    num_meetings: int

    @property
    def parts(self) -> list["Part"]:
        return [
            Part(self.pair, context, first, min(number, self.num_meetings - first))
            for context, number in self.at_once.items()
            for first in range(0, self.num_meetings, number)
        ]


@dataclass(frozen=True)
class Part:
    """`num` meetings from the `first` on, at one context."""

    pair: str
    context: int
    first: int
    num: int

    @property
    def name(self) -> str:
        return f"{self.pair}-{self.context}-{self.first + 1}"

    @property
    def minutes(self) -> float:
        """An estimate: AR and each method read the prompt and decode."""
        pair = PAIRS[self.pair]
        rounds = 1 + len(pair.methods) + (0.4 if pair.drafter is not None else 0)  # the drafter reads it, too
        return (WARM_UP + self.num * rounds * (self.context / pair.prefill + TOKENS * pair.token)) / 60


PLANS = {
    "qwen": Plan("qwen", {2048: 3, 4096: 3, 8192: 1}, 6),
    "smollm2": Plan("smollm2", {512: 6, 1024: 6, 2048: 6}, 6),
}


def meetings(data: Path) -> list[dict[str, Any]]:
    """Returns the meetings, the longest first, each with the first of its specific questions only."""
    (file,) = sorted((data / SUBSET).glob("*.jsonl"))
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    found.sort(key=lambda row: -sum(len(turn["content"]) for turn in row["meeting_transcripts"]))
    return [{**row, "general_query_list": [], "specific_query_list": row["specific_query_list"][:1]} for row in found]


def words_of(part: Part, threads: int) -> list[str]:
    """Returns the words of the part's run in the work folder."""
    pair = PAIRS[part.pair]
    drafter = ["--drafter", pair.drafter.path] if pair.drafter is not None else []
    return [
        "run", "--task", TASK, "--subset", SUBSET, "--method", ",".join(pair.methods), "--target", pair.target.path,
        *drafter, "--dtype", "bfloat16" if pair.target is QWEN else "float32", "--data", f"rows/{part.name}",
        "--limit", str(part.num), "--set", f"generation.max_new_tokens={TOKENS}", "--set",
        f"max_prompt_tokens={part.context}",
        "--threads", str(threads), "--warm-up", str(WARM_UP), "--output", f"parts/{part.name}",
    ]  # fmt: skip


def measure(part: Part, work: Path, data: Path, threads: int, archives: Path) -> bool:
    """Measures a part, or continues it, and archives it. Returns whether it is finished."""
    rows = work / "rows" / part.name / f"{SUBSET}.jsonl"
    rows.parent.mkdir(parents=True, exist_ok=True)
    chosen = meetings(data)[part.first : part.first + part.num]
    write_atomically(rows, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen))
    words = words_of(part, threads)
    print(f"{part.name}: about {part.minutes:.0f} minutes\n{shlex.join(['specbench', *words])}", flush=True)
    start = time.monotonic()
    if run_specbench(words, work, threads, subprocess.DEVNULL).returncode != 0:
        return False
    pack(work / "parts" / part.name, archives / f"{part.name}.tar.xz")
    print(f"{part.name}: {(time.monotonic() - start) / 60:.1f} minutes", flush=True)
    return True


def sides_of(part: Part, run: RecordedRun) -> Iterator[RowWithRecords]:
    """Yields the rows of a part's methods. Its meetings have the numbers that they have among all."""

    def numbered(answers: Sequence[Answer]) -> list[Answer]:
        return [
            msgspec.structs.replace(each, key=(*each.key[:2], each.key[2] + part.first, *each.key[3:]))
            for each in answers
        ]

    for row in rows_of_subsets(run.rows, ()):
        if not row.is_baseline:
            side = run.with_records(row)
            yield RowWithRecords(
                row, numbered(side.own), numbered(side.baseline), side.method, side.scoring, side.records
            )


def sweep_of(measured: Mapping[Part, RecordedRun]) -> Sweep:
    """Returns the sweep over contexts of one pair, each row over the meetings of all parts of its context."""
    by_place: dict[tuple[int, str], list[RowWithRecords]] = {}
    for part, run in measured.items():
        for side in sides_of(part, run):
            by_place.setdefault((part.context, side.row.method_name), []).append(side)
    rows = []
    for (context, _), sides in sorted(by_place.items(), key=lambda each: each[0][0]):
        own = [answer for side in sides for answer in side.own]
        baseline = [answer for side in sides for answer in side.baseline]
        whole = joined(sides, own, baseline, n=len({answer.key[:3] for answer in own}))
        rows.append(SweptRow(((CONTEXT, context),), whole, (whole.row.seed,)))
    return Sweep(TASK, (CONTEXT,), tuple(rows))


HEAD = """# Long contexts

`python -m tools.context MODELS_DIR --data DIR` writes this page, part by part: `specbench run` with prompts
[cut to a context](../guide/sweep.md#context), on meetings of QMSum's validation split, the first specific question
about each, greedy, up to {tokens} new tokens. The same meetings stand at every context: a prompt loses its middle, and
only its length changes. All figures are *measured*: decoded in this process on two threads of a CPU, intervals are 95 %
over meetings, which are few. *Speed-up* is that of decoding behind the prompt, *end to end* also counts the time in
which prompts are read, by the drafter, too. τ counts the target's own token.
"""


WHOLE = "End to end, reading the prompt included:"


def whole_calls(sweep: Sweep) -> str:
    """Returns the speed-ups of whole calls as a table, a row for each context."""
    by_context: dict[str, dict[str, str]] = {}
    for each in sweep.rows:
        ((_, context),) = each.values
        shown = with_interval(each.row.metric("speedup_e2e"), 2)
        by_context.setdefault(value_text(context), {})[each.row.method_name] = shown
    names = list(dict.fromkeys(name for own in by_context.values() for name in own))
    cells = [[context, *(own.get(name, NULL) for name in names)] for context, own in by_context.items()]
    return markdown_table(("context", *names), cells, [True] * (1 + len(names)))


def section(plan: Plan, found: Mapping[Part, RecordedRun]) -> str:
    pair = PAIRS[plan.pair]
    drafter = f" and {pair.drafter.shown} as its drafter" if pair.drafter is not None else ""
    missing = [part.name for part in plan.parts if part not in found]
    lines = [f"## {pair.target.shown}{drafter}", f"The target's weights are {pair.target.source}."]
    if found:
        sweep = sweep_of(found)
        lines += [sweep_table(sweep).markdown().strip(), WHOLE, whole_calls(sweep)]
        lines.append(
            f"Commits: {', '.join(sorted({(run.rows[0].commit or 'unknown')[:7] for run in found.values()}))}."
        )
    if missing:
        lines.append(f"Not measured yet: {', '.join(missing)}.")
    return "\n\n".join(lines)


def page(archives: Path) -> str:
    """Returns the page of all archives."""
    with TemporaryDirectory(prefix="specbench-context-") as scratch:
        sections = []
        for plan in PLANS.values():
            found = {}
            for part in plan.parts:
                if (archive := archives / f"{part.name}.tar.xz").is_file():
                    unpack(archive, Path(scratch) / part.name)
                    found[part] = finished_run(Path(scratch) / part.name)
            sections.append(section(plan, found))
    return "\n\n".join([HEAD.format(tokens=TOKENS).strip(), *sections]) + "\n"


def main() -> None:
    parts = {part.name: part for plan in PLANS.values() for part in plan.parts}
    parser = argparse.ArgumentParser(
        prog="python -m tools.context", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", type=Path, nargs="?", help="folder of the models, as for tools.real", metavar="MODELS_DIR"
    )
    parser.add_argument("--data", type=Path, help=f"folder with {SUBSET}/*.jsonl")
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts), metavar="PART", help=", ".join(parts))
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--work", type=Path, default=Path("runs") / "context-work", help="work folder")
    parser.add_argument("--archives", type=Path, default=ARCHIVES, help="folder of the archives")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page")
    parser.add_argument("--list", action="store_true", help="list the parts")
    parser.add_argument("--page-only", action="store_true", help="measure nothing: the page from the archives")
    given = parser.parse_args()
    left = [parts[name] for name in given.only if not (given.archives / f"{name}.tar.xz").is_file()]
    if given.list:
        for part in map(parts.__getitem__, given.only):
            state = f"about {part.minutes:.0f} min" if part in left else "measured"
            print(f"{part.name:<16} {part.num} meetings  {state}")
        return
    failed = []
    if not given.page_only:
        if given.models is None or given.data is None:
            parser.error("MODELS_DIR and --data are missing")
        work = given.work.resolve()
        for model in MODELS:
            link(work / model.path, given.models / model.folder)
        for part in left:
            if not measure(part, work, given.data, given.threads, given.archives):
                failed.append(part.name)
            write_atomically(given.page, page(given.archives))
    if given.page_only or not left:
        write_atomically(given.page, page(given.archives))
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}; the same command goes on")


if __name__ == "__main__":
    main()
