"""What run_lm.py is made of: options, text, model, engines, decoding, scoring, checkpoints, journal."""
