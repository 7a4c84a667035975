"""Leaderboard files → a site."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from specbench import __version__
from specbench.fairness.runs import method_name
from specbench.site.entries import Entries, read
from specbench.site.folder import check_replaceable, write_site
from specbench.site.index import Line, choices, columns_of, lines, with_more
from specbench.site.plane import FRAME, planes
from specbench.site.predicted import FRAME as SQUARE
from specbench.site.predicted import predicted
from specbench.site.published import published
from specbench.site.row_page import RowPage, row_page
from specbench.site.siblings import siblings

MOST_BESIDE = 20
ASSETS = ("site.css", "site.js")
Page = tuple[str, str]  # address from the site's folder, content


@dataclass(frozen=True)
class Built:
    """`told`: what a user must know of it."""

    num_rows: int
    num_files: int
    told: tuple[str, ...]


def build(files: Sequence[Path], folder: Path, title: str) -> Built:
    """Raises ConfigError for files that are no leaderboards or have no rows, and a folder that holds other things."""
    check_replaceable(folder)
    entries = read(files)
    num_files = write_site(folder, pages(entries, title), {"title": title, "rows": len(entries.all)})
    return Built(len(entries.all), num_files, entries.told)


def pages(entries: Entries, title: str) -> Iterator[Page]:
    """All files of a site, the index last."""
    render = _renderer(title, entries)
    for name in ASSETS:
        yield name, (package_files("specbench.site") / "assets" / name).read_text(encoding="utf-8")
    found = lines(entries)
    for page in row_pages(entries, found):
        yield page.entry.address, render("row.html", root="../", page=page)
    yield "plane.html", render("plane.html", planes=planes(entries), frame=FRAME)
    yield "predicted.html", render("predicted.html", found=predicted(entries), frame=SQUARE)
    yield "published.html", render("published.html", tables=published(entries))
    yield (
        "index.html",
        render(
            "index.html", columns=columns_of(found), lines=found, filters=choices(found), with_more=with_more(found)
        ),
    )


def row_pages(entries: Entries, found: Sequence[Line]) -> Iterator[RowPage]:
    """The pages of all rows, with up to MOST_BESIDE of the rows that compare with each."""
    groups: dict[str, list[Line]] = {}
    for line in found:
        groups.setdefault(line.entry.group.key, []).append(line)
    baselines = {(e.group.key, e.row.command): e.row for e in entries.all if method_name(e.row) == "ar"}
    families = siblings(entries.all)
    for group in groups.values():
        for place, line in enumerate(group):
            start = max(0, min(place - MOST_BESIDE // 2, len(group) - MOST_BESIDE))
            beside = group[start : start + MOST_BESIDE]
            baseline = baselines.get((line.entry.group.key, line.entry.row.command))
            yield row_page(line, families[line.entry.digest], beside, baseline)


def _renderer(title: str, entries: Entries) -> Callable[..., str]:
    environment = Environment(
        loader=PackageLoader("specbench.site"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.globals = {
        **environment.globals, "title": title, "version": __version__, "num_rows": len(entries.all),
        "dates": _dates(entries), "root": "",
    }  # fmt: skip

    def render(name: str, **values: Any) -> str:
        return environment.get_template(name).render(**values)

    return render


def _dates(entries: Entries) -> str:
    """When the rows were measured: the same rows give the same pages, whenever they are built."""
    days = sorted({entry.row.created[:10] for entry in entries.all})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
