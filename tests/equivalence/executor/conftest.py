"""The tiny model of most of these tests, made and loaded once; a module may have a ``source`` of its own."""

import pytest
from transformers import PreTrainedModel

from chairlift.config.model_source import ModelSource
from tests.equivalence.tiny_models import load_reference, save_tiny_model


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return save_tiny_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="session")
def reference(source: ModelSource) -> PreTrainedModel:
    """The same model, as transformers computes it."""
    return load_reference(source)
