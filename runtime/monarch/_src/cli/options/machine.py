"""What this machine is, and what is installed."""

from __future__ import annotations

import argparse

from monarch._src.cli.options.common import Commands, add_command


def add(commands: Commands) -> None:
    """Spell them."""
    _add_doctor(commands)
    _add_version(commands)


def _add_doctor(commands: Commands) -> None:
    add_command(
        commands,
        "doctor",
        _doctor,
        help="what this machine has and lacks, and what to do about it",
        description="Look at this machine and this installation. Exit status 1: a problem.",
    )


def _add_version(commands: Commands) -> None:
    add_command(commands, "version", _version, help="print the version")


def _doctor(_arguments: argparse.Namespace) -> int:
    from monarch._src.cli import doctor

    return doctor.run()


def _version(_arguments: argparse.Namespace) -> int:
    from monarch._src.version import VERSION

    print(VERSION)
    return 0
