"""Which processor this is, whether it has units for bfloat16, and what is said where it has none."""

from __future__ import annotations

import warnings

import pytest
import torch

from ontrain.providers.torch import processor
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule


@pytest.fixture
def machine(monkeypatch, cpuinfo):
    """Pretend another processor: the capabilities that torch tells of, None for a torch that tells none."""

    def pretend(capabilities, text=""):
        cpuinfo(text)
        if capabilities is None:
            monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
        else:
            monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)

    return pretend


@pytest.mark.parametrize(
    "capabilities, there",
    [
        ({"avx512_f": True, "avx512_bf16": True, "amx_bf16": False}, True),
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": True}, True),
        ({"avx2": True, "avx512_bf16": False, "cpu_name": "bf16"}, False),
        ({"neon": True, "bf16": True}, True),
    ],
)
def test_torch_is_asked_for_the_units(machine, capabilities, there):
    machine(capabilities)
    assert processor.multiplies_bfloat16() is there


@pytest.mark.parametrize(
    "text, there",
    [
        ("flags\t\t: fpu avx512f avx512_bf16\n", True),
        ("flags : fpu avx2\n", False),
        ("Features\t: fp asimd bf16\n", True),
        ("", False),
    ],
)
def test_an_older_torch_leaves_the_question_to_the_system(machine, text, there):
    machine(None, text)
    assert processor.multiplies_bfloat16() is there


@pytest.mark.parametrize(
    "capabilities, text, there",
    [
        ({"avx512_vnni": True, "avx_vnni": False}, "", True),
        ({"avx512_vnni": False, "avx_vnni": True}, "", True),
        ({"avx512_f": True, "avx512_vnni": False}, "flags : avx512_vnni\n", False),
        (None, "flags : fpu avx512_vnni\n", True),
        (None, "flags : fpu avx2\n", False),
    ],
)
def test_units_for_bytes_are_asked_for_as_well(machine, capabilities, text, there):
    machine(capabilities, text)
    assert processor.multiplies_bytes() is there


@pytest.mark.parametrize("there", [True, False])
def test_a_step_under_autocast_says_that_it_will_be_slow(machine, there):
    machine({"avx512_bf16": there})
    module = ORTModule(torch.nn.Linear(4, 2))
    with warnings.catch_warnings(record=True) as caught, torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("always")
        module(torch.randn(3, 4))
        module(torch.randn(3, 4))
    assert len([w for w in caught if "no units for bfloat16" in str(w.message)]) == (not there)


@pytest.mark.parametrize("there", [True, False])
def test_a_trainer_in_mixed_precision_says_so_too(machine, there):
    machine({"avx512_bf16": there})
    description = {"inputs": [("x", [3, 4])], "outputs": [("loss", [], True)]}
    mixed = {"device": {"id": "cpu"}, "mixed_precision": {"enabled": True, "dtype": "bfloat16"}}
    model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0))
    trainer = ORTTrainer(
        torch.nn.Sequential(model, _Mean()), description, optim.SGDConfig(lr=0.1), options=mixed
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train_step(torch.randn(3, 4))
    assert len([w for w in caught if "no units for bfloat16" in str(w.message)]) == (not there)


class _Mean(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean()


@pytest.mark.parametrize(
    "vendor, family, model, generation",
    [
        ("AuthenticAMD", 23, 0x01, "Zen"),
        ("AuthenticAMD", 23, 0x31, "Zen 2"),
        ("AuthenticAMD", 25, 0x01, "Zen 3"),
        ("AuthenticAMD", 25, 0x11, "Zen 4"),
        ("AuthenticAMD", 25, 0x61, "Zen 4"),
        ("AuthenticAMD", 25, 0xA0, "Zen 4"),
        ("AuthenticAMD", 26, 0x02, "Zen 5"),
        ("AuthenticAMD", 27, 0x02, None),
        ("GenuineIntel", 6, 0x8F, None),
    ],
)
def test_the_generation_follows_from_family_and_model(vendor, family, model, generation, machine):
    machine({}, f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\n")
    assert processor.generation() == generation
    assert processor.model_name() == "AMD EPYC"


def test_a_system_that_tells_nothing_has_a_name_all_the_same(machine):
    machine({})
    assert processor.generation() is None and processor.maker() == "other" and processor.model_name()
