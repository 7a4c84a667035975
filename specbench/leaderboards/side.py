"""A row with what it was measured from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.results.counts import with_own_passes
from specbench.results.quality import Asked
from specbench.results.row import Row
from specbench.running.records import Generation, Record
from specbench.specs import MethodSpec


@dataclass(frozen=True)
class Side:
    """`method` and `asked` are None and `records` empty where nothing of that is at hand."""

    row: Row
    records: Sequence[Record] = ()
    method: MethodSpec | None = None
    asked: Mapping[str, Asked] | None = None

    def generations(self, records: Sequence[Record]) -> list[Generation]:
        """What the method generated, every pass booked on the model that made it."""
        assert self.method is not None
        name, decodes_with = self.method.name, self.method.decodes_with
        return [with_own_passes(record["methods"][name], decodes_with) for record in records]
