"""Ensembles of trees equal onnxruntime's, and trees that are walked through one row at a time."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import ontrain
from ontrain.errors import OntrainError
from ontrain.files import suspect
from tests.providers.classical import differences, model_of, own

FEATURES = 4
FIELDS = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")


class Ensemble:
    """Attributes of random trees.

    Args:
        rng: draws them.
        kind: "class" or "target".
        modes: of the inner nodes.
        says: "all": each leaf adds to all targets; "one": all leaves of a tree to one; "first": to target 0.
    """

    def __init__(self, rng, kind, targets, modes, says, *, positive=False, trees=4):
        self.rng, self.kind, self.targets, self.modes, self.says, self.positive = (
            rng, kind, targets, modes, says, positive,
        )  # fmt: skip
        self.attributes = {f"nodes_{field}": [] for field in FIELDS}
        self.attributes |= {f"{kind}_{field}": [] for field in ("treeids", "nodeids", "ids", "weights")}
        self.attributes["nodes_missing_value_tracks_true"] = []
        for tree in range(trees):
            self.count = 0
            self._grow(tree, int(rng.integers(0, 5)))

    def _grow(self, tree, depth):
        a, rng, number = self.attributes, self.rng, self.count
        self.count += 1
        leaf = depth == 0 or rng.random() < 0.15
        at = len(a["nodes_modes"])
        value = 0.0 if leaf else float(np.round(rng.standard_normal(), 1))
        mode = "LEAF" if leaf else str(rng.choice(self.modes))
        feature = 0 if leaf else int(rng.integers(FEATURES))
        for field, entry in zip(FIELDS, (tree, number, feature, value, mode, 0, 0), strict=True):
            a[f"nodes_{field}"].append(entry)
        a["nodes_missing_value_tracks_true"].append(int(rng.integers(2)))
        if not leaf:
            a["nodes_truenodeids"][at] = self._grow(tree, depth - 1)
            a["nodes_falsenodeids"][at] = self._grow(tree, depth - 1)
            return number
        said = {"all": range(self.targets), "one": [tree % self.targets], "first": [0]}[self.says]
        for target in said:
            weight = rng.random() if self.positive else rng.standard_normal()
            for field, entry in zip(
                ("treeids", "nodeids", "ids", "weights"), (tree, number, target, weight), strict=True
            ):
                a[f"{self.kind}_{field}"].append(entry)
        return number


def rows(rng, dtype):
    """Rows with values that nodes compare with, infinite ones and missing ones."""
    x = np.round(rng.standard_normal((30, FEATURES)), 1).astype(dtype)
    if x.dtype.kind == "f":
        x[rng.random(x.shape) < 0.1] = np.nan
        x[0], x[1] = np.inf, -np.inf
    return x


MODES = [["BRANCH_LEQ"], ["BRANCH_LT"], ["BRANCH_GTE"], ["BRANCH_GT"], ["BRANCH_EQ", "BRANCH_NEQ", "BRANCH_LEQ"]]
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]


def test_regressors_equal_onnxruntimes(rng):
    wrong = []
    for case in range(40):
        targets = 1 + case % 3
        trees = Ensemble(rng, "target", targets, MODES[case % 5], "all")
        base = {"base_values": [0.5, -1.0, 2.0][:targets]} if case % 2 else {}
        wrong += differences(
            "TreeEnsembleRegressor", rows(rng, ["float32", "float64"][case % 2]), **trees.attributes, **base,
            n_targets=targets, aggregate_function=["SUM", "AVERAGE", "MIN", "MAX"][case % 4],
            post_transform=TRANSFORMS[(case // 4) % 4],
        )  # fmt: skip
    assert not wrong


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 2])
def test_what_a_leaf_says_several_times_is_taken_as_in_onnxruntime(rng, targets, aggregate):
    wrong = []
    for _ in range(5):
        a = Ensemble(rng, "target", targets, MODES[0], "all").attributes
        fields = [name for name in a if name.startswith("target_")]
        order = rng.permutation(2 * len(a["target_ids"])) % len(a["target_ids"])
        repeated = {name: [a[name][at] for at in order] for name in fields}
        repeated["target_weights"] = [float(weight) for weight in rng.standard_normal(len(order))]
        wrong += differences(
            "TreeEnsembleRegressor", rows(rng, "float32"), **{**a, **repeated}, n_targets=targets,
            aggregate_function=aggregate,
        )  # fmt: skip
    assert not wrong


def test_classifiers_equal_onnxruntimes(rng):
    wrong = []
    for case in range(48):
        classes = 2 + case % 3
        says = "first" if classes == 2 else ["all", "one"][case % 2]
        trees = Ensemble(rng, "class", classes, MODES[case % 5], says, positive=case % 2 == 0)
        base = {"base_values": [0.25, -1.0, 2.0, 0.5][: classes if classes > 2 else 1]} if case % 3 == 0 else {}
        wrong += differences(
            "TreeEnsembleClassifier", rows(rng, ["float32", "float64", "int64"][case % 3]), outputs=("y", "z"),
            kinds=[TensorProto.INT64], **trees.attributes, **base, classlabels_int64s=list(range(10, 10 + classes)),
            post_transform=TRANSFORMS[(case // 4) % 4],
        )  # fmt: skip
    assert not wrong


def test_single_rows_go_down_as_many_do(rng):
    wrong = []
    for case in range(10):
        trees = Ensemble(rng, "target", 2, MODES[case % 5], "all", trees=6)
        for row in rows(rng, ["float32", "float64"][case % 2])[:8]:
            wrong += differences("TreeEnsembleRegressor", row[None], **trees.attributes, n_targets=2)
    assert not wrong


def ensemble_of_sets(**changed):
    """Two trees in TreeEnsemble's own form; x0 in {1, 3, 5}, or else x1 <= 0.5; and x1 > 2."""

    def double(name, values):
        return helper.make_tensor(name, TensorProto.DOUBLE, [len(values)], values)

    nan = float("nan")
    attributes = {
        "nodes_splits": double("splits", [0.0, 0.5, 2.0]), "nodes_featureids": [0, 1, 1],
        "nodes_modes": helper.make_tensor("modes", TensorProto.UINT8, [3], [6, 0, 3]), "tree_roots": [0, 2],
        "nodes_truenodeids": [0, 1, 3], "nodes_trueleafs": [1, 1, 1], "nodes_falsenodeids": [1, 2, 4],
        "nodes_falseleafs": [0, 1, 1], "leaf_targetids": [0, 1, 0, 1, 0], "n_targets": 2,
        "leaf_weights": double("weights", [1.0, 10.0, 100.0, 0.25, 0.5]),
        "membership_values": double("members", [1.0, 3.0, 5.0, nan]), "aggregate_function": 1, "post_transform": 0,
    }  # fmt: skip
    return attributes | changed


