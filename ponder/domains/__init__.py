"""The registry of domains. Adding one: a file, an entry here, a preset."""

from ponder.domains.base import Domain

DOMAINS: dict[str, type[Domain]] = {}
