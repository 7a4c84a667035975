"""Runs on scripted servers."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.integrations.served.models import load_served
from specbench.results.row import Row
from specbench.running.execute import RunOutcome, execute
from specbench.running.request import Request
from specbench.specs.run_options import RunOptions
from tests.support.scripted_server import SD, Script, servers_file

NUM_EXAMPLES = 2
SKIPPING = ((0, 0), (0, 0), (3, 3), (0, 0), (3, 1), (2, 0), (0, 0))
SKIPPING += ((0, 0),) * (len(Script("vllm").answer) - 1 - sum(accepted + 1 for _, accepted in SKIPPING))


def run(
    folder: Path, scripts: Mapping[str, Script], num_examples: int = NUM_EXAMPLES,
    methods: Mapping[str, str] | None = None, **keys: Any,
) -> RunOutcome:  # fmt: skip
    """Runs servers. `methods`: the speculation methods of those that are not declared with a draft model."""
    with servers_file(folder, scripts, **keys) as file:
        content = json.loads(file.read_text())
        for name, method in (methods or {}).items():
            content["servers"][name]["speculation"]["method"] = method
        file.write_text(json.dumps(content))
        request = Request(
            ["mgsm"], [], RunOptions(subsets=("en",), limit=num_examples), "specbench run", output=folder / "run",
            servers=file,
        )  # fmt: skip
        return execute(request, Console(file=io.StringIO()), load_served)


def pair(engine: str, **sd: Any) -> dict[str, Script]:
    return {"ar": Script(engine), "draft": Script(engine, **{"passes": SD, **sd})}


def row_of(outcome: RunOutcome, method: str = "draft") -> Row:
    (row,) = (row for row in outcome.rows if row.method_name == method)
    return row


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run/records.jsonl").read_text().splitlines()]


def run_method(folder: Path, method: str, scripts: Mapping[str, Script]) -> Row:
    """Runs servers the second of which is declared with a speculation method."""
    return row_of(run(folder, scripts, methods={"draft": method}))
