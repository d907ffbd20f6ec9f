"""The example provider, installed as a package of its own and found by its entry point in a fresh process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "provider_numpy"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder that holds the installed package."""
    folder = tmp_path_factory.mktemp("provider")
    # From a copy: setuptools builds inside the source tree.
    source = shutil.copytree(
        EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    )
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(folder / "site"), str(source)], check=True, timeout=300)
    return folder / "site"


def _python(installed: Path, *arguments: str) -> str:
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, "PYTHONPATH": path}, cwd=installed,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def _eager() -> list[float]:
    """The losses of the example's network in eager PyTorch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.0)
    batches = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(20):
        x = torch.randn(32, 4, generator=batches)
        loss = nn.functional.mse_loss(net(x), x.prod(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_it_trains_like_eager_under_its_name(installed):
    lines = _python(installed, str(EXAMPLE / "train.py")).split("\n")
    losses = [float(line.split()[1]) for line in lines if line]
    np.testing.assert_allclose(losses, _eager(), rtol=1e-4, atol=2e-6)  # printed with six decimals


CONTRACT = """
import numpy as np, torch
from torch import nn
import ontrain
from ontrain.providers import available_providers, get_provider
from ontrain.training import ORTTrainer, optim

assert ontrain.get_available_providers()[-1] == "NumpyExecutionProvider"
provider = get_provider("NumpyExecutionProvider")
assert type(provider).__module__ == "ontrain_provider_numpy.provider"


def trainer(net, **options):
    desc = {"inputs": [("x", ["n", 4]), ("y", ["n", 4])], "outputs": [("loss", [], True), ("out", ["n", 4])]}
    options = {"device": {"id": "cpu"}, "provider": "NumpyExecutionProvider", **options}
    return ORTTrainer(net, desc, optim.AdamConfig(lr=0.01), nn.functional.mse_loss, options)


x = torch.ones(3, 4)
try:
    trainer(nn.Sequential(nn.Linear(4, 4), nn.Softplus())).train_step(x, x)
except ontrain.ProviderError as error:
    assert "no kernel for" in str(error) and "KERNELS" in str(error), error
else:
    raise AssertionError("an operator without a kernel must be refused")

bad = trainer(nn.Linear(4, 4), utils={"nonfinite_loss": "skip"})
bad.train_step(x, x)
before = bad.state_dict()["model"]["full_precision"]
bad.train_step(x * float("inf"), x)
after = bad.state_dict()["model"]["full_precision"]
assert all(torch.equal(before[name], after[name]) for name in before)
assert {"Gemm", "Mul"} <= {entry["operator"] for entry in bad.profile(x, x)}
"""


def test_it_keeps_the_contract(installed):
    _python(installed, "-c", CONTRACT)


MEMORY = """
import tracemalloc
import numpy as np, torch
from torch import nn
from ontrain.training import ORTTrainer, optim

net = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32))))
desc = {"inputs": [("x", [2048, 32]), ("y", [2048, 32])], "outputs": [("loss", [], True), ("out", [2048, 32])]}
batch = torch.randn(2, 2048, 32, generator=torch.Generator().manual_seed(0))


def run(**memory):
    options = {"device": {"id": "cpu"}, "provider": "NumpyExecutionProvider", "graph_transformer": memory}
    torch.manual_seed(0)
    for part in net:
        if isinstance(part, nn.Linear):
            part.reset_parameters()
    trainer = ORTTrainer(net, desc, optim.AdamConfig(lr=0.01), nn.functional.mse_loss, options)
    losses = [float(trainer.train_step(*batch)[0]) for _ in range(3)]
    (plan,) = trainer._run.session.plans.values()
    feeds = {"x": batch[0], "y": batch[1], "learning_rate": 0.0, "step": 4.0, "loss_scale": 1.0}
    tracemalloc.start()
    plan.executable.run(feeds)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return losses, plan.executable.planned_bytes, peak


whole, planned, used = run()
again, less, used_less = run(memory_budget=0.8)
assert whole == again, "the same operators on the same values"
assert less <= 0.8 * planned, (less, planned)
# Kernels have temporaries of their own, which are the same in both.
assert abs((used - used_less) / (planned - less) - 1) < 0.01, (used, planned, used_less, less)
"""


@pytest.mark.thorough
def test_it_says_what_memory_a_step_takes_and_keeps_to_a_budget(installed):
    _python(installed, "-c", MEMORY)


MODULE = """
import torch
from torch import nn
from ontrain.training.ortmodule import ORTModule

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
x = torch.randn(3, 4)
net(x).square().sum().backward()
expected = [p.grad.clone() for p in net.parameters()]
net.zero_grad()
ORTModule(net, provider="NumpyExecutionProvider")(x).square().sum().backward()
for p, grad in zip(net.parameters(), expected, strict=True):
    torch.testing.assert_close(p.grad, grad)
"""


@pytest.mark.thorough
def test_a_module_in_a_users_own_loop_runs_on_it_as_two_graphs(installed):
    _python(installed, "-c", MODULE)


def test_the_how_to_quotes_the_example():
    document = EXAMPLE.parent.parent / "docs" / "how-to" / "add-a-provider.md"
    files = "\n".join(path.read_text() for path in sorted(EXAMPLE.rglob("*")) if path.suffix in (".py", ".toml"))
    blocks = [part.split("\n", 1) for part in document.read_text().split("```")[1::2]]
    quoted = [text for language, text in blocks if language in ("python", "toml")]
    assert len(quoted) >= 4
    for text in quoted:
        assert text in files, f"not in the example:\n{text}"
    lines = files.count("\n") + document.read_text().count("\n")
    assert lines < 400 and files.count("\n") < 300
