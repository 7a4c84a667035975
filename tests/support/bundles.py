"""Runs of the embedded family that count as independent, and archives that no bundle would be."""

import gzip
import io
import json
import tarfile
from pathlib import Path

from specbench.publish.bundle.crate import About
from specbench.publish.bundle.make import make_bundle
from specbench.publish.bundle.scrub import Scrubber
from specbench.running import measure
from tests.support.runs import run_into

ABOUT = About("Made for a test")
NOTHING = Scrubber()


def independent_runs(
    folder: Path, number: int, limit: int = 6, methods: str = "sd", temperature: float | None = None
) -> list[Path]:
    """Runs of the same configuration, as processes of their own would have made them; sampled ones have other seeds."""
    made = []
    before = measure.PROCESS
    try:
        for place in range(number):
            measure.PROCESS = f"process-{place}"
            seed = place if temperature else 0
            to = folder / f"run{place}"
            run_into(to, methods, subsets=("en",), limit=limit, seed=seed, temperature=temperature)
            made.append(folder / f"run{place}")
    finally:
        measure.PROCESS = before
    return made


def bundled(runs: list[Path], to: Path, **options: object) -> Path:
    make_bundle(runs, to, ABOUT, scrubber=NOTHING, **options)
    return to


def archive(to: Path, members: list[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.USTAR_FORMAT) -> Path:
    """Any members in an archive."""
    with gzip.open(to, "wb") as packed, tarfile.open(fileobj=packed, mode="w|", format=form) as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return to


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    return found


def files_in(bundle: Path) -> dict[str, bytes]:
    """All files of a bundle by name."""
    with tarfile.open(bundle) as tar:
        return {each.name: tar.extractfile(each).read() for each in tar.getmembers()}  # type: ignore[union-attr]


def rewritten(bundle: Path, files: dict[str, bytes], to: Path) -> Path:
    """A bundle of other files, with metadata and a list of digests that fit."""
    from specbench.core.values import WHOLE, bytes_digest
    from specbench.publish.bundle.crate import MANIFEST, METADATA

    if METADATA in files and not files[METADATA].startswith(b"[["):
        metadata = json.loads(files[METADATA])
        others = [each for each in metadata["@graph"] if each["@type"] != "File"]
        metadata["@graph"] = others + [
            {"@id": name, "@type": "File", "sha256": bytes_digest([text], WHOLE), "contentSize": str(len(text))}
            for name, text in files.items() if name not in (METADATA, MANIFEST)
        ]  # fmt: skip
        files = files | {METADATA: json.dumps(metadata, ensure_ascii=False, indent=1).encode()}
    lines = (f"{bytes_digest([text], WHOLE)}  {name}\n" for name, text in files.items() if name != MANIFEST)
    files = files | {MANIFEST: "".join(lines).encode()}
    return archive(to, [(member(name), content) for name, content in files.items()])
