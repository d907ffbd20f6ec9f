"""Branches and loops, the standard's and those whose graphs name all that they read."""

from __future__ import annotations

from ontrain.operators.record import DOMAIN, SWITCH, Smallest, Stock, define

__all__: list[str] = []

define("If", control=True, stock=Stock.COMPARED)
define("Loop", control=True, smallest=Smallest(inputs=2), stock=Stock.COMPARED)
_WAYS = ("scan_input_directions", "scan_output_directions")
define("Scan", control=True, choices=dict.fromkeys(_WAYS, SWITCH), stock=Stock.COMPARED)
define("If", domain=DOMAIN, asks_device=True)
define("Loop", domain=DOMAIN, asks_device=True)
