"""Writes docs/operators.md: the table of `ontrain check --operators`, with the samples that the tests check each with.

Run `make docs-operators` after a gradient rule, a lowering or a sample has come or gone.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx_ir as ir

from ontrain.inference.stepwise.kernels.evaluator import Evaluated
from ontrain.inference.stepwise.kernels.registry import find_kernel, is_control
from ontrain.operators import OPERATORS, Chance, Operator, Precision
from ontrain.session.check import OperatorSupport, check_operators
from tests.autodiff.samples import SAMPLES

TARGET = Path(__file__).parents[2] / "docs" / "operators.md"
ORACLES = 3
PROVIDERS = {
    "TorchExecutionProvider": "Torch",
    "OnnxRuntimeExecutionProvider": "onnxruntime",
    "ReferenceExecutionProvider": "Reference",
}

HEAD = f"""\
# Operators

Every operator of the standard that is not deprecated, and those of ours and of onnxruntime that a file or a step graph
may hold. This page is made by `make docs-operators`; `ontrain check --operators` prints the same for what is installed.

- **since**: opset version of the definition.
- **Torch, onnxruntime, Reference**: whether the provider runs it, for floats where it takes them. "step": no plan holds
  it in all its forms, and inference on the Torch provider runs it as a step between planned regions
  ([Inference](inference.md#steps)). "evaluator": so it does, by onnx's evaluator.
- **gradient**: by a rule of its own; through a body of other operators; zero wherever the derivative exists; or none.
- **record**: more from the operator's record: whether it works element by element; whether its result may take
  over the memory of an input; its kind of view, if it is a view; whether it draws random numbers; and what it runs in
  where a step is lowered to half precision, if that is not float32.
- **samples**: cases in the tests' table of samples. Each with a gradient is judged by {ORACLES} oracles: finite
  differences in float64, torch's autograd, and a third that is independent of both; and its forward and gradient on the
  Torch provider are compared with onnx's evaluator.

TreeEnsembleClassifier and TreeEnsembleRegressor, which the newest version of ai.onnx.ml deprecates, run as TreeEnsemble
does.
"""


def table() -> str:
    """The document's text."""
    rows = check_operators(list(PROVIDERS))
    samples = Counter((sample.domain or "ai.onnx", sample.op_type) for sample in SAMPLES)
    kinds = Counter(row.gradient for row in rows)
    runs = {short: Counter(_runs(row, name) for row in rows) for name, short in PROVIDERS.items()}
    count = f"{len(rows)} operators. Gradient: " + ", ".join(f"{kind} {kinds[kind]}" for kind in sorted(kinds))
    count += ". Run by: " + ", ".join(f"{short} {number['yes']}" for short, number in runs.items())
    count += f"; in steps beside plans of Torch {runs['Torch']['step']}, by the evaluator {runs['Torch']['evaluator']}."
    head = ["operator", "since", *PROVIDERS.values(), "gradient", "record", "samples", "how, or why not"]
    lines = [HEAD, count, "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cells(row, samples[row.domain, row.operator])) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cells(row: OperatorSupport, samples: int) -> list[str]:
    name = row.operator if row.domain == "ai.onnx" else f"{row.domain}.{row.operator}"
    runs = [_runs(row, provider) for provider in PROVIDERS]
    told = row.reason.replace("|", "\\|") if row.gradient in ("body", "none") else ""
    record = OPERATORS["" if row.domain == "ai.onnx" else row.domain, row.operator]
    return [name, str(row.since or ""), *runs, row.gradient, _said(record), str(samples or ""), told]


def _runs(row: OperatorSupport, provider: str) -> str:
    """Whether a provider runs an operator, in a word."""
    if row.providers[provider] is None:
        return "yes"
    domain = "" if row.domain == "ai.onnx" else row.domain
    if OPERATORS[domain, row.operator].reads_shape:
        return "yes"  # plans have shapes as numbers
    return _beside_plans(domain, row.operator) if provider == "TorchExecutionProvider" else "no"


def _beside_plans(domain: str, op_type: str) -> str:
    """How ontrain runs an operator that a provider lacks: as a step, or in onnx's evaluator."""
    node = ir.Node(domain, op_type, [], num_outputs=1)
    if is_control(node) or find_kernel(node) is not None:
        return "step"
    return "evaluator" if Evaluated.knows(node) else "no"


_PRECISION = {
    Precision.HALF: "half", Precision.SCALED: "bfloat16", Precision.FOLLOWS: "its operands' precision",
    Precision.OWN: "the precision it names",
}  # fmt: skip


def _said(record: Operator) -> str:
    said = [
        "elementwise" if record.elementwise else "",
        "in place" if record.overwrites else "",
        f"view: {record.view.name.lower()}" if record.view.value != "not at all" else "",
        "random" if record.chance is not Chance.NEVER else "",
        _PRECISION.get(record.precision, ""),
    ]
    return ", ".join(filter(None, said))


if __name__ == "__main__":
    TARGET.write_text(table())