def walked(x):
    """What these trees say of one row."""
    first = [1.0, 0.0] if x[0] in (1, 3, 5) else [0.0, 10.0] if x[1] <= 0.5 else [100.0, 0.0]
    return np.add(first, [0.0, 0.25] if x[1] > 2 else [0.5, 0.0])


def test_nodes_ask_for_members_of_sets_in_double_precision():
    x = np.array([[a, b] for a in (1.0, 2.0, 3.0, 5.0, np.nan) for b in (0.5, 0.5 + 1e-12, 2.0, 3.0, np.nan)])
    model = model_of("TreeEnsemble", [x], version=5, kinds=[TensorProto.DOUBLE], **ensemble_of_sets())
    (result,) = own(model).run(None, {"x0": x})
    np.testing.assert_array_equal(result, [walked(row) for row in x])


def test_a_row_alone_and_no_row():
    model = model_of(
        "TreeEnsemble", [np.zeros((1, 2))], version=5, kinds=[TensorProto.DOUBLE], **ensemble_of_sets()
    )  # fmt: skip
    session = own(model)
    assert session.run(None, {"x0": np.zeros((0, 2))})[0].shape == (0, 2)
    np.testing.assert_array_equal(session.run(None, {"x0": np.array([[3.0, 0.0]])})[0], [[1.5, 0.0]])


