"""Locks on files: of this system, of Windows by a stand-in for its module, and where there are none."""

import errno
import multiprocessing
import os
import sys
import threading
import time
import warnings

import pytest

from specbench.core import files as file_lock
from specbench.core.files import locked


class Windows:
    """What `msvcrt` does with the first byte of a file: one holder at a time, whoever asks."""

    LK_NBLCK, LK_UNLCK = 2, 0

    def __init__(self):
        self.held = set()

    def locking(self, number, mode, num_bytes):
        assert num_bytes == 1 and os.lseek(number, 0, os.SEEK_CUR) == 0
        file = os.fstat(number).st_ino
        if mode == self.LK_UNLCK:
            self.held.remove(file)
        elif file in self.held:
            raise PermissionError(errno.EACCES, "Permission denied")
        else:
            self.held.add(file)


@pytest.fixture(params=["this system", "Windows"])
def system(request, monkeypatch):
    if request.param == "Windows":
        monkeypatch.setattr(file_lock, "fcntl", None)
        monkeypatch.setattr(file_lock, "msvcrt", Windows())
        monkeypatch.setattr(file_lock, "READERS", 0.2)
    elif sys.platform == "win32":
        pytest.skip("the real one is tested by its stand-in's tests")
    return request.param


def test_one_holder_at_a_time_and_free_again_after(system, tmp_path):
    path = tmp_path / "new" / "lock"
    with locked(path, wait=False), pytest.raises(BlockingIOError), locked(path, wait=False):
        pass
    with pytest.raises(KeyboardInterrupt), locked(path, wait=False):
        raise KeyboardInterrupt
    with locked(path, wait=False):
        pass


def test_who_waits_gets_it_when_it_is_free(system, tmp_path):
    order = []

    def second():
        with locked(tmp_path / "lock", wait=True):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(tmp_path / "lock", wait=True):
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_readers_do_not_refuse_each_other_and_a_writer_refuses_them(system, tmp_path):
    done = []

    def read():
        with locked(tmp_path / "lock", wait=False, shared=True):
            done.append(True)

    with locked(tmp_path / "lock", wait=False, shared=True):
        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(0.05)
    thread.join(10)
    assert done == [True]
    with locked(tmp_path / "lock", wait=False), pytest.raises(BlockingIOError):
        read()


def test_a_file_system_without_locks_is_told(monkeypatch, tmp_path):
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    ran = []
    told = pytest.warns(UserWarning, match="file locking unavailable .*: let one process at a time write")
    with told, locked(tmp_path / "lock", wait=True):
        ran.append(True)
    assert ran == [True]


def hold(path, taken, free):
    with locked(path, wait=True):
        taken.set()
        free.wait(30)


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
def test_another_process_is_kept_out_until_it_is_killed(tmp_path):
    context = multiprocessing.get_context("fork")
    taken, free = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(tmp_path / "lock", taken, free))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork beside threads
        holder.start()
    assert taken.wait(30)
    with pytest.raises(BlockingIOError), locked(tmp_path / "lock", wait=False):
        pass
    holder.kill()
    holder.join(30)
    with locked(tmp_path / "lock", wait=False):
        pass
