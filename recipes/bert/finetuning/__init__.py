"""Fine-tuning of BERT: models, batches, the loop with its checkpoints, and evaluation in two engines."""
