"""A link of one request, for the unary methods: what a handler of streams answers becomes the method's response."""

from __future__ import annotations

import asyncio
from typing import Any


class UnaryLink:
    """Takes the one response."""

    def __init__(self) -> None:
        self.response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def peer(self) -> str:
        """For logs."""
        return "unary"

    def send(self, message: Any) -> None:
        """The response. The caller may have gone."""
        if not self.response.done():
            self.response.set_result(message)

    def close(self, reason: str = "") -> None:
        """There is nothing to close."""
