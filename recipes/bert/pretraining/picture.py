"""Curves as a small SVG that any browser and README shows; equal curves make equal bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Curve", "draw"]

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 720, 360, 48, 36, 16, 36
_COLOURS = ("#0b62a4", "#e07b00", "#3a8f3a")


@dataclass(frozen=True)
class Curve:
    """A name for the legend, and points (step, value)."""

    name: str
    points: Sequence[tuple[float, float]]


def draw(
    title: str, curves: Sequence[Curve], levels: Sequence[tuple[str, float]] = (), border: float | None = None
) -> str:
    """Return an SVG of the curves over each other, the later ones dashed, so that equal ones show both.

    Args:
        title: over the picture.
        curves: at least one, with at least two points.
        levels: horizontal lines, named.
        border: a step with a vertical line, where the second phase begins.
    """
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points] + [y for _, y in levels]
    low_x, high_x = min(xs), max(xs)
    step = _round((max(ys) - min(ys)) / 5)
    low_y, high_y = min(ys) // step * step, -(-max(ys) // step) * step

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - _RIGHT)
        down = _TOP + (high_y - y) / (high_y - low_y) * (_HEIGHT - _TOP - _BOTTOM)
        return round(across, 1), round(down, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for i in range(round((high_y - low_y) / step) + 1):
        y = low_y + i * step
        parts.append(_line(place(low_x, y), place(high_x, y), "#ddd"))
        parts.append(_text(_LEFT - 6, place(low_x, y)[1] + 4, f"{y:g}", "end"))
    across = _round((high_x - low_x) / 6)
    for i in range(int(high_x // across) + 1):
        if low_x <= i * across:
            parts.append(_text(place(i * across, low_y)[0], _HEIGHT - 16, f"{i * across:g}", "middle"))
    parts.append(_text(_WIDTH - _RIGHT, _HEIGHT - 2, "step", "end"))
    if border is not None:
        parts.append(_line(place(border, low_y), place(border, high_y), "#999"))
        parts.append(_text(place(border, high_y)[0] + 4, _TOP + 12, "phase 2", "start"))
    for name, y in levels:
        parts.append(_line(place(low_x, y), place(high_x, y), "#b00020"))
        parts.append(_text(_WIDTH - _RIGHT, place(low_x, y)[1] - 5, name, "end"))
    for i, curve in enumerate(curves):
        colour, dash = _COLOURS[i % len(_COLOURS)], ' stroke-dasharray="5 4"' if i else ""
        points = " ".join(f"{x:g},{y:g}" for x, y in (place(*point) for point in curve.points))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>')
        legend = _LEFT + 260 + 120 * i
        parts.append(
            f'<line x1="{legend}" y1="16" x2="{legend + 24}" y2="16" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        parts.append(_text(legend + 30, 20, curve.name, "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _round(value: float) -> float:
    """The next of 1, 2, 5, 10 … times a power of ten."""
    power = 10.0 ** (len(str(int(1 / value))) * -1 if value < 1 else len(str(int(value))) - 1)
    return next(power * n for n in (1, 2, 5, 10, 20, 50, 100) if power * n >= value)


def _line(start: tuple[float, float], end: tuple[float, float], colour: str) -> str:
    return f'<line x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="#333">{escape(text)}</text>'
