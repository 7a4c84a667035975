"""Executes the notebook of the documentation, docs/guide/notebook.ipynb, and writes its outputs into it.

The documentation's build (tools/reference.py) makes a page of the notebook as it is.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "guide" / "notebook.ipynb"
PAGE = "guide/notebook.md"
Cell = dict[str, Any]


def read() -> dict[str, Any]:
    """Returns the content of the notebook."""
    content: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return content


def execute(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Runs the code cells in order, in one namespace and in the current folder. Yields all cells with their outputs."""
    names: dict[str, Any] = {}
    number = 0
    for cell in cells:
        if cell["cell_type"] != "code":
            yield cell
            continue
        number += 1
        yield {**cell, "execution_count": number, "outputs": outputs("".join(cell["source"]), names, number)}


def outputs(source: str, names: dict[str, Any], number: int) -> list[Cell]:
    """Returns what Jupyter shows below a cell: the printed text, and the value of a last expression."""
    body = ast.parse(source).body
    last = ast.Expression(body.pop().value) if isinstance(body[-1], ast.Expr) else None  # type: ignore[attr-defined]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), names)
        value = None if last is None else eval(compile(last, f"cell {number}", "eval"), names)
    text = printed.getvalue()
    found: list[Cell] = [{"output_type": "stream", "name": "stdout", "text": lines(text)}] if text else []
    if value is not None:
        result = {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": shown(value)}
        found.append(result)
    return found


def shown(value: Any) -> dict[str, Any]:
    """Returns the forms of a value by their media type."""
    forms: dict[str, Any] = {}
    if hasattr(value, "_repr_html_"):
        forms["text/html"] = lines(value._repr_html_())
    if hasattr(value, "_repr_png_"):
        forms["image/png"] = base64.b64encode(value._repr_png_()).decode()
    return forms or {"text/plain": lines(repr(value))}


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def page() -> str:
    """Returns the notebook as a Markdown page."""
    parts = []
    for cell in read()["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            forms = output.get("data", {"text/plain": output.get("text", [])})
            if "text/html" in forms:
                parts.append(f"<div>\n{''.join(forms['text/html'])}</div>")
            elif "image/png" in forms:
                parts.append(f'<img alt="output of the cell" src="data:image/png;base64,{forms["image/png"]}">')
            else:
                parts.append(f"```text\n{''.join(forms['text/plain'])}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Executes the notebook in an empty folder and writes it."""
    argparse.ArgumentParser(
        prog="python -m tools.notebook", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    content, here = read(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            content["cells"] = list(execute(content["cells"]))
        finally:
            os.chdir(here)
    NOTEBOOK.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
