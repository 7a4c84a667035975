"""Writes docs/measured/claims.md: what published speed-ups imply, and some of them against measured real pairs."""

import argparse
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from specbench.analysis.claims.claim import ClaimSpec, Reading, public_claims, read_claim
from specbench.analysis.claims.explain import Explanation, Part, explain
from specbench.core.files import write_atomically
from specbench.core.table import markdown_table
from specbench.results.metric_format import interval_of, number, with_interval
from tools.commands import ROOT
from tools.real.archive import unpack

PAGE = ROOT / "docs" / "measured" / "claims.md"
ARCHIVES = ROOT / "leaderboards" / "real"
# What is set against what: the same kind of method, never the same models.
MEASURED = {
    "sps-vicuna-7b-a100": ("gsm8k-chains:sd", "gsm8k-int8:sd", "gsm8k-q4:sd", "humaneval-chains:sd"),
    "sps-vicuna-7b-3090": ("gsm8k-chains:sd", "humaneval-chains:sd"),
    "pld-vicuna-7b-a100": ("gsm8k-chains:pld", "gsm8k-int8:pld", "gsm8k-q4:pld", "humaneval-chains:pld"),
}

HEAD = """# Published speed-ups

`python -m tools.claims --write` writes this page from the claims that the package has (`specbench explain --list`), and
from the committed records of [real pairs](real.md). Nothing is measured for it.

## What the claims imply

S is the claimed speed-up. τ is the number of tokens per step, with the target's own token and without that of the
prefill; what was done to the printed figure for that is below the table. R = τ ÷ S is the time of a step in tokens of
AR. Above *S at most* a speed-up is implausible (batch 1, AR of the same engine): 1.1 · τ, or 1.05 · τ ÷ min(1, v) for a
claim with a verification cost v. [Explain a published
speed-up](../guide/reproduce.md#explain-a-published-speed-up) says more.

Figures are those of the sources, not ours. "Plausible" means that the bound allows them, no more.

"""
SERIES = """
## Step cost by draft length

Claims that differ in the draft length k only tell what a draft token costs: R = a + b · k, by least squares over the
claims. a is the cost of a step without drafts, 1 in theory; b is that of a draft token, to draft and to verify it.

"""
GAPS = """
## Against real pairs

Qwen2.5-Coder 1.5B with its 0.5B as the draft model (`sd`), and prompt lookup (`pld`), on two CPU threads, greedy,
against Spec-Bench's Vicuna 7B with a draft model of 68 million parameters, and prompt lookup, on a GPU. **These are
other models, other prompts and other machines**, and the weights come from quantized files, not from the
hub ([real pairs](real.md) names them): the gap is not a failure to reproduce, and the factors say in which of
the two, acceptance or step cost, the settings differ. Speed-ups are of the whole call, as the claims'. The factors of
τ and R multiply to that of S, claimed ÷ measured; intervals are 95 % over the measured prompts.

"""


def page(claims: Sequence[ClaimSpec], explained: Sequence[Explanation]) -> str:
    readings = [read_claim(claim) for claim in claims]
    parts = [HEAD, claims_part(claims, readings), SERIES, series_part(claims), GAPS, gaps_part(explained)]
    return "".join(parts).rstrip("\n") + "\n"


def claims_part(claims: Sequence[ClaimSpec], readings: Sequence[Reading]) -> str:
    rows = []
    for claim, reading in zip(claims, readings, strict=True):
        rows.append([
            f"`{reading.name}`", f"{reading.title} ([{reading.source}]({reading.url}))",
            claim.hardware or "not told", with_interval(reading.speedup), number(reading.mean_acceptance_length, 2),
            number(reading.step_cost, 2), number(reading.highest_speedup, 2), reading.verdict,
        ])  # fmt: skip
    head = ["claim", "what", "hardware", "S", "τ", "R", "S at most", "verdict"]
    table = markdown_table(head, rows, [3 <= place <= 6 for place in range(len(head))])
    notes = []
    for claim, reading in zip(claims, readings, strict=True):
        undecided = [reading.reason] if reading.verdict != "plausible" else []
        if found := [*reading.conversions, *undecided, *([claim.note] if claim.note else [])]:
            notes.append(f"- `{reading.name}`: {'; '.join(note.rstrip('.') for note in found)}.")
    return table + "\n\n" + "\n".join(notes) + "\n"


def series_part(claims: Sequence[ClaimSpec]) -> str:
    rows = []
    members = sorted(claims, key=lambda claim: (claim.series or "", claim.num_draft_tokens or 0))
    for name, group in groupby((claim for claim in members if claim.series), key=lambda claim: claim.series):
        points = [(claim.num_draft_tokens, read_claim(claim).step_cost) for claim in group]
        lengths, costs = np.array(points, dtype=np.float64).T
        slope, start = np.polyfit(lengths, costs, 1)
        listed = ", ".join(f"{cost:.2f} at {length:g}" for length, cost in points)
        rows.append([f"`{name}`", listed, f"{start:.2f}", f"{slope:.3f}"])
    return markdown_table(["series", "R at k", "a", "b"], rows, [False, False, True, True]) + "\n"


def gaps_part(explained: Sequence[Explanation]) -> str:
    rows, lines = [], []
    for each in explained:
        (gap,) = each.gap
        rows.append([
            f"`{each.claim.name}`", f"`{each.run}`", f"{gap.claimed:.2f}", with_interval(gap.measured),
            *(factor_text(part) for part in (gap, *gap.parts)),
        ])  # fmt: skip
        lines.append(f"- `{each.claim.name}`, `{each.run}`: {' '.join(each.words)}")
    head = ["claim", "cell and method", "S claimed", "S measured", "factor of S", "of τ", "of R"]
    table = markdown_table(head, rows, [place > 1 for place in range(len(head))])
    return table + "\n\n" + "\n".join(lines) + "\n"


def factor_text(part: Part) -> str:
    log = part.log
    value = "–" if log.value is None else f"{np.exp(log.value):.2f}"
    return f"{value} {interval_of(log, lambda end: f'{np.exp(end):.2f}')}".rstrip()


def explanations(folder: Path) -> Iterator[Explanation]:
    """Yields the explanations of the page from the archived records, which are unpacked into a folder."""
    claims = public_claims()
    for name, runs in MEASURED.items():
        for run in runs:
            cell, _, method = run.partition(":")
            if not (folder / cell).is_dir():
                unpack(ARCHIVES / f"{cell}.tar.xz", folder / cell)
            (found,) = explain(claims[name], [f"{folder / cell}:{method}"])
            yield found.model_copy(update={"run": run})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.claims", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)} instead of printing it")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        text = page(list(public_claims().values()), list(explanations(Path(folder))))
    if given.write:
        write_atomically(PAGE, text.encode())
    else:
        print(text)


if __name__ == "__main__":
    main()
