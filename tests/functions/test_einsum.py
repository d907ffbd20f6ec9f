"""An axis of length one is repeated for the operands that have more of it, whichever operand comes first."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from ontrain import GraphError, InferenceSession
from ontrain.training import ORTTrainer, optim

_CASES = [
    ("bij,bjk->bik", [(1, 3, 4), (2, 4, 5)]),
    ("bij,bjk->bik", [(2, 3, 4), (1, 4, 5)]),
    ("i,i->i", [(1,), (3,)]),
    ("...BTNH,...BSNH->...BNTS", [(2, 1, 4, 3, 5), (1, 2, 4, 3, 5)]),
    ("...BNTS,...BSNH->...BTNH", [(2, 1, 3, 4, 4), (1, 2, 4, 3, 5)]),
    ("ab,bc", [(2, 1), (3, 4)]),
    ("ii,i->i", [(3, 3), (1,)]),
]


def model(equation: str, shapes: list[tuple[int, ...]], *, sized: bool) -> bytes:
    """One einsum; without sizes each axis has a name of its own."""
    names = [f"x{i}" for i in range(len(shapes))]
    dims = [
        shape if sized else [f"{name}_{i}" for i in range(len(shape))]
        for name, shape in zip(names, shapes, strict=True)
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, d) for name, d in zip(names, dims, strict=True)]
    graph = helper.make_graph(
        [helper.make_node("Einsum", names, ["y"], equation=equation)], "g", inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(proto.SerializeToString())


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize(("equation", "shapes"), _CASES)
def test_results_are_torchs(rng, equation, shapes, sized):
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    expected = torch.einsum(equation, *map(torch.from_numpy, arrays)).numpy()
    session = InferenceSession(model(equation, shapes, sized=sized), providers=["TorchExecutionProvider"])
    (y,) = session.run(None, {f"x{i}": array for i, array in enumerate(arrays)})
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("equation", "shapes"), _CASES)
def test_gradients_are_torchs(rng, equation, shapes):
    """Of a trained operand that comes first, by one step of plain descent."""
    x, *others = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    tensors = [torch.from_numpy(array).requires_grad_() for array in (x, *others)]
    y = torch.einsum(equation, *tensors)
    label = rng.standard_normal(tuple(y.shape)).astype(np.float32)
    torch.nn.functional.mse_loss(y, torch.from_numpy(label)).backward()

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = torch.nn.Parameter(torch.from_numpy(x.copy()))

        def forward(self, other: torch.Tensor) -> torch.Tensor:
            return torch.einsum(equation, self.x, other)

    description = {
        "inputs": [("other", list(others[0].shape)), ("label", list(y.shape))],
        "outputs": [("loss", [], True), ("y", list(y.shape))],
    }
    trainer = ORTTrainer(
        Module(), description, optim.SGDConfig(lr=1.0), torch.nn.functional.mse_loss, {"device": {"id": "cpu"}}
    )
    trainer.train_step(others[0], label)
    (after,) = trainer.state_dict()["model"]["full_precision"].values()
    np.testing.assert_allclose(x - np.asarray(after), tensors[0].grad.numpy(), rtol=1e-4, atol=1e-5)


def test_lengths_that_differ_are_refused():
    with pytest.raises(GraphError, match="'j' stands for axes of 4 and 5"):
        InferenceSession(model("ij,jk->ik", [(3, 4), (5, 2)], sized=True), providers=["TorchExecutionProvider"]).run(
            None, {"x0": np.zeros((3, 4), np.float32), "x1": np.zeros((5, 2), np.float32)}
        )
