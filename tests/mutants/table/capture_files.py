"""Mistakes in src/ontrain/capture/onnx_file: hostile files, older operator sets, modes."""

from __future__ import annotations

from tests.mutants.mutant import mutant

HOSTILE, UPGRADE, FILES, MODES = (
    "capture/onnx_file/test_hostile_files.py",
    "capture/onnx_file/test_upgrade.py",
    "training/test_onnx_files.py",
    "capture/onnx_file/test_modes.py",
)

MUTANTS = [
    mutant(
        "files/checks.py",
        '"strides", "dilations", "kernel_shape", "group", "blocksize"',
        '"strides", "dilations", "kernel_shape", "blocksize"',
        HOSTILE,
        "damage or positive",
    ),
    mutant(
        "files/checks.py",
        "any(not least <= value <= _LARGEST for value in values):",
        "any(not 0 <= value <= _LARGEST for value in values):",
        HOSTILE,
        "damage or positive",
    ),
    mutant(
        "files/checks.py",
        'if not classical and field in ("f", "floats") and any(map(math.isnan, values)):',
        "if False:",
        HOSTILE,
        "damage or positive",
    ),
    mutant("files/checks.py", "if len(set(names)) != len(names):", "if False:", HOSTILE, "damage or positive"),
    mutant("files/read.py", "offset + length > size:", "offset + length > size + 1:", "files/test_read.py"),
    mutant(
        "files/expansion.py",
        "if extent.nesting > NESTING:",
        "if extent.nesting > NESTING + 1:",
        "files/test_expansion.py",
        "lie_in",
    ),
    mutant(
        "capture/structure.py",
        "several else [values[name]]",
        "several else list(values[name])",
        "training/ortmodule/test_calls.py",
        "by_position or mixture",
    ),
    mutant(
        "capture/aten/ordering.py",
        'op.Equal(flat, op.composite("Detach", middle)), absent)',
        'op.Equal(flat, op.composite("Detach", middle)), op.Not(absent))',
        "capture/test_order_statistics.py",
        "median",
    ),
    mutant("files/checks.py", "if depth > NESTING:", "if False:", HOSTILE, "nested"),
    mutant("files/tensors.py", "if len(tensor.dims) > _MAX_RANK:", "if False:", HOSTILE, "damage or positive"),
    mutant("files/tensors.py", "if have != want:", "if have < want:", HOSTILE, "damage or positive"),
    mutant("files/tensors.py", 'if tensor.HasField("segment"):', "if False:", HOSTILE, "damage or positive"),
    mutant(
        "capture/onnx_file/choose.py",
        "elif value.shape is not None and len(value.shape) and 0 not in value.shape and",
        "elif value.shape is not None and 0 not in value.shape and",
        FILES,
    ),
    mutant("capture/onnx_file/choose.py", "if pattern not in floats:", "if False:", FILES, "integer or fit"),
    mutant(
        "capture/onnx_file/load.py",
        'if name in choice.frozen:\n                value.metadata_props[REQUIRES_GRAD] = "0"',
        "",
        "capture/onnx_file/test_load.py",
    ),
    mutant(
        "capture/onnx_file/modes.py",
        "node.replace_input_with(3 + index, latest.get(statistic, statistic))",
        "pass",
        MODES,
    ),
    mutant("capture/onnx_file/modes.py", "node.resize_inputs(min(len(node.inputs), 2))", "pass", MODES),
    mutant(
        "capture/onnx_file/upgrade.py",
        'x, axis = site.input(0), site.take("axis", 1)',
        'x, axis = site.input(0), site.take("axis", -1)',
        UPGRADE,
    ),
    mutant(
        "capture/onnx_file/upgrade.py",
        "steps.sort(key=lambda step: step[0])",
        "steps.sort(key=lambda step: -step[0])",
        UPGRADE,
    ),
    mutant(
        "capture/onnx_file/upgrade.py",
        'coordinate_transformation_mode="asymmetric", nearest_mode=nearest',
        "nearest_mode=nearest",
        UPGRADE,
    ),
    mutant("capture/onnx_file/upgrade.py", 'site.set("num_outputs", len(site.node.outputs))', "pass", UPGRADE),
    mutant("capture/onnx_file/upgrade.py", "training = len(site.node.outputs) > 1 and not", "training = not", UPGRADE),
]
