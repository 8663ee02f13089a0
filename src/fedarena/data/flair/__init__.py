"""FLAIR's files: who has which photos with which labels, and the photos in folders, archives or HDF5."""
