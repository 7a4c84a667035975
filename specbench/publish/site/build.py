"""Writes leaderboard files as a site of static pages, and replaces an earlier site as a whole."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.built_in import __version__
from specbench.core import bounded
from specbench.core.console import counted
from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError
from specbench.core.files import is_real_folder, replacing, writing
from specbench.publish.hub.space import README, Space
from specbench.publish.site.answers import asset, environment
from specbench.publish.site.charts import FRAME, prediction_plots, quality_speed_plots
from specbench.publish.site.entries import Entries, SiteRow, by_machine, index_table, read_entries
from specbench.publish.site.row_page import row_page, subset_rows
from specbench.report.captions import model_name
from specbench.report.shown import Prompts, Selection, ShownRun, no_prompts, shown_run
from specbench.results.level import Levels
from specbench.results.row import Row

MARK = "specbench-site.json"  # marks a folder as a site, and names all its files
KIND = "specbench site"


def check_replaceable(folder: Path) -> None:
    """Raises ConfigError unless the folder is absent, is empty, or holds a site and nothing else."""
    try:
        if not folder.exists():
            return
        if folder.resolve() == Path.cwd():
            raise ConfigError(f"--output {folder}: is the current folder, which would be replaced: name a subfolder")
        if not folder.is_dir():
            raise ConfigError(f"--output {folder}: is a file: name a folder")
        mark: object = None
        with suppress(ConfigError):
            mark = bounded.read_json(folder / MARK, "name another folder")
        of_site = {MARK}
        if isinstance(mark, dict) and mark.get("kind") == KIND and isinstance(mark.get("files"), list):
            of_site |= set(map(str, mark["files"]))
        strange = sorted(
            name for each in folder.rglob("*")
            if not is_real_folder(each) and (name := each.relative_to(folder).as_posix()) not in of_site
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"--output {folder}: cannot be read: {error.strerror or error}") from error
    if strange:
        raise ConfigError(
            f"--output {folder}: holds {strange[0]}, which belongs to no earlier site ({MARK} names all files of a "
            "site): name another folder, or empty this one"
        )


MAX_PEERS = 20
ASSETS = ("site.css", "site.js")
Page = tuple[str, str]  # address from the site's folder, content


@dataclass(frozen=True)
class ShownAnswers:
    """Which answers the pages show, since they may be private or large. `records`: of each subset of a run; 0: none.
    `prompts`: makes their prompts (`specbench.report.shown`)."""

    records: int = 0
    prompts: Prompts = no_prompts


NO_ANSWERS = ShownAnswers()


@dataclass(frozen=True)
class BuiltSite:
    """The outcome of a build. `warnings`: the reasons why existing records were not used, or prompts are not shown."""

    num_rows: int
    num_files: int
    warnings: tuple[str, ...]


def build(
    files: Sequence[Path], folder: Path, title: str, answers: ShownAnswers = NO_ANSWERS, levels: Levels | None = None,
    space: Space | None = None,
) -> BuiltSite:  # fmt: skip
    """Writes the site of leaderboard files, and replaces an earlier site. Raises ConfigError for files that are not
    leaderboards or have no rows, and for a folder that holds anything but a site or cannot be written; an earlier site
    is then unchanged. `levels`: of rows that bundles have. `space`: also makes the folder a static Space of the hub."""
    check_replaceable(folder)
    entries = read_entries(files, levels)
    about = {"kind": KIND, "title": title, "rows": len(entries.all)}
    names = []
    shown, problems = answers_of_runs(entries.all, answers)
    kept = "; an earlier site is unchanged"
    with writing(f"--output {folder}", "name another folder", kept), replacing(folder) as building:
        for name, text in (*pages(entries, title, shown), *_space_files(space, title, len(entries.all))):
            path = building / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8", "replace"))
            names.append(name)
        mark = json.dumps({**about, "files": sorted(names)}, ensure_ascii=False, indent=1) + "\n"
        (building / MARK).write_bytes(mark.encode("utf-8", "replace"))
        check_replaceable(folder)
    return BuiltSite(len(entries.all), len(names), (*entries.warnings, *problems))


def _space_files(space: Space | None, title: str, num_rows: int) -> list[Page]:
    about = f"Static pages of {counted(num_rows, 'row')}, made by specbench {__version__} (`specbench site --space`)."
    return [] if space is None else [(README, space.readme(title, about))]


@dataclass(frozen=True)
class AnswersPage:
    """The page of a run's answers. `address`: in the site; it depends on the content of the run's first row only."""

    address: str
    name: str
    run: ShownRun


def answers_of_runs(rows: Sequence[SiteRow], answers: ShownAnswers) -> tuple[dict[int, AnswersPage], list[str]]:
    """Returns the page of the answers of each run whose records are at hand, by the id of the run, and the reasons why
    answers or prompts are not shown."""
    pages: dict[int, AnswersPage] = {}
    problems = []
    of_runs: dict[int, list[SiteRow]] = {}
    for entry in rows if answers.records else ():
        if entry.run is not None:
            of_runs.setdefault(id(entry.run), []).append(entry)
    for key, same in of_runs.items():
        run = same[0].run
        assert run is not None
        of_run = [entry.row for entry in same]
        try:
            own = {(row.key, row.created) for row in run.rows}
            if own.isdisjoint((row.key, row.created) for row in of_run):  # a stranger's file may name any folder
                raise ConfigError(f"{run.path}: has none of the rows that name it as their run: give its own rows")
            shown = shown_run(run, Selection(limit_by_subset=answers.records), answers.prompts, of_run)
        except ConfigError as error:
            problems.append(f"answers are not shown: {error}")
            continue
        tasks = dict.fromkeys(row.task_name for row in of_run)
        name = f"{', '.join(tasks)}: {', '.join(name for name in run.methods if name != 'ar') or 'ar'}"
        pages[key] = AnswersPage(f"answers/{same[0].digest}.html", name, shown)
        problems += shown.problems
    return pages, problems


def pages(entries: Entries, title: str, answers: Mapping[int, AnswersPage]) -> Iterator[Page]:
    """Yields all files of a site, the index last. Pages without content are left out. `answers`: by the id of a run."""
    rows = entries.all
    content: dict[str, dict[str, object]] = {
        "quality_speed.html": {"plots": quality_speed_plots(entries), "frame": FRAME},
        "predicted.html": {"plots": prediction_plots(entries), "frame": FRAME},
    }
    content = {name: values for name, values in content.items() if values["plots"]}
    days = sorted({entry.row.created[:10] for entry in rows})  # without that of the build: it changes no page
    shared = {
        "title": title, "version": __version__, "num_rows": len(rows),
        "dates": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}", "root": "",
        "about": measured_models([entry.row for entry in rows]),
        "tabs": [(name, heading) for name, heading in TABS.items() if name in ("index.html", *content)],
    }  # fmt: skip

    def render(name: str, **values: Any) -> str:
        return environment().get_template(name).render(shared | values)

    for name in ASSETS:
        yield name, asset(name)
    for each in answers.values():
        of_run = [entry.row for entry in rows if id(entry.run) in answers and answers[id(entry.run)] is each]
        about = measured_models(of_run)
        yield each.address, render("run_answers.html", root="../", heading=each.name, run=each.run, about=about)
    for entry, page in row_pages(rows):
        own = answers.get(id(entry.run))
        address = "" if own is None else own.address
        about = measured_models([entry.row])
        yield entry.address, render("row.html", root="../", page=page, about=about, answers_address=address)
    for name, values in content.items():
        yield name, render(name, **values)
    about = measured_models([entry.row for entry in rows], most_named=1)
    yield "index.html", render("index.html", **index_table(rows), about=about, measured=measured_on(entries))


def row_pages(rows: Sequence[SiteRow]) -> Iterator[tuple[SiteRow, dict[str, object]]]:
    """Yields each row with the template values of its page, with up to MAX_PEERS rows that compare with it."""
    groups: dict[str, list[SiteRow]] = {}
    for entry in rows:
        groups.setdefault(entry.group_key, []).append(entry)
    baselines = {(each.group_key, each.row.command): each.row for each in rows if each.row.method_name == "ar"}
    subsets = subset_rows(rows)
    for group in groups.values():
        for place, entry in enumerate(group):
            start = max(0, min(place - MAX_PEERS // 2, len(group) - MAX_PEERS))
            baseline = baselines.get((entry.group_key, entry.row.command))
            peers = group[start : start + MAX_PEERS]
            yield entry, row_page(entry, subsets[entry.digest], peers, baseline)


TABS = {"index.html": "Results", "quality_speed.html": "Quality and speed", "predicted.html": "Predicted and measured"}
MOST_NAMED = 4  # values in a line at the top of the pages
DEMONSTRATION = "embedded demonstration models, which are tiny: their numbers say nothing about other models"


def measured_models(rows: Sequence[Row], most_named: int = MOST_NAMED) -> list[tuple[str, str]]:
    """Returns the lines at the top of a page on the models, devices and engines of rows. `most_named`: if 1, several
    values are only counted, as the page lists them."""
    devices = [f"{row.dtype} on {row.device}" for row in rows]
    if most_named == 1 and len(set(devices)) > 1:
        devices = [row.device for row in rows]
    values: dict[str, list[str]] = {
        "target": [model_name(row.target, row.target_revision) for row in rows],
        "drafter": [model_name(row.drafter, row.drafter_revision) for row in rows if row.drafter],
        "device": devices,
        "engine": [row.engine for row in rows],
    }
    lines = []
    for name, found in values.items():
        different = list(dict.fromkeys(found))
        more = f" and {len(different) - most_named} more" if len(different) > most_named else ""
        if most_named == 1 and more:
            lines.append((name, str(len(different))))
        elif different:
            lines.append((name, ", ".join(different[:most_named]) + more))
    num_embedded = sum(row.target.startswith(EMBEDDED) for row in rows)
    if num_embedded:
        some = "" if num_embedded == len(rows) else f"{num_embedded} of {len(rows)} rows are of "
        lines.append(("models", some + DEMONSTRATION))
    return lines


def measured_on(entries: Entries) -> dict[str, list[dict[str, object]]]:
    """Returns by machine what was measured on it: each target with its dtype, drafters, tasks and number of rows."""
    measured = {}
    for machine, rows in by_machine(entries.all).items():
        pairs: dict[tuple[str, str], list[Row]] = {}
        for row in (entry.row for entry in rows):
            pairs.setdefault((model_name(row.target, row.target_revision), row.dtype), []).append(row)
        measured[machine] = [
            {
                "target": target, "dtype": dtype, "num_rows": len(same),
                "tasks": list(dict.fromkeys(row.task_name for row in same)),
                "drafters": list(dict.fromkeys(model_name(r.drafter, r.drafter_revision) for r in same if r.drafter)),
            }
            for (target, dtype), same in pairs.items()
        ]  # fmt: skip
    return measured
