"""Threads for tests of what they share."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["at_once"]


def at_once(*works: Callable[[], object]) -> None:
    """Run functions in a thread each; raise the first error."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (raised again below)
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