@pytest.mark.parametrize(
    "changed",
    [
        {"nodes_falsenodeids": [0, 2, 4]},  # the first node leads to itself
        {"nodes_falsenodeids": [7, 2, 4]},
        {"nodes_truenodeids": [-1, 1, 3]},
        {"nodes_featureids": [0, 9, 1]},
        {"nodes_featureids": [0, 1]},
        {"tree_roots": [0, 5]},
        {"leaf_targetids": [0, 1, 0, 1, 2]},
        {"membership_values": None},
        {"n_targets": 1 << 40},
    ],
    ids=["circle", "child", "negative", "feature", "length", "root", "target", "sets", "targets"],
)
def test_attributes_that_describe_no_trees_are_refused(changed):
    x = np.zeros((2, 2))
    model = model_of("TreeEnsemble", [x], version=5, kinds=[TensorProto.DOUBLE], **ensemble_of_sets(**changed))
    with pytest.raises(OntrainError, match="TreeEnsemble"):
        session = own(model)
        session.disable_fallback()
        session.run(None, {"x0": x})


ONE_CLASS = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.0, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0], "class_treeids": [0, 0], "class_nodeids": [1, 2], "class_ids": [0, 0],
}  # fmt: skip


@pytest.mark.parametrize("base", [[], [0.2]], ids=["", "base"])
@pytest.mark.parametrize("weights", [[-0.5, 1.5], [0.25, 0.75]], ids=["signs", "positive"])
@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
def test_trees_of_one_class_say_which_rows_are_of_it(transform, weights, base):
    based = {"base_values": base} if base else {}
    x = np.array([[-1.0], [1.0], [0.0]], np.float32)
    assert not differences(
        "TreeEnsembleClassifier", x, **ONE_CLASS, class_weights=weights, **based, post_transform=transform,
        classlabels_int64s=[7], outputs=("y", "z"), kinds=[TensorProto.INT64], rtol=1e-3, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("provider", ["TorchExecutionProvider", "CPUExecutionProvider"])
def test_trees_of_one_class_that_is_a_string_are_refused(provider):
    """With a row that is not of the class, onnxruntime ends the process."""
    model = model_of(
        "TreeEnsembleClassifier", [np.zeros((1, 1), np.float32)], **ONE_CLASS, class_weights=[-0.5, 1.5],
        classlabels_strings=["bee"], outputs=("y", "z"), kinds=[TensorProto.STRING],
    )  # fmt: skip
    with pytest.raises(ValueError, match="TreeEnsembleClassifier.* has one class"):
        ontrain.InferenceSession(model, providers=[provider])


@pytest.mark.parametrize("labels", [{"classlabels_strings": ["bee", "ant"]}, {"classlabels_int64s": [7]}])
def test_trees_of_other_labels_are_loaded_without_a_look_into_them(labels):
    kind = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
    model = model_of(
        "TreeEnsembleClassifier", [np.zeros((1, 1), np.float32)], **ONE_CLASS, class_weights=[-0.5, 1.5], **labels,
        outputs=("y", "z"), kinds=[kind],
    )  # fmt: skip
    assert suspect(model) is None


@pytest.mark.parametrize("trees", [10, 20, 50])
@pytest.mark.parametrize("classes", [2, 3])
def test_votes_that_tie_choose_the_first_class_as_the_forest_does(classes, trees):
    """Converters write each tree's share of a vote in single precision, a tenth of which is more than a tenth."""
    votes = [tree % classes for tree in range(trees - trees % classes)]  # as many for each class
    share = float(np.float32(1 / len(votes)))
    named = [(tree, voted) for tree, voted in enumerate(votes) if classes > 2 or voted]
    attributes = {
        "nodes_treeids": [*range(len(votes))], "nodes_nodeids": [0] * len(votes), "nodes_modes": ["LEAF"] * len(votes),
        **{f"nodes_{field}": [0] * len(votes) for field in ("featureids", "truenodeids", "falsenodeids")},
        "nodes_values": [0.0] * len(votes), "class_treeids": [tree for tree, _ in named],
        "class_nodeids": [0] * len(named), "class_ids": [voted if classes > 2 else 0 for _, voted in named],
        "class_weights": [share] * len(named), "classlabels_int64s": [*range(classes)],
    }  # fmt: skip
    x = np.zeros((3, FEATURES), np.float32)
    model = model_of(
        "TreeEnsembleClassifier", [x], outputs=("label", "scores"), kinds=[TensorProto.INT64], **attributes
    )
    label, scores = own(model).run(None, {"x0": x})
    assert label.tolist() == [0, 0, 0]
    np.testing.assert_allclose(scores, 1 / classes, rtol=1e-6)
