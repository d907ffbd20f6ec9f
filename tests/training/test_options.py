"""Every option of onnxruntime's trainer: it does what it says, or says why it cannot; none is accepted and ignored."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from ontrain import CaptureError, OptionError
from ontrain.graph import to_text
from ontrain.training import ORTTrainerOptions, amp, optim
from ontrain.training.options import SCHEMA
from tests.training.conftest import Net, batches, make_trainer

pytestmark = pytest.mark.usefixtures("captured_once")

# onnxruntime.training.ORTTrainerOptions: key → (default, another value that it allows).
UPSTREAM: dict[str, tuple[Any, Any]] = {
    "batch.gradient_accumulation_steps": (1, 2),
    "device.id": ("cuda", "cpu"),
    "device.mem_limit": (0, 1 << 40),
    "distributed.world_rank": (0, 1),
    "distributed.world_size": (1, 2),
    "distributed.local_rank": (0, 1),
    "distributed.data_parallel_size": (1, 2),
    "distributed.horizontal_parallel_size": (1, 2),
    "distributed.pipeline_parallel_size": (1, 2),
    "distributed.num_pipeline_micro_batches": (1, 2),
    "distributed.pipeline_cut_info_string": ("", "a,b"),
    "distributed.allreduce_post_accumulation": (False, True),
    "distributed.deepspeed_zero_optimization.stage": (0, 1),
    "distributed.enable_adasum": (False, True),
    "distributed.sliced_schema": ({}, {"a": [1]}),
    "distributed.sliced_axes": ({}, {"a": 0}),
    "distributed.sliced_tensor_names": ([], ["a"]),
    "lr_scheduler": (None, optim.lr_scheduler.ConstantWarmupLRScheduler(10, 0.5)),
    "mixed_precision.enabled": (False, True),
    "mixed_precision.loss_scaler": (None, amp.DynamicLossScaler()),
    "graph_transformer.attn_dropout_recompute": (False, True),
    "graph_transformer.gelu_recompute": (False, True),
    "graph_transformer.transformer_layer_recompute": (False, True),
    "graph_transformer.number_recompute_layers": (0, 1),
    "utils.frozen_weights": ([], ["mix.weight"]),
    "utils.grad_norm_clip": (True, False),
    "utils.invertible_layer_norm_gradient": (False, True),
    "utils.run_symbolic_shape_infer": (False, True),
    "debug.deterministic_compute": (False, True),
    "debug.check_model_export": (False, True),
    "debug.graph_save_paths.model_after_graph_transforms_path": ("", "a.onnx"),
    "debug.graph_save_paths.model_with_gradient_graph_path": ("", "b.onnx"),
    "debug.graph_save_paths.model_with_training_graph_path": ("", "c.onnx"),
    "debug.graph_save_paths.model_with_training_graph_after_optimization_path": ("", "d.onnx"),
    "_internal_use.enable_internal_postprocess": (True, False),
    "_internal_use.extra_postprocess": (None, lambda model: None),
    "_internal_use.onnx_opset_version": (12, 17),
    "_internal_use.enable_onnx_contrib_ops": (True, False),
    "provider_options": ({}, {"x": 1}),
    "session_options": (None, object()),
}


def nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def leaves(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, key in schema.items():
        if isinstance(key, dict):
            yield from leaves(key, f"{path}{name}.")
        else:
            yield path + name, key


def read(options: Any, path: str) -> Any:
    for part in path.split("."):
        options = getattr(options, part)
    return options


def trainer_with(path: str, value: Any, **more: Any) -> Any:
    torch.manual_seed(5)
    section, _, rest = path.partition(".")
    options = {**more, section: {**more.get(section, {}), **nested(rest, value)} if rest else value}
    return make_trainer(Net(dropout=more.pop("dropout", 0.0)), **options)


def steps(trainer: Any, count: int = 2) -> list[float]:
    return [float(trainer.train_step(*batch)[0]) for batch in batches(count)]


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return trainer.state_dict()["model"]["full_precision"]


def accumulates(path: str, tmp_path: Path) -> None:
    trainer = trainer_with(path, 2)
    steps(trainer, 3)
    assert (trainer.train_step_info.optimization_step, trainer.train_step_info.step) == (1, 3)


def chooses_the_device(path: str, tmp_path: Path) -> None:
    with pytest.raises((RuntimeError, ValueError), match="nowhere"):
        steps(trainer_with(path, "nowhere"))


def limits_memory(path: str, tmp_path: Path) -> None:
    steps(trainer_with(path, 1 << 20))
    with pytest.raises(OptionError, match=r"needs [\d,]+ bytes, device.mem_limit allows 1,000"):
        steps(trainer_with(path, 1000))


def changes_nothing_for_one_process(path: str, tmp_path: Path) -> None:
    default, other = UPSTREAM[path]
    assert steps(trainer_with(path, other)) == steps(trainer_with(path, default))


def schedules(path: str, tmp_path: Path) -> None:
    warmup = optim.lr_scheduler.ConstantWarmupLRScheduler(10, 0.5)  # the rate of the first step is zero
    trainer = trainer_with(path, warmup)
    trainer.prepare(*batches(1)[0])
    before = weights(trainer)
    steps(trainer, 1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(trainer).items())


def lowers_precision(path: str, tmp_path: Path) -> None:
    trainer = trainer_with(path, True)
    steps(trainer)
    products = [node for node in trainer.step_model().graph if node.op_type in ("Gemm", "MatMul")]
    assert products and all(node.outputs[0].dtype.name == "FLOAT16" for node in products)


def takes_the_scaler(path: str, tmp_path: Path) -> None:
    scaler = amp.DynamicLossScaler(loss_scale=64.0, up_scale_window=2)
    trainer = trainer_with(path, scaler, mixed_precision={"enabled": True})
    steps(trainer, 4)
    assert scaler.loss_scale == 256.0


def freezes(path: str, tmp_path: Path) -> None:
    trainer = trainer_with(path, ["mix.weight"])
    trainer.prepare(*batches(1)[0])
    before = weights(trainer)
    steps(trainer)
    changed = {name for name, tensor in weights(trainer).items() if not torch.equal(tensor, before[name])}
    assert changed == set(before) - {"mix.weight"}


def clips(path: str, tmp_path: Path) -> None:
    limit = {"utils": {"max_grad_norm": 1e-6}}  # so low that Adam's epsilon tells
    assert steps(trainer_with(path, False, **limit), 3) != steps(trainer_with(path, True, **limit), 3)


def infers_shapes_anyway(path: str, tmp_path: Path) -> None:
    assert steps(trainer_with(path, True)) == steps(trainer_with(path, False))


def is_deterministic(path: str, tmp_path: Path) -> None:
    trainer = trainer_with(path, True)
    steps(trainer, 1)
    (plan,) = trainer.prepare(*batches(1)[0])[0].plans.values()
    real, seen = plan.executable.run, []
    plan.executable.run = lambda *a, **k: seen.append(torch.are_deterministic_algorithms_enabled()) or real(*a, **k)
    steps(trainer, 1)
    assert seen == [True] and not torch.are_deterministic_algorithms_enabled()


def checks_the_capture(path: str, tmp_path: Path) -> None:
    calls = io.StringIO()

    class Counting(Net):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            calls.write("x")  # a graph has no memory of it
            return super().forward(ids) * float(len(calls.getvalue()))

    for checked in (False, True):
        trainer = make_trainer(Counting(), debug={"check_model_export": checked})
        if not checked:
            steps(trainer)
            continue
        with pytest.raises(CaptureError, match="differs from the module"):
            steps(trainer)


def saves_the_graph(path: str, tmp_path: Path) -> None:
    steps(trainer_with(path, str(tmp_path / "graph.onnx")))
    assert len(onnx.load(tmp_path / "graph.onnx").graph.node) > 10


def postprocesses(path: str, tmp_path: Path) -> None:
    def without_tanh(model: onnx.ModelProto) -> None:
        (tanh,) = [node for node in model.graph.node if node.op_type == "Tanh"]
        tanh.op_type = "Identity"

    trainer = trainer_with(path, without_tanh, debug={"check_model_export": False})
    steps(trainer)
    assert not [node for node in trainer.step_model().graph if "Tanh" in node.op_type]


def writes_the_opset(path: str, tmp_path: Path) -> None:
    trainer = trainer_with(path, 17)
    steps(trainer)
    trainer.save_as_onnx(tmp_path / "model.onnx")
    assert [(entry.domain, entry.version) for entry in onnx.load(tmp_path / "model.onnx").opset_import] == [("", 17)]


def needs_no_contributed_operators(path: str, tmp_path: Path) -> None:
    for value in (True, False):
        trainer = trainer_with(path, value)
        steps(trainer)
        trainer.save_as_onnx(tmp_path / "model.onnx")
        assert {node.domain for node in onnx.load(tmp_path / "model.onnx").graph.node} == {""}


def reaches_the_provider(path: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no_such_option"):
        trainer_with(path, {"no_such_option": 1})


def captures_nothing_that_needs_repair(path, tmp_path):
    graphs = []
    for value in (True, False):
        torch.manual_seed(0)
        trainer = make_trainer(Net(), optim.AdamConfig(lr=0.01), **nested(path, value))
        trainer.train_step(*batches(1)[0])
        graphs.append(to_text(trainer.step_model()))
    assert graphs[0] == graphs[1]


ACTS: dict[str, Callable[[str, Path], None]] = {
    "batch.gradient_accumulation_steps": accumulates,
    "device.id": chooses_the_device,
    "device.mem_limit": limits_memory,
    "distributed.allreduce_post_accumulation": changes_nothing_for_one_process,
    "distributed.deepspeed_zero_optimization.stage": changes_nothing_for_one_process,
    "distributed.enable_adasum": changes_nothing_for_one_process,
    "lr_scheduler": schedules,
    "mixed_precision.enabled": lowers_precision,
    "mixed_precision.loss_scaler": takes_the_scaler,
    "utils.frozen_weights": freezes,
    "utils.grad_norm_clip": clips,
    "utils.run_symbolic_shape_infer": infers_shapes_anyway,
    "debug.deterministic_compute": is_deterministic,
    "debug.check_model_export": checks_the_capture,
    "debug.graph_save_paths.model_after_graph_transforms_path": saves_the_graph,
    "debug.graph_save_paths.model_with_training_graph_path": saves_the_graph,
    "debug.graph_save_paths.model_with_training_graph_after_optimization_path": saves_the_graph,
    "_internal_use.extra_postprocess": postprocesses,
    "_internal_use.onnx_opset_version": writes_the_opset,
    "_internal_use.enable_internal_postprocess": captures_nothing_that_needs_repair,
    "_internal_use.enable_onnx_contrib_ops": needs_no_contributed_operators,
    "provider_options": reaches_the_provider,
}

OTHER_DEFAULTS = {"device.id": None, "_internal_use.onnx_opset_version": None}
"""A machine without CUDA trains on its CPU; a file is written with the newest operators unless asked otherwise."""

SHOWN_ELSEWHERE = {"graph_transformer.": "passes/recompute", "distributed.": "distributed"}


def is_shown_elsewhere(path: str) -> bool:
    tests = Path(__file__).parents[1]
    return any(path.startswith(start) and (tests / folder).is_dir() for start, folder in SHOWN_ELSEWHERE.items())


@pytest.mark.parametrize("path", UPSTREAM)
def test_an_option_of_onnxruntime_acts_or_is_refused_with_the_reason(path, tmp_path):
    default, other = UPSTREAM[path]
    assert read(ORTTrainerOptions(), path) == OTHER_DEFAULTS.get(path, default)
    if path in ACTS:
        ACTS[path](path, tmp_path)
        return
    key = dict(leaves(SCHEMA))[path]
    if key.reason is None:
        assert is_shown_elsewhere(path), f"{path} is accepted, and nothing shows that it does what it says"
        return
    with pytest.raises(OptionError, match=f"option '{re.escape(path)}' cannot be") as error:
        ORTTrainerOptions(nested(path, other))
    assert error.value.reason == key.reason and error.value.way_out


@pytest.mark.parametrize("path", [path for path in UPSTREAM if UPSTREAM[path][0] not in (None, {}, [])])
def test_an_option_of_the_wrong_kind_is_told_what_is_allowed(path):
    with pytest.raises(OptionError, match=f"option '{re.escape(path)}' is .*\n.*allowed: "):
        ORTTrainerOptions(nested(path, -1.5))


def test_the_scaler_of_half_precision_is_dynamic_unless_another_is_given():
    assert isinstance(ORTTrainerOptions(nested("mixed_precision.enabled", True)).mixed_precision.loss_scaler,
                      amp.DynamicLossScaler)  # fmt: skip
    wide = ORTTrainerOptions({"mixed_precision": {"enabled": True, "dtype": torch.bfloat16}}).mixed_precision
    assert (wide.dtype, wide.loss_scaler) == ("bfloat16", None)
    assert ORTTrainerOptions().mixed_precision.loss_scaler is None
