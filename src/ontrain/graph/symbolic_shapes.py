"""Shapes of outputs in terms of the inputs' dimensions, where inference over symbols gives up."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.errors import OntrainError
from ontrain.graph.builder import static_dims
from ontrain.graph.generalise import all_sizes, points_of, tried_sizes
from ontrain.graph.polynomials import fit
from ontrain.graph.rebuild import specialise
from ontrain.graph.varying_constants import dimension

__all__ = ["output_shapes"]


def output_shapes(model: ir.Model) -> dict[str, list[int | str | None]]:
    """Return the shape of each output by name: numbers, symbols of inputs or what is made of them, None for others.

    Raises:
        GraphError: the model cannot be specialised.
    """
    points = points_of(model)
    found: list[dict[str, tuple[int, ...]]] = []
    for number, point in enumerate(points):
        sizes = all_sizes(model, point)
        shapes = {v.name or "": [d if isinstance(d, int) else sizes[str(d.value)] for d in v.shape or ()]
                  for v in model.graph.inputs}  # fmt: skip
        try:
            with tried_sizes(point):
                found.append({v.name or "": static_dims(v) for v in specialise(model, shapes).graph.outputs})
        except OntrainError:
            if not number or number < len(points) - 1:
                raise
            points = points[:-1]  # the far one: more positions, say, than the model has
    return {
        name: [dimension(fit(one, points)) for one in zip(*(one[name] for one in found), strict=True)]
        for name in found[0]
    }
