"""What forward writes to Python objects: after each call they hold what eager PyTorch leaves there."""

from __future__ import annotations

import collections
import copy
import types
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from ontrain import InferenceSession  # noqa: F401 the import is the package's whole
from ontrain.errors import CaptureError
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule

SEEN: dict[str, torch.Tensor] = {}
ALL_SEEN: list[torch.Tensor] = []
GLOBAL = types.SimpleNamespace(calls=0, hidden=None)
total = 0


class Base(nn.Module):
    calls_of_all = 0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.items, self.entries, self.last = [], {}, collections.deque(maxlen=2)
        self.by_name, self.sizes = collections.defaultdict(list), set()
        self.helper = types.SimpleNamespace(hidden=None, calls=0)
        self.nested = {"a": [], "b": {"c": []}}
        self.reference, self.mean, self.first, self.mode, self.rows = None, torch.ones(3), True, "a", None

    def state(self):
        names = ("items", "entries", "last", "by_name", "sizes", "helper", "nested", "reference", "mean", "first",
                 "mode", "rows")  # fmt: skip
        return {name: getattr(self, name, None) for name in names}


class Appends(Base):
    def forward(self, x):
        y = self.layer(x)
        self.items.append(y)
        self.by_name["mean"].append(y.detach().mean())
        self.last.append(y.detach())
        return y


class Empties(Base):
    def forward(self, x):
        y = self.layer(x)
        self.items.clear()
        self.items.append(y.square().mean())
        if not self.last:
            self.last.append(None)
        self.last[0] = y.detach()
        return y


class Entries(Base):
    def forward(self, x):
        y = self.layer(x)
        self.entries["hidden"] = y
        self.entries.update(detached=y.detach(), rows=x.shape[0], scale=float(x.shape[0]), shape=x.shape)
        return y * 2


class Removes(Base):
    def forward(self, x):
        self.entries["hidden"] = x
        self.items.append(self.layer(self.entries.pop("hidden")))
        return self.items.pop()


class Nested(Base):
    def forward(self, x):
        y = self.layer(x)
        self.nested["a"].append(y.sum())
        self.nested["b"]["c"].append({"y": y.detach(), "kind": "mean"})
        self.helper.hidden = (y, 1)
        return y


class OfSizes(Base):
    def forward(self, x):
        self.rows = x.shape[0]
        self.helper.calls += x.shape[0]
        return self.layer(x) / self.rows


class InTraining(Base):
    def forward(self, x):
        y = self.layer(x)
        if self.training:
            self.items.append(y.mean())
        return y


class Branches(Base):
    def forward(self, x):
        y = self.layer(x)
        if y.sum() > 0:
            self.items.append(y.detach())
        else:
            self.entries["negative"] = y.mean()
        return y


class CountsInEntry(Base):
    def forward(self, x):
        self.entries["calls"] = self.entries.get("calls", 0) + 1
        return self.layer(x) * self.entries["calls"]


class Threshold(Base):
    def forward(self, x):
        self.entries.setdefault("calls", 0)
        self.entries["calls"] += 1
        y = self.layer(x)
        return y if self.entries["calls"] < 4 else y * 2


class CountsInClass(Base):
    def forward(self, x):
        CountsInClass.calls_of_all += 1
        return self.layer(x) * CountsInClass.calls_of_all

    def state(self):
        return {**super().state(), "calls": CountsInClass.calls_of_all}


class CountsInHelper(Base):
    def forward(self, x):
        self.helper.calls += 1
        return self.layer(x)


class FirstCall(Base):
    def forward(self, x):
        y = self.layer(x)
        if self.first:
            self.first, y = False, y * 2
        return y


class Alternates(Base):
    def forward(self, x):
        y = self.layer(x)
        if self.mode == "a":
            self.mode = "b"
            return y
        self.mode = "a"
        return y * 3


class RowsOfTheFirst(Base):
    def forward(self, x):
        if self.rows is None:
            self.rows = x.shape[0]
        return self.layer(x) * self.rows


class ReferenceOfTheFirst(Base):
    def forward(self, x):
        y = self.layer(x)
        if self.reference is None:
            self.reference = y.mean(0).detach()
        if "x" not in self.entries:
            self.entries["x"] = x.mean()
        return y - self.reference * self.entries["x"]


class CachedWeight(Base):
    def forward(self, x):
        if self.reference is None:
            self.reference = self.layer.weight.detach() * 2
        return self.layer(x) + x @ self.reference.T


class Positions(Base):
    def forward(self, x):
        if self.reference is None or self.reference.shape[0] != x.shape[0]:
            self.reference = torch.arange(x.shape[0], dtype=x.dtype)[:, None]
        return self.layer(x) * self.reference


