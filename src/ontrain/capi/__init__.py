"""onnxruntime.capi's names: the first trainer API, and whatever else the installed onnxruntime has there.

`from ontrain.capi.ort_trainer import ORTTrainer, …` is ontrain's; `ontrain.capi.onnxruntime_pybind11_state`, with the
exceptions, is onnxruntime's own module.
"""
