"""The page of a profile: one file that needs no network."""

from __future__ import annotations

import json
from importlib.resources import files

from ontrain.inference.profile import Profile

__all__ = ["profile_page"]


def profile_page(profile: Profile) -> str:
    """Return HTML with a flame view, memory over time, the graph, and the cost by node."""
    template = files("ontrain.inference").joinpath("profile_page.html").read_text(encoding="utf-8")
    # A name in the file may hold what ends a script.
    data = json.dumps(profile.to_json(), allow_nan=False).replace("<", "\\u003c")
    return template.replace("/*PROFILE*/null", data)
