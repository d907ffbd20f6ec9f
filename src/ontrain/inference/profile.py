"""`profile` and `bench`: where a model's time and memory go, node by node, and which provider is faster."""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx
import torch

from ontrain.errors import OptionError
from ontrain.files import read_proto, subgraphs
from ontrain.inference.provider_lists import Providers, stock_providers
from ontrain.inference.samples import sample_feeds
from ontrain.inference.session import InferenceSession, SessionOptions

__all__ = ["BenchRow", "NodeCost", "Profile", "bench", "profile"]

_SUFFIX = "_kernel_time"
_WARM_UP = 2


@dataclass(frozen=True)
class NodeCost:
    """What a node costs.

    Attributes:
        name: of the file's node, or of a node that the provider made of several.
        operator, provider: what ran, and who ran it.
        calls: in a run.
        microseconds: of a run, the median over runs.
        share: of the time in all nodes.
        memory: bytes of working memory that held values when it ran; 0 where the provider does not tell.
        output: bytes of its results.
    """

    name: str
    operator: str
    provider: str
    calls: int
    microseconds: float
    share: float
    memory: int
    output: int


@dataclass(frozen=True)
class Call:
    """A call in the last run: start and duration in microseconds, and memory as in `NodeCost`."""

    name: str
    operator: str
    start: float
    duration: float
    memory: int


