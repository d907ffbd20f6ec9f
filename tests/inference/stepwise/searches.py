"""Searches for text over models of one layer: a decoder like GPT-2's, encoders and decoders like T5's and Whisper's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
from onnx.helper import make_node, make_tensor_value_info

__all__ = ["PAD", "SIZE", "START", "decoder_search", "feeds_of", "transcription", "translation"]

SIZE, PAD, START = 13, 0, 1
"""Tokens in the vocabulary; the one of padding; the one that a translation begins with."""
_HEADS, _WIDTH = 2, 4
_KINDS = dict.fromkeys(
    ("input_features", "length_penalty", "repetition_penalty", "temperature"), onnx.TensorProto.FLOAT
)
_SHAPES = {
    "input_features": ["batch", _HEADS * _WIDTH, "frames"], "decoder_input_ids": ["batch", "begun"],
    "input_ids": ["batch", "length"], "attention_mask": ["batch", "length"], "vocab_mask": [SIZE],
    "prefix_vocab_mask": ["batch", SIZE], "presence_mask": ["batch", SIZE],
}  # fmt: skip
_ATTENTION = """
        parts = Constant<value_ints = [0, 0, 2, 4]>()
        split = Reshape({fed}, parts)
        new = Transpose<perm = [0, 2, 1, 3]>(split)
        {states}
        turned = Transpose<perm = [0, 1, 3, 2]>(keys)
        fits = MatMul(new, turned)
        seen = Cast<to = 1>({mask})
        one = Constant<value_float = 1.0>()
        far = Constant<value_float = -10000.0>()
        hidden = Sub(one, seen)
        lowered = Mul(hidden, far)
        inner = Constant<value_ints = [1, 2]>()
        added = Unsqueeze(lowered, inner)
        scores = Add(fits, added)
        shares = Softmax<axis = -1>(scores)
        mixed = MatMul(shares, values)
        back = Transpose<perm = [0, 2, 1, 3]>(mixed)
        whole = Constant<value_ints = [0, 0, 8]>()
        merged = Reshape(back, whole)
        sum = Add({fed}, merged)
        logits = MatMul(sum, head)"""


def _weights(*, positions: bool) -> list[onnx.TensorProto]:
    rng, hidden = np.random.default_rng(3), _HEADS * _WIDTH
    shapes = {"words": (SIZE, hidden), "head": (hidden, SIZE), **({"places": (64, hidden)} if positions else {})}
    return [onnx.numpy_helper.from_array(rng.standard_normal(shape, np.float32), n) for n, shape in shapes.items()]


def _decoder() -> onnx.GraphProto:
    """One whose weights are its own."""
    body = _ATTENTION.format(
        fed="fed", mask="attention_mask",
        states="""first = Constant<value_ints = [0]>()
        pair = Unsqueeze(new, first)
        twice = Concat<axis = 0>(pair, pair)
        present_0 = Concat<axis = 3>(past_0, twice)
        key_side = Constant<value_int = 0>()
        value_side = Constant<value_int = 1>()
        keys = Gather<axis = 0>(present_0, key_side)
        values = Gather<axis = 0>(present_0, value_side)""",
    )  # fmt: skip
    graph = onnx.parser.parse_graph(f"""decoder (int32[b, s] input_ids, int32[b, s] position_ids,
    int32[b, t] attention_mask, float[2, b, {_HEADS}, p, {_WIDTH}] past_0)
    => (float[b, s, {SIZE}] logits, float[2, b, {_HEADS}, t, {_WIDTH}] present_0) {{
        word = Gather(words, input_ids)
        place = Gather(places, position_ids)
        fed = Add(word, place){body}
    }}""")
    graph.initializer.extend(_weights(positions=True))
    return graph


def decoder_search(op_type: str, names: list[str], outputs: list[str], **attributes: object) -> bytes:
    """Return a search over a decoder alone, with `pad_token_id` and `model_type` set.

    Args:
        op_type: GreedySearch, Sampling or BeamSearch.
        names: inputs, "" for one left out.
        outputs: of the node.
        attributes: further ones.
    """
    node = make_node(
        op_type, names, outputs, domain="com.microsoft", decoder=_decoder(), pad_token_id=PAD, model_type=0,
        **attributes,
    )  # fmt: skip
    return _model(node)


def translation(names: list[str], outputs: list[str], *, starts: bool, **attributes: object) -> bytes:
    """Return a BeamSearch over an encoder and a decoder, whose weights are the model's.

    Args:
        names: inputs, "" for one left out.
        outputs: of the node.
        starts: whether the encoder runs the decoder's first token, too.
        attributes: further ones.
    """
    state = f"float[b, {_HEADS}, {{}}, {_WIDTH}]"
    selves = "{0} present_key_self_0, {0} present_value_self_0"
    cross = f"{state.format('e')} present_key_cross_0, {state.format('e')} present_value_cross_0"
    decoder = onnx.parser.parse_graph(f"""decoder (int32[b, 1] input_ids, int32[b, e] encoder_attention_mask,
    {state.format("p")} past_key_self_0, {state.format("p")} past_value_self_0,
    {state.format("e")} past_key_cross_0, {state.format("e")} past_value_cross_0)
    => (float[b, 1, {SIZE}] logits, {selves.format(state.format("t"))}) {{
        word = Gather(words, input_ids)
        half = Constant<value_float = 0.5>()
        faded = Mul(past_key_self_0, half){_decoding("Concat<axis = 2>(faded, new)", "past")}
    }}""")
    fed = "int32[b, e] encoder_input_ids, int32[b, e] encoder_attention_mask"
    encoded = f"""around = Gather(words, encoder_input_ids)
        rows = Constant<value_ints = [0, 0, {_HEADS}, {_WIDTH}]>()
        apart = Reshape(around, rows)
        present_key_cross_0 = Transpose<perm = [0, 2, 1, 3]>(apart)
        present_value_cross_0 = Neg(present_key_cross_0)"""
    if starts:
        hidden = f"float[b, e, {_HEADS * _WIDTH}] encoder_hidden_states"
        text = f"""encoder ({fed}, int32[b, 1] decoder_input_ids)
        => (float[b, 1, {SIZE}] logits, {hidden}, {selves.format(state.format("1"))}, {cross}) {{
            {encoded}
            encoder_hidden_states = Identity(around)
            word = Gather(words, decoder_input_ids){_decoding("Identity(new)", "present")}
        }}"""
    else:
        text = f"encoder ({fed}) => ({cross}) {{ {encoded} }}"
    node = make_node(
        "BeamSearch", names, outputs, domain="com.microsoft", encoder=onnx.parser.parse_graph(text), decoder=decoder,
        pad_token_id=PAD, decoder_start_token_id=START, model_type=1, **attributes,
    )  # fmt: skip
    return _model(node, _weights(positions=False))


def transcription(
    op_type: str, names: list[str], outputs: list[str], *, reads_hidden: bool, **attributes: object
) -> bytes:
    """Return a search over an encoder of sound and a decoder, whose weights are the model's.

    Args:
        op_type: BeamSearch or WhisperBeamSearch.
        names: inputs, "" for one left out.
        outputs: of the node.
        reads_hidden: whether the decoder has the encoder's hidden states among its inputs.
        attributes: further ones.
    """
    state = f"float[b, {_HEADS}, {{}}, {_WIDTH}]"
    selves = "{0} present_key_self_0, {0} present_value_self_0"
    hidden = f"float[b, e, {_HEADS * _WIDTH}] encoder_hidden_states"
    decoder = onnx.parser.parse_graph(f"""decoder (int32[b, 1] input_ids, {f"{hidden}," if reads_hidden else ""}
    {state.format("p")} past_key_self_0, {state.format("p")} past_value_self_0,
    {state.format("e")} past_key_cross_0, {state.format("e")} past_value_cross_0)
    => (float[b, 1, {SIZE}] logits, {selves.format(state.format("t"))}) {{
        word = Gather(words, input_ids)
        half = Constant<value_float = 0.5>()
        faded = Mul(past_key_self_0, half)
        {_all_frames("past")}{_decoding("Concat<axis = 2>(faded, new)", "past", "frames")}
    }}""")
    encoder = onnx.parser.parse_graph(f"""encoder (float[b, {_HEADS * _WIDTH}, e] encoder_input_ids,
    int32[b, n] decoder_input_ids)
    => (float[b, n, {SIZE}] logits, {hidden}, {selves.format(state.format("n"))},
    {state.format("e")} present_key_cross_0, {state.format("e")} present_value_cross_0) {{
        encoder_hidden_states = Transpose<perm = [0, 2, 1]>(encoder_input_ids)
        rows = Constant<value_ints = [0, 0, {_HEADS}, {_WIDTH}]>()
        apart = Reshape(encoder_hidden_states, rows)
        present_key_cross_0 = Transpose<perm = [0, 2, 1, 3]>(apart)
        present_value_cross_0 = Neg(present_key_cross_0)
        word = Gather(words, decoder_input_ids)
        {_all_frames("present")}{_decoding("Identity(new)", "present", "frames")}
    }}""")
    node = make_node(
        op_type, names, outputs, domain="com.microsoft", encoder=encoder, decoder=decoder, pad_token_id=PAD,
        decoder_start_token_id=START, model_type=2, **attributes,
    )  # fmt: skip
    return _model(node, _weights(positions=False))


def _all_frames(cross: str) -> str:
    """A mask of ones for the keys of cross attention."""
    return f"""outer = Constant<value_ints = [1, 3]>()
        plane = ReduceMax<keepdims = 0>({cross}_key_cross_0, outer)
        extent = Shape(plane)
        frames = ConstantOfShape<value = int32[1] {{1}}>(extent)"""


def _decoding(states: str, cross: str, mask: str = "encoder_attention_mask") -> str:
    """Attention to the encoder, by keys that depend on the tokens so far and on their order."""
    return _ATTENTION.format(
        fed="word", mask=mask,
        states=f"""present_key_self_0 = {states}
        present_value_self_0 = Neg(present_key_self_0)
        along = Constant<value_ints = [2]>()
        recent = ReduceMean<keepdims = 1>(present_key_self_0, along)
        keys = Mul({cross}_key_cross_0, recent)
        values = Identity({cross}_value_cross_0)""",
    )  # fmt: skip


def _model(node: onnx.NodeProto, weights: list[onnx.TensorProto] | None = None) -> bytes:
    whole = onnx.TensorProto.INT32
    inputs = [make_tensor_value_info(n, _KINDS.get(n, whole), _SHAPES.get(n, [1])) for n in node.input if n]
    kinds = {"sequences": whole}
    ranks = {
        "sequences": 3 if node.op_type.endswith("BeamSearch") else 2, "sequences_scores": 2, "scores": 4,
        "no_speech_probs": 1,
    }  # fmt: skip
    outputs = [
        make_tensor_value_info(n, kinds.get(n, onnx.TensorProto.FLOAT), [f"{n}_{i}" for i in range(ranks[n])])
        for n in node.output
        if n
    ]
    sets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("com.microsoft", 1)]
    graph = onnx.helper.make_graph([node], "search", inputs, outputs, weights or [])
    return bytes(onnx.helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString())


def feeds_of(names: list[str], ids: np.ndarray, numbers: Mapping[str, float], seed: int = 0) -> dict[str, np.ndarray]:
    """Return what is fed to inputs of these names: masks and sounds of chance, and else the numbers.

    Of a model that reads sound, the ids are what the text begins with.
    """
    rng, feeds = np.random.default_rng(seed), {}
    for name in names:
        if name in ("input_ids", "decoder_input_ids"):
            feeds[name] = ids.astype(np.int32)
            continue
        if name == "input_features":
            feeds[name] = rng.standard_normal((len(ids), _HEADS * _WIDTH, 5), np.float32)
            continue
        if name == "attention_mask":
            feeds[name] = (ids != PAD).astype(np.int32)
            feeds[name][-1, 0] = 0
        elif name.endswith("mask"):
            shape = (SIZE,) if name == "vocab_mask" else (len(ids), SIZE)
            feeds[name] = (rng.random(shape) < 0.7).astype(np.int32)
        elif name:
            feeds[name] = np.array([numbers[name]], np.float32 if name in _KINDS else np.int32)
    return feeds
