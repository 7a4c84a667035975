"""What a bundle says of itself: RO-Crate metadata, the list of digests, the citation, and a README for a reviewer.

RO-Crate 1.2 (https://w3id.org/ro/crate/1.2) is JSON-LD: a flat list of entities that name each other by "@id".
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from specbench.built_in import __version__
from specbench.core import bounded
from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.core.values import WHOLE, file_digest
from specbench.records.folder import ENVIRONMENT, RunFolder
from specbench.records.folder import FILE as SPECS
from specbench.records.records import RECORDS
from specbench.records.windows import LOAD_RECORDS
from specbench.results.leaderboard import ROWS
from specbench.results.metric_format import number, without_digest
from specbench.results.row import Row
from specbench.results.rows import MEASUREMENTS_FILE, Measurement
from specbench.results.runs import FAIRNESS_FILE
from specbench.tasks.judge import JUDGEMENTS_FILE

METADATA, MANIFEST, README, CITATION, COMMANDS = (
    "ro-crate-metadata.json", "manifest-sha256.txt", "README.md", "CITATION.cff", "commands.txt",
)  # fmt: skip
PROFILE = "https://w3id.org/ro/crate/1.2"
ROOT_PROPERTIES = ("@type", "name", "description", "datePublished", "license")  # which the specification requires
NO_LICENCE = "#no-licence"
DESCRIPTIONS = {
    README: "What the bundle has, and how to verify it and to measure it again", COMMANDS: "The commands of the runs",
    CITATION: "How to cite the bundle", RunFolder.IDENTITY: "Models, machine, versions and settings of a run",
    SPECS: "Tasks and methods of a run, in full", RECORDS: "Every answer: tokens, steps and times",
    MEASUREMENTS_FILE: "What each command measured, with the digests of its data", ROWS: "The rows of a run",
    ENVIRONMENT: "Packages, CPU, GPU and the state of the source", JUDGEMENTS_FILE: "Ratings of a judge",
    LOAD_RECORDS: "Answers to several requests at once", FAIRNESS_FILE: "Fairness of a run",
    MANIFEST: "SHA-256 of every other file",
}  # fmt: skip
FORMATS = {".json": "application/json", ".jsonl": "application/jsonl", ".md": "text/markdown", ".txt": "text/plain",
           ".cff": "application/yaml"}  # fmt: skip


@dataclass(frozen=True)
class Author:
    """`orcid`: the address of an ORCID; None if it is not given."""

    name: str
    orcid: str | None = None

    @classmethod
    def of(cls, text: str) -> "Author":
        """Returns the author of "Jane Doe" or "Jane Doe <0000-0002-1825-0097>". Raises ConfigError."""
        found = re.fullmatch(
            r"([^<>]*[^<>\s])\s*(?:<(?:https://orcid\.org/)?(\d{4}-\d{4}-\d{4}-\d{3}[\dX])>)?", text.strip()
        )
        if found is None:
            raise ConfigError(f"--author {text}: write a name, or NAME <ORCID> such as Jane Doe <0000-0002-1825-0097>")
        return cls(found[1], found[2] and f"https://orcid.org/{found[2]}")


@dataclass(frozen=True)
class About:
    """What only the author of a bundle knows. `licence`: an SPDX identifier or an address; None: not stated. `doi`:
    that under which the bundle will be, or is, published."""

    title: str
    authors: Sequence[Author] = ()
    licence: str | None = None
    doi: str | None = None

    @property
    def licence_id(self) -> str:
        if self.licence is None:
            return NO_LICENCE
        return self.licence if "://" in self.licence else f"https://spdx.org/licenses/{self.licence}"


@dataclass(frozen=True)
class BundledRun:
    """A run as it stands in the bundle. `files`: names within the bundle. `environments`: what measured it, as
    `models.machine.details` says it."""

    name: str
    files: Sequence[str]
    rows: Sequence[Row]
    identity: Mapping[str, Any]
    measurements: Sequence[Measurement]
    environments: Sequence[Mapping[str, Any]]

    @property
    def folder(self) -> str:
        return f"runs/{self.name}/"

    @property
    def measured_at(self) -> str:
        return max(row.created for row in self.rows)


def metadata(about: About, runs: Sequence[BundledRun], folder: Path, names: Sequence[str]) -> str:
    """Returns the content of ro-crate-metadata.json. `names`: all other files of the bundle, which are in `folder`."""
    files = [_file(folder, name) for name in names]
    of_runs = {name for run in runs for name in run.files}
    authors = [
        {"@id": author.orcid or f"#author-{place}", "@type": "Person", "name": author.name}
        for place, author in enumerate(about.authors, start=1)
    ]
    licence: dict[str, Any] = {"@id": about.licence_id, "@type": "CreativeWork", "name": about.licence or "No licence"}
    if about.licence is None:
        licence["description"] = "The author has stated no licence: ask before the content is used further."
    software = {"@id": "#specbench", "@type": "SoftwareApplication", "name": "specbench", "version": __version__}
    root: dict[str, Any] = {
        "@id": "./", "@type": "Dataset", "name": about.title, "description": summary(runs),
        "datePublished": max(run.measured_at for run in runs)[:10], "license": {"@id": about.licence_id},
        "hasPart": [*({"@id": name} for name in names if name not in of_runs), *({"@id": run.folder} for run in runs)],
    }  # fmt: skip
    if authors:
        root["author"] = [{"@id": each["@id"]} for each in authors]
    if about.doi:
        root["identifier"] = f"https://doi.org/{about.doi}"
    entities = [
        {"@id": METADATA, "@type": "CreativeWork", "about": {"@id": "./"}, "conformsTo": {"@id": PROFILE}},
        root, licence, *authors, software, *files, *(each for run in runs for each in _entities(run)),
    ]  # fmt: skip
    return _json({"@context": f"{PROFILE}/context", "@graph": entities})


def _file(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    return {
        "@id": name, "@type": "File", "name": path.name, "description": DESCRIPTIONS[path.name],
        "encodingFormat": FORMATS[path.suffix], "contentSize": str(path.stat().st_size),
        "sha256": file_digest(path, WHOLE),
    }  # fmt: skip


def _entities(run: BundledRun) -> list[dict[str, Any]]:
    """Returns a run, its commands as actions, and its data with their digests."""
    found: list[dict[str, Any]] = [{
        "@id": run.folder, "@type": "Dataset", "name": run.name, "hasPart": [{"@id": name} for name in run.files],
        "description": f"{counted(len(run.rows), 'row')} on {run.rows[0].device}, measured until {run.measured_at}",
    }]  # fmt: skip
    for place, measurement in enumerate(run.measurements, start=1):
        used = []
        for part in measurement.subsets:
            used.append({"@id": f"#{quote(f'data-{run.name}-{place}-{part.task}-{part.subset}')}"})
            found.append({
                **used[-1], "@type": "Dataset", "name": f"{part.task} {part.subset}",
                "description": f"{part.told_examples}: {part.source} {part.location}",
                **({"version": part.revision} if part.revision else {}),
            })  # fmt: skip
        found.append({
            "@id": f"#command-{run.name}-{place}", "@type": "CreateAction", "name": f"Measured {run.name}",
            "description": measurement.command, "instrument": {"@id": "#specbench"}, "object": used,
            "result": {"@id": run.folder},
        })  # fmt: skip
    return found


def problems_of(folder: Path) -> list[str]:
    """Returns what the metadata of an unpacked bundle lack of what RO-Crate requires, one line each."""
    try:
        content = bounded.read_json(folder / METADATA, "ask for a whole bundle")
    except ConfigError:
        return [f"{METADATA}: is absent or not JSON"]
    graph = content.get("@graph") if isinstance(content, dict) else None
    if not isinstance(graph, list) or not all(isinstance(each, dict) and "@id" in each for each in graph):
        return [f"{METADATA}: has no @graph of entities with @id"]
    by_id = {str(each["@id"]): each for each in graph}
    descriptor, root = by_id.get(METADATA, {}), by_id.get("./", {})
    conforms = descriptor.get("conformsTo")
    found = [f"{METADATA}: the root lacks {name}" for name in ROOT_PROPERTIES if not root.get(name)]
    if not isinstance(conforms, dict) or not str(conforms.get("@id")).startswith("https://w3id.org/ro/crate/1."):
        found.append(f"{METADATA}: its descriptor conforms to no RO-Crate 1")
    if descriptor.get("about") != {"@id": "./"}:
        found.append(f"{METADATA}: its descriptor is not about the root")
    return found + _digest_problems(folder, by_id)


def _digest_problems(folder: Path, by_id: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a line for each file whose digest or size in the metadata is not that of the list of digests, which is
    compared with the files themselves."""
    try:
        lines = bounded.read_text(folder / MANIFEST, "ask for a whole bundle").splitlines()
    except ConfigError:
        return []
    known = {name: digest for digest, _, name in (line.partition("  ") for line in lines) if name != METADATA}
    stated = {name: each for name, each in by_id.items() if each.get("@type") == "File"}
    found = [f"{METADATA}: has no file {name!r:.100}" for name in known if name not in stated]
    for name, entity in stated.items():
        if name not in known or entity.get("sha256") != known[name]:
            found.append(f"{METADATA}: the digest of {name!r:.100} is not the one of {MANIFEST}")
        elif (folder / name).is_file() and entity.get("contentSize") != str((folder / name).stat().st_size):
            found.append(f"{METADATA}: the size of {name!r:.100} is not that of the file")
    return found


