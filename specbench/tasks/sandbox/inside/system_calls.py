"""A filter of system calls: no sockets except pairs within a process, and no memory that RLIMIT_AS does not count."""

import ctypes
import errno
import os
from struct import pack

from specbench.tasks.sandbox.inside.privileges import check, libc

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x50000 | errno.EPERM  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
LOAD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # of BPF, on 32-bit words
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
OTHER_ABI = 0x40000000  # from here on x86_64 has the numbers of x32, which reach the same calls
AF_UNIX, F_SETPIPE_SZ = 1, 1031

# Name: (number on x86_64, number on aarch64 and riscv64).
REFUSED = {
    # Memory that stays allocated without a mapping: System V's, files in memory, pages that are lent to a pipe.
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "vmsplice": (278, 75),
    # Sockets of every family (socketpair makes what asyncio needs), names for those of a pair, larger buffers for
    # them, and open files that are sent to nobody, which RLIMIT_NOFILE does not count.
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "setsockopt": (54, 208),
    "sendmsg": (46, 211), "sendmmsg": (307, 269),
    "io_uring_setup": (425, 425),  # performs all of the above calls without the filter
}  # fmt: skip
SOCKETPAIR, FCNTL = (53, 199), (72, 25)
COLUMNS = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "riscv64": (0xC00000F3, 1)}


class _Program(ctypes.Structure):
    """Linux's struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def filter_system_calls() -> None:
    """Refuses the calls above to this process and its children, permanently, with EPERM. They cannot gain privileges
    either. A buffer of the kernel's default size for each open pipe and socket stays uncounted.

    Raises OSError if the machine cannot filter system calls.
    """
    machine = os.uname().machine
    if machine not in COLUMNS:
        raise OSError(f"the numbers of system calls are not known on {machine}")
    content = _filter(*COLUMNS[machine])
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    program = _Program(len(content) // 8, content)
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))


def _filter(architecture: int, column: int) -> bytes:
    """Returns the filter program. It also refuses all calls of another architecture, whose numbers differ
    (seccomp(2))."""
    tests = [(JUMP_IF_AT_LEAST, OTHER_ABI), *((JUMP_IF_EQUAL, numbers[column]) for numbers in REFUSED.values())]
    lines = [(LOAD, 0, 0, ARCHITECTURE), (JUMP_IF_EQUAL, 1, 0, architecture), (RETURN, 0, 0, REFUSE)]
    for kind, value in tests:
        lines += [(LOAD, 0, 0, NUMBER), (kind, 0, 1, value), (RETURN, 0, 0, REFUSE)]
    lines += _on_argument(SOCKETPAIR[column], 0, AF_UNIX, equal=ALLOW, other=REFUSE)
    lines += _on_argument(FCNTL[column], 1, F_SETPIPE_SZ, equal=REFUSE, other=ALLOW)
    lines.append((RETURN, 0, 0, ALLOW))
    return b"".join(pack("HBBI", *line) for line in lines)


def _on_argument(number: int, place: int, value: int, *, equal: int, other: int) -> list[tuple[int, int, int, int]]:
    """Returns the filter of one call by the lower 32 bits of an argument, which are all that the kernel reads."""
    return [
        (LOAD, 0, 0, NUMBER), (JUMP_IF_EQUAL, 0, 4, number), (LOAD, 0, 0, ARGUMENTS + 8 * place),
        (JUMP_IF_EQUAL, 0, 1, value), (RETURN, 0, 0, equal), (RETURN, 0, 0, other),
    ]  # fmt: skip
