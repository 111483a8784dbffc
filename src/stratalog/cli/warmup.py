"""`stratalog warmup`: compile the kernels ahead of their first use."""

from __future__ import annotations

import time

import click

from stratalog.cli.engines import warm_kernels
from stratalog.cli.options import JSON, format_option
from stratalog.cli.output import print_json


@click.command(short_help="Compile the kernels ahead of their first use.")
@format_option
def warmup(output: str) -> None:
    """Compile the kernels for this machine now, not during the first command that needs them."""
    started = time.perf_counter()
    compiled = warm_kernels()
    seconds = time.perf_counter() - started
    if output == JSON:
        print_json({"compiled": compiled, "seconds": round(seconds, 3)})
    else:
        click.echo(f"compiled in {seconds:.0f} s" if compiled else "the kernels are ready")
