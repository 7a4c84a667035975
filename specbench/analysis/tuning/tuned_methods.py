"""`specbench tune`: the calibration slice, and the files of tuned methods, which state how each method was found."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from textwrap import fill

import yaml
from rich.console import Console

from specbench.analysis.tuning.shared_runs import (
    LENGTH,
    Trials,
    TuningReport,
    dumped,
    open_trials,
    score_heading,
    shown,
    trial_spec,
    with_value,
)
from specbench.analysis.tuning.tune import (
    LENGTHS,
    SIZES,
    TunedPreset,
    Tuner,
    grows,
    has_shape,
    is_fuzzy,
    tune,
    tune_shape,
    tune_size,
)
from specbench.built_in import __version__
from specbench.core.console import say
from specbench.core.errors import ConfigError
from specbench.core.files import check_output, write_output
from specbench.core.table import Table, number_columns, text_columns
from specbench.decoding.decoder import stream_seed
from specbench.results.metric_format import NULL, metric_of, number, score, score_pair, with_interval
from specbench.running.plan import Loaded
from specbench.running.prompts import prompt_digest
from specbench.running.request import Request
from specbench.specs.catalogue import load_file
from specbench.specs.method import CalibrationSpec, MethodSpec, tree_levels
from specbench.specs.run import RunSpec
from specbench.statistics.bootstrap import MIN_PROMPTS
from specbench.tasks.scoring import make_scorer

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
DEFAULTS = {"decodes_with": "target", "bridge": "shared", "paper": None}  # omitted from the files
MAX_NODES = 512


def run_tune(
    request: Request, output: Path, *, amount: str, lengths: Sequence[str] | None, sizes: Sequence[str] | None,
    step: float, console: Console,
) -> TuningReport:  # fmt: skip
    """Tunes a method and writes the method files. `lengths`: of chains; `sizes`: of draft trees. Raises ConfigError for
    bad input, before anything is measured."""
    # 1. Everything that can be wrong with the input.
    spec = trial_spec(request, "tune", console)
    method = spec.methods[1]
    check_files(output, ("", "low", "med", "high") if is_fuzzy(method) else ("",))
    candidates = parse_candidates(method, lengths, sizes)
    if is_fuzzy(method):
        check_quality(spec, step)
    # 2. The slice, and the search on it.
    trials = open_trials(spec, request, console, "tune")
    trials = replace(trials, loaded=choose_slice(trials.loaded, amount, spec.seed))
    counts = ", ".join(f"{len(data.examples)} of {subset}" for _, subset, data in trials.loaded)
    say(console, f"calibration slice: {counts}")
    tuner = Tuner(trials, candidates, step)
    search = tune_shape if has_shape(method) else tune_size if grows(method) and lengths is None else tune
    presets = search(tuner)
    # 3. The files and the report.
    calibration = calibration_of(trials.loaded)
    paths = write_presets(output, trials, presets, calibration, tuner.notes)
    data = {
        "files": [str(path) for path in paths], "decisions": tuner.notes, "calibration": calibration.model_dump(),
        "presets": [
            {"preset": preset.label, "method": preset.method.model_dump(mode="json"),
             "metrics": dumped(preset.metrics, preset.metrics)}
            for preset in presets
        ],
    }  # fmt: skip
    return TuningReport(data, [presets_table(trials, presets, paths)], trials.folder)


def parse_candidates(method: MethodSpec, lengths: Sequence[str] | None, sizes: Sequence[str] | None) -> list[int]:
    """Returns the tree sizes or draft lengths to try. Raises ConfigError for a number that the method cannot draft, and
    for the option that it does not take."""
    if has_shape(method) or (grows(method) and (lengths is None or sizes is not None)):
        if lengths is not None:
            raise ConfigError(
                f"--lengths {','.join(lengths)}: {method.name} drafts trees: give --sizes, or leave it out"
            )
        if sizes is None:
            return list(SIZES)
        for text in sizes:
            if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_NODES:
                raise ConfigError(
                    f"--sizes {text}: not a number of draft tokens from 1 to {MAX_NODES}: give some like 4,16,64"
                )
        if len(found := sorted({int(text) for text in sizes})) < 2:
            raise ConfigError("--sizes: one size shows no costs by size: give two or more, such as 4,16,64")
        return found
    if sizes is not None:
        raise ConfigError(
            f"--sizes {','.join(sizes)}: the drafter of {method.name} has no shape to choose: give "
            "--lengths, or leave it out"
        )
    if lengths is None:
        longest = tree_levels(method.drafter) or max(LENGTHS)
        lengths = [str(length) for length in LENGTHS if length <= longest] or [str(longest)]
    found = []
    for text in lengths:
        if not text.isascii() or not text.isdigit():
            raise ConfigError(f"--lengths {text}: not a number of tokens: give some like 5,10,15,20")
        found.append(with_value(method, LENGTH, int(text), place=f"--lengths {text}").num_draft_tokens)
    return sorted(set(found))


def check_quality(spec: RunSpec, step: float) -> None:
    """Raises ConfigError if the quality of a fuzzy method, or of its drafter, cannot be measured."""
    task, method = spec.tasks[0], spec.methods[1]
    if not 0 < step < math.inf:
        raise ConfigError(f"--step {step:g}: must be above 0")
    scorers = (make_scorer(task.subset(subset)) for _, subset in spec.task_subsets())
    mains = {scorer.names[0] for scorer in scorers if scorer is not None}
    if not mains:
        raise ConfigError(
            f"--task {task.name}: has no scorer, so there is no quality to trade for speed: choose a task with "
            "`scorer` and `reference`"
        )
    if len(mains) > 1:
        scores = ", ".join(sorted(mains))
        raise ConfigError(f"--task {task.name}: its subsets have several scores ({scores}): choose one with --subset")
    if not method.needs_drafter:
        raise ConfigError(
            f"--method {method.name}: drafts without a model, so there is no drafter's own quality to measure "
            "thresholds against: choose one with drafter.type = 'model'"
        )


def choose_slice(loaded: Loaded, amount: str, seed: int) -> Loaded:
    """Returns the examples to tune on, drawn from each subset with the seed. `amount`: a share (0.25) or a number (8)
    of each subset's examples.

    Raises ConfigError if nothing is left to evaluate, or if the examples are too few for an interval.
    """
    try:
        number = float(amount)
    except ValueError:
        number = math.nan
    is_share = 0 < number < 1
    if not is_share and not (number >= 1 and number.is_integer()):
        raise ConfigError(f"--calibration {amount}: give a share between 0 and 1, such as 0.25, or a number such as 8")
    taken = []
    for task, subset, data in loaded:
        num_examples = len(data.examples)
        count = math.ceil(number * num_examples) if is_share else int(number)
        if count >= num_examples:
            raise ConfigError(
                f"--calibration {amount}: takes all {num_examples} examples of subset '{subset}', so that none is left "
                "to evaluate: give less, or a larger --limit"
            )
        drawn = Random(stream_seed("calibration", seed, task.name, subset)).sample(data.examples, count)
        taken.append((task, subset, replace(data, examples=tuple(sorted(drawn, key=lambda e: e.index)))))
    total = sum(len(data.examples) for _, _, data in taken)
    if total < MIN_PROMPTS:
        raise ConfigError(
            f"--calibration {amount}: gives {total} examples, but an interval needs {MIN_PROMPTS}: give more, "
            "a larger --limit or more subsets"
        )
    return taken


def calibration_of(loaded: Loaded) -> CalibrationSpec:
    task, _, data = loaded[0]
    return CalibrationSpec(
        task=task.name, data=f"{data.source} {data.location}", revision=data.revision,
        prompts={
            subset: tuple(prompt_digest(example, turn=0) for example in data.examples) for _, subset, data in loaded
        },
    )  # fmt: skip


def presets_table(trials: Trials, presets: Sequence[TunedPreset], files: Sequence[Path]) -> Table:
    rows = []
    for preset, file in zip(presets, files, strict=True):
        metrics, threshold = preset.metrics, preset.method.verification.options.get("threshold")
        rows.append([
            file.name, NULL if threshold is None else shown(threshold), str(preset.method.num_draft_tokens),
            number(metrics["draft_efficiency"], 1, 100), number(metrics["tokens_per_second"], 1),
            with_interval(metrics["speedup"], 2), score_pair(metrics, trials.quality),
        ])  # fmt: skip
    figures = ("threshold", "draft\ntokens", "accepted %", "tok/s", "speed-up\n95 % interval")
    columns = text_columns("file") + number_columns(*figures, score_heading(trials.quality, "method"))
    caption = (
        "Measured on the calibration slice, with which the presets were chosen: evaluate on other examples. "
        + trials.pair_and_prompts
    )
    return Table(trials.title("tuned"), columns, rows, [caption])


def file_of(output: Path, label: str) -> Path:
    """Returns my-low.yaml for my.yaml; the path itself if there is no label."""
    return output.with_name(f"{output.stem}-{label}{output.suffix}") if label else output


def check_files(output: Path, labels: Sequence[str]) -> None:
    """Raises ConfigError if method files of this name cannot be written or read back, and for an existing file."""
    if output.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--output {output}: must end in .yaml: it names a method file")
    if not NAME.fullmatch(output.stem):
        raise ConfigError(f"--output {output}: '{output.stem}' is not a method name: use letters, digits, _ . and -")
    check_output("--output", output)
    for path in (file_of(output, label) for label in labels):
        if path.exists():
            raise ConfigError(f"--output {path}: exists: name another file, or move this one away")


def write_presets(
    output: Path, trials: Trials, presets: Sequence[TunedPreset], calibration: CalibrationSpec, notes: Sequence[str]
) -> list[Path]:
    """Writes one file per preset and reads it back as a check. Raises ConfigError if it cannot be written."""
    paths = []
    for preset in presets:
        path = file_of(output, preset.label)
        lines = comments(trials, preset, calibration, notes)
        comment = "\n".join(fill(line, 118, initial_indent="# ", subsequent_indent="#   ") for line in lines)
        label = f", {preset.label}" if preset.label else ""
        data = {
            **preset.method.model_dump(mode="json", exclude={"sweep"}), "name": path.stem, "version": 1,
            "title": f"{trials.base.title}, tuned on {calibration.task}{label}",
        }  # fmt: skip
        kept = {key: value for key, value in data.items() if key not in DEFAULTS or value != DEFAULTS[key]}
        for key, value in kept.items():
            if isinstance(value, dict):
                kept[key] = {name: option for name, option in value.items() if option is not None}
        kept["calibration"] = calibration.model_dump(mode="json")
        text = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
        write_output("--output", path, f"{comment}\n{text}", kept="; the runs are kept")
        load_file(path)
        paths.append(path)
    return paths


def comments(trials: Trials, preset: TunedPreset, calibration: CalibrationSpec, notes: Sequence[str]) -> list[str]:
    """Returns the lines of the comment: date, pair, task, slice, the preset's numbers and the decisions."""
    models, metrics, quality, drafter = trials.models, preset.metrics, trials.quality, trials.drafter
    sizes = ", ".join(f"{len(prompts)} of {subset}" for subset, prompts in calibration.prompts.items())
    scored = ""
    if quality:
        before, after = (score(metrics[name], quality) for name in (f"{quality}_ar", quality))
        scored = f", {metric_of(quality).label} {before} → {after}"
    numbers = (
        f"{with_interval(metrics['tokens_per_second'], 1)} tokens/s, speed-up {with_interval(metrics['speedup'], 2)}, "
        f"accepted share of draft tokens {with_interval(metrics['draft_efficiency'], 3)}{scored}"
    )
    pair = ((models.target.name, models.target.revision), (drafter["name"], drafter["revision"]))
    named = ", ".join(f"{name} ({revision})" if revision else str(name) for name, revision in pair)
    today, command = datetime.now(UTC).date().isoformat(), " ".join(trials.command.split())
    return [
        f"Written by specbench {__version__} on {today}: {command}",
        f"Pair: {named}; {models.target.precision} on {trials.conditions['device']}, {models.engine(trials.base)}",
        f"Task: {calibration.task}; calibration slice: {sizes} ({calibration.data}), listed below: a run of this "
        "method leaves it out",
        f"Measured on the slice, with 95 % intervals: {numbers}",
        *(line.rstrip() for note in notes for line in note.splitlines() if line.strip()),
    ]
