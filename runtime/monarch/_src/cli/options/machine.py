"""Options of the commands about this machine and installation: `doctor`, `skill`, `version`."""

from __future__ import annotations

import argparse

from monarch._src.cli.options.common import Commands, add_command


def add(commands: Commands) -> None:
    """Add the commands."""
    _add_doctor(commands)
    _add_skill(commands)
    _add_version(commands)


def _add_doctor(commands: Commands) -> None:
    add_command(
        commands,
        "doctor",
        _doctor,
        help="check this machine and this installation, with remedies",
        description="Check this machine and this installation. Exits with 1 if there is a problem.",
    )


def _add_skill(commands: Commands) -> None:
    add_command(
        commands,
        "skill",
        _skill,
        help="print a guide for AI agents that look into running programs",
        description="Print SKILL.md: how an AI agent finds out what a program does, why it hangs "
        "and what failed, with commands and SQL.",
    )


def _add_version(commands: Commands) -> None:
    add_command(commands, "version", _version, help="print the version")


def _doctor(_arguments: argparse.Namespace) -> int:
    from monarch._src.cli import doctor

    return doctor.run()


def _skill(_arguments: argparse.Namespace) -> int:
    from monarch._src.cli import skill

    return skill.run()


def _version(_arguments: argparse.Namespace) -> int:
    from monarch._src.version import VERSION

    print(VERSION)
    return 0
