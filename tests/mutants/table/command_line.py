"""Mistakes in src/ontrain/cli, in capi and in ort_supplement."""

from __future__ import annotations

from tests.mutants.mutant import mutant

COMMAND, COMPARE = "cli/test_command.py", "cli/test_compare_and_env.py"
TRAINER, SUPPLEMENT = "capi/test_ort_trainer.py", "capi/test_ort_supplement.py"

MUTANTS = [
    mutant(
        "cli/check.py", "if not report.trainable:\n        raise typer.Exit(_UNFIT)", "", COMMAND, "blocks or named"
    ),
    mutant("cli/app.py", "raise SystemExit(_WRONG_USAGE) from None", "raise SystemExit(1) from None", COMMAND, "wrong"),
    mutant("cli/manual.py", "if not name or not size.isdecimal():", "if not name:", COMMAND, "wrong"),
    mutant("cli/compare.py", "if comparison.differences:\n        raise typer.Exit(_DIFFERS)", "", COMPARE),
    mutant(
        "cli/plan.py",
        "if not all(part.isdecimal() and int(part) > 0 for part in parts):",
        "if not all(part.isdecimal() for part in parts):",
        "cli/test_plan.py",
        "wrong",
    ),
    mutant(
        "cli/products.py",
        "min(times.values()) - 1:.0%}",
        "min(times.values()):.0%}",
        "providers/test_tuning.py",
        "command",
    ),
    mutant(
        "capi/ort_trainer.py",
        "rate = self.get_lr_this_step_(self.global_step_)",
        "rate = self.get_lr_this_step_(self.current_step)",
        TRAINER,
    ),
    mutant("capi/ort_trainer.py", "self.global_step_ += info.optimization_step - self._updates", "pass", TRAINER),
    mutant(
        "capi/ort_trainer.py",
        "by_position = [name for name in [*names, *extra] if name not in rest]",
        "by_position = [*names, *extra]",
        TRAINER,
    ),
    mutant("capi/optimizer.py", "if name in _FLAGS and value in (0, 1):", "if name in _FLAGS and value == 0:", TRAINER),
    mutant("capi/description.py", "isinstance(dim, str) or dim == size for", "dim == size for", TRAINER),
    mutant(
        "ort_supplement/ort_supplement.py",
        "decay = 0.0 if any(part in name for part in _NO_DECAY) else 0.01",
        "decay = 0.01",
        SUPPLEMENT,
    ),
    mutant(
        "ort_supplement/ort_supplement.py",
        "if training_steps % args.gradient_accumulation_steps == 0:",
        "if training_steps % args.gradient_accumulation_steps != 0:",
        SUPPLEMENT,
    ),
]
