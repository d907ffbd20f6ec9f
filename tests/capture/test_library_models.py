"""What models of libraries do in forward beyond tensor operators: each once failed or gave a wrong gradient."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ontrain.capture import capture, validate
from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule
from tests.capture.harness import run_captured
from tests.models.gradients import assert_close, eager_gradients, graph_gradients

pytestmark = pytest.mark.sampled(3)


def test_keys_and_values_that_all_heads_share_get_the_sum_of_their_gradients():
    class SharedKeys(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x):
            q = self.q(x).unflatten(-1, (2, 4)).transpose(1, 2)
            k, v = self.k(x).unsqueeze(1), self.v(x).unsqueeze(1)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()

    module, x = SharedKeys().double(), torch.randn(2, 5, 8, dtype=torch.double)
    loss, grads = graph_gradients(module, [x], dynamic=False)
    wanted_loss, wanted = eager_gradients(module, [x])
    assert loss == pytest.approx(wanted_loss, rel=1e-12)
    assert_close(grads, wanted, 1e-10)


def test_a_slice_between_numbers_made_of_sizes_varies_with_them():
    class Span(nn.Module):
        """DeBERTa's table of relative positions, cut to a span that it computes as a tensor."""

        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(20, 3))

        def forward(self, x):
            span = torch.min(torch.tensor(max(x.shape[1], 2)), torch.tensor(10)).item()
            return self.table[10 - span : 10 + span, :].sum(0) + x

    module, x = Span(), torch.randn(2, 4, 3)
    captured = capture(module, (x,), dynamic=[{0: "batch", 1: "length"}])
    assert not captured.specialised
    for shape in ((2, 4, 3), (3, 7, 3), (2, 12, 3)):
        x = torch.randn(shape)
        torch.testing.assert_close(run_captured(captured, (x,))[0], module(x))


def test_a_slice_up_to_a_number_in_the_batch_is_refused():
    class Cut(nn.Module):
        def forward(self, x, count):
            return x[: count.item()] * 2

    with pytest.raises(CaptureError, match="depends on the (data|values)|size depends on them"):
        capture(Cut(), (torch.randn(4, 3), torch.tensor(2)))


def test_a_convolution_whose_kernel_is_as_long_as_the_sequence_varies_with_it():
    class Long(nn.Module):
        def __init__(self):
            super().__init__()
            self.decay = nn.Parameter(torch.rand(3))

        def forward(self, x):
            kernel = torch.exp(-self.decay.unsqueeze(1) * torch.arange(x.shape[-1]))
            return F.conv1d(F.pad(x, (x.shape[-1] - 1, 0)), kernel.flip(-1).unsqueeze(1), groups=3)

    module = Long()
    captured = capture(module, (torch.randn(2, 3, 5),), dynamic=[{0: "batch", 2: "length"}])
    for shape in ((2, 3, 5), (4, 3, 8)):
        x = torch.randn(shape)
        torch.testing.assert_close(run_captured(captured, (x,))[0], module(x))


def test_a_layer_converted_in_forward_to_the_dtype_that_it_has_is_captured():
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = nn.Linear(4, 3)

        def forward(self, x):
            self.classifier = self.classifier.to(torch.float32)
            return self.classifier(x.to(torch.float32)).softmax(-1)

    module, x = Router(), torch.randn(2, 4)
    torch.testing.assert_close(run_captured(capture(module, (x,)), (x,))[0], module(x))
    with pytest.raises(CaptureError, match="converts its Linear"):
        capture(Router().double(), (x,))


def test_hooks_that_the_first_forward_installs_are_gone_after_a_capture():
    class Recording(nn.Module):
        """As transformers collects hidden states: hooks on the first call, and an attribute that says so."""

        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

        def forward(self, x):
            if not getattr(self, "installed", False):
                self.installed, self.seen = True, []
                for layer in self.layers:
                    layer.register_forward_hook(lambda _, __, y: self.seen.append(y))
            self.seen.clear()
            for layer in self.layers:
                x = layer(x)
            return self.seen[1] * 2

    module, x = Recording(), torch.randn(2, 3)
    wanted = module.layers[1](module.layers[0](x)) * 2
    for _ in range(2):
        torch.testing.assert_close(run_captured(capture(module, (x,)), (x,))[0], wanted)
    assert not module.layers[0]._forward_hooks
    torch.testing.assert_close(module(x), wanted)


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 8, 8).bfloat16())

    def forward(self, x, ends):
        return torch.nn.functional.grouped_mm(x, self.w, offs=ends)


def test_each_group_of_rows_meets_its_own_matrix():
    module, x = Grouped(), torch.randn(6, 8).bfloat16()
    captured = capture(module, (x, torch.tensor([2, 2, 6], dtype=torch.int32)))
    for ends in ([2, 2, 6], [0, 5, 6], [1, 3, 6]):
        validate(captured, module, (x, torch.tensor(ends, dtype=torch.int32)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_groups_of_rows_in_other_dtypes_than_torch_traces(dtype):
    module, ends = Grouped(), torch.tensor([2, 2, 6], dtype=torch.int32)
    module.to(dtype)
    for rows in (6, 7):
        x = torch.randn(rows, 8, dtype=dtype)
        gradients = []
        for model in (module, ORTModule(module)):
            model.zero_grad()
            y = model(x, ends)
            y[:6].float().square().mean().backward()
            gradients.append((y[:6].detach(), module.w.grad))
        torch.testing.assert_close(*gradients)


def test_a_mixture_of_experts_trains_with_the_librarys_own_dispatch():
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=30, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=3, num_experts_per_tok=2, use_cache=False,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(input_ids=ids, labels=ids).loss

    module, ids = Loss(), torch.randint(0, 30, (2, 5))
    assert model.get_experts_implementation()[""] == "grouped_mm"
    loss, grads = graph_gradients(module, [ids])
    wanted_loss, wanted = eager_gradients(module, [ids])
    assert loss == pytest.approx(wanted_loss, rel=1e-6)
    assert_close(grads, wanted, 1e-5)


BITS = {
    "exponents": lambda y: y + (y.view(torch.int32) >> 23).to(y),
    "rounded": lambda y: y * (y.view(torch.int32) & -65536).view(torch.float32),
    "truth values": lambda y: y * (y > 0).view(torch.uint8) + (y > 1).to(torch.uint8).view(torch.bool),
    "halves": lambda y: y + y.half().view(torch.bfloat16).nan_to_num(0, 1, 1),
}


class Bits(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.layer(x))


@pytest.mark.parametrize("name", BITS)
def test_bits_read_as_another_type_of_the_same_width_are_eagers_and_have_no_gradient(name):
    module = Bits(BITS[name])
    wrapped = ORTModule(copy.deepcopy(module))
    for rows in (2, 3):
        x = torch.randn(rows, 4)
        y, expected = wrapped(x), module(x)
        torch.testing.assert_close(y, expected)
        for model, output in ((wrapped, y), (module, expected)):
            model.zero_grad()
            output.sum().backward()
        torch.testing.assert_close(wrapped.layer.weight.grad, module.layer.weight.grad)


def test_bytes_of_wider_numbers_are_refused():
    with pytest.raises(CaptureError, match="another number of bytes"):
        ORTModule(Bits(lambda y: y.view(torch.uint8).sum()))(torch.randn(2, 4))
