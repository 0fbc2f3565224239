"""Engines with a real process and the toy model."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from chairlift.config.load import load_settings
from chairlift.engine.async_engine import AsyncEngine

StartEngine = Callable[..., Awaitable[AsyncEngine]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def start_engine(anyio_backend: str) -> AsyncIterator[StartEngine]:
    """Starts engines on the toy model, with any settings, and stops them at the end."""
    del anyio_backend
    async with AsyncExitStack() as stack:

        async def start(**settings: object) -> AsyncEngine:
            engine = AsyncEngine(load_settings({"executor": "fake", **settings}, env={}))
            stack.push_async_callback(engine.stop)
            await engine.start()
            return engine

        yield start
