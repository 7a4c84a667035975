"""What the parts came to, as one Markdown page with its picture."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from specbench.core.files import write_atomically
from specbench.report.display import reach, save_picture
from specbench.results.leaderboard import load
from specbench.results.row import Row
from tools.drafters.cells import interval, number, table
from tools.drafters.workplace import Workplace

from .parts import NODES, NUM_DRAFT_TOKENS, PARTS, Part

PICTURE = "heads.png"
STEPS = (25, 50, 75, 100, 150, 200, 300, 400, 500, 700)  # of the validation losses that are shown
TITLES = {
    "eagle3": "EAGLE-3", "medusa": "Medusa", "distill": "distilled drafter", "peagle": "P-EAGLE",
    "mtp": "multi-token prediction", "dflash": "DFlash", "dspark": "DSpark",
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A part that is trained: its training, and, if it is measured, the rows over all subsets by what its methods
    draft, chain or tree, and that of AR. `num_tokens`: of all answers that were learnt, each counted once. `losses`:
    validation losses by steps. `commands`: those that made it, in order."""

    part: Part
    num_steps: int
    num_tokens: int
    num_parameters: int
    cpu_seconds: float
    losses: dict[int, float]
    rows: dict[str, Row]
    ar: Row | None
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """The parts that are measured, with what all of them share: the target and the digest of the prompts."""

    target: str
    prompts: str
    points: tuple[Point, ...] = ()


FILE = TypeAdapter(Measured)


def read(file: Path, target: str, prompts: str) -> Measured:
    """Returns what the file has, or nothing measured without one. Exits if it is of another target or of other
    prompts."""
    if not file.exists():
        return Measured(target, prompts)
    found = FILE.validate_json(file.read_bytes())
    if (found.target, found.prompts) != (target, prompts):
        raise SystemExit(f"{file}: has parts of {found.target} and the prompts {found.prompts}, not of {target} and "
                         f"{prompts}: delete it, or give another --output")  # fmt: skip
    return found


def write(file: Path, measured: Measured) -> None:
    write_atomically(file, FILE.dump_json(measured, indent=1))


def point_of(place: Workplace, part: Part) -> Point:
    record: dict[str, Any] = json.loads(place.path(part.record).read_text(encoding="utf-8"))
    curve = record["curves"][record["chosen"]]
    board = place.path(part.run, "leaderboard.json")
    rows = {row.method_name: row for row in (load(board) if board.exists() else ()) if row.subset == "all"}
    return Point(
        part=part, num_steps=len(curve["steps"]),
        num_tokens=round(sum(step["num_tokens"] for step in curve["steps"]) / part.epochs),
        num_parameters=record["models"]["num_trained_parameters"],
        cpu_seconds=record["cost"]["cpu_seconds"],
        losses={int(step): loss for step, loss in curve["validation"].items()},
        rows={name.rpartition("-")[2]: row for name, row in rows.items() if name != "ar"},
        ar=rows.get("ar"), commands=(place.told(part.record), place.told(f"{part.run}/leaderboard.json")),
    )  # fmt: skip


def page(measured: Measured, num_prompts: int) -> str:
    found = measured.points
    return "\n".join([heading(measured, num_prompts), curve(found), results(found), reading(), repeated(found)])


def heading(measured: Measured, num_prompts: int) -> str:
    found = measured.points
    row = next(point.ar for point in found if point.ar is not None)
    versions = ", ".join(f"{name} {version}" for name, version in sorted(row.versions.items()) if version)
    revision = (row.target_revision or "").removeprefix("local-")
    left = [part.name for part in PARTS if part not in [point.part for point in found]]
    missing = (
        f"\n\nNot measured in this edition: {', '.join(left)}. The same command goes on with them." if left else ""
    )
    return f"""# Heads trained for a public model

`python -m tools.heads MODEL --data DIR` trains and measures everything here and writes this page. The target is
`{measured.target.rpartition("/")[2]}` (SmolLM2-135M-Instruct, 30 layers, {revision});
its weights are dequantised from a Q4_1 file and differ from the hub's. The trained weights are not shipped.

- **Prompts**: {num_prompts} of GSM8K and Spec-Bench in the target's chat template, the even rows of each; the odd ones
  are measured, and none of their questions is learnt. Digest of both halves: {measured.prompts}.
- **Answers**: the target's own, greedy, at most 192 tokens, in batches of 32.
- **Training**: {row.device}; bfloat16 passes, float32 weights; one setting for all parts of a kind. The learning
  rate of EAGLE-3 was chosen on the validation loss of 30 steps; P-EAGLE, DFlash, DSpark and the layer for multi-token
  prediction have the same. Measured rows took no part in any choice.
- **Measured**: {row.n} prompts of Spec-Bench (mt_bench with both turns, translation, qa, math_reasoning), greedy, at
  most 64 tokens a turn, {row.dtype}. Chains draft {NUM_DRAFT_TOKENS} tokens, trees have {NODES} nodes. {versions}.
- Other programs ran on the machine: speed-ups are rough. τ, α and CPU time do not depend on them.{missing}
"""


