"""The findings as one Markdown page with its pictures."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.analysis.fairness.fairness import DrafterReport, FairnessReport
from specbench.embedded import member_path, read_manifest
from specbench.models.checkpoints import fingerprint
from specbench.results.fairness import GroupNumbers
from specbench.results.leaderboard import load
from specbench.results.row import Row
from specbench.statistics.bootstrap import Estimate

from .cells import interval, number, table
from .claims import Claim, section
from .scaling import NUM_ROWS, Point, Scaling
from .trainings import LAST_STEPS, RATES, WEIGHTINGS, Trained


@dataclass(frozen=True)
class Findings:
    """Everything that was measured. `languages`: the report on the drafters of the main table, by their column in
    `columns` (title → method)."""

    trained: Trained
    languages: FairnessReport
    columns: Mapping[str, str]
    seeds: FairnessReport
    rates: FairnessReport
    claims: Sequence[Claim]
    scaling: Scaling
    run: Path
    commands: Sequence[str]


def page(found: Findings) -> str:
    """The whole page."""
    return "\n".join([
        heading(found), languages(found), steadiness(found), *map(section, found.claims), tokens(found.scaling),
        repeated(found.commands),
    ])  # fmt: skip


def heading(found: Findings) -> str:
    row = ar_row(found.run)
    names = ", ".join(f"`{name}` {revision_of(name)}" for name in read_manifest())
    versions = ", ".join(f"{name} {version}" for name, version in sorted(row.versions.items()) if version)
    return f"""# Trained drafters on the embedded family

`python -m tools.drafters` trains and measures the drafters and writes this page; the commands are at the end. The
models are the tiny embedded ones, which know an invented world. The page shows how the methods behave; no value carries
over to large models.

All drafters are measured beside AR in the same process, {row.dtype} on {row.device}; {versions}. Measured
rows are in no training. Intervals are 95 % over prompts. Models and their digests: {names}.
"""


def revision_of(name: str) -> str:
    """Returns the digest of an embedded model as rows have it."""
    folder = member_path(name)
    for manifest in ("ngram.json", "retrieval.json"):
        if (folder / manifest).is_file():
            return str(json.loads((folder / manifest).read_text(encoding="utf-8"))["digest"])
    return fingerprint(str(folder)).removeprefix("local-")


def ar_row(folder: Path) -> Row:
    return next(row for row in load(folder / "leaderboard.json") if row.num_draft_tokens == 0)


def drafter_of(report: FairnessReport, method: str) -> DrafterReport:
    return next(drafter for drafter in report.drafters if drafter.method == method)


def languages(found: Findings) -> str:
    """Languages × drafters: α, D and speed-up, with 𝒰 at the bottom; then each with its intervals."""
    drafters = {title: drafter_of(found.languages, method) for title, method in found.columns.items()}
    groups = next(iter(drafters.values())).groups
    first = next(iter(groups.values()))
    head = ["", *drafters]
    rows = [[label, *(triple(drafter.groups[label]) for drafter in drafters.values())] for label in groups]
    below = {
        "𝒰: mean squared distance to the lowest D, nats²": [
            interval(d.family.unfairness, 3) for d in drafters.values()
        ],
        "variance of α": [interval(d.family.spreads["acceptance_rate"].variance, 4) for d in drafters.values()],
        "largest ÷ smallest α": [interval(d.family.spreads["acceptance_rate"].max_over_min) for d in drafters.values()],
        "worst language by α": [d.family.spreads["acceptance_rate"].worst for d in drafters.values()],
        "draft tokens γ": [str(d.num_draft_tokens) for d in drafters.values()],
        "mass that the drafter excludes, at most": [f"{excluded(d):.1%}" for d in drafters.values()],
    }
    parts: Mapping[str, Callable[[GroupNumbers], Estimate | None]] = {
        "α": acceptance, "D": divergence, "speed-up": speedup,
    }  # fmt: skip
    detail = [
        f"{name}:\n\n" + table(head, ([label, *(interval(get(d.groups[label])) for d in drafters.values())]
                                     for label in groups))
        for name, get in parts.items()
    ]  # fmt: skip
    return f"""## Languages

Task mgsm, {first.num_prompts} questions a language, greedy. Cells: α · D · speed-up. α and speed-up are measured. D is
the cross-entropy of the drafter with the target in nats, teacher-forced on the target's own continuations, at the same
positions for all drafters.

- `untrained`: the drafter before any of these trainings.
- `distilled`: trained on the target's greedy answers to training rows of mgsm.
- `routed`: n-gram for Swahili, the shipped s-CDF drafter for the other languages.
- An n-gram model gives some tokens no probability. D counts those as 1.2e-38, so that each percent of excluded mass
  adds 0.87 nats; D and 𝒰 of `n-gram` and `routed` cannot be compared with the others'.
- The trainings differ in cost: s-CDF and equal weights are 80 updates of up to 40 continuations, `distilled` is 800
  updates of 16 answers.

