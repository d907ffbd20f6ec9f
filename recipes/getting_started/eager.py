"""The recipe's twin in eager PyTorch: the same steps under `ORTTrainer`'s method names, to compare with."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ontrain.capture import capture
from ontrain.errors import CheckpointError, NonFiniteLossError
from ontrain.session.export import inference_model, save_model

MAX_GRAD_NORM = 1.0  # ORTTrainer's own, under utils.grad_norm_clip


class EagerTrainer:
    """The same steps in eager PyTorch, under ORTTrainer's method names."""

    def __init__(self, model: nn.Module, ntokens: int, lr: float) -> None:
        self.model, self.ntokens, self.steps = model, ntokens, 0
        # One fused kernel for all parameters: the fastest Adam that eager PyTorch has.
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.999), eps=1e-8, fused=True)

    def train_step(self, src: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        self.model.train()
        self.optimizer.zero_grad()
        output = self.model(src)
        loss = nn.functional.cross_entropy(output.view(-1, self.ntokens), label)
        self.steps += 1
        if not loss.isfinite():
            raise NonFiniteLossError(f"the loss is {loss.item()} at step {self.steps}")
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
        self.optimizer.step()
        return loss.detach(), output.detach()

    @torch.no_grad()
    def eval_step(self, src: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        self.model.eval()
        output = self.model(src)
        return nn.functional.cross_entropy(output.view(-1, self.ntokens), label), output

    def save_as_onnx(self, path: str) -> None:
        src = torch.zeros(2, 2, dtype=torch.int64)
        dims = {0: "bptt", 1: "batch_size"}
        names = {"input_names": ["src"], "output_names": ["output"]}
        captured = capture(self.model.eval(), (src,), dynamic=[dims], **names)
        tensors = {**captured.parameters, **captured.buffers}
        arrays = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
        save_model(inference_model(captured.model, arrays, ["output"]), path)

    def save_checkpoint(self, folder: str, user_dict: dict[str, Any]) -> None:
        """Write weights, moments and random state as one safetensors file, beside the old one and then over it."""
        tensors = {"rng": torch.get_rng_state(), **{f"model.{k}": v for k, v in self.model.state_dict().items()}}
        for name, p in self.model.named_parameters():
            tensors |= {f"{key}.{name}": value for key, value in self.optimizer.state[p].items()}
        os.makedirs(folder, exist_ok=True)
        beside = os.path.join(folder, "state.new")
        save_file(tensors, beside, {"steps": str(self.steps), "user": json.dumps(user_dict)})
        os.replace(beside, os.path.join(folder, "state.safetensors"))

    def load_checkpoint(self, folder: str) -> dict[str, Any]:
        try:
            with safe_open(os.path.join(folder, "state.safetensors"), "pt") as file:
                tensors, about = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
            self.model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
            for name, p in self.model.named_parameters():
                keys = ("step", "exp_avg", "exp_avg_sq")
                self.optimizer.state[p] = {key: tensors[f"{key}.{name}"] for key in keys}
            torch.set_rng_state(tensors["rng"])
            self.steps = int(about["steps"])
            user_dict: dict[str, Any] = json.loads(about["user"])
        except (OSError, SafetensorError, KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{folder} holds no checkpoint of this model and engine ({error})") from error
        return user_dict

    def profile(self, src: Tensor, label: Tensor) -> list[dict[str, Any]]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
            self.train_step(src, label)
        return [
            {"operator": event.key, "calls": event.count, "milliseconds": event.self_cpu_time_total / 1000}
            for event in trace.key_averages()
        ]