class RunningMean(Base):
    def forward(self, x):
        y = self.layer(x)
        self.mean.mul_(0.9).add_(0.1 * y.detach().mean(0))
        self.mean.view(-1)[0] += 1
        return y - self.mean


class RunningMeanOfEntry(Base):
    def forward(self, x):
        y = self.layer(x)
        if "mean" not in self.entries:
            self.entries["mean"] = torch.zeros(3, dtype=x.dtype)
        self.entries["mean"] += 0.1 * y.detach().mean(0)
        return y - self.entries["mean"]


class OfFile(Base):
    def forward(self, x):
        global total
        y = self.layer(x)
        total += 1
        ALL_SEEN.append(y.detach())
        GLOBAL.hidden = y
        return y

    def state(self):
        return {**super().state(), "global": (total, list(ALL_SEEN), GLOBAL.hidden)}


def reset():
    global total
    total, CountsInClass.calls_of_all, GLOBAL.hidden = 0, 0, None
    ALL_SEEN.clear()
    SEEN.clear()


def compare(ours, eager, what):
    assert type(ours) is type(eager), what
    if isinstance(eager, torch.Tensor):
        torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-9)
        assert ours.requires_grad == eager.requires_grad, what
    elif isinstance(eager, dict):
        assert ours.keys() == eager.keys(), what
        for name, value in eager.items():
            compare(ours[name], value, f"{what}.{name}")
    elif isinstance(eager, list | tuple | collections.deque):
        assert len(ours) == len(eager), what
        for place, (a, b) in enumerate(zip(ours, eager, strict=True)):
            compare(a, b, f"{what}.{place}")
    elif isinstance(eager, types.SimpleNamespace):
        compare(vars(ours), vars(eager), what)
    else:
        assert ours == eager, what


