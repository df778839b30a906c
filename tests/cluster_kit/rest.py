"""A small HTTP client for the local cluster's API server, for tests, the demo and benches.

kubectl costs a tenth of a second of CPU per call and polls; these callers want many cheap reads and a real watch. The
calling thread must be inside the cluster's network namespace (`Cluster.enter_network`). Standard library only.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ISRV = "/apis/plimsoll.dev/v1alpha1"


class RestError(Exception):
    """The API server refused: `.code` is the HTTP status, `.message` its sentence."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True)
class Rest:
    """Where the API server is and who asks."""

    host: str
    port: int
    token: str
    authority: str  # PEM

    @classmethod
    def from_kubectl(cls, kubectl: Callable[..., Any]) -> Rest:
        """Read address, authority and token from the kubeconfig that `kubectl` uses."""
        view = json.loads(kubectl("config", "view", "--raw", "-o", "json").stdout)
        cluster = view["clusters"][0]["cluster"]
        if data := cluster.get("certificate-authority-data"):
            authority = base64.b64decode(data).decode()
        else:
            with open(cluster["certificate-authority"], encoding="ascii") as file:  # noqa: PTH123
                authority = file.read()
        address = urlsplit(cluster["server"])
        token = view["users"][0]["user"]["token"]
        return cls(address.hostname or "127.0.0.1", address.port or 443, token, authority)

    def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> Any:
        """One request; returns the decoded JSON (or text). Raises RestError for 400 and above."""
        connection = self._connect(timeout=60)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, self._headers(content_type))
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status >= http.client.BAD_REQUEST:
            raise RestError(response.status, _message(text))
        return _decode(text)

    def get(self, path: str) -> Any:
        """GET; None when the API server answers 404."""
        try:
            return self.call("GET", path)
        except RestError as error:
            if error.code == http.client.NOT_FOUND:
                return None
            raise

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """The items of a list, e.g. `items("/api/v1/pods", labelSelector="a=b")`."""
        listed = self.get(path + ("?" + urlencode(query) if query else ""))
        return list(listed["items"]) if listed else []

    def apply(self, path: str, body: Mapping[str, Any], manager: str = "tests") -> Any:
        """Server-side apply with force."""
        target = f"{path}?fieldManager={quote(manager)}&force=true"
        return self.call("PATCH", target, body, "application/apply-patch+yaml")

    def merge(self, path: str, body: Mapping[str, Any]) -> Any:
        """Merge patch."""
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def watch(self, path: str, seconds: int = 300, **query: str) -> Iterator[dict[str, Any]]:
        """Yield watch events (`type`, `object`) until the server ends the stream."""
        query = {**query, "watch": "true", "timeoutSeconds": str(seconds)}
        connection = self._connect(timeout=seconds + 30)
        try:
            connection.request("GET", f"{path}?{urlencode(query)}", None, self._headers())
            response = connection.getresponse()
            if response.status >= http.client.BAD_REQUEST:
                raise RestError(response.status, _message(response.read().decode()))
            while line := response.readline():
                yield json.loads(line)
        finally:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cadata=self.authority)
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=context)

    def _headers(self, content_type: str = "application/json") -> dict[str, str]:
        return {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": content_type,
            "Accept": "application/json",
        }


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _message(text: str) -> str:
    decoded = _decode(text)
    return str(decoded.get("message", text)) if isinstance(decoded, dict) else text
