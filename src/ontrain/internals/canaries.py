"""Small trials of what torch does behind names that it does not promise: each raises where it does something else.

A trial takes the object that stands under the name. It runs in a thread of its own, on a few numbers, without changing
anything, the random state included. `expect` is what each ends in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch import nn

__all__ = ["CanaryError"]


class CanaryError(Exception):
    """A trial came out otherwise than expected."""


def expect(holds: bool, what: str) -> None:
    """Raise unless it holds."""
    if not holds:
        raise CanaryError(what)


def expect_close(actual: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    """Raise unless a result has the dtype, shape and values of another way to compute it."""
    expect(actual.dtype == wanted.dtype and actual.shape == wanted.shape, f"{what} has another dtype or shape")
    expect(torch.allclose(actual, wanted, rtol=1e-4, atol=1e-5), f"{what} has other values")


def expect_results(results: Any, like: Sequence[tuple[Sequence[int], torch.dtype]]) -> None:
    """Raise unless there are so many results, of these shapes and dtypes."""
    expect(isinstance(results, tuple | list) and len(results) == len(like), f"not {len(like)} results")
    for place, (result, (shape, dtype)) in enumerate(zip(results, like, strict=True)):
        expect(result.dtype == dtype and tuple(result.shape) == tuple(shape), f"result {place} has another form")


def _numbers(*shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.linspace(-1.0, 1.0, count).mul(2.7).sin().view(shape)


# What is replaced while a module is traced


class _Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, *adjoints: Any) -> Any:
        return adjoints[0] * 3


def calls(run: Callable[[], Any], owner: Any, attribute: str, result: Any = None) -> None:
    """Raise unless `run` comes by what is put in place of an attribute."""
    called: list[bool] = []

    def instead(*args: Any, **kwargs: Any) -> Any:
        called.append(True)
        return result

    with mock.patch.object(owner, attribute, instead):
        run()
    expect(bool(called), f"{attribute} is not called any more")


def ask_class_for_forward(_: Any) -> None:
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


def records_forward(_: Any) -> None:
    """The node of an autograd function in autograd's record knows its class."""
    node: Any = _Tripled.apply(torch.ones(1, requires_grad=True)).grad_fn  # type: ignore[no-untyped-call]
    expect(isinstance(node, torch.autograd.function.BackwardCFunction), "the node is of another class")
    expect(node._forward_cls is _Tripled, "the node names another function")


def checks_values(_: Any) -> None:
    """`if tensor:` asks the class for `__bool__`."""
    calls(lambda: bool(torch.ones(1)), torch.Tensor, "__bool__", True)


def engine(_: Any) -> None:
    """Gradients are computed by what `torch.autograd` holds under the name."""
    x = torch.ones(1, requires_grad=True)
    calls(lambda: (x * 2).sum().backward(), torch.autograd, "_engine_run_backward", ())  # type: ignore[no-untyped-call]


def packs(_: Any) -> None:
    """`pack_padded_sequence` calls it."""
    from torch.nn.utils import rnn

    calls(
        lambda: rnn.pack_padded_sequence(torch.ones(2, 1, 1), torch.tensor([2])),
        torch._VF, "_pack_padded_sequence", (torch.ones(2, 1), torch.tensor([1, 1])),
    )  # fmt: skip


def checkpoints(generator: Any) -> None:
    """A checkpoint that is not reentrant goes by the generator, which stops at its function."""
    from torch.utils import checkpoint

    run = inspect.unwrap(checkpoint.checkpoint)  # what wraps it imports torch._dynamo, which takes seconds
    calls(
        lambda: run(torch.sin, torch.ones(1, requires_grad=True), use_reentrant=False),
        checkpoint, generator.__name__, iter([None]),
    )  # fmt: skip


def converts(_: Any) -> None:
    """`Module.to` is what a module's conversion goes by."""
    calls(lambda: nn.Identity().to(torch.float64), nn.Module, "to")


