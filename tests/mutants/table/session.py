"""Mistakes in src/ontrain/session."""

from __future__ import annotations

from tests.mutants.mutant import mutant

STEPS = "session/test_training.py"
ERRORS = "training/test_errors.py"

MUTANTS = [
    # The labels of the update before would weigh in the next one.
    mutant(
        "session/training.py",
        "for name in self.accumulators:\n            self.state[name]",
        "for name in self.accumulators[:-1]:\n            self.state[name]",
        STEPS,
    ),
    mutant(
        "session/training.py",
        "last = self.counters.pending == self.accumulation_steps - 1",
        "last = self.counters.pending == self.accumulation_steps",
        STEPS,
    ),
    mutant(
        "session/training.py",
        "number if exchange is None else number * exchange.size + exchange.rank",
        "0 if exchange is None else number * exchange.size + exchange.rank",
        STEPS,
    ),
    mutant(
        "session/training.py",
        "for kind in StepKind:\n            self._planner.forget(kind.value)",
        "",
        "training/test_between_steps.py",
    ),
    mutant(
        "session/training.py",
        "for name, value in saved.items():\n                self.state[name] = value",
        "pass",
        STEPS + " providers/test_onnxruntime.py",
    ),
    mutant(
        "session/training.py",
        "if limit and needed > limit:",
        "if limit and needed > 2 * limit:",
        STEPS,
    ),
    mutant(
        "session/training.py",
        'if not bool(outputs["all_finite"]):',
        "if not math.isfinite(loss):",
        STEPS + " " + ERRORS,
    ),
    mutant("session/feeds.py", "(wrong >= limit)]", "(wrong > limit)]", ERRORS),
    mutant("session/feeds.py", "if before[0] != size:", "if False:", ERRORS + " session/test_feeds.py"),
    mutant("session/feeds.py", "wrong = wrong[wrong != ignore]", "pass", ERRORS + " session/test_feeds.py"),
    mutant("session/feeds.py", "if tensor.device.type != device.type:", "if False:", "session/test_feeds.py"),
    mutant(
        "session/recent.py",
        "self.popitem(last=False)",
        "self.popitem()",
        "session/test_recent.py training/ortmodule/test_loop.py",
        "recent or plans_are_bounded",
    ),
    mutant(
        "inference/provider_lists.py",
        "runs.append(Candidate(name, [name], told))",
        "runs.append(Candidate(name, [name], {}))",
        "inference/test_inference.py",
    ),
    mutant("backend/settings.py", "if name in allowed:", "if hasattr(options, name):", "dropin/test_backend.py"),
    mutant("backend/backend.py", "session.disable_fallback()", "pass", "dropin/test_backend.py"),
    mutant(
        "backend/backend_rep.py",
        "IndexError if values is inputs else RuntimeError",
        "IndexError",
        "dropin/test_backend.py",
    ),
    mutant("inference/fed.py", 'if value.dtype.kind == "S":', "if False:", "dropin/test_beyond.py"),
    mutant(
        "inference/session.py", "if content is not None:", "if False:", "inference/test_inference.py fuzz/test_traps.py"
    ),
    mutant(
        "inference/short_ways.py",
        "kinds.get(name) != (array.dtype, array.shape)",
        "kinds.get(name, ((), ()))[1] != array.shape",
        "inference/test_at_once.py",
    ),
    mutant(
        "inference/small_models.py",
        "if others is None or not equal_results(list(results), others, self._digits):",
        "if False:",
        "inference/test_small_models.py",
    ),
    mutant(
        "inference/small_models.py",
        "return bool(numbers <= self._most or (",
        "return bool(True or (",
        "inference/test_small_models.py",
    ),
]
