"""Optimizer updates over flat buffers: one kernel walks all tensors of a group at once.

The nodes of one algorithm with equal hyper-parameters are gathered until the last of them, then emitted together;
neighbours in the flat buffers are merged into slices, so a whole group is usually a single slice.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch

from ontrain.functions import composites, decimal
from ontrain.internals import private
from ontrain.operators import operand_of, record_of
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import Attributes, attributes, lowers_composite
from ontrain.providers.torch.norms import ROW, is_long, norm
from ontrain.providers.torch.placement import UpdateKey
from ontrain.providers.torch.state import padded

__all__ = ["group_key", "is_update"]

Kernel = Callable[..., None]
_kernels: dict[str, Kernel] = {}
Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class _Update:
    """One parameter's update: its buffers, in the order of the composite's inputs."""

    param: Buf
    grad: Buf
    moments: tuple[Buf, ...]


def group_key(node: ir.Node) -> UpdateKey:
    """Nodes with equal keys are emitted together."""
    scalars = tuple(id(v) for v in _scalars(node))
    return (node.op_type, tuple(sorted((k, a.value) for k, a in node.attributes.items())), scalars)


def _scalars(node: ir.Node) -> list[ir.Value | None]:
    if node.op_type == "SGD":
        return [node.inputs[2], node.inputs[3], operand_of(node, 5)]
    return [node.inputs[4], node.inputs[6], node.inputs[5]]


def _moments(node: ir.Node) -> list[ir.Value | None]:
    if node.op_type == "SGD":
        return [v for v in node.inputs[4:5] if v is not None]
    return list(node.inputs[2:4])


def is_update(node: ir.Node | None) -> bool:
    """Whether a node updates a parameter."""
    return node is not None and record_of(node).moments is not None


def _updates(op_type: str) -> Callable[[Kernel], Kernel]:
    """Register the decorated function as the kernel of an update."""
    return lambda kernel: _kernels.setdefault(op_type, kernel)


@lowers_composite("SGD", "Adam", "AdamW", "Lamb")
def update(e: Emitter, node: ir.Node) -> None:
    group = e.placement.updates[group_key(node)]
    for value, source in zip(node.outputs, [node.inputs[0], *_moments(node)], strict=False):
        e.bind(value, e.value(source))
    if node is not group[-1]:
        return
    updates = [
        _Update(e.value(n.inputs[0]), _own_gradient(e, n), tuple(e.value(m) for m in _moments(n))) for n in group
    ]
    learning_rate, scale, step = (e.value(v) if v is not None else None for v in _scalars(node))
    stated = {**composites[node.op_type].defaults, **attributes(node)}
    a = {k: decimal(v) if isinstance(v, float) else v for k, v in stated.items()}
    slices = _slices(updates) if node.op_type != "Lamb" else updates
    columns = [[u.param for u in slices], [u.grad for u in slices]]
    columns += [[u.moments[i] for u in slices] for i in range(len(slices[0].moments))]
    written = [*columns[0], *(b for column in columns[2:] for b in column)]
    kernel = _kernels[node.op_type]
    if columns[0][0].dtype.itemsize < 4:
        kernel = functools.partial(_widened, kernel)
    e.run(kernel, *columns, learning_rate=learning_rate, step=step, scale=scale, a=a, writes=written)


def _widened(
    kernel: Callable[..., None], params: Tensors, grads: Tensors, *moments: Tensors, **scalars: object
) -> None:
    """Update parameters narrower than float32 in float32, and round once; their moments are float32 already."""
    wide = [p.float() for p in params]
    kernel(wide, [g.float() for g in grads], *moments, **scalars)
    for param, updated in zip(params, wide, strict=True):
        param.copy_(updated)


def _own_gradient(e: Emitter, node: ir.Node) -> Buf:
    """The gradient in the place laid out beside its parameter: kernels scale it there, so no two may share one."""
    param, grad = node.inputs[:2]
    assert param is not None
    place, have = e.placement.gradients[param.name or ""], e.value(grad)
    if not have.same_elements(place):
        e.copy(have, place)
    return place


def _slices(updates: Sequence[_Update]) -> list[_Update]:
    """Merge updates whose buffers all lie side by side with equal steps."""
    merged: list[list[_Update]] = []
    for update in sorted(updates, key=lambda u: (id(u.param.storage), u.param.meta.storage_offset())):
        if merged and _adjacent(merged[-1][-1], update):
            merged[-1].append(update)
        else:
            merged.append([update])
    return [_span(run) for run in merged]


def _parts(u: _Update) -> list[Buf]:
    return [u.param, u.grad, *u.moments]


def _adjacent(a: _Update, b: _Update) -> bool:
    step = padded(a.param.shape, a.param.dtype)
    return all(
        x.storage is y.storage and x.meta.is_contiguous() and y.meta.is_contiguous()
        and y.meta.storage_offset() - x.meta.storage_offset() == step and x.storage.tensor is not None
        for x, y in zip(_parts(a), _parts(b), strict=True)
    )  # fmt: skip


def _span(run: list[_Update]) -> _Update:
    def spanning(first: Buf, last: Buf) -> Buf:
        start = first.meta.storage_offset()
        length = last.meta.storage_offset() + last.meta.numel() - start
        meta = torch.empty(0, dtype=first.dtype, device="meta")
        return Buf(first.storage, meta.set_(first.meta.untyped_storage(), start, (length,), (1,)))

    spans = [spanning(x, y) for x, y in zip(_parts(run[0]), _parts(run[-1]), strict=True)]
    return _Update(spans[0], spans[1], tuple(spans[2:]))


@_updates("AdamW")
def _adamw(params: Tensors, grads: Tensors, ms: Tensors, vs: Tensors, *, learning_rate: torch.Tensor,
           step: torch.Tensor, scale: torch.Tensor, a: Attributes) -> None:  # fmt: skip
    if a["mode"] == 0 and a["bias_correction"] and params[0].dtype == learning_rate.dtype:
        _fused(private("torch._fused_adamw_"), params, grads, ms, vs, learning_rate, step, scale, a)
        return
    alpha_power, beta_power = _corrections(step.to(params[0].dtype), a)
    for p, g, m, v in zip(params, grads, ms, vs, strict=True):
        _moments_step(g.mul_(scale), m, v, a)
        if a["mode"] == 0:
            p.mul_(1 - learning_rate * a["weight_decay"])
            p.addcdiv_((m / alpha_power).mul_(-learning_rate), (v / beta_power).sqrt_().add_(a["epsilon"]))
        else:
            size = learning_rate * beta_power.sqrt() / alpha_power
            p.addcdiv_(m * -size, v.sqrt().add_(a["epsilon"]))
            p.mul_(1 - learning_rate * a["weight_decay"])


@_updates("Adam")
def _adam(params: Tensors, grads: Tensors, ms: Tensors, vs: Tensors, *, learning_rate: torch.Tensor, step: torch.Tensor,
          scale: torch.Tensor, a: Attributes) -> None:  # fmt: skip
    if a["bias_correction"] and params[0].dtype == learning_rate.dtype:
        _fused(private("torch._fused_adam_"), params, grads, ms, vs, learning_rate, step, scale, a)
        return
    alpha_power, beta_power = _corrections(step.to(params[0].dtype), a)
    for p, g, m, v in zip(params, grads, ms, vs, strict=True):
        g.mul_(scale).add_(p, alpha=a["weight_decay"])
        _moments_step(g, m, v, a)
        p.addcdiv_((m / alpha_power).mul_(-learning_rate), (v / beta_power).sqrt_().add_(a["epsilon"]))


def _fused(kernel: Callable[..., None], params: Tensors, grads: Tensors, ms: Tensors, vs: Tensors,
           learning_rate: torch.Tensor, step: torch.Tensor, scale: torch.Tensor,
           a: Attributes) -> None:  # fmt: skip
    rate: torch.Tensor | float
    divisor, rate = None, learning_rate
    if scale.is_cuda:
        # The kernel divides by its grad_scale: no wait for the device to learn whether there is anything to scale.
        divisor = scale.reciprocal()
    else:
        # As in eager PyTorch to the last bit: gradients scaled first, and 0.001 not rounded to single precision.
        rate = decimal(learning_rate.item())
        if scale.item() != 1.0:
            for grad in grads:
                grad.mul_(scale)
    kernel(
        params, grads, ms, vs, [], [step] * len(params), lr=rate, beta1=a["alpha"], beta2=a["beta"],
        weight_decay=a["weight_decay"], eps=a["epsilon"], amsgrad=False, maximize=False,
        grad_scale=divisor, found_inf=None,
    )  # fmt: skip


def _corrections(step: torch.Tensor, a: Attributes) -> tuple[torch.Tensor, torch.Tensor]:
    if not a["bias_correction"]:
        return torch.ones_like(step), torch.ones_like(step)
    return _one_minus_power(a["alpha"], step), _one_minus_power(a["beta"], step)


def _one_minus_power(base: float, step: torch.Tensor) -> torch.Tensor:
    """1 − baseᵗ by expm1: subtracting from one loses four digits at the first steps."""
    return -torch.expm1(step * math.log(base)) if base else torch.ones_like(step)


def _moments_step(g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, a: Attributes) -> None:
    m.lerp_(g, 1 - a["alpha"])
    v.mul_(a["beta"]).addcmul_(g, g, value=1 - a["beta"])


@_updates("Lamb")
def _lamb(params: Tensors, grads: Tensors, ms: Tensors, vs: Tensors, *, learning_rate: torch.Tensor, step: torch.Tensor,
          scale: torch.Tensor, a: Attributes) -> None:  # fmt: skip
    alpha_power, beta_power = _corrections(step.to(params[0].dtype), a)
    for p, g, m, v in zip(params, grads, ms, vs, strict=True):
        _moments_step(g.mul_(scale), m, v, a)
        torch.div(v, beta_power, out=g).sqrt_().add_(a["epsilon"])
        torch.div(m, g, out=g).div_(alpha_power).add_(p, alpha=a["weight_decay"])
        p_norm, u_norm = norm(p), norm(g)
        ratio = (p_norm / u_norm).clamp(a["ratio_min"], a["ratio_max"])
        ratio = torch.where((p_norm > 0) & (u_norm > 0), ratio, 1.0)
        p.sub_(g.mul_(learning_rate * ratio))


@_updates("SGD")
def _sgd(params: Tensors, grads: Tensors, buffers: Tensors | None = None, *, learning_rate: torch.Tensor,
         step: torch.Tensor | None, scale: torch.Tensor, a: Attributes) -> None:  # fmt: skip
    for i, (p, g) in enumerate(zip(params, grads, strict=True)):
        g.mul_(scale)
        if a["weight_decay"]:
            g.add_(p, alpha=a["weight_decay"])
        if buffers is not None:
            assert step is not None
            # torch starts the buffer with the undamped gradient: at step 1 the factor is one.
            factor = torch.where(step == 1, 1.0, 1 - a["dampening"])
            buffers[i].mul_(a["momentum"]).add_(g * factor)
            g = g.add_(buffers[i], alpha=a["momentum"]) if a["nesterov"] else buffers[i]
        p.sub_(g * learning_rate)


def _norms(norms: torch.Tensor, tensors: Tensors) -> None:
    """A kernel for many tensors, not one for each."""
    torch.stack(private("torch._foreach_norm")(tensors, 2, norms.dtype), out=norms)


def _row_norms(e: Emitter, tensor: Buf) -> Buf:
    """The norms of a tensor's rows, whatever its shape, and what is left of it after the last whole row."""
    flat = e.reshape(tensor, (tensor.meta.numel(),))
    count, left = divmod(tensor.meta.numel(), ROW)
    partial = e.new((count + left,), tensor.dtype)
    rows, place = e.reshape(e.narrow(flat, 0, 0, count * ROW), (count, ROW)), e.narrow(partial, 0, 0, count)
    e.run(torch.linalg.vector_norm, rows, dim=1, out=place, writes=[place])
    if left:
        rest = e.narrow(partial, 0, count, left)
        e.run(torch.Tensor.copy_, rest, e.narrow(flat, 0, count * ROW, left), writes=[rest])
    return partial


