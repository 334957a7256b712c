"""`ponder domains`: the domains and their presets."""

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def main(args: Sequence[str]) -> None:
    argparse.ArgumentParser(prog="ponder domains", description="List the domains.").parse_args(args)
    from ponder.config.resolve import preset_names
    from ponder.domains import registry

    table = Table(box=None, padding=(0, 2))
    for column in ("domain", "what it is", "presets"):
        table.add_column(column)
    for name, domain in registry.every().items():
        presets = [p for p in preset_names() if p == name or p.startswith(f"{name}-")]
        table.add_row(f"[bold]{name}[/]", domain.title, "\n".join(presets))
    Console(highlight=False).print(table)
