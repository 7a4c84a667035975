"""What a run says twice, and where both do not agree: rows are computed from records as they stand, so that records
may give a row and still contradict themselves.

Scores are made again from the texts, by the scorers that run no program; where these are of other versions than those
of the run, scores that differ are no contradiction. Times are compared with those of their passes and with the clock,
by which each record says when it ended. All lines of the records are read, one at a time.
"""

import ast
import json
import math
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from specbench.core.bounded import repeated_key
from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.core.files import COMMAND
from specbench.core.source import is_outside
from specbench.publish.bundle.texts import is_left_out
from specbench.records.folder import ENVIRONMENT, RunFolder, read_environments
from specbench.records.generation import Generation, Record, Score
from specbench.records.records import RECORDS, Key
from specbench.results.rows import MEASUREMENTS_FILE
from specbench.results.runs import RecordedRun
from specbench.results.scorer_versions import OTHER_VERSION, SACREBLEU, ScorerVersions, signed_versions
from specbench.results.scores import ScoringSpec
from specbench.tasks.scoring import PerAnswer, Scorer, judged
from specbench.tasks.scoring.code import CodeScorer

LONGEST_TOKEN = 256  # characters, of which the vocabularies of today have at most half as many
MOST_CHARACTERS = 200_000  # of a text that is scored again
MOST_PAIRS = 2 * 10**8  # of characters of answer and reference: some scorers compare each with each
MARGIN, SLACK = 1.05, 1.0  # of times: relative, and in seconds
DAY = 86_400.0  # that clocks of two machines may differ
EQUAL = 1e-9  # of scores, relative and absolute: libraries sum with different rounding


@dataclass(frozen=True)
class Checked:
    """`problems`: a line for each contradiction. `unscored`: why scores were not made again, each once."""

    problems: Sequence[str] = ()
    has_texts: bool = True
    unscored: Sequence[str] = ()


def check_records(run: RecordedRun, now: float | None = None) -> Checked:
    """Reads the records of a run, and returns what they contradict. The run then has its records and answers, which the
    same pass reads. `now`: the Unix time; by default that of this machine's clock. Raises ConfigError for records that
    cannot be read."""
    found = _Found(run, time.time() if now is None else now)

    def hear(record: Record, line: bytes) -> None:
        found.add(record)
        found.add_keys(record, line)

    run.read(hear)
    problems = [*found.problems(), *_environment(run), *_signatures(run), *_commands(run)]
    return Checked(problems, found.has_texts, [*found.unscored, *found.scored_otherwise()])


@dataclass
class _Span:
    """The records of a process: when the first and the last ended, and the seconds of all answers and of the first."""

    first: float
    last: float
    seconds: float
    of_first: float

    def add(self, ended: float, seconds: float) -> None:
        if ended < self.first:
            self.first, self.of_first = ended, seconds
        self.last = max(self.last, ended)
        self.seconds += seconds


