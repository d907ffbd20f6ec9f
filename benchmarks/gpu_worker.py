"""One engine of `benchmarks.gpu` in one process, driven as `benchmarks.serving` says."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from benchmarks import serving
from benchmarks.gpu import Setting

LR, DECAY = 1e-4, 0.01
Batch = dict[str, torch.Tensor]


def make(setting: Setting) -> tuple[torch.nn.Module, Batch]:
    """Return a model in training mode and a batch by input name, both on the device."""
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    tiny = setting.size == "tiny"
    rows, length = setting.shape
    draws = torch.Generator().manual_seed(1)
    device = torch.device(setting.device)
    config: Any
    model: Any
    if setting.workload.startswith("gpt2"):
        sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 1000, "n_positions": 64} if tiny else {
            "n_embd": 1024, "n_layer": 24, "n_head": 16
        }  # fmt: skip
        dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0) if tiny else {}
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        config = GPT2Config(**sizes, **dropout, **ends, use_cache=False, attn_implementation="sdpa")
        with device:
            model = GPT2LMHeadModel(config)
        ids = torch.randint(0, config.vocab_size, (rows, length), generator=draws)
        batch = {"input_ids": ids, "labels": ids.clone()}
    else:
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
                 "vocab_size": 1000} if tiny else {"hidden_size": 1024, "num_hidden_layers": 24,
                 "num_attention_heads": 16, "intermediate_size": 4096}  # fmt: skip
        dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0) if tiny else {}
        config = BertConfig(**sizes, **dropout, attn_implementation="sdpa")
        with device:
            model = BertForMaskedLM(config)
        ids = torch.randint(5, config.vocab_size, (rows, length), generator=draws)
        labelled = torch.rand(ids.shape, generator=draws) < 0.15
        batch = {
            "input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids),
            "labels": torch.where(labelled, ids, -100),
        }  # fmt: skip
    return model.train(), {name: tensor.to(device) for name, tensor in batch.items()}


def _precision(setting: Setting) -> torch.dtype:
    """What products run in."""
    dtype: torch.dtype = getattr(torch, setting.dtype)
    return dtype


def _chunked(model: Any, batch: Batch) -> torch.Tensor:
    """The loss of a language model by torch's `linear_cross_entropy`, which need not make all scores at once."""
    options = getattr(functional, "LinearCrossEntropyOptions", None)
    more = {"options": options()} if options is not None else {}
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    if hasattr(model, "transformer"):
        hidden, labels = model.transformer(**inputs)[0][:, :-1], batch["labels"][:, 1:]
        weight, bias = model.lm_head.weight, None
    else:
        hidden, labels = model.cls.predictions.transform(model.bert(**inputs)[0]), batch["labels"]
        weight, bias = model.cls.predictions.decoder.weight, model.cls.predictions.decoder.bias
    weight = weight.to(hidden.dtype)
    loss: torch.Tensor = functional.linear_cross_entropy(  # type: ignore[attr-defined]
        hidden.flatten(0, 1), weight, labels.flatten(), ignore_index=-100,
        linear_bias=None if bias is None else bias.to(hidden.dtype), **more,
    )  # fmt: skip
    return loss


