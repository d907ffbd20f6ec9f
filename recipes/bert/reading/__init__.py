"""SQuAD's questions as windows of tokens, and answers out of a model's logits."""
