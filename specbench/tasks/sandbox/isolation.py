"""How programs are isolated on this machine, and the command that does it."""

import os
import shutil
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

Isolation = Literal["namespaces", "bubblewrap", "limits"]

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parents[2]  # the folder that holds the package specbench
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache")
FIRST_USER, NUM_USERS = 60578, 128  # user ids that no system assigns
NOT_ISOLATED = (
    "programs run with limits only, because this machine allows neither user namespaces nor bubblewrap: they can "
    "reach {files}, that user's other processes, and the disk and /dev/shm (the size of one file is limited, their "
    "number is not, nor what programs mount in namespaces if they can create some)"
)
FILES = "the files that their user may read or write"
ALL_FILES = "all files of this machine for reading, the files that their user may write"  # see `_unprivileged`


@cache
def strongest(works: Callable[[Isolation], bool]) -> Isolation:
    """Returns the strongest isolation in which programs run. Warns once if it is incomplete. `works`: runs a test
    program."""
    if works("namespaces"):
        return "namespaces"
    # Bubblewrap cannot run root's programs as another user, and root has no limit on processes.
    if os.getuid() and shutil.which("bwrap") and works("bubblewrap"):
        return "bubblewrap"
    warnings.warn(not_isolated(), UserWarning, stacklevel=2)
    return "limits"


def not_isolated() -> str:
    """Returns the warning about what programs can reach on this machine with limits only."""
    reads_all = os.getuid() == 0 and _unprivileged(FIRST_USER)["reads_all"]
    return NOT_ISOLATED.format(files=ALL_FILES if reads_all else FILES)


def readable_paths() -> list[str]:
    """Returns the paths that a program needs to read: the system's libraries, the interpreter, and this package."""
    interpreter = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    wanted = {*SYSTEM, *interpreter, *(os.path.realpath(path) for path in interpreter), str(PACKAGE)}
    return sorted(path for path in wanted if not path.startswith("/usr/") and os.path.lexists(path))


def settings(isolation: Isolation, folder: str) -> dict[str, Any]:
    """Returns the fields of a job by which the tester isolates itself and the program."""
    user = FIRST_USER + os.getpid() % NUM_USERS if os.getuid() == 0 else None
    inner = None
    if user is not None:
        inner = {"id": 1000, "reads_all": False} if isolation == "namespaces" else _unprivileged(user)
    return {
        "isolation": isolation, "readable": readable_paths(), "outer_user": user, "user": inner, "root": str(ROOT),
        "folder": folder if isolation == "limits" else "/tmp",
    }  # fmt: skip


def _unprivileged(user: int) -> dict[str, Any]:
    """Returns another user for root's programs. It may read all files if it could not read the interpreter
    otherwise."""
    paths = [Path(path).resolve() for path in (sys.executable, sys.prefix, sys.base_prefix, PACKAGE)]
    folders = {parent for path in paths for parent in path.parents}
    return {"id": user, "reads_all": not all(folder.stat().st_mode & 1 for folder in folders)}


def command(isolation: Isolation, report: int, disk_mib: int) -> list[str]:
    """Returns the command line of the tester. `report`: the file descriptor for its report."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from specbench.tasks.sandbox.inside.tester import main; "
        f"del sys.path[0]; main({report})"
    )
    python = [sys.executable, "-I", "-X", "utf8", "-c", code]
    return [*_bubblewrap(disk_mib), *python] if isolation == "bubblewrap" else python


def _bubblewrap(disk_mib: int) -> list[str]:
    binds = [part for path in readable_paths() for part in _bind(path)]
    return [
        shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
        "--dev", "/dev", "--size", str(disk_mib << 20), "--tmpfs", "/tmp", *binds, "--remount-ro", "/dev",
        "--remount-ro", "/", "--chdir", "/tmp",
    ]  # fmt: skip


def _bind(path: str) -> list[str]:
    return ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
