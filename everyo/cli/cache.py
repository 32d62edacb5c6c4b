"""`everyo cache`: what the folder of compiled kernels holds, and how to empty it."""

import json

from everyo.compile import cache


def print_cache(*, as_json: bool) -> None:
    """Print where the cache is and how much is in it, or why it is off."""
    found = cache.report()
    if as_json:
        facts = {
            "folder": None if found.folder is None else str(found.folder),
            "kernels": found.kernels,
            "bytes": found.bytes,
            "limit": cache.CAP_BYTES,
            "off": found.reason,
        }
        print(json.dumps(facts, indent=2))
    elif found.folder is None:
        print(f"The cache is off: {found.reason}.")
    else:
        limit = f"{cache.CAP_BYTES / 2**20:.0f} MB at most"
        print(f"{found.folder}: {found.kernels} kernels, {found.bytes / 2**20:.2f} MB ({limit})")


def clear_cache(*, as_json: bool) -> None:
    """Remove every kernel and print how many there were."""
    count = cache.clear()
    print(json.dumps({"removed": count}) if as_json else f"{count} kernels removed.")
