"""Layers with weights or buffers: normalizations, recurrences, attention and embeddings."""

from __future__ import annotations

from torch import nn

from tests.drawn.calls.call import Call, call
from tests.drawn.draw import Draw

CHANNELS = 4


def _layer(module: nn.Module, inputs) -> Call:
    return Call(str(module), lambda m, x: m(x), inputs, module)


def _images(draw: Draw, rank: int = 2):
    return lambda: draw.tensor(draw.integer(2, 4), CHANNELS, *draw.sizes(rank, 3, 6))


@call
def batch_norm(draw: Draw) -> Call:
    """Running statistics by a factor, by the mean of all batches, or none."""
    rank = draw.choice([1, 2])
    module = getattr(nn, f"BatchNorm{rank}d")(
        CHANNELS, eps=draw.choice([1e-5, 0.1]), momentum=draw.choice([0.1, None, 0.5]), affine=draw.flag(),
        track_running_stats=draw.flag(0.7),
    )  # fmt: skip
    return _layer(module, _images(draw, rank))


@call
def instance_norm(draw: Draw) -> Call:
    """InstanceNorm2d, with running statistics or without."""
    module = nn.InstanceNorm2d(
        CHANNELS, affine=draw.flag(), track_running_stats=draw.flag(), momentum=draw.choice([0.1, 0.4])
    )
    return _layer(module, _images(draw))


@call
def group_norm(draw: Draw) -> Call:
    """GroupNorm."""
    return _layer(nn.GroupNorm(draw.choice([1, 2, 4]), CHANNELS, affine=draw.flag()), _images(draw))


@call
def layer_norm(draw: Draw) -> Call:
    """LayerNorm of one axis or two."""
    module = nn.LayerNorm(draw.choice([(6,), (5, 6)]), elementwise_affine=draw.flag(), bias=draw.flag())
    return _layer(module, lambda: draw.tensor(draw.integer(2, 4), CHANNELS, 5, 6))


@call
def rms_norm(draw: Draw) -> Call:
    """RMSNorm of one axis or two."""
    module = nn.RMSNorm(draw.choice([6, (5, 6)]), eps=draw.choice([None, 0.1]), elementwise_affine=draw.flag())
    return _layer(module, lambda: draw.tensor(draw.integer(2, 4), CHANNELS, 5, 6))


@call
def local_response_norm(draw: Draw) -> Call:
    """LocalResponseNorm."""
    return _layer(nn.LocalResponseNorm(draw.integer(1, 4), alpha=0.1, beta=0.7, k=2.0), _images(draw))


@call
def recurrence(draw: Draw) -> Call:
    """LSTM, GRU and RNN: outputs and last states."""
    layer = draw.choice([nn.LSTM, nn.GRU, nn.RNN])
    settings = dict(
        num_layers=draw.choice([1, 2]), bias=draw.flag(), batch_first=draw.flag(), bidirectional=draw.flag()
    )
    if layer is nn.LSTM and draw.flag():
        settings["proj_size"] = 2
    if layer is nn.RNN:
        settings["nonlinearity"] = draw.choice(["tanh", "relu"])

    def function(m, x):
        outputs, states = m(x)
        states = states if isinstance(states, tuple) else (states,)
        return outputs.sum((0, 1)) + sum(state.sum() for state in states)

    module = layer(3, 4, **settings)
    return Call(str(module), function, lambda: draw.tensor(draw.integer(2, 4), draw.integer(2, 4), 3), module)


@call
def attention(draw: Draw) -> Call:
    """MultiheadAttention of other keys and values, with further rows, and its weights."""
    settings = dict(
        bias=draw.flag(), add_bias_kv=draw.flag(), add_zero_attn=draw.flag(), kdim=draw.choice([None, 5]),
        vdim=draw.choice([None, 6]), batch_first=draw.flag(),
    )  # fmt: skip
    weighs = dict(need_weights=draw.flag(), average_attn_weights=draw.flag())
    module = nn.MultiheadAttention(8, 2, **settings)

    def function(m, query, key, content):
        outputs, weights = m(query, key, content, **weighs)
        return outputs if weights is None else outputs.sum() + weights.square().sum()

    def inputs():
        batch, queries, keys = draw.integer(1, 3), draw.integer(2, 4), draw.integer(2, 5)
        shapes = ((queries, 8), (keys, settings["kdim"] or 8), (keys, settings["vdim"] or 8))
        first = settings["batch_first"]
        return [draw.tensor(*((batch, rows) if first else (rows, batch)), width) for rows, width in shapes]

    return Call(f"MultiheadAttention {settings} {weighs}", function, inputs, module)


@call
def embedding(draw: Draw) -> Call:
    """With padding, and with rows that are shortened in place."""
    settings = dict(
        padding_idx=draw.choice([None, 0, 2, -1]), max_norm=draw.choice([None, None, 1.0]),
        norm_type=draw.choice([2.0, 1.0]),
    )  # fmt: skip
    rank = draw.choice([1, 2])
    return Call(
        f"Embedding {settings}",
        lambda m, x, rows: m(rows) * x.mean(),
        lambda: (draw.tensor(3), draw.labels(6, *draw.sizes(rank, 2, 4))),
        nn.Embedding(6, 4, **settings),
    )


@call
def embedding_bag(draw: Draw) -> Call:
    """Sums, means and maxima of bags, an empty one among them."""
    settings = dict(
        mode=draw.choice(["sum", "mean", "max"]), padding_idx=draw.choice([None, 1]), include_last_offset=draw.flag()
    )
    weighed = settings["mode"] == "sum" and draw.flag()

    def function(m, x, rows, offsets):
        return m(rows, offsets, per_sample_weights=x) if weighed else m(rows, offsets) * x.sum()

    def inputs():
        offsets = [0, 2, 2, 5, *([7] if settings["include_last_offset"] else [])]
        rows = draw.labels(6, 7)
        return draw.tensor(7), rows, rows.new_tensor(offsets)

    return Call(f"EmbeddingBag {settings} weighed={weighed}", function, inputs, nn.EmbeddingBag(6, 4, **settings))
