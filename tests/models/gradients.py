"""Gradients of a whole module through ontrain and through eager PyTorch, from the same weights and batch."""

from __future__ import annotations

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.autodiff import differentiate
from ontrain.capture import Captured, capture
from ontrain.graph import Builder, Role, by_role, specialise
from ontrain.passes import FORWARD_PASSES, STEP_PASSES, run_passes
from ontrain.providers import StateSpec, get_provider


class LossOf(torch.nn.Module):
    """A Hugging Face model as a function of its named inputs to its loss."""

    def __init__(self, model: torch.nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names
        self.training = model.training

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True))).loss


def eager_gradients(
    module: torch.nn.Module, batch: list[torch.Tensor] | dict[str, torch.Tensor]
) -> tuple[float, dict[str, torch.Tensor]]:
    module.zero_grad(set_to_none=True)
    loss = module(**batch) if isinstance(batch, dict) else module(*batch)
    loss.backward()
    grads = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad(set_to_none=True)
    return float(loss.detach()), grads


def graph_gradients(
    module: torch.nn.Module, batch: list[torch.Tensor], provider: str = "TorchExecutionProvider", dynamic: bool = True
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients by parameter name, through capture, passes, differentiation and a provider."""
    dims = [{0: "batch", 1: f"length_{i}"} if t.ndim == 2 else {0: "batch"} for i, t in enumerate(batch)]
    captured = capture(module, tuple(batch), dynamic=dims if dynamic else None)
    return run_gradients(captured, batch, provider)


def run_gradients(
    captured: Captured, batch: list[torch.Tensor], provider: str = "TorchExecutionProvider", device: str = "cpu"
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients by parameter name from a captured module, which may meet this batch's sizes first here."""
    shapes = dict(zip(captured.input_names, (tuple(t.shape) for t in batch), strict=True))
    model, _ = run_passes(specialise(captured.model, shapes), FORWARD_PASSES)
    wanted = [v for v in by_role(model.graph, Role.PARAMETER) if captured.parameters[str(v.name)].requires_grad]
    grads = differentiate(Builder(model.graph), [(model.graph.outputs[0], None)], wanted)
    present = [(p.name, g) for p, g in zip(wanted, grads, strict=True) if g is not None]
    loss = model.graph.outputs[0].name
    outputs = [(name, f"d.{name}") for name, _ in present]
    op = Builder(model.graph)
    for (_, wish), (_, grad) in zip(outputs, present, strict=True):
        named = op.add(ir.Node("", "Identity", [grad], num_outputs=1), [wish])
        model.graph.outputs.append(named)
    model, _ = run_passes(model, STEP_PASSES)
    engine = get_provider(provider, device)
    tensors = {**captured.parameters, **captured.buffers}
    state = engine.create_state(
        [StateSpec(n, tuple(t.shape), from_torch_dtype(t.dtype), "fixed") for n, t in tensors.items()]
    )
    for name, tensor in tensors.items():
        state[name] = tensor.detach()
    results = engine.compile(model, state).run(dict(zip(captured.input_names, batch, strict=True)))
    gradients = {name: torch.as_tensor(results[wish]) for name, wish in outputs}
    return float(torch.as_tensor(results[loss])), gradients


def assert_close(gradients: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], relative: float) -> None:
    """Every gradient within `relative` of eager's, by norm. Where the true gradient is zero (a key's bias, a bias
    before a normalisation) rounding noise is all there is: each side may be off by one rounding of the largest
    gradient. On an AMD EPYC with one thread, a bias is 0.95 of that from the gradient in double precision, and eager's
    0.14 on the other side."""
    assert gradients.keys() == wanted.keys()
    largest = max(float(g.norm()) for g in wanted.values())
    for name, grad in wanted.items():
        error = float((gradients[name] - grad).norm())
        allowed = relative * float(grad.norm()) + 2 * torch.finfo(grad.dtype).eps * largest
        assert error <= allowed, (name, error, float(grad.norm()))
