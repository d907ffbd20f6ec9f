"""The interface of capture: calls, names, structures, dynamic dimensions, side effects, errors."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch import nn

from ontrain.capture import capture, validate
from ontrain.errors import CaptureError, InputError, OptionError
from tests.capture import networks
from tests.capture.harness import run_captured


def test_arguments_by_keyword_and_default_come_in_the_order_of_the_call():
    class Sum(nn.Module):
        def forward(self, a, b, c=None, scale=2.0):
            return (a - b) * scale

    a, b = torch.randn(3), torch.randn(3)
    captured = capture(Sum(), (a,), {"b": b})
    assert captured.input_names == ["a", "b"]
    y, _ = run_captured(captured, (), {"b": b, "a": a})
    torch.testing.assert_close(y, (a - b) * 2)
    with pytest.raises(InputError, match="'c' was not given"):
        captured.flatten((a, b, b))
    captured.flatten((a, b), {"c": None, "scale": 2.0})


def test_nested_inputs_and_outputs_keep_their_structure():
    module = networks.Nested()
    batch = {"x": torch.randn(2, 4), "more": [torch.randn(2, 4), torch.randn(4)]}
    captured = capture(module, (batch,), {"flag": "twice"})
    assert captured.input_names == ["batch.x", "batch.more.0", "batch.more.1"]
    answer, _ = run_captured(captured, (batch,), {"flag": "twice"})
    expected = module(batch, flag="twice")
    assert type(answer) is networks.Answer and answer.label == "fine" and answer.missing is None
    torch.testing.assert_close(answer.loss, expected.loss)
    torch.testing.assert_close(answer.parts, expected.parts)


def test_a_baked_value_that_changes_is_refused():
    captured = capture(networks.Nested(), ({"x": torch.ones(1, 4), "more": [torch.ones(4)] * 2},), {"flag": "twice"})
    other = {"x": torch.ones(1, 4), "more": [torch.ones(4)] * 3}
    with pytest.raises(InputError, match=r"batch\.more"):
        captured.flatten((other,), {"flag": "twice"})
    with pytest.raises(InputError, match="'once'.*'twice'"):
        captured.flatten(({"x": torch.ones(1, 4), "more": [torch.ones(4)] * 2},), {"flag": "once"})


def test_names_can_be_given():
    captured = capture(nn.Linear(3, 2), (torch.ones(1, 3),), input_names=["features"], output_names=["score"])
    assert captured.model.graph.inputs[0].name == "features"
    assert captured.output_names == ["score"]
    with pytest.raises(OptionError, match="2 input names for 1"):
        capture(nn.Linear(3, 2), (torch.ones(1, 3),), input_names=["a", "b"])


def test_a_wrappers_prefix_is_left_out_of_names():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = networks.Tied()

        def forward(self, ids):
            return self.model(ids)

    module, ids = Wrapper(), torch.tensor([[1, 2]])
    captured = capture(module, (ids,), prefix="model.")
    assert list(captured.parameters) == ["embedding.weight"]
    validate(captured, module, (ids,))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_dynamic_graph_fits_other_sizes_whatever_the_samples(size):
    module = networks.LanguageModel(dropout=0.0)
    ids = torch.randint(20, (size, 1))
    captured = capture(module, (ids, ids), dynamic=[{0: "length", 1: "batch"}] * 2)
    assert not captured.specialised
    assert [d.value for d in captured.model.graph.inputs[0].shape] == ["length", "batch"]
    assert [d.value for d in captured.model.graph.inputs[1].shape] == ["length", "batch"]
    for shape in ((7, 3), (1, 2)):
        ids = torch.randint(20, shape)
        module.src_mask = None
        (loss, logits), _ = run_captured(captured, (ids, ids))
        expected = module(ids, ids)
        torch.testing.assert_close(loss, expected[0])
        torch.testing.assert_close(logits, expected[1], rtol=1e-4, atol=1e-5)
        module.src_mask = None


def test_a_dimension_that_the_model_fixes_is_named():
    class Fixed(nn.Module):
        def forward(self, x):
            return x + torch.arange(4.0)

    captured = capture(Fixed(), (torch.ones(2, 4),), dynamic=[{0: "batch", 1: "width"}])
    assert captured.specialised == ["dimension 1 ('width') of input 'x' is fixed to 4 by the model"]
    assert captured.model.graph.inputs[0].shape[1] == 4


def test_sizes_are_computed_from_shapes():
    class Halves(nn.Module):
        def forward(self, x):
            half = x.shape[1] // 2
            rows = x.reshape(x.shape[0] * 2, -1) if x.shape[1] % 2 == 0 else x
            return x[:, :half] / half, x.new_ones(x.shape[0] + 1, half), rows

    captured = capture(Halves(), (torch.randn(3, 6),), dynamic=[{0: "batch", 1: "width"}])
    x = torch.randn(5, 8)
    halves, _ = run_captured(captured, (x,))
    for ours, theirs in zip(halves, Halves()(x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_size_as_output_is_refused():
    class Rows(nn.Module):
        def forward(self, x):
            return x, x.shape[0]

    assert capture(Rows(), (torch.ones(2),)).unflatten([0]) == (0, 2)
    with pytest.raises(CaptureError, match="a size that varies at output.1"):
        capture(Rows(), (torch.ones(2),), dynamic=[{0: "rows"}])


def test_capture_leaves_no_trace():
    module = networks.CountsCalls()
    module(torch.randn(3, 4))
    before = copy.deepcopy(module)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    captured = capture(module, (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),))
    validate(captured, module, (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),))
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in before.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=0, atol=0)
    assert type(module.seen) is torch.Tensor
    assert all(p.grad is None for p in module.parameters())


def test_a_mask_kept_in_an_attribute_is_as_it_was():
    module, ids = networks.LanguageModel(), torch.randint(20, (6, 2))
    capture(module, (ids, ids))
    assert module.src_mask is None
    module.src_mask = mask = torch.zeros(6, 6)
    capture(module, (ids, ids))
    assert module.src_mask is mask


def test_branching_on_data_names_the_line_and_a_way_out():
    with pytest.raises(CaptureError) as caught:
        capture(networks.BranchesOnData(), (torch.ones(2),))
    assert caught.value.source.startswith("networks.py:")
    assert "if x.sum() > 0:" in caught.value.source
    assert "torch.where" in caught.value.way_out
    assert caught.value.__cause__ is not None


def test_a_missing_operator_names_itself_its_line_and_a_way_out():
    with pytest.raises(CaptureError) as caught:
        capture(networks.WithoutTranslation(), (torch.ones(4, 4),))
    assert "linalg_ldl_factor" in caught.value.problem
    assert "torch.linalg.ldl_factor(self.linear(x)).LD" in caught.value.source
    assert "ontrain.capture.aten" in caught.value.way_out


def test_an_error_of_the_model_itself_names_its_line():
    class Mismatched(nn.Module):
        def forward(self, x):
            return x @ torch.ones(3, 3)

    with pytest.raises(CaptureError) as caught:
        capture(Mismatched(), (torch.ones(4, 4),))
    assert "x @ torch.ones(3, 3)" in caught.value.source


def test_an_opaque_output_is_refused():
    class Cache:
        pass

    class Caches(nn.Module):
        def forward(self, x):
            return x, Cache()

    with pytest.raises(CaptureError, match="use_cache=False"):
        capture(Caches(), (torch.ones(2),))


def test_a_boolean_mask_as_index_is_refused():
    class Picks(nn.Module):
        def forward(self, x):
            return x[x > 0].sum()

    with pytest.raises(CaptureError) as caught:
        capture(Picks(), (torch.ones(2),))
    assert "x[x > 0].sum()" in caught.value.source


def test_a_number_taken_out_of_a_tensor_is_a_value_and_no_size():
    class Scales(nn.Module):
        def forward(self, x):
            return x * x.sum().item()

    x = torch.randn(3)
    torch.testing.assert_close(run_captured(capture(Scales(), (x,)), (x,))[0], x * x.sum())

    class Makes(nn.Module):
        def forward(self, x):
            return torch.zeros(x.sum().item())

    with pytest.raises(CaptureError) as caught:
        capture(Makes(), (torch.ones(2, dtype=torch.int64),))
    assert "torch.zeros(x.sum().item())" in caught.value.source


def test_what_is_read_as_data_has_no_gradient():
    class Reads(nn.Module):
        def forward(self, x):
            return x * (x + 1).data

    captured = capture(Reads(), (torch.ones(2),))
    torch.testing.assert_close(run_captured(captured, (torch.tensor([2.0, 3.0]),))[0], torch.tensor([6.0, 12.0]))
    assert [node.op_type for node in captured.model.graph] == ["Add", "Detach", "Mul"]


def test_a_parameter_that_forward_writes_to_is_refused():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            with torch.no_grad():
                self.weight.clamp_(0, 1)
            return x * self.weight

    with pytest.raises(CaptureError, match="writes to parameter 'weight'"):
        capture(Writes(), (torch.ones(3),))


def test_modules_in_modules_as_deep_as_eager_runs_them():
    module = nn.Linear(4, 3)
    for _ in range(150):
        module = nn.Sequential(module)
    x, limit = torch.randn(2, 4), sys.getrecursionlimit()
    captured = capture(module, (x,))
    torch.testing.assert_close(run_captured(captured, (x,))[0], module(x).detach())
    assert sys.getrecursionlimit() == limit
