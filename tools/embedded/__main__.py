"""Builds the members of the embedded family, and writes the rows of their world that the package ships.

`python -m tools.embedded [--smoke] [--output DIR] [--only MEMBER]`.

Without --output the weights go into the package: members that exist at their version are kept, the others are built.
With --output DIR all members are built in DIR. The build is seeded and runs on one CPU thread for two hours, a quarter
of an hour more for the drafters that are trained from others, and an hour and a quarter for the draft heads. The log
counts processor seconds.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
import transformers

from specbench.core.environment import builtin_dir
from specbench.embedded import WEIGHTS, WORLD_ROWS, read_manifest
from tools.embedded.build import build_members, say
from tools.embedded.recipes import MEMBERS
from tools.embedded.rows import write_samples, write_shipped_rows


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.embedded", description=__doc__)
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="a hundredth of the data and two steps of every stage, into a temporary folder",
    )
    parser.add_argument("--output", type=Path, help="make everything anew in this folder")
    parser.add_argument("--only", choices=[*MEMBERS], help="make one member")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    output = arguments.output or (Path(tempfile.mkdtemp(prefix="specbench-demo-")) if arguments.smoke else WEIGHTS)
    names = [arguments.only] if arguments.only else [*MEMBERS]
    if output == WEIGHTS:
        shipped = read_manifest()
        names = [name for name in names if name not in shipped or shipped[name]["version"] != MEMBERS[name].version]
    write_samples(builtin_dir("tasks") / "samples" if output == WEIGHTS else output / "samples")
    if not arguments.smoke:
        write_shipped_rows(WORLD_ROWS if output == WEIGHTS else output / "rows")
    say(f"building {', '.join(names) or 'nothing: every member is there at its version'} in {output}")
    log = build_members(output, names, arguments.smoke)
    say(json.dumps(log.get("figures", {}), indent=2))


if __name__ == "__main__":
    main()
