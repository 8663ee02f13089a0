"""What a federation looks like in numbers."""
