"""What searches for text have in common."""

from __future__ import annotations

from ontrain.errors import GraphError
from ontrain.graph import describe, source_of
from ontrain.inference.stepwise.control import Control
from ontrain.operators import model_kind

__all__ = ["Search"]


class Search(Control):
    """A node whose graphs are models of language, see `ontrain.inference.stepwise.search.models`."""

    def _check_form(self) -> None:
        """Refuse graphs that are no such models."""
        attributes, kind = self.node.attributes, model_kind(self.node)
        for name in ("decoder",) if kind == 0 else ("encoder", "decoder"):
            if name not in attributes:
                raise self._unfit(f"it has no graph {name!r}")
        for name in ("decoder", "init_decoder") if kind == 0 else ():
            if name in attributes:
                self._check_decoder(name)
        if kind == 2:
            self._check_transcriber()
        elif kind != 0:
            self._check_encoder_decoder()

    def _check_decoder(self, name: str) -> None:
        graph = self.node.attributes[name].as_graph()
        inputs, outputs = len(graph.inputs), len(graph.outputs)
        if outputs < 2 or inputs - outputs != 2:
            raise self._unfit(
                f"graph {name!r} has {inputs} inputs and {outputs} outputs",
                "it reads input_ids, position_ids, attention_mask, and a past for each layer, and gives logits and a "
                "present for each layer; pasts and presents that share a buffer are for GPUs, in onnxruntime, too",
            )
        past = graph.inputs[3]
        dims = [] if past.shape is None else list(past.shape)
        if len(dims) != 5 or not isinstance(dims[2], int) or not isinstance(dims[4], int):
            raise self._unfit(
                f"the past {past.name!r} of graph {name!r} is of shape {[str(dim) for dim in dims]}",
                "it has to be [2, batch, heads, length, width] with heads and width as numbers",
            )

    def _check_encoder_decoder(self) -> None:
        encoder, decoder = (self.node.attributes[name].as_graph() for name in ("encoder", "decoder"))
        layers, starts = (len(decoder.outputs) - 1) // 2, len(encoder.inputs) == 3
        pasts = sum((value.name or "").startswith("past_") for value in decoder.inputs)
        fits = len(decoder.outputs) == 1 + 2 * layers and pasts == 4 * layers and layers > 0
        if not fits or len(encoder.outputs) != (2 + 4 * layers if starts else 2 * layers):
            raise self._unfit(
                f"the encoder gives {len(encoder.outputs)} outputs, the decoder reads {pasts} pasts and gives "
                f"{len(decoder.outputs)} outputs",
                "the encoder gives keys and values of each layer's cross attention, and if it reads decoder_input_ids "
                "before them logits, hidden states, and keys and values of self attention",
            )
        if any((v.name or "").startswith("past_sequence_length") for v in decoder.inputs):
            raise self._unfit("past and present of its decoder share a buffer", "that is for GPUs, in onnxruntime, too")
        self._check_start()

    def _check_transcriber(self) -> None:
        encoder, decoder = (self.node.attributes[name].as_graph() for name in ("encoder", "decoder"))
        layers = (len(decoder.outputs) - 1) // 2
        if any((v.name or "").startswith("past_sequence_length") for v in decoder.inputs):
            raise self._unfit("past and present of its decoder share a buffer", "that is for GPUs, in onnxruntime, too")
        fits = len(encoder.inputs) == 2 and len(encoder.outputs) == 2 + 4 * layers and layers > 0
        if not fits or len(decoder.outputs) != 1 + 2 * layers or len(decoder.inputs) - 4 * layers not in (1, 2):
            raise self._unfit(
                f"the encoder has {len(encoder.inputs)} inputs and {len(encoder.outputs)} outputs, the decoder "
                f"{len(decoder.inputs)} inputs and {len(decoder.outputs)} outputs",
                "the encoder reads sound and decoder_input_ids and gives logits, hidden states, and keys and values of "
                "self and cross attention; the decoder reads ids, maybe hidden states, and these keys and values",
            )
        if (self.node.attributes.get_int("decoder_output_cross_qk", 0) or 0) != 0:
            raise self._unfit("it is asked for cross_qk", "that is for GPUs, in onnxruntime, too")
        self._check_start()

    def _check_start(self) -> None:
        if (self.node.attributes.get_int("decoder_start_token_id", -1) or 0) < 0:
            raise self._unfit("it has no decoder_start_token_id")

    def _unfit(self, problem: str, reason: str | None = None) -> GraphError:
        return GraphError(
            f"{self.node.op_type} cannot run: {problem}", node=describe(self.node), source=source_of(self.node),
            reason=reason,
        )  # fmt: skip
