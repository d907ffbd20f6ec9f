"""Ends a script whose packages are not installed, with the command that installs them; looks only, imports nothing."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def need(*packages: str) -> None:
    """Go on if all these can be imported; otherwise say how to install them, and exit with 2."""
    missing = [package for package in packages if find_spec(package) is None]
    if not missing:
        return
    clone = Path(__file__).resolve().parents[2]
    script = Path(sys.argv[0])
    print(
        f"error: {script.name} needs {', '.join(missing)}, which {sys.executable} does not have\n"
        f"  make -C {clone} recipes && {clone}/.venv/bin/python {script}\n"
        f"  or, in an environment of your own: {sys.executable} -m pip install -e '{clone}[recipes,hf]'",
        file=sys.stderr,
    )
    raise SystemExit(2)
