"""All that a row says of how it was measured, as entries of lists."""

from collections.abc import Iterator
from functools import lru_cache

from markupsafe import Markup

from specbench.leaderboards.choosing import leaves
from specbench.results.captions import sampling_of
from specbench.results.row import STATED, Row

SECTIONS: dict[str, tuple[str, ...]] = {
    "Models": ("target", "target_revision", "drafter", "drafter_revision", "dtype", "attention", "engine", "chat"),
    "Method": ("method", "num_draft_tokens", "options", "lossless"),
    "Task and data": ("task", "subset", "language", "n", "repeats", "seed", "data_source", "data_location",
                      "data_revision", "shots"),
    "Sampling": ("sampling",),
    "Machine and software": ("device", "versions", "commit"),
    "Result": ("digest", "created", "quality", "signatures", "intervals", "format"),
    "Stated: nothing in the run's folder tells whether it is true": tuple(sorted(STATED)),
}  # fmt: skip


def facts(row: Row, digest: str) -> Iterator[tuple[str, Markup]]:
    """Under each heading the fields, dotted where they have parts, as the file has them."""
    known: dict[str, list[Markup]] = {}
    for name, value in leaves(row).items():
        known.setdefault(name.partition(".")[0], []).append(_fact(name, str(value)))
    known |= {"sampling": [_fact("tokens are drawn", sampling_of(row)), *known["sampling"]]}
    known |= {"digest": [_fact("digest", digest)], "format": [_fact("format", str(row.format))]}
    for heading, fields in SECTIONS.items():
        yield heading, Markup("").join(fact for field in fields for fact in known.get(field, []))


@lru_cache(maxsize=20_000)
def _fact(name: str, value: str) -> Markup:
    """An entry of a list; most are the same in many rows."""
    text = {"null": "–", "{}": "–", "true": "yes", "false": "no"}.get(value, value)
    return Markup("<div><dt>{}</dt><dd>{}</dd></div>\n").format(name, text)
