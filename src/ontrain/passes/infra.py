"""What a pass is, and the runner that times, verifies, disables and bisects them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ontrain.errors import OptionError, nearest
from ontrain.graph import Builder, rebuild, to_text, verify, verify_requested

__all__ = ["Pass", "PassReport", "RewritePass", "check_names", "run_passes"]


class Pass:
    """A graph goes in, a cheaper one comes out.

    Subclasses open their docstring with a picture of before and after, and say why the two are equal.

    Attributes:
        changes_numerics: whether results may differ by more than rounding; such passes run only when named.
    """

    changes_numerics = False

    @property
    def name(self) -> str:
        """Name to disable it by."""
        return type(self).__name__

    def apply(self, model: ir.Model) -> tuple[ir.Model, int]:
        """Return the new model and how many places changed."""
        raise NotImplementedError


class RewritePass(Pass):
    """A pass that looks at one node at a time while the graph is rebuilt."""

    def begin(self, graph: ir.Graph) -> None:
        """Look at the whole graph before the first node."""

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Return new outputs for `node`, or None to keep it."""
        raise NotImplementedError

    def apply(self, model: ir.Model) -> tuple[ir.Model, int]:
        """Rebuild the model, counting the nodes that were rewritten."""
        self.begin(model.graph)
        count = 0

        def visit(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
            nonlocal count
            with op.arithmetic():
                made = self.rewrite(op, node, inputs)
            count += made is not None
            return made

        return rebuild(model, visit), count


@dataclass
class PassReport:
    """What one pass did: places changed, nodes before and after, seconds."""

    name: str
    changed: int
    nodes_before: int
    nodes_after: int
    seconds: float


def run_passes(
    model: ir.Model, passes: Sequence[Pass], *, disabled: Sequence[str] = (), dump: str | None = None
) -> tuple[ir.Model, list[PassReport]]:
    """Run the passes in order.

    Args:
        model: left untouched.
        passes: what to run.
        disabled: names to leave out; `ONTRAIN_DISABLE_PASSES` (comma-separated) adds to them.
        dump: folder for the graph as text before the first and after each pass; default `ONTRAIN_DUMP`.

    Environment: `ONTRAIN_VERIFY=1` verifies after each pass, `ONTRAIN_PASS_LIMIT=n` stops after the n-th pass.

    Raises:
        GraphError: a pass left an invalid graph (only when verifying).
    """
    off = {*disabled, *filter(None, os.environ.get("ONTRAIN_DISABLE_PASSES", "").split(","))}
    dump = dump or os.environ.get("ONTRAIN_DUMP")
    reports: list[PassReport] = []
    left = int(os.environ.get("ONTRAIN_PASS_LIMIT", len(passes)))
    for number, one in enumerate(passes):
        if one.name in off or left <= 0:
            continue
        left -= 1
        before, start = len(model.graph), time.perf_counter()
        model, changed = one.apply(model)
        reports.append(PassReport(one.name, changed, before, len(model.graph), time.perf_counter() - start))
        if verify_requested():
            verify(model, after=f"pass {one.name}")
        if dump:
            folder = Path(dump)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{model.graph.name}-{number:02d}-{one.name}.txt").write_text(to_text(model))
    return model, reports


def check_names(names: Sequence[str], known: Sequence[Pass]) -> None:
    """Raise OptionError for a name that no pass has."""
    have = [one.name for one in known]
    for name in names:
        if name not in have:
            raise OptionError(f"no pass is called {name!r}", way_out=f"known: {nearest(name, have)}")
