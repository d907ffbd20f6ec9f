"""The official scores of SQuAD and GLUE, from predictions and truths alone: no torch, no network."""
