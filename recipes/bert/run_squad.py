"""Fine-tune BERT to answer questions about paragraphs (SQuAD 1.1 and 2.0), and score its answers in two engines.

    $ python run_squad.py --model_name_or_path ~/bert-base-uncased --do_train --do_eval \\
          --train_file train-v1.1.json --predict_file dev-v1.1.json --output_dir runs/squad
    $ python run_squad.py --model_name_or_path runs/squad --do_eval --predict_file dev-v1.1.json \\
          --output_dir runs/squad-again                     # score a trained model
    $ python run_squad.py --model_name_or_path ~/bert-base-uncased --do_train --do_eval --train_file one.json \\
          --holdout_articles 0.2 --output_dir runs/heldout  # a single file

The flags are those of Hugging Face's run_squad.py. Training is a plain PyTorch loop around `ORTModule(model)`
(harness/finetuning/training.py, with run_glue.py's); `--engine pytorch` runs the same loop without it. The answers are
chosen twice, from logits of PyTorch and of the exported model.onnx in onnxruntime, and both are scored. On several
GPUs: `torchrun --nproc_per_node 8 run_squad.py …`, or mpirun, or srun.

What a run leaves in --output_dir:

    config.json, model.safetensors, vocab.txt   the model; give the folder as --model_name_or_path to evaluate alone
    model.onnx                                  input_ids, attention_mask, token_type_ids to start_logits, end_logits
    predictions.json, nbest_predictions.json    answers, the n best with probabilities; null_odds.json in version 2.0
    predictions_onnx.json                       the answers out of onnxruntime
    eval_results.json                           scores, agreement of the engines, command, versions
    train_log.jsonl                             a row an update: step, loss, learning_rate, examples
    checkpoint/, checkpoint~1/                  what the same command goes on from, whatever stopped it

Exit codes: 0 done; 1 the loss became NaN or infinite, or the two engines' logits differ by more than 1e-3; 2 an option,
the data, the model or the disk is at fault; 130 Ctrl-C or SIGTERM: the update was finished and a checkpoint written.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from harness.needs import need

need("ontrain", "torch", "numpy", "typer", "rich", "tokenizers", "transformers")

from dataclasses import dataclass
from typing import Annotated, Any

from harness.files import DataError, read_json, write_json
from harness.finetuning.flags import Flags
from harness.options import command, execute, flag, parse


@dataclass(frozen=True, kw_only=True)
class Options(Flags):
    """The flags; the top of run_squad.py is their manual."""

    train_file: Annotated[Path | None, flag("train-v1.1.json, or one like it.", missing="no such file")] = None
    predict_file: Annotated[Path | None, flag("dev-v1.1.json.", missing="no such file")] = None
    holdout_articles: Annotated[float, flag("Without --predict_file: share of --train_file's articles.")] = 0.0
    version_2_with_negative: Annotated[bool, flag("Questions may have no answer.")] = False
    null_score_diff_threshold: Annotated[float, flag("No answer where null scores so much more.")] = 0.0
    max_seq_length: Annotated[int, flag("Tokens of a window.")] = 384
    doc_stride: Annotated[int, flag("Tokens from window to window.")] = 128
    max_query_length: Annotated[int, flag("Tokens of a question.")] = 64
    n_best_size: Annotated[int, flag("Answers kept a question.", min=1)] = 20
    max_answer_length: Annotated[int, flag("In tokens.", min=1)] = 30


if __name__ == "__main__":
    OPTIONS = parse(Options)  # before torch, for which --help need not wait

from harness.finetuning.evaluation import logits_of_both, write_onnx
from harness.finetuning.examples import Examples
from harness.finetuning.run import Run
from squad.reading import Answers, Question, Windows, best_answers, cut_windows, read_questions
from squad.scoring import score_v1, score_v2
from transformers import BertForQuestionAnswering

Squad = dict[str, Any]


def fine_tune(flags: Options) -> None:
    """Train and evaluate as the flags say; exit with 1 where the two engines' logits differ by more than 1e-3."""
    run = Run.begin(flags, flags.max_seq_length)
    folder = run.folder

    # Data: windows over paragraphs, each with a question before it.
    def windows_of(data: Squad, name: str, called: str) -> tuple[list[Question], Windows]:
        questions, bad = read_questions(
            data, version_2=flags.version_2_with_negative, skip_bad=flags.skip_bad, called=called
        )
        windows = cut_windows(
            questions, folder.vocab_file, lower=folder.lower, max_seq_length=flags.max_seq_length,
            doc_stride=flags.doc_stride, max_query_length=flags.max_query_length,
        )  # fmt: skip
        left_out = f", {bad:,} bad ones left out" if bad else ""
        run.say(f"{name}: {len(questions):,} questions, {len(windows.question):,} windows{left_out}")
        return questions, windows

    train_data, predict_data = read_files(flags)
    training = windows_of(train_data, "training", str(flags.train_file))[1] if train_data else None
    held = str(flags.predict_file or f"the held-out part of {flags.train_file}")
    predicting = windows_of(predict_data, "evaluation", held) if predict_data else None

    # Model and training: the loss, of an answer's first and last token, is the model's own.
    model = folder.load(flags, BertForQuestionAnswering, run.console)
    if training:
        run.train(model, examples_of(training))
    if run.team.first and predicting:
        run.finish(evaluate(run, flags, model, *predicting))


