"""The version of FedArena."""

VERSION = "0.1.0"
