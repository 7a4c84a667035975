"""A page of a run's answers, one file that needs no other; and the templates of all pages.

Names and commands are of strangers: a sign in them that nobody sees could turn the order of what stands around it, or
make a name look like another, so pages show its escape. What a model wrote stands as it wrote it, in its own block.
"""

from functools import cache
from importlib.resources import files as package_files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from specbench.core.console import revealed
from specbench.core.files import write_output
from specbench.report.shown import ShownRun


@cache
def environment() -> Environment:
    """The templates of all pages, each compiled once."""
    made = Environment(
        loader=PackageLoader("specbench.publish.site"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=seen,
    )  # fmt: skip
    made.filters["as_written"] = escape  # `seen` leaves what is escaped
    return made


def seen(value: object) -> object:
    """Returns a text with the escapes of signs that nobody sees; all else unchanged, also what is escaped already."""
    return revealed(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def asset(name: str) -> str:
    return (package_files("specbench.publish.site") / "assets" / name).read_text(encoding="utf-8")


def write_page(path: Path, title: str, run: ShownRun) -> None:
    """Writes the page of the shown records, the methods' answers side by side. Raises ConfigError if it cannot be
    written."""
    text = environment().get_template("answers_page.html").render(title=title, run=run, style=asset("site.css"))
    write_output("--page", path, text.encode("utf-8", "replace"))
