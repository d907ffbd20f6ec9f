"""Outputs beside a loss are computed when somebody looks at them, and are then what eager PyTorch gives."""

import copy
import io
import pickle
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ontrain import InputError, OptionError
from ontrain.training.ortmodule import ORTModule
from ontrain.training.ortmodule.deferred import _open
from ontrain.training.ortmodule.lazy import LazyOutput
from tests.distributed import together
from tests.training.ortmodule.networks import LanguageModel, assert_same_gradients, pair

pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("captured_once")]

IDS = torch.tensor([[1, 5, 3, 9, 0, 2], [7, 7, 4, 16, 11, 3]])


class Noisy(nn.Module):
    """Loss and hidden values with dropout and a batch normalisation; `draws` tells the masks."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, label):
        hidden = self.dropout(torch.tanh(self.norm(self.first(x))))
        logits = self.second(hidden)
        return {"loss": nn.functional.cross_entropy(logits, label), "logits": logits, "draws": hidden == 0}


def plans(module):
    (entry,) = module._engine.entries
    return entry.session.plans


def computed(module):
    """The outputs that the plan made last computes."""
    *_, (key, _) = plans(module).items()
    return key[0][2]


def test_an_output_that_nobody_reads_is_not_in_the_plan():
    ours, eager = pair(LanguageModel().double())
    for _ in range(3):
        for module in (ours, eager):
            module.zero_grad()
            loss, logits = module(IDS, IDS)
            loss.backward()
        assert isinstance(loss, torch.Tensor) and isinstance(logits, torch.Tensor)
        assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-12)
    assert computed(ours) == ("output_0",) and len(plans(ours)) == 1
    (plan,) = plans(ours).values()
    assert plan.absent == {"output_1": ((2, 6, 20), torch.float64)}


def test_metadata_is_known_without_computing():
    ours, eager = pair(LanguageModel())
    mine, theirs = ours(IDS, IDS)[1], eager(IDS, IDS)[1]
    assert type(mine) is LazyOutput
    for ask in (
        lambda t: t.shape, lambda t: t.size(), lambda t: t.size(-1), lambda t: t.dtype, lambda t: t.device,
        lambda t: t.ndim, lambda t: t.requires_grad, lambda t: t.is_leaf, lambda t: t.numel(), lambda t: len(t),
        lambda t: t.stride(), lambda t: t.is_contiguous(), lambda t: torch.is_floating_point(t), torch.is_tensor,
        lambda t: t.grad_fn is None, lambda t: torch.numel(input=t), lambda t: t.nbytes,
    ):  # fmt: skip
        assert ask(mine) == ask(theirs)
    assert {mine: 1}[mine] == 1
    assert len(plans(ours)) == 1, "nothing was run again"


@pytest.mark.parametrize(
    "look",
    [
        lambda t: t.detach(), lambda t: t.argmax(-1), lambda t: t.detach().numpy(), lambda t: t.tolist(),
        lambda t: t.cpu(), lambda t: t[..., :-1, :].contiguous(), lambda t: torch.stack([t, t]), lambda t: t.float(),
        lambda t: np.asarray(t.detach()), lambda t: t.clone().fill_(2), lambda t: t.data, lambda t: copy.copy(t),
        lambda t: copy.deepcopy(t.detach()), lambda t: pickle.loads(pickle.dumps(t)),  # noqa: S301
        lambda t: float(t.detach()[0, 0, 0]),
        lambda t: [row.sum() for row in t], lambda t: torch.where(t > 0, t, -t), lambda t: t[t > 0],
        lambda t: torch.nn.functional.softmax(t, -1), lambda t: t.detach().mul_(2), lambda t: t.data_ptr() != 0,
        lambda t: t.untyped_storage().nbytes(), lambda t: torch.ops.aten.neg(t), lambda t: 1 - t,
    ],
)  # fmt: skip
def test_a_look_gives_the_values(look):
    ours, eager = LOOKED
    mine, theirs = look(ours(IDS, IDS)[1]), look(eager(IDS, IDS)[1])
    assert type(mine) is type(theirs)
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    # Unlearned, so that each look finds an output that is not computed.
    (entry,) = ours._engine.entries
    entry._read.discard("output_1")


torch.manual_seed(3)
LOOKED = pair(LanguageModel().double())


def test_printing_shows_the_values():
    ours, eager = pair(LanguageModel().double())
    text = repr(ours(IDS, IDS)[1])
    assert text.split("grad_fn")[0] == repr(eager(IDS, IDS)[1]).split("grad_fn")[0]


def test_torch_saves_the_values():
    ours, eager = pair(LanguageModel().double())
    file = io.BytesIO()
    torch.save({"logits": ours(IDS, IDS)[1]}, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file)["logits"], eager(IDS, IDS)[1], rtol=1e-9, atol=1e-12)


def test_what_was_read_is_in_the_next_plan():
    ours = ORTModule(LanguageModel())
    loss, logits = ours(IDS, IDS)
    (loss + logits.square().mean()).backward()
    loss, logits = ours(IDS, IDS)
    assert type(logits) is torch.Tensor
    loss.backward()
    shorter = IDS[:, :4]
    assert ours(shorter, shorter)[1].shape == (2, 4, 20), "at other shapes, too"
    assert computed(ours) is None


@pytest.mark.parametrize("losses", [lambda loss, x: loss + x.pow(2).mean(), lambda loss, x: x.sigmoid().mean(),
                                    lambda loss, x: loss * x.detach().mean()])  # fmt: skip
def test_gradients_through_a_lazy_output(losses):
    ours, eager = pair(LanguageModel().double())
    for _ in range(2):
        for module in (ours, eager):
            module.zero_grad()
            losses(*module(IDS, IDS)).backward()
        assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-12)


def test_gradients_of_a_lazy_output_that_was_first_read_without():
    ours, eager = pair(LanguageModel().double())
    for module in (ours, eager):
        loss, logits = module(IDS, IDS)
        with torch.no_grad():
            logits.argmax(-1)
        with torch.inference_mode():
            logits.max()
        (loss + logits.sum()).backward()
    assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-12)


def test_a_second_backward_for_a_lazy_output():
    ours, eager = pair(LanguageModel().double())
    for module in (ours, eager):
        loss, logits = module(IDS, IDS)
        loss.backward(retain_graph=True)
        logits.square().mean().backward()
    assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-12)


def test_a_lazy_output_into_another_module():
    ours, eager = pair(LanguageModel().double())
    after, plain = pair(nn.Linear(20, 3).double())
    for module, head in ((ours, after), (eager, plain)):
        loss, logits = module(IDS, IDS)
        (loss + head(logits).square().mean()).backward()
    assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-12)
    assert_same_gradients(after, plain, rtol=1e-9, atol=1e-12)


def test_hooks_and_changes_in_place_are_of_the_plain_tensor():
    ours, eager = pair(LanguageModel().double())
    seen = []
    for module in (ours, eager):
        _, logits = module(IDS, IDS)
        logits.retain_grad()
        logits.register_hook(lambda g: 2 * g)
        logits.square().sum().backward()
        seen.append(logits.grad)
        logits = module(IDS, IDS)[1]
        logits.div_(2)
        logits[:, 0] = 0
        logits.sum().backward()
    torch.testing.assert_close(*seen)
    assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-12)


def test_a_look_draws_the_masks_of_the_call_and_moves_no_statistics():
    torch.manual_seed(0)
    ours = ORTModule(Noisy())
    x, label = torch.randn(16, 6), torch.randint(3, (16,))
    out = ours(x, label)
    torch.manual_seed(5)
    before = [b.clone() for b in ours.buffers()]
    loss = nn.functional.cross_entropy(out["logits"], label)
    assert torch.equal(loss, out["loss"])
    assert 0.2 < out["draws"].float().mean() < 0.8
    assert all(torch.equal(a, b) for a, b in zip(before, ours.buffers(), strict=True))
    assert torch.equal(torch.rand(()), torch.rand((), generator=torch.Generator().manual_seed(5)))
    out["loss"].backward()


class Aside(Noisy):
    """Returns also what it draws numbers for that the loss does not need, and draws those first."""

    def forward(self, x, label):
        aside = nn.functional.dropout(x, 0.5)
        return {**super().forward(x, label), "aside": aside * 2}


def test_an_output_with_random_numbers_of_its_own_leaves_the_others_theirs():
    ours = ORTModule(Aside())
    x, label = torch.randn(16, 6), torch.randint(3, (16,))
    out = ours(x, label)
    assert torch.equal(nn.functional.cross_entropy(out["logits"], label), out["loss"])


def loop(module, optimizer, look, steps=4):
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        outputs = module(IDS + step % 2, IDS)
        outputs[0].backward()
        optimizer.step()
        seen.append(look(step, outputs))
    return seen


def test_a_look_after_the_optimizers_step_gives_what_forward_had():
    ours, eager = pair(LanguageModel().double())
    for late in (lambda step, out: out[1].sum().item() if step == 2 else 0.0, lambda step, out: out[1].detach().sum()):
        trajectories = [loop(m, torch.optim.AdamW(m.parameters(), lr=0.1), late) for m in (ours, eager)]
        torch.testing.assert_close(*trajectories, rtol=1e-8, atol=1e-10)


def test_statistics_are_those_of_the_call_after_a_step():
    x, label = torch.randn(16, 6), torch.randint(3, (16,))
    model = Noisy().double()
    model.dropout.p = 0.0
    ours, eager = pair(model)
    logits = []
    for module in (ours, eager):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        out = module(x.double(), label)
        out["loss"].backward()
        optimizer.step()
        module(x.double() * 2, label)
        logits.append(out["logits"].detach())
    torch.testing.assert_close(*logits, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ours.norm.running_mean, eager.norm.running_mean)


def test_outputs_that_are_collected_are_right_and_need_one_copy_of_the_parameters():
    ours, eager = pair(LanguageModel().double())
    outputs_of_runs = [
        torch.stack(loop(m, torch.optim.SGD(m.parameters(), lr=0.5), lambda _, out: out[1])) for m in (ours, eager)
    ]
    torch.testing.assert_close(*outputs_of_runs, rtol=1e-9, atol=1e-12)
    (entry,) = ours._engine.entries
    assert len(entry._state._copies) <= 2
    assert computed(ours) is None, "they are in the plan, once it is seen"


def test_no_copy_is_made_where_the_outputs_are_gone():
    ours = ORTModule(LanguageModel())
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.5)
    for _ in range(2):
        ours(IDS, IDS)[0].backward()
        optimizer.step()
    (entry,) = ours._engine.entries
    assert not entry._state._copies and not [opened for opened in _open if opened._state is entry._state]


def test_another_models_optimizer_makes_no_copy():
    ours = ORTModule(LanguageModel())
    other = nn.Linear(2, 2)
    outputs = ours(IDS, IDS)
    other(torch.ones(2)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.5).step()
    (entry,) = ours._engine.entries
    assert not entry._state._copies and outputs[1].isfinite().all()


def by_hand(module):
    with torch.no_grad():
        for p in module.parameters():
            p -= 0.1 * p.grad


def by_data(module):
    for p in module.parameters():
        p.data.sub_(0.1 * p.grad)


@pytest.mark.parametrize("update", [by_hand, by_data, lambda m: m.load_state_dict(LanguageModel().state_dict())])
def test_a_look_after_another_update_is_refused(update):
    ours = ORTModule(LanguageModel())
    loss, logits = ours(IDS, IDS)
    loss.backward()
    update(ours)
    for _ in range(2):
        with pytest.raises(InputError, match=r"'1' was not computed.*\n.*parameters were changed.*\n.*LAZY_OUTPUTS=0"):
            logits.sum()
    # From then on it is computed, and the loop goes on.
    loss, logits = ours(IDS, IDS)
    loss.backward()
    update(ours)
    assert logits.isfinite().all()


def test_a_look_after_an_input_was_overwritten_is_refused():
    ours = ORTModule(LanguageModel())
    ids = IDS.clone()
    logits = ours(ids, IDS)[1]
    ids.zero_()
    with pytest.raises(InputError, match="an input of that call was changed"):
        logits.sum()


def test_several_calls_in_flight_have_their_own():
    ours, eager = pair(LanguageModel().double())
    for module in (ours, eager):
        outputs = [module(IDS + k, IDS) for k in range(3)]
        total = sum(loss * (k + 1) + logits.std() for k, (loss, logits) in enumerate(outputs))
        total.backward()
    assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", ["eval", "no_grad", "logits only", "option", "environment"])
def test_all_is_computed_where_laziness_does_not_apply(mode, monkeypatch):
    if mode == "environment":
        monkeypatch.setenv("ONTRAIN_LAZY_OUTPUTS", "0")
    ours = ORTModule(LanguageModel(), lazy_outputs=False if mode == "option" else None)
    ours.train(mode != "eval")
    with torch.set_grad_enabled(mode != "no_grad"):
        outputs = ours(IDS) if mode == "logits only" else ours(IDS, IDS)
    for output in [outputs] if mode == "logits only" else outputs:
        assert type(output) is torch.Tensor
    assert type(copy.deepcopy(ours)(IDS, IDS)[1]) is (torch.Tensor if mode in ("option", "eval", "environment")
                                                      else LazyOutput)  # fmt: skip


def test_a_wrong_value_in_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv("ONTRAIN_LAZY_OUTPUTS", "no")
    with pytest.raises(OptionError, match="ONTRAIN_LAZY_OUTPUTS is 'no'"):
        ORTModule(LanguageModel())


def test_threads_that_look_at_once():
    ours, eager = pair(LanguageModel().double())
    want = eager(IDS, IDS)[1]
    loss, logits = ours(IDS, IDS)
    looks = []
    threads = [threading.Thread(target=lambda: looks.append(logits.detach().clone())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(looks) == 4
    for thread in looks:
        torch.testing.assert_close(thread, want, rtol=1e-9, atol=1e-12)
    loss.backward()


@pytest.mark.parametrize("provider", ["OnnxRuntimeExecutionProvider", "ReferenceExecutionProvider"])
def test_other_providers_leave_outputs_out_too(provider):
    model = LanguageModel()
    ours, eager = ORTModule(copy.deepcopy(model), provider=provider), model
    for module in (ours, eager):
        loss, logits = module(IDS, IDS)
        (loss + logits.square().mean()).backward()
    assert_same_gradients(ours, eager, rtol=1e-4, atol=1e-6)
    loss, logits = ours(IDS, IDS)
    assert type(logits) is torch.Tensor


@pytest.fixture(scope="module")
def bert():
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # fmt: skip
    return BertForMaskedLM(config).train()


def test_a_hugging_face_model_with_hidden_states(bert):
    ours, eager = pair(copy.deepcopy(bert).double())
    results = []
    for module in (ours, eager):
        out = module(input_ids=IDS, labels=IDS, output_hidden_states=True)
        results.append(out)
        (out.loss + out.hidden_states[1].sum()).backward()
    assert type(results[0]) is type(results[1]) and results[0].keys() == results[1].keys()
    assert_same_gradients(ours, eager, rtol=1e-8, atol=1e-11)
    torch.testing.assert_close(results[0][1:], results[1][1:], rtol=1e-8, atol=1e-11)
    ours(input_ids=IDS, labels=IDS, output_hidden_states=True).loss.backward()
    assert set(computed(ours) or ours._engine.entries[0].outputs) >= {"output_0", "output_3"}


def test_label_smoothing_and_metrics_in_hugging_faces_trainer(bert, tmp_path):
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    histories = []
    for wrap in (ORTModule, lambda module: module):
        torch.manual_seed(0)
        model = wrap(copy.deepcopy(bert))
        rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 60, (8, 6))]
        args = TrainingArguments(
            str(tmp_path), per_device_train_batch_size=4, max_steps=3, logging_steps=1, eval_strategy="steps",
            eval_steps=3, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", label_smoothing_factor=0.1,
        )  # fmt: skip
        trainer = Trainer(
            model=model, args=args, train_dataset=rows, eval_dataset=rows[:4],
            compute_metrics=lambda p: {"mean": float(p.predictions.mean())},
        )  # fmt: skip
        trainer.train()
        histories.append([e for e in trainer.state.log_history if "loss" in e or "eval_loss" in e])
    assert len(histories[0]) == 4
    for mine, theirs in zip(*histories, strict=True):
        for key in {"loss", "eval_loss", "eval_mean", "grad_norm"} & theirs.keys():
            assert mine[key] == pytest.approx(theirs[key], rel=1e-3, abs=1e-5), key


def test_distributed_data_parallel_walks_the_outputs():
    together.run(1, train_by_its_outputs)


def train_by_its_outputs():
    dist.init_process_group("gloo")
    for options in ({"find_unused_parameters": True}, {"static_graph": True}):
        torch.manual_seed(0)
        plain = LanguageModel().double()
        torch.manual_seed(0)
        ours = DistributedDataParallel(ORTModule(LanguageModel().double()), **options)
        ids = torch.randint(0, 20, (4, 6))
        for look in (False, True, False):
            for module in (plain, ours):
                module.zero_grad()
                loss, logits = module(ids, ids)
                (loss + logits.square().mean() if look else loss).backward()
            assert_same_gradients(ours.module, plain, rtol=1e-9, atol=1e-11)
    dist.destroy_process_group()


def test_weights_of_an_absolute_error_count_for_an_output_too():
    ours, eager = pair(LanguageModel())
    weight = torch.rand(2, 6, 20)
    for reduction in ("mean", "sum"):
        mine, theirs = (module(IDS, IDS)[1] for module in (ours, eager))
        if reduction == "mean":
            assert type(mine) is LazyOutput
        losses = [nn.functional.l1_loss(y, weight, reduction=reduction, weight=weight) for y in (mine, theirs)]
        torch.testing.assert_close(*losses)
        for loss in losses:
            loss.backward()
        assert_same_gradients(ours, eager)
