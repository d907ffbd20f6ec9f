"""LSTM, GRU and RNN as the standard words them: one sequence and one gate at a time, in torch."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from tests.autodiff.samples.sample import Sample, normal, sample

_FUNCTIONS = {
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "Softsign": F.softsign,
    "Softplus": F.softplus,
    "Relu": torch.relu,
    "Affine": lambda x, a=1.0, b=0.0: a * x + b,
    "ScaledTanh": lambda x, a=1.0, b=1.0: a * torch.tanh(b * x),
    "HardSigmoid": lambda x, a=0.2, b=0.5: torch.clamp(a * x + b, 0, 1),
    "LeakyRelu": lambda x, a=0.01: F.leaky_relu(x, a),
    "Elu": lambda x, a=1.0: F.elu(x, a),
    "ThresholdedRelu": lambda x, a=1.0: torch.where(x > a, x, 0.0),
}
_SCALED = {"Affine": 2, "ScaledTanh": 2, "HardSigmoid": 2, "LeakyRelu": 1, "Elu": 1, "ThresholdedRelu": 1}


def _functions(names, alphas, betas):
    alphas, betas, chosen = list(alphas or []), list(betas or []), []
    for name in names:
        values = [q.pop(0) for q in (alphas, betas)[: _SCALED.get(name, 0)] if q]
        chosen.append(lambda x, f=_FUNCTIONS[name], v=values: f(x, *v))
    return chosen


def _lstm_step(x, state, w, r, b, p, f, clip, forget):
    (h, c), (f1, f2, f3) = state, f
    wi, wo, wf, wc = w.chunk(4)
    ri, ro, rf, rc = r.chunk(4)
    wbi, wbo, wbf, wbc, rbi, rbo, rbf, rbc = b.chunk(8)
    pi, po, pf = p.chunk(3)
    i = f1(clip(wi @ x + ri @ h + wbi + rbi + pi * c))
    o_in = wo @ x + ro @ h + wbo + rbo
    fg = 1 - i if forget else f1(clip(wf @ x + rf @ h + wbf + rbf + pf * c))
    c = fg * c + i * f2(clip(wc @ x + rc @ h + wbc + rbc))
    return f1(clip(o_in + po * c)) * f3(c), c


def _gru_step(x, state, w, r, b, p, f, clip, linear):
    (h,), (f1, f2) = state, f
    wz, wr, wh = w.chunk(3)
    rz, rr, rh = r.chunk(3)
    wbz, wbr, wbh, rbz, rbr, rbh = b.chunk(6)
    z = f1(clip(wz @ x + rz @ h + wbz + rbz))
    reset = f1(clip(wr @ x + rr @ h + wbr + rbr))
    inner = reset * (rh @ h + rbh) if linear else rh @ (reset * h) + rbh
    return ((1 - z) * f2(clip(wh @ x + inner + wbh)) + z * h,)


def _rnn_step(x, state, w, r, b, p, f, clip, _):
    wb, rb = b.chunk(2)
    return (f[0](clip(w @ x + r @ state[0] + wb + rb)),)


_STEPS = {
    "LSTM": (_lstm_step, 4, 2, ["Sigmoid", "Tanh", "Tanh"]),
    "GRU": (_gru_step, 3, 1, ["Sigmoid", "Tanh"]),
    "RNN": (_rnn_step, 1, 1, ["Tanh"]),
}


def by_definition(
    op_type, x, w, r, b=None, lengths=None, h0=None, c0=None, p=None, *, activations=None, activation_alpha=None,
    activation_beta=None, clip=None, direction="forward", hidden_size=None, input_forget=0, layout=0,
    linear_before_reset=0,
):  # fmt: skip
    """Outputs Y, Y_h (and Y_c) in the layout asked for."""
    step, gates, count, defaults = _STEPS[op_type]
    if layout:
        x, h0, c0 = (None if v is None else v.transpose(0, 1) for v in (x, h0, c0))
    length, batch, _ = x.shape
    directions, _, size = r.shape
    b = x.new_zeros(directions, 2 * gates * size) if b is None else b
    p = x.new_zeros(directions, 3 * size) if p is None else p
    initial = [x.new_zeros(directions, batch, size) if v is None else v for v in (h0, c0)][:count]
    functions = _functions(activations or defaults * directions, activation_alpha, activation_beta)
    per = len(defaults)

    def bounded(v):
        return v.clamp(-clip, clip) if clip else v

    ys, finals = [], []
    for d in range(directions):
        for n in range(batch):
            state = tuple(v[d, n] for v in initial)
            order = range(length if lengths is None else int(lengths[n]))
            rows = [x.new_zeros(size)] * length
            for t in reversed(order) if direction == "reverse" or d else order:
                of_d = functions[d * per : (d + 1) * per]
                option = linear_before_reset if op_type == "GRU" else input_forget
                state = step(x[t, n], state, w[d], r[d], b[d], p[d], of_d, bounded, option)
                rows[t] = state[0]
            ys.append(torch.stack(rows))
            finals.append(state)
    y = torch.stack(ys).reshape(directions, batch, length, size).permute(2, 0, 1, 3)
    states = [torch.stack(state).reshape(directions, batch, size) for state in zip(*finals, strict=True)]
    if layout:
        y, states = y.permute(2, 0, 1, 3), [v.transpose(0, 1) for v in states]
    return y, *states


_T, _B, _I, _H = 3, 2, 3, 2


def _case(op_type: str, *, bias=True, lengths=None, states=True, peepholes=False, x=None, **attributes) -> Sample:
    _, gates, count, _ = _STEPS[op_type]
    d = 2 if attributes.get("direction") == "bidirectional" else 1
    initial = (_B, d, _H) if attributes.get("layout") else (d, _B, _H)
    inputs = [
        normal(*(x or (_T, _B, _I))), normal(d, gates * _H, _I), normal(d, gates * _H, _H),
        normal(d, 2 * gates * _H) if bias else None, None if lengths is None else np.array(lengths, np.int32),
        *([normal(*initial)] * count if states else [None] * count),
    ]  # fmt: skip
    if peepholes:
        inputs.append(normal(d, 3 * _H))

    def twin(*tensors):
        arguments = list(tensors) if op_type == "LSTM" else [*tensors[:6]]
        return by_definition(op_type, *arguments, **attributes)

    outputs = 1 + count
    return sample(op_type, *inputs, twin=twin, fed=[4], outputs=outputs, seeded=list(range(outputs)), hidden_size=_H,
                  **attributes)  # fmt: skip


def _every_step(x, w, r, b, h, c, *, direction="forward"):
    """What LstmLayer gives: Y, the last states, and of all steps the gates and cells."""
    y, last_h, last_c = by_definition("LSTM", x, w, r, b, None, h, c, direction=direction)
    gates, cells = [], []
    for d in range(len(w)):
        state, backwards = c[d], direction == "reverse" or d == 1
        before = torch.cat([y[1:, d], h[d : d + 1]] if backwards else [h[d : d + 1], y[:-1, d]])
        pre = x @ w[d].T + before @ r[d].T + b[d].view(2, -1).sum(0)
        i, o, f, g = pre.chunk(4, -1)
        rows = torch.cat([i.sigmoid(), o.sigmoid(), f.sigmoid(), g.tanh()], -1)
        states = [None] * len(x)
        for t in reversed(range(len(x))) if backwards else range(len(x)):
            i, _, f, g = rows[t].chunk(4, -1)
            states[t] = state = f * state + i * g
        gates.append(rows)
        cells.append(torch.stack(states))
    return y, last_h, last_c, torch.stack(gates, 1), torch.stack(cells, 1)


def _layer(direction: str) -> Sample:
    d = 2 if direction == "bidirectional" else 1
    inputs = [normal(_T, _B, _I), normal(d, 4 * _H, _I), normal(d, 4 * _H, _H), normal(d, 8 * _H)]
    inputs += [normal(d, _B, _H), normal(d, _B, _H)]
    return sample("LstmLayer", *inputs, domain="ontrain", outputs=5, seeded=[0, 1, 2, 3, 4], direction=direction,
                  twin=lambda *tensors: _every_step(*tensors, direction=direction))  # fmt: skip


LAYERS = [_layer("forward"), _layer("reverse"), _layer("bidirectional")]
RECURRENT = [
    _case("LSTM"),
    _case("LSTM", direction="bidirectional"),
    _case("LSTM", bias=False, states=False, direction="reverse"),
    _case("LSTM", lengths=[3, 1], direction="bidirectional"),
    _case("LSTM", peepholes=True, clip=1.5, lengths=[2, 3]),
    _case("LSTM", input_forget=1),
    _case("LSTM", layout=1, x=(_B, _T, _I)),
    _case("LSTM", activations=["HardSigmoid", "ScaledTanh", "Softsign"], activation_alpha=[0.25, 1.25],
          activation_beta=[0.5, 0.75]),
    _case("GRU", linear_before_reset=1),
    _case("GRU", direction="bidirectional", lengths=[1, 3]),
    _case("GRU", bias=False, states=False, direction="reverse", linear_before_reset=1),
    _case("RNN", direction="bidirectional", activations=["Tanh", "Affine"], activation_alpha=[0.5], lengths=[3, 2]),
    _case("RNN", layout=1, x=(_B, _T, _I)),
]  # fmt: skip
