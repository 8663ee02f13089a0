"""The sections of the report's page, a file each. Figures come in through `plot`."""
