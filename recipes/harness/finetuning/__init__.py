"""What run_squad.py and run_glue.py share: flags, batches, the loop with its checkpoints, evaluation in two engines."""
