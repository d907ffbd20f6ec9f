"""Writes docs/operators.md: the table of `ontrain check --operators`, with the samples that the tests check each with.

Run `make docs-operators` after a gradient rule, a lowering or a sample has come or gone.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

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
- **Torch, onnxruntime, Reference**: whether the provider runs it, for floats where it takes them.
- **gradient**: by a rule of its own; through a body of other operators; zero wherever the derivative exists; or none.
- **samples**: cases in the tests' table of samples. Each with a gradient is judged by {ORACLES} oracles: finite
  differences in float64, torch's autograd, and a third that is independent of both; and its forward and gradient on the
  Torch provider are compared with onnx's evaluator.

Operators of ai.onnx.ml are not listed: classical models are fitted before they are exported, not trained by gradients.
"""


def table() -> str:
    """The document's text."""
    rows = check_operators(list(PROVIDERS))
    samples = Counter((sample.domain or "ai.onnx", sample.op_type) for sample in SAMPLES)
    kinds = Counter(row.gradient for row in rows)
    runs = {short: sum(row.providers[name] is None for row in rows) for name, short in PROVIDERS.items()}
    count = f"{len(rows)} operators. Gradient: " + ", ".join(f"{kind} {kinds[kind]}" for kind in sorted(kinds))
    count += ". Run by: " + ", ".join(f"{short} {number}" for short, number in runs.items()) + "."
    head = ["operator", "since", *PROVIDERS.values(), "gradient", "samples", "how, or why not"]
    lines = [HEAD, count, "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cells(row, samples[row.domain, row.operator])) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cells(row: OperatorSupport, samples: int) -> list[str]:
    name = row.operator if row.domain == "ai.onnx" else f"{row.domain}.{row.operator}"
    runs = ["yes" if row.providers[provider] is None else "no" for provider in PROVIDERS]
    told = row.reason.replace("|", "\\|") if row.gradient in ("body", "none") else ""
    return [name, str(row.since or ""), *runs, row.gradient, str(samples or ""), told]


if __name__ == "__main__":
    TARGET.write_text(table())
