"""What the readers of trace files share."""
