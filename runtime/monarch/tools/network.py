"""The addresses of a host name as text."""

from monarch._src.net.interfaces import AddrType, get_ipaddr, get_sockaddr

__all__ = ["AddrType", "get_ipaddr", "get_sockaddr"]
