"""Files that ontrain writes of BERT, GPT-2, ViT and ResNet beside those of torch's exporter: nodes, bytes, differences.

    pip install onnxscript  # which torch's exporter asks for
    python -m benchmarks.exports [--opset 20]

For each model with random weights: how many nodes and bytes the files of `ORTTrainer.save_as_onnx` and of
`torch.onnx.export(dynamo=True)` have at one opset, by default 20, torch's own; how the axes of the output are called;
and the largest difference between what stock onnxruntime makes of either file and what the module gives.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.commands import Command

if TYPE_CHECKING:
    from torch import nn

    from benchmarks.exported_models import Case


def by_torch(case: Case, model: nn.Module, path: Path, opset: int) -> None:
    """Write a file by torch's exporter."""
    import torch

    dims = {axis: torch.export.Dim(name) for axis, name in case.axes.items()}
    # Its report goes to the output of the program.
    with contextlib.redirect_stdout(io.StringIO()):
        program: Any = torch.onnx.export(
            model, tuple(case.inputs.values()), dynamo=True, opset_version=opset, output_names=["logits"],
            input_names=[*case.inputs], dynamic_shapes=dict.fromkeys(case.inputs, dims),
        )  # fmt: skip
    program.save(path)


def by_ontrain(case: Case, model: nn.Module, path: Path, opset: int) -> None:
    """Write a file by a trainer that has made no step."""
    import torch

    from benchmarks.exported_models import token_loss
    from ontrain.training import ORTTrainer, optim

    logits = model(**case.inputs)
    shape = [case.axes.get(axis, size) for axis, size in enumerate(logits.shape)]
    described = [
        (name, [case.axes.get(axis, size) for axis, size in enumerate(tensor.shape)])
        for name, tensor in case.inputs.items()
    ]
    labels = torch.zeros(logits.shape[:-1], dtype=torch.int64)
    desc = {
        "inputs": [*described, ("labels", shape[:-1])],
        "outputs": [("loss", [], True), ("logits", shape)],
    }
    options = {"device": {"id": "cpu"}}
    trainer = ORTTrainer(model, desc, optim.SGDConfig(lr=0.0), token_loss, options)
    trainer.eval_step(*case.inputs.values(), labels)
    trainer.save_as_onnx(path, opset)


def main() -> None:
    """Print a line for each model and exporter."""
    parser = Command(__doc__)
    parser.add_argument("--opset", type=int, default=20, help="operator set of the files")
    opset = parser.parse_args().opset
    import onnx
    import onnxruntime
    import torch

    from benchmarks.exported_models import cases

    torch.manual_seed(0)
    print(f"{'model':8}{'exporter':10}{'nodes':>6}{'bytes':>10}  {'axes of the output':26}{'difference':>10}")
    for name, case in cases().items():
        model = case.model().eval()
        with torch.no_grad():
            wanted = model(**case.inputs).numpy()
        for exporter, write in (("torch", by_torch), ("ontrain", by_ontrain)):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.onnx"
                write(case, model, path, opset)
                graph, size = onnx.load(path).graph, path.stat().st_size
                session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
                (logits,) = session.run(None, {key: tensor.numpy() for key, tensor in case.inputs.items()})
            axes = [dim.dim_param or dim.dim_value for dim in graph.output[0].type.tensor_type.shape.dim]
            difference = np.abs(logits - wanted).max()
            print(f"{name:8}{exporter:10}{len(graph.node):6}{size:10}  {axes!s:26}{difference:10.1e}")


if __name__ == "__main__":
    main()
