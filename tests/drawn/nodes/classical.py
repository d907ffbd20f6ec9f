"""Operators of ai.onnx.ml: trees, vectors, linear models, tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.drawn.draw import Draw
from tests.drawn.nodes.node import Node, attributes, node

TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]


def _node(op_type: str, inputs: list, settings: dict[str, Any], outputs: int = 1) -> Node:
    return Node(op_type, inputs, settings, outputs, domain="ai.onnx.ml")


def _numbers(draw: Draw, *shape: int) -> list[float]:
    return draw.array(*shape).ravel().tolist()


def _tree(draw: Draw, depth: int, features: int, first: int = 0) -> list[dict[str, Any]]:
    """A tree's nodes in order; a branch ends early at times."""
    if not depth or (first and draw.flag(0.2)):
        return [dict(mode="LEAF", feature=0, value=0.0, true=0, false=0, node=first)]
    mode = draw.choice(["BRANCH_LEQ", "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"])
    left = _tree(draw, depth - 1, features, first + 1)
    right = _tree(draw, depth - 1, features, first + 1 + len(left))
    value = draw.choice([0.0, 0.5, -0.5, 1.0])
    here = dict(mode=mode, feature=draw.integer(0, features - 1), value=value, true=first + 1,
                false=first + 1 + len(left), node=first)  # fmt: skip
    return [here, *left, *right]


@node.share(3)
def trees(draw: Draw) -> Node:
    """An ensemble of trees with every mode of branch, missing values and aggregation.

    Stock labels two classes by the second one's sign where leaves name both, passes over classes that a row's leaves
    don't name, and forgets their base values. So two classes have the one score that files have, and else leaves name
    all classes, and all targets that have base values. It ends the process at a root that is a leaf.
    """
    features, classifies, based = draw.integer(1, 3), draw.flag(), draw.flag(0.3)
    targets = draw.integer(2, 4) if classifies else draw.integer(1, 3)
    nodes = [(tree, row) for tree in range(draw.integer(1, 3)) for row in _tree(draw, draw.integer(1, 3), features)]
    leaves = [(tree, row["node"]) for tree, row in nodes if row["mode"] == "LEAF"]
    named = [0] if classifies and targets == 2 else range(targets)
    targets_of = [named if based or classifies else draw.sample(named, draw.integer(1, len(named))) for _ in leaves]
    settings: dict[str, Any] = dict(
        nodes_treeids=[tree for tree, _ in nodes], nodes_nodeids=[row["node"] for _, row in nodes],
        nodes_featureids=[row["feature"] for _, row in nodes], nodes_values=[row["value"] for _, row in nodes],
        nodes_modes=[row["mode"] for _, row in nodes], nodes_truenodeids=[row["true"] for _, row in nodes],
        nodes_falsenodeids=[row["false"] for _, row in nodes],
        nodes_missing_value_tracks_true=[draw.integer(0, 1) for _ in nodes], post_transform=draw.choice(TRANSFORMS[:4]),
    )  # fmt: skip
    places = [(tree, at, target) for (tree, at), some in zip(leaves, targets_of, strict=True) for target in some]
    prefix, ids = ("class", "class_ids") if classifies else ("target", "target_ids")
    settings |= {
        f"{prefix}_treeids": [tree for tree, _, _ in places], f"{prefix}_nodeids": [at for _, at, _ in places],
        ids: [target for _, _, target in places], f"{prefix}_weights": _numbers(draw, len(places)),
    }  # fmt: skip
    x = np.round(draw.array(draw.integer(1, 4), features) * 2) / 2
    if draw.flag(0.3):
        x[0, 0] = np.nan
    base = _numbers(draw, 1 if len(named) == 1 else targets) if based else None
    if classifies:
        settings |= attributes(classlabels_int64s=list(range(targets)), base_values=base)
        return _node("TreeEnsembleClassifier", [x], settings, 2)
    settings |= attributes(
        n_targets=targets, aggregate_function=draw.choice(["SUM", "AVERAGE", "MIN", "MAX"]), base_values=base
    )
    return _node("TreeEnsembleRegressor", [x], settings)


