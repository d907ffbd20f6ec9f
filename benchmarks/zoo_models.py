"""Small models of many families, each with a batch: what people train, at sizes that two cores step in a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["FAMILIES", "MODELS", "Sample", "make"]


@dataclass(frozen=True)
class Sample:
    """A module that returns its loss, and a batch for it.

    Attributes:
        module: takes the batch and returns a scalar.
        batch: tensors; images first, if there are any.
        images: whether channels_last is an order that the module's users would try.
    """

    module: nn.Module
    batch: tuple[torch.Tensor, ...]
    images: bool = False


class _Classified(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        y = self.network(x)
        return functional.cross_entropy(getattr(y, "logits", y), labels)


class _HuggingFace(nn.Module):
    """A model of transformers by the names of its arguments, as one that returns the loss."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(**dict(zip(self.names, batch, strict=True))).loss
        return loss


def _images(network: nn.Module, batch: int, size: int) -> Sample:
    return Sample(_Classified(network), (torch.randn(batch, 3, size, size), torch.randint(0, 2, (batch,))), images=True)


def _transformers_images(name: str, batch: int, size: int, **config: Any) -> Sample:
    import transformers

    settings = getattr(transformers, f"{name}Config")(**config)
    return _images(getattr(transformers, f"{name}ForImageClassification")(settings), batch, size)


def _timm(name: str, batch: int, size: int) -> Sample:
    import timm  # type: ignore[import-not-found]

    return _images(timm.create_model(name, num_classes=10), batch, size)


def _text(name: str, head: str, shape: tuple[int, int], labels: str = "tokens", **config: Any) -> Sample:
    import transformers

    settings = getattr(transformers, f"{name}Config")(**config)
    settings.use_cache = False
    model = getattr(transformers, f"{name}{head}")(settings)
    ids = torch.randint(5, settings.vocab_size, shape)
    target = ids if labels == "tokens" else torch.randint(0, 2, shape[:1])
    return Sample(_HuggingFace(model, ("input_ids", "labels")), (ids, target))


