"""What policies made of hyperparameters."""
