"""What the recipes share: options, files, jobs, processes, checkpoints, journal, eager twin, WordPiece, fine-tuning."""
