"""Isolation by the Linux kernel: namespaces with their own root folder, users, and a filter of system calls."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from struct import pack

from specbench.tasks.sandbox.inside import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 4, 8, 47, 2
CAP_DAC_READ_SEARCH = 2
CAPABILITY_VERSION = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> int:
    """Returns the result of a system call. Raises OSError if it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def end_after(seconds: float) -> None:
    """Ends this process and its namespace after some time, in case no other process does."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.setitimer(signal.ITIMER_REAL, seconds)


def confined(user: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the options of Popen that start a process which cannot start others, as another user unless `user` is
    None. user: {"id": number, "reads_all": whether it may read all files}; it must if only root may read the
    interpreter."""
    as_user = {} if user is None else {"user": user["id"], "group": user["id"], "extra_groups": []}
    reads_all = user is not None and user["reads_all"]
    if reads_all:
        check(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))

    def prepare() -> None:
        if reads_all:
            header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
            one = 1 << CAP_DAC_READ_SEARCH
            check(libc.capset(header, (ctypes.c_uint32 * 6)(one, one, one, 0, 0, 0)))
            check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH, 0, 0))
        _install(_thread_filter(COLUMNS[os.uname().machine][1]))

    return {**as_user, "preexec_fn": prepare}


PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x50000 | errno.EPERM  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
ABSENT = 0x50000 | errno.ENOSYS
LOAD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, JUMP_IF_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # of BPF, on 32-bit words
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
OTHER_ABI = 0x40000000  # from here on x86_64 has the numbers of x32, which reach the same calls
AF_UNIX, F_SETPIPE_SZ = 1, 1031

# Name: (number on x86_64, number on aarch64 and riscv64).
REFUSED = {
    # Memory that stays allocated without a mapping: System V IPC, files in memory, pages lent to a pipe.
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "vmsplice": (278, 75),
    # Sockets of every family (asyncio only needs socketpair), names and larger buffers for the sockets of a pair, and
    # files that are sent but not received, which RLIMIT_NOFILE does not count.
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "setsockopt": (54, 208),
    "sendmsg": (46, 211), "sendmmsg": (307, 269),
    "io_uring_setup": (425, 425),  # performs all of the above calls without the filter
}  # fmt: skip
SOCKETPAIR, FCNTL = (53, 199), (72, 25)
FORK, VFORK, CLONE, CLONE3, CLONE_THREAD = 57, 58, (56, 220), 435, 0x10000  # only x86_64 has the first two
COLUMNS = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "riscv64": (0xC00000F3, 1)}


class _Program(ctypes.Structure):
    """Linux's struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def filter_system_calls() -> None:
    """Hides the memory and the open files of this process from others of its user. Refuses the calls above to it and
    its children for good, with EPERM. They cannot gain privileges either. The kernel's default buffers of open pipes
    and sockets are not counted. Raises OSError if the machine cannot filter system calls."""
    check(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
    machine = os.uname().machine
    if machine not in COLUMNS:
        raise OSError(f"the numbers of system calls are not known on {machine}")
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _install(_filter(*COLUMNS[machine]))


def _install(content: bytes) -> None:
    """Adds a filter to this process and its children for good."""
    program = _Program(len(content) // 8, content)
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))


def _thread_filter(column: int) -> bytes:
    """Returns a filter for a process that may start threads, and no process. It denies that there is clone3, whose
    flags a filter cannot read; the C library then calls clone."""
    lines: list[tuple[int, int, int, int]] = [(LOAD, 0, 0, NUMBER)]
    for number in (FORK, VFORK) if column == 0 else ():
        lines += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    lines += [(JUMP_IF_EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, ABSENT)]
    lines += [(JUMP_IF_EQUAL, 0, 3, CLONE[column]), (LOAD, 0, 0, ARGUMENTS), (JUMP_IF_SET, 1, 0, CLONE_THREAD)]
    lines += [(RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    return b"".join(pack("HBBI", *line) for line in lines)


def _filter(architecture: int, column: int) -> bytes:
    """Returns the filter program. It also refuses all calls by the numbers of another architecture (seccomp(2))."""
    tests = [(JUMP_IF_AT_LEAST, OTHER_ABI), *((JUMP_IF_EQUAL, numbers[column]) for numbers in REFUSED.values())]
    lines = [(LOAD, 0, 0, ARCHITECTURE), (JUMP_IF_EQUAL, 1, 0, architecture), (RETURN, 0, 0, REFUSE)]
    for kind, value in tests:
        lines += [(LOAD, 0, 0, NUMBER), (kind, 0, 1, value), (RETURN, 0, 0, REFUSE)]
    lines += _on_argument(SOCKETPAIR[column], 0, AF_UNIX, equal=ALLOW, other=REFUSE)
    lines += _on_argument(FCNTL[column], 1, F_SETPIPE_SZ, equal=REFUSE, other=ALLOW)
    lines.append((RETURN, 0, 0, ALLOW))
    return b"".join(pack("HBBI", *line) for line in lines)


def _on_argument(number: int, place: int, value: int, *, equal: int, other: int) -> list[tuple[int, int, int, int]]:
    """Returns the filter of one call by the lower 32 bits of an argument; the kernel reads no others."""
    return [
        (LOAD, 0, 0, NUMBER), (JUMP_IF_EQUAL, 0, 4, number), (LOAD, 0, 0, ARGUMENTS + 8 * place),
        (JUMP_IF_EQUAL, 0, 1, value), (RETURN, 0, 0, equal), (RETURN, 0, 0, other),
    ]  # fmt: skip


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


def enter_namespaces(readable: Iterable[str], outer_user: int | None, disk_mib: int) -> None:
    """Continues as process 1 of new namespaces. Their root holds only the `readable` paths, read-only, and an empty
    /tmp of `disk_mib`. The calling processes stay outside and wait. `outer_user`: the outside id of INNER_USER, if root
    calls. Raises OSError, in either process, if the machine does not allow it."""
    _unshare_mapped(outer_user)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)
    with suppress(OSError):  # a program could mount more disk space in nested namespaces
        _write("/proc/sys/user/max_user_namespaces", "0")
    _new_root(sorted(readable), disk_mib)


def _unshare_mapped(outer_user: int | None) -> None:
    """Continues in a child with new namespaces. This process maps the child's users, because only a process outside may
    map other users than its own."""
    user, group = os.getuid(), os.getgid()
    ready, mapped = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        os.close(ready[1])
        if os.read(ready[0], 1):
            if outer_user is None:
                _write(f"/proc/{child}/setgroups", "deny")
            _write(f"/proc/{child}/uid_map", _mapping(user, outer_user))
            _write(f"/proc/{child}/gid_map", _mapping(group, outer_user))
            os.write(mapped[1], b"1")
        os.waitpid(child, 0)
        os._exit(0)
    os.close(mapped[1])
    kinds = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    check(libc.unshare(kinds))
    os.write(ready[1], b"1")
    if not os.read(mapped[0], 1):
        raise PermissionError("users cannot be mapped")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:  # pathlib would take an eighth of the time in which this process starts
        file.write(text)


def _mapping(own: int, outer_user: int | None) -> str:
    return f"{INNER_USER} {own} 1\n" if outer_user is None else f"0 {own} 1\n{INNER_USER} {outer_user} 1\n"


def _new_root(readable: list[str], disk_mib: int) -> None:
    """Moves the old root to /old, binds the readable paths into /new, and detaches the old root."""
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
    """Makes a path of the old root visible at the same place in the new root; a link stays a link."""
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
