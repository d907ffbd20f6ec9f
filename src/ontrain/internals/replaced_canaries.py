"""Trials of what is replaced while a module is traced: is it what torch calls there?"""

from __future__ import annotations

import inspect
from typing import Any
from unittest import mock

import torch
from torch import nn

from ontrain.internals.canary import calls, expect, expect_close

__all__ = [
    "aligns",
    "ask_class_for_forward",
    "checkpoints",
    "checks_values",
    "converts",
    "decomposes",
    "detects_causal",
    "engine",
    "is_a_flag",
    "names_weights",
    "packs",
    "pads",
    "passes_modes",
    "records_forward",
    "registers_hooks",
]


class _Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, *adjoints: Any) -> Any:
        return adjoints[0] * 3


def ask_class_for_forward(_: object) -> None:
    """`apply` asks a function's class for `_backward_cls` in the caller's mode, then for `forward`, and calls that."""
    from torch.autograd.function import FunctionMeta

    asked: list[tuple[str, bool]] = []

    def attribute(function: Any, name: str) -> Any:
        if function is _Tripled:
            asked.append((name, torch.is_grad_enabled()))
            if name == "forward" and ("_backward_cls", True) in asked:
                return lambda ctx, x: x * 5
        return type.__getattribute__(function, name)

    apply = _Tripled.apply
    with mock.patch.object(FunctionMeta, "__getattribute__", attribute):
        result = apply(torch.ones(1, requires_grad=True))  # type: ignore[no-untyped-call]
    expect(float(result.detach()) == 5, "apply does not call the forward that the class answers with")


def records_forward(_: object) -> None:
    """The node of an autograd function in autograd's record knows its class."""
    node: Any = _Tripled.apply(torch.ones(1, requires_grad=True)).grad_fn  # type: ignore[no-untyped-call]
    expect(isinstance(node, torch.autograd.function.BackwardCFunction), "the node is of another class")
    expect(node._forward_cls is _Tripled, "the node names another function")


def checks_values(_: object) -> None:
    """`if tensor:` asks the class for `__bool__`."""
    calls(lambda: bool(torch.ones(1)), torch.Tensor, "__bool__", True)


def engine(_: object) -> None:
    """Gradients are computed by what `torch.autograd` holds under the name."""
    x = torch.ones(1, requires_grad=True)
    calls(lambda: (x * 2).sum().backward(), torch.autograd, "_engine_run_backward", ())


def registers_hooks(_: object) -> None:
    """`tensor.register_hook` asks the class."""
    x: Any = torch.ones(1, requires_grad=True)
    calls(lambda: x.register_hook(print), torch.Tensor, "register_hook")


def aligns(_: object) -> None:
    """`functional.ctc_loss` calls it."""
    ones = torch.ones(1, dtype=torch.int64)
    calls(
        lambda: nn.functional.ctc_loss(torch.zeros(1, 1, 2), ones[None], ones, ones),
        torch, "ctc_loss", torch.ones(()),
    )  # fmt: skip


def packs(_: object) -> None:
    """`pack_padded_sequence` calls it."""
    from torch.nn.utils import rnn

    calls(
        lambda: rnn.pack_padded_sequence(torch.ones(2, 1, 1), torch.tensor([2])),
        torch._VF, "_pack_padded_sequence", (torch.ones(2, 1), torch.tensor([1, 1])),
    )  # fmt: skip


def pads(_: object) -> None:
    """`pad_packed_sequence` calls it."""
    from torch.nn.utils import rnn

    rows = rnn.PackedSequence(torch.ones(2, 1), torch.tensor([1, 1]))
    calls(
        lambda: rnn.pad_packed_sequence(rows),
        torch._VF, "_pad_packed_sequence", (torch.ones(2, 1, 1), torch.tensor([2])),
    )  # fmt: skip


def checkpoints(generator: Any) -> None:
    """A checkpoint that is not reentrant goes by the generator, which stops at its function."""
    from torch.utils import checkpoint

    run = inspect.unwrap(checkpoint.checkpoint)  # what wraps it imports torch._dynamo, which takes seconds
    calls(
        lambda: run(torch.sin, torch.ones(1, requires_grad=True), use_reentrant=False),
        checkpoint, generator.__name__, iter([None]),
    )  # fmt: skip


def converts(_: object) -> None:
    """`Module.to` is what a module's conversion goes by."""
    calls(lambda: nn.Identity().to(torch.float64), nn.Module, "to")


def decomposes(_: object) -> None:
    """A recurrent layer's shapes come from the functions that are replaced."""
    from torch._decomp import decompositions

    x, h, layer = torch.ones(2, 1, 3), torch.zeros(1, 1, 4), nn.LSTM(3, 4)
    weights = [weight.detach() for weight in layer.parameters()]
    asked: list[bool] = []

    def select(*operands: Any) -> Any:
        asked.append(True)
        return decompositions.one_layer_lstm

    with mock.patch.object(decompositions, "select_one_layer_lstm_function", select):
        y = decompositions.lstm_impl(x, [h, h], weights, True, 1, 0.0, False, False, False)[0]
    expect(bool(asked), "the choice of a layer's function is not asked for any more")
    expect_close(y, layer(x)[0].detach(), "the result of a layer")


def detects_causal(_: object) -> None:
    """A transformer's encoder asks it about its mask."""
    from torch.nn.modules import transformer

    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1, 4), 1, enable_nested_tensor=False)
    mask = torch.zeros(2, 2)
    calls(lambda: encoder(torch.ones(2, 1, 4), mask), transformer, "_detect_is_causal_mask", False)


def is_a_flag(flag: object) -> None:
    """It is True or False; which one a trace that may be under way says."""
    expect(isinstance(flag, bool), f"it is a {type(flag).__name__}")


def names_weights(_: object) -> None:
    """l1_loss gives it all three tensors, whether or not it tells the function's weights."""
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    told: list[Any] = []

    class Passing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def handled(function: Any, relevant: Any, *args: Any, **kwargs: Any) -> Any:
        told.append((function, relevant))
        return None

    x, target, weight = torch.ones(3), torch.zeros(3), torch.rand(3)
    weighted: Any = functional.l1_loss  # torch's stub leaves the weights out, too
    if "weight" not in inspect.signature(weighted).parameters:
        return
    with Passing(), mock.patch.object(functional, "handle_torch_function", handled):
        weighted(x, target, weight=weight)
    expect(len(told) == 1 and told[0][0] is functional.l1_loss and told[0][1][2] is weight, "weights are not handed on")


def passes_modes(_: object) -> None:
    """torch.export hands it a program that still has the calls that set the mode of gradients."""
    from torch._export.passes import replace_set_grad_with_hop_pass as passes

    class Blocked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = x * 2
            return x + y

    modes: list[Any] = []
    replacing = passes.replace_set_grad_with_hop_pass

    def look(module: Any, signature: Any) -> Any:
        modes.extend(node.args[0] for node in module.graph.nodes if node.target is torch._C._set_grad_enabled)
        return replacing(module, signature)

    with mock.patch.object(passes, "replace_set_grad_with_hop_pass", look):
        torch.export.export(Blocked(), (torch.ones(2),), strict=False)
    expect(modes == [False, True], "the program says otherwise where gradients are recorded")
