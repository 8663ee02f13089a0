"""What searches tell: regret, ranks, sign tests, landscapes and importance of hyperparameters."""
