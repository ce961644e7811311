"""Images and audio by http and https, from hosts that the server's owner allows. By default there are none.

Every address on the way, redirects included, is checked: its form, its host, and what the host resolves to. The
connection goes to the address that was checked, so a name that resolves to something else a moment later changes
nothing. Size and time are bounded.
"""

import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urljoin

from triptych.errors import UserError
from triptych.serve.limits import ServeLimits
from triptych.serve.media import bytes_of_data_uri

# Narrow on purpose: parsers disagree on user info, backslashes, spaces and brackets.
_URL = re.compile(
    r"(https?)://([a-z0-9.-]{1,253})(?::([0-9]{1,5}))?(/[!\x23-\x5b\x5d-\x7e]*)?", re.ASCII | re.IGNORECASE
)
_PORTS = {"http": 80, "https": 443}
_MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_BLOCK = 64 * 1024
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def bytes_of_url(url: str, kind: Literal["image", "audio"], limits: ServeLimits) -> bytes:
    """The file in a data URI, or at an address that may be fetched."""
    if url[:5].lower() != "http:" and url[:6].lower() != "https:":
        return bytes_of_data_uri(url, kind)
    if not limits.media_hosts:
        raise UserError(f"this server fetches no files: send {kind} as a data URI, `data:{kind}/TYPE;base64,...`.")
    return fetch(url, limits)


def fetch(url: str, limits: ServeLimits) -> bytes:
    end = time.monotonic() + limits.fetch_seconds
    for _ in range(_MAX_REDIRECTS + 1):
        target = _checked(url, limits.media_hosts)
        try:
            answer = _get(target, _public_address(target), end, limits.body_bytes)
            if time.monotonic() > end:
                raise TimeoutError
        except (OSError, http.client.HTTPException):
            raise UserError(f"the file at {target.host} cannot be fetched.") from None
        if isinstance(answer, bytes):
            return answer
        url = urljoin(url, answer)
    raise UserError(f"more than {_MAX_REDIRECTS} redirects.")


@dataclass(frozen=True)
class _Target:
    scheme: str
    host: str
    port: int
    path: str


def _checked(url: str, hosts: tuple[str, ...]) -> _Target:
    match = _URL.fullmatch(url)
    if match is None:
        raise UserError("expected an address of the form http(s)://HOST/PATH, without user, spaces or backslashes.")
    scheme, host = match[1].lower(), match[2].lower().removesuffix(".")
    port = int(match[3] or _PORTS[scheme])
    if (host if port == _PORTS[scheme] else f"{host}:{port}") not in hosts:
        raise UserError("this server does not fetch files from this host; --allow-media-host adds one.")
    return _Target(scheme, host, port, match[4] or "/")


def _public_address(target: _Target) -> str:
    """The address to connect to; all addresses of the host must be public."""
    addresses = [str(info[4][0]) for info in _resolve(target.host, target.port)]
    if not addresses or not all(map(_is_public, addresses)):
        raise UserError("this server does not fetch files from private addresses.")
    return addresses[0]


def _resolve(host: str, port: int) -> list[tuple]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _connect(address: str, port: int, seconds: float) -> socket.socket:
    return socket.create_connection((address, port), timeout=seconds)


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        inside = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in _NAT64:
            inside = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inside is not None and not _is_public(str(inside)):
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _get(target: _Target, address: str, end: float, max_bytes: int) -> bytes | str:
    """The file, or where the server says that it is."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection = http.client.HTTPConnection(target.host, target.port, timeout=left)
    connection.default_port = _PORTS[target.scheme]
    plain = _connect(address, target.port, left)
    # Timeouts of a socket start anew with every byte.
    twin = plain.dup()
    watchdog = threading.Timer(max(0.0, end - time.monotonic()), _break, (twin,))
    watchdog.daemon = True
    watchdog.start()
    try:
        connection.sock = plain
        if target.scheme == "https":
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=target.host)
        connection.request("GET", target.path, headers={"Accept-Encoding": "identity", "User-Agent": "triptych"})
        with connection.getresponse() as response:
            return _read(response, max_bytes)
    finally:
        watchdog.cancel()
        for each in (connection, plain, twin):
            each.close()


def _break(twin: socket.socket) -> None:
    with suppress(OSError):
        twin.shutdown(socket.SHUT_RDWR)


def _read(response: http.client.HTTPResponse, max_bytes: int) -> bytes | str:
    if response.status in _REDIRECTS:
        return response.getheader("Location") or ""
    if response.status != 200 or response.getheader("Content-Encoding", "identity") != "identity":
        raise UserError(f"the file cannot be fetched: its host answered {response.status}.")
    data = bytearray()
    while block := response.read(_BLOCK):
        data += block
        if len(data) > max_bytes:
            raise UserError(f"a file has at most {max_bytes} bytes.")
    if response.length:
        raise http.client.IncompleteRead(bytes(data))
    return bytes(data)