def _eager(model: torch.nn.Module, loss_of: Callable[[Batch], torch.Tensor]) -> Callable[[Batch], Any]:
    """PyTorch's own training loop at its strongest."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY, fused=True)

    def train(batch: Batch) -> torch.Tensor:
        loss = loss_of(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return train


def _autocast(setting: Setting, forward: Callable[[Batch], torch.Tensor]) -> Callable[[Batch], torch.Tensor]:
    """Forward with products in half precision; the parameters stay in single."""
    device, half = torch.device(setting.device).type, _precision(setting) != torch.float32

    def loss_of(batch: Batch) -> torch.Tensor:
        with torch.autocast(device, _precision(setting)) if half else contextlib.nullcontext():
            return forward(batch)

    return loss_of


def _trainer(setting: Setting, model: torch.nn.Module, batch: Batch, *, graphs: bool) -> Any:
    from ontrain.training import ORTTrainer, optim

    desc = {
        "inputs": [(name, ["batch", "sequence"][: tensor.dim()]) for name, tensor in batch.items()],
        "outputs": [("loss", [], True)],
    }
    options: dict[str, Any] = {
        "device": {"id": setting.device}, "utils": {"grad_norm_clip": False},
        "provider": ("TorchExecutionProvider", {"cuda_graphs": graphs}),
    }  # fmt: skip
    if _precision(setting) != torch.float32:
        options["mixed_precision"] = {"enabled": True, "dtype": setting.dtype}
    return ORTTrainer(model, desc, optim.AdamConfig(lr=LR, lambda_coef=DECAY), options=options)


class Engine:
    """One engine's steps, and the operations that it does in each."""

    def __init__(self, name: str, setting: Setting) -> None:
        self.name, self.setting = name, setting
        self.model, self.batch = make(setting)
        self.train: Callable[[Batch], Any] = lambda batch: None
        self._trainer: Any = None
        self._module: Any = None
        self._loss_of: Callable[[Batch], torch.Tensor] = _autocast(setting, lambda batch: torch.zeros(()))
        self._first = True

    def start(self) -> Callable[[], float]:
        """Prepare, and return what makes the steps of a turn (the first time one) and gives the last loss."""
        model, setting = self.model, self.setting
        if self.name in ("ontrain", "ontrain-plain"):
            self._trainer = _trainer(setting, model, self.batch, graphs=self.name == "ontrain")
            self.train = lambda batch: self._trainer.train_step(**batch)
        elif self.name == "ortmodule":
            from ontrain.training.ortmodule import ORTModule

            self._module = ORTModule(model)
            self.train = _eager(self._module, _autocast(setting, lambda batch: self._module(**batch).loss))
        else:
            forward: Any = functools.partial(_chunked, model) if "chunked" in self.name else lambda b: model(**b).loss
            if self.name.startswith("compile"):
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
                mode = self.name.partition("-")[2]
                forward = torch.compile(forward, mode=None if mode in ("", "chunked") else mode)
            self._loss_of = _autocast(setting, forward)
            self.train = _eager(model, self._loss_of)
        return self._turn

    def _turn(self) -> float:
        count, self._first = (1 if self._first else self.setting.steps), False
        for _ in range(count - 1):
            self.train(self.batch)
        return float(self.train(self.batch))  # a wait for the device

    def facts(self) -> Mapping[str, float]:
        """Return the operations that a step's products do; nothing where that is not known."""
        from ontrain.functions.cost import count_flops, node_flops

        if self._trainer is not None:
            return {"flop": float(count_flops(self._trainer.step_model()).products)}
        if self._module is not None:
            plans = [plan for entry in self._module._engine.entries for plan in entry.session.plans.values()]
            executables = [plan.executable.current for plan in plans]
            programs = [(*plan.forward_code.program, *plan.backward_code.program) for plan in executables]
            nodes = [{call.node for call in program if call.node is not None} for program in programs]
            return {"flop": float(max(sum(node_flops(node).products for node in distinct) for distinct in nodes))}
        if self.name.startswith("eager"):
            from torch.utils.flop_counter import FlopCounterMode

            with FlopCounterMode(display=False) as counter:
                self._loss_of(self.batch).backward()  # type: ignore[no-untyped-call]
            self.model.zero_grad(set_to_none=True)
            return {"flop": float(counter.get_total_flops())}
        return {}

    def memory(self) -> int:
        """Return the most bytes that were given out on the device; of the process where that is the CPU."""
        if torch.device(self.setting.device).type != "cuda":
            return serving._resident()
        return int(torch.cuda.max_memory_allocated())


def serve(name: str, setting: Setting) -> None:
    """Be an engine's process."""
    engine = Engine(name, setting)
    serving.serve(engine.start, 1, memory=engine.memory, facts=engine.facts)


if __name__ == "__main__":
    serve(sys.argv[1], Setting.parse(sys.argv[2:]))
