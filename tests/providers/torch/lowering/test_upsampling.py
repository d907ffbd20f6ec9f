"""Images in other sizes: kernels equal the bodies, and Resize is the kernel where its places are torch's."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import helper

import ontrain
from ontrain.training.ortmodule import ORTModule
from tests.providers.bodies import compare, lowered_in
from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls, file_of


@lowered_in("upsampling")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


WAYS = {
    "nearest, floor": ({"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, 1),
    "nearest, half pixels": ({"mode": "nearest", "nearest_mode": "round_prefer_ceil"}, 1),
    "nearest, corners": ({"mode": "nearest", "coordinate_transformation_mode": "align_corners"}, None),
    "linear": ({"mode": "linear"}, 1),
    "linear, torch's": ({"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}, 1),
    "linear, corners": ({"mode": "linear", "coordinate_transformation_mode": "align_corners"}, 1),
    "linear, asymmetric": ({"mode": "linear", "coordinate_transformation_mode": "asymmetric"}, 0),
    "cubic": ({"mode": "cubic"}, 1),
    "cubic, asymmetric": ({"mode": "cubic", "coordinate_transformation_mode": "asymmetric"}, 0),
}


@pytest.mark.parametrize("sizes", [[2, 3, 8, 10], [2, 3, 12, 5], [2, 3, 4, 10], [2, 3, 4, 5]], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_resize_is_the_kernel_where_its_places_are_torchs(rng, way, sizes):
    attributes, native = WAYS[way]
    fed = {"x": rng.standard_normal((2, 3, 4, 5)).astype(np.float32)}
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)
    model = file_of([node], fed, {"sizes": np.array(sizes)}, ["y"], opset=19)
    names = calls(assert_as_onnxruntime(model, fed, rtol=1e-5, atol=1e-6))
    if native is not None:
        assert any("upsample" in name for name in names) == bool(native and sizes[2:] != [4, 5])


@pytest.mark.parametrize("opset", [11, 19])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("sizes", [[2, 3, 8, 10], [2, 3, 7, 3], [2, 3, 4, 11]], ids=str)
def test_tensorflows_half_pixels_are_as_onnxruntimes(rng, sizes, mode, opset):
    """The standard has dropped this transformation; tf2onnx writes it into files of every operator set."""
    fed = {"x": rng.standard_normal((2, 3, 4, 5)).astype(np.float32)}
    told = {"nearest_mode": "floor"} if mode == "nearest" else {}
    node = helper.make_node(
        "Resize", ["x", "none", "none", "sizes"], ["y"], mode=mode,
        coordinate_transformation_mode="tf_half_pixel_for_nn", **told,
    )  # fmt: skip
    weights = {"none": np.zeros(0, np.float32), "sizes": np.array(sizes)}
    model = file_of([node], fed, weights, ["y"], opset=opset)
    assert_as_onnxruntime(model, fed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scales", [[2, 2], [2, 3], [1, 2], [1.5, 1.5], [0.5, 0.5]], ids=str)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "cubic"])
def test_by_scales_as_well(rng, way, scales):
    attributes, _ = WAYS[way]
    fed = {"x": rng.standard_normal((1, 2, 4, 6)).astype(np.float32)}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    model = file_of([node], fed, {"scales": np.array([1, 1, *scales], np.float32)}, ["y"], opset=19)
    assert_as_onnxruntime(model, fed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scales", [[2, 2], [2, 3], [1, 2], [1.5, 1.5], [0.5, 0.5]], ids=str)
def test_cubic_by_scales_errs_no_more_than_onnxruntime(rng, scales):
    """ATen and onnxruntime weigh in single precision, each in its own order."""
    x = rng.standard_normal((8, 6, 4, 6)).astype(np.float32)
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="cubic")
    model = file_of([node], {"x": x}, {"scales": np.array([1, 1, *scales], np.float32)}, ["y"], opset=19)
    size = [int(length * scale) for length, scale in zip(x.shape[2:], scales, strict=True)]
    exact = torch.nn.functional.interpolate(torch.tensor(x).double(), size=size, mode="bicubic").numpy()
    (theirs,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (ours,) = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"]).run(None, {"x": x})
    assert np.linalg.norm(ours - exact) <= 1.05 * np.linalg.norm(theirs - exact) < 1e-5 * np.linalg.norm(exact)


@pytest.mark.parametrize("mode, told", [("nearest", {}), ("bilinear", {"align_corners": False}),
                                        ("bilinear", {"align_corners": True})])  # fmt: skip
def test_between_convolutions_images_stay_as_they_lie(mode, told):
    torch.manual_seed(0)

    class Up(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(11, 4, 3, padding=1)

        def forward(self, x):
            y = torch.nn.functional.interpolate(self.a(x), scale_factor=2, mode=mode, **told)
            return self.b(torch.cat([y, torch.nn.functional.interpolate(x, size=(16, 20), mode=mode, **told)], 1))

    eager, x = Up().double(), torch.randn(2, 3, 8, 10, dtype=torch.double, requires_grad=True)
    twin = Up().double()
    twin.load_state_dict(eager.state_dict())
    ours, z = ORTModule(twin), x.detach().clone().requires_grad_()
    a, b = eager(x), ours(z)
    torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)
    a.square().sum().backward()
    b.square().sum().backward()
    torch.testing.assert_close(z.grad, x.grad, rtol=1e-10, atol=1e-10)
    for p, q in zip(eager.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_sizes_by_scales_are_rounded_as_onnxruntime_rounds_them(mode):
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode=mode)
    fed = {"x": np.random.default_rng(0).standard_normal((2, 3, 6, 9)).astype(np.float32)}
    scales = np.array([1, 1, 5 / 6, 7 / 9], np.float32)
    assert_as_onnxruntime(file_of([node], fed, {"s": scales}, ["y"]), fed, rtol=1e-5, atol=1e-6)
