"""Memory that no limit counts: a filter of system calls keeps programs from it."""

import ctypes
import errno
import os
from struct import pack

from specbench.sandbox.inside.privileges import check, libc

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x50000 | errno.EPERM  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
LOAD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # of BPF, on 32-bit words
NUMBER, ARCHITECTURE = 0, 4  # where they are in struct seccomp_data
OTHER_ABI = 0x40000000  # from here on x86_64 has the numbers of x32, a second way to each call

# shmget, msgget, semget, memfd_create, memfd_secret
GENERIC = (194, 186, 190, 279, 447)
MACHINES = {
    "x86_64": (0xC000003E, (29, 68, 64, 319, 447)),
    "aarch64": (0xC00000B7, GENERIC),
    "riscv64": (0xC00000F3, GENERIC),
}


class _Program(ctypes.Structure):
    """Linux's struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def forbid_uncounted_memory() -> None:
    """No System V memory, queues or semaphores and no files in memory for this process and its children: they stay
    when they are mapped nowhere, where RLIMIT_AS does not count them. Privileges cannot be won any more either.

    Raises OSError where the machine cannot filter system calls.
    """
    machine = os.uname().machine
    if machine not in MACHINES:
        raise OSError(f"the numbers of system calls are not known on {machine}")
    content = _filter(*MACHINES[machine])
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    program = _Program(len(content) // 8, content)
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))


def _filter(architecture: int, numbers: tuple[int, ...]) -> bytes:
    """Refuses these calls, and all calls of another architecture, which has other numbers (seccomp(2))."""
    tests = [(JUMP_IF_AT_LEAST, OTHER_ABI), *((JUMP_IF_EQUAL, number) for number in numbers)]
    lines = [(LOAD, 0, 0, ARCHITECTURE), (JUMP_IF_EQUAL, 1, 0, architecture), (RETURN, 0, 0, REFUSE)]
    lines.append((LOAD, 0, 0, NUMBER))
    lines += [(kind, len(tests) - place, 0, value) for place, (kind, value) in enumerate(tests)]
    lines += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    return b"".join(pack("HBBI", *line) for line in lines)
