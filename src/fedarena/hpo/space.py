"""Search spaces; they lie in `fedarena.core.space`, because policies inside of a run have such as well."""

from fedarena.core.space import Configuration, Hyperparameter, Kind, Space

__all__ = ["Configuration", "Hyperparameter", "Kind", "Space"]
