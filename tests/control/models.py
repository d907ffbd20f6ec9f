"""Small models with branches and loops as files hold them, and the same computation in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

_HEAD = '<ir_version: 10, opset_import: ["": 23]>\n'


@dataclass(frozen=True)
class ControlModel:
    """A model in onnx's text form.

    Attributes:
        name: for the test's id.
        text: the model; its float inputs are double.
        inputs: arrays by name; integers and bools too.
        twin: the outputs from torch tensors by name.
        stays: whether a loop or branch is left at run time where short loops are unrolled.
    """

    name: str
    text: str
    inputs: dict[str, Any]
    twin: Callable[..., Any]
    stays: bool = False
    outputs: list[str] = field(default_factory=lambda: ["y"])


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape)


_X, _W = _normal(2, 3), _normal(3, 3)


def _for_twin(x, w, n=5):
    s, rows = x, []
    for i in range(n):
        new = torch.tanh(s @ w)
        rows.append(new * s * i)
        s = new
    return s, torch.stack(rows)


FOR = ControlModel(
    "for",
    _HEAD
    + """g (double[2,3] x, double[3,3] w) => (double[2,3] y, double[5,2,3] rows) <int64 n = {5}, bool c = {1}> {
      y, rows = Loop(n, c, x) <body = b (int64 i, bool c0, double[2,3] s) => (bool c1, double[2,3] new, double[2,3] row)
        { c1 = Identity(c0)
          m = MatMul(s, w)
          new = Tanh(m)
          f = CastLike(i, s)
          p = Mul(new, f)
          row = Mul(p, s) }>
    }""",
    {"x": _X, "w": _W},
    _for_twin,
    outputs=["y", "rows"],
)


def _scan_twin(h, a, b, w):
    ys = []
    for t in range(4):
        h = torch.tanh(h @ w + a[:, t]) + b[3 - t]
        ys.append(h * h)
    return h, torch.stack(ys[::-1], 1)


SCAN = ControlModel(
    "scan",
    _HEAD
    + """g (double[2,3] h, double[2,4,3] a, double[4,2,3] b, double[3,3] w) => (double[2,3] y, double[2,4,3] ys) {
      y, ys = Scan<num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [0, 1],
                   scan_output_axes = [1], scan_output_directions = [1],
                   body = b (double[2,3] s, double[2,3] at, double[2,3] bt) => (double[2,3] new, double[2,3] sq)
        { m = MatMul(s, w)
          z = Add(m, at)
          t = Tanh(z)
          new = Add(t, bt)
          sq = Mul(new, new) }>(h, a, b)
    }""",
    {"h": _X, "a": _normal(2, 4, 3), "b": _normal(4, 2, 3), "w": _W},
    _scan_twin,
    outputs=["y", "ys"],
)


def _while_twin(x, w, limit):
    s = x
    while float(s.detach().square().sum()) > float(limit):
        s = torch.tanh(s @ w) * 0.5
    return s


WHILE = ControlModel(
    "while",
    _HEAD
    + """g (double[2,3] x, double[3,3] w, double limit) => (double[2,3] y) {
      sq0 = ReduceSumSquare<keepdims = 0>(x)
      c = Greater(sq0, limit)
      y = Loop(, c, x) <body = b (int64 i, bool c0, double[2,3] s) => (bool c1, double[2,3] new)
        { half = Constant<value = double {0.5}>()
          m = MatMul(s, w)
          t = Tanh(m)
          new = Mul(t, half)
          sq = ReduceSumSquare<keepdims = 0>(new)
          c1 = Greater(sq, limit) }>
    }""",
    {"x": _X * 3, "w": _W * 0.5, "limit": np.array(0.05)},
    _while_twin,
    stays=True,
)
COUNTED = ControlModel(
    "counted",
    _HEAD
    + """g (double[2,3] x, double[3,3] w, int64 n) => (double[2,3] y) {
      y = Loop(n, , x) <body = b (int64 i, bool c0, double[2,3] s) => (bool c1, double[2,3] new)
        { c1 = Constant<value = bool {1}>()
          m = MatMul(s, w)
          f = CastLike(i, m)
          z = Add(m, f)
          new = Sin(z) }>
    }""",
    {"x": _X, "w": _W, "n": np.array(3)},
    lambda x, w, n: _counted(x, w, int(n)),
    stays=True,
)


def _counted(s, w, n):
    for i in range(n):
        s = torch.sin(s @ w + i)
    return s


def _if_twin(x, w, flag):
    return torch.tanh(x @ w) * x if bool(flag) else x.sin().sum(0, keepdim=True) + w.sum() * x


def _if(flag: bool) -> ControlModel:
    return ControlModel(
        f"if-{flag}",
        _HEAD
        + """g (double[2,3] x, double[3,3] w, bool flag) => (double[2,3] y) {
          y = If(flag) <
            then_branch = t () => (double[2,3] a) { m = MatMul(x, w) h = Tanh(m) a = Mul(h, x) },
            else_branch = e () => (double[2,3] b)
              { axes = Constant<value = int64[1] {0}>()
                s = Sin(x)
                r = ReduceSum(s, axes)
                all = ReduceSum<keepdims = 0>(w)
                p = Mul(all, x)
                b = Add(r, p) }>
        }""",
        {"x": _X, "w": _W, "flag": np.array(flag)},
        _if_twin,
        stays=True,
    )


def _nested_twin(x, w, v):
    for _ in range(3):
        if float(x.detach().sum()) > 0:
            for _ in range(2):
                x = torch.sin(x @ w) - v
        else:
            x = x * v + 1
    return x


NESTED = ControlModel(
    "nested",
    _HEAD
    + """g (double[2,3] x, double[3,3] w, double[3] v) => (double[2,3] y) <int64 n = {3}, int64 k = {2}, bool c = {1}> {
      y = Loop(n, c, x) <body = b (int64 i, bool c0, double[2,3] s) => (bool c1, double[2,3] new)
        { c1 = Identity(c0)
          zero = Constant<value = double {0.0}>()
          one = Constant<value = double {1.0}>()
          sum = ReduceSum<keepdims = 0>(s)
          positive = Greater(sum, zero)
          new = If(positive) <
            then_branch = t () => (double[2,3] a)
              { a = Loop(k, c0, s) <body = d (int64 j, bool d0, double[2,3] u) => (bool d1, double[2,3] u1)
                  { d1 = Identity(d0)
                    m = MatMul(u, w)
                    h = Sin(m)
                    u1 = Sub(h, v) }> },
            else_branch = e () => (double[2,3] bb) { p = Mul(s, v) bb = Add(p, one) }> }>
    }""",
    {"x": _X, "w": _W, "v": _normal(3)},
    _nested_twin,
    stays=True,
)


def _swap_twin(x, w):
    a, b = x, x @ w
    for _ in range(3):
        a, b = b, a
    return a * 2 + b.sin()


SWAP = ControlModel(
    "swap",
    _HEAD
    + """g (double[2,3] x, double[3,3] w) => (double[2,3] y) <int64 n = {3}, bool c = {1}> {
      start = MatMul(x, w)
      p, q = Loop(n, c, x, start)
        <body = b (int64 i, bool c0, double[2,3] s, double[2,3] t) => (bool c1, double[2,3] s1, double[2,3] t1)
        { c1 = Identity(c0)  s1 = Identity(t)  t1 = Identity(s) }>
      d = Add(p, p)
      r = Sin(q)
      y = Add(d, r)
    }""",
    {"x": _X, "w": _W},
    _swap_twin,
)
GROWING = ControlModel(
    "growing",
    _HEAD
    + """g (double[2,3] x) => (double[M,3] y) <int64 n = {3}, bool c = {1}> {
      y = Loop(n, c, x) <body = b (int64 i, bool c0, double[A,3] s) => (bool c1, double[B,3] s1)
        { c1 = Identity(c0)  t = Sin(s)  s1 = Concat<axis = 0>(s, t) }>
    }""",
    {"x": _X},
    lambda x: _grown(x),
)


def _grown(x):
    for _ in range(3):
        x = torch.cat([x, x.sin()])
    return x


MODELS = [FOR, SCAN, WHILE, COUNTED, _if(True), _if(False), NESTED, SWAP, GROWING]
