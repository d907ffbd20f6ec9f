"""Mistakes in src/ontrain/providers."""

from __future__ import annotations

from tests.mutants.mutant import mutant

DROPOUT, OPERATORS, PLAN = (
    "providers/torch/lowering/test_random.py",
    "providers/test_operators.py"
    + "".join(
        f" providers/torch/lowering/test_{name}.py"
        for name in ("convolution", "indexing", "loss", "normalization", "reduction")
    ),
    "providers/test_plan.py",
)
STEP = "providers/torch/lowering/test_optimizer.py"
NORMS, TUNING, TORCH = "providers/torch/test_norms.py", "providers/test_tuning.py", "providers/torch/lowering/"

MUTANTS = [
    mutant(TORCH + "joined_rows.py", "session.run(None, zeros)", "pass", TORCH + "test_joined_rows.py"),
    mutant(TORCH + "small_nodes.py", "if is_random(node) or record", "if record", TORCH + "test_small_nodes.py"),
    mutant(
        TORCH + "small_nodes.py",
        "weights[most] + more <= most.weights and _is_small(e, node, most, costs)",
        "_is_small(e, node, most, costs)",
        TORCH + "test_small_nodes.py",
    ),
    # The second and later blocks of a mask would be the first again: 2²¹ decisions, then the same.
    mutant(
        TORCH + "random.py",
        "e.narrow(drawn, 0, columns + first, height)",
        "e.narrow(drawn, 0, columns, height)",
        DROPOUT,
    ),
    mutant(
        TORCH + "random.py",
        "return _LEVELS / (_LEVELS - _dropped(ratio)) if e.device.type",
        "return 1 / (1 - ratio) if e.device.type",
        DROPOUT,
    ),
    mutant(
        TORCH + "random.py",
        "_dropped(ratio) - _LEVELS // 2, out=numbers)",
        "_dropped(ratio) - _LEVELS // 2 - 64, out=numbers)",
        DROPOUT,
    ),
    mutant(TORCH + "random.py", "e.run(torch.Tensor.add_, x, upper, writes=[x])", "pass", DROPOUT),
    mutant(
        TORCH + "random.py",
        "return min(_LEVELS - 1, round(ratio * _LEVELS))",
        "return min(_LEVELS, round(ratio * _LEVELS))",
        DROPOUT,
    ),
    mutant(TORCH + "optimizer.py", 'torch.where(step == 1, 1.0, 1 - a["dampening"])', '1 - a["dampening"]', STEP),
    mutant(
        TORCH + "optimizer.py",
        'g = g.add_(buffers[i], alpha=a["momentum"]) if a["nesterov"] else buffers[i]',
        "g = buffers[i]",
        STEP,
    ),
    mutant(
        TORCH + "optimizer.py",
        "p.sub_(g.mul_(learning_rate * ratio))",
        "p.sub_(g.mul_(learning_rate))",
        STEP + " " + NORMS,
    ),
    mutant(
        TORCH + "optimizer.py",
        "ratio = torch.where((p_norm > 0) & (u_norm > 0), ratio, 1.0)",
        "ratio = torch.where(u_norm > 0, ratio, 1.0)",
        STEP,
    ),
    mutant(TORCH + "optimizer.py", 'm.lerp_(g, 1 - a["alpha"])', 'm.lerp_(g, a["alpha"])', STEP),
    mutant(
        TORCH + "normalization.py",
        "return (x - mean) / (var.sqrt() + 1e-9)",
        "return (x - mean) / (var + 1e-9).sqrt()",
        OPERATORS,
        "MeanVariance or mean_variance",
    ),
    mutant(
        TORCH + "normalization.py",
        'x, a["size"], a.get("alpha", 1e-4)',
        'x, a["size"], a.get("alpha", 1.0)',
        OPERATORS,
        "LRN",
    ),
    mutant(
        TORCH + "pooling.py",
        "result = result + (index % n - b) * place",
        "result = result + (index % n) * place",
        OPERATORS + " providers/test_windows.py",
        "MaxPool or maxima",
    ),
    mutant(
        TORCH + "convolution.py",
        'pairs.append((small, large) if mode == "SAME_UPPER" else (large, small))',
        'pairs.append((large, small) if mode == "SAME_UPPER" else (small, large))',
        OPERATORS,
        "Conv-",
    ),
    mutant(
        TORCH + "convolution.py",
        "dx = dx.narrow(2 + i, before,",
        "dx = dx.narrow(2 + i, after,",
        OPERATORS,
        "Conv-",
    ),
    mutant(
        TORCH + "elementwise.py",
        'if attributes(node).get("fmod") else torch.remainder',
        'if not attributes(node).get("fmod") else torch.remainder',
        "providers/test_integers.py",
    ),
    mutant(
        TORCH + "indexing.py",
        "torch.where(tensor < 0, tensor + size, tensor)",
        "tensor.abs()",
        OPERATORS,
        "Gather-",
    ),
    mutant(
        TORCH + "indexing.py",
        "e.run(torch.Tensor.zero_, pad, writes=[pad])",
        "pass",
        "providers/torch/lowering/test_indexing.py",
        "padding",
    ),
    mutant(
        TORCH + "loss.py",
        "return e.reshape(e.view(x, lambda t: t.movedim(1, -1)), (-1, x.shape[1]))",
        "return e.reshape(x, (-1, x.shape[1]))",
        OPERATORS,
        "Loss-",
    ),
    mutant(
        TORCH + "reduction.py",
        "total = total - t if exclusive else total",
        "total = total",
        OPERATORS,
        "CumSum",
    ),
    mutant(
        "providers/torch/norms.py", "tensor = torch.cat([rows, flat[whole:]]).double()", "tensor = rows.double()", NORMS
    ),
    mutant(
        "providers/torch/plan.py",
        "if root.dies != index or root.nbytes != out.storage.nbytes:",
        "if root.nbytes != out.storage.nbytes:",
        PLAN,
    ),
    mutant("providers/torch/plan.py", "if all(b.same_layout(out) for b in readers):", "if True:", PLAN),
    mutant(
        "providers/torch/plan.py",
        "for storage in outputs:\n        storage.dies = len(program)",
        "for storage in ():\n        storage.dies = len(program)",
        PLAN,
    ),
    mutant(
        "providers/torch/arena.py",
        "(self._born[:n] <= dies) & (self._dies[:n] >= born)",
        "(self._born[:n] < dies) & (self._dies[:n] > born)",
        "providers/torch/test_arena.py " + PLAN,
    ),
    mutant(
        "providers/torch/sums.py",
        "if len(first.uses()) > 1 or not bound[first].same_layout(place):",
        "if not bound[first].same_layout(place):",
        "providers/torch/test_sums.py",
    ),
    mutant(
        "providers/torch/blocks.py",
        "if block.nbytes >= nbytes:",
        "if True:",
        "providers/torch/test_blocks.py",
    ),
    mutant(
        "providers/torch/residents.py",
        "return not self.taken and list(map(sys.getrefcount, self._arrays)) == self._idle",
        "return not self.taken",
        "training/ortmodule/test_loop.py training/ortmodule/test_calls.py",
        "gradient or accumul or several or backwards",
    ),
    mutant(
        "providers/torch/tuning.py",
        "if over or self._known(timings, key, names) is None:",
        "if True:",
        TUNING,
        "measure_at_once or agree_and_lose",
    ),
    mutant(
        "providers/torch/tuning.py",
        "and max(seconds.values()) <= _APART * fastest",
        "",
        TUNING,
        "do_not_predict or polluted",
    ),
    mutant("providers/torch/tuning.py", "fastest <= _SLOWER * predicted", "True", TUNING, "predict or polluted"),
    mutant("providers/torch/tuning.py", "elif key not in self._suspects:", "elif False:", TUNING, "clearly_slow"),
    mutant(
        "providers/torch/code.py",
        "whole = math.prod(shape) == math.prod(root[0])",
        "whole = True",
        "providers/torch/test_code.py",
    ),
    mutant(
        "providers/torch/neighbours.py",
        "self._calm = self._calm + 1 if share < _FEW else 0",
        "self._calm += 1",
        "providers/torch/test_neighbours.py",
    ),
    mutant(
        "providers/torch/state.py",
        "return self.flat[twin][start : start + tensor.numel()].view(tensor.shape)",
        "return self.flat[twin][: tensor.numel()].view(tensor.shape)",
        "optim/test_update.py providers/torch/test_sums.py",
    ),
    mutant("providers/onnxruntime/random.py", "* np.uint64(64 // _LANES)", "* np.uint64(0)", DROPOUT),
    mutant("providers/onnxruntime/random.py", "self._count += 1", "pass", DROPOUT),
    mutant(
        "providers/onnxruntime/state.py",
        "self._present[name], self._next[name] = self._next[name], self._present[name]",
        "self._present[name] = self._next[name]",
        "providers/test_onnxruntime.py golden/test_optimizers.py",
    ),
    mutant(
        TORCH + "wide_filters.py",
        "padded = functional.pad(x, (pad, pad + beyond))",
        "padded = functional.pad(x, (pad, pad + beyond + 1))[..., 1:]",
        TORCH + "test_wide_filters.py",
        "lines",
    ),
    mutant(
        TORCH + "alignment.py",
        "alike = list(forward.inputs) == operands and",
        "alike = forward.inputs[0] is operands[0] and",
        TORCH + "test_alignment.py",
    ),
    mutant(
        TORCH + "alignment.py",
        'attributes(forward).get("blank", 0) == blank',
        "True",
        TORCH + "test_alignment.py",
        "sums",
    ),
    mutant(
        TORCH + "reduction.py", "not bool((x == 0).any())", "True", TORCH + "test_reduction.py", "CumProd or cumprod"
    ),
    mutant(TORCH + "matmul.py", "along == 1 and down >= columns", "True", TORCH + "test_matmul.py", "gaps"),
    # Backward would read what was written to an input since forward.
    mutant(
        "providers/torch/intake.py",
        "if version_of(self._tensor) != self._version:",
        "if False:",
        "providers/torch/test_intake.py",
    ),
    # A part of a larger tensor would be read from the beginning of that.
    mutant(
        "providers/torch/intake.py",
        "tensor.stride() == meta.stride() and not tensor.storage_offset()",
        "tensor.stride() == meta.stride()",
        "providers/torch/test_intake.py",
    ),
]
