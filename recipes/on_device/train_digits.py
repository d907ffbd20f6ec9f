"""Train the digit classifier with nothing but onnxruntime and numpy: what a device does, in Python.

    $ python recipes/on_device/train_digits.py
    $ python recipes/on_device/train_digits.py --epochs 20 --learning-rate 1e-3
    $ python recipes/on_device/train_digits.py --artifacts recipes/on_device/artifacts/personal

The first reads artifacts/scratch, which make_artifacts.py writes, and prints the loss of each epoch and the share of
test digits that are recognised. Neither ontrain nor PyTorch is imported. `ontrain.training.api` does the same in fewer
lines.

A checkpoint is a safetensors file: 8 bytes that hold the length of a JSON header, the header, and the numbers. Names
say what is what: gradients are `{parameter}_grad`, next values `{name}.next`.

Exit codes: 0 done; 2 an option is at fault, or a package is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

HERE = Path(__file__).parent
BATCH = 32
FILES = ("training_model.onnx", "optimizer_model.onnx", "eval_model.onnx", "checkpoint")


def parse() -> argparse.Namespace:
    as_written, shown = argparse.RawDescriptionHelpFormatter, " [default: %(default)s]"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    artifacts = HERE / "artifacts" / "scratch"
    parser.add_argument("--artifacts", type=Path, default=artifacts, help=f"folder of make_artifacts.py{shown}")
    parser.add_argument("--epochs", type=int, default=5, help=f"passes over the digits{shown}")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help=f"AdamW's{shown}")
    options = parser.parse_args()
    if options.epochs < 1 or not 0 <= options.learning_rate < math.inf:
        parser.error("--epochs counts from 1, and --learning-rate is a number from 0")
    for path in (options.artifacts / name for name in FILES):
        if not path.is_file():
            parser.error(f"{path} is no file: make_artifacts.py writes one")
    return options


if __name__ == "__main__":
    OPTIONS = parse()  # before the packages, for which --help need not wait

try:
    import numpy as np
    import onnxruntime
except ModuleNotFoundError as error:
    print(f"error: {error}\n  {sys.executable} -m pip install numpy onnxruntime", file=sys.stderr)
    raise SystemExit(2) from None


def read_checkpoint(path: Path) -> dict[str, np.ndarray]:
    """Return the parameters by name."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    parameters = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            parameters[name] = np.frombuffer(content[start + begin : start + end], "<f4").reshape(entry["shape"])
    return parameters


class Graph:
    """An onnxruntime session that takes and gives arrays by name."""

    def __init__(self, path: Path) -> None:
        self.session = onnxruntime.InferenceSession(path)
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        self.outputs = [value.name for value in self.session.get_outputs()]

    def __call__(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        feeds = {name: values[name] for name in self.inputs}
        return dict(zip(self.outputs, self.session.run(None, feeds), strict=True))


def main(options: argparse.Namespace) -> None:
    rows = np.loadtxt(HERE / "digits.csv.gz", delimiter=",", dtype=np.float32)
    images, digits = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].astype(np.int64)
    test = np.arange(len(rows)) % 5 == 4
    batches = np.split(np.flatnonzero(~test), range(BATCH, (~test).sum(), BATCH))

    step, evaluate = (Graph(options.artifacts / f"{name}.onnx") for name in ("training_model", "eval_model"))
    update = Graph(options.artifacts / "optimizer_model.onnx")
    state = read_checkpoint(options.artifacts / "checkpoint")
    for name, value_info in update.inputs.items():
        if name.endswith((".exp_avg", ".exp_avg_sq")):
            state[name] = np.zeros(value_info.shape, np.float32)

    count = 0
    for epoch in range(options.epochs):
        losses = []
        for batch in batches:
            results = step({**state, "image": images[batch], "labels": digits[batch]})
            losses.append(results["loss"])
            count += 1
            hyper = {"learning_rate": np.array(options.learning_rate, np.float32), "step": np.array(count, np.float32)}
            news = update({**state, **results, **hyper})
            state.update((name.removesuffix(".next"), value) for name, value in news.items())
        results_of_test = evaluate({**state, "image": images[test], "labels": digits[test]})
        right = (results_of_test["logits"].argmax(1) == digits[test]).mean()
        print(f"epoch {epoch + 1}  loss {np.mean(losses):.4f}  test {results_of_test['loss']:.4f}  right {right:.3f}")


if __name__ == "__main__":
    main(OPTIONS)
