"""AR as the control of a check: how fast it ran itself in the two runs, whose speed-ups are ratios to it.

What a machine does beside a run does not cancel in a speed-up: a drafter's many small passes lose more by it than the
target's. In 21 runs of the embedded pair beside other work the target's passes took up to 1.5 times as long as in
another run and the drafter's up to 2.6 times; where AR slowed down by a share, speed-ups fell by 0.3 to 0.4 of it, all
prompts alike. Such a shift of a whole run is in no interval over prompts. So a fall counts as a regression where it is
larger than EXCESS of what AR itself may have slowed down by, which on a quiet machine is next to nothing. Where AR ran
faster nothing is taken off: what goes with a load makes speed-ups rise. (That holds where methods lose more by a load
than AR does.)
"""

from dataclasses import dataclass, field

from specbench.gate.sides import BASELINE
from specbench.results.bootstrap import Metric

SAME = 1.02  # of a ratio without an interval: two runs are hardly ever nearer
DRIFTED = 1.25  # under so much more or less load a speed-up is another one
EXCESS = 0.5  # of AR's change, on the scale of the logs
REMEDY = "measure both on the same machine, one after the other, with nothing beside them"


@dataclass
class Control:
    """`other_device`: the user said that the two may be of other devices, where AR's speed says nothing.

    `drifted` holds by task why speed-ups are not compared; `loads` by how many times a speed-up may have fallen with
    AR's speed.
    """

    other_device: bool
    notes: list[str] = field(default_factory=list)
    drifted: dict[str, str] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=dict)

    def add(self, task: str, ratio: Metric) -> None:
        """`ratio`: AR's tokens/s in the candidate ÷ in the baseline; its interval's low end says how much slower."""
        if ratio.value is None:
            self.notes.append(f"{task}: {BASELINE} has no speed")
            return
        low, high = ratio.low or ratio.value, ratio.high or ratio.value
        ends = "" if ratio.low is None else f" [{low:.3f}, {high:.3f}]"
        told = f"{ratio.value:.3f} times its speed in the baseline{ends}"
        if not self.other_device:
            self.loads[task] = max(1.0, 1 / low) ** EXCESS
            if max(ratio.value, 1 / ratio.value) > DRIFTED:
                self.drifted[task] = f"{BASELINE} itself ran at {told}, so that speed-ups do not compare: {REMEDY}"
                return
        same = low <= 1 <= high if ratio.low is not None else 1 / SAME < ratio.value < SAME
        if same:
            self.notes.append(f"{task}: {BASELINE} itself ran at {told}: no difference")
            return
        by = f"{100 * abs(1 - ratio.value):.1f} % {'slower' if ratio.value < 1 else 'faster'}"
        self.notes.append(
            f"{task}: {BASELINE} itself is {by} ({told}): another load or clock, or a change of what {BASELINE} and "
            "the methods share, such as the loop, which no speed-up shows"
        )
