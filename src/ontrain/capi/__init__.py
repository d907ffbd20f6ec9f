"""The first trainer API under onnxruntime.capi's names: `from ontrain.capi.ort_trainer import ORTTrainer, …`."""
