"""What forward keeps apart by threads stands under the thread that calls, as in eager PyTorch."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule


class ByThread(nn.Module):
    """Keeps what each thread has computed under the thread's number."""

    def __init__(self, hooked):
        super().__init__()
        self.layer, self.seen, self.hooked = nn.Linear(3, 2), {}, hooked
        if hooked:
            self.layer.register_forward_hook(self.see)

    def see(self, layer, inputs, y):
        self.seen[threading.get_ident()] = y.detach()

    def forward(self, x):
        y = self.layer(x)
        if not self.hooked:
            self.seen[threading.get_ident()] = y.detach()
        return y


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.filterwarnings("ignore:the forward hooks")
def test_what_is_kept_for_each_thread_stands_under_the_number_of_the_thread_that_calls(hooked):
    model = ORTModule(ByThread(hooked))
    model(torch.ones(2, 3))
    with ThreadPoolExecutor(1) as thread:
        there = thread.submit(threading.get_ident).result()
        other = thread.submit(model, torch.zeros(2, 3)).result()
    assert set(model.seen) == {threading.get_ident(), there}
    torch.testing.assert_close(model.seen[there], other.detach())
