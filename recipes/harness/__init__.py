"""What the recipes share: options, files, processes, checkpoints, the journal, the eager twin and the exported file."""
