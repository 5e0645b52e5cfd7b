"""The HTTP application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.di import Provide

from api.frame import Frame
from api.handlers import EXCEPTION_HANDLERS
from api.openai.chat import create_chat_completion
from api.services import Services
from api.sse import expect_cut_offs
from infrastructure.settings import Settings

ROUTES = [create_chat_completion]


def create_app(services: Services) -> Litestar:
    """The application over a node's services.

    While it runs it warms the prompter and writes summaries of what was refused. The store
    has to outlive it.
    """

    @contextlib.asynccontextmanager
    async def beside(app: Litestar) -> AsyncGenerator[None, None]:
        tasks = [
            asyncio.create_task(services.prompter.warm()),
            asyncio.create_task(services.refusals.run()),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await services.refusals.flush()
            services.prompter.close()

    expect_cut_offs()
    app = Litestar(
        ROUTES,
        dependencies={"services": Provide(lambda: services, sync_to_thread=False)},
        exception_handlers=EXCEPTION_HANDLERS,
        cors_config=_cors(services.settings),
        lifespan=[beside],
        logging_config=None,
        openapi_config=None,
    )
    app.asgi_handler = Frame(app.asgi_handler, services)
    return app


def _cors(settings: Settings) -> CORSConfig | None:
    origins = [origin.strip() for origin in settings.allow_origin.split(",") if origin.strip()]
    return CORSConfig(allow_origins=origins) if origins else None
