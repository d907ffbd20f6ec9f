"""GroupQueryAttention whose cache holds the last tokens only, beside onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ontrain
from ontrain.errors import OntrainError

_HEADS, _SHARED, _WIDTH, _LONGEST = 4, 2, 16, 64
PROVIDERS = ("TorchExecutionProvider", "ReferenceExecutionProvider")


def _model(window: int, **attributes: object) -> bytes:
    """Keys and values are the query's own last heads, so that a step has one input beside the cache."""
    kinds = {
        "qkv": (TensorProto.FLOAT, ["b", "s", (_HEADS + 2 * _SHARED) * _WIDTH]),
        "past_k": (TensorProto.FLOAT, ["b", _SHARED, "c", _WIDTH]),
        "past_v": (TensorProto.FLOAT, ["b", _SHARED, "c", _WIDTH]),
        "lengths": (TensorProto.INT32, ["b"]),
        "total": (TensorProto.INT32, []),
    }
    turns = np.arange(_LONGEST)[:, None] / 10000 ** (np.arange(_WIDTH // 2) / (_WIDTH // 2))
    tables = [
        onnx.numpy_helper.from_array(f(turns).astype(np.float32), name) for f, name in ((np.cos, "c0"), (np.sin, "s0"))
    ]
    node = helper.make_node(
        "GroupQueryAttention", ["qkv", "", "", "past_k", "past_v", "lengths", "total", "c0", "s0"], ["y", "k", "v"],
        domain="com.microsoft", num_heads=_HEADS, kv_num_heads=_SHARED, do_rotary=1, local_window_size=window,
        sliding_window_cache=1, **attributes,
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "ykv"], tables,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def _resident(tokens: int, capacity: int, window: int) -> int:
    spared = capacity - window + 1
    return tokens - spared * max(0, -(-(tokens - capacity) // spared))


def _steps(session: object, tokens: np.ndarray, capacity: int, steps: list[int]) -> list[tuple[np.ndarray, ...]]:
    """Each step's attention and caches, and how many tokens there were after it."""
    cache = [np.zeros((tokens.shape[0], _SHARED, capacity, _WIDTH), np.float32) for _ in range(2)]
    results, at = [], 0
    for length in steps:
        feeds = {
            "qkv": tokens[:, at : at + length], "past_k": cache[0], "past_v": cache[1],
            "lengths": np.full(tokens.shape[0], at + length - 1, np.int32), "total": np.array(at + length, np.int32),
        }  # fmt: skip
        y, *cache = session.run(None, feeds)  # type: ignore[attr-defined]
        at += length
        results.append((y, *cache, at))
    return results


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("batch", "capacity", "window", "steps"),
    [(2, 8, 8, [3, *[1] * 9]), (2, 11, 6, [1] * 20), (1, 11, 6, [4, 3, 5, 1, 2, 6, 1]), (1, 7, 5, [12, 1, 9, 1]),
     (2, 16, 4, [5, 1, 1])],
)  # fmt: skip
@pytest.mark.parametrize("attributes", [{}, {"softcap": 5.0, "scale": 0.3}], ids=["plain", "capped"])
@pytest.mark.sampled(4)
def test_steps_leave_what_onnxruntime_leaves(provider, batch, capacity, window, steps, attributes):
    content = _model(window, **attributes)
    width = (_HEADS + 2 * _SHARED) * _WIDTH
    tokens = np.random.default_rng(0).standard_normal((batch, sum(steps), width)).astype(np.float32)
    theirs = _steps(onnxruntime.InferenceSession(content), tokens, capacity, steps)
    ours = _steps(ontrain.InferenceSession(content, providers=[provider]), tokens, capacity, steps)
    for (y, k, v, at), (their_y, their_k, their_v, _) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(y, their_y, rtol=1e-4, atol=1e-5)
        held = _resident(at, capacity, window)
        for cache, their_cache in ((k, their_k), (v, their_v)):
            assert cache.shape == their_cache.shape
            np.testing.assert_allclose(cache[:, :, :held], their_cache[:, :, :held], rtol=1e-4, atol=1e-5)


def test_sequences_of_different_lengths_keep_different_tokens():
    content, capacity, window = _model(3), 5, 3
    numbers = np.random.default_rng(1)
    cache = [numbers.standard_normal((2, _SHARED, capacity, _WIDTH)).astype(np.float32) for _ in range(2)]
    feeds = {
        "qkv": numbers.standard_normal((2, 1, (_HEADS + 2 * _SHARED) * _WIDTH)).astype(np.float32),
        "past_k": cache[0], "past_v": cache[1], "lengths": np.array([3, 8], np.int32), "total": np.array(9, np.int32),
    }  # fmt: skip
    theirs = onnxruntime.InferenceSession(content).run(None, feeds)
    ours = ontrain.InferenceSession(content, providers=["TorchExecutionProvider"]).run(None, feeds)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-5)
    for cache, their_cache in zip(ours[1:], theirs[1:], strict=True):
        for row, tokens in enumerate((4, 9)):
            held = _resident(tokens, capacity, window)
            np.testing.assert_allclose(cache[row, :, :held], their_cache[row, :, :held], rtol=1e-4, atol=1e-5)


def test_a_cache_smaller_than_the_window_is_refused():
    session = ontrain.InferenceSession(_model(8), providers=["TorchExecutionProvider"])
    tokens = np.zeros((1, 1, (_HEADS + 2 * _SHARED) * _WIDTH), np.float32)
    with pytest.raises(OntrainError, match="a cache of 4 places for a window of 8 tokens"):
        _steps(session, tokens, 4, [1])


@pytest.mark.parametrize("size", [16, "d"])
def test_sizes_of_the_next_cache_are_told_as_onnxruntime_tells_them(size):
    model = onnx.load_from_string(_model(4))
    for value in (*model.graph.input[1:3], *model.graph.output[1:]):
        kind = value.type.tensor_type
        kind.shape.CopyFrom(helper.make_tensor_type_proto(1, ["b", _SHARED, "c", size]).tensor_type.shape)
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    ours = ontrain.InferenceSession(model.SerializeToString(), providers=["TorchExecutionProvider"])
    told = [[(value.name, value.shape) for value in session.get_outputs()] for session in (ours, theirs)]
    assert told[0][1:] == told[1][1:] == [(name, ["b", _SHARED, "c", size]) for name in "kv"]
