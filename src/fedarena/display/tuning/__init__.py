"""How a search for hyperparameters is shown: on the screen while it goes on, and as a report."""
