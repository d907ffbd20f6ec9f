"""onnxruntime's classes for what happens while one of ontrain's providers loads a model and runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ontrain.errors import GraphError, InputError, OntrainError, ProviderError
from ontrain.inference.upstream_errors import also, upstream

__all__ = ["loading", "of_a_run"]


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Give errors of loading also the classes that onnxruntime raises for them.

    Raises:
        OntrainError: of both kinds.
    """
    try:
        yield
    except InputError as error:
        raise also(error, upstream("NoSuchFile")) from error
    except GraphError as error:
        text = f"{error.problem}: {error.reason}"
        told = also(error, upstream(_kind_of_damage(text)))
        if "has inconsistent type" in text:  # onnxruntime's class depends on whether the file states the type, too
            told = also(told, upstream("Fail"))
        raise told from error
    except ProviderError as error:
        raise also(error, upstream("NotImplemented")) from error


def _kind_of_damage(text: str) -> str:
    """The name of the class that onnxruntime raises for a file with this damage."""
    kinds = {
        "no ONNX model": "InvalidProtobuf", "holds no graph": "InvalidArgument", "the external data of": "Fail",
        "is used before it is made": "InvalidArgument", "asks for opset": "Fail", "is of IR version": "Fail",
        "is defined twice": "Fail", "ShapeInferenceError": "Fail", "is unknown to ontrain": "Fail",
        "has no outputs": "InvalidArgument",
    }  # fmt: skip
    return next((kind for words, kind in kinds.items() if words in text), "InvalidGraph")


def of_a_run(error: OntrainError) -> OntrainError:
    """Return an error of a run, also of the class that onnxruntime raises for it."""
    if isinstance(error, InputError):
        return also(error, upstream("InvalidArgument"))
    if isinstance(error, GraphError):
        return also(error, upstream("InvalidGraph"))
    for kind in ("RuntimeException", "Fail", "InvalidArgument"):  # a kernel of onnxruntime's raises one of these
        error = also(error, upstream(kind))
    return error