def evaluate(
    run: Run, flags: Options, model: BertForQuestionAnswering, questions: list[Question], windows: Windows
) -> float:
    """Write the answers of two engines and note the official scores of both; return how far their logits are apart."""
    examples, columns = examples_of(windows), dict.fromkeys(("start_logits", "end_logits"), flags.max_seq_length)
    output, results = flags.output_dir, run.results
    write_onnx(model, columns, run.onnx)
    logits, apart = logits_of_both(model, run.onnx, examples, columns, flags.per_gpu_eval_batch_size, run.team.device)
    answers: dict[str, Answers] = {}
    for name, (start, end) in logits.items():
        answers[name] = best_answers(
            questions, windows, start, end, n_best_size=flags.n_best_size, max_answer_length=flags.max_answer_length,
            version_2=flags.version_2_with_negative, null_score_diff_threshold=flags.null_score_diff_threshold,
        )  # fmt: skip
        results[name] = scores_of(questions, answers[name], flags)
        run.say(f"{name}: {', '.join(f'{key} {value:.2f}' for key, value in results[name].items())}")
    ours, theirs = (answers[name].predictions for name in ("PyTorch", "onnxruntime"))
    equal = sum(theirs[key] == text for key, text in ours.items())
    results["agreement"] = {"equal_answers": equal, "questions": len(questions), "logits_within": apart}
    run.say(f"engines: {equal:,} of {len(questions):,} answers equal, logits within {apart:.1e}")
    write_json(output / "predictions.json", ours)
    write_json(output / "nbest_predictions.json", answers["PyTorch"].nbest)
    write_json(output / "predictions_onnx.json", theirs)
    if flags.version_2_with_negative:
        highest = sys.float_info.max  # JSON has no infinity
        odds = {key: min(value, highest) for key, value in answers["PyTorch"].null_odds.items()}
        write_json(output / "null_odds.json", odds)
    return apart


def read_files(flags: Options) -> tuple[Squad | None, Squad | None]:
    """Return what to train on and what to evaluate on, each None where that is not done."""
    train_file, predict_file, holdout = flags.train_file, flags.predict_file, flags.holdout_articles
    if not 0 <= holdout < 1:
        raise DataError(f"--holdout_articles {holdout} is no share from 0 to 1")
    if holdout and predict_file:
        raise DataError("--holdout_articles divides --train_file; it goes without --predict_file")
    if flags.do_train and not train_file:
        raise DataError("--do_train needs --train_file")
    if flags.do_eval and not predict_file and not (train_file and holdout):
        raise DataError("--do_eval needs --predict_file, or --train_file with --holdout_articles")
    first = read_squad(train_file, "--train_file") if train_file and (flags.do_train or holdout) else None
    second = read_squad(predict_file, "--predict_file") if predict_file and flags.do_eval else None
    if first and holdout:
        articles = first.get("data")
        held = round(len(articles) * holdout) if isinstance(articles, list) else 0
        if not articles or not 0 < held < len(articles):
            raise DataError(f"{train_file} has too few articles to hold out {holdout:.0%} of them")
        first, second = {"data": articles[:-held]}, {"data": articles[-held:]}
    return first if flags.do_train else None, second if flags.do_eval else None


def read_squad(path: Path, name: str) -> Squad:
    data = read_json(path, f"{name} {path}")
    if not isinstance(data, dict):
        raise DataError(f"{path} is not of SQuAD's form: it holds no JSON object")
    return data


def examples_of(windows: Windows) -> Examples:
    return Examples(
        {"input_ids": windows.input_ids, "attention_mask": windows.input_mask, "token_type_ids": windows.segment_ids},
        {"start_positions": windows.start_positions, "end_positions": windows.end_positions},
    )


def scores_of(questions: list[Question], answers: Answers, flags: Options) -> dict[str, float]:
    """Return the official scores, of the questions that were read."""
    truths = {question.id: question.answers for question in questions}
    if not flags.version_2_with_negative:
        return score_v1(truths, answers.predictions)
    # The answers that would be given were there none to refuse: the threshold then decides, and the best one is found.
    texts = {key: [answer["text"] for answer in nbest] for key, nbest in answers.nbest.items()}
    best = {key: next(filter(None, some), "") for key, some in texts.items()}
    return score_v2(truths, best, answers.null_odds, flags.null_score_diff_threshold)


main = command(Options, fine_tune)

if __name__ == "__main__":
    execute(fine_tune, OPTIONS)
