"""A scripted JWKS endpoint on loopback."""

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]


class Endpoint:
    def __init__(self, content: bytes = b"", context: ssl.SSLContext | None = None) -> None:
        self.content = content
        self.answer: Answer | None = None
        self.asked = 0
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.asked += 1
                if endpoint.answer is not None:
                    endpoint.answer(self)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(endpoint.content)))
                self.end_headers()
                self.wfile.write(endpoint.content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Ignore a client that hangs up."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}/jwks.json"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def serving(content: bytes = b"", context: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    endpoint = Endpoint(content, context)
    try:
        yield endpoint
    finally:
        endpoint.close()