def steps(module, inner):
    """What five calls return and leave, with all gradients; in the fourth the module evaluates."""
    reset()
    results = []
    for step in range(5):
        module.train(step != 3)
        x = torch.randn(2 + step % 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        y = module(x)
        losses = [item for item in inner.items if item.requires_grad]
        inner.layer.zero_grad()
        (y.sum() + sum(loss.square().sum() for loss in losses)).backward(retain_graph=True)
        results.append((y.detach(), inner.layer.weight.grad.clone(), copy.copy(inner.state())))
    return results


KINDS = [
    Appends, Empties, Entries, Removes, Nested, OfSizes, InTraining, Branches, CountsInEntry, Threshold, CountsInClass,
    CountsInHelper, FirstCall, Alternates, RowsOfTheFirst, ReferenceOfTheFirst, CachedWeight, Positions, RunningMean,
    RunningMeanOfEntry, OfFile,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:forward changes .* captured anew")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(4)
def test_after_each_call_objects_results_and_gradients_are_eagers(kind):
    torch.manual_seed(0)
    eager = kind().double()
    eager.mean = eager.mean.double()
    model = copy.deepcopy(eager)
    expected = steps(eager, eager)
    for step, (ours, eagers) in enumerate(zip(steps(ORTModule(model), model), expected, strict=True)):
        compare(ours, eagers, f"step {step}")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [Empties, Nested, OfSizes, CountsInHelper, Positions, RunningMean, OfFile])
def test_calls_that_read_nothing_of_it_have_one_graph(kind):
    wrapped = ORTModule(kind())
    for rows in (2, 3, 4, 2):
        wrapped(torch.randn(rows, 4))
    assert wrapped._engine.captures == 1
    reset()


def test_an_entry_that_the_first_call_makes_and_the_next_ones_add_to_takes_a_second_graph():
    wrapped = ORTModule(Appends())
    for rows in (2, 3, 4, 2):
        wrapped(torch.randn(rows, 4))
    assert wrapped._engine.captures == 2


def test_a_list_of_thousands_grows_too():
    model = InTraining()
    model.items = [torch.zeros(()) for _ in range(5000)]
    wrapped = ORTModule(model)
    for step in range(2):
        mean = wrapped(torch.randn(3, 4)).mean()
        torch.testing.assert_close(model.items[5000 + step], mean)


def test_a_container_that_is_replaced_between_calls_gets_what_follows():
    torch.manual_seed(0)
    eager = Nested()
    model = copy.deepcopy(eager)
    wrapped = ORTModule(model)
    for step in range(4):
        x = torch.randn(2, 4)
        for module, inner in ((wrapped, model), (eager, eager)):
            if step == 2:
                inner.nested, inner.helper = {"a": [], "b": {"c": []}}, types.SimpleNamespace(hidden=None, calls=0)
            module(x)
        torch.testing.assert_close(model.nested["a"], eager.nested["a"])
        assert len(model.nested["b"]["c"]) == len(eager.nested["b"]["c"]) == 1 + step % 2
        torch.testing.assert_close(model.helper.hidden[0], eager.helper.hidden[0])


class Recorder:
    def __init__(self):
        self.output, self.calls, self.means = None, 0, []

    def __call__(self, module, inputs, output):
        self.output, self.calls = output, self.calls + 1
        self.means.append(output.detach().mean())


@pytest.mark.filterwarnings("ignore:the forward hooks of submodule")
def test_what_hooks_record_is_of_each_call_and_has_gradients():
    def hook(module, inputs, output):
        SEEN["hidden"] = output
        means.append(output.detach().mean())

    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    model = copy.deepcopy(eager)
    results = []
    for module, inner in ((eager, eager), (ORTModule(model), model)):
        means, recorder = [], Recorder()
        inner[0].register_forward_hook(hook)
        inner[1].register_forward_hook(recorder)
        for rows in (2, 3, 2):
            y = module(torch.ones(rows, 4) * rows)
            (y.sum() + SEEN["hidden"].square().sum() + recorder.output.sum()).backward()
        results.append((means, recorder.calls, recorder.means, inner[0].weight.grad))
        reset()
    torch.testing.assert_close(results[1], results[0])


def with_hooks_that_hold_it(module):
    """The module with hooks that write to it, and to a variable beside it."""
    calls = 0

    def counting(layer, inputs, output):
        nonlocal calls
        calls += 1
        module.calls, module.last_calls = module.calls + 1, calls

    module.calls, module.last_calls, module.seen, module.means = 0, 0, {}, []
    module[0].register_forward_hook(lambda layer, inputs, output: module.seen.update(hidden=output))
    module[1].register_forward_hook(lambda layer, inputs, output: module.means.append(output.detach().mean()))
    module[1].register_forward_hook(counting)
    own = module.forward
    module.forward = lambda x: own(x) * 2
    return module


@pytest.mark.filterwarnings("ignore:the forward hooks of submodule")
def test_hooks_that_hold_the_module_itself_write_to_it_and_cost_no_capture():
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    model = with_hooks_that_hold_it(copy.deepcopy(eager))
    eager, ours = with_hooks_that_hold_it(eager), ORTModule(model)
    for rows in (2, 3, 2, 4):
        x = torch.ones(rows, 4) * rows
        torch.testing.assert_close(ours(x), eager(x))
        for name in ("calls", "last_calls", "seen", "means"):
            torch.testing.assert_close(getattr(model, name), getattr(eager, name))
    assert ours._engine.captures == 1


@pytest.mark.filterwarnings("ignore:.*forward hook of all modules:UserWarning")
def test_what_a_hook_of_all_modules_records_is_of_each_call():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
    wrapped, seen = ORTModule(model), []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: seen.append(output.detach()) if isinstance(module, nn.Linear) else None
    )
    try:
        for step in range(3):
            x = torch.full((2, 4), float(step))
            wrapped(x)
            torch.testing.assert_close(seen[-1], nn.functional.linear(x, model[0].weight, model[0].bias).detach())
    finally:
        handle.remove()
    assert len(seen) == 3


class MovingMean(Base):
    def forward(self, x):
        y = self.layer(x)
        before = self.entries.get("mean")
        now = y.mean(0) if before is None else 0.9 * before + 0.1 * y.mean(0)
        self.entries["mean"] = now.detach()
        return y + now


class Memory(Base):
    def forward(self, x):
        y = self.layer(x)
        if self.items:
            y = y + self.items[-1].mean(0)
        self.items.append(y.detach())
        return y


def test_the_tensors_of_the_call_before_are_read_in_a_dictionary_and_refused_in_a_list_that_grows():
    wrapped, eager = ORTModule(model := MovingMean()), copy.deepcopy(model)
    for seed in range(3):
        x = torch.randn(2 + seed % 2, 4)
        torch.testing.assert_close(wrapped(x), eager(x))
    with pytest.raises(CaptureError, match="from call to call in a list") as caught:
        ORTModule(Memory())(x)
    assert "register_buffer" in caught.value.way_out


class Bounded(Base):
    def forward(self, x):
        y = self.layer(x)
        self.items.append(y.detach())
        if len(self.items) > 2:
            self.items.pop(0)
        return y


