"""The files of a StatisticsSubscriber: their layout, their numbers, and what is read back from them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from ontrain.errors import InputError, OptionError
from ontrain.training.inspection import Statistics, summarise
from ontrain.training.utils.hooks import StatisticsSubscriber, SubscriberManager

# As onnxruntime-training 1.19 writes them; the sample's last line is that of a tensor on an accelerator.
UPSTREAM = """\
>>Linear_1_0th_output forward run shape: torch.Size([2, 3]) dtype: torch.float32 size: torch.Size([6]) 
min: -1.25 max: 2.5, mean: 0.375, std: 1.3110586404800415 
nan: 0, inf: 0
samples(top 128): tensor([-1.250000,  0.000000,  1.000000e+00,  2.500000, -0.500000,  0.500000],
       device='cuda:0')
neg: 2, pos: 3, zero: 1,
================
"""  # noqa: W291


def close(text, value):
    return math.isclose(text, float(value), rel_tol=1e-12, abs_tol=1e-15) or math.isnan(text) and np.isnan(value)


@pytest.mark.parametrize("bucket", [1, 7, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_the_numbers_are_numpys(rng, dtype, bucket):
    tensor = torch.from_numpy(rng.standard_normal((5, 9)) * 3).to(dtype)
    tensor[0, :3] = 0
    values = tensor.double().numpy()
    statistics = summarise("x", 1, tensor, bucket_size=bucket)
    assert close(statistics.minimum, values.min()) and close(statistics.maximum, values.max())
    assert close(statistics.mean, values.mean()) and close(statistics.std, values.std(ddof=1))
    assert (statistics.negative, statistics.zero, statistics.positive) == tuple(
        int((np.sign(values) == s).sum()) for s in (-1, 0, 1)
    )
    assert statistics.samples == tuple(values.reshape(-1)[:128]) and statistics.shape == (5, 9)


def test_numbers_that_are_none_are_counted_and_told():
    statistics = summarise("x", 1, torch.tensor([1.0, math.nan, -math.inf, math.inf]), bucket_size=2)
    assert (statistics.nan, statistics.inf, statistics.positive, statistics.negative) == (1, 2, 2, 1)
    assert all(math.isnan(value) for value in (statistics.minimum, statistics.maximum, statistics.mean, statistics.std))
    infinite = summarise("x", 1, torch.tensor([1.0, math.inf]))
    assert (infinite.minimum, infinite.maximum, infinite.mean) == (1, math.inf, math.inf)
    empty, scalar = summarise("x", 1, torch.ones(0, 3)), summarise("x", 1, torch.tensor(4.0))
    assert math.isnan(empty.minimum) and empty.samples == () and empty.shape == (0, 3)
    assert scalar.mean == 4 and math.isnan(scalar.std)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 50),
        torch.randn(9, dtype=torch.float64),
        torch.tensor(2.5),
        torch.tensor([math.nan, 1e30, -math.inf]),
        torch.ones(0, 2),
    ],
)
def test_what_is_written_is_read_back(tensor):
    statistics = summarise("BertLayer_3_0th_output forward run", 2, tensor)
    back = Statistics.parse(statistics.text(), "file")
    assert statistics.text().startswith(">>BertLayer_3_0th_output forward run shape: torch.Size([")
    for field in dataclasses.fields(Statistics):
        have, want = getattr(back, field.name), getattr(statistics, field.name)
        np.testing.assert_allclose(have, want, rtol=1e-8) if field.name == "samples" else None
        assert field.name == "samples" or have == want or math.isnan(have) and math.isnan(want)


def test_onnxruntimes_files_are_read():
    statistics = Statistics.parse(UPSTREAM, "file")
    assert statistics.name == "Linear_1_0th_output forward run" and statistics.depth == 2 and statistics.shape == (2, 3)
    assert statistics.samples == (-1.25, 0, 1, 2.5, -0.5, 0.5) and statistics.std == 1.3110586404800415
    with pytest.raises(InputError, match="file holds no statistics"):
        Statistics.parse(UPSTREAM[:80], "file")


def test_the_layout_is_onnxruntimes(tmp_path):
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    SubscriberManager().subscribe(module, [StatisticsSubscriber(str(tmp_path / "out"), end_step=2)])
    for _ in range(3):
        module(torch.randn(2, 4)).sum().backward()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["step_0", "step_1"]
    names = (tmp_path / "out" / "step_1" / "order.txt").read_text().splitlines()
    assert names == [
        "Linear_1_0th_output_forward", "Tanh_2_0th_output_forward", "Sequential_0_0th_output_forward",
        "Sequential_0_0th_output_backward", "Tanh_2_0th_output_backward", "Linear_1_0th_output_backward",
    ]  # fmt: skip
    lines = (tmp_path / "out" / "step_1" / names[-1]).read_text().splitlines()
    assert lines[0].startswith(">>Linear_1_0th_output backward run shape: torch.Size([2, 3]) dtype: torch.float32")
    assert [line.split(":")[0] for line in lines[1:4]] == ["min", "nan", "samples(top 128)"]
    assert lines[-1] == "=" * 16


def test_an_older_run_is_deleted_only_when_asked_and_nothing_else_ever(tmp_path):
    folder = tmp_path / "out"
    (folder / "step_0").mkdir(parents=True)
    with pytest.raises(OptionError, match="exists"):
        StatisticsSubscriber(str(folder))
    StatisticsSubscriber(str(folder), override_output_dir=True)
    assert not folder.exists()
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(OptionError, match="thesis.txt"):
        StatisticsSubscriber(str(folder), override_output_dir=True)
    assert (folder / "thesis.txt").exists()
