"""`ponder domains`: the domains and their presets."""

import argparse
from collections.abc import Sequence

from rich.console import Console

from ponder.base.console import plain_table


def main(args: Sequence[str]) -> None:
    argparse.ArgumentParser(prog="ponder domains", description="List the domains.").parse_args(args)
    from ponder.config.resolve import preset_names
    from ponder.domains import registry

    table = plain_table("domain", "what it is", "presets")
    for name, domain in registry.every().items():
        presets = [p for p in preset_names() if p == name or p.startswith(f"{name}-")]
        table.add_row(f"[bold]{name}[/]", domain.title, "\n".join(presets))
    Console(highlight=False).print(table)
