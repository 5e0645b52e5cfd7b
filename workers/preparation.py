"""Model folders, made by a child process so that the server never waits for one."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from domain import events as e
from domain.commands import ModelFacts
from workers.models import messages
from workers.models.errors import PreparationCrashed

log = logging.getLogger(__name__)

PROGRESS_EVERY = 1.0
"""Seconds between two recorded progress events."""

SILENCE = 900.0
"""Seconds without a line after which a preparation is taken for stuck."""


def weights_dtype() -> messages.DType:
    """What GGUF weights become on this machine: float32 is the fastest on a CPU."""
    return "float16" if sys.platform == "darwin" else "float32"


async def prepare(
    model_id: str, source: str, node_id: str, home: Path
) -> AsyncGenerator[e.ModelDownloadProgress | e.ModelPrepared | e.ModelPreparationFailed, None]:
    """Make a model's folder; the events to record, the last of which is its end."""

    def failed(message: str) -> e.ModelPreparationFailed:
        log.error("model %s: %s", model_id, message)
        return e.ModelPreparationFailed(
            model_id=model_id, node_id=node_id, source=source, error_message=message
        )

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "workers.models"),
        *("--source", source, "--home", str(home), "--dtype", weights_dtype()),
        stdin=asyncio.subprocess.PIPE,  # its end tells the child that this process is gone
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    complaints = asyncio.create_task(process.stderr.read())
    shown = 0.0
    try:
        while True:
            async with asyncio.timeout(SILENCE):
                line = await process.stdout.readline()
            match messages.decode(line) if line else None:
                case messages.Progress() as progress:
                    if time.monotonic() - shown >= PROGRESS_EVERY:
                        shown = time.monotonic()
                        yield _progress(model_id, node_id, progress)
                case messages.PreparedModel() as prepared:
                    yield _prepared(model_id, node_id, source, prepared)
                    return
                case messages.Failed(message=message):
                    yield failed(message)
                    return
                case None:
                    code = await process.wait()
                    tail = (await complaints).decode(errors="replace").strip()[-1000:]
                    crash = PreparationCrashed(f"preparing it ended with status {code}\n{tail}")
                    yield failed(str(crash).strip())
                    return
    except TimeoutError:
        yield failed(f"preparing it has said nothing for {SILENCE:.0f} s")
    except msgspec.DecodeError as error:
        yield failed(f"preparing it said something unexpected: {error}")
    finally:
        complaints.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()


def _progress(model_id: str, node_id: str, progress: messages.Progress) -> e.ModelDownloadProgress:
    percent = 100 * progress.done_bytes // max(progress.total_bytes, 1)
    log.info("model %s: %s, %d %%", model_id, progress.phase, percent)
    return e.ModelDownloadProgress(
        model_id=model_id,
        node_id=node_id,
        phase=progress.phase,
        done_bytes=progress.done_bytes,
        total_bytes=progress.total_bytes,
    )


def _prepared(
    model_id: str, node_id: str, source: str, model: messages.PreparedModel
) -> e.ModelPrepared:
    log.info("model %s: ready to load from %s", model_id, model.path)
    return e.ModelPrepared(
        model_id=model_id,
        node_id=node_id,
        source=source,
        path=model.path,
        model=ModelFacts(
            weights_digest=model.weights_digest,
            tokenizer_digest=model.tokenizer_digest,
            template_digest=model.template_digest or "",
        ),
        context_length=model.context_length,
        vocab_size=model.vocab_size,
        size_bytes=model.size_bytes,
        architecture=model.architecture,
    )
