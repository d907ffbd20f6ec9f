"""Curves as an SVG that any browser and README shows; equal curves make equal bytes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 360, 48, 36, 16, 36
COLOURS = ("#0b62a4", "#e07b00", "#3a8f3a")

Points = Sequence[tuple[float, float]]


def draw(
    title: str, curves: dict[str, Points], levels: Sequence[tuple[str, float]], border: tuple[float, str] | None
) -> str:
    """Return the curves over each other, the later ones dashed, so that equal ones show both.

    Args:
        title: over the picture.
        curves: points (step, value) by name, at least two points each.
        levels: horizontal lines, named.
        border: a step with a vertical line, named.
    """
    xs = [x for points in curves.values() for x, _ in points]
    ys = [y for points in curves.values() for _, y in points] + [y for _, y in levels]
    low_x, high_x = min(xs), max(xs)
    step = _rounded((max(ys) - min(ys)) / 5)
    low_y, high_y = min(ys) // step * step, -(-max(ys) // step) * step

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)
        down = TOP + (high_y - y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)
        return round(across, 1), round(down, 1)

    def line(start: tuple[float, float], end: tuple[float, float], colour: str, more: str = "") -> str:
        return f'<line x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}" stroke="{colour}"{more}/>'

    def text(x: float, y: float, words: str, anchor: str) -> str:
        return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="#333">{escape(words)}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for i in range(round((high_y - low_y) / step) + 1):
        y = low_y + i * step
        parts += [line(place(low_x, y), place(high_x, y), "#ddd")]
        parts += [text(LEFT - 6, place(low_x, y)[1] + 4, f"{y:g}", "end")]
    across = _rounded((high_x - low_x) / 6)
    for i in range(int(high_x // across) + 1):
        if low_x <= i * across:
            parts += [text(place(i * across, low_y)[0], HEIGHT - 16, f"{i * across:g}", "middle")]
    parts += [text(WIDTH - RIGHT, HEIGHT - 2, "step", "end")]
    if border is not None:
        parts += [line(place(border[0], low_y), place(border[0], high_y), "#999")]
        parts += [text(place(border[0], high_y)[0] + 4, TOP + 12, border[1], "start")]
    for name, y in levels:
        parts += [line(place(low_x, y), place(high_x, y), "#b00020")]
        parts += [text(WIDTH - RIGHT, place(low_x, y)[1] - 5, name, "end")]
    for i, (name, points) in enumerate(curves.items()):
        colour, dash = COLOURS[i % len(COLOURS)], ' stroke-dasharray="5 4"' if i else ""
        path = " ".join(f"{x:g},{y:g}" for x, y in (place(*point) for point in points))
        parts += [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>']
        legend = LEFT + 260 + 120 * i
        parts += [line((legend, 16), (legend + 24, 16), colour, f' stroke-width="2"{dash}')]
        parts += [text(legend + 30, 20, name, "start")]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _rounded(value: float) -> float:
    """Return the next of 1, 2, 5, 10 … times a power of ten."""
    power = 10.0 ** (len(str(int(1 / value))) * -1 if value < 1 else len(str(int(value))) - 1)
    return next(power * n for n in (1, 2, 5, 10, 20, 50, 100) if power * n >= value)
