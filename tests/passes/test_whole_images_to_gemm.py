"""A convolution whose filters cover the whole image is one product, and so is a transposed one of single pixels."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.passes import Serving, WholeImagesToGemm, run_passes, serve
from ontrain.training.ortmodule import ORTModule
from tests.passes.graphs import applied, graph, operators


@pytest.mark.parametrize("image", [[1, 1], [3, 2], [4], [2, 3, 2]], ids=str)
def test_filters_as_large_as_the_image_are_a_matrix(image):
    model = graph(lambda op, x, w, b: op.Conv(x, w, b), x=[5, 6, *image], w=[7, 6, *image], b=[7])
    rewritten = applied(WholeImagesToGemm(), model, count=1, bitwise=False)
    assert operators(rewritten) == ["Reshape", "Reshape", "Gemm", "Reshape"]


@pytest.mark.parametrize("attributes", [{"strides": [3, 3]}, {"auto_pad": "VALID"}, {"pads": [0, 0, 0, 0]}], ids=str)
def test_strides_and_stated_absent_pads_change_nothing(attributes):
    model = graph(lambda op, x, w: op.Conv(x, w, **attributes), x=[5, 6, 3, 2], w=[7, 6, 3, 2])
    assert "Conv" not in operators(applied(WholeImagesToGemm(), model, count=1, bitwise=False))


@pytest.mark.parametrize(
    ("image", "filters", "attributes"),
    [
        ([4, 4], [7, 6, 3, 3], {}),
        ([3, 3], [7, 6, 3, 3], {"pads": [1, 1, 1, 1]}),
        ([3, 3], [7, 6, 3, 3], {"auto_pad": "SAME_UPPER"}),
        ([3, 3], [6, 1, 3, 3], {"group": 6}),
        ([1, 1], [6, 3, 1, 1], {"group": 2}),
    ],
    ids=str,
)
def test_other_convolutions_stay(image, filters, attributes):
    model = graph(lambda op, x, w: op.Conv(x, w, **attributes), x=[5, 6, *image], w=filters)
    assert operators(applied(WholeImagesToGemm(), model, count=0)) == ["Conv"]


@pytest.mark.parametrize("kernel", [[1, 1], [4, 3], [5]], ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_a_pixel_spread_over_an_image_is_a_product(kernel, biased):
    biases = {"b": [7]} if biased else {}
    model = graph(lambda op, x, w, *b: op.ConvTranspose(x, w, *b), x=[5, 6, *[1] * len(kernel)], w=[6, 7, *kernel],
                  **biases)  # fmt: skip
    rewritten = applied(WholeImagesToGemm(), model, count=1, bitwise=False)
    assert "Gemm" in operators(rewritten) and "ConvTranspose" not in operators(rewritten)


@pytest.mark.parametrize(
    ("image", "filters", "attributes"),
    [
        ([2, 2], [6, 7, 3, 3], {}),
        ([1, 1], [6, 7, 3, 3], {"pads": [1, 1, 1, 1]}),
        ([1, 1], [6, 7, 3, 3], {"output_padding": [1, 0], "strides": [2, 2]}),
        ([1, 1], [6, 7, 3, 3], {"output_shape": [3, 3], "strides": [2, 2]}),
        ([1, 1], [6, 1, 3, 3], {"group": 6}),
        ([1, 1], [6, 7, 3, 3], {"dilations": [2, 2]}),
    ],
    ids=str,
)
def test_other_transposed_convolutions_stay(image, filters, attributes):
    model = graph(lambda op, x, w: op.ConvTranspose(x, w, **attributes), x=[5, 6, *image], w=filters)
    assert operators(applied(WholeImagesToGemm(), model, count=0)) == ["ConvTranspose"]


def test_the_report_says_why_a_convolution_stays():
    model = graph(lambda op, x, w: op.Conv(x, w), x=[5, 6, 4, 4], w=[7, 6, 3, 3])
    _, reports = run_passes(model, (WholeImagesToGemm(),))
    assert reports[0].refusals == {"the filters do not cover the image": 1}


def test_a_session_for_inference_keeps_filters_in_onednns_order():
    model = graph(lambda op, x, w: op.Conv(x, w), x=[5, 6, 3, 3], w=[7, 6, 3, 3])
    serve(model, Serving())
    rewritten, reports = run_passes(model, (WholeImagesToGemm(),))
    assert operators(rewritten) == ["Conv"] and len(reports[0].refusals) == 1


class Pyramid(nn.Module):
    """A fully convolutional net: at 9 × 9 its head's filters cover the image, beyond they do not."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3)
        self.squeeze, self.excite = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.head = nn.Conv2d(8, 5, 7)
        self.spread = nn.ConvTranspose2d(5, 3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x).relu()
        gate = self.excite(self.squeeze(y.mean((2, 3), keepdim=True)).relu()).sigmoid()
        return self.spread(self.head(y * gate)).square().mean()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sizes", [(9, 10, 11, 12, 13, 9), (12, 11, 10, 9, 12, 13)], ids=str)
def test_images_that_are_covered_at_one_size_alone_train_at_each(sizes):
    torch.manual_seed(0)
    eager = Pyramid().double()
    ours = copy.deepcopy(eager)
    wrapped = ORTModule(ours)
    for images in (2, 3, 4):
        for size in sizes:
            x = torch.randn(images, 3, size, size + images % 2, dtype=torch.float64)
            losses = [module(x) for module in (eager, wrapped)]
            torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=1e-12)
            for loss in losses:
                loss.backward()
            for a, b in zip(eager.parameters(), ours.parameters(), strict=True):
                torch.testing.assert_close(b.grad, a.grad, rtol=1e-10, atol=1e-12)
            eager.zero_grad()
            ours.zero_grad()