@dataclass(frozen=True)
class Profile:
    """Where the time of a model goes.

    Attributes:
        subject: the model.
        providers: of the session.
        runs: how many were timed.
        microseconds: of a run with a clock around each node, the median. `bench` times runs without.
        nodes: the dearest first.
        calls: of the last run, in order.
        inputs: what was fed, by name: dtype and shape.
        graph: the file's nodes, each with the numbers of the nodes that it reads from.
    """

    subject: str
    providers: list[str]
    runs: int
    microseconds: float
    nodes: list[NodeCost]
    calls: list[Call]
    inputs: dict[str, str]
    graph: list[tuple[str, str, list[int]]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values, with "schema" beside the attributes."""
        return {"schema": 1, **asdict(self)}


@dataclass(frozen=True)
class BenchRow:
    """What a run takes on a provider.

    Attributes:
        provider: its name.
        microseconds: the median.
        fastest: the least.
        ratio: of the median to the first provider's.
    """

    provider: str
    microseconds: float
    fastest: float
    ratio: float


def profile(
    model: str | bytes | onnx.ModelProto, feeds: Mapping[str, Any] | None = None, *, providers: Providers = None,
    runs: int = 10, sizes: Mapping[str, int] | None = None, threads: int = 0, name: str | None = None,
) -> Profile:  # fmt: skip
    """Run a model with a clock around each node.

    Args:
        model: a path, bytes, or a message.
        feeds: by input name; random ones by default.
        providers: as a session takes them.
        runs: how many are timed, after two that are not.
        sizes: of dimensions of random feeds by name; 1 by default.
        threads: of onnxruntime's providers and of torch; 0 lets them choose.
        name: what the result calls the model.

    Raises:
        OptionError: `runs` is none, or there is no such dimension or provider.
        InputError: no such file; or an input is no tensor of numbers, and no feeds were given.
    """
    _check_runs(runs)
    proto, called = read_proto(model)
    _name_nodes(proto)
    if any(map(_loops, [proto.graph, *proto.functions])):
        # Of a loop without end a trace takes long, and the refusal comes at once.
        untraced = InferenceSession(proto, _options(threads, providers), providers, strict_providers=True)
        untraced.run(None, sample_feeds(untraced.get_inputs(), sizes or {}) if feeds is None else dict(feeds))
    with tempfile.TemporaryDirectory() as folder:
        options = _options(threads, providers)
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "trace")
        session = InferenceSession(proto, options, providers, strict_providers=True)
        fed = dict(feeds) if feeds is not None else sample_feeds(session.get_inputs(), sizes or {})
        with _threads(threads):
            for _ in range(_WARM_UP + runs):
                session.run(None, fed)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    whole, timed = _runs(events, runs)
    return Profile(
        name or called, session.get_providers(), runs, statistics.median(whole), _costs(timed),
        [_call(event, timed[-1][0]) for event in timed[-1]], {key: _type(value) for key, value in fed.items()},
        _graph(proto.graph),
    )  # fmt: skip


def bench(
    model: str | bytes | onnx.ModelProto, feeds: Mapping[str, Any] | None = None, *, providers: Sequence[str],
    runs: int = 50, sizes: Mapping[str, int] | None = None, threads: int = 0,
) -> list[BenchRow]:  # fmt: skip
    """Time a model on several providers, in turns: what else happens on the machine then reaches all of them.

    Args:
        model: a path, bytes, or a message.
        feeds: by input name; random ones by default.
        providers: names; each is alone in its session.
        runs: on each provider, after two that are not timed.
        sizes: of dimensions of random feeds by name; 1 by default.
        threads: of onnxruntime's providers and of torch; 0 lets them choose.

    Raises:
        OptionError: `runs` is none, no provider is named, or there is no such one.
        InputError, GraphError, ProviderError: a provider cannot run the model.
    """
    _check_runs(runs)
    if not providers:
        raise OptionError("there is no provider to time", way_out="name one or more")
    proto, _ = read_proto(model)
    sessions = {
        name: InferenceSession(proto, _options(threads, [name]), [name], strict_providers=True) for name in providers
    }
    first = next(iter(sessions.values()))
    fed = dict(feeds) if feeds is not None else sample_feeds(first.get_inputs(), sizes or {})
    taken: dict[str, list[float]] = {name: [] for name in sessions}
    with _threads(threads):
        for turn in range(_WARM_UP + runs):
            for name, session in sessions.items():
                start = time.perf_counter_ns()
                session.run(None, fed)
                if turn >= _WARM_UP:
                    taken[name].append((time.perf_counter_ns() - start) / 1000)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    return [BenchRow(name, medians[name], min(taken[name]), medians[name] / medians[providers[0]]) for name in sessions]


def _check_runs(runs: int) -> None:
    if runs < 1:
        raise OptionError(f"{runs} runs", way_out="ask for one or more")


def _options(threads: int, providers: Providers) -> SessionOptions:
    """Options with so many threads, where a provider of onnxruntime's heeds them."""
    names = [entry if isinstance(entry, str) else entry[0] for entry in providers or stock_providers()]
    options = SessionOptions()
    if any(name in stock_providers() for name in names):
        options.intra_op_num_threads = max(threads, 0)
    return options


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads in the block; 0 leaves it as it is."""
    if count < 0:
        raise OptionError(f"{count} threads", way_out="ask for one or more, or for 0 to let the providers choose")
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _loops(graph: onnx.GraphProto | onnx.FunctionProto) -> bool:
    """Whether a graph holds a Loop, in graphs inside, too."""
    inner = [body for node in graph.node for body in subgraphs(node)]
    return any(node.op_type == "Loop" for node in graph.node) or any(map(_loops, inner))


def _name_nodes(proto: onnx.ModelProto) -> None:
    """Give each node of the main graph a name of its own, in place."""
    taken = {node.name for node in proto.graph.node}
    seen: set[str] = set()
    for i, node in enumerate(proto.graph.node):
        if not node.name or node.name in seen:
            wish = f"{node.op_type}_{i}"
            while wish in taken:
                wish += "_"
            node.name = wish
            taken.add(wish)
        seen.add(node.name)


def _runs(events: Sequence[Mapping[str, Any]], count: int) -> tuple[list[float], list[list[Any]]]:
    """The duration of each of the last runs, and its nodes in order."""
    whole = sorted((e for e in events if e["name"] == "model_run"), key=lambda e: e["ts"])[-count:]
    nodes = sorted(
        (e for e in events if e["cat"] == "Node" and e["name"].endswith(_SUFFIX)), key=lambda event: event["ts"]
    )
    inside = [[n for n in nodes if run["ts"] <= n["ts"] <= run["ts"] + run["dur"]] for run in whole]
    return [run["dur"] for run in whole], [calls for calls in inside if calls] or [[]]


def _costs(timed: Sequence[Sequence[Any]]) -> list[NodeCost]:
    times: dict[tuple[str, str, str], list[float]] = {}
    calls: dict[tuple[str, str, str], int] = {}
    memory: dict[tuple[str, str, str], tuple[int, int]] = {}
    for run in timed:
        spent: dict[tuple[str, str, str], float] = defaultdict(float)
        count: dict[tuple[str, str, str], int] = defaultdict(int)
        for event in run:
            told = event["args"]
            key = event["name"].removesuffix(_SUFFIX), told["op_name"], told["provider"]
            spent[key] += event["dur"]
            count[key] += 1
            most, output = memory.get(key, (0, 0))
            memory[key] = max(most, int(told.get("mem_bytes_in_use", 0))), max(output, int(told["output_size"]))
        for key, duration in spent.items():
            times.setdefault(key, []).append(duration)
        calls.update(count)
    medians = {key: statistics.median(taken) for key, taken in times.items()}
    total = sum(medians.values()) or 1.0
    ordered = sorted(medians.items(), key=lambda item: -item[1])
    return [NodeCost(*key, calls[key], taken, taken / total, *memory[key]) for key, taken in ordered]


def _call(event: Mapping[str, Any], first: Mapping[str, Any]) -> Call:
    told = event["args"]
    return Call(
        event["name"].removesuffix(_SUFFIX), told["op_name"], event["ts"] - first["ts"], event["dur"],
        int(told.get("mem_bytes_in_use", 0)),
    )  # fmt: skip


def _graph(graph: onnx.GraphProto) -> list[tuple[str, str, list[int]]]:
    maker = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    return [
        (node.name, node.op_type, sorted({maker[name] for name in node.input if name in maker})) for node in graph.node
    ]


def _type(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{value.dtype}{list(shape)}"
