"""Fine-tuning on SQuAD, and its answers in two engines: what run_squad.py runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from corpus.workspace import DataError, read_json
from reading.answers import Answers, best_answers
from reading.questions import Question, read_questions
from reading.windows import Windows, cut_windows
from scoring.squad import score_v1, score_v2
from transformers import BertForQuestionAnswering

from finetuning import options
from finetuning.evaluation import TOLERANCE, distance, export, logits_of_onnx, logits_of_torch
from finetuning.examples import Examples
from finetuning.processes import Team

__all__ = ["fine_tune"]

Squad = dict[str, Any]


def fine_tune(
    flags: options.Flags,
    *,
    train_file: Path | None,
    predict_file: Path | None,
    holdout_articles: float,
    version_2_with_negative: bool,
    null_score_diff_threshold: float,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    n_best_size: int,
    max_answer_length: int,
) -> None:
    """Train and evaluate as the flags of run_squad.py say.

    Raises:
        DataError: a flag, the data or the model is at fault.
        typer.Exit: with 1, the two engines' logits differ by more than 1e-3.
    """
    team = Team.join(flags.no_cuda)
    settings, output = flags.settings(team.size), flags.output_dir
    if team.first:
        options.writable(output)
    console = options.speaker(quiet=not team.first)
    folder = flags.folder(max_seq_length)

    def windows_of(data: Squad, name: str, called: str) -> tuple[list[Question], Windows]:
        questions, bad = read_questions(data, version_2=version_2_with_negative, skip_bad=flags.skip_bad, called=called)
        windows = cut_windows(
            questions,
            folder.vocab_file,
            lower=folder.lower,
            max_seq_length=max_seq_length,
            doc_stride=doc_stride,
            max_query_length=max_query_length,
        )
        left_out = f", {bad:,} bad ones left out" if bad else ""
        console.print(f"{name}: {len(questions):,} questions, {len(windows.question):,} windows{left_out}")
        return questions, windows

    train_data, predict_data = _files(train_file, predict_file, holdout_articles, flags.do_train, flags.do_eval)
    training = windows_of(train_data, "training", str(train_file))[1] if train_data else None
    held = str(predict_file or f"the held-out part of {train_file}")
    predicting = windows_of(predict_data, "evaluation", held) if predict_data else None
    model = flags.load(folder, BertForQuestionAnswering, console)
    results: dict[str, Any] = {}
    if training:
        results["training"] = flags.train(model, folder, _examples(training), settings, console, team)
    if not (team.first and predicting):
        return

    questions, windows = predicting
    examples, columns = _examples(windows), dict.fromkeys(("start_logits", "end_logits"), max_seq_length)
    in_torch = logits_of_torch(model, examples, columns, flags.per_gpu_eval_batch_size, team.device)
    export(model, list(columns), output / "model.onnx")
    in_onnx = logits_of_onnx(output / "model.onnx", examples, columns, flags.per_gpu_eval_batch_size)
    found = {}
    for name, (start, end) in (("PyTorch", in_torch), ("onnxruntime", in_onnx)):
        answers = best_answers(
            questions,
            windows,
            start,
            end,
            n_best_size=n_best_size,
            max_answer_length=max_answer_length,
            version_2=version_2_with_negative,
            null_score_diff_threshold=null_score_diff_threshold,
        )
        scores = _scores(predict_data, questions, answers, version_2_with_negative, null_score_diff_threshold)
        found[name], results[name] = answers, scores
        console.print(f"{name}: {', '.join(f'{key} {value:.2f}' for key, value in scores.items())}")
    equal = sum(found["onnxruntime"].predictions[key] == text for key, text in found["PyTorch"].predictions.items())
    apart = distance(in_torch, in_onnx)
    results["agreement"] = {"equal_answers": equal, "questions": len(questions), "logits_within": apart}
    console.print(f"engines: {equal:,} of {len(questions):,} answers equal, logits within {apart:.1e}")
    _write(output, found["PyTorch"], found["onnxruntime"], version_2_with_negative)
    options.epilogue(output, results)
    if apart > TOLERANCE:
        raise typer.Exit(1)


def _files(
    train_file: Path | None, predict_file: Path | None, holdout: float, do_train: bool, do_eval: bool
) -> tuple[Squad | None, Squad | None]:
    """What to train on and what to evaluate on, each None where that is not done."""
    if not 0 <= holdout < 1:
        raise DataError(f"--holdout_articles {holdout} is no share from 0 to 1")
    if holdout and predict_file:
        raise DataError("--holdout_articles divides --train_file; it goes without --predict_file")
    if do_train and not train_file:
        raise DataError("--do_train needs --train_file")
    if do_eval and not predict_file and not (train_file and holdout):
        raise DataError("--do_eval needs --predict_file, or --train_file with --holdout_articles")
    first = _json(train_file, "--train_file") if train_file and (do_train or holdout) else None
    second = _json(predict_file, "--predict_file") if predict_file and do_eval else None
    if first and holdout:
        articles = first.get("data")
        kept = round(len(articles) * holdout) if isinstance(articles, list) else 0
        if not articles or not 0 < kept < len(articles):
            raise DataError(f"{train_file} has too few articles to hold out {holdout:.0%} of them")
        first, second = {"data": articles[:-kept]}, {"data": articles[-kept:]}
    return first if do_train else None, second if do_eval else None


def _json(path: Path, flag: str) -> Squad:
    found = read_json(path, f"{flag} {path}")
    if not isinstance(found, dict):
        raise DataError(f"{path} is not of SQuAD's form: it holds no JSON object")
    return found


def _examples(windows: Windows) -> Examples:
    inputs = {
        "input_ids": windows.input_ids,
        "attention_mask": windows.input_mask,
        "token_type_ids": windows.segment_ids,
    }
    return Examples(inputs, {"start_positions": windows.start_positions, "end_positions": windows.end_positions})


def _scores(
    data: Squad, questions: list[Question], answers: Answers, version_2: bool, threshold: float
) -> dict[str, float]:
    """Official scores, of the questions that were read."""
    read = {question.id for question in questions}
    asked = {
        "data": [
            {"paragraphs": [{"qas": [one for one in paragraph["qas"] if one["id"] in read]}]}
            for article in data["data"]
            for paragraph in article["paragraphs"]
        ]
    }
    if not version_2:
        return score_v1(asked, answers.predictions)
    # The answers that would be given were there none to refuse: `threshold` then decides, and the best one is found.
    given = {key: next((one["text"] for one in nbest if one["text"]), "") for key, nbest in answers.nbest.items()}
    return score_v2(asked, given, answers.null_odds, threshold)


def _write(output: Path, answers: Answers, of_onnx: Answers, version_2: bool) -> None:
    options.write_json(output / "predictions.json", answers.predictions)
    options.write_json(output / "nbest_predictions.json", answers.nbest)
    options.write_json(output / "predictions_onnx.json", of_onnx.predictions)
    if version_2:
        highest = sys.float_info.max  # JSON has no infinity
        odds = {key: min(value, highest) for key, value in answers.null_odds.items()}
        options.write_json(output / "null_odds.json", odds)
