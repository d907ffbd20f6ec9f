"""onnxruntime.training.utils.hooks.merge_activation_summary's import path, to be run with `python -m`."""

from ontrain.training.inspection.merge import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
