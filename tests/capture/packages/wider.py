"""Further layers, aggregations and norms of torch_geometric; retention, routed feed-forwards, and blocks of SAM."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.capture.packages.architectures import uneven
from tests.capture.packages.entry import Batch, Loss, add, ids, image, numbers, unevenly
from tests.capture.packages.graphs import graph
from tests.capture.packages.networks_of_graphs import read_by

__all__: list[str] = []


def _plain(layer: Any, x: torch.Tensor, edges: torch.Tensor) -> Any:
    return layer(x, edges)


def _attributed(layer: Any, x: torch.Tensor, edges: torch.Tensor) -> Any:
    return layer(x, edges, edge_attr=(edges * 0.1).T.to(x.dtype).sin())


def _whole(layer: Any, x: torch.Tensor, edges: torch.Tensor) -> Any:
    return layer(x, edges, torch.zeros_like(edges[0, : x.shape[0]]))


for _name, _read, _arguments, _settings in (
    ("SSGConv", _plain, (4, 6), {"alpha": 0.1}),
    ("PDNConv", _attributed, (4, 6), {"edge_dim": 2, "hidden_channels": 4}),
    ("GeneralConv", _attributed, (4, 6), {"in_edge_channels": 2, "attention": True}),
    ("EGConv", _plain, (4, 8), {"num_heads": 4}),
    ("AntiSymmetricConv", _plain, (4,), {}),
    ("MixHopConv", _plain, (4, 6), {}),
    ("FeaStConv", _plain, (4, 6), {"heads": 2}),
    ("GMMConv", _attributed, (4, 6), {"dim": 2, "kernel_size": 3}),
    ("Polynormer", _whole, (4, 6, 4), {"in_dropout": 0.0, "dropout": 0.0, "global_dropout": 0.0}),
):
    add(f"{_name} of attributes" if _read is _attributed else _name, "torch_geometric",
        read_by(_read, _name, *_arguments, **_settings), graph)  # fmt: skip


def aggregated(name: str, settings: dict[str, Any]) -> Any:
    """A layer, and what torch_geometric makes of the nodes of each graph, or of their norms."""

    def make() -> nn.Module:
        from torch_geometric import nn as layers

        def forward(s: Any, x: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
            return unevenly(s.model(s.layer(x), groups))

        return Loss(forward, model=getattr(layers, name)(**settings), layer=nn.Linear(6, 6))

    return make


_PATCHES = {"in_channels": 6, "out_channels": 4, "patch_size": 2, "hidden_channels": 4, "heads": 2}
for _name, _settings in (
    ("SortAggregation", {"k": 3}), ("SoftmaxAggregation", {"learn": True}), ("MedianAggregation", {}),
    ("QuantileAggregation", {"q": 0.3}), ("StdAggregation", {}), ("VarAggregation", {}), ("MulAggregation", {}),
    ("SetTransformerAggregation", {"channels": 6, "num_seed_points": 2, "heads": 2}), ("DeepSetsAggregation", {}),
    ("GRUAggregation", {"in_channels": 6, "out_channels": 4}), ("VariancePreservingAggregation", {}),
    ("PatchTransformerAggregation", _PATCHES), ("InstanceNorm", {"in_channels": 6}), ("GraphSizeNorm", {}),
    ("PairNorm", {}), ("MeanSubtractionNorm", {}), ("LayerNorm", {"in_channels": 6}),
):  # fmt: skip
    _suffix = "" if "Aggregation" in _name else " of graphs"
    add(f"{_name}{_suffix}", "torch_geometric", aggregated(_name, _settings),
        lambda n: (numbers(4 * n, 6), torch.arange(4 * n) // 4))  # fmt: skip


def scaled(kind: str) -> Any:
    """A stack of torchscale: of retention, or of attention."""

    def make() -> nn.Module:
        from torchscale.architecture import config, decoder, encoder, retnet

        common = {"vocab_size": 20, "dropout": 0.0}
        words = nn.Embedding(20, 16)
        if kind == "retnet":
            settings = config.RetNetConfig(**common, decoder_embed_dim=16, decoder_value_embed_dim=32,
                decoder_retention_heads=2, decoder_ffn_embed_dim=32, decoder_layers=1)  # fmt: skip
            return Loss(lambda s, tokens: unevenly(s.model(tokens)[0]),
                        model=retnet.RetNetDecoder(settings, embed_tokens=words))  # fmt: skip
        sizes = {f"{kind}_embed_dim": 16, f"{kind}_attention_heads": 2, f"{kind}_ffn_embed_dim": 32,
                 f"{kind}_layers": 1}  # fmt: skip
        if kind == "encoder":
            model = encoder.Encoder(config.EncoderConfig(**common, **sizes), embed_tokens=words)
            return Loss(lambda s, tokens: unevenly(s.model(src_tokens=tokens)["encoder_out"]), model=model)
        model = decoder.Decoder(config.DecoderConfig(**common, **sizes), embed_tokens=words)
        return Loss(lambda s, tokens: unevenly(s.model(tokens)[0]), model=model)

    return make


def turned() -> nn.Module:
    """Queries turned by frequencies that are learned."""
    from rotary_embedding_torch import RotaryEmbedding

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        heads = s.layer(x).unflatten(-1, (2, 8)).transpose(1, 2)
        return unevenly(s.model.rotate_queries_or_keys(heads))

    return Loss(forward, model=RotaryEmbedding(dim=8, learned_freq=True), layer=nn.Linear(16, 16))


def rows(n: int) -> Batch:
    """Sequences of vectors."""
    return (numbers(n, 4 * n, 16),)


for _kind in ("retnet", "encoder", "decoder"):
    add(f"{_kind} of torchscale", "torchscale", scaled(_kind), lambda n: (ids(20, n, 4 * n),), "torchscale",
        "torchvision")  # fmt: skip
add("SAM's two-way transformer", "segment-anything", uneven(
    "segment_anything.modeling.TwoWayTransformer", depth=1, embedding_dim=16, num_heads=2, mlp_dim=16),
    lambda n: (numbers(n, 16, 4, 4), numbers(n, 16, 4, 4, seed=1), numbers(n, 3, 16)), "segment_anything",
    "torchvision")  # fmt: skip
add("SAM's image encoder", "segment-anything", uneven(
    "segment_anything.modeling.ImageEncoderViT", img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2,
    out_chans=8, use_rel_pos=True, window_size=2, global_attn_indexes=(1,)), image(), "segment_anything",
    "torchvision")  # fmt: skip
add("conditionally routed feed-forward", "CoLT5-attention", uneven(
    "colt5_attention.ConditionalRoutedFeedForward", 16, num_heavy_tokens=4, light_ff_mult=0.5, heavy_ff_mult=2),
    rows, "colt5_attention")  # fmt: skip
add("attention in buckets", "memory-efficient-attention-pytorch", uneven(
    "memory_efficient_attention_pytorch.Attention", dim=16, dim_head=8, heads=2, causal=True, memory_efficient=True,
    q_bucket_size=4, k_bucket_size=4), rows)  # fmt: skip
add("learned rotary embedding", "rotary-embedding-torch", turned, rows)
add("Swin of volumes", "torchvision", uneven(
    "torchvision.models.video.swin_transformer.SwinTransformer3d", [2, 2, 2], 8, [1, 1], [2, 2], [2, 2, 2],
    stochastic_depth_prob=0.0), lambda n: (numbers(n, 3, 4, 16, 16),))  # fmt: skip
add("MaxViT of torchvision", "torchvision", uneven(
    "torchvision.models.maxvit.MaxVit", (32, 32), 8, 4, [8, 8], [1, 1], 8, 0.0), image())  # fmt: skip
add("MNASNet", "torchvision", uneven("torchvision.models.mnasnet0_5", num_classes=4), image())
add("GoogLeNet", "torchvision", uneven(
    "torchvision.models.googlenet", num_classes=4, init_weights=False, aux_logits=False), image(3, 64))  # fmt: skip