@dataclass
class _Found:
    """What is kept while records are read: numbers by kind, and the first place of each."""

    run: RecordedRun
    now: float
    has_texts: bool = True
    unscored: dict[str, None] = field(default_factory=dict)
    _seen: set[Key] = field(default_factory=set)
    _number: Counter[tuple[str, str]] = field(default_factory=Counter)
    _first: dict[tuple[str, str], str] = field(default_factory=dict)
    _spans: dict[str, _Span] = field(default_factory=dict)
    _last: tuple[str | None, float] = (None, 0.0)  # process and end of the record before
    _times: dict[str, list[float]] = field(default_factory=dict)  # by method: decode seconds and those of passes
    _scorers: dict[tuple[str, str], Scorer | None] = field(default_factory=dict)
    _other_versions: dict[tuple[str, str], str] = field(default_factory=dict)  # of a subset's scorer, in words
    _otherwise: Counter[str] = field(default_factory=Counter)  # answers that another version scores otherwise

    @cached_property
    def _versions(self) -> ScorerVersions:
        return ScorerVersions.of(self.run)

    def add(self, record: Record) -> None:
        if record.key in self._seen:
            self._tell("record", "of an example that another one has", record.name)
        self._seen.add(record.key)
        ended = record.measured_at
        if ended is not None and ended > self.now + DAY:
            told = f"{record.name}: {_date(ended)}, and today is {_date(self.now)}"
            self._tell("record", "measured in the future", told)
        for name, generation in record.methods.items():
            self._add_numbers(record.name, name, generation)
        if record.process is not None and record.part is None and ended is not None:
            seconds = sum(_seconds(each) for each in record.methods.values())
            process, before = self._last
            if process == record.process and seconds > MARGIN * max(0.0, ended - before) + SLACK:
                told = f"its answers took {seconds:.4g} s, but ended {ended - before:.4g} s behind those before"
                self._tell("record", "faster than its answers", f"{record.name}: {told}")
            self._last = record.process, ended
            if (span := self._spans.get(record.process)) is None:
                self._spans[record.process] = _Span(ended, ended, seconds, seconds)
            else:
                span.add(ended, seconds)
        if any(is_left_out(each) for each in record.methods.values()):
            self.has_texts = False
            return
        self._add_texts(record)
        self._add_scores(record)

    def add_keys(self, record: Record, line: bytes) -> None:
        """Other readers of JSON may take the first of two equal keys, where this one takes the last."""
        twice: list[str] = []

        def note(pairs: list[tuple[str, Any]]) -> None:
            if (key := repeated_key(pairs)) is not None:
                twice.append(key)

        json.loads(line, object_pairs_hook=note)
        if twice:
            self._tell("record", "with a key twice", f"{record.name}: {twice[0]!r:.60}")

    def _tell(self, noun: str, words: str, place: str) -> None:
        self._number[noun, words] += 1
        self._first.setdefault((noun, words), place)

    def _add_numbers(self, place: str, name: str, generation: Generation) -> None:
        if not generation.is_external:
            sums = self._times.setdefault(name, [0.0, 0.0])
            passes = sum(generation.passes.target.seconds) + sum(generation.passes.draft.seconds)
            sums[0] += generation.decode_seconds
            sums[1] += passes
            if passes > MARGIN * generation.decode_seconds + SLACK / 100:
                told = (
                    f"{place}: {name}: decode_seconds = {generation.decode_seconds:.4g}, but passes of {passes:.4g} s"
                )
                self._tell("answer", "shorter than its passes", told)
        numbers = [*generation.positions.values(), generation.draw_overlap, generation.draft_confidence]
        if any(each is not None and not math.isfinite(sum(each)) for each in (*numbers, generation.draft_entropy)):
            self._tell("answer", "with numbers that are not finite", f"{place}: {name}")

    def _add_texts(self, record: Record) -> None:
        """Equal tokens are equal texts, for methods of one tokenizer that read the same prompt."""
        texts: dict[tuple[bytes, str], tuple[str, str]] = {}
        for name, each in record.methods.items():
            if len(each.text) > LONGEST_TOKEN * each.num_new_tokens:
                told = f"{len(each.text):,} characters of {counted(each.num_new_tokens, 'token')}"
                self._tell("text", "with more characters than tokens have", f"{record.name}: {name} has {told}")
            if each.is_external or each.decoded_by is not None or record.turn:
                continue
            other, text = texts.setdefault((each.token_ids.tobytes(), each.finish), (name, each.text))
            if text != each.text:
                self._tell("text", "unlike another of the same tokens", f"{record.name}: {other} and {name}")

    def _add_scores(self, record: Record) -> None:
        scorer = self._scorer(record.task, record.subset)
        if scorer is None:
            return
        reference = record.reference
        if reference is None:
            if not isinstance(scorer, PerAnswer) or scorer.needs_reference:
                if any(each.score is not None for each in record.methods.values()):
                    self.unscored["scores (references are left out)"] = None
                return
            reference = ""
        for name, each in record.methods.items():
            if len(each.answer) > MOST_CHARACTERS or len(each.answer) * len(str(reference)) > MOST_PAIRS:
                self.unscored["scores (of long texts)"] = None
                continue
            try:
                score = judged(scorer, each.answer, reference)
            except ConfigError as error:
                self._tell("score", "for a reference that cannot be read", f"{record.name}: {error}")
                continue
            own: Mapping[str, Score] = each.scores or {scorer.names[0]: each.score}
            differs = next((key for key in own if not _is_equal(own[key], score.values.get(key))), None)
            if differs is None and not _is_equal(each.score, own.get(scorer.names[0])):
                differs, own = scorer.names[0], {scorer.names[0]: each.score}
            if differs is None:
                differs = next((key for key, sums in score.statistics.items()
                                if not _are_equal(sums, each.statistics.get(key, ()))), None)  # fmt: skip
            if differs is not None and (others := self._other_versions[record.task, record.subset]):
                self._otherwise[others] += 1
            elif differs is not None:
                told = f"{differs} = {own.get(differs)}, but its text gives {score.values.get(differs)}"
                self._tell("score", "that the text does not get", f"{record.name}: {name}: {told}")

    def _scorer(self, task: str, subset: str) -> Scorer | None:
        """Returns what scores the answers of a subset again; None without a scorer, and for one that runs programs or
        is not this package's."""
        place = task, subset
        if place not in self._scorers:
            spec = next((each for each in self.run.tasks if each.name == task), None)
            known = spec is not None and subset in spec.subset_names
            scorer = ScoringSpec.of(spec.subset(subset), False).scorer if spec is not None and known else None
            if scorer is not None and isinstance(scorer, CodeScorer):
                self.unscored["scores (programs are not run)"] = None
                scorer = None
            elif scorer is not None and _is_of_others(scorer):
                self.unscored["scores (their scorer is not specbench's)"] = None
                scorer = None
            if spec is not None and scorer is not None:
                try:
                    _ = scorer.signature
                except ConfigError as error:  # a package is not installed here
                    self.unscored[f"scores ({error})"] = None
                    scorer = None
                self._other_versions[place] = self._versions.others(spec.subset(subset))
            self._scorers[place] = scorer
        return self._scorers[place]

    def scored_otherwise(self) -> Iterator[str]:
        """Yields what another version of a scorer gives answers than the run's."""
        for others, number in self._otherwise.items():
            yield f"scores ({OTHER_VERSION} scores {counted(number, 'answer')} otherwise: {others})"

    def problems(self) -> Iterator[str]:
        for (noun, words), number in self._number.items():
            yield f"{RECORDS}: has {counted(number, noun)} {words}: {self._first[noun, words]}"
        for name, (decoding, passes) in self._times.items():
            if passes > MARGIN * decoding + SLACK / 1000:
                yield (
                    f"{RECORDS}: decode_seconds of {name} are {decoding:.4g} s in all, but its passes, which are a "
                    f"part of them, took {passes:.4g} s"
                )
        for process, span in self._spans.items():
            spent, by_clock = span.seconds - span.of_first, span.last - span.first
            if spent > MARGIN * by_clock + SLACK:
                yield (
                    f"{RECORDS}: the answers of process {process:.40} took {spent:.4g} s behind its first record, but "
                    f"by measured_at only {by_clock:.4g} s passed"
                )


