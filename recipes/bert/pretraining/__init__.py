"""Pre-training: BERT on masked words and next sentences, in two phases."""
