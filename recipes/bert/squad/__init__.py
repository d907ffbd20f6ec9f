"""SQuAD: windows of tokens around questions, answers out of a model's logits, and the official scores of answers."""
