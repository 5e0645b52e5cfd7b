"""The runner's end of its two descriptors."""

from __future__ import annotations

import os
import threading
from queue import Empty, SimpleQueue
from typing import BinaryIO

from workers import protocol
from workers.protocol import Down, ProtocolError, Up


def take_over(fd_in: int, fd_out: int) -> tuple[int, int]:
    """Move the protocol's descriptors out of everybody's way; give the new ones.

    A native library that prints to standard output must not corrupt the protocol, so that
    becomes standard error, and standard input becomes empty. No child inherits the pipes: it
    would keep them open after this process is gone.
    """
    moved = os.dup(fd_in), os.dup(fd_out)
    for descriptor in {fd_in, fd_out}:
        if descriptor > 2:
            os.close(descriptor)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    for descriptor in moved:
        os.set_blocking(descriptor, True)
    return moved


class Channel:
    """Messages from and to the node.

    When the node closes its side, or dies, this process ends at once, whatever its main
    thread is doing: nobody is left to hear of it, and no orphan may keep a model in memory.
    """

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self._fd_in = fd_in
        self._fd_out = fd_out
        self._inbox: SimpleQueue[Down | ProtocolError] = SimpleQueue()

    def start(self) -> None:
        """Begin to listen, in a thread of its own."""
        threading.Thread(target=self._listen, name="listener", daemon=True).start()

    def receive(self, timeout: float) -> Down | None:
        """The next message; None if there is none within `timeout` seconds.

        Raises:
            ProtocolError: what came is no message.
        """
        try:
            message = self._inbox.get(timeout=timeout) if timeout else self._inbox.get_nowait()
        except Empty:
            return None
        if isinstance(message, ProtocolError):
            raise message
        return message

    def send(self, message: Up) -> None:
        """Send a message, waiting until the pipe has room for it."""
        data = memoryview(protocol.pack(message))
        try:
            while data:
                data = data[os.write(self._fd_out, data) :]
        except BrokenPipeError:
            os._exit(0)

    def _listen(self) -> None:
        with os.fdopen(self._fd_in, "rb", buffering=1 << 16) as stream:
            try:
                while True:
                    self._inbox.put(_read(stream))
            except ProtocolError as error:
                self._inbox.put(error)
                stream.read()  # the main thread ends the process, unless the node does first
            except EOFError:
                pass
            finally:
                os._exit(0)


def _read(stream: BinaryIO) -> Down:
    return protocol.unpack_down(_exactly(stream, protocol.length(_exactly(stream, 4))))


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
