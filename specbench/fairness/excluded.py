"""What drafters exclude, tokens to which they give no probability, and the mark of numbers that count these.

D and KL of such a drafter are infinite. They count the smallest float32 instead (`positions`), so that they, and 𝒰,
hang on that convention as far as anything is excluded.
"""

import math
from collections.abc import Mapping

from specbench.fairness.positions import TINY

MARK = "*"
LEAST = 1e-6  # of the target's mass: adds less than 1e-4 nats
MOST_NAMED = 12  # groups


def marked(text: str, *masses: float) -> str:
    """A number (with its interval) that counts the excluded `masses`, with the mark where that can be seen in it."""
    return text + MARK * any(mass >= LEAST for mass in masses)


def notes(masses: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The lines of a caption that say what the mark means; none where nothing is marked. `masses`: the target's mean
    mass on excluded tokens, by drafter and group."""
    seen = {
        drafter: {group: mass for group, mass in found.items() if mass >= LEAST} for drafter, found in masses.items()
    }
    lines = [f"{drafter} excludes {_listed(found)}" for drafter, found in seen.items() if found]
    meaning = (
        f"{MARK} counts tokens to which the drafter gives no probability as {TINY:.1e}, {-math.log(TINY) / 100:.2f} "
        "nats for each % of the target's mass on them: a convention; exactly, D and KL are infinite"
    )
    return [meaning, *lines] if lines else []


def _listed(masses: Mapping[str, float]) -> str:
    if len(masses) > MOST_NAMED:
        return f"{_percent(min(masses.values()))} to {_percent(max(masses.values()))} in {len(masses)} groups"
    return ", ".join(f"{_percent(mass)} in {group}" for group, mass in masses.items())


def _percent(mass: float) -> str:
    return f"{100 * mass:.2g} %"