def stated_in(folder: Path) -> tuple[str | None, str | None]:
    """Returns the licence and the identifier that the metadata of an unpacked bundle state."""
    try:
        graph = bounded.read_mapping(folder / METADATA, "ask for a whole bundle")["@graph"]
        root = next(each for each in graph if each["@id"] == "./")  # type: ignore[attr-defined]
        licence = root["license"]["@id"]
        identifier = root.get("identifier")
        return None if licence == NO_LICENCE else str(licence), None if identifier is None else str(identifier)
    except (ConfigError, KeyError, TypeError, StopIteration):
        return None, None


def manifest(folder: Path, names: Sequence[str]) -> str:
    """Returns the digests of files as `sha256sum` writes and checks them."""
    return "".join(f"{file_digest(folder / name, WHOLE)}  {name}\n" for name in names)


def citation(about: About, date: str) -> str:
    """Returns a CITATION.cff 1.2. Every JSON text is a YAML text."""
    lines = ["cff-version: 1.2.0", "type: dataset", 'message: "If you use these measurements, please cite them."',
             f"title: {_json(about.title).strip()}", "authors:"]  # fmt: skip
    for author in about.authors:
        lines.append(f"  - name: {_json(author.name).strip()}")
        lines += [f"    website: {_json(author.orcid).strip()}"] if author.orcid else []
    lines.append(f"date-released: '{date}'")
    if about.licence is not None:
        lines.append(f"{'license-url' if '://' in about.licence else 'license'}: {_json(about.licence).strip()}")
    lines += [f"doi: {_json(about.doi).strip()}"] if about.doi else []
    return "\n".join(lines) + "\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def summary(runs: Sequence[BundledRun]) -> str:
    rows = [row for run in runs for row in run.rows]
    tasks, methods = (
        list(dict.fromkeys(each)) for each in zip(*((r.task_name, r.method_name) for r in rows), strict=True)
    )
    return (
        f"{counted(len(rows), 'row')} of {counted(len(runs), 'run')} of specbench: {', '.join(methods)} on "
        f"{', '.join(tasks)}, with the records that they are computed from."
    )


