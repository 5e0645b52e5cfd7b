"""`inferlog chat`: a question to the running server, its answer in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec

from api.cli.answer_stream import (
    TIMEOUT,
    AnswerStream,
    Lost,
    ServerError,
    server_error,
    unreachable,
)
from api.cli.errors import OutOfReach, Problem
from api.cli.options import setting_options
from api.cli.output import clean, note
from infrastructure import server_file
from infrastructure.settings import Settings


@click.command()
@click.argument("prompt")
@click.option("--system", metavar="TEXT", help="What to tell the model about itself first.")
@click.option("--model", metavar="ID", help="Model to ask; the first that is served if absent.")
@click.option("--max-tokens", type=int, metavar="N", help="Tokens of the answer at most.")
@click.option("--temperature", type=float, metavar="X", help="0 takes the likeliest token always.")
@click.option("--seed", type=int, metavar="N", help="The same seed draws the same answer.")
@click.option("--url", metavar="URL", help="Server to ask, in place of the one started here.")
@setting_options("home")
def chat(
    settings: Settings, prompt: str, system: str | None, url: str | None, **wishes: Any
) -> None:
    """Ask the running server PROMPT (- reads it from standard input) and print its answer.

    The server is the one that was started with the same data folder. An answer that breaks off,
    as when the server is restarted, is taken up where it was.
    """
    prompt = sys.stdin.read() if prompt == "-" else prompt
    if not prompt.strip():
        raise click.UsageError("The prompt is empty.", click.get_current_context())
    locate = _fixed(url) if url is not None else lambda: _running(settings.home)
    # What was started here is reached without a proxy, whatever the environment names.
    with httpx.Client(timeout=TIMEOUT, trust_env=url is not None) as client:
        try:
            model = wishes.pop("model") or _first_model(client, locate())
            stream = AnswerStream(
                client,
                locate,
                _body(model, prompt, system, wishes),
                on_lost=lambda: note("\n(connection lost, taking the answer up again)"),
            )
            _print(stream)
        except ServerError as error:
            raise Problem(clean(f"the server says: {error}")) from error
        except Lost as error:
            raise OutOfReach(str(error)) from error


def _fixed(url: str) -> Callable[[], str]:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        context = click.get_current_context()
        raise click.BadParameter(
            f"must be like http://127.0.0.1:8000, not {url!r}", context, param_hint="--url"
        )
    base = url.rstrip("/").removesuffix("/v1")
    return lambda: base


def _running(home: Path) -> str:
    info = server_file.running(home)
    if info is None:
        raise Lost(
            f"no server runs from {home}; start one with `inferlog serve`, "
            "or name one with --url or another folder with --home"
        )
    return info.url


def _first_model(client: httpx.Client, url: str) -> str:
    try:
        response = client.get(f"{url}/v1/models")
    except httpx.TransportError as error:
        raise unreachable(url, error) from error
    if response.status_code != 200:
        raise server_error(response)
    try:
        models = msgspec.json.decode(response.content)["data"]
        return str(models[0]["id"])
    except IndexError:
        raise Problem(f"{url} serves no model; load one through POST /instance") from None
    except (msgspec.DecodeError, LookupError, TypeError):
        raise Problem(f"{url} is no OpenAI-compatible server") from None


def _body(model: str, prompt: str, system: str | None, wishes: dict[str, Any]) -> bytes:
    messages = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    chosen = {name: value for name, value in wishes.items() if value is not None}
    body = {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        **chosen,
    }
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        raise click.UsageError(
            "The prompt is not UTF-8 text.", click.get_current_context()
        ) from None


def _print(stream: AnswerStream) -> None:
    """Write the answer as it comes, and to a terminal what it cost."""
    show = clean if sys.stdout.isatty() else str
    tokens, reason, first, last, open_line = 0, None, 0.0, 0.0, False
    try:
        for chunk in stream.chunks():
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            for choice in chunk.get("choices", ()):
                reason = choice.get("finish_reason") or reason
                delta = choice.get("delta", {})
                if text := delta.get("content") or delta.get("refusal"):
                    last = time.monotonic()
                    first = first or last
                    open_line = not text.endswith("\n")
                    sys.stdout.write(show(text))
                    sys.stdout.flush()
    finally:
        if open_line:
            sys.stdout.write("\n")
    rate = f", {(tokens - 1) / (last - first):.1f} tokens/s" if last > first and tokens > 1 else ""
    cut = "; stopped at its limit, --max-tokens allows more" if reason == "length" else ""
    note(f"({tokens} tokens{rate}{cut}; inferlog log show {stream.completion_id})")
