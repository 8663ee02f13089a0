"""``python -m fedarena``."""

from fedarena.cli import main

main()
