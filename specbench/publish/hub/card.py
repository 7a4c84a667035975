"""The part of a model card on speculative decoding: what was measured with the model, as Markdown that is made of rows.

Source of the front matter's keys: https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

from collections.abc import Sequence

from specbench.core.table import Table, escaped_markdown
from specbench.publish.bundle.scrub import Scrubber
from specbench.publish.hub.forms import dumped
from specbench.publish.hub.models import ModelRows, told_model
from specbench.publish.hub.results import LENGTH
from specbench.report.captions import (
    draft_length,
    drafter_kind,
    dtype_and_device,
    few_prompts_line,
    lossless_word,
    marked_speedup,
    memory_lines,
    runs_on_lines,
    sampling_of,
    score_notes,
    verdict_of,
    warning_lines,
)
from specbench.report.columns import NUM_DRAFT_TOKENS, VERDICT, N, RowColumn, cells_of
from specbench.report.ranking import DEFAULT_METRIC, distinct_names, group_by_conditions, unranked_line
from specbench.results.level import level_of
from specbench.results.metric_format import NULL, metric_of, names_by_text, with_interval
from specbench.results.paired import RowWithRecords
from specbench.results.row import ALL, Row

TERMS = (
    "α is the share of verified draft tokens that were accepted; τ the emitted tokens per target pass, the target's "
    "own token included; the speed-up is over the target alone (AR) in the same run. Brackets hold 95 % intervals over "
    "prompts."
)
CLAIMS = {"yes": "lossless", "no": "lossy: the output is not the target's own"}


def card(found: ModelRows) -> str:
    """Returns the Markdown: a table for each other model, sampling, machine and set of versions, then the commands,
    without secrets and home folders."""
    baselines = _baselines(found)
    weights = "; ".join(told_model(found.name, revision) for revision in found.revisions)
    sections = [
        _table(rows, role, baselines, found)
        for role, own in (("drafter", found.as_drafter), ("target", found.as_target))
        for rows in _groups(own, role)
    ]
    rows = [*found.as_drafter, *found.as_target]
    parts = [
        f"## Speculative decoding\n\nMeasured by specbench with {escaped_markdown(weights)}. {TERMS}\n",
        *(section.markdown() for section in sections),
        f"### Reproduce\n\n```sh\n{_commands(rows)}\n```\n",
    ]
    return Scrubber.of_user().text("\n".join(parts))


def _baselines(found: ModelRows) -> dict[int, Row]:
    """Returns AR's row under the same conditions by the id of each row that has one."""
    pairs: dict[int, Row] = {}
    for group in group_by_conditions([RowWithRecords(row) for row in found.all], DEFAULT_METRIC).values():
        baseline = next((side.row for side in group if side.row.is_baseline), None)
        if baseline is not None:
            pairs |= {id(side.row): baseline for side in group}
    return pairs


