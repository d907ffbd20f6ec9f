"""The recipe's folder on the path."""

from __future__ import annotations

import sys
from pathlib import Path

RECIPE = Path(__file__).parents[3] / "recipes" / "bert"
sys.path[:0] = [str(RECIPE), str(RECIPE.parent)]
