"""A user's `torch.autograd.Function`: is its backward the derivative of its forward, and how to trace it if not."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch.overrides import TorchFunctionMode

from ontrain.capture.derivatives import leaves_of, traced_gradients
from ontrain.capture.source import current_line
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError
from ontrain.internals import FakeTensor, TorchDispatchMode, of, private

__all__ = ["Accumulated", "OwnBackward", "current_backward", "has_derivative_of_forward", "own_setup_of"]

_SCALES = (1.0, 0.01, 30.0)
"""Of the random inputs: the usual range, around zero, and far out, where saturation and clipping show."""
_ADJOINTS = (1.0, -1e-4, 1e4)
"""Of the adjoints: a backward may clip what is large, drop what is small, and look at signs."""
_TOLERANCE, _FINE = 1e-4, 1e-8
"""What rounding explains in single precision, and in double precision.

A backward that is near the derivative is none: one by the implicit function theorem, say, of a fixed point that five
steps of forward have come close to.
"""


def has_derivative_of_forward(function: type[torch.autograd.Function], args: Sequence[Any]) -> bool:
    """Run a function on random tensors like `args`; compare its backward with autograd's of its forward.

    Many functions exist to save memory or to fuse kernels: their backward is the derivative written out, and a graph
    that holds their forward alone is right. Others change the gradient: straight-through estimators, gradient reversal.

    Args:
        function: its `forward` is called with a stand-in for the context.
        args: what `apply` was called with while tracing; tensors are replaced by random ones in their shape, whole
            numbers by zeros and ones: they may be a mask, which hides all where it is zero, or places.
    """
    return bool(_tried(lambda: _agree(function, args)))


def _tried(trial: Callable[[], Any]) -> Any:
    """Return what a trial returns in a thread of its own, which has none of the modes that the trace runs under."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(trial()))
    with _unchanged_modules():
        thread.start()
        thread.join()
    return results[0]


@contextmanager
def _unchanged_modules() -> Iterator[None]:
    """Keep the trace's list of modules under way: one that fails in a trial, in whatever thread, stays on it."""
    mode = private("torch.fx.experimental.proxy_tensor.get_proxy_mode")()
    modules = None if mode is None else of("torch.fx.Tracer.module_stack", mode.tracer)
    before = dict(modules or {})
    yield
    if modules is not None:
        modules.clear()
        modules.update(before)


def _set_grad_enabled(enabled: bool) -> None:
    private("torch._C._set_grad_enabled")(enabled)


def _pytree() -> Any:
    return private("torch.utils._pytree")


