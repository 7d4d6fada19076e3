"""The prompt of a development cluster, which turns lines into actions."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from raftlog.cli import built_in
from raftlog.errors import RaftlogError
from raftlog.local.cluster import Node
from raftlog.local.session import ACKS, LOOK_EVERY_S, READS, Action, Session, UsageError

PROMPT = "raftlog> "
HINT = "Ctrl-D or quit stops the cluster."
ENDS = ("quit", "exit")


class Word(NamedTuple):
    """A word with which a line may begin."""

    usage: str
    help: str
    action: Action


def words_of(session: Session) -> dict[str, Word]:
    """Return the actions by word, in the order of the help."""
    return {
        word.usage.split()[0]: word
        for word in (
            Word("status", "the nodes: process, role, state", session.status),
            Word("lag", "each broker's applied offset, LAO, what holds it back", session.lag),
            Word("write KEY=VALUE [ACKS]", "put a key; visible by default", session.write),
            Word(
                "read KEY [from BROKER] [MODE]",
                "from one broker, or all running ones",
                session.read,
            ),
            Word("load on [WRITERS] | off", "write continuously; show figures", session.set_load),
            Word("kill NODE ...", "SIGKILL; shows the gap in the writes", session.kill),
            Word("stop NODE ...", "SIGTERM: the node shuts down in a controlled way", session.stop),
            Word("start [NODE ...]", "start nodes that are not running", session.start),
            Word("pause NODE ...", "SIGSTOP: still connected, but silent", session.pause),
            Word("resume [NODE ...]", "SIGCONT", session.resume),
            Word("cut NODE [NODE]", "partition from one node, or from all", session.cut),
            Word("heal [NODE [NODE]]", "end partitions", session.heal),
            Word("transfer [CONTROLLER]", "transfer the leadership", session.transfer),
            Word("user NAME", "act as admin or alice (with --secure)", session.set_user),
            Word("sleep SECONDS", "wait (for scripts)", _sleep),
        )
    }


async def _sleep(words: Sequence[str]) -> None:
    if len(words) != 1 or not re.fullmatch(r"\d{1,4}(\.\d+)?", words[0]):
        raise UsageError("sleep SECONDS")
    await asyncio.sleep(float(words[0]))


def help_lines(words: dict[str, Word]) -> Iterator[str]:
    """Return the text of ``help``."""
    for word in words.values():
        yield f"  {word.usage:<30}  {word.help}"
    yield f"  {'raftlog ...':<30}  any command on this cluster, such as raftlog doctor"
    yield f"  {'quit, Ctrl-D':<30}  stop the cluster"
    yield "A NODE is 2, broker-5, broker 5, or leader."


class Lines:
    """Runs lines of input on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.words = words_of(session)

    async def run(self, line: str) -> bool:
        """Run one line; return False if it ends the session. Never raises RaftlogError."""
        try:
            first, *rest = shlex.split(line, comments=True) or [""]
        except ValueError as error:
            print(f"cannot read this line: {error}")
            return True
        if first in ENDS:
            return False
        try:
            await self._run(first, rest)
        except RaftlogError as error:
            print(error)
        return True

    async def _run(self, first: str, rest: list[str]) -> None:
        if first == "help":
            print(*help_lines(self.words), sep="\n")
        elif first == "raftlog":
            await self._session.run_command(rest)
        elif first in self.words:
            try:
                await self.words[first].action(rest)
            except UsageError as error:
                raise UsageError(f"{first}: {error}") from None
        elif first in built_in.BY_NAME:
            await self._session.run_command([first, *rest])
        elif first:
            raise UsageError(f"{first!r} is not a command of this prompt; try: help")


async def run_script(session: Session) -> None:
    """Run the lines of standard input, each printed before it runs."""
    lines, loop = Lines(session), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(f"{PROMPT}{line.rstrip()}", flush=True)
        if not await lines.run(line):
            return
        sys.stdout.flush()


async def run_prompt(session: Session, history: Path | None) -> None:
    """Read and run lines from the terminal until Ctrl-D."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.patch_stdout import patch_stdout

    lines = Lines(session)

    class WordCompleter(Completer):
        def get_completions(
            self, document: Document, complete_event: CompleteEvent
        ) -> Iterator[Completion]:
            *before, last = document.text_before_cursor.lstrip().split(" ")
            for word in completions([*filter(None, before)], lines.words, session.cluster.nodes):
                if word.startswith(last):
                    yield Completion(word, -len(last))

    def toolbar() -> str:
        return session.toolbar(prompt.output.get_size().columns)

    prompt: PromptSession[str] = PromptSession(
        history=InMemoryHistory() if history is None else FileHistory(str(history)),
        completer=WordCompleter(),
        bottom_toolbar=toolbar,
        refresh_interval=LOOK_EVERY_S,
        complete_while_typing=False,
    )
    running: asyncio.Future[bool] | None = None

    def interrupt() -> None:
        if running is not None and not running.done():
            running.cancel()
        else:
            print(HINT)

    # Throughout, because asyncio's own handler would end the cluster.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)
    while True:
        try:
            with patch_stdout():
                line = await prompt.prompt_async(PROMPT, handle_sigint=False)
        except KeyboardInterrupt:
            print(HINT)
            continue
        except EOFError:
            return
        running = asyncio.ensure_future(lines.run(line))
        with suppress(asyncio.CancelledError):
            if not await running:
                return


def completions(before: Sequence[str], words: Iterable[str], nodes: Iterable[Node]) -> list[str]:
    """Return the words that may follow ``before`` on a line."""
    nodes = [*nodes]
    names, brokers, controllers = (
        [node.name for node in nodes if role in ("", node.role)]
        for role in ("", "broker", "controller")
    )
    if not before:
        return [*words, "help", "quit", "raftlog"]
    first, *rest = before
    if first in ("kill", "stop", "pause", "cut"):
        return [*names, "leader"]
    if first in ("start", "resume", "heal"):
        return names
    if first == "read" and rest:
        if rest[-1] == "from":
            return brokers
        return [*READS] if "from" in rest else ["from", *READS]
    if rest:
        return [*ACKS] if first == "write" and len(rest) == 1 else []
    return {"transfer": controllers, "load": ["on", "off"], "raftlog": [*built_in.BY_NAME]}.get(
        first, []
    )
