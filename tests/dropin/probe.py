"""onnxruntime's surface name by name, looked up in the installed one: python -m tests.dropin.probe [NAME…].

A name is onnxruntime's own object in ontrain, or an object of ontrain's: then its signature is compared, and calls of
it, right ones and wrong ones, on onnxruntime's providers and on the torch provider. The command prints these names, and
what their calls come to.
"""

from __future__ import annotations

import importlib
import inspect
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from types import ModuleType

import onnxruntime

import ontrain
from tests.dropin.calls import CALLS
from tests.dropin.models import write
from tests.dropin.twins import compare

PROVIDERS = ("CPUExecutionProvider", "TorchExecutionProvider")
MODULES = (
    "backend", "datasets", "quantization", "quantization.calibrate", "quantization.matmul_bnb4_quantizer",
    "quantization.matmul_nbits_quantizer", "quantization.preprocess", "quantization.qdq_loss_debug",
    "quantization.shape_inference", "tools.make_dynamic_shape_fixed", "tools.onnx_model_utils",
    "tools.optimize_onnx_model", "tools.remove_initializer_from_input", "tools.symbolic_shape_infer",
    "tools.update_onnx_opset", "transformers.float16", "transformers.fusion_options", "transformers.onnx_model",
    "transformers.optimizer",
)  # fmt: skip
"""Modules below onnxruntime that programs import from."""
Pair = tuple[object, object]
_MISSING = object()


def public(module: ModuleType) -> list[str]:
    """The names that a module or class offers, without what it imported itself."""
    names = [name for name in dir(module) if not name.startswith("_")]
    return [name for name in names if not isinstance(getattr(module, name), ModuleType)]


def pairs() -> Iterator[tuple[str, Pair]]:
    """Each name of onnxruntime's with what it is there and in ontrain."""
    for name in public(onnxruntime):
        theirs, ours = getattr(onnxruntime, name), getattr(ontrain, name, _MISSING)
        yield name, (theirs, ours)
        if inspect.isclass(theirs):
            for member in ["__init__", *public(theirs)]:
                yield f"{name}.{member}", (getattr(theirs, member), getattr(ours, member, _MISSING))
    for path in MODULES:
        theirs, ours = (importlib.import_module(f"{package}.{path}") for package in ("onnxruntime", "ontrain"))
        for name in public(theirs):
            if getattr(getattr(theirs, name), "__module__", "onnxruntime").startswith("onnxruntime"):
                yield f"{path}.{name}", (getattr(theirs, name), getattr(ours, name, _MISSING))


def is_upstreams(pair: Pair) -> bool:
    """Whether ontrain has onnxruntime's own object, or an equal constant."""
    theirs, ours = pair
    return theirs is ours or bool(theirs == ours)


def arguments(function: Callable[..., object]) -> list[tuple[str, object]] | int:
    """Names and defaults of a function's arguments; of one of pybind's, which tells no names, their number."""
    try:
        return [(a.name, a.default) for a in inspect.signature(function).parameters.values() if a.name != "self"]
    except ValueError:
        line = (function.__doc__ or "").splitlines()[0]
        return line.count("arg")


def signature_differs(pair: Pair) -> str:
    """How ontrain's function takes other arguments, "" where it takes onnxruntime's; further ones may follow."""
    theirs, ours = map(arguments, pair)
    if isinstance(theirs, int):
        count = ours if isinstance(ours, int) else len(ours)
        return "" if count == theirs else f"{count} arguments, {theirs} of onnxruntime's"
    named = [*theirs] if isinstance(ours, int) else ours[: len(theirs)]
    return "" if named == theirs else f"{named}, {theirs} of onnxruntime's"


def differences(name: str, folder: pathlib.Path, provider: str) -> list[str]:
    """What the calls of a name come to that onnxruntime does not come to."""
    told = []
    for number, call in enumerate(CALLS.get(name, ())):
        try:
            compare(call, folder, folder, [provider])
        except AssertionError as error:
            told.append(f"call {number}: {error}")
    return told


def main(*wanted: str) -> None:
    """Print the names that are objects of ontrain's own, and what differs."""
    folder = write(pathlib.Path(tempfile.mkdtemp()))
    everything = dict(pairs())
    own = {name: pair for name, pair in everything.items() if not is_upstreams(pair)}
    for name in dict.fromkeys([*own, *CALLS]):
        if wanted and name not in wanted:
            continue
        told = ["missing"] if own.get(name, (None, None))[1] is _MISSING else []
        if name in own and not told and not inspect.isclass(own[name][0]):
            told += filter(None, [signature_differs(own[name])])
        told += [f"{provider}: {text}" for provider in PROVIDERS for text in differences(name, folder, provider)]
        print(f"{name:60} {len(CALLS.get(name, ())):3} calls  {'; '.join(told) or 'the same'}")
    print(f"{len(everything)} names, {len(everything) - len(own)} are onnxruntime's own objects")


if __name__ == "__main__":
    main(*sys.argv[1:])
