"""Environments of peers that cannot live beside ours: onnxruntime-training 1.19.2, the last release of the incumbent.

    python -m benchmarks.peers            make what is missing, print where it is

It wants numpy below 2, onnx 1.16 and Python 3.11 at most, and imports torch. Environments lie under
$ONTRAIN_PEERS, by default ~/.cache/ontrain-peers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.commands import Command

__all__ = ["PeerMissingError", "incumbent_python"]

INCUMBENT = ("onnxruntime-training==1.19.2", "onnx==1.16.2", "numpy<2", "h5py", "cerberus")


class PeerMissingError(RuntimeError):
    """A peer's environment is not there and cannot be made here."""


def incumbent_python(*, make: bool = False) -> Path:
    """Return the interpreter of the incumbent's environment.

    Args:
        make: install it where it is missing.

    Raises:
        PeerMissingError: it is not there and `make` is off, or no Python up to 3.11 is to be found.
    """
    folder = Path(os.environ.get("ONTRAIN_PEERS", Path.home() / ".cache" / "ontrain-peers"))
    python = folder / "onnxruntime-training-1.19.2" / "bin" / "python"
    if (python.parent / "complete").exists():
        return python
    if not make:
        raise PeerMissingError("onnxruntime-training 1.19.2 is not installed; python -m benchmarks.peers installs it")
    base = _old_python()
    subprocess.run([base, "-m", "venv", str(python.parent.parent)], check=True)
    # torch first and pinned: a later requirement would be free to take the newest build of it.
    torch = f"torch=={version('torch').partition('+')[0]}"
    for packages in (("numpy<2", torch), (*INCUMBENT, torch)):
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
    subprocess.run([str(python), "-c", "import onnxruntime.training.api"], check=True)
    (python.parent / "complete").touch()
    return python


def _old_python() -> str:
    if sys.version_info[:2] <= (3, 11):
        return sys.executable
    for name in ("python3.11", "python3.10"):
        path = shutil.which(name)
        if path:
            return path
    raise PeerMissingError("onnxruntime-training 1.19.2 needs Python 3.11 or 3.10, and neither is on the PATH")


if __name__ == "__main__":
    Command(__doc__).parse_args()
    print(incumbent_python(make=True))