def curve(found: Sequence[Point]) -> str:
    head = ["part", "answers", "their tokens", "steps", "parameters", "CPU time", "validation loss", "τ, chain",
            "τ, tree"]  # fmt: skip
    lines = []
    for point in found:
        taus = [point.rows[kind].metric("mean_acceptance_length") if kind in point.rows else None
                for kind in ("chain", "tree")]  # fmt: skip
        lines.append([
            point.part.name, str(point.part.num_answers), f"{point.num_tokens:,}", str(point.num_steps),
            f"{point.num_parameters / 1e6:.1f} M", f"{point.cpu_seconds / 60:.1f} min", loss_of(point),
            *(interval(tau) for tau in taus),
        ])  # fmt: skip
    return f"""## The curve: data, steps → τ

The name of a part is kind, answers, epochs. Validation losses can be compared within a kind and a number of answers.
CPU time is that of the steps; the answers take about a second of CPU time each.

{table(head, lines)}
![τ over the steps]({PICTURE})

What more steps of one training bring, as the validation loss after so many steps. The cosine of the learning rate ends
with each training.

{table(["part", *map(str, STEPS)], [[point.part.name, *losses_at(point)] for point in found])}"""


def losses_at(point: Point) -> list[str]:
    return [f"{point.losses[step]:.2f}" if step in point.losses else "" for step in STEPS]


def loss_of(point: Point) -> str:
    return f"{point.losses[max(point.losses)]:.2f}" if point.losses else "–"


def results(found: Sequence[Point]) -> str:
    head = ["part", "method", "α", "τ", "c", "speed-up", "loops", "verdict"]
    lines = [
        [point.part.name, kind, number(row.metric("acceptance_rate")), interval(row.metric("mean_acceptance_length")),
         number(row.metric("cost_ratio")), interval(row.metric("speedup")),
         f"{100 * (row.value('share_in_loops') or 0):.0f} %", row.verdict]
        for point in found for kind, row in point.rows.items()
    ]  # fmt: skip
    speedups = [row.metric("speedup") for point in found for row in point.rows.values()]
    num_faster = sum(speedup.low is not None and speedup.low > 1 for speedup in speedups)
    return f"""## Each part beside AR

{num_faster} of {len(speedups)} methods are faster than AR by their interval.

c is the cost of a draft pass in target passes; loops is the share of tokens in [loops](../scoring.md), which
are easy to draft. Rows of trees have no α. In bfloat16, near-ties are decided otherwise in passes over several tokens,
so that answers, and their loops, are not AR's in every case.

{table(head, lines)}"""


def reading() -> str:
    return """## What to expect

The papers' heads learn from 60,000 conversations and more, on GPUs, for targets of 7 billion parameters and more. Here
a few hundred answers and minutes of one CPU core show the direction only. A head for a model of 135 million parameters
is also a hard case: the target's passes are cheap, so that little is saved by each.
"""


def repeated(found: Sequence[Point]) -> str:
    """The commands of what is there, in order."""
    told = "\n".join(command for point in found for command in point.commands)
    return f"""## Commands

In the folder that `--work` names; the tool writes the files under `data` and `methods` in it:

```bash
{told}
```
"""


def draw(found: Sequence[Point], path: Path) -> None:
    """τ over the steps on a logarithmic axis; a line for each kind, what it drafts, and number of answers."""
    lines: dict[tuple[str, str, int], list[Point]] = {}
    for point in found:
        for kind in point.rows:
            lines.setdefault((point.part.kind, kind, point.part.num_answers), []).append(point)

    def panel(axes: Any) -> None:
        for (of, kind, count), members in lines.items():
            members.sort(key=lambda point: point.num_steps)
            taus = [point.rows[kind].metric("mean_acceptance_length") for point in members]
            color = f"C{list(TITLES).index(of)}"
            style = {32: "o", 100: "s", 300: "D"}.get(count, "^") + ("--" if kind == "tree" else "-")
            axes.errorbar([point.num_steps for point in members], [tau.value for tau in taus], yerr=reach(taus),
                          fmt=style, capsize=3, color=color,
                          label=f"{TITLES[of]}, {kind}, {count} answers")  # fmt: skip
        axes.set_xscale("log")
        ticks = sorted({100, *(point.num_steps for point in found if point.num_steps > 100)})
        axes.set_xticks(ticks, map(str, ticks), rotation=30)
        axes.set_xticks([], minor=True)
        axes.set_xlabel("training steps of 4 answers")
        axes.set_ylabel("τ, tokens per step, 95 %")
        axes.legend(frameon=False, fontsize="small")

    save_picture([[panel]], path, size=(8, 4.5))
