"""A reverse proxy that serves another server below a prefix, as JupyterHub's does."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PREFIX = "/user/someone/proxy/8265"
_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"}
PATIENCE_S = 60.0


@contextmanager
def proxy_of(url: str) -> Iterator[str]:
    """The address of a proxy, with its prefix; its requests have ended after the block."""
    target = urlsplit(url).netloc

    class Handler(BaseHTTPRequestHandler):
        def _forward(self) -> None:
            if not self.path.startswith(PREFIX):
                self.send_error(404)
                return
            size = int(self.headers.get("Content-Length", "0"))
            connection = http.client.HTTPConnection(target, timeout=PATIENCE_S)
            try:
                sent = {k: v for k, v in self.headers.items() if k.lower() not in _HOP_BY_HOP}
                path, body = self.path.removeprefix(PREFIX), self.rfile.read(size)
                connection.request(self.command, path, body, sent)
                answer = connection.getresponse()
                data = answer.read()
            finally:
                connection.close()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = _forward
        do_POST = _forward

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{PREFIX}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
