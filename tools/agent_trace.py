"""The rows of the task `agent_trace`: `python -m tools.agent_trace OUTPUT`.

An agent edits one file in four steps. In each step it is asked for a change, reads the file again, sometimes runs its
tests, and writes the whole file. A row is one step: the transcript up to its answer, and the file as it should be
written. The files and requests below were written for this task; an edit is a text that is replaced wherever it occurs.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from specbench.core.errors import ConfigError
from specbench.core.files import writing


class Step(NamedTuple):
    """A request, the edits that fulfil it, and what the tests printed before it, if they were run."""

    request: str
    edits: Sequence[tuple[str, str]]
    tests: str = ""


class Session(NamedTuple):
    path: str
    content: str
    steps: Sequence[Step]


SESSIONS = (
    Session(
        "stock.py",
        '''class Stock:
    def __init__(self):
        self.items = {}

    def put(self, name, count):
        self.items[name] = self.items.get(name, 0) + count

    def take(self, name, count):
        left = self.items.get(name, 0) - count
        self.items[name] = left
        return left

    def total(self):
        return sum(self.items.values())
''',
        (
            Step("Rename the method put to add.", [("def put(", "def add(")]),
            Step(
                "Make the failing test pass.",
                [("- count\n", '- count\n        if left < 0:\n            raise ValueError(f"not enough {name}")\n')],
                "FAILED test_take_too_many: ValueError was not raised\n3 passed, 1 failed",
            ),
            Step("Rename items to counts everywhere.", [("items", "counts")]),
            Step(
                "Add a method names that returns the sorted names with a count above 0.",
                [(
                    "sum(self.counts.values())\n",
                    "sum(self.counts.values())\n\n    def names(self):\n"
                    "        return sorted(name for name, count in self.counts.items() if count > 0)\n",
                )],
                "4 passed",
            ),
        ),
    ),
    Session(
        "slots.py",
        '''def minutes(text):
    hours, _, rest = text.partition(":")
    return 60 * int(hours) + int(rest)


def overlaps(first, second):
    return first[0] <= second[1] and second[0] <= first[1]


def free_slots(busy, start, end, length):
    free = []
    for begin, stop in sorted(busy):
        if begin - start >= length:
            free.append((start, begin))
        start = max(start, stop)
    if end - start >= length:
        free.append((start, end))
    return free
''',
        (
            Step(
                "Slots that only touch do not overlap: correct this.",
                [("[0] <= second", "[0] < second"), ("[0] <= first", "[0] < first")],
                "FAILED test_touching_slots: assert overlaps((0, 30), (30, 60)) is False\n5 passed, 1 failed",
            ),
            Step("Rename minutes to to_minutes.", [("def minutes(", "def to_minutes(")]),
            Step(
                "Give length a default of 30.",
                [("start, end, length)", "start, end, length=30)")],
                "6 passed",
            ),
            Step(
                "Add a function to_text that turns minutes back into a text such as 09:05.",
                [(
                    "def overlaps",
                    'def to_text(minutes):\n    return f"{minutes // 60:02d}:{minutes % 60:02d}"\n\n\ndef overlaps',
                )],
            ),
        ),
    ),
    Session(
        "grades.py",
        '''LIMITS = {"A": 90, "B": 80, "C": 70, "D": 60}


def mean(points):
    return sum(points) / len(points)


def grade(points):
    value = mean(points)
    for name, limit in LIMITS.items():
        if value >= limit:
            return name
    return "F"


def report(pupils):
    lines = []
    for pupil, points in pupils.items():
        lines.append(f"{pupil}: {mean(points)} {grade(points)}")
    return "\\n".join(lines)
''',
        (
            Step("Print the mean with one digit after the point.", [("{mean(points)}", "{mean(points):.1f}")]),
            Step(
                "Make the failing test pass.",
                [("/ len(points)", "/ len(points) if points else 0.0")],
                "FAILED test_no_points: ZeroDivisionError: division by zero\n7 passed, 1 failed",
            ),
            Step("Sort the report by name.", [("in pupils.items()", "in sorted(pupils.items())")], "8 passed"),
            Step("Rename LIMITS to LOWEST, and limit to lowest.", [("LIMITS", "LOWEST"), ("limit", "lowest")]),
        ),
    ),
    Session(
        "route.py",
        '''from collections import deque


def neighbours(grid, place):
    row, column = place
    for down, right in ((0, 1), (1, 0), (0, -1), (-1, 0)):
        there = row + down, column + right
        if grid.get(there) == ".":
            yield there


def shortest(grid, start, goal):
    waiting = deque([(start, 0)])
    seen = {start}
    while waiting:
        place, steps = waiting.popleft()
        if place == goal:
            return steps
        for there in neighbours(grid, place):
            if there not in seen:
                seen.add(there)
                waiting.append((there, steps + 1))
''',
        (
            Step(
                "Return None explicitly where there is no way.",
                [("steps + 1))\n", "steps + 1))\n    return None\n")],
            ),
            Step("Rename neighbours to open_places.", [("neighbours", "open_places")], "5 passed"),
            Step(
                "A door, shown as +, can be passed too.",
                [('if grid.get(there) == ".":', 'if grid.get(there) in (".", "+"):')],
                "FAILED test_through_a_door: assert None == 4\n5 passed, 1 failed",
            ),
            Step("Rename waiting to queue, and seen to visited.", [("waiting", "queue"), ("seen", "visited")]),
        ),
    ),
    Session(
        "notes.py",
        '''import json
from pathlib import Path


def read_notes(path):
    if not Path(path).exists():
        return []
    return json.loads(Path(path).read_text())


def write_notes(path, notes):
    Path(path).write_text(json.dumps(notes))


def add_note(path, text):
    notes = read_notes(path)
    notes.append({"text": text, "done": False})
    write_notes(path, notes)
    return len(notes)
''',
        (
            Step("Indent the JSON by 2.", [("json.dumps(notes)", "json.dumps(notes, indent=2)")]),
            Step(
                "Read and write UTF-8.",
                [("read_text()", 'read_text(encoding="utf-8")'), ("indent=2))", 'indent=2), encoding="utf-8")')],
                "FAILED test_umlauts: UnicodeDecodeError\n4 passed, 1 failed",
            ),
            Step(
                "Add a function finish that marks the note of an index as done.",
                [(
                    "    return len(notes)\n",
                    "    return len(notes)\n\n\ndef finish(path, index):\n    notes = read_notes(path)\n"
                    '    notes[index]["done"] = True\n    write_notes(path, notes)\n',
                )],
                "5 passed",
            ),
            Step(
                "Rename add_note to add, read_notes to read, and write_notes to write.",
                [("add_note", "add"), ("read_notes", "read"), ("write_notes", "write")],
            ),
        ),
    ),
)  # fmt: skip


def rows(sessions: Sequence[Session] = SESSIONS) -> Iterator[dict[str, object]]:
    """Yields a row for each step. Raises ConfigError for an edit of a text that the file lacks."""
    for session in sessions:
        content, transcript = session.content, ""
        for number, step in enumerate(session.steps, start=1):
            tests = f">>> test\n{step.tests}\n" if step.tests else ""
            transcript += f"# {step.request}\n{tests}>>> read {session.path}\n{content}>>> write {session.path}\n"
            for old, new in step.edits:
                if old not in content:
                    raise ConfigError(f"{session.path}, step {number}: the file has no {old!r}: correct the edit")
                content = content.replace(old, new)
            compile(content, session.path, "exec")
            yield {"id": f"{session.path}-{number}", "transcript": transcript, "file": content}
            transcript += "(written)\n"


def text() -> str:
    """Returns the rows as JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows())


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.agent_trace", description=__doc__)
    parser.add_argument("output", type=Path, help="a JSONL file for `specbench run --task agent_trace --data FILE`")
    output: Path = parser.parse_args().output
    try:
        with writing(output):
            output.write_text(text(), encoding="utf-8")
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
