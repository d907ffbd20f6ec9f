"""Judges mutated files, one line a case: `python -m tests.capture.onnx_file.worker FIRST LAST SEED`.

A line is the case's number and what it came to. Before a case is judged, and before onnxruntime sees it, the stage is
written too: when the process dies, its parent knows where.
"""

from __future__ import annotations

import resource
import signal
import sys
import warnings
from typing import Any

import numpy as np
import onnxruntime
import torch

from ontrain import NonFiniteLossError, OntrainError
from ontrain.operators import OPERATORS, Chance
from ontrain.training import ORTTrainer, optim
from tests.capture.onnx_file.models import KINDS, File
from tests.capture.onnx_file.mutations import mutate

SECONDS, BYTES = 5, 1 << 30
RANDOM = {name for (_, name), record in OPERATORS.items() if record.chance is Chance.ALWAYS}


def files() -> list[File]:
    return [make(np.random.default_rng(7)) for make in KINDS.values()]


def case(number: int, seed: int, kinds: list[File]) -> tuple[File, bytes]:
    """The case's model and its mutated file, from its number and the seed alone."""
    file = kinds[number % len(kinds)]
    return file, mutate(file.proto, np.random.default_rng([seed, number]))


def judge(file: File, content: bytes, say: Any) -> str:
    """Train a file for one step and compare its evaluation with onnxruntime's."""
    options = {"device": {"id": "cpu"}, "utils": {"seed": 1}}
    batch = list(file.batch.values())
    try:
        trainer = ORTTrainer(content, file.desc, optim.SGDConfig(lr=0.01), file.loss, options)
        scores = trainer.eval_step(*batch)[1].numpy()
        outcome = "trained"
        try:
            trainer.train_step(*batch)
        except NonFiniteLossError:
            outcome = "diverged"
    except OntrainError as error:
        return f"refused {type(error).__name__} {str(error).splitlines()[0]!r}"
    say("oracle")
    expected = oracle(content, file)
    if expected is None:
        return f"{outcome} unjudged"
    if scores.shape != expected.shape or not np.allclose(scores, expected, rtol=1e-4, atol=1e-5, equal_nan=True):
        return f"WRONG {scores.reshape(-1)[:4]} where onnxruntime has {expected.reshape(-1)[:4]}"
    return f"{outcome} right"


def oracle(content: bytes, file: File) -> Any:
    """What stock onnxruntime computes without optimisation; None where it refuses the file or the batch, or draws."""
    if any(name.encode() in content for name in RANDOM):
        return None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = onnxruntime.InferenceSession(content, options)
        feeds = {i.name: file.batch[i.name] for i in session.get_inputs() if i.name in file.batch}
        return session.run(["y"], feeds)[0]
    except Exception:  # noqa: BLE001  # onnxruntime's errors share no base; whatever it says, it gives no answer
        return None


def main(first: int, last: int, seed: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kinds = files()
    for kind in kinds[:1]:  # what is loaded and allocated once is no case's fault
        judge(kind, kind.proto.SerializeToString(), lambda _: None)
    with open("/proc/self/statm") as statm:
        base = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (base + BYTES, base + BYTES))
    for number in range(first, last):

        def say(text: str, number: int = number) -> None:
            print(number, text, flush=True)

        say("begins")
        # The default action ends the process, native loops too; the clock is the process's own.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(60)
        try:
            file, content = case(number, seed, kinds)
            say("done " + judge(file, content, say))
        except Exception as error:  # noqa: BLE001  # that one comes out is what is looked for
            where = error.__traceback__
            while where is not None and where.tb_next is not None:
                where = where.tb_next
            place = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where is not None else ""
            say(f"done BARE {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} at {place}")
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:4]))
