"""Attention: PyTorch's layers with masks of every kind."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.drawn.draw import Draw
from tests.drawn.modules.module import Applied, Sample, sample

WIDTH, HEADS = 8, 2
LEAST = float("-inf")


def _hidden(draw: Draw, *shape: int, numbers: bool = False) -> torch.Tensor:
    """What is hidden: truth, or numbers that are added; never a whole row."""
    mask = draw.uniform(*shape) > 0.6
    mask[..., 0] = False
    return torch.zeros(shape).masked_fill(mask, LEAST) + draw.tensor(*shape) * 0.3 if numbers else mask


def _turned(first: bool, x: torch.Tensor) -> torch.Tensor:
    return x if first else x.transpose(0, 1)


@sample.share(2)
def multihead(draw: Draw) -> Sample:
    """MultiheadAttention with a mask of places, of padding, or both."""
    first, weights = draw.flag(), draw.flag()
    layer = nn.MultiheadAttention(
        WIDTH, HEADS, bias=draw.flag(), batch_first=first, add_zero_attn=draw.flag(0.2), add_bias_kv=draw.flag(0.2)
    )
    places, padding = draw.choice([None, "truth", "numbers", "heads"]), draw.choice([None, "truth", "numbers"])
    itself, average = draw.flag(), draw.flag()

    def function(m: nn.Module, query: torch.Tensor, key: torch.Tensor, *masks: torch.Tensor) -> Any:
        rest = list(masks)
        settings = dict(attn_mask=rest.pop(0) if places else None, key_padding_mask=rest.pop(0) if padding else None)
        content = query if itself else key
        return m(query, content, content, need_weights=weights, average_attn_weights=average, **settings)

    def inputs() -> list[torch.Tensor]:
        batch, queries = draw.integer(1, 3), draw.integer(2, 5)
        keys = queries if itself else draw.integer(2, 5)
        tensors = [_turned(first, draw.tensor(batch, rows, WIDTH)) for rows in (queries, keys)]
        if places:
            shape = (batch * HEADS, queries, keys) if places == "heads" else (queries, keys)
            tensors.append(_hidden(draw, *shape, numbers=places == "numbers"))
        if padding:
            tensors.append(_hidden(draw, batch, keys, numbers=padding == "numbers"))
        return tensors

    text = f"places={places} padding={padding} itself={itself} weights={weights} first={first}"
    return Sample(f"{layer} {text}", Applied(function, layer), inputs)


def _settings(draw: Draw) -> dict:
    """Of a layer of a transformer."""
    return dict(
        d_model=WIDTH, nhead=HEADS, dim_feedforward=6, dropout=0.0, batch_first=draw.flag(), norm_first=draw.flag(),
        activation=draw.choice(["relu", "gelu", torch.tanh]), bias=draw.flag(0.8),
    )  # fmt: skip


@sample.share(2)
def encoder(draw: Draw) -> Sample:
    """TransformerEncoder of one layer or two, causal, masked or padded."""
    settings, count = _settings(draw), draw.choice([0, 1, 2])
    layer = nn.TransformerEncoderLayer(**settings)
    module = nn.TransformerEncoder(layer, count, nn.LayerNorm(WIDTH) if draw.flag() else None) if count else layer
    name = "mask" if count else "src_mask"
    masking = draw.choice([None, "causal", "truth"])
    padded = draw.flag()

    def function(m: nn.Module, x: torch.Tensor, *masks: torch.Tensor) -> Any:
        rest, length = list(masks), x.shape[1 if settings["batch_first"] else 0]
        named: dict = {"src_key_padding_mask": rest.pop() if padded else None}
        if masking == "causal":
            named |= {name: nn.Transformer.generate_square_subsequent_mask(length), "is_causal": True}
        elif masking:
            named[name] = rest.pop()
        return m(x, **named)

    def inputs() -> list[torch.Tensor]:
        batch, length = draw.integer(1, 3), draw.integer(2, 5)
        masks = [_hidden(draw, length, length)] if masking == "truth" else []
        numbers = masking == "causal"
        masks += [torch.zeros(batch, length).masked_fill(_hidden(draw, batch, length), LEAST) if numbers else
                  _hidden(draw, batch, length)] if padded else []  # fmt: skip
        return [_turned(settings["batch_first"], draw.tensor(batch, length, WIDTH)), *masks]

    text = f"TransformerEncoder {settings} layers={count} masking={masking} padded={padded}"
    return Sample(text, Applied(function, module), inputs)


@sample
def decoder_layer(draw: Draw) -> Sample:
    """TransformerDecoder of one layer or two, causal, its memory padded."""
    settings, count, causal = _settings(draw), draw.choice([1, 2]), draw.flag()
    module = nn.TransformerDecoder(nn.TransformerDecoderLayer(**settings), count)
    first = settings["batch_first"]

    def function(m: nn.Module, x: torch.Tensor, memory: torch.Tensor, padding: torch.Tensor) -> Any:
        length = x.shape[1 if first else 0]
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1) if causal else None
        return m(x, memory, tgt_mask=mask, memory_key_padding_mask=padding)

    def inputs() -> list[torch.Tensor]:
        batch, rows = draw.integer(1, 3), draw.integer(2, 4)
        tensors = [_turned(first, draw.tensor(batch, length, WIDTH)) for length in (draw.integer(2, 4), rows)]
        return [*tensors, _hidden(draw, batch, rows)]

    return Sample(f"TransformerDecoder {settings} {count} causal={causal}", Applied(function, module), inputs)


@sample
def transformer(draw: Draw) -> Sample:
    """nn.Transformer."""
    settings = _settings(draw) | dict(num_encoder_layers=1, num_decoder_layers=1)
    module, first = nn.Transformer(**settings), settings["batch_first"]

    def inputs() -> list[torch.Tensor]:
        batch = draw.integer(1, 3)
        return [_turned(first, draw.tensor(batch, draw.integer(2, 4), WIDTH)) for _ in range(2)]

    return Sample(f"Transformer {settings}", module, inputs)


@sample.share(2)
def dot_product(draw: Draw) -> Sample:
    """scaled_dot_product_attention: masked, causal, of fewer keys' heads, with another scale."""
    masking = draw.choice([None, "causal", "truth", "numbers", "one for all"])
    grouped, scale = draw.flag(0.3), draw.choice([None, 0.3])
    batch_axes = draw.choice([0, 1, 2]) if not grouped else 1
    project = nn.Linear(6, 6)

    def function(m: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: torch.Tensor) -> Any:
        settings = dict(is_causal=masking == "causal", scale=scale, enable_gqa=grouped)
        return F.scaled_dot_product_attention(m(q), k, v, masks[0] if masks else None, **settings)

    def inputs() -> list[torch.Tensor]:
        batch = draw.sizes(batch_axes, 1, 3)
        heads = [(4,), (2,)] if grouped else [(), ()]
        queries, keys, width = draw.integer(1, 5), draw.integer(1, 5), draw.integer(1, 6)
        masks = []
        if masking in ("truth", "numbers"):
            shape = draw.choice([(queries, keys), (*batch, *heads[0], queries, keys), (1, keys)])
            masks.append(_hidden(draw, *shape, numbers=masking == "numbers"))
        elif masking:
            masks = [] if masking == "causal" else [_hidden(draw, 1, keys)]
        return [
            draw.tensor(*batch, *heads[0], queries, 6), draw.tensor(*batch, *heads[1], keys, 6),
            draw.tensor(*batch, *heads[1], keys, width), *masks,
        ]  # fmt: skip

    text = f"sdpa masking={masking} grouped={grouped} scale={scale} batch={batch_axes}"
    return Sample(text, Applied(function, project), inputs)
