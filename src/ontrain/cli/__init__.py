"""The command `ontrain`. It holds no logic: each command calls a function that Python users have too."""

from ontrain.cli.app import main

__all__ = ["main"]
