"""Small models on TorchExecutionProvider beside stock onnxruntime: a run, a new combination of sizes, and loading.

    python -m benchmarks.small_models [MODEL…] [--seconds 2] [--dry]

Exports of seven modules, of 10 to 200 nodes, and of three models of scikit-learn, which are fed ten rows. Each runs in
a session of each on one thread, called in turns; printed are the microseconds of the fastest round and the median of
the rounds' ratios. Then the milliseconds of loading, of the first run, and of a run with another batch size, each the
least of five sessions. Rows go to benchmarks/results/small_models.jsonl.
"""

from __future__ import annotations

import io
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ontrain
from benchmarks.commands import Command
from benchmarks.rows import append_row

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


def _seconds(session: Any, feeds: Feeds, runs: int) -> float:
    before = time.perf_counter()
    for _ in range(runs):
        session.run(None, feeds)
    return (time.perf_counter() - before) / runs


def latency(sessions: tuple[Any, Any], feeds: Feeds, seconds: float) -> tuple[float, float, float]:
    """Return the seconds of a run of each, and the median ratio."""
    for session in sessions:
        _seconds(session, feeds, 50)
    runs = max(20, int(0.02 / _seconds(sessions[0], feeds, 20)))
    end, rounds = time.monotonic() + seconds, list[list[float]]()
    while time.monotonic() < end or len(rounds) < 5:
        rounds.append([_seconds(session, feeds, runs) for session in sessions])
    theirs, ours = map(min, zip(*rounds, strict=True))
    return theirs, ours, statistics.median(ours / theirs for theirs, ours in rounds)


def starts(opened: Callable[[], Any], feeds: Feeds) -> list[float]:
    """Return the seconds of loading, of the first run, and of a run with another batch size."""
    more = {name: np.concatenate([array] * 3) for name, array in feeds.items()}
    tries = []
    for _ in range(5):
        marks = [time.perf_counter()]
        session = opened()
        marks.append(time.perf_counter())
        for fed in (feeds, more):
            session.run(None, fed)
            marks.append(time.perf_counter())
        tries.append([after - before for before, after in zip(marks, marks[1:], strict=False)])
    return [min(times) for times in zip(*tries, strict=True)]


def main() -> None:
    """Print the table, and append a row for each model."""
    parser = Command(__doc__)
    parser.add_argument("models", nargs="*", choices=[*MODELS, *CLASSICAL, []], metavar="MODEL", help="by default all")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timed runs for each model")
    parser.add_argument("--dry", action="store_true", help="print, and append no rows")
    arguments = parser.parse_args()
    import onnxruntime

    torch.set_num_threads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    print(
        f"{'model':>20} {'stock':>11} {'ontrain':>11} {'ratio':>6}   loading, first run, other size, ms: stock's; ours"
    )
    ratios = []
    for name in arguments.models or [*MODELS, *CLASSICAL]:
        content, feeds = exported(name)

        def theirs(content: bytes = content) -> Any:
            return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

        def ours(content: bytes = content) -> Any:
            return ontrain.InferenceSession(content, options, providers=["TorchExecutionProvider"])

        stock, own, ratio = latency((theirs(), ours()), feeds, arguments.seconds)
        ratios.append(ratio)
        begun = [starts(opened, feeds) for opened in (theirs, ours)]
        told = "; ".join(" ".join(f"{seconds * 1e3:6.1f}" for seconds in each) for each in begun)
        print(f"{name:>20} {stock * 1e6:8.1f} µs {own * 1e6:8.1f} µs {ratio:6.2f}   {told}", flush=True)
        if not arguments.dry:
            append_row("small_models", {"model": name, "onnxruntime_us": stock * 1e6, "ontrain_us": own * 1e6,
                                        "ratio": ratio, "onnxruntime_starts_ms": [s * 1e3 for s in begun[0]],
                                        "ontrain_starts_ms": [s * 1e3 for s in begun[1]]})  # fmt: skip
    print(f"{len(ratios)} models, geometric mean {statistics.geometric_mean(ratios):.2f}, largest {max(ratios):.2f}")


if __name__ == "__main__":
    main()