def test_a_list_whose_length_forward_asks_for_is_told_of():
    wrapped = ORTModule(Bounded())
    with pytest.warns(UserWarning, match="forward reads what its earlier calls have added to a list"):
        wrapped(torch.randn(2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped(torch.randn(2, 4))
    assert wrapped.module.items == []


class OwnTensors(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3))
        self.recurrent = nn.LSTM(3, 3)

    def forward(self, x):
        self.items = [self.layer.weight, self.scale]
        self.entries["bias"] = (self.layer.bias, self.layer(x))
        return self.recurrent(self.layer(x) * self.scale)[0]


def test_parameters_and_buffers_that_forward_writes_somewhere_stay_the_modules_own():
    model = OwnTensors()
    wrapped = ORTModule(model)
    for rows in (2, 3):
        wrapped(torch.randn(rows, 4)).sum().backward()
        assert model.items[0] is model.layer.weight
        assert model.items[1] is model.scale
        assert model.entries["bias"][0] is model.layer.bias
        assert model.entries["bias"][1].shape == (rows, 3)
        assert model.recurrent._flat_weights[0] is model.recurrent.weight_ih_l0
    assert wrapped._engine.captures == 1


class CountsInArray(Base):
    def __init__(self):
        super().__init__()
        self.array = np.zeros(2)

    def forward(self, x):
        self.array[0] += 1
        return self.layer(x) * float(self.array[0])


@pytest.mark.filterwarnings("ignore:forward changes .* captured anew")
def test_an_array_that_forward_computes_with_holds_eagers_numbers():
    torch.manual_seed(0)
    eager = CountsInArray()
    model = copy.deepcopy(eager)
    wrapped = ORTModule(model)
    for _ in range(3):
        x = torch.randn(2, 4)
        torch.testing.assert_close(wrapped(x), eager(x))
        assert model.array.tolist() == eager.array.tolist()


class MakesLayer(Base):
    def forward(self, x):
        if not hasattr(self, "head"):
            self.head = nn.Linear(3, 2)
        return self.head(self.layer(x)).square().mean()


class MakesParameter(Base):
    def forward(self, x):
        if self.reference is None:
            self.reference = nn.Parameter(torch.ones(3))
        return (self.layer(x) * self.reference).square().mean()


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (MakesParameter(), "forward makes the parameter 'reference' of MakesParameter"),
        (MakesLayer(), "forward makes the submodule 'head' of MakesLayer"),
        (nn.LazyLinear(3), "'weight' has no shape yet"),
    ],
)
def test_layers_that_the_first_call_makes_are_refused_with_the_way_out(model, problem):
    with pytest.raises(CaptureError, match=problem) as caught:
        ORTModule(model)(torch.randn(2, 4))
    assert " once " in caught.value.way_out
    description = {"inputs": [("x", [2, 4])], "outputs": [("loss", [], True)]}
    with pytest.raises(CaptureError, match=problem):
        ORTTrainer(model, description, optim.SGDConfig(lr=0.1)).train_step(torch.randn(2, 4))
    model(torch.randn(2, 4))
    ORTModule(model)(torch.randn(2, 4))


class ConvertsItsTensors(nn.Module):
    """A list of tensors that each call brings to the dtype of its input, as the anchors of a detector are."""

    def __init__(self):
        super().__init__()
        self.layer, self.scales = nn.Linear(4, 3), [torch.ones(3), 2 * torch.ones(3)]

    def forward(self, x):
        self.scales = [scale.to(x.dtype) for scale in self.scales]
        return (self.layer(x) * self.scales[0] + self.scales[1]).square().mean()


def test_tensors_in_a_list_are_converted_by_the_first_call_and_found_by_the_next():
    module = ConvertsItsTensors().double()
    ours = ORTModule(copy.deepcopy(module))
    for rows in (2, 3, 2):
        x = torch.randn(rows, 4, dtype=torch.float64)
        losses = [each(x) for each in (ours, module)]
        torch.testing.assert_close(*losses)
        assert [scale.dtype for scale in ours.module.scales] == [torch.float64] * 2


class Criterion:
    """No module: it holds a tensor, a tensor further inside, and a layer of the model."""

    def __init__(self, model):
        self.weights, self.options, self.layer = torch.arange(1.0, 4.0), types.SimpleNamespace(power=2), model.layer
        self.options.scale = torch.tensor(0.5)

    def __call__(self, y):
        loss = (y * self.weights.to(y)).abs() ** self.options.power
        return loss.mean() + self.options.scale.to(y) * self.layer.weight.square().sum()


class MakesItsCriterion(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        if getattr(self, "criterion", None) is None:
            self.criterion = Criterion(self)
        return self.criterion(self.layer(x))


def test_an_object_with_tensors_that_the_first_call_makes_is_found_by_the_next():
    eager = MakesItsCriterion().double()
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (2, 3, 2):
        x = torch.randn(rows, 4, dtype=torch.float64)
        for module in (ours, eager):
            module.zero_grad()
            module(x).backward()
        for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
        left = ours.module.criterion
        assert torch.equal(left.weights, eager.criterion.weights)
        assert left.layer is ours.module.layer