def commands(runs: Sequence[BundledRun]) -> str:
    """Returns the commands of all runs, each below a comment that names its run, when it ended and its commit."""
    parts = []
    for run in runs:
        environment = run.identity.get("environment")
        commit = environment.get("commit") if isinstance(environment, Mapping) else None
        parts.append(f"# {run.name}: until {run.measured_at}, specbench at {commit or 'an unknown commit'}")
        parts += [" ".join(each.command.splitlines()) for each in run.measurements]
    return "\n".join(parts) + "\n"


def readme(about: About, runs: Sequence[BundledRun], file: str, has_texts: bool) -> str:
    """Returns the guide for a reviewer. `file`: the name of the bundle."""
    rows = [row for run in runs for row in run.rows]
    known = [environment for run in runs for environment in run.environments]
    named = [each for row in rows for each in (("target", row.target, row.target_revision),
                                               ("drafter", row.drafter, row.drafter_revision))]  # fmt: skip
    models = dict.fromkeys(
        f"{role} `{name}`" + (f" at revision `{revision}`" if revision else "")
        for role, name, revision in named
        if name
    )
    data = dict.fromkeys(
        f"{part.task} {part.subset}: {part.told_examples}: {part.source} `{part.location}`"
        + (f", digest or commit `{part.revision}`" if part.revision else "")
        for run in runs for each in run.measurements for part in each.subsets
    )  # fmt: skip
    versions = ", ".join(f"{name} {version}" for name, version in rows[0].versions.items() if version)
    table = _table(rows)
    left_out = "" if has_texts else WITHOUT_TEXTS
    licence = f"Licence: {about.licence}." if about.licence else "No licence is stated: ask before you use it further."
    authors = ", ".join(each.name for each in about.authors)
    cites = f"\nAuthors: {authors}; {CITATION} says how to cite.\n" if authors else ""
    files = [f"| `{name}` | {text} |" for name, text in DESCRIPTIONS.items() if _is_there(name, runs, about)]
    packages = "in `runs/*/environment.json`" if known else "not recorded by the version that measured"
    return f"""# {about.title}

{summary(runs)}
{left_out}
## Verify it (minutes, no model, no network, no GPU)

```sh
pip install specbench-lm
specbench bundle verify {file}
```

This unpacks the archive into a temporary folder, compares the digest of every file, computes every row again from its
records, and prints what it found as the checklist of an artefact review. Without specbench, `sha256sum -c {MANIFEST}`
in the unpacked folder compares the digests. A signature, if there is one, is the file `{file}.sig` beside the archive:
`specbench bundle verify {file} --signers ALLOWED_SIGNERS` says whose it is.

## Measure it again

{COMMANDS} has the commands. They need the models and the data:

{chr(10).join(f"- {each}" for each in models)}
{chr(10).join(f"- {each}" for each in data)}

They were measured on {", ".join(dict.fromkeys(row.device for row in rows))}, with {versions}. All packages, the CPU's
flags, the driver and the state of the source are {packages}. A bundle of your own run is compared with this one by
`specbench bundle verify {file} YOURS`.

## The rows

{TABLE_HEAD}
{chr(10).join(table)}

Intervals, conditions and warnings are in `runs/*/leaderboard.json`.

## Files

| file | has |
|---|---|
{chr(10).join(files)}

## Licence and citation

{licence}
{cites}"""


