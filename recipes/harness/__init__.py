"""What the recipes share: options, files, jobs, processes, checkpoints, the journal, the eager twin, fine-tuning."""
