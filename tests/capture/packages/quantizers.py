"""Further quantizers of vector-quantize-pytorch, and further decoders of x-transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from tests.capture.packages.entry import Loss, add, ids, numbers

__all__: list[str] = []


def quantized(name: str, size: int, **settings: Any) -> Callable[[], nn.Module]:
    """A linear layer, whose results are quantized."""

    def make() -> nn.Module:
        import vector_quantize_pytorch

        quantizer = getattr(vector_quantize_pytorch, name)(dim=size, **settings)
        return Loss(lambda s, x: s.quantizer(s.model(x)), model=nn.Linear(4, size), quantizer=quantizer)

    return make


for _name, _size, _settings in (
    ("ResidualFSQ", 4, {"levels": [4, 4, 4, 4], "num_quantizers": 2}), ("SimVQ", 8, {"codebook_size": 8}),
    ("ResidualSimVQ", 8, {"num_quantizers": 2, "codebook_size": 8}),
):  # fmt: skip
    add(_name, "vector-quantize-pytorch", quantized(_name, _size, **_settings), lambda n: (numbers(n, 6, 4),))


def decoder(**settings: Any) -> Callable[[], nn.Module]:
    """A small decoder of x-transformers."""

    def make() -> nn.Module:
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, **settings)
        return Loss(model=TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=layers))

    return make


for _name, _setting in (
    ("sandwiched norms", {"sandwich_norm": True}), ("macaron layers", {"macaron": True}),
    ("shifted tokens", {"shift_tokens": 1}), ("one head of keys", {"attn_one_kv_head": True}),
    ("normalised queries", {"attn_qk_norm": True}), ("memories of keys", {"attn_num_mem_kv": 2}),
    ("talking heads", {"attn_pre_talking_heads": True, "attn_post_talking_heads": True}),
):  # fmt: skip
    add(f"decoder with {_name}", "x-transformers", decoder(**_setting), lambda n: (ids(20, n, 5 + n),))