TABLE_HEAD = "| task | subset | method | speed-up | τ | n |\n|---|---|---|---|---|---|"


def _table(rows: Sequence[Row]) -> list[str]:
    return [
        f"| {without_digest(row.task)} | {row.subset} | {row.shown_method} | {number(row.metric('speedup'), 2)} | "
        f"{number(row.metric('mean_acceptance_length'), 2)} | {row.n} |" for row in rows if not row.level
    ]  # fmt: skip


def unlike_runs(folder: Path, rows: Sequence[Row], measurements: Sequence[Measurement]) -> list[str]:
    """Returns a line for each text of an unpacked bundle that tells people something else than its runs: the commands,
    and the table of the README. Absent files are told elsewhere."""
    found = []
    with suppress(ConfigError):
        lines = bounded.read_text(folder / COMMANDS, "ask for a whole bundle").splitlines()
        stated = [line for line in lines if line and not line.startswith("#")]
        if stated != [" ".join(each.command.splitlines()) for each in measurements]:
            found.append(f"{COMMANDS}: has other commands than {MEASUREMENTS_FILE} of the runs")
    with suppress(ConfigError):
        _, head, below = bounded.read_text(folder / README, "ask for a whole bundle").partition(f"{TABLE_HEAD}\n")
        if head and below.partition("\n\n")[0].splitlines() != _table(rows):
            found.append(f"{README}: its table is not that of the rows ({ROWS})")
    return found


WITHOUT_TEXTS = """
Texts, references and token ids are left out: digests stand in their place. Rows are therefore *stated*: what depends on
the content of answers cannot be made again.
"""


def _is_there(name: str, runs: Sequence[BundledRun], about: About) -> bool:
    if name == CITATION:
        return bool(about.authors)
    of_runs = {each.rpartition("/")[2] for run in runs for each in run.files}
    return name in (README, COMMANDS, MANIFEST) or name in of_runs
