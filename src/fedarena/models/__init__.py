"""Models and the tasks they are trained for."""

from fedarena.core.seeding import seeded
from fedarena.models import (  # noqa: F401  (importing registers the models)
    albert,
    bert,
    characters,
    cnn,
    deepspeech,
    dlrm,
    embedding_mlp,
    gcn,
    go_policy,
    gru,
    huggingface,
    imagenet,
    linear,
    matrix_factorization,
    mlp,
    pfl_cnn,
    resnet,
    seq2seq,
    speech,
    transformer,
    vit,
)
from fedarena.models.adaptation import ADAPTATIONS, Adaptation
from fedarena.models.augmentation import AUGMENTATIONS, Augmentation
from fedarena.models.spec import DataSpec, InputSpec
from fedarena.models.tasks import TASKS, Task, Tensors, make_task
from fedarena.models.trainable import constant_tensors, trainable_parameters
from fedarena.models.zoo import MODELS, build_model, default_model

__all__ = [
    "ADAPTATIONS",
    "AUGMENTATIONS",
    "MODELS",
    "TASKS",
    "Adaptation",
    "Augmentation",
    "DataSpec",
    "InputSpec",
    "Task",
    "Tensors",
    "build_model",
    "constant_tensors",
    "default_model",
    "make_task",
    "seeded",
    "trainable_parameters",
]
