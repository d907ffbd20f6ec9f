"""An ORTModule inside what users put around their models: autocast, loss scaling, Accelerate, Trainer, DDP."""

import copy
import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ontrain.training.ortmodule import ORTModule
from tests.distributed import together
from tests.training.ortmodule.networks import LanguageModel, Perceptron, assert_same_gradients, pair


def ids(rows=2):
    return torch.randint(0, 20, (rows, 7))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_the_call(dtype):
    ours, eager = pair(LanguageModel())
    batch = ids()
    outputs = []
    for module in (ours, eager):
        with torch.autocast("cpu", dtype=dtype):
            loss, logits = module(batch, batch)
        loss.backward()
        outputs.append((loss, logits))
    (loss, logits), (want_loss, want_logits) = outputs
    assert logits.dtype == want_logits.dtype == dtype and loss.dtype == torch.float32
    torch.testing.assert_close(loss, want_loss, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(logits, want_logits, rtol=0.05, atol=0.05)
    assert all(p.grad.dtype == torch.float32 for p in ours.parameters())
    assert_same_gradients(ours, eager, rtol=0.05, atol=2e-3)
    # Outside it the module computes in full precision again.
    for module in (ours, eager):
        module.zero_grad()
        module(batch, batch)[0].backward()
    assert_same_gradients(ours, eager, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batch_normalisation_under_autocast_keeps_its_statistics_in_float32(dtype):
    torch.manual_seed(2)
    plain = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh())
    model, x = ORTModule(copy.deepcopy(plain)), torch.randn(32, 4)
    with torch.autocast("cpu", dtype=dtype):
        ours, theirs = model(x), plain(x)
    for y in (ours, theirs):
        y.float().square().sum().backward()
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=3e-2 * float(q.grad.abs().max()))
    torch.testing.assert_close(model[1].running_var, plain[1].running_var, rtol=2e-2, atol=2e-2)


def test_autocast_inside_forward():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                hidden = self.inner(x)
            return self.outer(hidden.float())

    ours, eager = pair(Mixed())
    x = torch.randn(4, 6)
    for module in (ours, eager):
        module(x).square().sum().backward()
    assert_same_gradients(ours, eager, rtol=0.02, atol=1e-3)


def test_a_gradient_scaler():
    ours, eager = pair(Perceptron().double())
    x = torch.randn(4, 6, dtype=torch.float64)
    for module in (ours, eager):
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler.scale(module(x).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_accelerate():
    accelerate = pytest.importorskip("accelerate")
    results = []
    for wrap in (ORTModule, lambda module: module):
        torch.manual_seed(0)
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = wrap(LanguageModel())
        # Adam would blow up the rounding of the gradient for the bias of keys, a gradient of zero, to whole steps.
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-1, momentum=0.9)
        data = torch.utils.data.DataLoader(list(ids(8)), batch_size=2)
        model, optimizer, data = accelerator.prepare(model, optimizer, data)
        losses = []
        for batch in data:
            with accelerator.accumulate(model):
                loss, _ = model(batch, batch)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        results.append((losses, [p.detach() for p in accelerator.unwrap_model(model).parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Losses of Hugging Face's Trainer over a tiny GPT-2: wrapped, plain and compiled; and where each was saved."""
    pytest.importorskip("accelerate")
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    def run(wrap):
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0,
                            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)  # fmt: skip
        model = wrap(GPT2LMHeadModel(config))
        rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 50, (16, 8))]
        folder = tmp_path_factory.mktemp("trainer")
        args = TrainingArguments(
            str(folder), per_device_train_batch_size=4, max_steps=6, save_steps=3, logging_steps=1,
            eval_strategy="steps", eval_steps=6, report_to=[], use_cpu=True, disable_tqdm=True, learning_rate=1e-2,
            seed=1,
        )  # fmt: skip
        trainer = Trainer(model=model, args=args, train_dataset=rows, eval_dataset=rows[:4])
        trainer.train()
        history = [entry for entry in trainer.state.log_history if "loss" in entry or "eval_loss" in entry]
        return model, history, folder, trainer

    def compiled(model):
        model.compile(backend="ontrain")
        return model

    return run(ORTModule), run(lambda model: model), run(compiled)


@pytest.mark.parametrize("way", ["ORTModule", "compile"])
def test_hugging_faces_trainer_gives_eagers_losses(trained, way):
    ours, eager = trained[2 if way == "compile" else 0][1], trained[1][1]
    assert len(ours) == 7
    for mine, theirs in zip(ours, eager, strict=True):
        for key in ("loss", "eval_loss", "grad_norm"):
            if key in theirs:
                assert mine[key] == pytest.approx(theirs[key], rel=1e-4), (key, mine, theirs)


def test_what_the_trainer_saves_loads_into_the_plain_model(trained):
    from transformers import GPT2LMHeadModel

    (model, _, folder, trainer), *_ = trained
    trainer.save_model(str(folder / "final"))
    loaded = GPT2LMHeadModel.from_pretrained(folder / "final")
    for (name, want), have in zip(model.named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(want, have), name


def test_the_trainer_resumes_as_it_does_with_the_plain_model(trained):
    losses = []
    for _, _, folder, trainer in trained:
        torch.manual_seed(1)  # of the order in which the sampler draws
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry][-3:])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[2] == pytest.approx(losses[1], rel=1e-4)


def test_two_processes_of_distributed_data_parallel():
    """Gradients of DDP(ORTModule(m)) over two processes are those of one process on both batches."""
    together.run(2, train_in_parts)


def train_in_parts():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    plain = LanguageModel().double()
    torch.manual_seed(0)
    ours = DistributedDataParallel(ORTModule(LanguageModel().double()))
    for step in range(3):
        ids = torch.randint(0, 20, (4, 6 + step), generator=torch.Generator().manual_seed(step))
        plain.zero_grad()
        plain(ids, ids)[0].backward()
        ours.zero_grad(set_to_none=step != 1)
        mine = ids[2 * rank : 2 * rank + 2]
        if step == 2:
            with ours.no_sync():
                (ours(mine, mine)[0] / 2).backward()
            (ours(mine, mine)[0] / 2).backward()
        else:
            ours(mine, mine)[0].backward()
        assert_same_gradients(ours.module, plain, rtol=1e-9, atol=1e-11)

    # Batches of one row and of three, with labels of which some count for nothing: the mean of the processes' gradients
    # is that of all labels once each loss is weighted by its own.
    ids = torch.randint(0, 20, (4, 7), generator=torch.Generator().manual_seed(9))
    labels = ids.clone()
    labels[0, 2:], labels[2, :4] = -100, -100
    plain.zero_grad()
    plain(ids, labels)[0].backward()
    mine = slice(0, 1) if rank == 0 else slice(1, 4)
    counted = (labels != -100).sum(1)
    share = dist.get_world_size() * int(counted[mine].sum()) / int(counted.sum())
    ours.zero_grad()
    (ours(ids[mine], labels[mine])[0] * share).backward()
    assert_same_gradients(ours.module, plain, rtol=1e-9, atol=1e-11)
    dist.barrier()  # who leaves while the other still talks is at times aborted by its transport's threads
    del ours  # its reducer holds the process group, whose threads have to end while there is an interpreter
    gc.collect()
    dist.destroy_process_group()
