"""A ranking of languages as a table."""

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.representation import Representation


def representation_table(found: Representation) -> Table:
    """A line per language, the best represented first."""
    caption = (
        f"{found.num_texts} texts of up to {found.max_new_tokens} tokens at temperature {found.temperature:g} behind "
        f"{found.prompt!r}, seed {found.seed}; language by lingua, {found.num_unknown} in none. Short and garbled "
        "texts are often taken for another language."
    )
    table = Table(
        title=Text(f"languages of {found.model}"), caption=Text(caption), caption_justify="left",
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    for header in ("rank", "language", "texts", "share %\n95 % interval"):
        table.add_column(header, justify="right")
    for share in found.languages:
        percent = f"{100 * share.share:.2f} [{100 * share.low:.2f}, {100 * share.high:.2f}]"
        table.add_row(*map(Text, (str(share.rank), share.language, str(share.num_texts), percent)))
    return table
