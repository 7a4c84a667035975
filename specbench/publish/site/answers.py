"""A page of a run's answers, one file that needs no other."""

from functools import cache
from importlib.resources import files as package_files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from specbench.core.files import write_output
from specbench.report.shown import ShownRun


@cache
def environment() -> Environment:
    """The templates of all pages, each compiled once."""
    return Environment(
        loader=PackageLoader("specbench.publish.site"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip


def asset(name: str) -> str:
    return (package_files("specbench.publish.site") / "assets" / name).read_text(encoding="utf-8")


def write_page(path: Path, title: str, run: ShownRun) -> None:
    """Writes the page of the shown records, the methods' answers side by side. Raises ConfigError if it cannot be
    written."""
    text = environment().get_template("answers_page.html").render(title=title, run=run, style=asset("site.css"))
    write_output("--page", path, text.encode("utf-8", "replace"))
