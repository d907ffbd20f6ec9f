"""Programs of other people on onnxruntime: python -m tests.dropin.programs NAME [ontrain].

Each prints what it computed. With the second argument every import of onnxruntime finds ontrain; nothing else changes.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile


def magika():
    from magika import Magika

    texts = (b"import os\ndef f(x):\n    return x + 1\n" * 20, b'{"a": [1, 2, 3]}' * 30, b"#include <stdio.h>\n" * 20)
    found = [Magika().identify_bytes(text) for text in texts]
    return [(str(one.output.label), round(one.score, 4)) for one in found]


def silero_vad():
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    model, seconds = load_silero_vad(onnx=True), torch.arange(32000) / 16000
    wave = 0.3 * torch.sin(1382 * seconds) * torch.sin(19 * seconds)
    chances = [round(float(model(wave[i : i + 512], 16000)), 4) for i in range(0, 10240, 512)]
    return chances, get_speech_timestamps(wave, model)


def rapidocr_onnxruntime():
    import cv2
    import numpy as np
    from rapidocr_onnxruntime import RapidOCR

    picture = np.full((120, 400, 3), 255, np.uint8)
    cv2.putText(picture, "READ 2026", (20, 75), cv2.FONT_HERSHEY_SIMPLEX, 1.6, (0, 0, 0), 3)
    lines, _ = RapidOCR()(picture)
    return [(text, round(float(score), 3)) for _, text, score in lines]


def fastembed():
    import numpy as np
    import onnx
    from fastembed.common.onnx_model import OnnxModel

    folder = pathlib.Path(tempfile.mkdtemp())
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Mul", ["x", "x"], ["y"])], "g", values[:1], values[1:])
    sets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=sets, ir_version=8), folder / "model.onnx")

    class Model(OnnxModel):
        def _post_process_onnx_output(self, output, **kwargs):
            return output

        @classmethod
        def _get_worker_class(cls):
            return None

        def load_onnx_model(self):
            self._load_onnx_model(folder, "model.onnx", threads=1, providers=None, cuda=False)

        def onnx_embed(self, *args, **kwargs):
            return None

    model = Model()
    model.load_onnx_model()
    return model.model.run(None, {"x": np.arange(3, dtype=np.float32)})[0].tolist()


def basic_pitch():
    import numpy as np
    import scipy.signal
    import soundfile

    scipy.signal.gaussian = scipy.signal.windows.gaussian  # its old name, which the program still uses
    import basic_pitch
    from basic_pitch.inference import Model, predict

    path = pathlib.Path(tempfile.mkdtemp(), "tone.wav")
    soundfile.write(path, (0.3 * np.sin(2764.6 * np.arange(44100) / 22050)).astype(np.float32), 22050)
    weights = pathlib.Path(basic_pitch.__file__).parent / "saved_models" / "icassp_2022" / "nmp.onnx"
    _, _, notes = predict(path, Model(weights))
    return [(round(float(start), 2), round(float(end), 2), int(pitch)) for start, end, pitch, *_ in notes]


def optimum():
    import torch
    from optimum.onnxruntime import ORTModelForCausalLM
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0)
    folder = tempfile.mkdtemp()
    GPT2LMHeadModel(config).eval().save_pretrained(folder)
    ids, kwargs = torch.tensor([[1, 2, 3, 4]]), {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    model = ORTModelForCausalLM.from_pretrained(folder, export=True)
    return model.generate(ids, attention_mask=torch.ones_like(ids), **kwargs).tolist(), model.providers


def onnxscript():
    """transformers' exporter, which runs what it exported."""
    import torch
    from transformers import BertConfig, BertModel
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertModel(BertConfig(intermediate_size=16, max_position_embeddings=32, **sizes)).eval()
    batch = {"input_ids": torch.tensor([[1, 2, 3, 4]]), "attention_mask": torch.ones(1, 4, dtype=torch.int64)}
    exported = OnnxExporter().export(model, batch, config=OnnxConfig(dynamic=True))
    with torch.no_grad():
        wanted = model(**batch).last_hidden_state
    return bool(torch.allclose(exported(**batch).last_hidden_state, wanted, atol=1e-4))


PROGRAMS = {
    one.__name__: one for one in (magika, silero_vad, rapidocr_onnxruntime, fastembed, basic_pitch, optimum, onnxscript)
}
"""By the package that has to be there."""

if __name__ == "__main__":
    if sys.argv[2:] == ["ontrain"]:
        import ontrain

        sys.modules["onnxruntime"] = ontrain
    print("computed", PROGRAMS[sys.argv[1]]())
