"""Starts llama.cpp servers of the embedded pair, and measures them.

    python -m tools.llama_cpp servers.yaml     starts the servers and writes the file for `specbench run --servers`
    python -m tools.llama_cpp --write          measures them and writes docs/measured/servers.md and its picture

Without --write the servers run until Ctrl-C. The measurement takes about ten minutes on two idle cores; the same
command continues with the runs in runs/servers. Needs the extra [llama-cpp].
"""

import argparse
import shlex
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.llama_cpp.server import embedded_serving
from tools.servers_page import device_name, loads_part, measured, single_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measured" / "servers.md"
WORK = Path("runs") / "servers"
NUM_DRAFT_TOKENS = 5
LEVELS = (1, 2, 4)
TOKENIZER = "embedded:target"
TEXT = """# Servers of llama.cpp

`python -m tools.llama_cpp --write` writes this page: the embedded pair on three servers of llama.cpp, without
speculation (`ar`), with the draft model (`draft`) and with copies of earlier n-grams (`ngram`), each with one thread,
all in one process on {device}. The models are tiny, so the figures say how the measurement works
and nothing about large models. [Measure servers](../guide/servers.md) explains the columns.

```bash
python -m tools.llama_cpp servers.yaml
{command}
```

## One request at a time

The same pair is measured in this process, too (`sd`, `pld`), with its own AR. Compare τ and the verdict; the speeds are
those of two engines. A † marks a speed-up that should not be trusted yet: its interval is wide, or speeds changed
during the run.

{single}

## Several requests at once

![Tokens/s of all requests against tokens/s of one, a point for each number of requests]({picture})

{loads}
"""


def run_words(limit: int, *more: str) -> list[str]:
    """Returns the words of a `specbench run`."""
    return ["run", "--task", "mgsm,humaneval", "--subset", "en,sw,th,default", "--limit", str(limit), *more]


def page(work: Path, limit: int, load: Mapping[str, Any], picture: Path) -> str:
    """Measures below a folder, and draws the picture of the loads. Returns the page."""
    work.mkdir(parents=True, exist_ok=True)
    file = work / "servers.yaml"
    serving = embedded_serving(NUM_DRAFT_TOKENS, max(LEVELS))
    with serving.servers() as addresses:
        file.write_text(serving.file(addresses, TOKENIZER, device_name(), load=load), encoding="utf-8")
        served = measured(run_words(limit, "--servers", str(file)), work / "served")
    local = measured(run_words(limit, "--method", "sd,pld", "--threads", "1"), work / "in-process")
    return TEXT.format(
        device=device_name(),
        command=shlex.join(["specbench", *run_words(limit, "--servers", "servers.yaml")]),
        single=single_table(served.rows, local.rows),
        picture=picture.name,
        loads=loads_part(served.rows, picture),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves until Ctrl-C, or measures and writes the page."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.llama_cpp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, help="file that is written for `specbench run --servers`")
    parser.add_argument("--write", action="store_true", help="measure, and write the page")
    given = parser.parse_args(arguments)
    if given.write == (given.file is not None):
        parser.error("give the name of a file, or --write")
    if given.write:
        PAGE.write_text(
            page(WORK, 8, {"concurrency": list(LEVELS), "windows": 10}, PAGE.with_suffix(".png")), encoding="utf-8"
        )
        return
    serving = embedded_serving(NUM_DRAFT_TOKENS, max(LEVELS))
    with serving.servers() as addresses:
        given.file.write_text(serving.file(addresses, TOKENIZER, device_name()), encoding="utf-8")
        print(f"{given.file}: three servers until Ctrl-C", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("ended")


if __name__ == "__main__":
    main()
