"""Models of sound: speechbrain, torchaudio, and those of transformers that read or make waves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Loss, add, ids, numbers, unevenly

__all__: list[str] = []


def conformer() -> nn.Module:
    """torchaudio's Conformer over features of two lengths."""
    from torchaudio.models import Conformer

    model = Conformer(input_dim=8, num_heads=2, ffn_dim=16, num_layers=1, depthwise_conv_kernel_size=3)
    return Loss(lambda s, x: unevenly(s.model(x, torch.full((x.shape[0],), x.shape[1]))[0]), model=model)


def emformer() -> nn.Module:
    """torchaudio's Emformer, which attends to segments and their memory."""
    from torchaudio.models import Emformer

    model = Emformer(8, num_heads=2, ffn_dim=16, num_layers=1, segment_length=4, left_context_length=4,
                     right_context_length=2)  # fmt: skip
    return Loss(lambda s, x: unevenly(s.model(x, torch.full((x.shape[0],), x.shape[1] - 2))[0]), model=model)


def wav2vec2() -> nn.Module:
    """torchaudio's wav2vec 2.0."""
    from torchaudio.models import wav2vec2_model

    model = wav2vec2_model(
        extractor_mode="group_norm", extractor_conv_layer_config=[(8, 10, 5), (8, 3, 2)], extractor_conv_bias=False,
        encoder_embed_dim=16, encoder_projection_dropout=0.0, encoder_pos_conv_kernel=4, encoder_pos_conv_groups=2,
        encoder_num_layers=1, encoder_num_heads=2, encoder_attention_dropout=0.0, encoder_ff_interm_features=24,
        encoder_ff_interm_dropout=0.0, encoder_dropout=0.0, encoder_layer_norm_first=False, encoder_layer_drop=0.0,
        aux_num_out=5)  # fmt: skip
    return Loss(model=model)


def speech_network(path: str, *arguments: Any, **settings: Any) -> Callable[[], nn.Module]:
    """A network of speechbrain."""

    def make() -> nn.Module:
        import importlib

        module, _, name = path.rpartition(".")
        return Loss(model=getattr(importlib.import_module(f"speechbrain.{module}"), name)(*arguments, **settings))

    return make


def encodec() -> nn.Module:
    """Encodec's codec of waves, with its vector quantisation."""
    from transformers import EncodecConfig, EncodecModel

    config = EncodecConfig(num_filters=4, hidden_size=8, codebook_size=16, codebook_dim=8, upsampling_ratios=[4, 2],
                           target_bandwidths=[24.0], num_lstm_layers=1, sampling_rate=1600)  # fmt: skip
    return Loss(lambda s, x: s.model(x).audio_values, model=EncodecModel(config))


def speech_t5() -> nn.Module:
    """SpeechT5, from text to a spectrogram, with its loss."""
    from transformers import SpeechT5Config, SpeechT5ForTextToSpeech

    config = SpeechT5Config(
        vocab_size=20, hidden_size=16, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=16,
        encoder_layerdrop=0.0, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=16, decoder_layerdrop=0.0,
        speech_decoder_prenet_units=8, speech_decoder_prenet_dropout=0.0, speaker_embedding_dim=8, num_mel_bins=8,
        speech_decoder_postnet_units=8, speech_decoder_postnet_dropout=0.0, positional_dropout=0.0, hidden_dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0, use_guided_attention_loss=False)  # fmt: skip
    return Loss(lambda s, words, speaker, mel: s.model(
        input_ids=words, labels=mel, speaker_embeddings=speaker).loss,
        model=SpeechT5ForTextToSpeech(config))  # fmt: skip


add("Conformer of torchaudio", "torchaudio", conformer, lambda n: (numbers(n, 4 * n, 8),))
add("Emformer", "torchaudio", emformer, lambda n: (numbers(n, 4 * n + 2, 8),))
add("wav2vec 2.0 of torchaudio", "torchaudio", wav2vec2, lambda n: (numbers(n, 100 * n),))
add("ECAPA-TDNN", "speechbrain", speech_network(
    "lobes.models.ECAPA_TDNN.ECAPA_TDNN", 8, lin_neurons=6, channels=[8, 8, 8, 8, 16], kernel_sizes=[5, 3, 3, 3, 1],
    dilations=[1, 2, 3, 4, 1], attention_channels=8, res2net_scale=4, se_channels=8),
    lambda n: (numbers(n, 10 * n, 8),))  # fmt: skip
add("CRDNN", "speechbrain", speech_network(
    "lobes.models.CRDNN.CRDNN", input_shape=(None, None, 8), cnn_blocks=1, cnn_channels=(4,), rnn_layers=1,
    rnn_neurons=6, dnn_blocks=1, dnn_neurons=6), lambda n: (numbers(n, 8 * n, 8),))  # fmt: skip
add("Encodec", "transformers", encodec, lambda n: (numbers(n, 1, 64 * n),))
add("SpeechT5", "transformers", speech_t5, lambda n: (ids(20, n, 3 * n), numbers(n, 8), numbers(n, 4 * n, 8)))
