"""Products, rearrangements and determinants of whole tensors."""

from __future__ import annotations

import numpy as np

from tests.drawn.draw import Draw
from tests.drawn.nodes.node import Node, attributes, node

EQUATIONS = [
    ("ij,jk->ik", [(2, 3), (3, 4)]), ("bij,bjk", [(2, 2, 3), (2, 3, 4)]), ("...ii->...i", [(2, 3, 3)]),
    ("ij->", [(2, 3)]), ("i,j->ij", [(2,), (3,)]),
]  # fmt: skip
MATRICES = [((3,), (3,)), ((2, 3), (3,)), ((3,), (4, 3, 2)), ((2, 1, 2, 3), (4, 3, 5))]


def _image(draw: Draw) -> np.ndarray:
    return draw.array(2, 3, 4, 5)


@node
def einsum(draw: Draw) -> Node:
    """With and without a stated result."""
    equation, shapes = draw.choice(EQUATIONS)
    return Node("Einsum", [draw.array(*shape) for shape in shapes], dict(equation=equation))


@node
def gemm(draw: Draw) -> Node:
    """Transposed or not, with each shape of what is added."""
    a, b = draw.choice([0, 1]), draw.choice([0, 1])
    settings = dict(transA=a, transB=b, alpha=draw.choice([1.0, 0.5]), beta=draw.choice([1.0, 2.0]))
    summand = draw.array(*draw.choice([(4,), (2, 4), (2, 1), (1,), ()]))
    factors = [draw.array(*((3, 2) if a else (2, 3))), draw.array(*((4, 3) if b else (3, 4)))]
    return Node("Gemm", [*factors, np.asarray(summand, np.float32)], settings)


@node
def matmul(draw: Draw) -> Node:
    """Of vectors, matrices and batches of them."""
    return Node("MatMul", [draw.array(*shape) for shape in draw.choice(MATRICES)], {})


@node
def rearrangement(draw: Draw) -> Node:
    """Transpose, Reshape, Squeeze, Flatten, Expand and Tile."""
    expand, squeeze = [(2, 1, 6), (3, 4), (1,), (3, 1), (1, 1, 1)], [(0,), (-1,), (0, 2)]
    reshape = [(0, -1), (-1,), (0, 0, 20), (4, -1, 5), (2, 0, -1)]
    return draw.choice([
        Node("Transpose", [_image(draw)], attributes(perm=draw.maybe(draw.sample(range(4), 4)))),
        Node("Reshape", [_image(draw), np.array(draw.choice(reshape))], {}),
        Node("Squeeze", [draw.array(1, 3, 1), draw.maybe(np.array(draw.choice(squeeze)))], {}),
        Node("Flatten", [_image(draw)], dict(axis=draw.integer(-4, 4))),
        Node("Expand", [draw.array(3, 1), np.array(draw.choice(expand))], {}),
        Node("Tile", [draw.array(2, 3), np.array(draw.sizes(2, 0, 3))], {}),
    ])  # fmt: skip


@node
def pieces(draw: Draw) -> Node:
    """Split into unequal parts, and Concat."""
    if draw.flag():
        return Node("Split", [draw.array(7, 4)], dict(axis=0, num_outputs=3), 3, opset=18)
    return Node("Concat", [draw.array(2, 3), draw.array(2, 2)], dict(axis=draw.choice([1, -1])))


@node
def blocks(draw: Draw) -> Node:
    """DepthToSpace, SpaceToDepth and Col2Im."""
    return draw.choice([
        Node("DepthToSpace", [draw.array(2, 8, 3, 2)], dict(blocksize=2, mode=draw.choice(["DCR", "CRD"]))),
        Node("SpaceToDepth", [draw.array(2, 2, 4, 6)], dict(blocksize=2)),
        Node("Col2Im", [draw.array(1, 8, 9), np.array([4, 4]), np.array([2, 2])], {}, opset=18),
    ])  # fmt: skip


@node
def center(draw: Draw) -> Node:
    """CenterCropPad."""
    return Node("CenterCropPad", [draw.array(5, 4), np.array(draw.sizes(2, 2, 8))], {}, opset=18)


@node
def triangle(draw: Draw) -> Node:
    """Trilu of matrices and batches, EyeLike."""
    if draw.flag(0.3):
        return Node("EyeLike", [draw.array(*draw.sizes(2, 2, 5))], dict(k=draw.integer(-3, 3)))
    x = draw.array(*draw.sizes(draw.integer(2, 3), 2, 5))
    return Node("Trilu", [x, np.array(draw.integer(-4, 4))], dict(upper=draw.choice([0, 1])))


@node
def progression(draw: Draw) -> Node:
    """Range, empty ones among them."""
    start, end, step = draw.integer(-3, 3), draw.integer(-3, 9), draw.choice([0.5, 1, -1, 2])
    return Node("Range", [np.float32(start), np.float32(end), np.float32(step)], {})


@node
def determinant(draw: Draw) -> Node:
    """Det."""
    return Node("Det", [draw.array(*draw.choice([(), (2,)]), 3, 3)], {})