def _groups(rows: Sequence[Row], role: str) -> list[list[Row]]:
    """Returns the rows by what stands below their tables once."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        key = _other_model(row, role), _conditions(row)
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _other_model(row: Row, role: str) -> str:
    if role == "drafter":
        return f"target {told_model(row.target, row.target_revision)}"
    return f"drafter {told_model(row.drafter, row.drafter_revision) if row.drafter else f'none ({drafter_kind(row)})'}"


def _conditions(row: Row) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in row.versions.items() if version)
    return f"{sampling_of(row)}; {dtype_and_device(row)}; {versions}"


def _place(row: Row) -> str:
    where = row.task_name if row.subset in (ALL, "default") else f"{row.task_name} {row.subset}"
    return ", ".join(filter(None, (where, row.level)))


def _table(rows: Sequence[Row], role: str, baselines: dict[int, Row], found: ModelRows) -> Table:
    methods = distinct_names(rows)
    labels = [f"{methods[row.key]} on {_place(row)}" for row in rows]

    def difference(row: Row) -> str:
        unit = metric_of(row.quality)
        text = with_interval(row.metric(f"{row.quality}_difference"), unit.digits, unit.factor, "+")
        return NULL if row.quality is None or text == NULL else f"{unit.label}: {text}"

    columns = [
        RowColumn("task", cell=_place), RowColumn("method", cell=lambda row: methods[row.key]), NUM_DRAFT_TOKENS, N,
        RowColumn("α", True, cell=lambda row: with_interval(row.metric("acceptance_rate"), 3)),
        RowColumn("τ", True, cell=lambda row: with_interval(row.metric(LENGTH))),
        RowColumn("speed-up", True, cell=lambda row: marked_speedup(row, baselines.get(id(row), row))),
        RowColumn("score − AR's", True, cell=difference), VERDICT,
    ]  # fmt: skip
    caption = [
        _other_model(rows[0], role),
        _conditions(rows[0]),
        *_shared("data", labels, [_data(row) for row in rows]),
        *_shared("method", labels, [f"{draft_length(row)}, {CLAIMS.get(lossless_word(row), lossless_word(row))}"
                                    for row in rows]),
        *_shared("verdict", labels, [verdict_of(row) for row in rows]),
        *_shared("commit", labels, [row.commit and row.commit[:12] for row in rows]),
        *_shared("level", labels, [str(level_of(row, found.levels or {})) for row in rows]),
        *dict.fromkeys(line for row in rows for line in memory_lines(row)),
        *_shared("note", labels, ["; ".join(score_notes([row])) or None for row in rows]),
        *unranked_line(rows),
        *few_prompts_line(rows, [label for label, row in zip(labels, rows, strict=True) if row.has_few_prompts]),
        *warning_lines(rows, labels, for_readers=True),
        *_run_on_lines(rows, labels, baselines),
    ]  # fmt: skip
    name = found.name.rstrip("/").rpartition("/")[2]
    return Table(f"{name} as {role}", columns, cells_of(rows, columns), caption)


def _run_on_lines(rows: Sequence[Row], labels: Sequence[str], baselines: dict[int, Row]) -> list[str]:
    """Returns a line for each row of AR with the methods whose answers go on where its answers end."""
    lines = []
    for baseline in {id(each): each for each in map(baselines.get, map(id, rows)) if each is not None}.values():
        own = [place for place, row in enumerate(rows) if baselines.get(id(row)) is baseline]
        lines += runs_on_lines([rows[place] for place in own], [labels[place] for place in own], baseline)
    return lines


def _data(row: Row) -> str:
    seeds = f", {row.repeats} repeats" if row.repeats > 1 else ""
    return f"{row.task}, {row.data_source} ({row.data_location}), seed {row.seed}{seeds}"


def _shared(name: str, labels: Sequence[str], texts: Sequence[str | None]) -> list[str]:
    """Returns a line for each different text, with the rows that have it unless all have."""
    found = names_by_text(zip(labels, texts, strict=True))
    if len(found) == 1 and None not in texts:
        return [f"{name}: {next(iter(found))}"]
    return [f"{name} of {', '.join(own)}: {text}" for text, own in found.items()]


def _commands(rows: Sequence[Row]) -> str:
    """Returns each command once. It is code inside a fence, so that only a fence in it would have to be escaped."""
    return "\n".join(dict.fromkeys(" ".join(row.command.split()).replace("```", "'''") for row in rows))


def front_matter(found: ModelRows) -> tuple[str, list[str]]:
    """Returns the YAML at the top of a card, with τ as `model-index`, and lines on the rows that it cannot hold: it
    names data sets of the hub."""
    from huggingface_hub import EvalResult
    from huggingface_hub.repocard_data import eval_results_to_model_index

    rows = [row for row in (*found.as_drafter, *found.as_target) if row.has(LENGTH)]
    on_hub = [row for row in rows if row.data_source == "hub"]
    results = [
        EvalResult(
            task_type="text-generation", dataset_type=row.data_location.partition(":")[0], dataset_name=_place(row),
            dataset_revision=row.data_revision, metric_type=LENGTH,
            metric_value=round(row.metrics[LENGTH].value or 0.0, 4),
            metric_name=f"τ {with_interval(row.metric(LENGTH))}, 95 %, n = {row.n}, {row.shown_method}, "
            f"{draft_length(row)}, {sampling_of(row)}, target {row.target}",
        )
        for row in on_hub
    ]  # fmt: skip
    content: dict[str, object] = {"tags": ["speculative-decoding"]}
    if results:
        content["model-index"] = eval_results_to_model_index(found.name.rstrip("/").rpartition("/")[2], results)
    others = dict.fromkeys(f"{row.data_source} ({row.data_location})" for row in rows if row.data_source != "hub")
    left_out = [f"not in model-index, which names data sets of the hub: rows of {', '.join(others)}"] if others else []
    return Scrubber.of_user().text(f"---\n{dumped(content)}---\n"), left_out
