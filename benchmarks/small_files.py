"""Files of small models: exports of modules, and conversions of scikit-learn's models, with what they are fed."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["exported"]

Feeds = dict[str, np.ndarray[Any, Any]]


def _perceptron() -> tuple[nn.Module, Tensor]:
    """Ten layers of 32."""
    return nn.Sequential(*(part for _ in range(10) for part in (nn.Linear(32, 32), nn.ReLU()))), torch.randn(1, 32)


def _convolutions() -> tuple[nn.Module, Tensor]:
    """Six of eight channels on 16 × 16 pixels."""
    layers = (part for i in range(6) for part in (nn.Conv2d(8 if i else 3, 8, 3, padding=1), nn.ReLU()))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)), torch.randn(1, 3, 16, 16)


def _signal() -> tuple[nn.Module, Tensor]:
    """Six convolutions with normalisation over 128 samples."""
    layers = (
        part for i in range(6) for part in (nn.Conv1d(16 if i else 1, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU())
    )
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4)), torch.randn(1, 1, 128)


def _transformer() -> tuple[nn.Module, Tensor]:
    """Two layers, 64 wide, 16 tokens."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(1, 16, 64)


class _Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layer(x)[0][:, -1])
        return y


def _lstm() -> tuple[nn.Module, Tensor]:
    """Two layers of 32 over ten steps."""
    return _Recurrent(nn.LSTM(16, 32, 2, batch_first=True)), torch.randn(1, 10, 16)


def _gru() -> tuple[nn.Module, Tensor]:
    """One layer of 32 over ten steps."""
    return _Recurrent(nn.GRU(16, 32, batch_first=True)), torch.randn(1, 10, 16)


class _Squeezed(nn.Module):
    """An inverted residual with squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.widen, self.depth = nn.Conv2d(channels, wide, 1), nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        self.squeeze, self.excite = nn.Conv2d(wide, channels // 2, 1), nn.Conv2d(channels // 2, wide, 1)
        self.narrow, self.norm = nn.Conv2d(wide, channels, 1), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.silu(self.depth(nn.functional.hardswish(self.widen(x))))
        gate = self.excite(torch.relu(self.squeeze(nn.functional.adaptive_avg_pool2d(y, 1))))
        z: Tensor = x + self.norm(self.narrow(y * torch.sigmoid(gate)))
        return z


def _mobile() -> tuple[nn.Module, Tensor]:
    """Three inverted residuals of 16 channels on 16 × 16 pixels."""
    blocks = (nn.Conv2d(3, 16, 3, 2, 1), _Squeezed(16), _Squeezed(16), _Squeezed(16))
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)), torch.randn(1, 3, 32, 32)


MODELS: Mapping[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "perceptron": _perceptron, "convolutions": _convolutions, "signal": _signal, "transformer": _transformer,
    "LSTM": _lstm, "GRU": _gru, "mobile": _mobile,
}  # fmt: skip


def _logistic() -> Any:
    """Of twelve numbers, scaled."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression())


def _forest() -> Any:
    """Fifty trees."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(50, random_state=0)


def _machine() -> Any:
    """A support vector machine with probabilities."""
    from sklearn.svm import SVC

    return SVC(probability=True, random_state=0)


CLASSICAL: Mapping[str, Callable[[], Any]] = {
    "logistic regression": _logistic, "forest": _forest, "support vectors": _machine,
}  # fmt: skip


def _converted(name: str) -> tuple[bytes, Feeds]:
    from skl2onnx import to_onnx

    random = np.random.default_rng(0)
    x = random.standard_normal((300, 12)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(int) + (x[:, 2] > 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        proto = to_onnx(CLASSICAL[name]().fit(x, y), x[:1], target_opset=18)
    return proto.SerializeToString(), {proto.graph.input[0].name: x[:10]}


def exported(name: str) -> tuple[bytes, Feeds]:
    """Return a model's file, whose batch size is free, and what it is fed."""
    if name in CLASSICAL:
        return _converted(name)
    torch.manual_seed(0)
    module, x = MODELS[name]()
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), (x,), content, dynamo=False, opset_version=17, input_names=["x"], output_names=["y"],
            dynamic_axes={"x": {0: "n"}},
        )  # fmt: skip
    return content.getvalue(), {"x": x.numpy()}
