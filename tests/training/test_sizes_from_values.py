"""ONNX files whose sizes follow from values, in training: gradients are eager PyTorch's, or the node is refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper, parser

import ontrain
from ontrain.training import ORTTrainer, optim

X = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
W = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
CONSTANTS = {
    "zero": np.float32(0), "none": np.int64([0]), "one": np.int64([1]), "last": np.int64([-1]), "three": np.int64(3),
    "start": np.int64(0), "step": np.int64(1), "four": np.int64([4]), "yes": np.bool_(True),
    "rows": np.array([True, False, True, False, True]), "boxes": np.float32([[[0, 0, 1, 1], [0, 0, 2, 2]]]),
    "chances": np.float32([[[0.5, 0.6]]]), "most": np.int64([5]),
}  # fmt: skip
COUNT = """
    c = Greater(h, zero)
    whole = Cast<to = 7>(c)
    s = ReduceSum<keepdims = 0>(whole)
    k = Reshape(s, last)
"""
GROWS = "so = Concat<axis = 0>(st, h)"
PRODUCT = "sh = Mul(st, h) so = Tanh(sh)"


def loop(length, body, scans=False):
    stacked, type_ = (" sc = Tanh(so)", ", float[a, b] sc") if scans else ("", "")
    outputs = "last_state, v" if scans else "v"
    head = "(int64 i, bool going, float[a, b] st) => (bool goes, float[a, b] so" + type_ + ")"
    return f"{outputs} = Loop({length}, yes, h) <body = b {head} {{ goes = Identity(going) {body}{stacked} }}>"


def branch(condition, then, otherwise):
    graphs = f"then_branch = t () => (float[a, b] p) {{ {then} }}, else_branch = e () => "
    graphs += f"(float[d, f] q) {{ {otherwise} }}"
    return f"{condition} v = If(c2) <{graphs}>"


def positive(h):
    return int((h > 0).sum())


def looped(h, length, body):
    states = []
    state = h
    for _ in range(length):
        state = body(state)
        states.append(state)
    return state, states


TRAINED = {
    "a loop that grows": (loop("three", GROWS), lambda h: torch.cat([h] * 4)),
    "a loop of computed length": (
        COUNT + loop("s", PRODUCT), lambda h: looped(h, positive(h), lambda state: torch.tanh(state * h))[0],
    ),
    "a loop that stacks": (
        loop("three", PRODUCT, scans=True),
        lambda h: torch.stack(looped(h, 3, lambda state: torch.tanh(state * h))[1]).tanh(),
    ),
    "a branch": (
        COUNT + branch("c2 = Greater(s, step)", "p = Mul(h, h)", "q = Tanh(h)"),
        lambda h: h * h if positive(h) > 1 else torch.tanh(h),
    ),
    "a branch of constant condition": (
        branch("c2 = Identity(yes)", "p = Mul(h, h)", "q = Concat<axis = 0>(h, h)"), lambda h: h * h,
    ),
    "a sequence of two": (
        "q = SequenceConstruct(h, h) v = ConcatFromSequence<axis = 0>(q)", lambda h: torch.cat([h, h]),
    ),
    "a row of a sequence": ("q = SplitToSequence<axis = 0>(h) v = SequenceAt(q, start)", lambda h: h[:1]),
    "Compress by a constant": ("v = Compress<axis = 0>(h, rows)", lambda h: h[::2]),
    "NonZero of a constant": ("z = NonZero(rows) i = Squeeze(z, none) v = Gather(h, i)", lambda h: h[::2]),
    "Unique of a constant": (
        "u, first = Unique(four) i = Reshape(u, last) v = Gather(h, i)", lambda h: h[[4]],
    ),
    "a mask in place of a selection": (COUNT + "v = Where(c, h, zero)", lambda h: torch.where(h > 0, h, 0.0)),
}  # fmt: skip
"""What a plan holds, and the same in eager PyTorch."""
SIZED = {
    "NonZero": COUNT + "z = NonZero(c) t = Transpose<perm = [1, 0]>(z) v = GatherND(h, t)",
    "Compress": "r = ReduceSum<keepdims = 0>(h, one) c = Greater(r, zero) v = Compress<axis = 0>(h, c)",
    "Unique": "r = Round(h) u, first = Unique(r) f = Reshape(h, last) v = Gather(f, first)",
    "NonMaxSuppression": (
        "m = ReduceMean<keepdims = 0>(h) s = Mul(chances, m) i = NonMaxSuppression(boxes, s, most) n = Cast<to = 1>(i) "
        "v = Mul(n, m)"
    ),
    "TopK": COUNT + "n = Min(k, four) f = Reshape(h, last) v, i = TopK(f, n)",
    "Slice": COUNT + "v = Slice(h, none, k, none)",
    "Range": COUNT + "r = Range(start, s, step) n = Cast<to = 1>(r) m = ReduceSum<keepdims = 0>(h) v = Mul(n, m)",
    "Tile": COUNT + "t = Concat<axis = 0>(k, one) v = Tile(h, t)",
    "Expand": COUNT + "m = ReduceSum<keepdims = 0>(h) v = Expand(m, k)",
    "ConstantOfShape": COUNT + "r = ConstantOfShape(k) m = ReduceSum<keepdims = 0>(h) v = Add(m, r)",
    "Pad": COUNT + "p = Concat<axis = 0>(k, none, none, none) v = Pad(h, p)",
}
"""Bodies whose size follows from values, by the operator that has it."""
SHAPED = {
    "If": COUNT + branch("c2 = Greater(s, step)", "p = Mul(h, h)", "q = Concat<axis = 0>(h, h)"),
    "Loop": COUNT + loop("s", GROWS),
}
"""Branches and loops that hand on several shapes."""
NO_TENSORS = {
    "ConcatFromSequence": "q = SplitToSequence<axis = 0>(h) v = ConcatFromSequence<axis = 0>(q)",
    "SequenceAt": "q = SplitToSequence<axis = 0>(h) p = Neg(step) v = SequenceAt(q, p)",
    "OptionalGetElement": "q = Optional(h) v = OptionalGetElement(q)",
}


def file_of(body: str) -> onnx.ModelProto:
    text = '<ir_version: 9, opset_import: ["" : 17]> net (float[n, 4] x) => (float y) { h = MatMul(x, w)'
    model = parser.parse_model(f"{text} {body} [squares] e = Mul(v, v) y = ReduceSum<keepdims = 0>(e) }}")
    read = {name for node in model.graph.node for name in node.input} | set(body.replace(",", " ").split())
    stored = {"w": W, **{name: value for name, value in CONSTANTS.items() if any(name in word for word in read)}}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in stored.items())
    return model


def trainer_of(body: str) -> ORTTrainer:
    description = {"inputs": [("x", ["n", 4])], "outputs": [("y", [], True)]}
    options = {"device": {"id": "cpu"}}
    return ORTTrainer(file_of(body), description, optim.SGDConfig(lr=1.0), None, options, requires_grad=["w"])


@pytest.mark.parametrize("name", TRAINED)
def test_the_gradient_is_eager_pytorchs(name):
    body, eager = TRAINED[name]
    w = torch.from_numpy(W).double().requires_grad_()
    expected = eager(torch.from_numpy(X).double() @ w).square().sum()
    expected.backward()
    trainer = trainer_of(body)
    loss = trainer.train_step(torch.from_numpy(X))
    np.testing.assert_allclose(float(loss), expected.item(), rtol=1e-5)
    moved = W - trainer.state_dict()["model"]["full_precision"]["w"].numpy()
    np.testing.assert_allclose(moved, w.grad.numpy(), rtol=1e-4, atol=1e-4)


def refused(body: str) -> ontrain.OntrainError:
    with pytest.raises(ontrain.OntrainError) as error:
        trainer_of(body).train_step(torch.from_numpy(X))
    return error.value


@pytest.mark.parametrize("name", SIZED)
def test_a_size_that_follows_from_values_is_refused_with_the_node(name):
    error = refused(SIZED[name])
    assert f"node: {name}(" in str(error) and "depends on the values of the data" in error.reason
    assert "Where" in error.way_out and "ORTModule" in error.way_out


@pytest.mark.parametrize("name", SHAPED)
def test_several_shapes_are_refused_with_the_node(name):
    error = refused(SHAPED[name])
    assert f"node: {name}(" in str(error) and "one shape for each value" in error.reason and error.way_out


@pytest.mark.parametrize("name", NO_TENSORS)
def test_what_is_no_tensor_is_refused_with_the_node_and_what_makes_it(name):
    error = refused(NO_TENSORS[name])
    maker = NO_TENSORS[name].split("= ")[1].partition("(")[0].partition("<")[0]
    assert f"node: {name}(" in str(error) and maker in error.reason and "InferenceSession" in error.way_out
