"""AR as the control of a check: how fast it ran itself in the two runs, whose speed-ups are ratios to it."""

from dataclasses import dataclass, field

from specbench.gate.sides import BASELINE
from specbench.results.bootstrap import Metric

SAME = 1.02  # two runs are hardly ever nearer on a machine that does anything else
DRIFTED = 1.25  # under so much more or less load a speed-up is another one
REMEDY = "measure both on the same machine, one after the other, with nothing beside them"


@dataclass
class Control:
    """`other_device`: the user said that the two may be of other devices, where AR's speed says nothing.

    `drifted` holds by task why speed-ups are not compared. `loads`: how many times faster or slower AR may have
    been, by its interval. What a machine does beside a run comes in bursts, so that prompts are not as independent as
    intervals take them to be, and a method, whose working set is larger, may lose more by it than AR.
    """

    other_device: bool
    notes: list[str] = field(default_factory=list)
    drifted: dict[str, str] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=dict)

    def add(self, task: str, ratio: Metric) -> None:
        """`ratio`: AR's tokens/s in the candidate ÷ in the baseline."""
        if ratio.value is None:
            self.notes.append(f"{task}: {BASELINE} has no speed")
            return
        if not self.other_device:
            ends_of = (ratio.low or ratio.value, ratio.high or ratio.value)
            self.loads[task] = max(max(end, 1 / end) for end in ends_of)
        ends = "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.3f}, {ratio.high:.3f}]"
        told = f"{BASELINE} itself ran at {ratio.value:.3f} times its speed in the baseline{ends}"
        distance = max(ratio.value, 1 / ratio.value)
        if distance > DRIFTED and not self.other_device:
            self.drifted[task] = f"{told}, so that speed-ups do not compare: {REMEDY}"
        elif distance < SAME or (ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high):
            self.notes.append(f"{task}: {told}: no difference")
        else:
            self.notes.append(
                f"{task}: {told}: another load or clock; speed-ups are ratios to each run's own {BASELINE}"
            )
