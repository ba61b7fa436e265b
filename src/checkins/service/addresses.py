"""Addresses of clients: whose limits one counts to, and which are proxies of ours."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

from checkins.errors import InvalidValue

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Proxies:
    """Addresses or networks that carry the requests of many clients."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._networks = tuple(_network(text) for text in texts)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: object) -> bool:
        found = parsed(address) if isinstance(address, str) else None
        return found is not None and any(found in network for network in self._networks)


@lru_cache(maxsize=10_000)
def bucket_of(address: str) -> str:
    """Whose limits this address counts to: its own, or those of its /64, one customer's.

    >>> bucket_of("2001:db8::1:2"), bucket_of("::ffff:192.0.2.7")
    ('2001:db8::/64', '192.0.2.7')
    """
    found = parsed(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))
    return address if found is None else str(found)


def parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, without IPv6 around an IPv4 one; None if it is none."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return None
    mapped = getattr(found, "ipv4_mapped", None)
    return found if mapped is None else mapped


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidValue(
            "trusted_proxies", text, "must be addresses or networks such as 10.0.0.0/8"
        ) from None
