"""Writes leaderboard files as a site of static pages, and replaces an earlier site as a whole."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.built_in import __version__
from specbench.core import bounded
from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError
from specbench.core.files import is_real_folder, replacing, writing
from specbench.publish.site.answers import asset, environment
from specbench.publish.site.charts import FRAME, prediction_plot, quality_speed_plots
from specbench.publish.site.entries import Entries, SiteRow, index_table, read_entries
from specbench.publish.site.row_page import row_page, subset_rows
from specbench.report.captions import model_name
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
class BuiltSite:
    """The outcome of a build. `warnings`: the reasons why existing records were not used."""

    num_rows: int
    num_files: int
    warnings: tuple[str, ...]


def build(
    files: Sequence[Path], folder: Path, title: str, num_answers: int = 0, levels: Levels | None = None
) -> BuiltSite:
    """Writes the site of leaderboard files, and replaces an earlier site. Raises ConfigError for files that are not
    leaderboards or have no rows, and for a folder that holds anything but a site or cannot be written; an earlier site
    is then unchanged. `num_answers`: how many records a row's page shows; answers may be private, so the default is
    none. `levels`: of rows that bundles have."""
    check_replaceable(folder)
    entries = read_entries(files, levels)
    about = {"kind": KIND, "title": title, "rows": len(entries.all)}
    names = []
    kept = "; an earlier site is unchanged"
    with writing(f"--output {folder}", "name another folder", kept), replacing(folder) as building:
        for name, text in pages(entries, title, num_answers):
            path = building / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8", "replace"))
            names.append(name)
        mark = json.dumps({**about, "files": sorted(names)}, ensure_ascii=False, indent=1) + "\n"
        (building / MARK).write_bytes(mark.encode("utf-8", "replace"))
        check_replaceable(folder)
    return BuiltSite(len(entries.all), len(names), entries.warnings)


def pages(entries: Entries, title: str, num_answers: int = 0) -> Iterator[Page]:
    """Yields all files of a site, the index last. Pages without content are left out."""
    rows = entries.all
    content: dict[str, dict[str, object]] = {
        "quality_speed.html": {"plots": quality_speed_plots(entries), "frame": FRAME},
        "predicted.html": {"plot": prediction_plot(entries), "frame": FRAME},
    }
    content = {name: values for name, values in content.items() if next(iter(values.values()))}
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
    for entry, page in row_pages(rows, num_answers):
        yield entry.address, render("row.html", root="../", page=page, about=measured_models([entry.row]))
    for name, values in content.items():
        yield name, render(name, **values)
    yield "index.html", render("index.html", **index_table(rows))


def row_pages(rows: Sequence[SiteRow], num_answers: int = 0) -> Iterator[tuple[SiteRow, dict[str, object]]]:
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
            yield entry, row_page(entry, subsets[entry.digest], peers, baseline, num_answers)


TABS = {"index.html": "Results", "quality_speed.html": "Quality and speed", "predicted.html": "Predicted and measured"}
MOST_NAMED = 4  # values in a line at the top of the pages
DEMONSTRATION = "embedded demonstration models, which are tiny: their numbers say nothing about other models"


def measured_models(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Returns the lines at the top of a page on the models, devices and engines of rows."""
    values: dict[str, list[str]] = {
        "target": [model_name(row.target, row.target_revision) for row in rows],
        "drafter": [model_name(row.drafter, row.drafter_revision) for row in rows if row.drafter],
        "device": [f"{row.dtype} on {row.device}" for row in rows],
        "engine": [row.engine for row in rows],
    }
    lines = []
    for name, found in values.items():
        different = list(dict.fromkeys(found))
        more = f" and {len(different) - MOST_NAMED} more" if len(different) > MOST_NAMED else ""
        lines += [(name, ", ".join(different[:MOST_NAMED]) + more)] if different else []
    if any(row.target.startswith(EMBEDDED) for row in rows):
        lines.append(("models", DEMONSTRATION))
    return lines
