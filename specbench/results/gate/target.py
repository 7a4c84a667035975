"""The target of a run: where the outputs of both sides differ, whether it was undecided there."""

from collections.abc import Mapping, Sequence

from specbench.core.resources import EMBEDDED
from specbench.core.threads import set_threads
from specbench.results.greedy import NUM_NOISE_ANSWERS, NUM_NOISE_TOKENS, difference, measure_noise
from specbench.results.recorded_prompts import Loader, prompts_of
from specbench.results.row import Row
from specbench.results.runs import RecordedRun
from specbench.results.verdict import Answer, OutputDifference
from specbench.running.records import Key, Record, record_key, with_the_same_history


class Target:
    """The target of a run, asked only where outputs differ."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.loader = Loader("auto", run.rows[0].dtype)

    def differences(
        self, row: Row, keys: Sequence[Key], candidate: Mapping[Key, Record], method: str, max_query_length: int
    ) -> list[OutputDifference]:
        """The first differences of outputs of one row, near-ties told by the audit's measure of the target's noise.

        Raises ConfigError where the target, or the prompts, are not at hand any more.
        """
        set_threads(None, row.target.startswith(EMBEDDED))
        target = self.loader.load(row.target, row.target_revision)
        records = self._with_history([self.run.records[key] for key in keys], row, method)
        budgets = {name for record in records for name in record.get("budgets", {})} - {target.name}
        place = (row.task_name, row.subset)
        chosen = [record_key(record) for record in records]
        others = [self.loader.load(name) for name in budgets]
        prompts = prompts_of(self.run, {place: row}, {place: chosen}, target, others)
        answers = [
            Answer(str(self.run.records[key]["id"]), list(prompts[key].prompt_ids), _ids(self.run.records, key, method))
            for key in chosen
        ]
        if not answers:
            return []
        measured = [Answer(a.name, a.prompt_ids, a.token_ids[:NUM_NOISE_TOKENS]) for a in answers[:NUM_NOISE_ANSWERS]]
        tolerance = measure_noise(target, measured, max_query_length).tolerance
        found = [
            difference(target, answer, _ids(candidate, key, method), tolerance, str)
            for key, answer in zip(chosen, answers, strict=True)
        ]
        return [each for each in found if each is not None]

    def _with_history(self, records: Sequence[Record], row: Row, method: str) -> list[Record]:
        """Those whose prompt is AR's too: in later turns a method has read its own answers."""
        every = [r for r in self.run.records.values() if (r["task"], r["subset"]) == (row.task_name, row.subset)]
        kept = {record_key(record) for record in with_the_same_history(every, method)}
        return [record for record in records if record_key(record) in kept]


def _ids(records: Mapping[Key, Record], key: Key, method: str) -> list[int]:
    return list(records[key]["methods"][method]["token_ids"])
