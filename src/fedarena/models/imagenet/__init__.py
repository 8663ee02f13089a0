"""Networks for photographs, as torchvision has them, with a normalization that federated learning can use."""

from fedarena.models.imagenet import mobilenet, resnet, shufflenet, vgg  # noqa: F401  (importing registers the models)
from fedarena.models.imagenet.network import ImageNetwork

__all__ = ["ImageNetwork"]
