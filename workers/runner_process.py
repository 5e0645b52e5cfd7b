"""One runner process as its node sees it: started, spoken with, and ended."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections import deque

from workers import protocol
from workers.protocol import Down, Hello, ProtocolError, Up

log = logging.getLogger(__name__)

HELLO_TIMEOUT = 120.0
"""Seconds from the start of a process to its first message; MLX is imported meanwhile."""

EXIT_TIMEOUT = 5.0
"""Seconds in which a runner that was told to end, or closed its side, has to be gone."""

STDERR_TIMEOUT = 1.0
"""Seconds in which what a process said last has to arrive after its end."""

STDERR_LINES = 40
STDERR_CHARS = 2000


class RunnerProcess:
    """A running `python -m workers.runner`.

    The server's death closes the descriptors, which ends the process: no orphan keeps a
    model in memory.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._stderr_task = asyncio.create_task(self._read_stderr())
        self.engine = ""

    @classmethod
    async def start(cls, engine: str, blas: str) -> RunnerProcess:
        """Start a process and hear its first message.

        Raises:
            ProtocolError: it speaks another version, or died before it spoke.
        """
        down_read, down_write = os.pipe()
        up_read, up_write = os.pipe()
        command = [sys.executable, "-m", "workers.runner", "--engine", engine]
        command += ["--fd-in", str(down_read), "--fd-out", str(up_write)]
        if blas:
            command += ["--blas", blas]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(down_read, up_write),
                # A Ctrl-C in the terminal is for the server, which ends its runners in order.
                start_new_session=True,
            )
        except BaseException:
            os.close(down_write)
            os.close(up_read)
            raise
        finally:
            os.close(down_read)
            os.close(up_write)
        runner = cls(process, await _open_reader(up_read), await _open_writer(down_write))
        try:
            async with asyncio.timeout(HELLO_TIMEOUT):
                await runner._hear_hello()
        except BaseException:
            await runner.kill()
            raise
        return runner

    async def _hear_hello(self) -> None:
        hello = await self.receive()
        if hello is None:
            raise ProtocolError(f"the runner ended before it spoke: {await self.ended()}")
        if not isinstance(hello, Hello) or hello.version != protocol.VERSION:
            raise ProtocolError(
                f"the runner speaks another protocol ({hello!r:.200}); reinstall inferlog"
            )
        self.engine = hello.engine

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    async def send(self, message: Down) -> None:
        """Send a message; a runner that is gone is noticed by `receive`."""
        try:
            self._writer.write(protocol.pack(message))
            await self._writer.drain()
        except (ConnectionError, RuntimeError):
            log.debug("runner %d is gone, not sent: %s", self.pid, type(message).__name__)

    async def receive(self) -> Up | None:
        """The next message, or None when the runner closed its side.

        Raises:
            ProtocolError: what came is no message.
        """
        try:
            size = protocol.length(await self._reader.readexactly(4))
            return protocol.unpack_up(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def ended(self) -> str:
        """Wait for the end of a process that closed its side; how it ended, in words."""
        try:
            async with asyncio.timeout(EXIT_TIMEOUT):
                code = await self._process.wait()
        except TimeoutError:
            self._process.kill()
            code = await self._process.wait()
        # Waited for, not awaited: `kill` may have cancelled it, which is not meant for us.
        await asyncio.wait([self._stderr_task], timeout=STDERR_TIMEOUT)
        how = f"exit status {code}" if code >= 0 else f"killed by {_signal_name(-code)}"
        tail = "\n".join(self._stderr).strip()[-STDERR_CHARS:]
        return f"{how}\n{tail}" if tail else how

    async def shutdown(self) -> None:
        """End it in good order, within `EXIT_TIMEOUT`, then by force."""
        await self.send(protocol.Shutdown())
        try:
            async with asyncio.timeout(EXIT_TIMEOUT):
                await self._process.wait()
        except TimeoutError:
            log.warning("runner %d did not end when told to; killing it", self.pid)
        await self.kill()

    async def kill(self) -> None:
        """End it now and let go of its descriptors."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._writer.close()
        self._stderr_task.cancel()

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while True:
            try:
                line = await self._process.stderr.readline()
            except ValueError:  # a line beyond the reader's limit, which it has dropped
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()[:STDERR_CHARS]
            self._stderr.append(text)
            log.debug("runner %d: %s", self.pid, text)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def _open_reader(descriptor: int) -> asyncio.StreamReader:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**20)
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def _open_writer(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(descriptor, "wb", buffering=0)
    transport, protocol_ = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop=loop), pipe
    )
    return asyncio.StreamWriter(transport, protocol_, None, loop)
