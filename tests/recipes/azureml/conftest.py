"""The folder of the jobs on the path: its files are scripts and no package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "azureml"))
