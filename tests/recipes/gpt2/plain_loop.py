"""The loss curve that run_lm.py has to draw, from a plain loop; `python tests/recipes/gpt2/plain_loop.py` writes it.

The loop shares no line with the recipe: transformers' model and schedule, torch's AdamW and clipping, the options of
`GOLDEN`. The text is the project's licence, a token a byte.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

CURVE = Path(__file__).with_name("curve.json")
LICENSE = Path(__file__).parents[3] / "LICENSE"
GOLDEN = {
    "block_size": 24, "per_gpu_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 3e-3,
    "weight_decay": 0.1, "warmup_steps": 3, "max_steps": 12, "max_grad_norm": 0.7, "seed": 5,
}  # fmt: skip


def losses(model_folder: Path, text: bytes) -> list[float]:
    import torch
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import GPT2LMHeadModel, get_linear_schedule_with_warmup

    vocab = json.loads((model_folder / "vocab.json").read_text(encoding="utf-8"))
    pieces = "".join(piece for piece, _ in ByteLevel(add_prefix_space=False).pre_tokenize_str(text.decode()))
    ids = torch.tensor([vocab[character] for character in pieces])
    size, batch, accumulation = (
        GOLDEN[key] for key in ("block_size", "per_gpu_train_batch_size", "gradient_accumulation_steps")
    )
    rows = ids[: len(ids) // size * size].view(-1, size)
    order = np.random.default_rng((GOLDEN["seed"], 0)).permutation(len(rows))
    model = GPT2LMHeadModel.from_pretrained(model_folder).train()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": GOLDEN["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=GOLDEN["learning_rate"])
    schedule = get_linear_schedule_with_warmup(optimizer, GOLDEN["warmup_steps"], GOLDEN["max_steps"])
    means = []
    for step in range(GOLDEN["max_steps"]):
        optimizer.zero_grad()
        mean = 0.0
        for micro in range(accumulation):
            start = (step * accumulation + micro) * batch
            chosen = rows[torch.from_numpy(order[start : start + batch])]
            scores = model(input_ids=chosen).logits[:, :-1].flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(scores, chosen[:, 1:].flatten()) / accumulation
            loss.backward()
            mean += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GOLDEN["max_grad_norm"])
        optimizer.step()
        schedule.step()
        means.append(mean)
    return means


def write_model(folder: Path) -> Path:
    """Write a model over bytes whose weights come from numpy."""
    import torch
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = [*sorted(ByteLevel.alphabet()), "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    config = GPT2Config(
        vocab_size=257, n_layer=2, n_embd=32, n_head=4, n_positions=32, bos_token_id=256, eos_token_id=256,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model, random = GPT2LMHeadModel(config), np.random.default_rng(7)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            drawn = random.standard_normal(tuple(parameter.shape)).astype(np.float32) * 0.05
            parameter.copy_(torch.from_numpy(drawn) + float(parameter.mean() > 0.5))
    model.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        curve = losses(write_model(Path(folder)), LICENSE.read_bytes())
    CURVE.write_text(json.dumps([round(loss, 6) for loss in curve]) + "\n")
    print(curve)
