"""Encoders on ontrain's own provider run the rows that are no padding, and nothing that counts changes."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.transformers.optimizer import optimize_model

import ontrain
from tests.inference.encoders import LENGTHS, Encoder, batch, file_of, rows_multiplied, session, stock

ALL = LENGTHS.size * LENGTHS.max()
KEPT = 88
"""81 rows are no padding; plans are made for a few numbers of rows."""
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


@pytest.fixture(scope="module", params=[("eager", 14), ("sdpa", 17)], ids=str)
def states(request):
    attention, opset = request.param
    return file_of(Encoder(attention=attention), ["states", "pooled"], opset)


def test_states_of_real_tokens_are_stocks_and_those_of_padding_zeros(states):
    feeds = batch()
    wanted, runs = stock(states, feeds), session(states, padding="states")
    whole, pooled = runs.run(None, feeds)
    real = feeds["attention_mask"].astype(bool)
    np.testing.assert_allclose(whole[real], wanted[0][real], **CLOSE)
    assert not whole[~real].any()
    np.testing.assert_allclose(pooled, wanted[1], **CLOSE)
    (rows,) = rows_multiplied(runs)
    assert rows == {KEPT, LENGTHS.size}  # the pooler has a row for each sequence


def test_padding_is_computed_unless_a_session_is_told_otherwise(states):
    feeds = batch()
    runs = session(states)
    for result, wanted in zip(runs.run(None, feeds), stock(states, feeds), strict=True):
        np.testing.assert_allclose(result, wanted, **CLOSE)
    (rows,) = rows_multiplied(runs)
    assert max(rows) == ALL and KEPT in rows  # keys and values that no query sees are not made


def test_a_full_batch_is_run_whole(states):
    feeds = batch(np.full(8, 32))
    runs = session(states, padding="states")
    for result, wanted in zip(runs.run(None, feeds), stock(states, feeds), strict=True):
        np.testing.assert_allclose(result, wanted, **CLOSE)
    assert rows_multiplied(runs) == [{ALL, LENGTHS.size}]


def test_a_sequence_of_nothing_but_padding_leaves_the_others_right(states):
    lengths = LENGTHS.copy()
    lengths[3] = 0
    feeds = batch(lengths)
    wanted, results = stock(states, feeds), session(states, padding="states").run(None, feeds)
    real = feeds["attention_mask"].astype(bool)
    np.testing.assert_allclose(results[0][real], wanted[0][real], **CLOSE)
    assert not results[0][~real].any()
    others = np.arange(8) != 3
    np.testing.assert_allclose(results[1][others], wanted[1][others], **CLOSE)


def test_padding_may_stand_anywhere(states):
    feeds = batch()
    feeds["attention_mask"] = np.random.default_rng(1).integers(0, 2, (8, 32))
    wanted, results = stock(states, feeds), session(states, padding="states").run(None, feeds)
    real = feeds["attention_mask"].astype(bool)
    np.testing.assert_allclose(results[0][real], wanted[0][real], **CLOSE)
    np.testing.assert_allclose(results[1], wanted[1], **CLOSE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["a session's file", "the optimizer of transformers"])
def test_files_that_onnxruntime_has_optimised_are_run_alike(states, way, tmp_path):
    if way == "a session's file":
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
        onnxruntime.InferenceSession(states, options, providers=["CPUExecutionProvider"])
    else:
        (tmp_path / "states.onnx").write_bytes(states)
        optimised = optimize_model(str(tmp_path / "states.onnx"), "bert", num_heads=4, hidden_size=128, opt_level=1)
        optimised.save_model_to_file(str(tmp_path / "optimised.onnx"))
    model = (tmp_path / "optimised.onnx").read_bytes()
    assert any(node.domain == "com.microsoft" for node in onnx.load(tmp_path / "optimised.onnx").graph.node)
    feeds = batch()
    wanted, runs = stock(states, feeds), session(model, padding="states")
    whole, pooled = runs.run(None, feeds)
    real = feeds["attention_mask"].astype(bool)
    np.testing.assert_allclose(whole[real], wanted[0][real], **CLOSE)
    np.testing.assert_allclose(pooled, wanted[1], **CLOSE)
    assert not whole[~real].any() and rows_multiplied(runs) == [{KEPT, LENGTHS.size}]


def test_a_mean_over_the_tokens_is_stocks_whole():
    model = file_of(Encoder("mean"), ["embedding"])
    feeds = batch()
    runs = session(model)  # nobody reads padding: nothing has to be said
    np.testing.assert_allclose(runs.run(None, feeds)[0], stock(model, feeds)[0], **CLOSE)
    assert rows_multiplied(runs) == [{KEPT}]


def test_scores_of_padding_are_computed_unless_a_session_is_told_otherwise():
    model = file_of(Encoder("scores"), ["scores"])
    feeds = batch()
    wanted, real = stock(model, feeds)[0], feeds["attention_mask"].astype(bool)
    runs = session(model, padding="states")
    np.testing.assert_allclose(runs.run(None, feeds)[0], wanted, **CLOSE)
    assert max(*rows_multiplied(runs)[0]) == ALL
    runs = session(model, padding="zeros")
    (scores,) = runs.run(None, feeds)
    np.testing.assert_allclose(scores[real], wanted[real], **CLOSE)
    assert not scores[~real].any() and rows_multiplied(runs) == [{KEPT}]


def test_batches_of_one_shape_have_plans_for_their_numbers_of_rows(states):
    runs = session(states, padding="states")
    for lengths in (LENGTHS, np.full(8, 16), np.full(8, 32), LENGTHS[::-1]):
        feeds = batch(lengths)
        real = feeds["attention_mask"].astype(bool)
        np.testing.assert_allclose(runs.run(None, feeds)[0][real], stock(states, feeds)[0][real], **CLOSE)
    assert sorted(max(rows) for rows in rows_multiplied(runs)) == [KEPT, 128, ALL]


def test_threads_get_their_own_rows():
    model = file_of(Encoder(), ["states", "pooled"])
    runs = session(model, padding="states")
    batches = [batch(LENGTHS[:rows], seed=rows) for rows in (2, 5, 8)] * 2
    wanted = [stock(model, feeds) for feeds in batches]
    wrong: list[int] = []

    def work(number: int) -> None:
        for at in (*range(number, len(batches)), *range(number)) * 5:
            real = batches[at]["attention_mask"].astype(bool)
            states, pooled = runs.run(None, batches[at])
            if not np.allclose(states[real], wanted[at][0][real], **CLOSE) or states[~real].any():
                wrong.append(at)
            if not np.allclose(pooled, wanted[at][1], **CLOSE):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_unknown_choice_is_told_those_that_there_are():
    model = file_of(Encoder("scores"), ["scores"])
    with pytest.raises(ontrain.OptionError, match="padding is 'none'") as error:
        session(model, padding="none")
    assert "'computed', 'states', 'zeros'" in error.value.way_out
