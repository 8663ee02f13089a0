"""Kernels of our own for CPUs, made on the machine where they are used."""

from fedarena.train.native.library import why_absent

__all__ = ["why_absent"]
