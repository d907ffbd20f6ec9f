"""Training steps with products in bfloat16, on a processor that has units for it: autocast, and products alone.

    python -m benchmarks.half [--models bert,gpt2,llama,vit,cola] [--rounds 9] [--epoch-steps 100]
    python -m benchmarks.half --curves

Six ways to take the same step, in turns, in one process a model: ORTModule in float32, under torch.autocast, and in
float32 with `BFloat16Products`; eager PyTorch in float32, under autocast, and in float32 with torch's own
`fp32_precision = "bf16"`, which on processors without AMX has oneDNN multiply in float32. Fused AdamW, weights in
float32. All sizes were planned before, but for CoLA: its batches come as they are, none twice, and the sums hold
capture and plans. The loss alone is read.

--curves trains a GPT-2 of four layers on the bytes of Python's own manual, 300 steps for each of three seeds, in all
three ways of ORTModule's, and evaluates on pages kept apart. Rows go to benchmarks/results/half.jsonl.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile

from tqdm import tqdm

from benchmarks.commands import Command
from benchmarks.fresh import in_fresh_process, report
from benchmarks.rows import append_row
from ontrain.errors import nearest

_MODELS = ("bert", "gpt2", "llama", "vit", "cola")
_SEEDS = (0, 1, 2)


def _curves() -> None:
    from benchmarks.half_training import STEPS, WAYS, curve

    for seed in _SEEDS:
        curves = {way: curve(way, seed) for way in tqdm(WAYS[:3], desc=f"seed {seed}")}
        reference = curves[WAYS[0]]["evaluated"]
        for way, trained in curves.items():
            print(f"seed {seed}  {way:22s} {trained['evaluated']:.4f}  {trained['evaluated'] / reference - 1:+.2%}")
        append_row("half", {"curves": True, "seed": seed, "steps": STEPS, "ways": curves})


def main() -> None:
    """Print a line a model, and append a row."""
    parser = Command(__doc__)
    parser.add_argument("--models", default=",".join(_MODELS), help="by commas")
    parser.add_argument("--rounds", type=int, default=9, help="steps of each way after three that do not count")
    parser.add_argument("--epoch-steps", type=int, default=100, help="batches of CoLA")
    parser.add_argument("--curves", action="store_true", help="losses instead of times")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        from benchmarks.half_training import measure

        report(measure(options.one, options.rounds, options.epoch_steps))
        return
    if options.curves:
        _curves()
        return
    names = options.models.split(",")
    for name in names:
        if name not in _MODELS:
            parser.error(f"no model {name!r}; near: {nearest(name, _MODELS)}")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["ONTRAIN_CACHE_DIR"] = folder
            arguments = ["--rounds", str(options.rounds), "--epoch-steps", str(options.epoch_steps)]
            try:
                seconds = in_fresh_process("benchmarks.half", "--one", name, *arguments)
            except subprocess.CalledProcessError as error:
                print(f"{name}: left out, {((error.stderr or '').strip().splitlines() or ['no word'])[-1]}")
                continue
        own, half = seconds["ORTModule"], seconds["ORTModule, autocast"]
        print(f"{name:6s}" + "".join(f"  {way} {figure:.3f} s" for way, figure in seconds.items()), flush=True)
        print(f"{'':6s}  autocast: {own / half:.2f} × own float32, {seconds['eager, autocast'] / half:.2f} × eager's")
        steps = options.epoch_steps if name == "cola" else options.rounds
        append_row("half", {"model": name, "steps": steps, "seconds": seconds})


if __name__ == "__main__":
    main()
