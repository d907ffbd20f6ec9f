"""A generator of random numbers in a file of its own."""

from __future__ import annotations

import random

RANDOM = random.Random(10)
