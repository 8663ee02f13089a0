"""Runs on a real network: a server with an authority of its own, and the devices that it invited."""
