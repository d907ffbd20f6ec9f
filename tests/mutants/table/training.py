"""Mistakes in src/ontrain/training."""

from __future__ import annotations

from tests.mutants.mutant import mutant

FUSED, HALF, SCALER = (
    "training/optim/test_fused.py",
    "training/optim/test_fp16_optimizer.py",
    "training/amp/test_loss_scaler.py",
)
REPEATED = "training/ortmodule/test_repeating.py"
OUTSIDE = "training/ortmodule/test_outside_tensors.py"
SCHEDULES, LOADER, SAMPLER = (
    "training/test_optim_config.py",
    "training/data/test_loader.py",
    "training/data/test_sampler.py",
)

MUTANTS = [
    mutant(
        "training/options.py",
        "if self._settled and not key.followed and value",
        "if False and value",
        "training/test_between_steps.py",
        "not_follow",
    ),
    mutant(
        "training/optim/hyper_parameters.py",
        "values = {**self.own, **plain_values({name: value})}",
        "values = plain_values({name: value})",
        "training/test_optim_config.py",
        "set_in_a_group",
    ),
    mutant(
        "training/optim/fused.py", "added = eps / second if transformers or", "added = eps if transformers or", FUSED
    ),
    mutant(
        "training/optim/fused.py",
        "(params, 1 - lr * decay)",
        "(params, 1 - decay)",
        FUSED,
    ),
    mutant(
        "training/optim/fused.py", 'taken = 1 - beta1 if group["grad_averaging"] else 1.0', "taken = 1 - beta1", FUSED
    ),
    mutant(
        "training/optim/fused.py",
        'group["step"] = group.get("step", 0) + 1',
        'group["step"] = group.get("step", 0)',
        FUSED,
    ),
    mutant(
        "training/optim/fp16_optimizer.py",
        'if self._good % self._dynamic["scale_window"] == 0:',
        'if self._good % (self._dynamic["scale_window"] + 1) == 0:',
        HALF,
    ),
    mutant(
        "training/optim/fp16_optimizer.py",
        "if not self._unscaled:\n            self._unscale()",
        "self._unscale()",
        HALF,
    ),
    mutant(
        "training/amp/loss_scaler.py",
        "if self._stable_steps_count >= self.up_scale_window:",
        "if self._stable_steps_count > self.up_scale_window:",
        SCALER,
    ),
    mutant(
        "training/amp/loss_scaler.py",
        "self.loss_scale = max(self.min_loss_scale, self.loss_scale / 2)\n            self._stable_steps_count = 0",
        "self.loss_scale = max(self.min_loss_scale, self.loss_scale / 2)",
        SCALER,
    ),
    mutant(
        "training/optim/lr_scheduler.py",
        "if step < self._num_warmup_steps:",
        "if step <= self._num_warmup_steps:",
        SCHEDULES,
    ),
    mutant(
        "training/optim/lr_scheduler.py", "if step > self.total_steps:\n            return self.lr_end", "", SCHEDULES
    ),
    mutant(
        "training/data/loader.py", "np.random.PCG64([self.seed, self._epoch])", "np.random.PCG64([self.seed])", LOADER
    ),
    mutant(
        "training/data/loader.py",
        "each = -(-len(together) // self.world_size)",
        "each = len(together) // self.world_size",
        LOADER,
    ),
    mutant(
        "training/data/sampler.py",
        "generator = torch.Generator().manual_seed(self.seed + self.epoch)",
        "generator = torch.Generator().manual_seed(self.seed)",
        SAMPLER,
    ),
    mutant(
        "training/data/sampler.py",
        "self.total_batch = min(counts) if self.drop_last else max(counts)",
        "self.total_batch = counts[self.sampler.rank]",
        SAMPLER,
    ),
    mutant(
        "training/state.py",
        "if pending and pending >= accumulation_steps:",
        "if pending and pending > accumulation_steps:",
        "training/checkpoint/test_state.py",
    ),
    mutant(
        "training/state.py",
        "for name, part in parts.items():\n            part.load_state_dict(before[name])",
        "pass",
        "training/checkpoint/test_state.py",
    ),
    mutant(
        "training/options.py",
        "if several.world_rank >= several.world_size:",
        "if several.world_rank > several.world_size:",
        "training/test_options.py distributed/test_failures.py",
        "options",
    ),
    mutant(
        "training/ortmodule/key.py",
        "key.append(type(value))\n        # Python",
        "# Python",
        "training/ortmodule/test_calls.py training/ortmodule/test_stale.py",
    ),
    mutant(
        "training/ortmodule/watch.py",
        "if self._held and list(map(version_of, self._held)) != self._versions:",
        "if False:",
        OUTSIDE,
    ),
    mutant(
        "training/ortmodule/engine.py",
        "tensor.requires_grad or isinstance(tensor, nn.Parameter) or id(tensor) in self._written",
        "tensor.requires_grad or id(tensor) in self._written",
        OUTSIDE,
    ),
    mutant(
        "training/ortmodule/namespaces.py",
        "version_of(tensor), tensor.requires_grad",
        "version_of(tensor)",
        OUTSIDE,
    ),
    mutant(
        "training/api/optimizer.py",
        'self._hyper["step"][...] = self._state.updates + 1',
        'self._hyper["step"][...] = self._state.updates',
        "training/api/test_api.py",
    ),
    mutant(
        "training/api/lr_scheduler.py",
        "share = done / self._warmup",
        "share = (done + 1) / self._warmup",
        "training/api/test_api.py",
    ),
    # What the next call reads of what this one has left would be written, and not refused.
    mutant(
        "training/ortmodule/courses.py",
        "if is_read and (write.outputs or not write.is_repeatable or grows):",
        "if is_read and (not write.is_repeatable or grows):",
        f"{REPEATED} training/ortmodule/test_kept_state.py",
    ),
    # The optimizer's step would come before a state that nobody has looked at.
    mutant(
        "training/ortmodule/results.py",
        "*self._written_inputs.values(), *self.kept}",
        "*self._written_inputs.values()}",
        "training/ortmodule/test_kept_state.py",
    ),
    # Backward would go on behind a state that forward detaches.
    mutant(
        "training/ortmodule/entry.py",
        "and not self.session.differentiable((n,))]",
        "and False]",
        "training/ortmodule/test_kept_state.py",
    ),
    # What the first call makes would be made by each.
    mutant(
        "training/ortmodule/courses.py",
        "if between is after or (write.holds_tensors and is_same(between, after)):",
        "if False:",
        REPEATED,
    ),
    # The trainer would compute all steps as the first.
    mutant(
        "training/ortmodule/courses.py", "if alike(results, call(once).results):", "if True:", "training/test_writes.py"
    ),
    mutant("training/ortmodule/courses.py", "if write.place in calls.read and course", "if course is None", REPEATED),
    mutant(
        "training/ortmodule/repeating.py",
        "value = write.table.value(write.name) + value - write.before",
        "value = value",
        REPEATED,
    ),
    mutant(
        "training/ortmodule/running.py",
        "inputs[number] = inputs[number].clone()",
        "pass",
        "training/ortmodule/test_writes_to_inputs.py",
    ),
]
