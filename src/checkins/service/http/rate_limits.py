"""Limits per client address on requests per second and on open connections.

Each process counts only its own requests and connections.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from checkins.service.settings import Limits, proxy_network

MOST_ADDRESSES = 100_000  # largest number of addresses whose request rate is remembered


@dataclass(slots=True, kw_only=True)
class RequestRates:
    """Token buckets, one per address, with ``burst`` tokens and ``per_s`` new tokens per second.

    ``due`` holds when each bucket is full again, in seconds times ``per_s``. At most ``most``
    addresses are remembered; the least recently used address is dropped first.
    """

    per_s: float
    burst: int
    most: int = MOST_ADDRESSES
    clock: Callable[[], float] = time.monotonic
    due: dict[str, float] = field(default_factory=dict)

    def wait_s(self, address: str) -> float:
        """Count a request and return 0, or return how many seconds the client must wait."""
        if self.per_s == 0:
            return 0.0
        now = self.clock() * self.per_s
        due = max(self.due.pop(address, now), now)
        late = due + 1.0 - now - self.burst
        self.due[address] = due if late > 0 else due + 1.0
        if len(self.due) > self.most:
            del self.due[next(iter(self.due))]
        return max(0.0, late / self.per_s)


class Proxies:
    """Addresses or networks of trusted proxies, which forward the requests of many clients."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._networks = tuple(proxy_network(text) for text in texts)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: object) -> bool:
        found = parsed(address) if isinstance(address, str) else None
        return found is not None and any(found in network for network in self._networks)


@dataclass(slots=True)
class ConnectionCounts:
    """The number of open connections, in total and per IPv4 address or IPv6 /64."""

    limits: Limits
    proxies: Proxies = field(default_factory=Proxies)
    """The limit per address does not apply to proxies, because a proxy serves many clients."""
    total: int = 0
    of_address: dict[str, int] = field(default_factory=dict)

    def admit(self, address: str) -> bool:
        """Count one more connection and return True, unless a limit is reached."""
        bucket = bucket_of(address)
        here = self.of_address.get(bucket, 0)
        if 0 < self.limits.connections <= self.total:
            return False
        if 0 < self.limits.per_address <= here and address not in self.proxies:
            return False
        self.total += 1
        self.of_address[bucket] = here + 1
        return True

    def release(self, address: str) -> None:
        """Stop counting a connection that was admitted."""
        bucket = bucket_of(address)
        self.total -= 1
        here = self.of_address.pop(bucket) - 1
        if here:
            self.of_address[bucket] = here


@lru_cache(maxsize=10_000)
def bucket_of(address: str) -> str:
    """Return the key under which an address is counted. For IPv6 it is the /64 network.

    >>> bucket_of("2001:db8::1:2"), bucket_of("::ffff:192.0.2.7")
    ('2001:db8::/64', '192.0.2.7')
    """
    found = parsed(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))
    return address if found is None else str(found)


def parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an IP address, or None if the text is none. IPv4-mapped IPv6 becomes IPv4."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return None
    mapped = getattr(found, "ipv4_mapped", None)
    return found if mapped is None else mapped
