"""The runs of one tuning: each measures a question and decides it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specbench.catalogue import load_method
from specbench.console import say
from specbench.results.bootstrap import Metric
from specbench.results.units import unit_of
from specbench.specs import MethodSpec
from specbench.tuning import decisions
from specbench.tuning.formats import score, with_interval
from specbench.tuning.sweep import record
from specbench.tuning.trials import Measured, Trials
from specbench.tuning.variants import LENGTH, at, with_value

CHUNK = 3  # thresholds measured in one run, beside one AR
Metrics = dict[str, Metric]


@dataclass(frozen=True)
class Preset:
    """A setting that was chosen, with its measurement on the calibration slice. `label`: low, med, high, or none."""

    label: str
    method: MethodSpec
    metrics: Metrics


@dataclass
class Tuner:
    """The runs of one tuning and what was decided from them, in sentences."""

    trials: Trials
    lengths: Sequence[int] = decisions.LENGTHS
    step: float = 0.1
    notes: list[str] = field(default_factory=list)

    def decide(self, text: str) -> None:
        """Say a decision with its numbers; the method's file repeats it."""
        self.notes.append(text)
        say(self.trials.console, text)

    def length(self) -> tuple[int, Measured]:
        """The draft length with the best tokens per second: of the method itself, or, where it is fuzzy, of speculative
        decoding with the same drafter, beside the drafter alone."""
        base = self.trials.base
        methods = [named(with_value(lossless(base), LENGTH, length), f"length-{length}") for length in self.lengths]
        alone = [load_method("draft-only")] if is_fuzzy(base) else []
        run = self.trials.run("lengths-" + "-".join(map(str, self.lengths)), [*methods, *alone])
        found = {length: run.metrics(f"length-{length}")["tokens_per_second"] for length in self.lengths}
        chosen = decisions.fastest({length: speed.value or 0.0 for length, speed in found.items()})
        who = "speculative decoding with this drafter" if is_fuzzy(base) else base.name
        speeds = ", ".join(f"{length}: {with_interval(speed, 1)}" for length, speed in found.items())
        self.decide(f"draft length {chosen}: tokens/s of {who} by length, 95 % interval: {speeds}")
        return chosen, run

    def equivalent(self, length: int, lossless_metrics: Metrics) -> tuple[float, Metrics]:
        """T_SD: the threshold that accepts the share of draft tokens that speculative decoding accepts. Estimates from
        one recorded run name three, a real run of them decides."""
        wanted = lossless_metrics["draft_efficiency"]
        assert wanted.value is not None
        grid = decisions.thresholds_up_to(self.divergence, decisions.FINE)
        _, recording = record(self.trials, grid[0], length)
        estimated = {t: recording.estimate(t, length).metrics["draft_efficiency"].value or 0.0 for t in grid}
        near = decisions.candidates(estimated, wanted.value)
        found = self.measure(near, length)
        shares = {threshold: found[threshold]["draft_efficiency"].value or 0.0 for threshold in near}
        chosen = decisions.nearest(shares, wanted.value)
        seen = ", ".join(f"{t:g}: ≈ {estimated[t]:.3f}, run {shares[t]:.3f}" for t in near)
        self.decide(
            f"T_SD = {chosen:g}: speculative decoding has {with_interval(wanted, 3)} of its draft tokens accepted; "
            f"by threshold (≈ estimated from one run): {seen}"
        )
        return chosen, found[chosen]

    @property
    def quality(self) -> str:
        """The metric that thresholds trade."""
        quality = self.trials.quality
        assert quality is not None  # tune.check_quality
        return quality

    @property
    def divergence(self) -> str:
        return str(self.trials.base.verification.options["divergence"])

    def measure(self, thresholds: Sequence[float], length: int) -> dict[float, Metrics]:
        """Real runs of the fuzzy method at several thresholds, in one interleaved run."""
        names = {threshold: f"threshold-{threshold:g}" for threshold in thresholds}
        methods = [at(self.trials.base, threshold, length, name) for threshold, name in names.items()]
        folder = f"length-{length}-thresholds-" + "-".join(f"{threshold:g}" for threshold in thresholds)
        run = self.trials.run(folder, methods)
        return {threshold: run.metrics(name) for threshold, name in names.items()}

    def largest(self, start: float, metrics: Metrics, length: int, allowed: float) -> dict[float, Metrics]:
        """The thresholds from T_SD upwards whose quality has not fallen further than allowed."""
        found = {start: metrics}
        rest = decisions.thresholds_up_to(self.divergence, self.step, start)
        while rest and len(decisions.within(self.qualities(found), allowed)) == len(found):
            found |= self.measure(rest[:CHUNK], length)
            rest = rest[CHUNK:]
        kept = decisions.within(self.qualities(found), allowed)
        failed = f"T_SD = {start:g} itself loses more than is allowed, speculative decoding nothing"
        what = f"largest threshold {kept[-1]:g}" if kept else failed
        unit = unit_of(self.quality)
        seen = ", ".join(f"{t:g}: {score(m[self.quality], self.quality)}" for t, m in found.items())
        fall = f"{unit.label} may fall to {unit.factor * allowed:.{unit.digits}f}"
        self.decide(f"{what}: {fall}; by threshold: {seen}")
        return {threshold: found[threshold] for threshold in kept or [start]}

    def smaller(self, start: float, length: int, allowed: float) -> dict[float, Metrics]:
        """The largest thresholds below T_SD that keep the quality, where T_SD itself does not; none where none does.
        The paper's search only goes up: a drafter may be accepted by luck more often than it is right."""
        rest = decisions.thresholds_below(start)
        found: dict[float, Metrics] = {}
        kept: list[float] = []
        while rest and not kept:
            found |= self.measure(rest[:CHUNK], length)
            rest = rest[CHUNK:]
            kept = [threshold for threshold, quality in self.qualities(found) if quality >= allowed - 1e-9]
        seen = ", ".join(f"{t:g}: {score(m[self.quality], self.quality)}" for t, m in sorted(found.items()))
        what = f"below T_SD: {kept[-1]:g} is the largest that keeps the quality" if kept else "no smaller one keeps it"
        self.decide(f"{what}; by threshold: {seen or 'none is left'}")
        return {threshold: found[threshold] for threshold in kept}

    def qualities(self, found: dict[float, Metrics]) -> list[tuple[float, float]]:
        """(threshold, quality) in rising order."""
        return [(threshold, found[threshold][self.quality].value or 0.0) for threshold in sorted(found)]

    def longer(self, label: str, threshold: float, metrics: Metrics, length: int, allowed: float) -> Preset:
        """The preset, with the next longer draft as long as nearly all draft tokens are accepted and it is faster."""
        while (metrics["draft_efficiency"].value or 0.0) >= decisions.NEARLY_ALL and length < max(self.lengths):
            following = min(other for other in self.lengths if other > length)
            pair = {n: at(self.trials.base, threshold, n, f"length-{n}") for n in (length, following)}
            run = self.trials.run(f"threshold-{threshold:g}-lengths-{length}-{following}", list(pair.values()))
            now, then = (run.metrics(method.name) for method in pair.values())
            better = _speed(then) > _speed(now) and (then[self.quality].value or 0.0) >= allowed - 1e-9
            self.decide(
                f"{label or 'one'}: {with_interval(metrics['draft_efficiency'], 3)} of the draft tokens are accepted; "
                f"{following} instead of {length}: tokens/s {with_interval(now['tokens_per_second'], 1)} → "
                f"{with_interval(then['tokens_per_second'], 1)}, {unit_of(self.quality).label} "
                f"{score(then[self.quality], self.quality)}: " + ("taken" if better else "not taken")
            )
            if not better:
                break
            length, metrics = following, then
        return Preset(label, at(self.trials.base, threshold, length), metrics)


def is_fuzzy(method: MethodSpec) -> bool:
    return method.verification.rule == "fuzzy"


def lossless(method: MethodSpec) -> MethodSpec:
    """The method itself, and speculative decoding with the same drafter and bridge where it is fuzzy."""
    if not is_fuzzy(method):
        return method
    return with_value(method, "verification", {"rule": "rejection"})


def named(method: MethodSpec, name: str) -> MethodSpec:
    return method.model_copy(update={"name": name})


def _speed(metrics: Metrics) -> float:
    return metrics["tokens_per_second"].value or 0.0
