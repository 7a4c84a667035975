"""RULES.md: board.yaml in words, with the way of a submitter and of a third party."""

import json
from collections.abc import Iterator

from specbench.publish.board.spec import BoardSpec
from specbench.publish.rules import RULES

RULES_FILE = "RULES.md"


def rules_text(board: BoardSpec) -> str:
    """Returns the rules of a board as Markdown."""
    clone = f"git clone {board.address} board" if board.address else "git clone ADDRESS board"
    accepted = "\n".join(f"- {line}" for line in accepted_lines(board))
    detectors = "\n".join(
        f"- *{rule.name}*: {rule.words}" + (" (a mark is refused, too)" if rule.name in board.refused_marks else "")
        for rule in RULES
    )
    return f"""# Rules of {board.title}

Made by `specbench board merge` from `board.yaml`: do not edit it.

## What is accepted

{accepted}

A submission adds files in `bundles/` and touches nothing else. Bundles that are there are neither changed nor deleted:
ask the maintainers. A run that is there already, under whatever name, is refused.

No code of a submission runs. Each row is computed again from its records, and rows that mislead are refused:

{detectors}

The first run of a configuration on a machine stands. Later ones replace nothing: they confirm or contradict it. A row
that is found to be older than `board.yaml` allows leaves the board.

## Submit

```sh
{clone}
cd board && git switch -c my-submission
specbench bundle make MY-RUN --output bundles/NAME.tar.gz --license {board.licence} --author "NAME"
specbench bundle sign bundles/NAME.tar.gz --key ~/.ssh/id_ed25519
specbench board check --base origin/main
git add bundles && git commit -m "Add NAME" && git push origin my-submission
```

Then open a pull request. Its check says what differs from the board, or why it is refused.

## Confirm a row of somebody else

```sh
specbench board rerun ROW
specbench board rerun ROW --with MY-RUN
```

The first command prints what to measure, the second puts your run into `bundles/` and says whether it agrees. Submit it
like any other bundle. `BOARD.md` has the names of the rows.
"""


def accepted_lines(board: BoardSpec) -> Iterator[str]:
    targets = [f"`{each.name}`" + (f" at `{each.revision}`" if each.revision else "") for each in board.targets]
    yield f"targets: {', '.join(targets) or 'any'}"
    tasks = []
    for task in board.tasks:
        subsets = f", all of the subsets {', '.join(task.subsets)}" if task.subsets else ""
        fewest = f", at least {task.examples} examples of each subset" if task.examples > 1 else ""
        tasks.append(f"`{task.task}`{subsets}{fewest}")
    yield f"tasks: {'; '.join(tasks) or 'any'}"
    for key, value in board.conditions.items():
        told = " or ".join(
            f"`{json.dumps(each, ensure_ascii=False)}`" for each in (value if isinstance(value, tuple) else (value,))
        )
        yield f"condition `{key}`: {told}"
    for package, version in board.oldest.items():
        yield f"{package} {version} or newer"
    yield f"licences: {', '.join(board.licences) or 'any, and one is stated'}"
    yield f"texts that models wrote: {board.texts}"
    yield f"a signature by a key in `allowed_signers`: {board.signatures}"
    yield f"at most {board.most_bundles} bundles in a submission, of at most {board.largest_bundle_mb} MB each"
    yield f"a change of the speed-up or τ by more than {board.tolerance:.0%} is pointed at, and not refused"
