"""Branches and loops, the standard's and those whose graphs name all that they read."""

from __future__ import annotations

from ontrain.operators.record import DOMAIN, Smallest, Stock, define

__all__: list[str] = []

define("If", control=True)
define("Loop", control=True, smallest=Smallest(inputs=2))
define("Scan", control=True, stock=Stock.COMPARED)
define("If", domain=DOMAIN, asks_device=True)
define("Loop", domain=DOMAIN, asks_device=True)