class OwnBackward:
    """What to trace for a function's forward and setup_context, so that the trace holds its backward, too.

    Behind the forward stands the backward, of adjoints that `ontrain::adjoint` stands in for; `ontrain::through` says
    what belongs together. Whoever differentiates the graph puts the real adjoints there (`autodiff.custom`).

    Args:
        function: left as it is.
        forward: its own.
        setup: its own setup_context, if it has one.
    """

    def __init__(
        self, function: type[torch.autograd.Function], forward: Callable[..., Any], setup: Callable[..., Any] | None
    ) -> None:
        self._function, self._forward, self._setup = function, forward, setup
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._marked = list[tuple[list[int], list[int]]]()

    def forward(self, *leaves: Any) -> Any:
        """Call forward, setup_context and backward; return what forward returned, bound to the backward."""
        args = leaves if self._setup is not None else leaves[1:]
        copies = {at: args[at].clone() for at in _written_places(self._function, args)}
        handed = tuple([copies.get(at, arg) for at, arg in enumerate(args)])
        context = _Context(args, self._name, [*copies.values()])
        if self._setup is None:
            returned = self._forward(context, *handed)
        else:
            returned = self._forward(*handed)
            _set_grad_enabled(False)  # as `apply` has it, unseen by the trace
            self._setup(context, handed, returned)
        _set_grad_enabled(True)  # what forward and setup_context left is none of the backward's matter
        results = list(returned) if isinstance(returned, tuple) else [returned]
        dirty = context.dirty_results(results, {id(copy): args[at] for at, copy in copies.items()})
        self._refuse_complex([x for x, wants in zip(args, context.needs_input_grad, strict=True) if wants])
        if any(context.needs_input_grad):
            self._refuse_complex([y for y in results if context.flows_through(y)])
        places = [at for at, y in enumerate(results) if context.takes_adjoint(y)]
        ys = [results[at] for at in places]
        adjoints = [torch.ops.ontrain.adjoint(y) for y in ys]
        standing = dict(zip(places, adjoints, strict=True))
        dys = [standing[at] if at in standing else context.nothing(y) for at, y in enumerate(results)]
        with _accumulating(args) as accumulated, _Leaves(self._name, args):
            pairs = _gradients_of(self._name, args, _backward_of(self._function)(context, *dys))
        pairs += accumulated.pairs()
        _set_grad_enabled(True)
        through = torch.ops.ontrain.through(ys, adjoints, [x for x, _ in pairs], [g for _, g in pairs])
        for at, y in zip(places, through, strict=True):
            results[at] = y
        left = [at for at, y in enumerate(results) if isinstance(y, torch.Tensor) and at not in standing]
        for at in left:
            results[at] = results[at].detach()
        for at, x in dirty.items():
            results[at] = x.copy_(results[at])
        if self._setup is None:
            leaves[0].mark_dirty(*dirty.values())
        self._marked.append((left, list(dirty)))
        return tuple(results) if isinstance(returned, tuple) else results[0]

    def _refuse_complex(self, values: Sequence[Any]) -> None:
        if any(isinstance(value, torch.Tensor) and value.is_complex() for value in values):
            raise CaptureError(
                f"the autograd function {self._name} has complex tensors, and a backward that is not its derivative",
                reason="the adjoints that a graph hands to such a backward are real",
                way_out="have it take and return torch.view_as_real(x), with torch.view_as_complex within",
            )

    def setup_context(self, context: Any, inputs: Any, output: Any) -> None:
        """Tell autograd's context what takes no gradient, and which are inputs. All else was done, and is not again."""
        results = output if isinstance(output, tuple) else (output,)
        constant, dirty = self._marked.pop()
        context.mark_non_differentiable(*(results[at] for at in constant))
        context.mark_dirty(*(results[at] for at in dirty))


class _Leaves(TorchFunctionMode):
    """Refuses a backward that asks for gradients by what it has computed itself, as the adjoint of an ODE does.

    autograd calls a backward without recording it, so there such a tensor depends on nothing; in a trace it depends on
    what it was computed from.

    Args:
        function: name of the autograd function.
        args: of its forward, which have a history in eager, too.
    """

    def __init__(self, function: str, args: Sequence[Any]) -> None:
        super().__init__()
        self._function, self._given = function, frozenset(map(id, args))

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Call a function of torch, unless it makes a leaf of what the backward has computed."""
        if getattr(function, "__name__", "") == "requires_grad_" or function == _SETS_REQUIRES_GRAD:
            x = args[0]
            if x.grad_fn is not None and id(x) not in self._given:
                raise CaptureError(
                    f"the backward of {self._function} takes gradients by a tensor that it has computed",
                    source=current_line(),
                    reason="a graph would take them by what that was computed from, too",
                    way_out=f"write x = x.detach().requires_grad_(); or {BROKEN}",
                )
        if kwargs and kwargs.get("out") is not None and torch.is_grad_enabled():
            return self._without_gradients(function, args, kwargs)
        return function(*args, **kwargs or {})

    @staticmethod
    def _without_gradients(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Write where `out` says. Autograd records no such call; it calls a backward without recording."""
        _set_grad_enabled(False)
        try:
            return function(*args, **kwargs)
        finally:
            _set_grad_enabled(True)


_SETS_REQUIRES_GRAD = cast("Any", torch.Tensor.requires_grad).__set__


