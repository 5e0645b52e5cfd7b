"""Every setting of a server: its name, default and meaning, in one place.

A field `max_tokens` is the flag `--max-tokens` and the variable `INFERLOG_MAX_TOKENS`. The
command line, its help and the README's table are made from these fields.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import platformdirs
from msgspec import Meta


def default_home() -> Path:
    """The platform's folder for user data."""
    return Path(platformdirs.user_data_dir("inferlog", appauthor=False))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is run. Times are whole seconds; 0 switches a deadline off."""

    home: Annotated[
        Path,
        Meta(description="Data folder: the log and the models made or downloaded."),
    ] = msgspec.field(default_factory=default_home)
    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 picks one.")] = 8000
    database_url: Annotated[
        str, Meta(description="Where the log is; empty: log.db in the data folder.")
    ] = ""
    model: Annotated[
        str,
        Meta(
            description="Model to serve: a folder in mlx-lm's format, a .gguf file, a hub name "
            "org/name, or the default, SmolLM2-135M-Instruct."
        ),
    ] = "smollm2-135m-instruct"
    engine: Annotated[
        str,
        Meta(
            description="What runs the model: `mlx`, or `scripted:FILE` to test with faults, "
            "without a model."
        ),
    ] = "mlx"
    blas: Annotated[
        str,
        Meta(
            description="Linux: BLAS library loaded ahead of MLX; empty: OpenBLAS as installed "
            "beside inferlog; `none`: MLX's own; or a path."
        ),
    ] = ""
    max_tokens: Annotated[
        int,
        Meta(ge=1, description="Tokens generated at most where a request names no limit."),
    ] = 4096
    queue: Annotated[
        int,
        Meta(ge=1, description="Requests that may wait for a runner; more get 429."),
    ] = 256
    max_batch: Annotated[int, Meta(ge=1, description="Requests that a runner decodes at once.")] = (
        32
    )
    max_body: Annotated[int, Meta(ge=1, description="Bytes of a request body; more get 413.")] = (
        16 * 1024 * 1024
    )
    lenient: Annotated[
        bool,
        Meta(description="Record and ignore request fields that are not served, instead of 400."),
    ] = False
    allow_origin: Annotated[
        str,
        Meta(description="Origins that browsers may call from, separated by commas."),
    ] = ""
    allow_host: Annotated[
        str,
        Meta(
            description="Names accepted in the Host header besides loopback's and --host's, "
            "separated by commas; `*` accepts all."
        ),
    ] = ""
    load_timeout: Annotated[
        int, Meta(ge=0, description="Seconds a model may take to load; 0: no limit.")
    ] = 600
    queue_timeout: Annotated[
        int, Meta(ge=0, description="Seconds a request may wait for a runner; 0: no limit.")
    ] = 600
    progress_timeout: Annotated[
        int,
        Meta(
            ge=0,
            description="Seconds without a decode step, beyond what the prompt's length explains, "
            "after which a runner is replaced; 0: never.",
        ),
    ] = 60
    log_level: Annotated[
        str,
        Meta(description="Least serious messages shown: debug, info, warning, error."),
    ] = "info"
