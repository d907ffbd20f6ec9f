"""The losses of the tests' tiny run by a loop that shares nothing with the recipe but the reader of the data.

golden.json holds what it gives, so that reader and loop cannot drift together.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn
from transformers import BertConfig, BertForPreTraining

from tests.golden.optimizers import Lamb

__all__ = ["textbook"]


def textbook(corpus: Path, config: Path, phases: tuple[int, ...] = (6, 4), processes: int = 1) -> list[float]:
    """Some steps of each phase as one reads of them: transformers' own loss on whole batches, LAMB tensor by tensor.

    A batch is two micro-batches of four: of one process one after the other, of two processes one of each.
    """
    from dataset import PretrainingData

    sizes = json.loads(config.read_text())
    torch.manual_seed(42)
    model = BertForPreTraining(BertConfig(**{**sizes, "vocab_size": -(-sizes["vocab_size"] // 8) * 8})).train()
    plain = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    decayed = [p for p in model.parameters() if all(p is not other for other in plain)]
    lamb = Lamb(decayed, 0.0, (0.9, 0.999), 1e-6, 0.01)
    lamb.add_param_group({"params": plain, "decay": 0.0})
    curve = []
    for phase, steps in enumerate(phases, 1):
        readers = [
            iter(PretrainingData(corpus / f"phase{phase}", batch_size=4, seed=42, rank=rank, world_size=processes))
            for rank in range(processes)
        ]
        for step in range(steps):
            parts = [next(reader) for reader in (readers if processes == 2 else readers * 2)]
            ids, segments, mask, labels, follows = (torch.cat(pair) for pair in zip(*parts, strict=True))
            loss = model(
                ids,
                attention_mask=mask,
                token_type_ids=segments,
                labels=labels.masked_fill(labels == -1, -100),
                next_sentence_label=follows,
            ).loss
            model.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            done = step / steps
            for group in lamb.param_groups:
                group["lr"] = 5e-2 * (done / 0.2 if done < 0.2 else (1 - done) ** 0.5)
            lamb.step()
            curve.append(loss.item())
    return curve
