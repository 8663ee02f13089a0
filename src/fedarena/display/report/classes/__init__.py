"""What became of single classes: frequent ones and rare ones."""
