"""The table of formulations that a new machine begins with: measured here, for the kind of processor that this is.

    python -m benchmarks.expected
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 python -m benchmarks.expected

Writes src/ontrain/providers/torch/expected.json: by kind of processor, number of threads (1, or 2 for more) and layout
of a product, its sizes and the formulation that is about the fastest. The second command has the libraries take this
processor for one with narrower vectors. What the file says of other kinds of processors stays.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.commands import Command

FILE = Path(__file__).parents[1] / "src/ontrain/providers/torch/expected.json"


def main() -> None:
    """Write the file."""
    Command(__doc__).parse_args()
    from benchmarks.formulations import measure
    from ontrain.providers.torch.expected import kind

    table = {**json.loads(FILE.read_text(encoding="utf-8")), kind(): measure()}
    lines = [f" {json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table)]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    for name, about in table.items():
        taken = [row[1] for known in about["products"].values() for rows in known.values() for row in rows]
        print(name, {formulation: taken.count(formulation) for formulation in dict.fromkeys(taken)})


if __name__ == "__main__":
    main()
