"""The command line of a measurement: its docstring is the manual, and every flag says what it is by default."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["Command"]


class Command(argparse.ArgumentParser):
    """A parser whose `--help` prints a script's docstring as it is written, and each flag with its default.

    Args:
        manual: the script's docstring.
    """

    def __init__(self, manual: str | None) -> None:
        super().__init__(description=manual, formatter_class=argparse.RawDescriptionHelpFormatter)

    def add_argument(self, *names: Any, **about: Any) -> argparse.Action:
        """Declare a flag; `help` says "by default …" itself where the default is no value of the flag."""
        action = super().add_argument(*names, **about)
        said = action.help or ""
        if action.default is argparse.SUPPRESS or said == argparse.SUPPRESS or "by default" in said:
            return action
        default = "required" if action.required else f"default: {_text(action.default)}"
        action.help = f"{said} [{default}]".replace("%", "%%")
        return action


def _text(default: object) -> str:
    if default in (None, False):
        return "off"
    return " ".join(map(str, default)) if isinstance(default, list) else str(default)
