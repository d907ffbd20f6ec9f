"""The 54 names of timm_models_list_cpu.txt, random and small."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.training.compiled.suite.entry import Batch, SuiteModel, without_dropout

__all__ = ["MODELS", "images", "without_repetition"]

_CLASSES = 5
_VIT = dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3)
_ONE_EACH = dict(layers=(1, 1, 1, 1))
_SMALL_IMAGE = dict(img_size=64)


def without_repetition(module: nn.Module) -> nn.Module:
    """Cut each run of blocks of equal shape, one behind the other, to its first."""
    for chain in [child for child in module.modules() if isinstance(child, nn.Sequential)]:
        blocks: dict[str, nn.Module] = {}
        for (_, before), (name, block) in itertools.pairwise(chain.named_children()):
            if _form(block) != _form(before) or next(block.parameters(), None) is None or _shrinks(block):
                blocks[name] = block
        for name, _ in list(chain.named_children())[1:]:
            if name not in blocks:
                delattr(chain, name)
    return module


def _shrinks(block: nn.Module) -> bool:
    """Whether a block makes images smaller, so that what follows needs each repetition of it."""
    return any(isinstance(child, nn.Conv2d) and set(child.stride) != {1} for child in block.modules())


def _form(block: nn.Module) -> tuple[Any, ...]:
    """What two blocks share of which one is the repetition of the other."""
    return type(block), [(name, p.shape) for name, p in block.named_parameters()], [type(m) for m in block.modules()]


def _model(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=_CLASSES, **settings)
        return without_dropout(without_repetition(model).train())

    return make


def images(size: int, classes: int = _CLASSES) -> Callable[[int], Batch]:
    """Batches of square images with a class each."""

    def batch(n: int) -> Batch:
        generator = torch.Generator().manual_seed(n + size)
        return {"x": torch.randn(n, 3, size, size, generator=generator), "target": torch.arange(n) % classes}

    return batch


_ROWS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("adv_inception_v3", 107, {}),
    ("beit_base_patch16_224", 32, _VIT),
    ("botnet26t_256", 64, _SMALL_IMAGE),
    ("cait_m36_384", 32, _VIT),
    ("coat_lite_mini", 32, dict(img_size=32, embed_dims=[16, 16, 32, 32], serial_depths=[1, 1, 1, 1], num_heads=8)),
    ("convit_base", 32, dict(img_size=32, embed_dim=8, num_heads=4, depth=3, local_up_to_layer=2)),
    ("convmixer_768_32", 28, {}),
    ("convnext_base", 64, dict(depths=[1, 1, 1, 1], dims=[8, 16, 24, 32])),
    ("crossvit_9_240", 240, dict(embed_dim=[16, 32], depth=[[1, 1, 0]])),
    ("cspdarknet53", 64, {}),
    ("deit_base_distilled_patch16_224", 32, _VIT),
    ("dm_nfnet_f0", 64, {}),
    ("dpn107", 64, dict(k_sec=(2, 2, 2, 2), k_r=50, num_init_features=32)),
    ("eca_botnext26ts_256", 64, _SMALL_IMAGE),
    ("eca_halonext26ts", 256, {}),
    ("fbnetc_100", 64, {}),
    ("fbnetv3_b", 64, {}),
    ("gernet_l", 64, {}),
    ("ghostnet_100", 64, {}),
    ("gluon_inception_v3", 107, {}),
    ("gmixer_24_224", 32, dict(img_size=32)),
    ("gmlp_s16_224", 32, dict(img_size=32)),
    ("hrnet_w18", 64, {}),
    ("inception_v3", 107, {}),
    ("jx_nest_base", 32, dict(img_size=32)),
    ("lcnet_050", 64, {}),
    ("mixer_b16_224", 32, dict(img_size=32)),
    ("mixnet_l", 64, {}),
    ("mnasnet_100", 64, {}),
    ("mobilenetv2_100", 64, {}),
    ("mobilenetv3_large_100", 64, {}),
    ("mobilevit_s", 64, {}),
    ("nfnet_l0", 64, {}),
    ("pnasnet5large", 64, {}),
    ("poolformer_m36", 64, {}),
    ("repvgg_a2", 64, {}),
    ("res2net101_26w_4s", 64, _ONE_EACH),
    ("res2net50_14w_8s", 64, _ONE_EACH),
    ("res2next50", 64, _ONE_EACH),
    ("resnest101e", 64, _ONE_EACH),
    ("rexnet_100", 64, {}),
    ("sebotnet33ts_256", 64, _SMALL_IMAGE),
    ("selecsls42b", 64, {}),
    ("spnasnet_100", 64, {}),
    ("swin_base_patch4_window7_224", 56, dict(img_size=56, embed_dim=16, depths=(2, 2), num_heads=(2, 4))),
    ("swsl_resnext101_32x16d", 64, dict(layers=(1, 1, 1, 1), base_width=4)),
    ("tf_efficientnet_b0", 64, {}),
    ("tf_mixnet_l", 64, {}),
    ("tnt_s_patch16_224", 32, dict(img_size=32, embed_dim=24, inner_dim=8, depth=2, num_heads_outer=3)),
    ("twins_pcpvt_base", 64, dict(img_size=64, embed_dims=[8, 16, 24, 32], num_heads=[1, 2, 2, 2],
                                  depths=[1, 1, 1, 1])),
    ("visformer_small", 64, dict(img_size=64, embed_dim=48, init_channels=8, depth=(1, 1, 1))),
    ("vit_base_patch16_224", 32, _VIT),
    ("volo_d1_224", 64, dict(img_size=64)),
    ("xcit_large_24_p8_224", 32, dict(img_size=32, embed_dim=32, depth=2, num_heads=4)),
)  # fmt: skip

MODELS = [SuiteModel(name, "timm", _model(name, **settings), images(size)) for name, size, settings in _ROWS]
