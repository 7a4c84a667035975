"""Measures servers of which only one can be up at a time: a run is cut into parts, and in each part one server after
the other is started and measured, in the order A B, B A, A B, …
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from specbench.core.progress import ProgressBar
from specbench.decoding.decoder import Decoder
from specbench.integrations.served.concurrency import BringUp
from specbench.records.generation import Generation, Stored
from specbench.records.records import Key, LineFile
from specbench.records.store import RecordStore
from specbench.running.events import Events
from specbench.running.measure import check_recorded, measure_method, record_of
from specbench.running.plan import Plan, Trial
from specbench.running.warm_up import Budget, WarmUp, doing_warm_up, forget_warm_up, longest_conversation, warm_up

TURNS = "turns.jsonl"  # in a run's folder: the answers of single servers, until the part is complete


class ServerAnswer(Stored):
    """A line of that file. The first five fields are the key of the trial."""

    task: str
    subset: str
    example: int
    repeat: int
    turn: int
    method: str
    answer: Generation

    @property
    def key(self) -> Key:
        return self.task, self.subset, self.example, self.repeat, self.turn


def split_plan(plan: Sequence[Trial], number: int) -> Iterator[list[Trial]]:
    """Yields the trials in at most `number` parts of about equal size, with all turns of a conversation in one."""
    examples = [list(group) for _, group in groupby(plan, lambda trial: trial.key[:4])]
    number = min(number, len(examples))
    for part in range(number):
        own = examples[part * len(examples) // number : (part + 1) * len(examples) // number]
        yield [trial for trials in own for trial in trials]


@dataclass(frozen=True)
class RotationScheduler:
    """Measures the trials of a plan part by part. `bring_up`: ends the other servers and starts one; returns whether
    it was started now."""

    num_parts: int
    bring_up: BringUp

    def measure(self, plan: Plan, recorded: RecordStore, events: Events) -> None:
        """Each answer is on disk before the next request, so that a run which is stopped within a part loses none."""
        check_recorded(plan.trials, recorded, plan.folder)
        file = LineFile[ServerAnswer](plan.folder.path / TURNS, ServerAnswer)
        before = frozenset(recorded)
        answers = {(line.key, line.method): line.answer for line in file.read()}
        num_servers = len(plan.spec.methods)
        seconds = plan.spec.warm_up
        seconds = None if seconds is None else seconds / (num_servers * self.num_parts)
        with ProgressBar(events.console, "rotation", len(plan.trials) * num_servers) as progress:
            for number, part in enumerate(split_plan(plan.trials, self.num_parts)):
                decoders = part[0].run.decoders
                names = [decoder.method.name for decoder in decoders[:: 1 if number % 2 == 0 else -1]]
                for name in names:
                    missing = [
                        trial for trial in part if trial.key not in recorded and (trial.key, name) not in answers
                    ]
                    warm_ups = self._warm_up(missing, name, seconds) if missing else {}
                    for trial in missing:
                        texts = [answers[key, name].answer for key in trial.earlier_keys]
                        answer = measure_method(trial, _decoder(trial.run.decoders, name), plan.spec, texts)
                        answer.warm_up = warm_ups[id(trial.run)].as_record()
                        answers[trial.key, name] = answer
                        file.append(ServerAnswer(*trial.key, name, answer))
                        progress.update(f"part {number + 1} · {name}", len(answers))
                for trial in part:
                    if trial.key not in recorded:
                        measured = {name: answers[trial.key, name] for name in names}
                        earlier = [recorded[key] for key in trial.earlier_keys]
                        record = record_of(trial, measured, earlier, part=number)
                        recorded.add(record)
        with events.trials(plan.trials):  # not before: a bar for each of both would show
            for trial in plan.trials:
                events.trial_recorded(trial, recorded[trial.key], is_new=trial.key not in before)

    def _warm_up(self, trials: Sequence[Trial], name: str, seconds: float | None) -> dict[int, WarmUp]:
        """Brings a server up and warms it up for the subsets of trials. Returns the warm-ups by id of the subset run.
        `seconds`: the time for it, by default a share of the expected time."""
        is_new = self.bring_up(name)
        warm_ups = {}
        budget = Budget(seconds, sum(trial.run.task.generation.max_new_tokens for trial in trials))
        for run in {id(trial.run): trial.run for trial in trials}.values():
            decoder = _decoder(run.decoders, name)
            if is_new:
                forget_warm_up(decoder)
            length = longest_conversation(run, decoder.model)
            num_new = run.task.generation.max_new_tokens
            with doing_warm_up(run) as tell:
                warm_ups[id(run)] = warm_up([(decoder, length)], run.context_limit, num_new, budget, tell)[name]
        return warm_ups


def _decoder(decoders: Sequence[Decoder], name: str) -> Decoder:
    return next(decoder for decoder in decoders if decoder.method.name == name)
