"""Shapes of outputs in terms of the inputs' dimensions, where inference over symbols gives up."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.errors import OntrainError
from ontrain.graph.generalise import all_sizes, points_of, shapes_at, tried_sizes
from ontrain.graph.rebuild import specialise
from ontrain.graph.varying_constants import dimension
from ontrain.operators import static_dims
from ontrain.sizes import fit

__all__ = ["output_shapes"]


def output_shapes(model: ir.Model) -> dict[str, list[int | str | None]]:
    """Return the shape of each output by name: numbers, symbols of inputs or what is made of them, None for others.

    Raises:
        GraphError: the model cannot be specialised.
    """
    points = points_of(model)
    of_points: list[dict[str, tuple[int, ...]]] = []
    for number, point in enumerate(points):
        shapes = shapes_at(model, all_sizes(model, point))
        try:
            with tried_sizes(point):
                of_points.append({v.name or "": static_dims(v) for v in specialise(model, shapes).graph.outputs})
        except OntrainError:
            if not number or number < len(points) - 1:
                raise
            points = points[:-1]  # the far one: more positions, say, than the model has
    return {
        name: [
            dimension(fit(lengths, points)) for lengths in zip(*(lengths[name] for lengths in of_points), strict=True)
        ]
        for name in of_points[0]
    }
