"""What `specbench tune` does, in the order of arXiv:2502.20704, App. D."""

import math
from collections.abc import Sequence

from specbench.errors import ConfigError
from specbench.results.units import unit_of
from specbench.scoring.of_task import make_scorer
from specbench.specs import MethodSpec, RunSpec
from specbench.tuning import decisions
from specbench.tuning.formats import score
from specbench.tuning.tuner import Preset, Tuner, is_fuzzy
from specbench.tuning.variants import LENGTH, with_value


def tune(tuner: Tuner) -> list[Preset]:
    """The presets low, med and high of a fuzzy method; one without a label where they are one, and for any other."""
    trials = tuner.trials
    length, run = tuner.length()
    own = run.metrics(f"length-{length}")
    if not is_fuzzy(trials.base):
        return [Preset("", with_value(trials.base, LENGTH, length), own)]
    quality, unit = tuner.quality, unit_of(tuner.quality)
    target, drafter = own[f"{quality}_ar"], run.metrics("draft-only")[quality]
    if target.value is None or drafter.value is None:
        raise ConfigError(f"no answer of this slice has a score ({unit.label}): give examples that have references")
    gap = target.value - drafter.value
    said = f"{unit.label}: target {score(target, quality)}, drafter alone {score(drafter, quality)}"
    if gap <= 0:
        raise ConfigError(
            f"{said}: without a gap no fall of quality can be seen on this slice: give more examples with "
            "--calibration or --limit, or another task"
        )
    tuner.decide(said)
    allowed = decisions.allowed_quality(target.value, drafter.value)
    low, low_metrics = tuner.equivalent(length, own)
    kept = tuner.largest(low, low_metrics, length, allowed)
    if (kept[low][quality].value or 0.0) < allowed - 1e-9:
        kept = tuner.smaller(low, length, allowed) or kept
    low, high = min(kept), max(kept)
    med = decisions.middle(low, high)
    if med not in kept:
        kept |= tuner.measure([med], length)
    if low == high:
        tuner.decide("low, med and high are one, in one file: no other threshold keeps the quality, or is left to try")
    num_prompts = sum(len(data.examples) for _, _, data in trials.loaded)
    difference = kept[high][f"{quality}_difference"]
    if decisions.is_blind(difference, gap, num_prompts, unit.most):
        tuner.decide(
            f"the slice is too small to see a fall of {decisions.TOLERATED:.0%} of the gap "
            f"({decisions.TOLERATED * unit.factor * gap:.1f} points): on {num_prompts} prompts the {unit.label} of "
            f"high − AR is {score(difference, quality)} points; tune on more"
        )
    chosen = {"": low} if low == high else {"low": low, "med": med, "high": high}
    return [tuner.longer(label, t, kept[t], length, allowed) for label, t in chosen.items()]


def checked_lengths(texts: Sequence[str], method: MethodSpec) -> list[int]:
    """The draft lengths to try. Raises ConfigError for one that the method cannot draft."""
    lengths = []
    for text in texts:
        if not text.isascii() or not text.isdigit():
            raise ConfigError(f"--lengths {text}: not a number of tokens: give some like 5,10,15,20")
        lengths.append(with_value(method, LENGTH, int(text), place=f"--lengths {text}").num_draft_tokens)
    if not lengths:
        raise ConfigError("--lengths: is empty: give some like 5,10,15,20")
    return sorted(set(lengths))


def check_quality(spec: RunSpec, step: float) -> None:
    """That a fuzzy method's quality can be seen, and that there is a drafter to compare it with."""
    task, method = spec.tasks[0], spec.methods[1]
    if not is_fuzzy(method):
        return
    if not 0 < step < math.inf:
        raise ConfigError(f"--step {step:g}: must be above 0")
    scorers = {subset: make_scorer(task.subset(subset)) for _, subset in spec.cells()}
    mains = {scorer.names[0] for scorer in scorers.values() if scorer is not None}
    if not mains:
        raise ConfigError(
            f"--task {task.name}: has no scorer, so there is no quality that thresholds could trade: choose a task "
            "with `scorer` and `reference`"
        )
    if len(mains) > 1:
        scores = ", ".join(sorted(mains))
        raise ConfigError(f"--task {task.name}: its subsets have several scores ({scores}): choose one with --subset")
    if not method.needs_drafter:
        raise ConfigError(
            f"--method {method.name}: drafts without a model, so there is no drafter's own quality to measure "
            "thresholds against: choose one with drafter.type = 'model'"
        )
