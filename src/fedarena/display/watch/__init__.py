"""A live page about runs: what is going on, how far it is, and what it has come to."""