{table(head, [*rows, *([name, *cells] for name, cells in below.items())])}
The same with intervals (of {first.num_prompts} prompts each). {chr(10).join(["", *detail])}
![Acceptance, fitness and bounds](drafters-languages.png)
"""


def triple(group: GroupNumbers) -> str:
    return " · ".join(number(get(group)) for get in (acceptance, divergence, speedup))


def acceptance(group: GroupNumbers) -> Estimate | None:
    return group.measured.acceptance_rate if group.measured else None


def divergence(group: GroupNumbers) -> Estimate | None:
    return group.forced.cross_entropy if group.forced else None


def speedup(group: GroupNumbers) -> Estimate | None:
    return group.measured.speedup if group.measured else None


def excluded(drafter: DrafterReport) -> float:
    return max((group.forced.excluded for group in drafter.groups.values() if group.forced), default=0.0)


def mean_divergence(drafter: DrafterReport) -> float:
    found = [g.forced.cross_entropy.value or 0.0 for g in drafter.groups.values() if g.forced]
    return sum(found) / len(found)


def steadiness(found: Findings) -> str:
    """Rates and seeds of s-CDF and of equal weights."""
    by_rate = []
    for weighting in WEIGHTINGS:
        for rate in RATES:
            folder = f"trained/{weighting}-{rate}-seed0"
            drafter = next(d for d in found.rates.drafters if d.drafter is not None and d.drafter.endswith(folder))
            chosen = " (chosen)" * (found.trained.rates[weighting] == rate)
            by_rate.append([
                f"{weighting} {rate}{chosen}", f"{found.trained.divergences[weighting][rate]:.3f}",
                f"{mean_divergence(drafter):.3f}", interval(drafter.family.unfairness, 4),
                interval(drafter.family.spreads["forced_acceptance_rate"].variance, 5),
            ])  # fmt: skip
    by_seed = []
    for drafter in found.seeds.drafters:
        spreads = drafter.family.spreads
        mean_rate = [g.measured.acceptance_rate.value or 0.0 for g in drafter.groups.values() if g.measured]
        by_seed.append([
            drafter.label, f"{mean_divergence(drafter):.3f}", interval(drafter.family.unfairness, 4),
            f"{sum(mean_rate) / len(mean_rate):.3f}", interval(spreads["acceptance_rate"].variance, 5),
            interval(spreads["speedup"].variance, 4),
        ])  # fmt: skip
    return f"""## s-CDF and equal weights: rates and seeds

The same data, steps and draws of languages, only the weights differ. The learning rate of each was chosen by the mean D
over the languages in the last {LAST_STEPS} steps on training rows, seed 0. On the held-out rows every rate came to:

{table(["weights, rate", "D in training", "mean D", "𝒰 (nats²)", "variance of α_T"], by_rate)}
At the chosen rates, three seeds of each (of data, prompts and continuations):

{table(["drafter", "mean D", "𝒰 (nats²)", "mean α", "variance of α", "variance of speed-up"], by_seed)}"""


def tokens(found: Scaling) -> str:
    rows = [
        [p.start, str(p.seed), f"{p.num_tokens:,}", f"{p.rate:g}", interval(p.acceptance, 3), interval(p.gain, 3),
         interval(p.speedup)]
        for p in sorted(found.points, key=lambda point: (point.start, point.num_tokens))
    ]  # fmt: skip
    rows += [
        [start, "–", "0", "–", interval(rate, 3), "–", interval(speed)]
        for start, (rate, speed) in found.untuned.items()
    ]
    slopes = [
        [
            start,
            interval(speed, 3),
            interval(rate, 3),
            grows(speed),
            beside_start([p for p in found.points if p.start == start]),
        ]
        for start, (speed, rate) in found.slopes.items()
    ]
    head = ["start", "seed", "tokens", "rate", "α", "α − α of the start", "speed-up"]
    return f"""## Claim: the speed-up grows with the log of the training tokens (arXiv:2406.16758, figure 4)

German to English, greedy, {NUM_ROWS} held-out rows, all drafters in one run. `F`: fine-tuned from random weights, 5
epochs; `P-F`: pretrained on the pair's texts before it, 3 epochs; `drafter-F`: from the plain drafter, 3 epochs. Tokens
are those of the target's answers at four temperatures, as the paper counts them: some answers are the same at several.
A tenth of the prompts is held out to choose one of five learning rates.

{table(head, rows)}
Slopes per factor e of the tokens, by least squares over the points of both seeds, prompts drawn anew for all at once:

{table(["start", "of the speed-up", "of α", "the speed-up", "α beside that of the start"], slopes)}
A start that is near the best already may lose some of its α by fine-tuning on few prompts; where points lie below their
start, a slope is in part the way back.

![Speed-up over training tokens](drafters-tokens.png)
"""


def beside_start(points: Sequence[Point]) -> str:
    """Returns how many points have a higher and a lower α than where they began."""
    above = sum(point.gain.low is not None and point.gain.low > 0 for point in points)
    below = sum(point.gain.high is not None and point.gain.high < 0 for point in points)
    return f"{above} of {len(points)} above, {below} below"


def grows(slope: Estimate) -> str:
    """Returns the direction that the interval of a slope shows."""
    if slope.low is None or slope.high is None:
        return "not known"
    return "grows" if slope.low > 0 else "falls" if slope.high < 0 else "not separable from constant"


def repeated(commands: Sequence[str]) -> str:
    lines = "\n".join(dict.fromkeys(commands))
    return f"""## Commands

In the folder that `--work` names; `python -m tools.drafters` writes the files under `configs`, `methods` and
`data` in it, and `trained/random`, a drafter of the plain one's shape with random weights:

```bash
{lines}
```
"""