@node.share(2)
def linear_model(draw: Draw) -> Node:
    """LinearClassifier of two classes or more, and LinearRegressor."""
    features, classes = draw.integer(1, 4), draw.integer(1, 4)
    x = draw.array(draw.integer(1, 4), features)
    settings = dict(coefficients=_numbers(draw, classes, features), intercepts=_numbers(draw, classes))
    settings["post_transform"] = draw.choice(TRANSFORMS[:4])
    if draw.flag():
        return _node("LinearRegressor", [x], settings | dict(targets=classes))
    labels = list(range(3, 3 + max(classes, 2)))
    return _node("LinearClassifier", [x], settings | dict(classlabels_ints=labels, multi_class=draw.choice([0, 1])), 2)


@node
def vectors(draw: Draw) -> Node:
    """What prepares rows of numbers."""
    x = draw.array(*draw.sizes(2, 1, 4))
    width, whole = x.shape[1], draw.indices(0, 4, (2, 3))
    missing = np.where(draw.uniform(*x.shape).numpy() < 0.3, np.float32("nan"), x)
    return draw.choice([
        lambda: _node("Scaler", [x], dict(offset=_numbers(draw, draw.choice([1, width])),
                                          scale=_numbers(draw, width))),
        lambda: _node("Normalizer", [x * draw.choice([1, 0])], dict(norm=draw.choice(["MAX", "L1", "L2"]))),
        lambda: _node("Binarizer", [x], dict(threshold=draw.choice([0.0, 0.5]))),
        lambda: _node("Imputer", [missing], dict(imputed_value_floats=_numbers(draw, draw.choice([1, width])),
                                                 replaced_value_float=float("nan"))),
        lambda: _node("OneHotEncoder", [whole], dict(cats_int64s=[0, 1, 3, 2], zeros=1)),
        lambda: _node("ArrayFeatureExtractor", [x, draw.indices(0, width, (2,))], {}),
        lambda: _node("FeatureVectorizer", [x, draw.array(x.shape[0], 2)], dict(inputdimensions=[width, 2])),
        lambda: _node("LabelEncoder", [whole], dict(keys_int64s=[0, 1, 2], values_int64s=[7, 8, 9], default_int64=-3)),
        lambda: _node("LabelEncoder", [whole.astype(np.float32)], dict(keys_floats=[0.0, 1.0], values_floats=[0.5, 2.0],
                                                                       default_float=-3.0)),
        lambda: _node("LabelEncoder", [whole], dict(keys_int64s=[0, 1], values_floats=[0.5, 1.5])),
    ])()  # fmt: skip


@node.share(2)
def support_vectors(draw: Draw) -> Node:
    """SVMRegressor and SVMClassifier with each kernel."""
    features, vectors_, kernel = (
        draw.integer(1, 3),
        draw.integer(2, 4),
        draw.choice(["LINEAR", "POLY", "RBF", "SIGMOID"]),
    )
    x = draw.array(draw.integer(1, 4), features)
    settings = dict(
        kernel_type=kernel, kernel_params=[0.5, 0.3, 2.0], support_vectors=_numbers(draw, vectors_, features)
    )
    if draw.flag():
        settings |= dict(coefficients=_numbers(draw, vectors_), rho=_numbers(draw, 1), n_supports=vectors_,
                         one_class=draw.choice([0, 0, 1]))  # fmt: skip
        return _node("SVMRegressor", [x], settings)
    classes = draw.choice([2, 3])
    each = [draw.integer(1, 2) for _ in range(classes)]
    settings |= dict(
        support_vectors=_numbers(draw, sum(each), features), vectors_per_class=each,
        coefficients=_numbers(draw, classes - 1, sum(each)), rho=_numbers(draw, classes * (classes - 1) // 2),
        classlabels_ints=list(range(5, 5 + classes)), post_transform=draw.choice(["NONE", "SOFTMAX", "LOGISTIC"]),
    )  # fmt: skip
    if draw.flag():
        pairs = classes * (classes - 1) // 2
        settings |= dict(prob_a=_numbers(draw, pairs), prob_b=_numbers(draw, pairs))
    return _node("SVMClassifier", [x], settings, 2)
