"""s-CDF beside the drafter as it was and beside equal weights, paired (arXiv:2510.02128)."""

from .claims import FALLS, Claim
from .measuring import comparison
from .trainings import SEEDS
from .workplace import Workplace

LESS = {"unfairness": FALLS, "acceptance_rate.variance": FALLS}


def paired(place: Workplace, run: str) -> Claim:
    """Both weightings after training, and one against the other at every seed."""
    against = {
        f"equal weights → s-CDF, seed {seed}": comparison(place, run, f"equal-seed{seed}", f"corrective-seed{seed}")
        for seed in SEEDS
    }
    after = {
        f"untrained → s-CDF, seed {seed}": comparison(place, run, "sd", f"corrective-seed{seed}") for seed in SEEDS
    }
    return Claim(
        "s-CDF lowers unfairness and the variance of α (arXiv:2510.02128: −12 % and −20 % on average)",
        "The intervals are over prompts alone: that a training comes out differently with another seed is seen in the "
        "three seeds, and an effect stands where all three show it.",
        {**after, "untrained → equal weights, seed 0": comparison(place, run, "sd", "equal-seed0"), **against},
        {name: LESS for name in (*after, *against)},
    )
