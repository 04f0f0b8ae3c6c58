"""Which addresses a request may go to: public ones only. Names are resolved once, and the connection goes to what was checked.

A server that is asked to fetch things can be made to fetch from inside its own network. So every address that a name leads to must
be public; loopback, private, link-local (where clouds keep their metadata), shared, reserved, multicast and unspecified ones are
refused, also when they are wrapped in an IPv6 address. A name that is looked up again for the connection could lead elsewhere by
then, so it is not looked up again.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from stepwell.errors import AddressRefused

__all__ = ["is_public", "public_addresses"]

_TRANSLATED = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
"""IPv4 addresses behind a translator: the last 32 bits."""
_COMPATIBLE = IPv6Network("::/96")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address, with what may be wrapped in it, is one of the open internet."""
    return all(each.is_global and not each.is_multicast and not each.is_reserved for each in _unwrapped(address))


def _unwrapped(address: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    if isinstance(address, IPv4Address):
        return [address]
    inner: list[IPv4Address | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in (*_TRANSLATED, _COMPATIBLE)):
        inner.append(IPv4Address(int(address) & 0xFFFFFFFF))
    found = [each for each in inner if each is not None]
    is_wrapper = address.ipv4_mapped is not None or any(address in network for network in _TRANSLATED)
    return [*found] if is_wrapper else [address, *found]


def public_addresses(host: str, port: int) -> list[tuple[int, str]]:
    """The family and address of everything that a host name leads to; ``AddressRefused`` if any of it is not public."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise AddressRefused(f"{host!r} is no host name") from None
    addresses = list(dict.fromkeys((int(family), str(place[0])) for family, _, _, _, place in found))
    for _, text in addresses:
        if not is_public(ip_address(text.partition("%")[0])):
            raise AddressRefused(f"{host!r} leads to {text}, which is not a public address; the request was not sent")
    return addresses
