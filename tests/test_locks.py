"""Locks that threads share, before and after a fork."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from ontrain.locks import Lock, in_turn
from tests.threads import at_once

needs_fork = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def in_child(work) -> int:
    """The exit code of a forked child that does the work, and is killed when it hangs."""
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(30)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Holder(threading.Thread):
    """Holds a lock until it is told to let go."""

    def __init__(self, lock: Lock) -> None:
        super().__init__()
        self.lock, self.inside, self.let_go = lock, threading.Event(), threading.Event()
        self.start()
        assert self.inside.wait(30)

    def run(self) -> None:
        with self.lock:
            self.inside.set()
            self.let_go.wait(30)


class TestForks:
    pytestmark = needs_fork

    def test_a_child_finds_a_lock_open_that_another_thread_held(self):
        lock = Lock()
        holder = Holder(lock)
        assert in_child(lambda: lock.__enter__()) == 0
        holder.let_go.set()
        holder.join()

    def test_a_child_keeps_a_lock_that_the_forking_thread_holds(self):
        lock = Lock()

        def work():
            other = threading.Thread(target=lock.__enter__, daemon=True)
            other.start()
            other.join(0.2)
            assert other.is_alive()

        with lock:
            assert in_child(work) == 0

    def test_a_fork_waits_for_work_that_must_not_be_left_half_done(self):
        lock, done = Lock(holds_forks=True), []

        def work():
            with lock:
                inside.set()
                go_on.wait(30)
                done.append(True)

        inside, go_on = threading.Event(), threading.Event()
        worker = threading.Thread(target=work)
        worker.start()
        assert inside.wait(30)
        threading.Timer(0.2, go_on.set).start()

        def child():
            assert done
            with lock:
                pass

        assert in_child(child) == 0
        worker.join()
        with lock:
            pass


def test_the_thread_that_holds_it_may_take_it_again():
    lock = Lock()
    taken = threading.Event()

    def work():
        with lock, lock:
            taken.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert taken.wait(30)


@in_turn("add")
class Sum:
    def __init__(self) -> None:
        self.value = 0

    def add(self, number: int) -> int:
        """Add a number."""
        value = self.value
        for _ in range(50):
            value += 1
        self.value = value - 50 + number
        return self.value


@pytest.mark.usefixtures("switching_often")
def test_methods_of_one_object_take_turns():
    total = Sum()
    at_once(*[lambda: [total.add(1) for _ in range(500)]] * 4)
    assert total.value == 2000
    assert Sum.add.__doc__ == "Add a number."
