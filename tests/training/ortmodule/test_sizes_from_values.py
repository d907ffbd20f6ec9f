"""Modules whose sizes follow from the values of tensors: values and gradients are eager's, whatever the sizes."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ontrain.errors import CaptureError, GraphError, InputError
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule

FORWARDS = {}


def forward(function):
    FORWARDS[function.__name__] = function
    return function


class Pruned(nn.Module):
    """Reads places of its own weight alone."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, 0.0, 2.0]]))

    def forward(self, x):
        return (self.weight[self.weight != 0] * x.sum()).sum() + self.weight.nonzero().sum()


class Layers(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(4, 6), nn.Linear(6, 3), nn.BatchNorm1d(6)
        self.double()
        self._forward = forward

    def forward(self, x, ids):
        return self._forward(self, x, ids)


@forward
def rows_of_a_mask(self, x, ids):
    return self.b(torch.relu(self.a(x))[ids > 2])


@forward
def rows_of_a_mask_by_length(self, x, ids):
    return self.b(torch.relu(self.a(x))[torch.arange(x.shape[0]) % 3 == 0])


@forward
def mask_of_computed_values(self, x, ids):
    h = self.a(x)
    return h[h > 0].sum()


@forward
def columns_of_a_mask(self, x, ids):
    edges = torch.stack([ids, ids.roll(1)])
    edges = edges[:, edges[0] != edges[1]]
    h = self.a(x)
    return self.b(torch.zeros_like(h).index_add(0, edges[0] % x.shape[0], h[edges[1] % x.shape[0]]))


@forward
def places_below_a_number_of_rows(self, x, ids):
    first = torch.arange(x.shape[0]) < self.a(x)[ids > 2].shape[0]
    return self.b(torch.where(first[:, None], self.a(x), 0.5))


@forward
def places_and_their_columns(self, x, ids):
    rows, columns = torch.nonzero(x > 0.5, as_tuple=True)
    return self.b(self.a(x)[rows]) * columns[:, None], torch.nonzero(ids > 2)


@forward
def selected_by_a_mask(self, x, ids):
    return torch.masked_select(self.a(x), (ids > 2)[:, None]) ** 2


@forward
def rows_of_two_kinds_beside_each_other(self, x, ids):
    """One of the kinds has no rows."""
    h = self.a(x)
    for mask in (ids > 2, ids > 99, ids < 99):
        h = h.masked_scatter(mask[:, None], torch.tanh(h[mask]))
    return self.b(h)


@forward
def sums_by_distinct_values(self, x, ids):
    values, inverse, counts = torch.unique(ids, return_inverse=True, return_counts=True)
    sums = torch.zeros(values.shape[0], 6, dtype=x.dtype).index_add(0, inverse, self.a(x))
    return self.b(sums / counts[:, None]), values, inverse, counts


@forward
def runs_of_equal_values(self, x, ids):
    values, inverse, counts = torch.unique_consecutive(ids, return_inverse=True, return_counts=True)
    return self.a(x).sum() * values, inverse, counts


@forward
def distinct_values_alone(self, x, ids):
    values, counts = ids.unique(), torch.unique_consecutive(ids, return_counts=True)[1]
    return self.a(x).sum() * values, counts, torch.unique_consecutive(ids)


@forward
def put_by_a_mask(self, x, ids):
    h, mask = self.a(x), ids > 2
    y = torch.zeros_like(h)
    y[mask] = torch.tanh(h[mask])
    return self.b(y.index_put((mask,), h[mask], accumulate=True))


@forward
def routed_to_experts(self, x, ids):
    h = self.a(x)
    result, choice = torch.zeros(x.shape[0], 3, dtype=x.dtype), h.argmax(1) % 3
    for expert in range(3):
        (rows,) = torch.where(choice == expert)
        result.index_add_(0, rows, self.b(h[rows]) * (expert + 1))
    return result


@forward
def as_many_as_the_greatest(self, x, ids):
    return torch.zeros(int(ids.max()) + 1, 6, dtype=x.dtype).index_add(0, ids, self.a(x)), torch.bincount(ids)


@forward
def repeated(self, x, ids):
    return self.b(torch.repeat_interleave(self.a(x), ids, 0))


@forward
def chosen_among_the_chosen(self, x, ids):
    h = self.a(x)[ids > 1]
    return self.b(h[h[:, 0] > 0]), h.shape[0] * h.sum()


@forward
def pairs_of_the_same(self, x, ids):
    same = (ids[:, None] == ids).fill_diagonal_(False)
    first, second = torch.where(same)
    h = self.a(x)
    return (h[first] * h[second]).sum(1) + torch.zeros(len(ids), 2).fill_diagonal_(0.5, wrap=True).sum()


@forward
def strided_write(self, x, ids):
    h = self.a(x).clone()
    h.as_strided((2, 3), (6, 1), 1).mul_(2)
    row = h[1]
    return self.b(h.as_strided((3, 6), (4, 1))) + row.as_strided((2, 2), (2, 1)).sum() + row[2].as_strided((), ())


@forward
def read_as_data(self, x, ids):
    h = self.a(x)
    return self.b(h * h.data[ids > 1].sum())


@forward
def rows_as_often_as_their_numbers_say(self, x, ids):
    return self.b(torch.relu(self.a(x)).repeat_interleave(ids, 0)), torch.repeat_interleave(ids, 2), x[0].repeat(2)


@forward
def columns_as_often_as_a_tensor_says(self, x, ids):
    return self.a(x).T.repeat_interleave(ids.max().reshape(1), dim=-1)


@forward
def sequences_of_several_lengths(self, x, ids):
    h = self.a(x)
    parts = [h[ids > 2], h[ids == 0], h[:2]]
    pad = nn.utils.rnn.pad_sequence
    return self.b(pad(parts)), pad(parts, batch_first=True, padding_value=0.5), pad(parts, padding_side="left")


@forward
def rows_of_each_group_beside_each_other(self, x, ids):
    group = ids.sort()[0]
    groups = int(group.max()) + 1
    counts = torch.zeros(groups, dtype=torch.int64).scatter_add(0, group, torch.ones_like(group))
    starts = counts.new_empty(groups + 1)
    starts.narrow(0, 0, 1).zero_()
    torch.cumsum(counts, 0, out=starts.narrow(0, 1, groups))
    most = int(counts.max())
    beside = x.new_full([groups * most, 6], 0.5)
    beside[torch.arange(x.shape[0]) - starts[group] + group * most] = self.a(x)
    return self.b(beside.view(groups, most, 6).softmax(1))


@forward
def starts_of_sorted_rows(self, x, ids):
    starts = torch._convert_indices_from_coo_to_csr(ids.sort()[0], 5)
    return self.a(x) * starts.diff()[ids][:, None], starts


@forward
def loss_of_chosen_rows(self, x, ids):
    return F.cross_entropy(self.b(self.a(x))[ids > 1], (ids % 3)[ids > 1], reduction="sum")


@forward
def normalised_before_and_behind(self, x, ids):
    h = self.norm(self.a(x))
    return self.b(torch.cat([h[ids > 2], self.norm(h * 2), h[ids <= 2]]))


@forward
def alignment_of_targets_in_a_row(self, x, ids):
    log_probs = self.b(self.a(x))[:, None, :].expand(-1, 2, -1).log_softmax(-1)
    lengths = torch.full((2,), 6)
    return F.ctc_loss(log_probs, ids[:3] % 2 + 1, lengths, torch.stack([ids[0] * 0 + 1, ids[0] * 0 + 2]))


@forward
def slices_between_numbers(self, x, ids):
    h, low, high = self.a(x), ids.min().item(), int(ids.max())
    return self.b(h)[: high + 1], h[:, low : low + high], h[-high - 1 :].sum(0), self.b(h)[ids.max() :].sum(), h[1::2]


@forward
def slices_of_several_lengths(self, x, ids):
    h, lengths = self.a(x), (ids[:3] + 1).tolist()
    padded = nn.utils.rnn.pad_sequence([h[:length] for length in lengths], batch_first=True)
    means = [h[i, :length].mean() for i, length in enumerate(lengths)]
    return self.b(padded), torch.stack(means), h.flatten()[: lengths[0] * 3].view(lengths[0], 3)


@forward
def parts_of_several_lengths(self, x, ids):
    parts = self.a(x)[: ids[:3].sum()].split(ids[:3].tolist())
    return torch.stack([part.tanh().sum() for part in parts])


@forward
def parts_of_one_row(self, x, ids):
    sizes = torch.eye(3, dtype=torch.int64)[ids[0] % 3].tolist()
    return torch.stack([part.tanh().sum() for part in self.a(x)[:1].split(sizes)])


@forward
def parts_of_all_columns(self, x, ids):
    first = int(ids.max())
    left, right = self.a(x).split([first, 6 - first], 1)
    return left.tanh().sum() + right.exp().sum()


@forward
def mask_of_the_longest(self, x, ids):
    longest = int(ids.max())
    return self.b(x[:4, :longest] @ self.a.weight[:, :longest].T * (torch.arange(4) < longest)[:, None])


@forward
def rolled_and_narrowed_from_a_number(self, x, ids):
    h, n = self.a(x), int(ids.max())
    flat, cut = h.roll(n - 2), h.narrow(1, n, 2)
    return self.b(h.roll(n, 1)), h.roll((n, -n), (0, 1)), flat, cut


@forward
def writes_to_places_from_numbers(self, x, ids):
    h, n, first = self.a(x) * 1, int(ids.max()), int(x[0, 0].abs())
    h[:n] = 0
    h[:, : n % 3] = x[:, : n % 3] * 2
    h[:n, 1:n] = h[:n, 1:n] * 3
    h[first % 5] = 1
    h[..., n:] = x[:, :1]
    h[1 :: n + 1] = x[0, 0]
    h[None, ids.min() : 2, None] = 7
    return self.b(h)


@forward
def every_so_many_rows(self, x, ids):
    h, n = self.a(x), ids.max() + 1
    return self.b(h)[::n], h[1 :: n + 1], h[-3::n].sum(0), h[:, ::n], h[0, :4:n]


@forward
def slices_to_a_whole_number_out_of_a_fraction(self, x, ids):
    n = int(x.abs().max()) + 1
    return self.b(self.a(x)[:n]), x[:, :n].sum(), int(-x.abs().max()) * self.a(x)


def step(module, x, ids):
    """What a forward gives, and the gradients of a scalar of it."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    results = module(x, ids)
    results = results if isinstance(results, tuple) else (results,)
    weighted = [(r * torch.arange(1, r.numel() + 1).reshape(r.shape)).pow(2).sum() for r in results if r.requires_grad]
    sum(weighted).backward()
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in (x, *module.parameters())]
    return [r.detach() for r in results] + gradients + [b.clone() for b in module.buffers()]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FORWARDS)
def test_values_and_gradients_are_eagers(name):
    eager = Layers(FORWARDS[name])
    ours = ORTModule(copy.deepcopy(eager))
    for rows, below in ((6, 5), (6, 4), (9, 5), (9, 2), (7, 1)):
        x, ids = torch.randn(rows, 4, dtype=torch.float64), torch.randint(0, below, (rows,))
        expected = step(eager, x, ids)
        for actual, wanted in zip(step(ours, x, ids), expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-9)


def test_a_size_that_follows_from_a_parameter_alone():
    eager = Pruned()
    ours = ORTModule(copy.deepcopy(eager))
    for module in (eager, ours):
        module(torch.ones(4)).backward()
    torch.testing.assert_close(ours.weight.grad, eager.weight.grad)


@pytest.mark.parametrize("count", [0, 1, 2, 6])
def test_none_few_and_all_rows(count):
    eager = Layers(rows_of_a_mask)
    ours = ORTModule(copy.deepcopy(eager))
    x, ids = torch.randn(6, 4, dtype=torch.float64), torch.zeros(6, dtype=torch.int64)
    ids[:count] = 5
    for actual, wanted in zip(step(ours, x, ids), step(eager, x, ids), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-9)


def test_one_capture_and_a_plan_for_each_number_of_rows():
    ours = ORTModule(Layers(rows_of_a_mask))
    x = torch.randn(6, 4, dtype=torch.float64)
    for count in (2, 3, 2, 3, 4):
        step(ours, x, torch.tensor([5] * count + [0] * (6 - count)))
    (entry,) = ours._engine.entries
    assert ours._engine.captures == 1
    assert [len(region.session.plans) for region in entry.session.regions] == [1, 3]


def test_forwards_before_backwards_and_evaluation_in_between():
    eager = Layers(routed_to_experts)
    ours = ORTModule(copy.deepcopy(eager))
    batches = [(torch.randn(rows, 4, dtype=torch.float64), torch.zeros(rows, dtype=torch.int64)) for rows in (5, 8)]
    for module in (eager, ours):
        first, second = (module(*batch) for batch in batches)
        with torch.no_grad():
            torch.testing.assert_close(module(*batches[0]), first)
        (first.sum() * 3).backward(retain_graph=True)
        second.square().sum().backward()
        first.square().sum().backward()
    for actual, wanted in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, wanted.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("forward", [rolled_and_narrowed_from_a_number, slices_between_numbers])
def test_a_number_says_where_not_how_often_to_capture(forward):
    ours = ORTModule(Layers(forward))
    x = torch.randn(6, 4, dtype=torch.float64)
    for last in range(1, 5):
        step(ours, x, torch.tensor([0, 1, 0, last, 0, 1]))
    assert ours._engine.captures == 1


def test_a_slice_between_tensors_is_captured_once():
    eager = Layers(lambda layers, x, k: layers.a(x)[k : k + 2, : k + 1])
    ours = ORTModule(copy.deepcopy(eager))
    x = torch.randn(6, 4, dtype=torch.float64)
    for k in (1, 3, 0):
        for actual, wanted in zip(step(ours, x, torch.tensor(k)), step(eager, x, torch.tensor(k)), strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-9)
    assert ours._engine.captures == 1


def test_a_slice_to_a_negative_number_names_a_way_that_trains():
    ours = ORTModule(Layers(lambda layers, x, k: layers.a(x)[: k.item()]))
    x = torch.randn(6, 4, dtype=torch.float64)
    ours(x, torch.tensor(2))
    with pytest.raises(GraphError, match=r"a size is -2") as caught:
        ours(x, torch.tensor(-2))
    assert "x[: (k % len(x)).item()]" in str(caught.value) and "test_sizes_from_values.py" in str(caught.value)
    from_start = Layers(lambda layers, x, k: layers.a(x)[: (k % len(x)).item()])
    expected = from_start(x, torch.tensor(-2))
    torch.testing.assert_close(ORTModule(from_start)(x, torch.tensor(-2)), expected)


def test_a_parameter_that_changed_before_backward():
    ours = ORTModule(Layers(rows_of_a_mask))
    loss = ours(torch.randn(6, 4, dtype=torch.float64), torch.arange(6)).sum()
    with torch.no_grad():
        ours.b.weight.mul_(2)
    with pytest.raises(InputError, match=r"'b\.weight' was changed in place"):
        loss.backward()


def test_dropout_in_regions_repeats_with_the_seed():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 40), nn.Linear(40, 40)

        def forward(self, x, mask):
            return F.dropout(self.b(F.dropout(self.a(x), 0.5)[mask]), 0.5)

    ours = ORTModule(Dropping())
    x, mask = torch.randn(6, 4), torch.arange(6) > 2
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(ours(x, mask))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    dropped = results[0] == 0
    assert 0.3 < dropped.float().mean() < 0.7 and not torch.equal(dropped, results[2] == 0)


def test_a_trainer_names_the_wrapper_that_trains_it():
    trainer = ORTTrainer(
        Layers(loss_of_chosen_rows),
        {"inputs": [("x", [6, 4]), ("ids", [6])], "outputs": [("loss", [], True)]},
        optim.SGDConfig(lr=0.1),
    )
    with pytest.raises(CaptureError, match="ORTModule"):
        trainer.train_step(torch.randn(6, 4, dtype=torch.float64), torch.arange(6))


@pytest.mark.parametrize(
    "zeros",
    [
        lambda x: torch.zeros(x.shape[0], dtype=int),
        lambda x: (x[:, 0] * 0).to(int),
        lambda x: torch.from_numpy(np.zeros(3, dtype=int)),
        lambda x: torch.tensor(np.arange(3).astype(int)) * 0,
    ],
    ids=["a factory's dtype", "a conversion", "an array's dtype", "an array's conversion"],
)
def test_pythons_int_may_stand_for_a_dtype(zeros):
    """A trace puts an `int` of its own in the files of the module's package, so that `int(tensor)` varies."""

    class Picks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 5))

        def forward(self, x):
            return x @ self.weight[zeros(x)].sum(0)[:, None][:4] * int(3.7)

    x, eager = torch.randn(3, 4), Picks()
    module = ORTModule(copy.deepcopy(eager))
    torch.testing.assert_close(module(x), eager(x))