class Accumulated:
    """What a backward adds to the gradients of leaves by calling `backward` itself, as those that compute anew do.

    A reversible layer has a module in its backward, whose parameters are no arguments of the function: the gradients
    that they get there are further gradients of the function. Other leaves are made in the backward, which reads their
    gradients.

    Args:
        args: of the function.
    """

    def __init__(self, args: Sequence[Any]) -> None:
        self._args = frozenset(id(arg) for arg in args if isinstance(arg, torch.Tensor))
        self._gradients = dict[int, tuple[torch.Tensor, torch.Tensor]]()

    def accumulate(
        self, run: Callable[..., Any], outputs: Sequence[torch.Tensor], adjoints: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
    ) -> None:  # fmt: skip
        """Do what `torch.autograd.backward` does: add gradients of outputs to those of the leaves, or of the inputs."""
        leaves = list(inputs) or leaves_of(outputs)
        gradients = traced_gradients(run, outputs, adjoints, leaves, differentiable=False, allow_unused=True)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            if gradient is None:
                continue
            if id(leaf) in self._args or isinstance(leaf, torch.nn.Parameter):
                _, before = self._gradients.get(id(leaf), (leaf, None))
                self._gradients[id(leaf)] = leaf, gradient if before is None else before + gradient
            else:
                leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return those leaves that were there before the backward, with their gradients."""
        return list(self._gradients.values())


_own = threading.local()


@contextmanager
def _accumulating(args: Sequence[Any]) -> Iterator[Accumulated]:
    before = current_backward()
    _own.backward = backward = Accumulated(args)
    try:
        yield backward
    finally:
        _own.backward = before


def current_backward() -> Accumulated | None:
    """Return the backward of a user's function that this thread traces, None if it traces none."""
    return getattr(_own, "backward", None)


def _backward_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return what a function has for its backward, as a callable of the context and the adjoints."""
    base: Any = torch.autograd.Function
    own: Callable[..., Any] = function.backward if function.vjp is base.vjp else function.vjp
    if getattr(function, "boxed_grads_call", False):  # since torch 2.13
        return lambda context, *adjoints: own(context, list(adjoints))
    return own


def _gradients_of(name: str, args: Sequence[Any], gradients: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The inputs that want a gradient and have one, with it in their shape and dtype, as autograd would make it."""
    grads = list(gradients) if isinstance(gradients, tuple) else [gradients]
    if len(grads) < len(args) or any(gradient is not None for gradient in grads[len(args) :]):
        raise CaptureError(
            f"the backward of {name} returned {len(grads)} gradients, its forward took {len(args)} arguments",
            way_out="return one for each argument, None for those without",
        )
    pairs = []
    for x, g in zip(args, grads, strict=False):
        if isinstance(x, torch.Tensor) and x.requires_grad and g is not None:
            pairs.append((x, (g if g.shape == x.shape else g.sum_to_size(x.shape)).to(x.dtype)))
    return pairs


