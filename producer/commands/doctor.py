"""`specmill doctor`."""

import json
import sys
from pathlib import Path

import click

from producer.commands.long_command import LongCommand
from worker import BROKER_VARIABLE


@click.command(cls=LongCommand, short_help="Certify that this machine samples exactly.")
@click.option("--broker", metavar="URL", envvar=BROKER_VARIABLE, show_envvar=True, help="Also reach this broker.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path(),
    help="Where datasets will be written.  [default: here]",
)
@click.option("--json", "as_json", is_flag=True, help="The certificate as one line of JSON.")
@click.option("--quiet", is_flag=True, help="No line per check while it works.")
def doctor(broker: str | None, folder: Path, as_json: bool, quiet: bool) -> None:
    """Test this machine in less than two minutes: exactness, random words, invariance, threads, broker, disk and clock.

    What passes is certified: the certificate lies in the cache folder, and the manifests of later runs name its digest. Exit codes: 0
    certified; 1 a check failed, and its line says what that means.
    """
    from producer.certificate_file import write_certificate
    from producer.doctor import certificate_text, examine

    certificate = examine(folder, broker, lambda check: None if quiet or as_json else _show(check.name, check.passed))
    write_certificate(certificate)
    click.echo(json.dumps(certificate.encode(), ensure_ascii=False) if as_json else certificate_text(certificate))
    raise click.exceptions.Exit(0 if certificate.passed else 1)


def _show(name: str, passed: bool) -> None:
    print(f"{name}: {'pass' if passed else 'FAIL'}", file=sys.stderr, flush=True)