class _Unet(nn.Module):
    """Down by pools, up by bilinear and by nearest neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(3, 16), _block(16, 32), _block(32, 64)])
        self.up, self.head = nn.ModuleList([_block(96, 32), _block(48, 16)]), nn.Conv2d(16, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down[0](x)
        b = self.down[1](functional.max_pool2d(a, 2))
        c = self.down[2](functional.max_pool2d(b, 2))
        y = self.up[0](torch.cat([functional.interpolate(c, scale_factor=2, mode="bilinear"), b], 1))
        y = self.up[1](torch.cat([functional.interpolate(y, scale_factor=2, mode="nearest"), a], 1))
        return self.head(y)


def _block(inside: int, outside: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inside, outside):
        layers += [nn.Conv2d(channels, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]
    return nn.Sequential(*layers)


def _unet() -> Sample:
    x = torch.randn(4, 3, 128, 128)
    return Sample(_Classified(_Unet()), (x, torch.randint(0, 2, (4, 128, 128))), images=True)


class _Diffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from diffusers import UNet2DConditionModel  # type: ignore[import-not-found]

        self.network = UNet2DConditionModel(
            sample_size=32, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=64, norm_num_groups=8,
            attention_head_dim=8, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, steps: torch.Tensor, text: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.network(x, steps, text).sample, noise)


def _diffusion() -> Sample:
    batch = torch.randn(4, 4, 32, 32), torch.randint(0, 1000, (4,)), torch.randn(4, 16, 64), torch.randn(4, 4, 32, 32)
    return Sample(_Diffusion(), batch, images=True)


class _Recurrent(nn.Module):
    """A language model of recurrent layers."""

    def __init__(self, kind: type[nn.RNNBase], layers: int, *, bidirectional: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(2000, 256)
        self.cells = kind(256, 256, layers, batch_first=True, bidirectional=bidirectional)  # type: ignore[call-arg, arg-type]
        self.head = nn.Linear(512 if bidirectional else 256, 2000)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.cells(self.embed(ids))[0])
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def _recurrent(kind: type[nn.RNNBase], layers: int, *, bidirectional: bool = False) -> Sample:
    ids = torch.randint(0, 2000, (2, 20, 64))
    return Sample(_Recurrent(kind, layers, bidirectional=bidirectional), (ids[0], ids[1]))


def _perceptron() -> Sample:
    network = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )  # fmt: skip
    return Sample(_Classified(network), (torch.randn(64, 64), torch.randint(0, 10, (64,))))


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.embed, self.layers = nn.Embedding(500, 128), nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(128, 500)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(self.layers(self.embed(ids))).flatten(0, 1), labels.flatten())


def _encoder() -> Sample:
    ids = torch.randint(0, 500, (2, 16, 32))
    return Sample(_Encoder(), (ids[0], ids[1]))


def _whisper() -> Sample:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=512, decoder_ffn_dim=512, vocab_size=2000, max_source_positions=200, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, use_cache=False,
    )  # fmt: skip
    batch = torch.randn(4, 80, 400), torch.randint(3, 2000, (4, 32))
    return Sample(_HuggingFace(WhisperForConditionalGeneration(config), ("input_features", "labels")), batch)


def _wav2vec() -> Sample:
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, conv_dim=(64,) * 4,
        conv_stride=(5, 4, 4, 4), conv_kernel=(10, 3, 3, 3), num_feat_extract_layers=4, num_labels=4, layerdrop=0.0,
        mask_time_prob=0.0, classifier_proj_size=64,
    )  # fmt: skip
    batch = torch.randn(4, 16000), torch.randint(0, 4, (4,))
    return Sample(_HuggingFace(Wav2Vec2ForSequenceClassification(config), ("input_values", "labels")), batch)


_BERT: dict[str, Any] = dict(
    hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=8000
)  # fmt: skip
_SMALL_SWIN: dict[str, Any] = dict(embed_dim=48, depths=[2, 2], num_heads=[3, 6], window_size=7, image_size=112)

FAMILIES: dict[str, dict[str, Callable[[], Sample]]] = {
    "convolutional": {
        "ResNet-18, 16×128²": lambda: _transformers_images(
            "ResNet", 16, 128, depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic", num_labels=10
        ),
        "ResNet-50, 4×128²": lambda: _transformers_images("ResNet", 4, 128, num_labels=10),
        "RegNet, 8×128²": lambda: _transformers_images(
            "RegNet", 8, 128, hidden_sizes=[32, 64, 160, 384], depths=[1, 2, 4, 2], groups_width=16, num_labels=10
        ),
        "ConvNeXt, 8×128²": lambda: _transformers_images(
            "ConvNext", 8, 128, depths=[2, 2, 4, 2], hidden_sizes=[40, 80, 160, 320], num_labels=10
        ),
    },
    "mobile": {
        "MobileNetV2, 16×128²": lambda: _transformers_images("MobileNetV2", 16, 128, num_labels=10),
        "MobileNetV3, 32×128²": lambda: _timm("mobilenetv3_small_100", 32, 128),
        "EfficientNet-B0, 8×128²": lambda: _transformers_images(
            "EfficientNet", 8, 128, width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, dropout_rate=0.0,
            drop_connect_rate=0.0, num_labels=10,
        ),
    },
    "segmentation and diffusion": {"U-Net, 4×128²": _unet, "UNet2DCondition, 4×32²": _diffusion},
    "vision transformer": {
        "ViT-tiny, 8×224²": lambda: _transformers_images(
            "ViT", 8, 224, hidden_size=192, num_hidden_layers=4, num_attention_heads=3, intermediate_size=768,
            num_labels=10,
        ),
        "Swin, 8×112²": lambda: _transformers_images("Swin", 8, 112, num_labels=10, drop_path_rate=0.0, **_SMALL_SWIN),
    },
    "recurrent": {
        "LSTM, two layers, 20×64": lambda: _recurrent(nn.LSTM, 2),
        "LSTM, both directions, 20×64": lambda: _recurrent(nn.LSTM, 1, bidirectional=True),
        "GRU, two layers, 20×64": lambda: _recurrent(nn.GRU, 2),
        "GRU, 20×64": lambda: _recurrent(nn.GRU, 1),
    },
    "small": {"perceptron, 64": _perceptron, "transformer, two layers, 16×32": _encoder},
    "encoder": {
        "BERT masked LM, 8×128": lambda: _text("Bert", "ForMaskedLM", (8, 128), **_BERT),
        "BERT classifier, 8×128": lambda: _text("Bert", "ForSequenceClassification", (8, 128), "class", **_BERT),
        "DistilBERT, 8×128": lambda: _text(
            "DistilBert", "ForSequenceClassification", (8, 128), "class", dim=256, n_layers=4, n_heads=4,
            hidden_dim=1024, vocab_size=8000,
        ),
        "DeBERTa-v2, 4×64": lambda: _text(
            "DebertaV2", "ForSequenceClassification", (4, 64), "class", relative_attention=True,
            pos_att_type=["p2c", "c2p"], **{**_BERT, "num_hidden_layers": 2},
        ),
    },
    "decoder": {
        "GPT-2, 2×256": lambda: _text(
            "GPT2", "LMHeadModel", (2, 256), n_embd=256, n_layer=4, n_head=4, vocab_size=8000
        ),
        "Llama, 4×256": lambda: _text(
            "Llama", "ForCausalLM", (4, 256), hidden_size=384, num_hidden_layers=4, num_attention_heads=6,
            num_key_value_heads=6, intermediate_size=1024, vocab_size=8000,
        ),
        "Qwen2, 4×128": lambda: _text(
            "Qwen2", "ForCausalLM", (4, 128), hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=704, vocab_size=8000,
        ),
    },
    "encoder and decoder": {
        "T5, 4×64": lambda: _text(
            "T5", "ForConditionalGeneration", (4, 64), d_model=256, d_kv=64, d_ff=1024, num_layers=4, num_heads=4,
            vocab_size=8000, decoder_start_token_id=0,
        ),
    },
    "audio": {"Whisper, 4×400": _whisper, "wav2vec 2.0, 4×16000": _wav2vec},
}  # fmt: skip
"""What makes a sample, by family and by the model's name and batch."""

MODELS: dict[str, Callable[[], Sample]] = {name: make for models in FAMILIES.values() for name, make in models.items()}


def make(name: str) -> Sample:
    """Return the sample of a name, the same in each process."""
    torch.manual_seed(0)
    return MODELS[name]()