@torch.library.custom_op("ontrain::adjoint", mutates_args=())
def _adjoint(y: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(y)


@_adjoint.register_fake
def _(y: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(y)


@torch.library.custom_op("ontrain::through", mutates_args=())
def _through(
    ys: Sequence[torch.Tensor], adjoints: Sequence[torch.Tensor], xs: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
) -> list[torch.Tensor]:  # fmt: skip
    return [y.clone() for y in ys]


@_through.register_fake
def _(
    ys: Sequence[torch.Tensor], adjoints: Sequence[torch.Tensor], xs: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
) -> list[torch.Tensor]:  # fmt: skip
    return [torch.empty_like(y) for y in ys]


class _Context:
    """What a function's own forward and backward keep for each other."""

    def __init__(self, args: Sequence[Any], function: str, copies: Sequence[torch.Tensor]) -> None:
        self.needs_input_grad = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        self.saved_tensors: tuple[Any, ...] = ()
        self._given = frozenset(map(id, args))
        self._function, self._constant, self._zeros = function, list[Any](), True
        self._copies, self._dirty = frozenset(map(id, copies)), set[int]()

    def save_for_backward(self, *tensors: Any) -> None:
        # What forward makes has no gradient in eager, and a backward may write to what it makes of that.
        own = [isinstance(t, torch.Tensor) and id(t) not in self._given for t in tensors]
        self.saved_tensors = tuple([t.detach() if is_own else t for t, is_own in zip(tensors, own, strict=True)])

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self._constant.extend(tensors)

    def mark_dirty(self, *tensors: Any) -> None:
        self._dirty.update(map(id, tensors))
        if not self._dirty <= self._copies:
            raise CaptureError(
                f"the autograd function {self._function} writes to its input, and has a backward of its own",
                reason="a trial of its forward on random numbers does not tell to which",
                way_out=f"compute a new tensor in its forward, without ctx.mark_dirty; or {BROKEN}",
            )

    def dirty_results(self, results: Sequence[Any], inputs: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """The places of the results that are inputs written to, with these inputs; forward has their copies."""
        return {at: inputs[id(y)] for at, y in enumerate(results) if id(y) in self._dirty}

    def set_materialize_grads(self, value: bool) -> None:
        self._zeros = value

    def nothing(self, y: Any) -> Any:
        """The adjoint of a result that takes none."""
        return torch.zeros_like(y) if self._zeros and isinstance(y, torch.Tensor) else None

    def takes_adjoint(self, y: Any) -> bool:
        """Whether a result of the forward is one that gradients flow back from."""
        return self.flows_through(y) and bool(y.is_floating_point())

    def flows_through(self, y: Any) -> bool:
        """Whether a result of the forward is a tensor that is not marked as one without a gradient."""
        return isinstance(y, torch.Tensor) and all(y is not constant for constant in self._constant)

    def __getattr__(self, name: str) -> Any:
        if name in _CONTEXT:
            return lambda *_, **__: None
        raise AttributeError(name)


def own_setup_of(function: type[torch.autograd.Function]) -> Callable[..., Any] | None:
    """Return the setup_context that a function defines, None if its forward takes the context."""
    own: Callable[..., Any] = function.setup_context
    return None if own is torch.autograd.Function.setup_context else own


def _agree(function: type[torch.autograd.Function], args: Sequence[Any]) -> bool:
    generator = torch.Generator().manual_seed(0)
    flows = False
    for scale in _SCALES:
        try:
            sample = _pytree().tree_map(lambda value, s=scale: _random(value, s, generator), list(args))
            agrees, flow = _agree_on(function, sample)
        except Exception:  # noqa: BLE001 (the user's code, on inputs that it may not take, or of sizes that nobody knows)
            return False
        with suppress(Exception):  # as above; it may hold tensors of single precision
            agrees = agrees and _agree_on(function, _pytree().tree_map(_doubled, sample))[0]
        if not agrees:
            return False
        flows = flows or flow
    return flows  # zeros and what is no number are alike in any two functions


def _agree_on(function: type[torch.autograd.Function], sample: Sequence[Any]) -> tuple[bool, bool]:
    """Whether both gradients agree on these arguments, and whether anything flows back."""
    flows = False
    with _RealTensors():
        for size in _ADJOINTS:
            own, plain = _gradients(function.apply, sample, size), _gradients(_bare(function), sample, size)
            if own is None or plain is None or len(own) != len(plain):
                return False, flows
            tolerance = _FINE if any(map(_is_double, plain[: -_wanting(sample)])) else _TOLERANCE
            if not all(_close(a, b, tolerance) for a, b in zip(own, plain, strict=True)):
                return False, flows
            flows = flows or any(g is not None and bool((g[g.isfinite()] != 0).any()) for g in own[-_wanting(sample) :])
    return True, flows


def _is_double(result: torch.Tensor | None) -> bool:
    """Whether a result was computed in double precision: not all of its numbers have their place in single."""
    if result is None or result.dtype not in (torch.float64, torch.complex128):
        return False
    single = torch.complex64 if result.is_complex() else torch.float32
    return not torch.equal(result, result.to(single).to(result.dtype))


def _doubled(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float32, torch.complex64):
        return value
    wide = torch.complex128 if value.is_complex() else torch.float64
    return value.detach().to(wide).requires_grad_(value.requires_grad)


class _RealTensors(TorchDispatchMode):
    """Ends the trial of a function that holds tensors of the trace: of their values the trace would have to know."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = _pytree().tree_leaves((args, kwargs))
        asks = func.namespace == "prim"  # for a device, from C++ that lets no exception through
        if not asks and any(isinstance(leaf, FakeTensor) for leaf in leaves):
            raise TypeError("a tensor without values")
        return func(*args, **(kwargs or {}))


def _wanting(sample: Sequence[Any]) -> int:
    return sum(isinstance(t, torch.Tensor) and t.requires_grad for t in _pytree().tree_leaves(sample))


def _bare(function: type[torch.autograd.Function]) -> Any:
    """The function's forward under autograd, without its backward."""

    def run(*args: Any) -> Any:
        if own_setup_of(function) is not None:
            return function.forward(*args)
        return function.forward(_stand_in(args), *args)

    return run


def _stand_in(args: Sequence[Any], **methods: Callable[..., None]) -> SimpleNamespace:
    """A context of a forward that nobody differentiates."""
    return SimpleNamespace(
        needs_input_grad=tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args),
        **{name: lambda *_, **__: None for name in _CONTEXT} | methods,
    )


def _written_places(function: type[torch.autograd.Function], args: Sequence[Any]) -> list[int]:
    """Return which arguments a function marks as dirty, found by a trial of its forward on random tensors."""
    setup = own_setup_of(function)
    codes = [getattr(inspect.unwrap(own), "__code__", None) for own in (function.forward, setup) if own is not None]
    if not any(code is not None and "mark_dirty" in code.co_names for code in codes):
        return []
    marked, sample = list[Any](), list[Any]()

    def trial() -> None:
        generator = torch.Generator().manual_seed(0)
        sample.extend(_random(value, 1.0, generator) for value in args)
        context = _stand_in(sample, mark_dirty=lambda *tensors: marked.extend(tensors))
        with torch.no_grad(), _RealTensors(), suppress(Exception):  # the user's code, on inputs that it may not take
            if setup is None:
                function.forward(context, *sample)
            else:
                setup(context, tuple(sample), function.forward(*sample))

    _tried(trial)
    return [at for at, value in enumerate(sample) if any(value is x for x in marked if isinstance(x, torch.Tensor))]


_CONTEXT = ("save_for_backward", "save_for_forward", "mark_dirty", "mark_non_differentiable", "set_materialize_grads")


def _random(value: Any, scale: float, generator: torch.Generator) -> Any:
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return value.node.hint
    if not isinstance(value, torch.Tensor):
        return value
    shape = [size if isinstance(size, int) else size.node.hint for size in value.shape]
    if not value.dtype.is_floating_point and not value.dtype.is_complex:
        return torch.randint(2, shape, generator=generator, device="cpu").to(value.dtype)
    kind = torch.complex64 if value.dtype.is_complex else torch.float32
    sample = torch.randn(shape, generator=generator, dtype=kind, device="cpu") * scale
    return sample.to(value.dtype).requires_grad_(value.requires_grad)


def _gradients(run: Any, sample: Sequence[Any], size: float) -> list[torch.Tensor | None] | None:
    """Outputs, and gradients of their weighted sum over the weights' size; None if none depends on the inputs."""
    wanted = [t for t in _pytree().tree_leaves(sample) if isinstance(t, torch.Tensor) and t.requires_grad]
    outputs = [t for t in _pytree().tree_leaves(run(*sample)) if isinstance(t, torch.Tensor)]
    active = [t for t in outputs if t.requires_grad]
    if not active:
        return None
    weights = [_weights(t, size) for t in active]
    gradients = torch.autograd.grad(active, wanted, weights, allow_unused=True)
    return [*[t.detach() for t in outputs], *[None if g is None else g / size for g in gradients]]


def _weights(result: torch.Tensor, size: float) -> torch.Tensor:
    weights = (torch.linspace(0.5, 1.5, result.numel(), device="cpu") * size).view(result.shape)
    return (torch.complex(weights, weights / 3) if result.is_complex() else weights).to(result.dtype)


def _close(a: torch.Tensor | None, b: torch.Tensor | None, tolerance: float) -> bool:
    """Whether two results differ by rounding, measured by their largest number: all of them may be small."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape:
        return False
    numbers = b.isfinite()
    largest = float(b[numbers].abs().max()) if bool(numbers.any()) else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * largest, equal_nan=True)
