"""Classical models: the operators of ai.onnx.ml."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.operators.record import DOMAIN, WHEREVER, Evaluator, Operator, Smallest, Stock, define

__all__ = ["ML"]

ML = "ai.onnx.ml"
_MODEL = Operator("", domain=ML, evaluator=Evaluator.LACKS)
_MAPS = "it works on maps, and values here are tensors"
_LOOKS_UP = "it looks values up in a table"
_MACHINE = "a support vector machine is fitted, not trained by gradients"
_ONE_TREE = {
    "nodes_treeids": [0], "nodes_nodeids": [0], "nodes_featureids": [0], "nodes_modes": ["LEAF"], "nodes_values": [0.0],
    "nodes_truenodeids": [0], "nodes_falsenodeids": [0],
}  # fmt: skip
_KERNEL = {"coefficients": [1.0], "rho": [0.0], "kernel_params": [0.0, 0.0, 1.0]}
_TRANSFORM = {"post_transform": ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")}
_MACHINES = {**_TRANSFORM, "kernel_type": ("LINEAR", "POLY", "RBF", "SIGMOID")}
_TREES = {**_TRANSFORM, "aggregate_function": ("SUM", "AVERAGE", "MIN", "MAX")}
_ONE_NODE = {
    "tree_roots": [0], "nodes_featureids": [0], "nodes_trueleafs": [1], "nodes_truenodeids": [0],
    "nodes_falseleafs": [1], "nodes_falsenodeids": [0], "leaf_targetids": [0],
    "nodes_modes": ir.tensor([0], dtype=ir.DataType.UINT8), "nodes_splits": ir.tensor([0.0]),
    "leaf_weights": ir.tensor([1.0]), "n_targets": 1,
}  # fmt: skip


def _tables(node: ir.Node) -> str:
    """Whether the node has one list of keys and one of values."""
    if "classes_strings" in node.attributes:
        return ""
    for kind in ("keys", "values"):
        names = [name for name in node.attributes if name.startswith(f"{kind}_")]
        if len(names) != 1:
            return f"it has {' and '.join(sorted(names)) or 'no ' + kind}; it needs one list of {kind}"
    return ""


def _labels(node: ir.Node) -> str:
    """Whether the node has one list of labels."""
    names = [name for name in node.attributes if name.startswith("classlabels_")]
    return "" if len(names) == 1 else f"it has {' and '.join(sorted(names)) or 'no labels'}; it needs one list of them"


define("ArrayFeatureExtractor", _MODEL, stock=Stock.COMPARED)
define("Binarizer", _MODEL, zero_gradient=WHEREVER, stock=Stock.COMPARED)
define(
    "CastMap",
    _MODEL,
    no_gradient=_MAPS,
    choices={"cast_to": ("TO_FLOAT", "TO_STRING", "TO_INT64"), "map_form": ("DENSE", "SPARSE")},
)
define(
    "CategoryMapper",
    _MODEL,
    no_gradient=_LOOKS_UP,
    smallest=Smallest({"cats_int64s": [0], "cats_strings": ["x"]}),
    stock=Stock.COMPARED,
)
define("DictVectorizer", _MODEL, no_gradient=_MAPS, stock=Stock.COMPARED)
define("FeatureVectorizer", _MODEL, stock=Stock.COMPARED)
define("Imputer", _MODEL, smallest=Smallest({"imputed_value_floats": [1.0]}), stock=Stock.COMPARED)
define(
    "LabelEncoder",
    _MODEL,
    fault=_tables,
    no_gradient=_LOOKS_UP,
    smallest=Smallest({"keys_floats": [0.0], "values_floats": [1.0]}, {"T1": "tensor(float)", "T2": "tensor(float)"}),
    stock=Stock.COMPARED,
)
define("LinearClassification", domain=DOMAIN)
define("LinearRegression", domain=DOMAIN)
define(
    "LinearClassifier",
    _MODEL,
    smallest=Smallest({"classlabels_ints": [0, 1]}),
    choices=_TRANSFORM,
    stock=Stock.COMPARED,
)
define("LinearRegressor", _MODEL, choices=_TRANSFORM, stock=Stock.COMPARED)
define("Normalizer", _MODEL, choices={"norm": ("MAX", "L1", "L2")}, stock=Stock.COMPARED)
define("OneHotEncoder", _MODEL, zero_gradient=WHEREVER, smallest=Smallest({"cats_int64s": [0]}), stock=Stock.COMPARED)
define(
    "SVMClassifier",
    _MODEL,
    no_gradient=_MACHINE,
    smallest=Smallest({**_KERNEL, "classlabels_ints": [0]}),
    choices=_MACHINES,
    stock=Stock.COMPARED,
)
define(
    "SVMRegressor",
    _MODEL,
    no_gradient=_MACHINE,
    smallest=Smallest(_KERNEL),
    choices=_MACHINES,
    stock=Stock.COMPARED,
)
define("Scaler", _MODEL, stock=Stock.COMPARED)
define(
    "TreeEnsemble",
    _MODEL,
    zero_gradient=WHEREVER,
    smallest=Smallest(_ONE_NODE),
    choices={name: tuple(range(len(words))) for name, words in _TREES.items()},
    stock=Stock.COMPARED,
)
define(
    "TreeEnsembleClassifier",
    _MODEL,
    zero_gradient=WHEREVER,
    smallest=Smallest(_ONE_TREE),
    choices=_TRANSFORM,
    stock=Stock.COMPARED,
)
define(
    "TreeEnsembleRegressor",
    _MODEL,
    zero_gradient=WHEREVER,
    smallest=Smallest(_ONE_TREE),
    choices=_TREES,
    stock=Stock.COMPARED,
)
define(
    "ZipMap",
    _MODEL,
    no_gradient=_MAPS,
    fault=_labels,
    smallest=Smallest({"classlabels_int64s": [0]}),
    stock=Stock.COMPARED,
)