def _is_of_others(scorer: Scorer) -> bool:
    part = scorer.judge if isinstance(scorer, PerAnswer) else scorer
    return is_outside(part) or not str(type(scorer).__module__).startswith("specbench.tasks.scoring")


def _seconds(generation: Generation) -> float:
    """Returns the seconds of an answer that certainly passed one after the other."""
    return 0.0 if generation.is_external else generation.decode_seconds + (generation.ttft_seconds or 0.0)


def _is_equal(first: Score, second: Score) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=EQUAL, abs_tol=EQUAL)


def _are_equal(first: Sequence[float], second: Sequence[float]) -> bool:
    return len(first) == len(second) and all(map(_is_equal, first, second))


def _date(moment: float) -> str:
    try:
        return datetime.fromtimestamp(moment, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return f"{moment:.3g} s after 1970"


PACKAGES = {"specbench": "specbench-lm"}  # names of versions whose package has another one


def _environment(run: RecordedRun) -> Iterator[str]:
    """Yields a line for each version and device that settings and machine tell differently; runs of earlier versions
    tell them once."""
    environments = read_environments(run.path)
    settings = run.identity.get("environment") or {}
    models = {name.lower() for each in environments for name in _models(each)}
    device = str(settings.get("device") or "")
    if models and "servers" not in run.identity and not device.endswith("mps"):
        for part in device.lower().split(" + "):
            named = re.sub(r"^\d+ × | for \S+ layers$|,.*", "", part).strip()
            if named != "disk" and not any(named in model or model in named for model in models):
                told = ", ".join(sorted(models))
                yield f"{RunFolder.IDENTITY}: device = {device:.100}, but {ENVIRONMENT} has only {told:.100}"
                break
    for name, version in (settings.get("versions") or {}).items():
        found = {str(each) for each in (_package(each, name) for each in environments) if each is not None}
        if found and str(version) not in found:
            known = ", ".join(sorted(found))
            yield f"{ENVIRONMENT}: {name} {known:.60}, but {RunFolder.IDENTITY} says {version!s:.60}"


def _signatures(run: RecordedRun) -> Iterator[str]:
    """Yields a line for each version of sacrebleu that a row names and no environment has. Raises ConfigError for rows
    that cannot be read."""
    found = {str(each) for each in (_package(each, SACREBLEU) for each in read_environments(run.path)) if each}
    for row in run.rows if found else ():
        for stated in signed_versions(row.signatures.values()):
            if stated not in found:
                told = ", ".join(sorted(found))
                yield f"{ENVIRONMENT}: {SACREBLEU} {told:.60}, but {row.place} is signed by {stated:.60}"
                return


def _models(environment: Mapping[str, Any]) -> list[str]:
    """Returns the names of CPU and GPUs; none where the machine does not tell its CPU."""
    cpu, gpu = (environment.get(name) or {} for name in ("cpu", "gpu"))
    if not isinstance(cpu, dict) or not isinstance(gpu, dict) or not isinstance(cpu.get("model"), str):
        return []
    names = gpu.get("names")
    return [cpu["model"], *(map(str, names) if isinstance(names, list) else ())]


def _package(environment: Mapping[str, Any], name: str) -> object:
    packages = environment.get("packages")
    return packages.get(PACKAGES.get(name, name)) if isinstance(packages, dict) else None


# A shell would do more than run one program: lists, pipes, redirections, substitutions and comments.
OPERATORS = re.compile(r"[;&|<>()$`\\#\n\r]")
PYTHON_CALL = re.compile(r"specbench\.\w+\([^)\s].*\)")  # with an argument: without one it may begin a shell's function


def _commands(run: RecordedRun) -> Iterator[str]:
    """Yields a line for the first command that is not specbench's alone, since readers copy commands into a shell."""
    stated = [(MEASUREMENTS_FILE, measurement.command) for measurement in run.measurements]
    if COMMAND in run.identity:
        stated.append((RunFolder.IDENTITY, str(run.identity[COMMAND])))
    for file, command in stated:
        if not is_one_command(command):
            shown = ascii(command)[:100]
            yield f"{file}: command = {shown}: is not one command of specbench: do not run it"
            return


def is_one_command(command: str) -> bool:
    """Returns whether a text is one command `specbench …` without anything else that a shell would do, or one call
    `specbench.FUNCTION(…)` of Python with plain values."""
    if PYTHON_CALL.fullmatch(command):
        try:
            found = list(ast.walk(ast.parse(command, mode="eval")))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return True  # such as an object's <…>: neither Python nor a shell runs it
        calls = [each.func for each in found if isinstance(each, ast.Call)]
        return all(isinstance(each, ast.Name) and each.id.endswith("Path") for each in calls[1:])
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    unquoted = re.sub(r"'[^']*'|\"'\"", "", command)
    return bool(words) and words[0] == "specbench" and not OPERATORS.search(unquoted)
