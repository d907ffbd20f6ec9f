"""Models of scikit-learn give what scikit-learn predicts, on TorchExecutionProvider and on the default provider."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import ontrain

pytest.importorskip("sklearn")
skl2onnx = pytest.importorskip("skl2onnx")

from skl2onnx.common.data_types import FloatTensorType, StringTensorType  # noqa: E402
from sklearn import (  # noqa: E402
    cluster,
    compose,
    decomposition,
    ensemble,
    feature_extraction,
    gaussian_process,
    impute,
    linear_model,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)  # fmt: skip

from ontrain.training import ORTTrainer, optim  # noqa: E402

TORCH = ["TorchExecutionProvider"]
SIZES = (1000, 0, 1)
random = np.random.default_rng(0)
X = random.standard_normal((1000, 6)).astype(np.float32)
SCORES = X @ random.standard_normal((6, 3)) + 0.3 * random.standard_normal((1000, 3))
CLASS, TWO, TARGET = SCORES.argmax(1), (SCORES[:, 0] > 0).astype(int), SCORES[:, 0] + np.sin(X[:, 1])
NAMES = np.array(["ant", "bee", "cow"])[CLASS]
FIT = slice(0, 300)


def trees(kind, **options):
    return kind(n_estimators=20, random_state=0, **options)


CLASSIFIERS = {
    "logistic": (linear_model.LogisticRegression(), NAMES),
    "logistic of two": (linear_model.LogisticRegression(), TWO),
    "SGD": (linear_model.SGDClassifier(loss="log_loss", random_state=0), CLASS),
    "SVC, rbf": (svm.SVC(probability=True, random_state=0), CLASS),
    "SVC, poly": (svm.SVC(kernel="poly", probability=True, random_state=0), CLASS),
    "SVC, linear": (svm.SVC(kernel="linear"), NAMES),
    "NuSVC": (svm.NuSVC(nu=0.2, probability=True, random_state=0), CLASS),
    "decision tree": (tree.DecisionTreeClassifier(random_state=0), CLASS),
    "random forest": (trees(ensemble.RandomForestClassifier), NAMES),
    "extra trees": (trees(ensemble.ExtraTreesClassifier), CLASS),
    "gradient boosting": (trees(ensemble.GradientBoostingClassifier), CLASS),
    "gradient boosting of two": (trees(ensemble.GradientBoostingClassifier), TWO),
    "AdaBoost": (trees(ensemble.AdaBoostClassifier), CLASS),
    "nearest neighbours": (neighbors.KNeighborsClassifier(), CLASS),
    "Gaussian naive Bayes": (naive_bayes.GaussianNB(), CLASS),
    "Bernoulli naive Bayes": (naive_bayes.BernoulliNB(), CLASS),
    "perceptrons": (neural_network.MLPClassifier(hidden_layer_sizes=(16,), max_iter=30, random_state=0), CLASS),
    "scaled": (pipeline.make_pipeline(preprocessing.StandardScaler(), preprocessing.Normalizer(),
                                      linear_model.LogisticRegression()), NAMES),
    "binarized": (pipeline.make_pipeline(impute.SimpleImputer(), preprocessing.MinMaxScaler(),
                                         preprocessing.Binarizer(threshold=0.4), linear_model.LogisticRegression()),
                  CLASS),
}  # fmt: skip
REGRESSORS = {
    "linear": (linear_model.LinearRegression(), TARGET),
    "linear, three targets": (linear_model.LinearRegression(), SCORES),
    "ridge": (linear_model.Ridge(), TARGET),
    "SVR": (svm.SVR(), TARGET),
    "regression tree": (tree.DecisionTreeRegressor(random_state=0), TARGET),
    "regression forest": (trees(ensemble.RandomForestRegressor), SCORES),
    "boosted regression": (trees(ensemble.GradientBoostingRegressor), TARGET),
    "perceptrons": (neural_network.MLPRegressor(hidden_layer_sizes=(16,), max_iter=30, random_state=0), TARGET),
    "Gaussian process": (gaussian_process.GaussianProcessRegressor(alpha=1e-2), TARGET),
}
OTHERS = {
    "k-means": (cluster.KMeans(4, random_state=0, n_init=3), "predict"),
    "PCA": (decomposition.PCA(3), "transform"),
    "isolation forest": (trees(ensemble.IsolationForest), "predict"),
    "one class": (svm.OneClassSVM(), "predict"),
}
DOUBLE = ("linear", "ridge", "perceptrons")


def exported(model, x, **options):
    return skl2onnx.to_onnx(model, x[:1], target_opset={"": 18, "ai.onnx.ml": 3}, **options).SerializeToString()


def differing(model, feeds, labels, numbers, sizes=SIZES, lists=(TORCH, None)):
    """The providers and sizes whose results are others than expected."""
    wrong = []
    for providers in lists:
        session = ontrain.InferenceSession(model, providers=providers)
        for size in sizes if providers else (1000, 1):
            results = session.run(None, {name: x[:size] for name, x in feeds.items()})
            at = 0
            if labels is not None:
                # A sum of single precision may settle a tie the other way.
                agree = np.mean(results[0].reshape(-1) == labels[:size]) if size else 1
                at += 1
                if len(results[0]) != size or agree < 0.995:
                    wrong.append(f"{providers} {size}: {agree:.1%} of the labels agree")
            if numbers is not None:
                output = results[at]
                if isinstance(output, list):
                    output = np.array([[*row.values()] for row in output]).reshape(len(output), numbers.shape[-1])
                expected = numbers[:size].reshape(output.shape)
                if not np.allclose(output, expected, rtol=1e-3, atol=2e-3):
                    wrong.append(f"{providers} {size}: off by {np.abs(output - expected).max()}")
    return wrong


@pytest.fixture(scope="module", autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers(name):
    model, target = CLASSIFIERS[name]
    model.fit(X[FIT], target[FIT])
    chances = model.predict_proba(X) if hasattr(model, "predict_proba") else None
    assert not differing(exported(model, X), {"X": X}, model.predict(X), chances)


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors(name):
    model, target = REGRESSORS[name]
    model.fit(X[FIT], target[FIT])
    assert not differing(exported(model, X), {"X": X}, None, model.predict(X))
    if name in DOUBLE:
        x = X.astype(np.float64)
        session = ontrain.InferenceSession(exported(model, x), providers=TORCH)
        (result,) = session.run(None, {"X": x})
        assert result.dtype == np.float64
        np.testing.assert_allclose(result.reshape(-1), model.predict(x).reshape(-1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    model, method = OTHERS[name]
    model.fit(X[FIT])
    result = getattr(model, method)(X)
    labels = result if method == "predict" else None
    assert not differing(exported(model, X), {"X": X}, labels, result if labels is None else None)


def test_columns_of_strings_and_of_numbers_with_gaps():
    columns = {
        "a": np.where(X[:, :1] > 1, np.float32(np.nan), X[:, :1]), "b": X[:, 1:2],
        "c": random.choice(["u", "v", "w"], (1000, 1)).astype(object),
    }  # fmt: skip
    numbers = pipeline.make_pipeline(impute.SimpleImputer(), preprocessing.StandardScaler())
    both = compose.ColumnTransformer([
        ("numbers", numbers, [0, 1]), ("strings", preprocessing.OneHotEncoder(handle_unknown="ignore"), [2])
    ])  # fmt: skip
    model = pipeline.make_pipeline(both, linear_model.LogisticRegression())
    table = np.concatenate([part.astype(object) for part in columns.values()], 1)
    model.fit(table[FIT], NAMES[FIT])
    table[0, 2] = columns["c"][0, 0] = "not seen before"
    kinds = [(name, StringTensorType([None, 1]) if name == "c" else FloatTensorType([None, 1])) for name in columns]
    onnx_model = skl2onnx.to_onnx(model, initial_types=kinds, target_opset={"": 18, "ai.onnx.ml": 3})
    results = model.predict(table), model.predict_proba(table)
    assert not differing(onnx_model.SerializeToString(), columns, *results)


def test_text():
    texts = ["the cat sat on the mat", "a dog barks at the cat", "birds sing in the tree", "the dog sleeps"] * 250
    target = np.arange(1000) % 4
    model = pipeline.make_pipeline(
        feature_extraction.text.TfidfVectorizer(ngram_range=(1, 2)), linear_model.LogisticRegression()
    )
    model.fit(texts[FIT], target[FIT])
    onnx_model = skl2onnx.to_onnx(model, initial_types=[("t", StringTensorType([None]))])
    feeds = {"t": np.array(texts, object)}
    # StringNormalizer makes one empty text of none. onnxruntime's needs the locale en_US.UTF-8, which may be missing.
    results = model.predict(texts), model.predict_proba(texts)
    assert not differing(onnx_model.SerializeToString(), feeds, *results, sizes=(1000, 1), lists=(TORCH,))


def test_perceptrons_go_on_training_as_partial_fit():
    options = {"momentum": 0.0, "alpha": 0.0, "batch_size": 300, "shuffle": False, "max_iter": 10}
    model = neural_network.MLPClassifier(
        hidden_layer_sizes=(16,), solver="sgd", learning_rate_init=0.05, random_state=0, **options
    )  # fmt: skip
    model.fit(X[FIT], CLASS[FIT])
    description = {
        "inputs": [("X", ["batch", 6]), ("label", ["batch"])],
        "outputs": [("loss", [], True), ("output_probability", ["batch", 3])],
    }
    trainer = ORTTrainer(
        exported(model, X), description, optim.SGDConfig(lr=0.05),
        lambda p, label: -p.log().gather(1, label[:, None]).mean(), {"device": {"id": "cpu"}},
    )  # fmt: skip
    new, label = X[300:600], TWO[300:600]
    for _ in range(5):
        model.partial_fit(new, label)
        loss = float(trainer.train_step(new, label)[0])
        np.testing.assert_allclose(loss, model.loss_, rtol=1e-5)
    np.testing.assert_allclose(trainer.eval_step(X[:9], CLASS[:9])[1], model.predict_proba(X[:9]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["decision tree", "random forest"])
def test_the_leaves_that_rows_come_to(name):
    model, expected = CLASSIFIERS[name]
    model.fit(X[FIT], expected[FIT])
    options = {"decision_leaf": True, "decision_path": True, "zipmap": False}
    session = ontrain.InferenceSession(exported(model, X, options=options), providers=TORCH)
    leaf, path = session.run(["decision_leaf", "decision_path"], {"X": X})
    np.testing.assert_array_equal(leaf.reshape(len(X), -1), model.apply(X).reshape(len(X), -1))
    passed = model.decision_path(X)
    passed = passed[0] if isinstance(passed, tuple) else passed
    texts = ["".join(row) for row in path.reshape(len(X), -1)]
    assert texts == ["".join(map(str, row)) for row in passed.toarray()]


def test_of_more_coefficients_than_features_the_first_count():
    """Such a file is onnxruntime's own example, which its documentation runs."""
    from onnxruntime.datasets import get_example

    x = X[:3, :2]
    expected, ours = (
        ontrain.InferenceSession(get_example("logreg_iris.onnx"), providers=providers).run(None, {"float_input": x})
        for providers in (["CPUExecutionProvider"], TORCH)
    )
    np.testing.assert_array_equal(ours[0], expected[0])
    rows, theirs = ([[*row.values()] for row in results[1]] for results in (ours, expected))
    np.testing.assert_allclose(rows, theirs, rtol=1e-5)
