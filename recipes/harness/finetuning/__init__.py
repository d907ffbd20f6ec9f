"""What run_squad.py and run_glue.py share: flags, a model's folder, batches, the loop, evaluation in two engines."""
