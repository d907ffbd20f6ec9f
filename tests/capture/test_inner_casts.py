"""Composite operators under torch.autocast: it casts what they are made of, on a CPU other operators than on a GPU."""

from __future__ import annotations

import warnings
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from ontrain.capture.decomposition import decomposed
from ontrain.capture.inner_casts import cast_before
from ontrain.capture.tracing import tracing
from ontrain.training.ortmodule import ORTModule
from tests.halves import unlike_eager


class Net(nn.Module):
    """A function of what a linear layer, half under autocast, makes of x [3, 4], and of x itself."""

    def __init__(self, function, device="cpu"):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, device=device), requires_grad=device == "cpu")
        self.function = function

    def forward(self, x):
        return self.function(functional.linear(x, self.weight), x)


FUNCTIONS = {
    "cross entropy": lambda y, x: functional.cross_entropy(y, torch.arange(3, device=y.device)),
    "smoothed": lambda y, x: functional.cross_entropy(y, torch.arange(3, device=y.device), label_smoothing=0.1),
    "nll": lambda y, x: functional.nll_loss(y, torch.arange(3, device=y.device)),
    "logistic": lambda y, x: functional.binary_cross_entropy_with_logits(y, y.detach().sigmoid()),
    "product": lambda y, x: torch.einsum("ij,kj->ik", x, x),
    "product of both": lambda y, x: torch.einsum("ij,kj->ik", x, y),
    "no product": lambda y, x: torch.einsum("ij,ij->ij", x, x),
    "inner": lambda y, x: torch.inner(x, x),
    "same padding": lambda y, x: functional.conv1d(y, x[:, None, :3].contiguous(), padding="same", groups=3),
    "resized": lambda y, x: functional.interpolate(y[None, None], scale_factor=2.0, mode="bilinear"),
    "distance": lambda y, x: functional.pairwise_distance(y, y.sin()),
    "normalised": lambda y, x: functional.layer_norm(y, (4,)),
    "instances": lambda y, x: functional.instance_norm(y[None]),
}


def step(module, x, half):
    leaf = x.detach().clone().requires_grad_()
    with torch.autocast("cpu", half, enabled=half is not None):
        y = module(leaf)
    y.backward(torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape))
    return y, leaf.grad, module.get_parameter("weight").grad


@pytest.mark.sampled(3)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_have_eagers_dtype_on_a_cpu(name, half):
    torch.manual_seed(0)
    eager, x = Net(FUNCTIONS[name]), torch.randn(3, 4)
    exact, ours = Net(FUNCTIONS[name]).double(), Net(FUNCTIONS[name])
    for module in (exact, ours):
        module.load_state_dict(eager.state_dict())
    results, expected = step(ORTModule(ours), x, half), step(eager, x, half)
    assert not (unlike := unlike_eager(results, expected, step(exact, x.double(), None), half)), unlike


@contextmanager
def fake_gpu():
    """Tensors without values on a GPU that is not there, and autocast for it."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "is_initialized", lambda: False)
        patch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
        patch.setattr(torch.cuda, "get_rng_state", lambda *_: torch.empty(1, dtype=torch.uint8, device="cpu"))
        patch.setattr(torch.cuda, "set_rng_state", lambda *_, **__: None)
        patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
        yield


class InAutocast(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        with torch.autocast("cuda", torch.bfloat16):
            return self.module(x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["resized", *(name for name in FUNCTIONS if name != "resized")])
def test_results_have_eagers_dtype_on_a_gpu(name):
    with fake_gpu():
        try:
            with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
                weight, x = torch.empty(4, 4, device="cuda"), torch.empty(3, 4, device="cuda")
                net = Net(FUNCTIONS[name])
                net.weight = nn.Parameter(weight, requires_grad=False)
                net = InAutocast(net)
                eager = net(x)
        except RuntimeError as error:
            pytest.skip(f"this build of torch makes no such fakes: {error}")
        with torch.no_grad(), tracing(net):
            program = torch.export.export(net, (x,), strict=False)
        cast_before(program.graph_module)
        (result,) = decomposed(program).graph.output_node().args[0]
    assert result.meta["val"].dtype == eager.dtype
