"""A separate root folder, users, processes and network, by Linux's user namespaces; no other program is needed."""

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from specbench.tasks.sandbox.inside.privileges import check, libc

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 1, 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
MOUNT_SETATTR = 442  # the same number on every machine
INNER_USER = 1000
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def enter(readable: Iterable[str], outer_user: int | None, disk_mib: int) -> None:
    """Continues as process 1 of new namespaces. Their root holds only the `readable` paths, read-only, and an empty
    /tmp of `disk_mib`. The calling processes stay outside and wait. `outer_user`: the outside identity of INNER_USER,
    if root calls.

    Raises OSError, in either process, if the machine does not allow it.
    """
    _unshare_mapped(outer_user)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)
    with suppress(OSError):  # no nested namespaces, in which a program could mount more disk space
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    _new_root(sorted(readable), disk_mib)


def _unshare_mapped(outer_user: int | None) -> None:
    """Creates namespaces for a child, whose users this process maps: only an outside process may map more than
    itself."""
    user, group = os.getuid(), os.getgid()
    ready, mapped = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        os.close(ready[1])
        if os.read(ready[0], 1):
            if outer_user is None:
                Path(f"/proc/{child}/setgroups").write_text("deny")
            Path(f"/proc/{child}/uid_map").write_text(_mapping(user, outer_user))
            Path(f"/proc/{child}/gid_map").write_text(_mapping(group, outer_user))
            os.write(mapped[1], b"1")
        os.waitpid(child, 0)
        os._exit(0)
    os.close(mapped[1])
    kinds = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    check(libc.unshare(kinds))
    os.write(ready[1], b"1")
    if not os.read(mapped[0], 1):
        raise PermissionError("users cannot be mapped")


def _mapping(own: int, outer_user: int | None) -> str:
    return f"{INNER_USER} {own} 1\n" if outer_user is None else f"0 {own} 1\n{INNER_USER} {outer_user} 1\n"


def _new_root(readable: list[str], disk_mib: int) -> None:
    """Moves the old root to /old, binds the wanted paths into /new, and detaches the old root."""
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV)
    os.mkdir("/tmp/old")
    os.mkdir("/tmp/new")
    _pivot("/tmp", "/tmp/old")
    _mount("tmpfs", "/new", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    os.mkdir("/new/tmp")
    _mount("tmpfs", "/new/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"size={disk_mib}m,mode=777")
    for path in [*readable, *DEVICES]:  # some may be below /tmp
        _bind(path)
    _protect("/new", 0)
    os.chdir("/new")
    _pivot(".", ".")  # the old root is now stacked on the new one
    check(libc.umount2(b".", MNT_DETACH))
    os.chdir("/tmp")


def _bind(path: str) -> None:
    """Shows a path of the old root at the same place of the new one; a link stays a link."""
    old, new = "/old" + path, "/new" + path
    if os.path.lexists(new) or not os.path.lexists(old):
        return
    os.makedirs(os.path.dirname(new), exist_ok=True)
    if os.path.islink(old):
        os.symlink(os.readlink(old), new)
        return
    if os.path.isdir(old):
        os.mkdir(new)
    else:
        os.close(os.open(new, os.O_CREAT | os.O_WRONLY))
    _mount(old, new, None, MS_BIND | MS_REC)
    _protect(new, AT_RECURSIVE)


def _protect(path: str, flags: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0, 0, 0)
    check(libc.syscall(MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, attributes, 32))


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
    check(libc.mount(*encoded, ctypes.c_ulong(flags), options.encode()))


def _pivot(new: str, old: str) -> None:
    machine = os.uname().machine
    if machine not in PIVOT_ROOT:
        raise OSError(f"the number of pivot_root is not known on {machine}")
    check(libc.syscall(PIVOT_ROOT[machine], new.encode(), old.encode()))
