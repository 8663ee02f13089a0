"""What everybody may use: errors, names of parts and their options, files, random streams."""
