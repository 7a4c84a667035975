"""What `specbench tune` does, in the order of arXiv:2502.20704, App. D."""

import math
from collections.abc import Sequence

from specbench.errors import ConfigError
from specbench.specs import MethodSpec, RunSpec
from specbench.tuning import decisions
from specbench.tuning.formats import with_interval
from specbench.tuning.tuner import Preset, Tuner, is_fuzzy
from specbench.tuning.variants import LENGTH, with_value


def tune(tuner: Tuner) -> list[Preset]:
    """The presets low, med and high of a fuzzy method; one without a label for any other."""
    trials = tuner.trials
    length, run = tuner.length()
    own = run.metrics(f"length-{length}")
    if not is_fuzzy(trials.base):
        return [Preset("", with_value(trials.base, LENGTH, length), own)]
    target, drafter = own["accuracy_ar"], run.metrics("draft-only")["accuracy"]
    assert target.value is not None and drafter.value is not None
    gap = target.value - drafter.value
    said = f"accuracy %: target {with_interval(target, 1, 100)}, drafter alone {with_interval(drafter, 1, 100)}"
    if gap <= 0:
        raise ConfigError(
            f"{said}: without a gap no fall of quality can be seen on this slice: give more examples with "
            "--calibration or --limit, or another task"
        )
    tuner.decide(said)
    allowed = decisions.allowed_accuracy(target.value, drafter.value)
    low, low_metrics = tuner.equivalent(length, own)
    kept = tuner.largest(low, low_metrics, length, allowed)
    if (kept[low]["accuracy"].value or 0.0) < allowed - 1e-9:
        kept = tuner.smaller(low, length, allowed) or kept
    low, high = min(kept), max(kept)
    med = decisions.middle(low, high)
    if med not in kept:
        kept |= tuner.measure([med], length)
    if low == high:
        tuner.decide("low, med and high are one: no other threshold keeps the quality, or none is left to try")
    num_prompts = sum(len(data.examples) for _, _, data in trials.loaded)
    if decisions.is_blind(kept[high]["accuracy_difference"], gap, num_prompts):
        tuner.decide(
            f"the slice is too small to see a fall of {decisions.TOLERATED:.0%} of the gap ({20 * gap:.1f} points): "
            f"on {num_prompts} prompts the accuracy of high − AR is "
            f"{with_interval(kept[high]['accuracy_difference'], 1, 100)} points; tune on more"
        )
    chosen = {"low": low, "med": med, "high": high}
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
    if task.scorer is None or task.reference is None:
        raise ConfigError(
            f"--task {task.name}: has no scorer, so there is no quality that thresholds could trade: choose a task "
            "with `scorer` and `reference`"
        )
    if not method.needs_drafter:
        raise ConfigError(
            f"--method {method.name}: drafts without a model, so there is no drafter's own quality to measure "
            "thresholds against: choose one with drafter.type = 'model'"
        )
