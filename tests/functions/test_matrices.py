"""Bodies of linear algebra for a number of matrices that varies: stock onnxruntime beside torch."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from ontrain.capture import capture
from ontrain.errors import GraphError
from ontrain.session import inference_model

FUNCTIONS = {
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + 3 * torch.eye(3)),
    "cholesky_ex": lambda x: torch.linalg.cholesky_ex(x @ x.mT + torch.eye(3))[0],
    "eigvalsh": lambda x: torch.linalg.eigvalsh(x + x.mT),
    "svdvals": torch.linalg.svdvals,
    "svdvals of flat ones": lambda x: torch.linalg.svdvals(x[:, :2]),
    "qr": lambda x: torch.linalg.qr(x)[0] @ torch.linalg.qr(x)[1],
    "complete qr": lambda x: torch.linalg.qr(x[..., :2], "complete")[1].abs(),
    "inv": lambda x: torch.linalg.inv(x + 4 * torch.eye(3)),
    "inv_ex": lambda x: torch.linalg.inv_ex(x + 4 * torch.eye(3))[0],
    "solve": lambda x: torch.linalg.solve(x + 4 * torch.eye(3), x),
    "solve_triangular": lambda x: torch.linalg.solve_triangular(x + 4 * torch.eye(3), x, upper=False),
    "lu": lambda x: torch.linalg.lu(x)[0] @ torch.linalg.lu(x)[1],
    "matrix_exp": torch.linalg.matrix_exp,
    "pinv": torch.linalg.pinv,
    "zeta": lambda x: torch.special.zeta(x.abs() + 1.5, x.mT.abs() + 0.5),
    "gammainc": lambda x: torch.special.gammainc(x.abs() + 0.5, x.mT.abs()),
    "legendre": lambda x: torch.special.legendre_polynomial_p(x.tanh(), 5),
}


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_exports_take_another_number_of_matrices(name):
    torch.manual_seed(0)
    module = Function(FUNCTIONS[name]).eval()
    captured = capture(module, (torch.randn(4, 3, 3),), input_names=["x"], dynamic=[{0: "batch"}])
    model = inference_model(captured.model, {}, [value.name for value in captured.model.graph.outputs])
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    for count in (4, 1, 7):
        x = torch.randn(count, 3, 3)
        (result,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(result, module(x).numpy(), rtol=1e-3, atol=1e-4)


def test_matrices_whose_own_size_varies_are_refused_by_name():
    captured = capture(Function(torch.linalg.inv), (torch.eye(3),), input_names=["x"], dynamic=[{0: "n", 1: "n"}])
    with pytest.raises(GraphError, match=r"the matrices in 'x'[^$]*only the axes before the last two"):
        inference_model(captured.model, {}, [value.name for value in captured.model.graph.outputs])
