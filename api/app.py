"""The HTTP application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler

from api.command_routes import get_command
from api.errors import ApiError
from api.frame import Frame
from api.handlers import EXCEPTION_HANDLERS
from api.health import health, ready
from api.instances import (
    create_instance,
    delete_instance,
    get_instance,
    get_state,
    instance_options,
)
from api.log_routes import get_event, list_events
from api.openai.chat import create_chat_completion
from api.openai.models import get_model, list_models
from api.openai.stream_route import stream_chat_completion
from api.openapi import openapi_route
from api.services import Services
from api.sse import expect_cut_offs
from infrastructure.settings import Settings

ROUTES: list[HTTPRouteHandler] = [
    create_chat_completion,
    stream_chat_completion,
    list_models,
    get_model,
    health,
    ready,
    list_events,
    get_event,
    get_command,
    get_state,
    create_instance,
    instance_options,  # ahead of the others of its path, or Litestar makes one
    get_instance,
    delete_instance,
]


def create_app(services: Services) -> Litestar:
    """The application over a node's services.

    While it runs it warms the prompter and writes summaries of what was refused. The store
    has to outlive it.
    """

    @contextlib.asynccontextmanager
    async def beside(app: Litestar) -> AsyncGenerator[None, None]:
        tasks = [
            asyncio.create_task(_warm(services)),
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
        [*ROUTES, openapi_route(ROUTES)],
        dependencies={"services": Provide(lambda: services, sync_to_thread=False)},
        exception_handlers=EXCEPTION_HANDLERS,
        cors_config=_cors(services.settings),
        lifespan=[beside],
        logging_config=None,
        openapi_config=None,
    )
    app.asgi_handler = Frame(app.asgi_handler, services)
    return app


async def _warm(services: Services) -> None:
    """Do beforehand what the first request would wait for."""
    await services.prompter.warm()
    for model in services.projection.state.models.values():
        if model.prepared is not None:
            with contextlib.suppress(ApiError):  # said to whoever asks for the model
                await services.prompter.load(model.prepared)


def _cors(settings: Settings) -> CORSConfig | None:
    origins = [origin.strip() for origin in settings.allow_origin.split(",") if origin.strip()]
    return CORSConfig(allow_origins=origins, expose_headers=["x-request-id"]) if origins else None
