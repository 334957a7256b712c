"""Files of repositories on the Hugging Face Hub: from the user's cache where they are there, else fetched."""

import socket
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from ponder.base.errors import UserError

PATIENCE = 0.5
"""Seconds to wait for a sign of the network; the Hub's own client retries for 24 s when there is none."""
MAIN = "main"
Kind = Literal["model", "dataset"]


def cached(kind: Kind, repo: str, revision: str, names: Collection[str]) -> dict[str, Path] | None:
    """The named files, where all of them are in the cache. A branch is what it was when it was last fetched."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return {
            name: Path(hf_hub_download(repo, name, repo_type=kind, revision=revision, local_files_only=True))
            for name in names
        }
    except LocalEntryNotFoundError:
        return None


def fetched(
    kind: Kind,
    repo: str,
    revision: str,
    names: Collection[str],
    instead: str,
    largest: Mapping[str, int] | None = None,
    anew: bool = False,
) -> dict[str, Path]:
    """The same from the Hub, into the cache. `largest`: bytes that a file may have; `instead`: what to do where it
    cannot be had; `anew`: also what the cache has."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    if not online():
        raise UserError(f"{repo} is not in the Hub's cache and the Hub cannot be reached; {instead}")
    try:
        for name, limit in (largest or {}).items():
            size = get_hf_file_metadata(hf_hub_url(repo, name, repo_type=kind, revision=revision)).size
            if size is None or size > limit:
                raise UserError(f"{name} of {repo} has {size} bytes, at most {limit} are fetched; {instead}")
        return {
            name: Path(hf_hub_download(repo, name, repo_type=kind, revision=revision, force_download=anew))
            for name in names
        }
    except UserError:
        raise
    except Exception as error:  # the client's HTTP library has its own errors, and has been exchanged before
        raise UserError(f"{repo} could not be fetched from the Hub ({reason(error)}); {instead}") from error


def reason(error: Exception) -> str:
    """What the Hub's client says: its first line, or where that names the answer only, the one after it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2])


def online() -> bool:
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and reachable(constants.ENDPOINT)


def reachable(endpoint: str) -> bool:
    """Whether the endpoint, or the proxy in front of it, takes a connection soon."""
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    url = urlsplit(endpoint)
    proxy = getproxies().get(url.scheme)
    if proxy and not proxy_bypass(url.hostname or ""):
        url = urlsplit(proxy if "://" in proxy else f"{url.scheme}://{proxy}")
    answered: list[bool] = []

    def knock() -> None:
        try:
            port = url.port or (443 if url.scheme == "https" else 80)
            socket.create_connection((url.hostname or "", port), timeout=PATIENCE).close()
            answered.append(True)
        except OSError:
            pass

    # A thread, because looking up the host name has no timeout of its own.
    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return bool(answered)