@lowers_composite("GlobalNorm")
def global_norm(e: Emitter, node: ir.Node) -> None:
    """The norm of the norms, as torch.nn.utils.get_total_norm takes it.

    The two agree to the last bit where tensors are small, and where eager PyTorch's products are taken.
    """
    tensors = [e.value(v) for v in node.inputs]
    # Squares of half precision would be out of its range.
    dtypes = [torch.float32 if t.dtype.itemsize < 4 else t.dtype for t in tensors]
    norms = e.new((len(tensors),), max(dtypes, key=lambda dtype: dtype.itemsize))
    if e.device.type != "cpu" and set(dtypes) == {norms.dtype}:
        e.run(_norms, norms, tensors, writes=[norms])
        tensors = []
    for number, (tensor, dtype) in enumerate(zip(tensors, dtypes, strict=bool(tensors))):
        place = e.view(norms, operator.itemgetter(number))
        if e.reformulates() and is_long(tensor.meta):
            tensor, dtype = e.cast(_row_norms(e, tensor), torch.float64), torch.float64
        norm = place if dtype == norms.dtype else e.new((), dtype)
        e.run(torch.linalg.vector_norm, tensor, dtype=dtype, out=norm, writes=[norm])
        if norm is not place:
            e.run(torch.Tensor.copy_, place, norm, writes=[place])
    total = e.new((), norms.dtype)
    e.run(torch.linalg.vector_norm, norms, out=total, writes=[total])
    e.bind(node.outputs[0], total if total.dtype == torch.float32 else e.cast(total, torch.float32))