def decomposes(_: Any) -> None:
    """A recurrent layer's shapes come from the functions that are replaced."""
    from torch._decomp import decompositions

    x, h, layer = torch.ones(2, 1, 3), torch.zeros(1, 1, 4), nn.LSTM(3, 4)
    weights = [one.detach() for one in layer.parameters()]
    asked: list[bool] = []

    def select(*operands: Any) -> Any:
        asked.append(True)
        return decompositions.one_layer_lstm

    with mock.patch.object(decompositions, "select_one_layer_lstm_function", select):
        y = decompositions.lstm_impl(x, [h, h], weights, True, 1, 0.0, False, False, False)[0]
    expect(bool(asked), "the choice of a layer's function is not asked for any more")
    expect_close(y, layer(x)[0].detach(), "the result of a layer")


def detects_causal(_: Any) -> None:
    """A transformer's encoder asks it about its mask."""
    from torch.nn.modules import transformer

    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1, 4), 1, enable_nested_tensor=False)
    mask = torch.zeros(2, 2)
    calls(lambda: encoder(torch.ones(2, 1, 4), mask), transformer, "_detect_is_causal_mask", False)


# What is called or read while a module is traced


def modes(set_enabled: Any) -> None:
    """It sets the mode of gradients."""
    set_enabled(False)
    expect(not torch.is_grad_enabled(), "gradients are still enabled")
    set_enabled(True)
    expect(torch.is_grad_enabled(), "gradients are still disabled")


def parses_to(parse: Any) -> None:
    """It returns device, dtype, whether not to wait, and the memory format of `Module.to`'s arguments."""
    found = parse(torch.device("cpu"), torch.float64)
    expect(len(found) == 4 and found[:2] == (torch.device("cpu"), torch.float64), "other results")


def fakes(mode: Any) -> None:
    """Under the mode tensors have shapes, and no values."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

    with mode(allow_non_fake_inputs=True):
        made = torch.ones(2, 3) @ torch.ones(3, 4)
        expect(type(made) is FakeTensor and tuple(made.shape) == (2, 4), "no fake tensor of that shape")
        try:
            made.sum().item()
        except DataDependentOutputException:
            return
    raise CanaryError("a fake tensor gave a value")


def dispatches(mode: Any) -> None:
    """Each operator below autograd goes by the mode, until it is disabled."""
    seen: list[str] = []

    class Written(mode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            with torch._C._DisableTorchDispatch():
                return func(*args, **(kwargs or {}))

    with Written():
        torch.ones(2).mul(torch.ones(2))
    expect("aten.mul.Tensor" in seen, "an operator passes by")


def dispatches_not(_: Any) -> None:
    """Under it a mode sees nothing."""
    from torch.utils._python_dispatch import TorchDispatchMode

    dispatches(TorchDispatchMode)


def knows_operators(overload: Any) -> None:
    """An operator has a schema, a name of its overload, and a function in C that computes the same."""
    op: Any = torch.ops.aten.add_.Tensor
    expect(isinstance(op, overload), "an operator is of another class")
    expect(op._schema.name == "aten::add_" and op._schema.is_mutable, "another schema")
    expect(op._schema.arguments[0].alias_info.is_write, "the schema does not say what is written")
    expect(op._overloadname == "Tensor", "another name of the overload")
    expect_close(op._op(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0), "the function in C")


def knows_operators_of_instance(_: Any) -> None:
    """The same, where the class is not asked for."""
    knows_operators(type(torch.ops.aten.add_.Tensor))


def nests(operator: Any) -> None:
    """torch.cond is one of the operators that take functions, and has its name."""
    cond: Any = torch.ops.higher_order.cond
    expect(isinstance(cond, operator) and cond._name == "cond", "cond is something else")


def nests_of_instance(_: Any) -> None:
    """The same, where the class is not asked for."""
    expect(torch.ops.higher_order.cond._name == "cond", "cond has another name")


def fields_of_aliasing(info: Any) -> None:
    """It says whether there is aliasing, and what."""
    expect(info(False, "").has_aliasing is False, "it has other fields")


def is_a_dictionary(hooks: Any) -> None:
    """Hooks are in a dictionary, which is empty where there are none."""
    expect(isinstance(hooks, dict), "it is no dictionary")


def is_base_of_batch_norms(base: Any) -> None:
    """Every batch normalisation is one of its kind."""
    expect(all(issubclass(one, base) for one in (nn.BatchNorm1d, nn.SyncBatchNorm)), "it is not their base")
    expect(hasattr(nn.BatchNorm1d(2), "track_running_stats"), "it has other attributes")


def number() -> torch.Tensor:
    """A tensor."""
    return torch.ones(())


def maps_trees(pytree: Any) -> None:
    """Trees of lists, tuples and dictionaries."""
    tree = [1, (2, {"a": 3})]
    expect(pytree.tree_map(lambda x: x + 1, tree) == [2, (3, {"a": 4})], "tree_map gives something else")
    expect(pytree.tree_leaves(tree) == [1, 2, 3], "tree_leaves gives something else")
    expect(pytree.tree_map_only(int, str, tree) == ["1", ("2", {"a": "3"})], "tree_map_only gives something else")


def tables_of_modules(_: Any) -> None:
    """A module's tensors and children are in its tables."""
    module: Any = nn.Sequential(nn.BatchNorm1d(2))
    module.register_buffer("passing", torch.ones(1), persistent=False)
    (norm,) = module._modules.values()
    expect("running_mean" in norm._buffers and "weight" in norm._parameters, "its tensors are elsewhere")
    expect(module._non_persistent_buffers_set == {"passing"}, "passing buffers are elsewhere")


