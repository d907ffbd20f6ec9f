"""Write the files that train a digit classifier on a device: step 1 of this recipe, on a machine with ontrain.

    $ python recipes/on_device/make_artifacts.py
    $ python recipes/on_device/make_artifacts.py --epochs 20
    $ python recipes/on_device/make_artifacts.py --output ~/digits

The first trains a small convolutional network on four fifths of digits.csv.gz, a few seconds, and writes two folders
into recipes/on_device/artifacts:

    scratch/    the network before training; every weight is trained
    personal/   the network after training; the last two layers go on learning, the rest are constants of the graphs

Each holds training_model.onnx, eval_model.onnx, optimizer_model.onnx, step_model.onnx and checkpoint. They consist of
standard ONNX operators, so that any onnxruntime trains with them. Step 2 is one of

    $ python recipes/on_device/train_digits.py                    Python: onnxruntime and numpy, nothing else
    $ cd recipes/on_device && npm install && npm run train        Node.js: onnxruntime-web
    $ python -m http.server -d recipes/on_device                  a page: open http://localhost:8000 and draw

Exit codes: 0 done; 2 an option is at fault.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from harness.needs import need

need("ontrain", "torch", "numpy")

from harness.options import execute


def count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0")
    return int(text)


def parse() -> argparse.Namespace:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    output, shown = Path(__file__).parent / "artifacts", " [default: %(default)s]"
    parser.add_argument("--output", type=Path, default=output, help=f"folder to write to{shown}")
    parser.add_argument("--epochs", type=count, default=8, help=f"of training before personal/ is written{shown}")
    return parser.parse_args()


if __name__ == "__main__":
    OPTIONS = parse()  # before torch, which --help need not wait for

import numpy as np
import torch
from torch import nn

from ontrain.training import ORTTrainer, optim
from ontrain.training.artifacts import LossType, OptimType, generate_artifacts

HERE = Path(__file__).parent

DESCRIPTION = {
    "inputs": [("image", ["batch", 1, 8, 8]), ("label", ["batch"])],
    "outputs": [("loss", [], True), ("logits", ["batch", 10])],
}


class Classifier(nn.Module):
    """Two convolutions and two linear layers: 16·9 + 16 + 16·32·9 + 32 + 128·64 + 64 + 64·10 + 10 = 13,706 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.hidden, self.output = nn.Linear(128, 64), nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits [batch, 10] of images [batch, 1, 8, 8] of 0 to 1."""
        x = nn.functional.max_pool2d(self.conv1(image).relu(), 2)
        x = nn.functional.max_pool2d(self.conv2(x).relu(), 2)
        return self.output(self.hidden(x.flatten(1)).relu())


def load() -> list[torch.Tensor]:
    """Return images [n, 1, 8, 8] of 0 to 1 and digits [n] to train with, and those to test with: each fifth row."""
    rows = torch.from_numpy(np.loadtxt(HERE / "digits.csv.gz", delimiter=",", dtype=np.float32))
    test = torch.arange(len(rows)) % 5 == 4
    return [
        part
        for half in (rows[~test], rows[test])
        for part in (half[:, :64].reshape(-1, 1, 8, 8) / 16, half[:, 64].long())
    ]


def write(model: Path, folder: Path, trained: list[str] | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    generate_artifacts(
        model,
        requires_grad=trained,
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        artifact_directory=folder,
        additional_output_names=["logits"],
        step_model=True,
    )
    print(folder, *sorted(path.name for path in folder.iterdir()))


def main(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    images, digits, test_images, test_digits = load()
    trainer = ORTTrainer(
        Classifier(), DESCRIPTION, optim.AdamConfig(lr=2e-3), nn.functional.cross_entropy, {"device": {"id": "cpu"}}
    )
    model = options.output / "classifier.onnx"
    options.output.mkdir(parents=True, exist_ok=True)
    trainer.eval_step(images[:32], digits[:32])
    trainer.save_as_onnx(model, optimize=False)
    write(model, options.output / "scratch", None)
    for _ in range(options.epochs):
        for rows in torch.randperm(len(images)).split(32):
            trainer.train_step(images[rows], digits[rows])
    _, logits = trainer.eval_step(test_images, test_digits)
    print(f"after {options.epochs} epochs right on {(logits.argmax(1) == test_digits).float().mean():.3f} of the test")
    trainer.save_as_onnx(model, optimize=False)
    write(model, options.output / "personal", ["hidden.weight", "hidden.bias", "output.weight", "output.bias"])


if __name__ == "__main__":
    execute(main, OPTIONS)