def tables_of_hooks(_: Any) -> None:
    """A module's hooks are in its tables."""
    module: Any = nn.Identity()
    for register, table in (
        (module.register_forward_hook, "_forward_hooks"), (module.register_forward_pre_hook, "_forward_pre_hooks"),
        (module.register_full_backward_hook, "_backward_hooks"),
        (module.register_full_backward_pre_hook, "_backward_pre_hooks"),
    ):  # fmt: skip
        register(print)
        expect(len(getattr(module, table)) == 1, f"{table} lacks a hook")


def counts_writes(_: Any) -> None:
    """It grows with each write in place."""
    x = torch.ones(2)
    before = x._version
    x.add_(1)
    expect(x._version > before, "a write is not counted")


class _Wrapped(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError


def wraps(make: Any) -> None:
    """It makes a tensor without values that has a shape and a dtype."""
    made = make(_Wrapped, (2, 3), dtype=torch.float64, device=torch.device("cpu"))
    expect(tuple(made.shape) == (2, 3) and made.dtype == torch.float64, "it has another shape or dtype")


def returns(value: Any, *args: Any) -> Callable[[Any], None]:
    """Called where nothing is going on, it returns this."""

    def check(function: Any) -> None:
        got = function(*args) if callable(function) else function
        expect(type(got) is type(value) and got == value, f"{got!r} instead of {value!r}")

    return check


def tells_storages_apart(_: Any) -> None:
    """Storages without elements have different numbers."""
    one, other = (torch.empty(0).untyped_storage() for _ in range(2))
    expect(isinstance(one._cdata, int) and one._cdata != other._cdata, "storages are not told apart")


def has_no_level(_: Any) -> None:
    """Where nothing is differentiated forward, its level is below zero."""
    expect(torch.autograd.forward_ad._current_level == -1, "the level is another")


# Kernels


def multiplies_lists(fn: str, *rest: Any, **named: Any) -> Callable[[Any], None]:
    """A function of lists does to each tensor what the plain one does."""

    def check(function: Any) -> None:
        lists = [[_numbers(3).abs() + 1, _numbers(2, 2).abs() + 1] for _ in range(2)]
        others = [[one.clone() * 2 for one in lists[0]] for value in rest if value is list] + [
            value for value in rest if value is not list
        ]
        plain = getattr(torch.Tensor, fn)
        wanted = [
            plain(one.clone(), *(o[i] if isinstance(o, list) else o for o in others), **named)
            for i, one in enumerate(lists[0])
        ]
        made = function(lists[1], *others, **named)
        got = lists[1] if fn.endswith("_") else made
        expect(len(got) == 2, "not a result for each")
        for mine, theirs in zip(got, wanted, strict=True):
            expect_close(mine, theirs, "a result")

    return check


def _adam(decoupled: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    p, g, b1, b2, lr, decay, eps = _numbers(4), _numbers(4) * 2, 0.9, 0.99, 0.1, 0.01, 1e-3
    g = g if decoupled else g + decay * p
    m, v = g * (1 - b1), g * g * (1 - b2)
    p = p * (1 - lr * decay) if decoupled else p
    return p - lr * (m / (1 - b1)) / ((v / (1 - b2)).sqrt() + eps), m, v


def fuses_adam(decoupled: bool) -> Callable[[Any], None]:
    """One step is Adam's, and parameters and moments are written."""

    def check(kernel: Any) -> None:
        p, m, v = [_numbers(4)], [torch.zeros(4)], [torch.zeros(4)]
        kernel(
            p, [_numbers(4) * 2], m, v, [], [torch.tensor(1.0)], lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.01,
            eps=1e-3, amsgrad=False, maximize=False,
        )  # fmt: skip
        for got, wanted in zip((p[0], m[0], v[0]), _adam(decoupled), strict=True):
            expect_close(got, wanted, "a step's result")

    return check


def fuses_amp(kernel: Any) -> None:
    """Gradients are scaled in place, and what is infinite is found."""
    for value, infinite in ((2.0, 0.0), (float("inf"), 1.0)):
        grads, found = [torch.full((2,), value)], torch.zeros(1)
        kernel(grads, found, torch.full((1,), 0.5))
        expect(float(found) == infinite, "what is infinite is not found")
        expect(infinite == 1.0 or float(grads[0][0]) == 1.0, "gradients are not scaled")


def softmax_backward(logarithm: bool) -> Callable[[Any], None]:
    """The adjoint of softmax from its result, written where it is told to."""

    def check(operator: Any) -> None:
        x, dy = _numbers(2, 3).requires_grad_(), _numbers(2, 3) + 1
        y = (torch.log_softmax if logarithm else torch.softmax)(x, -1)
        (wanted,) = torch.autograd.grad(y, x, dy)
        out = torch.empty(2, 3)
        operator.out(dy, y.detach(), -1, torch.float32, **{"out" if logarithm else "grad_input": out})
        expect_close(out, wanted, "the adjoint")

    return check


def _attention() -> tuple[torch.Tensor, ...]:
    return tuple(_numbers(1, 2, 5, 4) * factor for factor in (1.0, 0.7, 1.3))


def attention_forward(kernel: Any) -> None:
    """Two results: attention, and the logarithms of the sums."""
    q, k, v = _attention()
    made = kernel.default(q, k, v, 0.0, False, attn_mask=None, scale=0.5)
    expect_results(made, [((1, 2, 5, 4), torch.float32), ((1, 2, 5), torch.float32)])
    scores = q @ k.transpose(-1, -2) * 0.5
    expect_close(made[0], scores.softmax(-1) @ v, "the result")
    expect_close(made[1], scores.logsumexp(-1), "the logarithm of the sums")


def attention_backward(kernel: Any) -> None:
    """Three results: the adjoints of query, key and value."""
    q, k, v = (one.requires_grad_() for one in _attention())
    scores = q @ k.transpose(-1, -2) * 0.5
    y, dy = scores.softmax(-1) @ v, _numbers(1, 2, 5, 4)
    wanted = torch.autograd.grad(y, (q, k, v), dy)
    given = [one.detach() for one in (dy, q, k, v, y, scores.logsumexp(-1))]
    made = kernel.default(*given, 0.0, False, attn_mask=None, scale=0.5)
    expect_results(made, [((1, 2, 5, 4), torch.float32)] * 3)
    for got, one in zip(made, wanted, strict=True):
        expect_close(got, one, "an adjoint")


def layer_norm_backward(kernel: Any) -> None:
    """Three results: the adjoints of input, weight and bias."""
    x, w, b = (_numbers(*shape).requires_grad_() for shape in ((2, 3), (3,), (3,)))
    y, dy = torch.nn.functional.layer_norm(x, (3,), w, b), _numbers(2, 3) + 1
    wanted = torch.autograd.grad(y, (x, w, b), dy)
    _, mean, rstd = torch.native_layer_norm(x.detach(), (3,), w.detach(), b.detach(), 1e-5)
    made = kernel.default(dy, x.detach(), [3], mean, rstd, w.detach(), b.detach(), [True, True, True])
    expect_results(made, [(one.shape, one.dtype) for one in (x, w, b)])
    for got, one in zip(made, wanted, strict=True):
        expect_close(got, one, "an adjoint")


def batch_norm_backward(kernel: Any) -> None:
    """Three results: the adjoints of input, weight and bias."""
    x, w, b = (_numbers(*shape).requires_grad_() for shape in ((4, 3), (3,), (3,)))
    y, dy = torch.nn.functional.batch_norm(x, None, None, w, b, training=True), _numbers(4, 3) + 1
    wanted = torch.autograd.grad(y, (x, w, b), dy)
    _, mean, inverse = torch.native_batch_norm(x.detach(), w.detach(), b.detach(), None, None, True, 0.1, 1e-5)
    made = kernel(dy, x.detach(), w.detach(), None, None, mean, inverse, True, 1e-5, [True, True, True])
    expect_results(made, [(one.shape, one.dtype) for one in (x, w, b)])
    for got, one in zip(made, wanted, strict=True):
        expect_close(got, one, "an adjoint")


def convolution_backward(kernel: Any) -> None:
    """Three results: the adjoints of input, filters and bias."""
    x, w, b = (_numbers(*shape).requires_grad_() for shape in ((1, 2, 5), (3, 2, 3), (3,)))
    y = torch.nn.functional.conv1d(x, w, b)
    dy = _numbers(*y.shape) + 1
    wanted = torch.autograd.grad(y, (x, w, b), dy)
    made = kernel(dy, x.detach(), w.detach(), [3], [1], [0], [1], False, [0], 1, [True, True, True])
    expect_results(made, [(one.shape, one.dtype) for one in (x, w, b)])
    for got, one in zip(made, wanted, strict=True):
        expect_close(got, one, "an adjoint")


def flash_attention(backward: bool) -> Callable[[Any], None]:
    """On a GPU: nine results, the sums second and the state of the draws seventh and eighth; three going back."""

    def check(kernel: Any) -> None:
        q, k, v = (one.cuda().half() for one in _attention())
        forward: Any = kernel if not backward else torch.ops.aten._scaled_dot_product_flash_attention
        made = forward(q, k, v, 0.0, False, False, scale=0.5)
        expect(len(made) == 9 and made[0].shape == q.shape and made[1].dtype == torch.float32, "other results")
        if backward:
            dq = kernel(made[0], q, k, v, made[0], made[1], None, None, 5, 5, 0.0, False, made[6], made[7], scale=0.5)
            expect_results(dq, [(q.shape, torch.float16)] * 3)

    return check


def efficient_attention(backward: bool) -> Callable[[Any], None]:
    """On a GPU: four results, and four going back, of which the last is the bias's."""

    def check(kernel: Any) -> None:
        q, k, v = (one.cuda() for one in _attention())
        forward: Any = kernel if not backward else torch.ops.aten._scaled_dot_product_efficient_attention
        made = forward(q, k, v, None, True, 0.0, False, scale=0.5)
        expect(len(made) == 4 and made[0].shape == q.shape and made[1].dtype == torch.float32, "other results")
        if backward:
            grads = kernel(
                made[0], q, k, v, None, made[0], made[1], made[2], made[3], 0.0, [True, True, True, False], False,
                scale=0.5,
            )  # fmt: skip
            expect(len(grads) == 4 and grads[0].shape == q.shape, "other results going back")

    return check


def linear(kernel: Any) -> None:
    """x · wᵀ and a bias."""
    x, w, b = _numbers(4, 3), _numbers(5, 3), _numbers(5)
    expect_close(kernel(x, w, b, "none", [], ""), x @ w.t() + b, "the product")


def convolves_packed(convolution: Any) -> None:
    """A product as a convolution over points with filters in oneDNN's own order, added to what is there."""
    mkldnn: Any = torch.ops.mkldnn
    x, w, out = _numbers(6, 16), _numbers(16, 8), _numbers(6, 8)
    wanted = out + x @ w
    places = [0, 0], [1, 1], [1, 1], 1
    filters = mkldnn._reorder_convolution_weight(w.t().contiguous().view(8, 16, 1, 1), *places, [1, 16, 6, 1])
    expect(mkldnn._nbytes(filters) >= 4 * w.numel() and mkldnn.data_ptr(filters) != 0, "filters have no memory")
    image, result = (one.t()[None, :, :, None] for one in (x, out))
    convolution.binary(result, image, filters, None, *places, "add", None, None, [], None)
    expect_close(out, wanted, "the sum")
